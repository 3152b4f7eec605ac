//! `create`: from a bundle to a container that waits to be started, or to nothing at all.

use super::id::ContainerId;
use super::record::{FIFO, Place, REPORT, Record, stat};
use super::{Containers, bundle, prepare, socket};
use crate::cgroup::{Cgroup, CgroupPath, Hierarchy, Purpose};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Durability};
use crate::mounts::bundle::Entry;
use crate::process::{
    self, BuildHooks, Command, First, Gate, Managed, Message, OomScore, Plan, Root, Spawned, Stdio, Vectors, attributes,
};
use crate::spec::config::linux::NamespaceKind;
use crate::spec::config::{Config, check};
use crate::spec::state::{State, Status};
use crate::sys::attributes::take_descriptor;
use crate::{hooks, seccomp};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

/// How a container is to be created, besides what its config.json says.
#[derive(Clone, Debug, Default)]
pub struct Creation {
    /// The bundle's directory, absolute.
    pub bundle: PathBuf,
    /// A unix socket that gets the terminal's master.
    pub console_socket: Option<PathBuf>,
    /// A unix socket that gets the first process's pidfd.
    pub pidfd_socket: Option<PathBuf>,
    /// A file for the first process's pid.
    pub pid_file: Option<PathBuf>,
    /// How many descriptors from 3 on are handed through.
    pub preserve_fds: u32,
    /// Moves the root over the old one instead of pivoting, for hosts on a ramdisk.
    pub no_pivot: bool,
    /// Keeps the caller's session keyring.
    pub no_new_keyring: bool,
    /// systemd makes the cgroup.
    pub systemd_cgroup: bool,
    /// Makes no cgroup: the container stays in the caller's.
    pub no_cgroup: bool,
    /// Whether the caller goes away while the container runs.
    pub detached: bool,
}

/// A container that was created by this process and waits to be started.
#[derive(Debug)]
pub struct Created {
    pub(super) place: Rc<Place>,
    pub(super) record: Record,
    pub(super) config: Config,
    /// The terminal's master, where no console socket got it.
    pub(super) console: Option<std::os::fd::OwnedFd>,
    /// What was passed over, in sentences.
    pub warnings: Vec<String>,
}

/// What exists so far. Dropped, it is unmade, the last first.
struct Undo {
    place: Rc<Place>,
    cgroup: Option<Cgroup>,
    spawned: Option<Spawned>,
    kept: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // An error is on its way already; what cannot be unmade now is found by `delete --force`.
        if let Some(spawned) = &self.spawned {
            let _ = spawned.signal(Signal::KILL);
            let _ = spawned.reap();
        }
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
            let _ = cgroup.remove();
        }
        let _ = self.place.remove();
    }
}

