//! `create`: makes a container that waits for `start`, or leaves nothing.

use super::converse::{self, Answers, Handed};
use super::creation::Creation;
use super::group::Wanted;
use super::id::ContainerId;
use super::protect::Guard;
use super::record::{FIFO, Place, REPORT, Record};
use super::{Containers, broker, bundle, creation, delete, group, notify, prepare, socket};
use crate::cgroup::Cgroup;
use crate::container::tree::Stat;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Durability};
use crate::landlock;
use crate::mounts::{
    self,
    bundle::{Entry, shown},
};
use crate::process::{
    self, BuildHooks, Command, First, Gate, OomScore, Plan, Spawned, Stdio, Uplink, Vectors, attributes,
};
use crate::resctrl;
use crate::spec::config::linux::NamespaceKind;
use crate::spec::config::{Config, Hook, check};
use crate::spec::protections::Protections;
use crate::spec::state::{State, Status};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::Signal;
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

/// A container that waits for `start`.
#[derive(Debug)]
pub struct Created {
    pub(super) place: Rc<Place>,
    pub(super) record: Record,
    pub(super) config: Config,
    pub(super) console: Option<std::os::fd::OwnedFd>,
    /// Sentences about ignored options.
    pub warnings: Vec<String>,
    /// Debug notes in runc's words.
    pub notes: Vec<String>,
}

/// Drop removes the parts that exist so far, the last first.
pub(super) struct Undo {
    pub(super) place: Rc<Place>,
    pub(super) cgroup: Option<Cgroup>,
    /// The unit's properties for systemd, and the container's name.
    pub(super) unit: Option<(String, String)>,
    pub(super) resctrl: Option<resctrl::Group>,
    /// The container's id, and the directory that its capped root covers.
    shown: Option<(String, PathBuf)>,
    spawned: Option<Spawned>,
    /// The last hooks and their state, from when the first hook could have run.
    pub(super) poststop: Option<(Vec<Hook>, State)>,
    kept: bool,
}

impl Undo {
    pub(super) fn new(place: Place) -> Undo {
        Undo {
            place: Rc::new(place),
            cgroup: None,
            unit: None,
            resctrl: None,
            shown: None,
            spawned: None,
            poststop: None,
            kept: false,
        }
    }

    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // The caller has an error already, and `delete --force` finds the rest.
        if let Some(spawned) = &self.spawned {
            let _ = spawned.signal(Signal::KILL);
            let _ = spawned.reap();
        }
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
        }
        if let (Some((unit, id)), Some(_)) = (&self.unit, &self.cgroup) {
            let _ = group::stop(unit, id);
        }
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.remove();
        }
        if let Some(group) = &self.resctrl {
            let _ = group.remove();
        }
        if let Some((id, root)) = &self.shown
            && self.place.lock_roots().and_then(|_lock| shown::hide(id, root)).is_err()
        {
            return; // the record has the rest
        }
        // As in runc, the last hooks undo what the first ones did. A remaining record leaves them to `delete`.
        if self.place.remove().is_ok()
            && let Some((hooks, state)) = &self.poststop
        {
            let _ = delete::poststop(hooks, state);
        }
    }
}

