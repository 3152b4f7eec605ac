//! The record for the next command: a directory with `state.json`, replaced as a whole. It has a copy of `config.json`,
//! since the bundle's may change, and `exec.fifo` until `start`.

use super::id::ContainerId;
use crate::container::tree::Stat;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Durability};
use crate::spec::config::{self, Config, Hooks};
use crate::spec::state::{State, Status};
use crate::{cgroup, resctrl};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Another one is refused: parsed in part, it would leave remains behind.
const VERSION: u32 = 1;
/// More than any record.
const LARGEST: u64 = 4 << 20;
const RECORD: &str = "state.json";
const CONFIG: &str = "config.json";
pub(super) const FIFO: &str = "exec.fifo";
pub(super) const REPORT: &str = "exec.error";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub version: u32,
    pub oci_version: String,
    pub id: String,
    /// 0 before it exists.
    pub pid: i32,
    /// In ticks since boot: the pid may be reused.
    pub pid_started: u64,
    pub bundle: String,
    pub rootfs: String,
    pub created: String,
    pub annotations: BTreeMap<String, String>,
    pub owner: u32,
    pub cgroup: Option<cgroup::Record>,
    /// `linux.cgroupsPath`, or its default.
    pub cgroup_path: String,
    /// `slice:prefix:name`, or empty for the default, if systemd made the cgroup.
    #[serde(default)]
    pub systemd: Option<String>,
    /// Whether it has a private PID namespace: the end of its first process then ends all others.
    pub own_pids: bool,
    /// Its original pipes (`pipe:[INODE]`), for `checkpoint`; else empty.
    #[serde(default)]
    pub streams: Vec<String>,
    #[serde(default)]
    pub resctrl: Option<resctrl::Group>,
    /// Serves its network and writes its receipt.
    #[serde(default)]
    pub monitor: Option<super::monitor::Process>,
    /// Its processes keep the caller's affinity, as without a cgroup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_affinity: bool,
    /// Its capped root covers the bundle's root in the mount namespace of the runtime.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shows_root: bool,
    /// Hooks for start or end. Without them its configuration, mostly Docker's filter, need not be read again.
    #[serde(default = "unknown")]
    pub late_hooks: bool,
}

/// A record without this field may have hooks.
fn unknown() -> bool {
    true
}

/// Holds the lock. Readers, and commands that end a container, work without it: [`read`], [`config()`].
#[derive(Debug)]
pub(crate) struct Place {
    pub path: PathBuf,
    lock: OwnedFd,
}

impl Place {
    pub(crate) fn make(root: &Path, id: &ContainerId) -> Result<Place> {
        files::create_directories(root, 0o700)?;
        let path = root.join(id.as_str());
        match rustix::fs::mkdir(&path, Mode::from_raw_mode(0o711)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                return Err(Error::new(Kind::Exists, "container with given ID already exists"));
            }
            Err(errno) => {
                return Err(files::failed(errno.into(), format!("make the directory `{}`", path.display())));
            }
        }
        Place::open(path)
    }

    /// Waits for the lock.
    pub(crate) fn find(root: &Path, id: &ContainerId) -> Result<Place> {
        Place::open(root.join(id.as_str()))
    }

    fn open(path: PathBuf) -> Result<Place> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Err(does_not_exist()),
            Err(errno) => return Err(files::failed(errno.into(), format!("open `{}`", path.display()))),
        };
        let place = Place { path, lock: directory };
        place.hold()?;
        // `delete` held the lock: another container may have the name now.
        if place.is_removed() { Err(does_not_exist()) } else { Ok(place) }
    }

    /// `None` while another command holds the lock.
    pub(crate) fn attempt(path: PathBuf) -> Option<Place> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Place { path, lock }).filter(|place| !place.is_removed())
    }

    pub(crate) fn hold(&self) -> Result<()> {
        retry_on_intr(|| flock(&self.lock, FlockOperation::LockExclusive))
            .failing(Kind::Store, || format!("lock `{}`", self.path.display()))
    }

    /// For a change of the capped roots at a path: two containers may have one path, and each change moves both.
    pub(crate) fn lock_roots(&self) -> Result<OwnedFd> {
        let all = self.path.parent().unwrap_or(Path::new("/"));
        let step = || format!("lock `{}`", all.display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(all, flags, Mode::empty()).failing(Kind::Store, step)?;
        retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)).failing(Kind::Store, step)?;
        Ok(lock)
    }

    /// Another command has removed it.
    pub(crate) fn is_removed(&self) -> bool {
        rustix::fs::fstat(&self.lock).is_ok_and(|status| status.st_nlink == 0)
    }

    /// Also for a child with the same lock. A caller that waits for the container must not keep it: the container would
    /// decide for how long.
    pub(crate) fn release(&self) -> Result<()> {
        flock(&self.lock, FlockOperation::Unlock).failing(Kind::Store, || format!("unlock `{}`", self.path.display()))
    }

    pub(crate) fn read(&self) -> Result<Record> {
        read(&self.path)
    }

    pub(crate) fn write(&self, record: &Record) -> Result<()> {
        let bytes = serde_json::to_vec(record).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
        files::replace(&self.path.join(RECORD), &bytes, 0o600, Durability::Cached)
    }

    pub(crate) fn keep_config(&self, bytes: &[u8]) -> Result<()> {
        // The engine's umask and the root's mode may let others read: the file has the container's variables.
        let path = self.path.join(CONFIG);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(bytes))
            .map_err(|cause| files::failed(cause, format!("write `{}`", path.display())))
    }

    pub(crate) fn late_hooks(&self, record: &Record) -> Result<Hooks> {
        if record.late_hooks { Ok(self.config()?.hooks) } else { Ok(Hooks::default()) }
    }

    pub(crate) fn config(&self) -> Result<Config> {
        config(&self.path)
    }

    pub(crate) fn fifo(&self) -> PathBuf {
        self.path.join(FIFO)
    }

    pub(crate) fn remove(&self) -> Result<()> {
        // The record last, so that `delete` can be repeated.
        for name in [CONFIG, RECORD] {
            let _ = rustix::fs::unlink(self.path.join(name));
        }
        if rustix::fs::rmdir(&self.path).is_ok() {
            return Ok(());
        }
        let removed = files::remove_directory(&self.path);
        removed.map(drop).map_err(|cause| files::failed(cause, format!("remove `{}`", self.path.display())))
    }
}