impl Containers {
    /// Creates a container.
    pub fn create(&self, id: &ContainerId, wish: &Creation) -> Result<Created> {
        if wish.systemd_cgroup {
            return Err(Error::new(Kind::Cgroup, "cgroups made by systemd are not supported yet")
                .hint("let the caller make them itself, such as dockerd --exec-opt native.cgroupdriver=cgroupfs"));
        }
        let (config, bytes) = bundle::read(&wish.bundle)?;
        check::check(&config)?;
        let process = config.process.as_ref().ok_or_else(|| Error::new(Kind::Spec, "`process` is missing"))?;
        refuse_missing(&config, wish)?;
        check_terminal(process.terminal, wish)?;
        check_preserved(wish.preserve_fds)?;
        let (identity, unknown) = prepare::identity(process);
        let mut warnings: Vec<_> = unknown.iter().map(|name| format!("ignoring unknown capability `{name}`")).collect();
        let rlimits = prepare::rlimits(process)?;
        let attributes = attributes::plan(process, Some(&config.linux))?;
        let filter = filter(&config)?;
        warnings.extend(filter.unknown().iter().map(|name| format!("ignoring unknown system call `{name}`")));
        let (environment, home_is_missing) = prepare::environment(process);
        let mut environment = environment;
        preserve_listeners(&mut environment);
        let arguments: Vec<OsString> = process.args.iter().map(OsString::from).collect();
        let vectors = Vectors::new(&arguments, &environment).map_err(|error| error.of_kind(Kind::Spec))?;
        let hierarchy = Hierarchy::probe()?;
        let path = if config.linux.cgroups_path.is_empty() { id.as_str() } else { &config.linux.cgroups_path };
        let cgroup_path = CgroupPath::parse(path)?;
        let resources = prepare::resources(&config);
        let (namespaces, user_namespace) = prepare::namespaces(&config)?;

        let place = Rc::new(Place::make(&self.root, id)?);
        let mut undo = Undo { place, cgroup: None, spawned: None, kept: false };
        undo.place.keep_config(&bytes)?;
        let cgroup = Cgroup::create(&hierarchy, &cgroup_path, Purpose::Observed, &resources)?;
        let groups = cgroup.record();
        let bundle = prepare::bundle(
            &config,
            &wish.bundle,
            if wish.no_pivot { Entry::Move } else { Entry::Pivot },
            groups.paths().map(|(name, path)| (name.to_owned(), path.to_path_buf())).collect(),
        );
        let clone_into = cgroup.clone_into().map(|group| group.try_clone_to_owned()).transpose();
        let tasks = cgroup.join_files();
        undo.cgroup = Some(cgroup);
        let bundle = bundle?;
        let mut record = Record {
            oci_version: config.oci_version.clone(),
            id: id.as_str().to_owned(),
            bundle: wish.bundle.display().to_string(),
            rootfs: bundle.root.display().to_string(),
            created: humantime::format_rfc3339_nanos(SystemTime::now()).to_string(),
            annotations: config.annotations.clone(),
            owner: rustix::process::getuid().as_raw(),
            cgroup: Some(groups),
            cgroup_path: path.to_owned(),
            own_pids: namespaces.makes(NamespaceKind::Pid),
            ..Record::new()
        };
        undo.place.write(&record)?; // the intent, before the first thing that would outlive us
        let state = record.state(Status::Creating);
        let terminal = process.terminal.then(|| prepare::terminal(process.console_size));
        let plan = Plan {
            namespaces,
            user_namespace,
            cgroup: clone_into.failing(Kind::Cgroup, || "keep the container's cgroup open")?,
            cgroup_tasks: tasks?,
            hostname: (!config.hostname.is_empty()).then(|| config.hostname.clone()),
            domainname: (!config.domainname.is_empty()).then(|| config.domainname.clone()),
            new_keyring: !wish.no_new_keyring,
            oom_score: process.oom_score_adj.map_or(OomScore::Inherited, OomScore::Adjusted),
            sysctls: prepare::sysctls(&config),
            root: Root::Bundle(bundle),
            hooks: BuildHooks {
                of_parent: !config.hooks.prestart.is_empty() || !config.hooks.create_runtime.is_empty(),
                of_container: config.hooks.create_container.clone(),
                state: state.clone(),
            },
            command: Command {
                identity,
                attributes,
                rlimits: Vec::new(),
                landlock: None,
                seccomp: Cow::Owned(filter),
                directory: PathBuf::from(&process.cwd),
                vectors,
                errand: None,
                managed: Some(Managed {
                    preserved: wish.preserve_fds + listeners(),
                    home_is_missing,
                    gate: Some(make_gate(&undo.place.path)?),
                    rlimits: rlimits.clone(),
                    hooks: config.hooks.start_container.clone(),
                    state: State { status: Status::Created, pid: 1, ..state.clone() },
                    controlling_terminal: process.terminal,
                }),
            },
            stdio: terminal.map_or(Stdio::Inherited, Stdio::Terminal),
            first: First::Command,
        };
        let spawned = process::spawn(plan).map_err(unable)?;
        record.pid = spawned.pid;
        let spawned = undo.spawned.insert(spawned);
        let console =
            converse(spawned, &config, wish, &rlimits, &State { pid: record.pid, ..state }).map_err(unable)?;
        record.pid_started = stat(record.pid).map(|(_, started)| started).unwrap_or_default();
        undo.place.write(&record)?;
        if let Some(path) = &wish.pidfd_socket {
            socket::send(path, "standard", spawned.pidfd())?;
        }
        if let Some(path) = &wish.pid_file {
            files::replace(path, record.pid.to_string().as_bytes(), 0o644, Durability::Cached)?;
        }
        take_apart(undo, record, config, console, warnings)
    }
}

fn take_apart(
    mut undo: Undo,
    record: Record,
    config: Config,
    console: Option<std::os::fd::OwnedFd>,
    warnings: Vec<String>,
) -> Result<Created> {
    undo.kept = true;
    let place = Rc::clone(&undo.place);
    Ok(Created { place, record, config, console, warnings })
}

/// Callers tell by these words that it was the container's process and not ours.
pub(super) fn unable(error: Error) -> Error {
    error.doing("unable to start container process")
}

/// What is asked for and not carried out is an error, never left out in silence.
fn refuse_missing(config: &Config, wish: &Creation) -> Result<()> {
    let linux = &config.linux;
    let missing = [
        (wish.systemd_cgroup, "--systemd-cgroup", "use the cgroupfs driver"),
        (wish.no_cgroup, "--cgroup-manager=disabled", "use the cgroupfs driver"),
        (!linux.net_devices.is_empty(), "`linux.netDevices`", "move the device into the network namespace yourself"),
        (linux.intel_rdt.is_some(), "`linux.intelRdt`", "remove it"),
        (config.annotations.contains_key("brig.landlock"), "the annotation `brig.landlock`", "remove it"),
    ];
    match missing.into_iter().find(|(asked, _, _)| *asked) {
        Some((_, what, hint)) => Err(Error::new(Kind::Spec, format!("{what} is not supported yet")).hint(hint)),
        None => Ok(()),
    }
}

