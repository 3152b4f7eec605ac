//! `restore`: a container with processes from CRIU's images and surroundings from a bundle.

use super::super::converse::run_hooks_of_runtime;
use super::super::create::Undo;
use super::super::creation::{self, Creation, streams};
use super::super::group::Wanted;
use super::super::record::{Place, Record};
use super::super::{ContainerId, Containers, bundle, prepare, signal, socket};
use super::criu::Criu;
use super::rpc::{CgroupRoot, InheritDescriptor, Kind as Of, Notification, Options, Request};
use super::{CriuOptions, DESCRIPTORS, Directories, check, common, external, privileges};
use crate::cgroup::Cgroup;
use crate::container::tree::Stat;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Durability};
use crate::mounts::bundle::{Entry, make_mount_points, restore_attributes, root_for_criu};
use crate::ns::{self, Left, Namespaces};
use crate::process;
use crate::resctrl;
use crate::spec::config::Config;
use crate::spec::config::linux::NamespaceKind;
use crate::spec::state::Status;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::SystemTime;

/// Below the container's directory: CRIU needs a mount point with a visible parent.
const ROOT: &str = "criu-root";

/// The options of a restore.
#[derive(Clone, Debug, Default)]
pub struct Restoration {
    /// The bundle and the caller's sockets and files.
    pub creation: Creation,
    /// The options that a checkpoint has too.
    pub criu: CriuOptions,
    /// Replaces the saved label of a security module, `TYPE:NAME`.
    pub lsm_profile: Option<String>,
    /// Replaces the SELinux context of the mounts.
    pub lsm_mount_context: Option<String>,
}

/// A restored container, a child of this process.
#[derive(Debug)]
pub struct Restored {
    /// The first process, in our PID namespace.
    pub pid: i32,
    /// The terminal's master, unless a console socket got it.
    pub console: Option<OwnedFd>,
}

impl Containers {
    /// Restores a container from the images of a checkpoint.
    pub fn restore(&self, id: &ContainerId, wish: &Restoration) -> Result<Restored> {
        process::require_one_thread()?;
        let path = bundle::config_path(&wish.creation);
        let bytes = bundle::read(&path)?;
        let (config, bytes) = bundle::annotate(bundle::parse(&path, &bytes)?, bytes, &wish.creation.annotations)?;
        crate::spec::config::check::check(&config)?;
        check(&config)?;
        let terminal = config.process.as_ref().is_some_and(|process| process.terminal);
        creation::check_terminal(terminal, wish.creation.detached, wish.creation.console_socket.as_deref())?;
        let mut options = Options {
            evasive_devices: Some(true),
            sibling: Some(true),
            lsm_profile: wish.lsm_profile.clone(),
            lsm_mount_context: wish.lsm_mount_context.clone(),
            inherited: inherited_streams(&wish.criu)?,
            ..common(&wish.criu, &config, "restore.log")
        };
        let handed = external::join_namespaces(&config, &mut options)?;
        let mut wanted = Wanted::new(&config, id, &wish.creation, prepare::resources(&config))?;
        let (namespaces, user) = prepare::namespaces(&config)?;

        let mut undo = Undo::new(Place::make(&self.root, id)?);
        undo.place.keep_config(&bytes)?;
        undo.cgroup = wanted.make()?;
        undo.resctrl = config.linux.intel_rdt.as_ref().map(|rdt| resctrl::create(rdt, id.as_str())).transpose()?;
        undo.unit = wanted.needs_process().then(|| (config.linux.cgroups_path.clone(), id.as_str().to_owned()));
        let places = wanted.places(undo.cgroup.as_ref());
        let bundle = prepare::bundle(&config, &wish.creation.bundle, (Entry::Pivot, Vec::new()), places, &user)?;
        options.mounts = external::restored_mounts(&bundle);
        let mut record = Record {
            oci_version: config.oci_version.clone(),
            id: id.as_str().to_owned(),
            bundle: wish.creation.bundle.display().to_string(),
            rootfs: bundle.root.display().to_string(),
            created: humantime::format_rfc3339_nanos(SystemTime::now()).to_string(),
            annotations: config.annotations.clone(),
            owner: rustix::process::getuid().as_raw(),
            cgroup: undo.cgroup.as_ref().map(Cgroup::record),
            cgroup_path: wanted.path(),
            systemd: undo.unit.as_ref().map(|(unit, _)| unit.clone()),
            resctrl: undo.resctrl.clone(),
            own_pids: namespaces.makes(NamespaceKind::Pid),
            late_hooks: !config.hooks.poststart.is_empty() || !config.hooks.poststop.is_empty(),
            streams: streams(),
            ..Record::new()
        };
        undo.place.write(&record)?;

        // In separate mount namespaces: nothing is mounted in the host's, even if this process is killed.
        let root = undo.place.path.join(ROOT);
        files::create_directories(&root, 0o700)?;
        let (directories, criu) = within(ns::unshare_mounts, || {
            root_for_criu(&bundle.root, &root)?;
            allow_every_cpu();
            Ok((Directories::open(&wish.criu)?, Criu::start(&handed)?))
        })?;
        directories.name_in(&mut options);
        options.root = Some(root.display().to_string());
        match wanted.adopt(criu.pid())? {
            Some(group) => undo.cgroup = Some(group),
            None => undo.cgroup.as_ref().map_or(Ok(()), |group| group.join(criu.pid()))?,
        }
        // Its children, the container's processes, inherit the group.
        undo.resctrl.as_ref().map_or(Ok(()), |group| group.join(criu.pid()))?;
        record.cgroup = undo.cgroup.as_ref().map(Cgroup::record);
        // Builds the root once and leaves it: the mount points stay. systemd's cgroup, a mount, exists only now.
        within(ns::unshare_mounts, || make_mount_points(&bundle))?;
        options.cgroup_roots = cgroup_roots(criu.pid())?;
        let request = Request { kind: Of::Restore.into(), options: Some(options), ..Request::default() };
        let mut console = None;
        undo.poststop = Some((config.hooks.poststop.clone(), record.state(Status::Stopped)));
        let place = Rc::clone(&undo.place);
        let mut answer = |notification: &Notification, descriptor: Option<OwnedFd>| {
            let pid = notification.pid.unwrap_or_default();
            match notification.step.as_deref() {
                Some("setup-namespaces") => run_hooks(&config, &record, pid),
                Some("post-restore") => {
                    record.pid = pid;
                    record.pid_started = Stat::of(pid).map(|stat| stat.started).unwrap_or_default();
                    let namespace = (NamespaceKind::Mount, format!("/proc/{pid}/ns/mnt").into());
                    let joined = Namespaces { joined: vec![namespace], ..Namespaces::default() };
                    within(|| ns::visit(&joined), || restore_attributes(&bundle))?;
                    place.write(&record)
                }
                // They have their privileges and do not run yet.
                Some("pre-resume") => privileges::check(&config, record.pid).inspect_err(|_| {
                    // Before the answer to CRIU, which would let them run. `Undo` waits for the killed process.
                    let _ = signal::send(&record, Signal::KILL);
                    if let Some(Ok(group)) = record.cgroup.as_ref().map(Cgroup::open) {
                        let _ = group.kill();
                    }
                }),
                Some("orphan-pts-master") => match (descriptor, &wish.creation.console_socket) {
                    (Some(master), Some(path)) => socket::send_console(path, &master),
                    (master, _) => {
                        console = master;
                        Ok(())
                    }
                },
                _ => Ok(()),
            }
        };
        criu.run(&request, &mut answer).map_err(|error| directories.explain(error, "restore.log"))?;
        if let Some(path) = &wish.creation.pid_file {
            files::replace(path, record.pid.to_string().as_bytes(), 0o644, Durability::Cached)?;
        }
        let _ = rustix::fs::rmdir(&root); // `delete` removes it too
        undo.keep();
        Ok(Restored { pid: record.pid, console })
    }
}