/// Callers search for these words.
pub(super) fn does_not_exist() -> Error {
    Error::new(Kind::NotFound, "container does not exist")
}

pub(super) fn config(path: &Path) -> Result<Config> {
    let bytes = files::read_bounded(&path.join(CONFIG), 32 << 20)?;
    config::parse(&bytes)
}

pub(super) fn read(path: &Path) -> Result<Record> {
    let file = path.join(RECORD);
    let bytes = match files::read_bounded(&file, LARGEST) {
        Err(error) if error.kind() == Kind::NotFound => return Err(does_not_exist()),
        other => other?,
    };
    let torn = |words: String| Error::new(Kind::Record, words).hint("remove the container: brig delete --force ID");
    let record: Record = serde_json::from_slice(&bytes)
        .map_err(|cause| torn(cause.to_string()))
        .doing(|| format!("read `{}`", file.display()))?;
    if record.version != VERSION {
        return Err(torn(format!("it is of version {}, this program knows {VERSION}", record.version)));
    }
    Ok(record)
}

impl Record {
    pub(crate) fn new() -> Record {
        Record { version: VERSION, ..Record::default() }
    }

    /// By the kernel, not by the record.
    pub(crate) fn status(&self, directory: &Path) -> Status {
        if self.pid == 0 {
            return if self.pid_started == 0 { Status::Creating } else { Status::Stopped };
        }
        if !is_alive(self.pid, self.pid_started) {
            return Status::Stopped;
        }
        if self.cgroup.as_ref().is_some_and(cgroup::Record::is_frozen) {
            return Status::Paused;
        }
        if directory.join(FIFO).exists() { Status::Created } else { Status::Running }
    }

    pub(crate) fn state(&self, status: Status) -> State {
        State {
            oci_version: self.oci_version.clone(),
            id: self.id.clone(),
            status,
            pid: if status == Status::Stopped { 0 } else { self.pid },
            bundle: self.bundle.clone(),
            annotations: self.annotations.clone(),
        }
    }
}

/// A zombie is not alive.
fn is_alive(pid: i32, started: u64) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.started == started && !stat.is_over())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_is_alive_only_with_its_start_time() {
        let pid = std::process::id() as i32;
        let started = Stat::of(pid).unwrap().started;
        assert!(is_alive(pid, started) && !is_alive(pid, started + 1) && !is_alive(0, 0));
    }

    #[test]
    fn a_wait_for_a_deleted_container_does_not_get_its_successor() {
        let root = tempfile::tempdir().unwrap();
        let id = ContainerId::new("a").unwrap();
        let deleted = Place::make(root.path(), &id).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Place::find(root.path(), &id));
            // Until it waits for the lock: then it holds a descriptor of the directory.
            let directory = deleted.path.clone();
            let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let holders =
                || descriptors().filter(|each| std::fs::read_link(each.path()).is_ok_and(|to| to == directory));
            while holders().count() < 2 {
                std::thread::yield_now();
            }
            deleted.remove().unwrap();
            let successor = Place::make(root.path(), &id).unwrap();
            drop(deleted);
            assert_eq!(waiting.join().unwrap().unwrap_err().to_string(), "container does not exist");
            drop(successor);
        });
    }

    #[test]
    fn a_torn_record_or_one_of_another_version_is_an_error_that_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["{", "", r#"{"version":2}"#, "null"] {
            std::fs::write(directory.path().join(RECORD), text).unwrap();
            let error = read(directory.path()).unwrap_err();
            assert_eq!((error.kind(), error.advice().is_some()), (Kind::Record, true), "{text}");
        }
        std::fs::remove_file(directory.path().join(RECORD)).unwrap();
        assert_eq!(read(directory.path()).unwrap_err().to_string(), "container does not exist");
    }
}