fn check_terminal(terminal: bool, wish: &Creation) -> Result<()> {
    let refuse = |words: &str| Err(Error::new(Kind::Usage, words));
    match (terminal && wish.detached, wish.console_socket.is_some()) {
        (true, false) => refuse("cannot allocate tty if runc will detach without setting console socket"),
        (false, true) => refuse("cannot use console socket if runc will not detach or allocate tty"),
        _ => Ok(()),
    }
}

/// Every descriptor that is to be handed through must be there.
pub(super) fn check_preserved(count: u32) -> Result<()> {
    for number in 3..count.saturating_add(3) {
        std::fs::read_link(format!("/proc/self/fd/{number}"))
            .failing(Kind::Usage, || format!("unable to stat preserved-fd {number} (of {count})"))?;
    }
    Ok(())
}

/// How many sockets a service manager handed us (sd_listen_fds(3)); they come before those of `--preserve-fds`.
fn listeners() -> u32 {
    std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn preserve_listeners(environment: &mut Vec<(OsString, OsString)>) {
    if listeners() > 0 {
        environment.retain(|(name, _)| name != "LISTEN_FDS" && name != "LISTEN_PID");
        environment.push(("LISTEN_FDS".into(), listeners().to_string().into()));
        environment.push(("LISTEN_PID".into(), "1".into()));
    }
}

fn filter(config: &Config) -> Result<seccomp::Program> {
    let Some(profile) = &config.linux.seccomp else { return Ok(seccomp::Program::nothing()) };
    let program = seccomp::compile(profile)?;
    if program.listens() && profile.listener_path.is_empty() {
        return Err(Error::new(Kind::Spec, "seccomp: SCMP_ACT_NOTIFY needs a `listenerPath`"));
    }
    Ok(program)
}

/// The FIFO at which init waits. It is open for reading and writing, so that neither its opening nor its reading ever fails for want of a
/// partner, and init alone holds it: whoever opens it only for writing learns whether init is there.
fn make_gate(directory: &Path) -> Result<Gate> {
    let path = directory.join(FIFO);
    let failed = |path: &Path| format!("make `{}`", path.display());
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .map_err(|errno| files::failed(errno.into(), failed(&path)))?;
    let open = |path: &Path, flags: OFlags| {
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))
            .map_err(|errno| files::failed(errno.into(), failed(path)))
    };
    let fifo = open(&path, OFlags::RDWR)?;
    let report = open(&directory.join(REPORT), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    Ok(Gate { fifo, report })
}

/// Answers init until it is ready.
fn converse(
    spawned: &Spawned,
    config: &Config,
    wish: &Creation,
    rlimits: &[(Resource, Rlimit)],
    state: &State,
) -> Result<Option<std::os::fd::OwnedFd>> {
    let mut console = None;
    loop {
        match spawned.receive()? {
            Some(Message::Hooks) => {
                hooks::run("prestart", &config.hooks.prestart, state)?;
                hooks::run("createRuntime", &config.hooks.create_runtime, state)?;
                spawned.go()?;
            }
            Some(Message::Limits) => {
                limit(spawned.pid, rlimits)?;
                spawned.go()?;
            }
            Some(Message::Console(master)) => match &wish.console_socket {
                Some(path) => socket::send_console(path, &master)?,
                None => console = Some(master),
            },
            Some(Message::Listener(number)) => {
                let listener = take_descriptor(spawned.pidfd(), number)
                    .failing(Kind::Seccomp, || "fetch the filter's listener")?;
                if let Some(profile) = &config.linux.seccomp {
                    socket::send_listener(profile, &listener, state)?;
                }
            }
            Some(Message::Ready) => return Ok(console),
            Some(Message::Failed(error)) => return Err(error),
            Some(other) => return Err(Error::new(Kind::Lost, format!("init said something out of turn: {other:?}"))),
            None => return Err(Error::new(Kind::Lost, "init ended without a word").doing("wait for the container")),
        }
    }
}

/// Sets the limits of a process that may not do so itself: in a user namespace of its own nobody can raise a hard limit.
pub(super) fn limit(pid: i32, limits: &[(Resource, Rlimit)]) -> Result<()> {
    for (resource, limit) in limits {
        prlimit(Pid::from_raw(pid), *resource, *limit)
            .failing(Kind::LimitUnenforceable, || format!("error setting rlimit {resource:?}"))?;
    }
    Ok(())
}

impl Created {
    /// The first process, in our PID namespace.
    pub fn pid(&self) -> i32 {
        self.record.pid
    }

    /// Takes the terminal's master, if this process is to serve it.
    pub fn take_console(&mut self) -> Option<std::os::fd::OwnedFd> {
        self.console.take()
    }
}