impl Containers {
    /// Creates a container.
    pub fn create(&self, id: &ContainerId, wish: &Creation) -> Result<Created> {
        process::require_one_thread()?;
        let path = bundle::config_path(wish);
        let bytes = bundle::read(&path)?;
        let (mut config, bytes) = bundle::annotate(bundle::parse(&path, &bytes)?, bytes, &wish.annotations)?;
        check::check(&config)?;
        let protections = Protections::parse(&config.annotations)?;
        protections.check(&config)?;
        protections.landlock.as_ref().map_or(Ok(()), landlock::check)?;
        if let Some(process) = &mut config.process {
            protections.restrict(process);
            broker::give_variables(&protections.secrets, process);
        }
        let process = config.process.as_ref().ok_or_else(|| Error::new(Kind::Spec, "`process` is missing"))?;
        creation::check_terminal(process.terminal, wish.detached, wish.console_socket.as_deref())?;
        let preserved = wish.preserve_fds.saturating_add(creation::listeners());
        creation::check_preserved(preserved)?;
        let (identity, unknown) = prepare::identity(process);
        let mut warnings = prepare::capability_warnings(&identity, unknown);
        warnings.extend(prepare::missing_privileges(process, &identity.capabilities, &config));
        let rlimits = prepare::rlimits(process)?;
        let mut attributes = attributes::plan(process, &config.linux)?;
        if !wish.no_cgroup {
            attributes.affinity = Some(attributes::every_cpu()); // the cgroup's processors, not the caller's
        }
        let filter = prepare::filter(&config, &protections)?;
        warnings.extend(filter.unknown().iter().map(|name| format!("ignoring unknown system call `{name}`")));
        let notes = filter.kernel_flags().map(|flags| format!("seccomp filter flags: {flags}")).into_iter().collect();
        let (mut environment, home_is_missing) = prepare::environment(process);
        creation::preserve_listeners(&mut environment);
        let arguments: Vec<OsString> = process.args.iter().map(OsString::from).collect();
        let mut wanted = Wanted::new(&config, id, wish, prepare::resources(&config))?;
        let (namespaces, user_namespace) = prepare::namespaces(&config)?;
        let owner = prepare::group_owner(&config, &user_namespace);

        let mut undo = Undo::new(Place::make(&self.root, id)?);
        undo.place.keep_config(&bytes)?;
        let mut guard = Guard::prepare(&protections, &config, wish, (id.as_str(), &undo.place))?;
        let notify = notify::prepare(&undo.place, &mut environment)?.filter(|_| has_own_mounts(&config));
        let more = notify.into_iter().chain(std::mem::take(&mut guard.mounts)).collect();
        let vectors = Vectors::new(&arguments, &environment).map_err(|error| error.of_kind(Kind::Spec))?;
        undo.cgroup = wanted.make()?;
        undo.resctrl = config.linux.intel_rdt.as_ref().map(|rdt| resctrl::create(rdt, id.as_str())).transpose()?;
        undo.unit = wanted.needs_process().then(|| (config.linux.cgroups_path.clone(), id.as_str().to_owned()));
        let cgroup = undo.cgroup.as_ref();
        if let (Some(cgroup), Some(owner)) = (cgroup, owner) {
            cgroup.give_to(owner)?;
        }
        let entry = if wish.no_pivot { Entry::Move } else { Entry::Pivot };
        let mut bundle = prepare::bundle(&config, &wish.bundle, (entry, more), wanted.places(cgroup), &user_namespace)?;
        let clone_into = cgroup.and_then(Cgroup::clone_into).map(|group| group.try_clone_to_owned()).transpose();
        let tasks = cgroup.map(Cgroup::join_files).transpose()?.unwrap_or_default();
        let mut record = Record {
            oci_version: config.oci_version.clone(),
            id: id.as_str().to_owned(),
            bundle: wish.bundle.display().to_string(),
            rootfs: bundle.root.display().to_string(),
            created: humantime::format_rfc3339_nanos(SystemTime::now()).to_string(),
            annotations: config.annotations.clone(),
            owner: rustix::process::getuid().as_raw(),
            cgroup: cgroup.map(Cgroup::record),
            cgroup_path: wanted.path(),
            systemd: undo.unit.as_ref().map(|(unit, _)| unit.clone()),
            resctrl: undo.resctrl.clone(),
            own_pids: namespaces.makes(NamespaceKind::Pid),
            streams: creation::streams(),
            keeps_affinity: wish.no_cgroup,
            shows_root: guard.shows_root(),
            late_hooks: !config.hooks.poststart.is_empty() || !config.hooks.poststop.is_empty(),
            ..Record::new()
        };
        undo.place.write(&record)?; // the intent, before anything that would outlive us
        undo.shown = record.shows_root.then(|| (record.id.clone(), bundle.root.clone()));
        bundle.cap = guard.take_root(&bundle.root, &undo.place)?.into();
        let state = record.state(Status::Creating);
        let terminal = process.terminal.then(|| prepare::terminal(process.console_size, wish.console_socket.is_none()));
        let joins_processes = namespaces.joins_processes();
        let has_container_hooks = !config.hooks.create_container.is_empty();
        let plan = Plan {
            network: None,
            namespaces,
            cgroup_namespace: prepare::cgroup_namespace(&config)?,
            user_namespace,
            cgroup: clone_into.failing(Kind::Cgroup, || "keep the container's cgroup open")?,
            waits: wanted.needs_process(),
            joins: process::Joins::AtOnce(tasks),
            hostname: (!config.hostname.is_empty()).then(|| config.hostname.clone()),
            domainname: (!config.domainname.is_empty()).then(|| config.domainname.clone()),
            new_keyring: !wish.no_new_keyring,
            oom_score: process.oom_score_adj.map_or(OomScore::Inherited, OomScore::Adjusted),
            uplink: guard.inside.is_some().then_some(Uplink::Engines),
            inside: guard.inside.take(),
            sysctls: prepare::sysctls(&config),
            root: mounts::Root::Bundle(bundle),
            hooks: BuildHooks {
                of_parent: !config.hooks.prestart.is_empty()
                    || !config.hooks.create_runtime.is_empty()
                    || (joins_processes && has_container_hooks),
                of_container: if joins_processes { Vec::new() } else { config.hooks.create_container.clone() },
                state: state.clone(),
            },
            command: Command {
                identity,
                attributes,
                rlimits: rlimits.clone(),
                landlock: protections.landlock.clone(),
                seccomp: Cow::Owned(filter),
                directory: PathBuf::from(&process.cwd),
                vectors,
                handed: None,
                errand: None,
                outlives_parent: true,
                preserved,
                home_is_missing,
                gate: Some(make_gate(&undo.place.path)?),
                hooks: config.hooks.start_container.clone(),
                state: State { status: Status::Created, ..state.clone() },
                controlling_terminal: process.terminal,
                shows_listener: !rustix::process::geteuid().is_root() && !joins_processes,
            },
            stdio: terminal.map_or(Stdio::Inherited, Stdio::Terminal),
            first: First::Command,
        };
        undo.poststop = Some((config.hooks.poststop.clone(), record.state(Status::Stopped)));
        let spawned = process::spawn_with(plan, |pid| {
            let adopted = wanted.adopt(pid)?;
            let group = undo.cgroup.insert(adopted.ok_or_else(|| Error::new(Kind::Internal, "no group was made"))?);
            if let Some(owner) = owner {
                group.give_to(owner)?;
            }
            Ok(())
        })
        .map_err(unable)?;
        record.pid = spawned.pid;
        record.cgroup = undo.cgroup.as_ref().map(Cgroup::record);
        let spawned = undo.spawned.insert(spawned);
        if let Some(group) = &undo.resctrl {
            group.join(record.pid)?;
        }
        let answers = Answers {
            config: &config,
            rlimits: &rlimits,
            console_socket: wish.console_socket.as_deref(),
            record: &record,
            status: Status::Creating,
            joins_processes,
        };
        let handed = ready(&answers, spawned).map_err(|error| unable(explain(error, undo.cgroup.as_ref())))?;
        record.pid = spawned.pid;
        record.pid_started = Stat::of(record.pid).map(|stat| stat.started).unwrap_or_default();
        if record.cgroup.is_none() {
            // Init outlives us from now on, and nothing but the record leads to it.
            undo.place.write(&record)?;
        }
        guard.close_network(handed.network, protections.peers)?;
        record.monitor = guard.watch(protections, &record.id, spawned, record.cgroup.clone(), handed.scratch)?;
        undo.place.write(&record)?;
        if let Some(path) = &wish.pidfd_socket {
            socket::send(path, "standard", spawned.pidfd())?;
        }
        if let Some(path) = &wish.pid_file {
            files::replace(path, record.pid.to_string().as_bytes(), 0o644, Durability::Cached)?;
        }
        take_apart(undo, record, config, handed.console, (warnings, notes))
    }
}

