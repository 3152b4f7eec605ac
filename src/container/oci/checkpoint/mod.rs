//! `checkpoint` and `restore` by CRIU, with runc's options, files and external mounts and namespaces.
//!
//! Images need as much trust as a program that root runs: CRIU restores their processes, privileges, file systems and
//! memory. `privileges` detects privileges beyond the configuration, but not a forged image's mounts.

mod criu;
mod external;
mod privileges;
mod restore;
mod rpc;

use super::id::ContainerId;
use super::record::Place;
use super::{Containers, delete, prepare};
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::ns;
use crate::spec::config::Config;
use crate::spec::protections::Protections;
use crate::spec::state::Status;
use criu::Criu;
pub use restore::{Restoration, Restored};
use rpc::{CgroupMode, Features, Kind as Of, Options, PageServer, Request};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// runc's file beside CRIU's images: the standard streams of the first process.
const DESCRIPTORS: &str = "descriptors.json";
/// For every container of this host (runc's name: administrators may have it already).
const CONFIGURATION: &str = "/etc/criu/runc.conf";
/// As in runc: debugging.
const LOG_LEVEL: i32 = 4;
/// In bytes, for the reason of a failure.
const LOG_LARGEST: u64 = 16 << 20;

/// How the cgroups of the processes are saved and restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cgroups {
    /// CRIU's default, which is `Soft`.
    #[default]
    Default,
    /// Restores settings of new cgroups only.
    Soft,
    /// Always restores settings.
    Full,
    /// Requires that the cgroups are unchanged.
    Strict,
    /// Neither saves nor restores cgroups.
    Ignore,
}

/// The common options of a checkpoint and a restore.
#[derive(Clone, Debug, Default)]
pub struct CriuOptions {
    /// The directory of the images, absolute.
    pub images: PathBuf,
    /// For CRIU's log and temporary files; by default as `images`.
    pub work: Option<PathBuf>,
    /// Saves TCP connections.
    pub tcp_established: bool,
    /// Allows a unix socket that is connected outside the container.
    pub external_unix_sockets: bool,
    /// The processes belong to a session outside the container.
    pub shell_job: bool,
    /// Saves file locks.
    pub file_locks: bool,
    /// Removes pages from earlier images that a later one has.
    pub auto_dedup: bool,
    /// Fetches memory on use (userfaultfd).
    pub lazy_pages: bool,
    /// Makes the network namespace without contents.
    pub empty_network: bool,
    /// See criu(8), `--manage-cgroups`.
    pub cgroups: Cgroups,
}

/// The options of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// The options that a restore has too.
    pub criu: CriuOptions,
    /// The images of an earlier pre-dump, relative to these images.
    pub parent: Option<PathBuf>,
    /// The container continues.
    pub leave_running: bool,
    /// Saves memory only; the container continues.
    pub pre_dump: bool,
    /// Leaves out connections that are not accepted yet.
    pub tcp_skip_in_flight: bool,
    /// Gives names to files that have lost theirs.
    pub link_remap: bool,
    /// The host and port of a `criu page-server` that receives the memory.
    pub page_server: Option<(String, u16)>,
    /// Receives a zero byte when lazy pages can be fetched.
    pub status: Option<std::sync::Arc<OwnedFd>>,
}

impl Containers {
    /// The container ends unless it continues by request. Returns the errors of `poststop` hooks.
    pub fn checkpoint(&self, id: &ContainerId, wish: &Checkpoint) -> Result<Vec<String>> {
        crate::process::require_one_thread()?;
        let place = Place::find(&self.root, id)?;
        let record = place.read()?;
        match record.status(&place.path) {
            Status::Running | Status::Paused => {}
            other => {
                let words = format!("Container cannot be checkpointed in {} state", other.word());
                return Err(Error::new(Kind::State, words));
            }
        }
        let config = place.config()?;
        check(&config)?;
        let wanted = Features {
            memory_tracking: (wish.pre_dump || wish.parent.is_some()).then_some(true),
            lazy_pages: wish.criu.lazy_pages.then_some(true),
        };
        if wanted != Features::default() {
            criu::require(&wanted)?;
        }
        let directories = Directories::open(&wish.criu)?;
        let mut options = Options {
            pid: Some(record.pid),
            root: Some(record.rootfs.clone()),
            leave_running: Some(wish.leave_running),
            link_remap: Some(wish.link_remap),
            tcp_skip_in_flight: Some(wish.tcp_skip_in_flight),
            parent: wish.parent.as_deref().map(|path| path.display().to_string()),
            track_memory: (wish.pre_dump || wish.parent.is_some()).then_some(true),
            page_server: wish
                .page_server
                .as_ref()
                .map(|(address, port)| PageServer { address: Some(address.clone()), port: Some(i32::from(*port)) }),
            freezer: external::freezer(&record),
            ..common(&wish.criu, &config, "dump.log")
        };
        directories.name_in(&mut options);
        external::save_namespaces(&config, &mut options)?;
        if !wish.pre_dump {
            options.mounts = external::saved_mounts(&config, &record)?;
            let text = serde_json::to_string(&record.streams)
                .map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
            files::replace(&wish.criu.images.join(DESCRIPTORS), text.as_bytes(), 0o600, files::Durability::Cached)?;
        }
        let kind = if wish.pre_dump { Of::PreDump } else { Of::Dump };
        let request = Request { kind: kind.into(), options: Some(options), ..Request::default() };
        let mut status = wish.status.clone();
        Criu::start(&[])?
            .run(&request, |notification, _| {
                if notification.step.as_deref() == Some("status-ready")
                    && let Some(status) = status.take()
                {
                    rustix::io::write(&*status, &[0]).failing(Kind::State, || "write to --status-fd")?;
                }
                Ok(())
            })
            .map_err(|error| directories.explain(error, "dump.log"))?;
        if wish.leave_running || wish.pre_dump {
            return Ok(Vec::new());
        }
        delete::destroy(&place, &record, true)
    }
}

