//! `exec`: another process in a running container.

use super::converse::Answers;
use super::create::unable;
use super::creation::{check_preserved, check_terminal};
use super::id::ContainerId;
use super::record::{self, FIFO, Record};
use super::{Containers, broker, prepare, signal, socket};
use crate::cgroup::{Cgroup, FullJoin};
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Durability};
use crate::process::{self, Command, Join, OomScore, Refused, SHOW, Spawned, Stdio, Vectors, attributes};
use crate::resctrl::Group;
use crate::spec::config::Config;
use crate::spec::config::check::check_process;
use crate::spec::config::process::{Capabilities, Process};
use crate::spec::protections::Protections;
use crate::spec::resources::bits_of_list;
use crate::spec::state::Status;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal};
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For init to become dumpable, on a busy machine.
const SHOWN: Duration = Duration::from_secs(10);

/// The options of `exec`.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    /// A file with a whole `process`, which replaces the fields below that concern the process.
    pub process: Option<PathBuf>,
    /// The program and its arguments.
    pub args: Vec<String>,
    /// The working directory, if not the container's.
    pub cwd: Option<String>,
    /// `NAME=VALUE`, added to the container's variables.
    pub env: Vec<String>,
    /// Whether it gets a terminal.
    pub tty: bool,
    /// User and group, if not the container's.
    pub user: Option<(u32, Option<u32>)>,
    /// Additional groups.
    pub additional_gids: Vec<u32>,
    /// The SELinux label.
    pub label: Option<String>,
    /// The AppArmor profile.
    pub apparmor: Option<String>,
    /// no_new_privs, if not the container's.
    pub no_new_privileges: Option<bool>,
    /// Added to the container's capabilities.
    pub capabilities: Vec<String>,
    /// Below the container's cgroups, `[CONTROLLERS:]PATH`.
    pub cgroups: Vec<String>,
    /// Enters a paused container too.
    pub ignore_paused: bool,
    /// A unix socket for the terminal's master.
    pub console_socket: Option<PathBuf>,
    /// A unix socket for the pidfd.
    pub pidfd_socket: Option<PathBuf>,
    /// A file for the pid.
    pub pid_file: Option<PathBuf>,
    /// Whether the caller ends first.
    pub detached: bool,
    /// Descriptors from 3 on that are passed on.
    pub preserve_fds: u32,
}

/// A process that runs in the container.
#[derive(Debug)]
pub struct Executed {
    spawned: Spawned,
    console: Option<OwnedFd>,
    /// Sentences about ignored options.
    pub warnings: Vec<String>,
    /// Debug notes, which tools search for in runc's output with `--debug`.
    pub notes: Vec<String>,
}

impl Containers {
    /// Returns when the program runs.
    pub fn exec(&self, id: &ContainerId, wish: &Execution) -> Result<Executed> {
        process::require_one_thread()?;
        // Without the lock: the container decides how long this takes. `hold` makes sure that the record is its own.
        let (path, record) = self.see(id)?;
        match record.status(&path) {
            Status::Running | Status::Created => {}
            Status::Paused if wish.ignore_paused => {}
            Status::Paused => {
                return Err(refuse("cannot exec in a paused container (use --ignore-paused to override)"));
            }
            Status::Stopped | Status::Creating => return Err(refuse("cannot exec in a stopped container")),
        }
        let config = record::config(&path)?;
        let mut process = process(&config, wish)?;
        check_process(&process)?;
        let protections = Protections::parse(&config.annotations)?;
        protections.check_process(&process, &config)?;
        protections.restrict(&mut process);
        broker::give_variables(&protections.secrets, &mut process);
        check_preserved(wish.preserve_fds)?;
        check_terminal(process.terminal, wish.detached, wish.console_socket.as_deref())?;
        let init = signal::hold(&record)?.ok_or_else(|| refuse("cannot exec in a stopped container"))?;
        show_init(&path.join(FIFO), record.pid)?;
        let group = record.cgroup.as_ref().map(Cgroup::open).transpose()?;
        let mut group = match group {
            Some(group) if !wish.cgroups.is_empty() => {
                Some(group.below(&wish.cgroups.iter().map(String::as_str).collect::<Vec<_>>())?)
            }
            other => other,
        };
        let (identity, unknown) = prepare::identity(&process);
        let mut warnings = prepare::capability_warnings(&identity, unknown);
        warnings.extend(prepare::missing_privileges(&process, &identity.capabilities, &config));
        let plan = plan((&config, protections), (&process, identity), wish, init, &record, group.as_ref())?;
        let rlimits = plan.command.rlimits.clone();
        let mut notes: Vec<String> =
            plan.first_affinity.iter().map(|cpus| format!("nsexec: affinity: {}", mask(cpus))).collect();
        let unified =
            record.cgroup.iter().flat_map(|groups| groups.paths()).find(|(controller, _)| controller.is_empty());
        notes.extend(unified.map(|(_, path)| format!("using CLONE_INTO_CGROUP {path:?}")));
        let started = match process::join(plan) {
            // Init may have moved itself into a child cgroup (as systemd does), where its other processes are now.
            Err((Refused::Group(_), mut plan)) if wish.cgroups.is_empty() => {
                group = group.map(|group| group.of_process(record.pid)).transpose()?;
                let directory =
                    group.as_ref().and_then(Cgroup::clone_into).map(|group| group.try_clone_to_owned()).transpose();
                plan.cgroup = directory.failing(Kind::Cgroup, || "keep the container's cgroup open")?;
                process::join(*plan)
            }
            other => other,
        };
        let started = match started {
            // As in runc, a container at its limit of processes can be entered too.
            Err((Refused::Full(error), mut plan)) => match group.as_ref().map(Cgroup::join_full).transpose()?.flatten()
            {
                Some(FullJoin { clone_into, mut tasks, counted }) => {
                    tasks.extend(resctrl_files(&record)?);
                    (plan.cgroup, plan.cgroup_tasks, plan.full_group) = (clone_into, tasks, Some(counted));
                    process::join(*plan).map_err(|(_, plan)| (Refused::Full(error), plan))
                }
                None => Err((Refused::Full(error), plan)),
            },
            other => other,
        };
        let spawned = started.map_err(|(refused, _)| unable(refused.into_error()))?;
        let mut running = Executed { spawned, console: None, warnings, notes };
        match running.wait_for_program(wish, &config, &rlimits, &record) {
            Ok(()) => Ok(running),
            Err(error) => {
                // It may have ended already.
                let _ = running.spawned.signal(Signal::KILL);
                running.spawned.reap()?;
                Err(error)
            }
        }
    }
}