fn within<T>(enter: impl FnOnce() -> Result<Left>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let left = enter()?;
    let done = work();
    left.back()?;
    done
}

/// CRIU does not save the affinity: the processes would have the caller's.
fn allow_every_cpu() {
    let mut every = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| every.set(cpu));
    let _ = sched_setaffinity(None, &every); // the caller's cgroup always allows one
}

/// Saved pipes, each with our stream that replaces it.
fn inherited_streams(wish: &CriuOptions) -> Result<Vec<InheritDescriptor>> {
    let path = wish.images.join(DESCRIPTORS);
    let bytes = files::read_bounded(&path, 64 << 10)
        .map_err(|error| error.hint("name the directory of a checkpoint with --image-path"))?;
    let names: Vec<String> = serde_json::from_slice(&bytes)
        .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(format!("read `{}`", path.display())))?;
    let pipes = (0..3).zip(names).filter(|(_, name)| name.starts_with("pipe:"));
    Ok(pipes.map(|(descriptor, key)| InheritDescriptor { key, descriptor }).collect())
}

/// CRIU puts the image's cgroups below its own.
fn cgroup_roots(pid: i32) -> Result<Vec<CgroupRoot>> {
    let path = format!("/proc/{pid}/cgroup");
    let text = std::fs::read_to_string(&path).failing(Kind::Cgroup, || format!("read `{path}`"))?;
    let line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some((controllers.to_owned(), path.to_owned()))
    };
    let roots = text.lines().filter_map(line).flat_map(|(controllers, path)| {
        let each = controllers.split(',').map(str::to_owned).collect::<Vec<_>>();
        each.into_iter().map(move |controller| CgroupRoot { controller: Some(controller), path: path.clone() })
    });
    Ok(roots.collect())
}

fn run_hooks(config: &Config, record: &Record, pid: i32) -> Result<()> {
    let state = Record { pid, ..record.clone() }.state(Status::Creating);
    run_hooks_of_runtime(config, &state)
}