/// Refuses what CRIU does not restore, and callers without the right to use it.
fn check(config: &Config) -> Result<()> {
    let refuse = |words: &str, hint: &str| Err(Error::new(Kind::State, words).hint(hint));
    if !rustix::process::geteuid().is_root() || !ns::is_initial() {
        return refuse("checkpoint and restore need root on the host", "run the container and this command as root");
    }
    let protections = Protections::parse(&config.annotations)?;
    if protections.landlock.is_some() {
        return refuse(
            "CRIU cannot save Landlock rules: the restored processes would have none",
            "leave out the annotation `dev.brig.landlock` for a container that is to be checkpointed",
        );
    }
    if protections != Protections::default() {
        return refuse(
            "CRIU cannot save what the annotations `dev.brig.*` add to a container",
            "leave them out for a container that is to be checkpointed",
        );
    }
    if prepare::filter(config, &protections)?.listens() {
        return refuse(
            "CRIU cannot save the listener of a seccomp filter",
            "leave out SCMP_ACT_NOTIFY for a container that is to be checkpointed",
        );
    }
    if config.annotations.get("org.criu.config").is_some_and(|path| !path.is_empty()) {
        return refuse(
            "the annotation `org.criu.config` names a file of CRIU's options, which can run programs as root on the host",
            "write the options into /etc/criu/runc.conf",
        );
    }
    Ok(())
}

fn common(wish: &CriuOptions, config: &Config, log: &str) -> Options {
    let cgroups = match wish.cgroups {
        Cgroups::Default => CgroupMode::Default,
        Cgroups::Soft => CgroupMode::Soft,
        Cgroups::Full => CgroupMode::Full,
        Cgroups::Strict => CgroupMode::Strict,
        Cgroups::Ignore => CgroupMode::Ignore,
    };
    Options {
        log_level: Some(LOG_LEVEL),
        log_file: Some(log.to_owned()),
        notify: Some(true),
        manage_cgroups: Some(true),
        cgroups: Some(cgroups.into()),
        external_unix_sockets: Some(wish.external_unix_sockets),
        tcp_established: Some(wish.tcp_established),
        shell_job: Some(wish.shell_job),
        file_locks: Some(wish.file_locks),
        auto_dedup: Some(wish.auto_dedup),
        lazy_pages: Some(wish.lazy_pages),
        empty_namespaces: Some(if wish.empty_network { libc::CLONE_NEWNET as u32 } else { 0 }),
        orphan_terminal: Some(true),
        config_file: (!config.annotations.contains_key("org.criu.config")).then(|| CONFIGURATION.to_owned()),
        ..Options::default()
    }
}

/// CRIU opens them through our descriptors and works there, so its mount namespace must have them.
struct Directories {
    images: OwnedFd,
    work: Option<OwnedFd>,
    log: PathBuf,
}

impl Directories {
    fn open(wish: &CriuOptions) -> Result<Directories> {
        let open = |path: &Path| {
            rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .failing(Kind::Store, || format!("open `{}`", path.display()))
        };
        files::create_directories(&wish.images, 0o700)?;
        if let Some(work) = &wish.work {
            files::create_directories(work, 0o700)?;
        }
        Ok(Directories {
            images: open(&wish.images)?,
            work: wish.work.as_deref().map(open).transpose()?,
            log: wish.work.as_ref().unwrap_or(&wish.images).clone(),
        })
    }

    fn name_in(&self, options: &mut Options) {
        options.images = self.images.as_raw_fd();
        options.work = self.work.as_ref().map(AsRawFd::as_raw_fd);
    }

    /// Adds the path and errors of CRIU's own log.
    fn explain(&self, error: Error, name: &str) -> Error {
        let path = self.log.join(name);
        let text = files::read_bounded(&path, LOG_LARGEST).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        // Lines: `(00.012345) Error (criu/mount.c:123): words`. Skip what CRIU ignores: the limit of descriptors, and
        // TUN devices that the container's cgroup denies.
        let is_reason = |line: &&str| {
            line.contains("Error (") && !["RLIMIT_NOFILE", "criu/tun.c"].iter().any(|each| line.contains(each))
        };
        let lines = text.lines().filter(is_reason);
        let lines: Vec<&str> = lines.map(|line| line.split_once(") ").map_or(line, |(_, rest)| rest)).collect();
        let last = lines.iter().rev().take(3).rev().copied().collect::<Vec<_>>().join("; ");
        let kind = error.kind();
        Error::new(kind, format!("{error}; log file: {}; {last}", path.display()))
    }
}