fn ready(answers: &Answers<'_>, spawned: &mut Spawned) -> Result<Handed> {
    let (handed, is_ready) = answers.answer_all(spawned)?;
    if !is_ready {
        return Err(Error::new(Kind::Lost, "init ended without a word").doing("wait for the container"));
    }
    converse::move_devices(spawned.pid, answers.config).map(|()| handed)
}

fn take_apart(
    undo: Undo,
    record: Record,
    config: Config,
    console: Option<std::os::fd::OwnedFd>,
    (warnings, notes): (Vec<String>, Vec<String>),
) -> Result<Created> {
    let place = Rc::clone(&undo.place);
    undo.keep();
    Ok(Created { place, record, config, console, warnings, notes })
}

/// Engines distinguish the container's process from the runtime by these words.
pub(super) fn unable(error: Error) -> Error {
    error.doing("unable to start container process")
}

/// runc's words if init ended silently and its cgroup was out of memory.
fn explain(error: Error, cgroup: Option<&Cgroup>) -> Error {
    let evidence = || cgroup.and_then(|cgroup| cgroup.evidence().ok());
    if error.kind() == Kind::Lost && evidence().is_some_and(|evidence| evidence.oom_kills > 0) {
        return Error::new(Kind::Lost, "container init was OOM-killed (memory limit too low?)");
    }
    error
}

fn has_own_mounts(config: &Config) -> bool {
    check::has(config, NamespaceKind::Mount)
}

/// Init alone holds the FIFO, for reading and writing: its open and read never fail for lack of a peer. An open only
/// for writing shows whether init is there.
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

impl Created {
    /// The first process, in our PID namespace.
    pub fn pid(&self) -> i32 {
        self.record.pid
    }

    /// The terminal's master, if this process serves it.
    pub fn take_console(&mut self) -> Option<std::os::fd::OwnedFd> {
        self.console.take()
    }
}