/// Makes init dumpable while it waits for `start`: otherwise an ordinary user may not join its namespaces. Any other
/// process is dumpable already, or soon.
fn show_init(fifo: &Path, pid: i32) -> Result<()> {
    let step = || "look at the container's namespaces";
    let is_hidden = || rustix::fs::stat(format!("/proc/{pid}/ns/mnt")).err() == Some(Errno::ACCESS);
    if !is_hidden() {
        return Ok(());
    }
    match rustix::fs::open(fifo, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        Ok(gate) => rustix::io::write(&gate, &[SHOW]).failing(Kind::Namespace, step)?,
        // It was started, or has ended, meanwhile.
        Err(Errno::NOENT | Errno::NXIO) => return Ok(()),
        Err(errno) => return Err(errno).failing(Kind::Namespace, step),
    };
    let end = Instant::now() + SHOWN;
    while is_hidden() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn mask(cpus: &[u64]) -> String {
    let words: String = cpus.iter().rev().map(|word| format!("{word:016x}")).collect();
    let digits = words.trim_start_matches('0');
    format!("0x{}", if digits.is_empty() { "0" } else { digits })
}

fn refuse(words: &str) -> Error {
    Error::new(Kind::State, words)
}

impl Executed {
    fn wait_for_program(
        &mut self,
        wish: &Execution,
        config: &Config,
        rlimits: &[(Resource, Rlimit)],
        record: &Record,
    ) -> Result<()> {
        if let Some(path) = &wish.pid_file {
            files::replace(path, self.spawned.pid.to_string().as_bytes(), 0o644, Durability::Cached)?;
        }
        if let Some(path) = &wish.pidfd_socket {
            socket::send(path, "setns", self.spawned.pidfd())?;
        }
        let answers = Answers {
            config,
            rlimits,
            console_socket: wish.console_socket.as_deref(),
            record,
            status: Status::Running,
            joins_processes: false,
        };
        match answers.answer_all(&mut self.spawned).map_err(unable)? {
            (handed, false) => self.console = handed.console,
            (_, true) => return Err(Error::new(Kind::Lost, "the process waits at a gate that it does not have")),
        }
        Ok(())
    }

    /// In our PID namespace.
    pub fn pid(&self) -> i32 {
        self.spawned.pid
    }

    /// The terminal's master, if this process serves it.
    pub fn take_console(&mut self) -> Option<OwnedFd> {
        self.console.take()
    }
}

/// The configuration's process, changed by the command line.
fn process(config: &Config, wish: &Execution) -> Result<Process> {
    if let Some(path) = &wish.process {
        let bytes = files::read_bounded(path, 4 << 20)?;
        let mut process: Process = serde_json::from_slice(&bytes)
            .map_err(|cause| Error::new(Kind::Spec, cause.to_string()).doing(format!("read `{}`", path.display())))?;
        // As in runc, what the process leaves out is the container's.
        if let Some(own) = &config.process {
            if process.rlimits.is_empty() {
                process.rlimits.clone_from(&own.rlimits);
            }
            process.capabilities = process.capabilities.or_else(|| own.capabilities.clone());
            process.oom_score_adj = process.oom_score_adj.or(own.oom_score_adj);
            process.scheduler = process.scheduler.or_else(|| own.scheduler.clone());
            process.io_priority = process.io_priority.or_else(|| own.io_priority.clone());
            process.exec_cpu_affinity = process.exec_cpu_affinity.or_else(|| own.exec_cpu_affinity.clone());
            for (label, own) in [
                (&mut process.selinux_label, &own.selinux_label),
                (&mut process.apparmor_profile, &own.apparmor_profile),
            ] {
                if label.is_empty() {
                    label.clone_from(own);
                }
            }
        }
        return Ok(process);
    }
    let mut process = config.process.clone().unwrap_or_default();
    process.args.clone_from(&wish.args);
    process.terminal = wish.tty;
    process.env.extend(wish.env.iter().cloned());
    if let Some(cwd) = &wish.cwd {
        process.cwd.clone_from(cwd);
    }
    if let Some((uid, gid)) = wish.user {
        process.user.uid = uid;
        process.user.gid = gid.unwrap_or(process.user.gid);
    }
    process.user.additional_gids.extend(&wish.additional_gids);
    if let Some(label) = &wish.label {
        process.selinux_label.clone_from(label);
    }
    if let Some(profile) = &wish.apparmor {
        process.apparmor_profile.clone_from(profile);
    }
    process.no_new_privileges = wish.no_new_privileges.unwrap_or(process.no_new_privileges);
    if !wish.capabilities.is_empty() {
        let sets = process.capabilities.get_or_insert_with(Capabilities::default);
        for set in [&mut sets.bounding, &mut sets.effective, &mut sets.permitted] {
            set.extend(wish.capabilities.iter().cloned());
        }
        // Never inheritable by itself (CVE-2022-29162); ambient only if the container has such a set.
        if sets.inheritable.is_some() {
            sets.ambient.extend(wish.capabilities.iter().cloned());
        }
    }
    Ok(process)
}

/// The kernel's file accepts 0 as a v1 group's does.
fn resctrl_files(record: &Record) -> Result<Vec<OwnedFd>> {
    record.resctrl.as_ref().map_or(Ok(Vec::new()), Group::join_files)
}

fn plan(
    (config, protections): (&Config, Protections),
    (process, identity): (&Process, process::Identity),
    wish: &Execution,
    init: OwnedFd,
    record: &Record,
    group: Option<&Cgroup>,
) -> Result<Join> {
    let (environment, home_is_missing) = prepare::environment(process);
    let arguments: Vec<OsString> = process.args.iter().map(OsString::from).collect();
    let vectors = Vectors::new(&arguments, &environment).map_err(|error| error.of_kind(Kind::Spec))?;
    let mut attributes = attributes::plan(process, &config.linux)?;
    let affinity = process.exec_cpu_affinity.as_ref();
    let list = |text: &str| if text.is_empty() { Ok(None) } else { bits_of_list(text).map(Some) };
    // The processors of the cgroup, not the caller's: the container's own cgroup, or its creator's.
    let every = (affinity.is_none() && !record.keeps_affinity).then(attributes::every_cpu);
    attributes.affinity = affinity.map(|affinity| list(&affinity.last)).transpose()?.flatten().or(every);
    let seccomp = prepare::filter(config, &protections)?;
    let directory = group.and_then(Cgroup::clone_into).map(|group| group.try_clone_to_owned()).transpose();
    let mut tasks = group.map(Cgroup::join_files).transpose()?.unwrap_or_default();
    tasks.extend(resctrl_files(record)?);
    Ok(Join {
        init,
        pid: record.pid,
        cgroup: directory.failing(Kind::Cgroup, || "keep the container's cgroup open")?,
        cgroup_tasks: tasks,
        full_group: None,
        first_affinity: affinity.map(|affinity| list(&affinity.initial)).transpose()?.flatten(),
        adopts: false,
        entering: process::Identity::default(),
        oom_score: process.oom_score_adj.map_or(OomScore::Inherited, OomScore::Adjusted),
        command: Command {
            identity,
            attributes,
            rlimits: prepare::rlimits(process)?,
            landlock: protections.landlock,
            seccomp: Cow::Owned(seccomp),
            directory: PathBuf::from(&process.cwd),
            vectors,
            handed: None,
            errand: None,
            outlives_parent: true,
            preserved: wish.preserve_fds,
            home_is_missing,
            gate: None,
            hooks: Vec::new(),
            state: Default::default(),
            controlling_terminal: process.terminal,
            shows_listener: false,
        },
        stdio: if process.terminal {
            Stdio::Terminal(prepare::terminal(process.console_size, wish.console_socket.is_none()))
        } else {
            Stdio::Inherited
        },
    })
}
