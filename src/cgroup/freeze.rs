//! Stopping every process of the container, and letting them go on.

use super::Cgroup;
use super::controller::Controller;
use super::create::Group;
use super::directory::Directory;
use crate::error::{Context, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// A process in an uninterruptible sleep (a dead NFS server) cannot be frozen; runc and crun give up after as long.
const FREEZE_WAIT: Duration = Duration::from_secs(10);
/// v1 has no notification. Its FREEZING state passes as soon as each task has been through the scheduler.
const FREEZE_V1_PAUSE: Duration = Duration::from_micros(100);

impl Cgroup {
    /// Freezes and returns when every process stands still. If that takes more than ten seconds they are let go again.
    pub(crate) fn freeze(&self) -> Result<()> {
        let group = self.freezer()?;
        let frozen = if group.is_v2 { freeze_v2(&group.directory) } else { freeze_v1(&group.directory) };
        frozen.map_err(|error| match self.thaw() {
            Ok(()) => error,
            Err(second) => error.doing(format!("thaw what was frozen ({second})")),
        })
    }

    /// Lets every process go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        let group = self.freezer()?;
        let (file, value) = if group.is_v2 { ("cgroup.freeze", "0") } else { ("freezer.state", "THAWED") };
        match group.directory.write(file, value) {
            // The group is gone, and with it every process.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(errno) => Err(group.directory.refused(file, value, errno)),
        }
    }

    /// Lets those go on, too, that somebody else has frozen in a v1 group of the container or below it: a signal does not reach them there, and
    /// where there is a v2 tree [`Cgroup::thaw`] is about that one alone.
    pub(crate) fn thaw_all(&self) {
        // What cannot be thawed is told of by whoever waits for it.
        let _ = self.thaw();
        let old = self.groups.iter().filter(|group| !group.is_v2 && group.controllers.has(Controller::Freezer));
        old.for_each(|group| thaw_tree(&group.directory));
    }

    /// Whether the container was frozen (by whomever), or is about to be.
    pub(crate) fn is_frozen(&self) -> Result<bool> {
        let group = self.freezer()?;
        if group.is_v2 {
            return Ok(group.directory.get("cgroup.freeze")?.trim() == "1");
        }
        Ok(group.directory.get("freezer.state")?.trim() != "THAWED")
    }

    /// v2's own freezer where there is a v2 group, else v1's controller.
    pub(super) fn freezer(&self) -> Result<&Group> {
        self.v2().or_else(|| self.group(Controller::Freezer)).ok_or_else(|| {
            Error::new(Kind::Cgroup, "it has no group that can be frozen")
                .doing("freeze the container")
                .hint("boot with the cgroup controller `freezer`")
        })
    }
}

fn freeze_v2(directory: &Directory) -> Result<()> {
    directory.set("cgroup.freeze", "1")?;
    if wait_for(directory, "frozen 1", FREEZE_WAIT)? {
        return Ok(());
    }
    Err(not_frozen(directory))
}

fn freeze_v1(directory: &Directory) -> Result<()> {
    let end = Instant::now() + FREEZE_WAIT;
    loop {
        // Written each time: a task that was in vfork or being traced when it was asked is asked again
        // (freezer-subsystem.rst).
        directory.set("freezer.state", "FROZEN")?;
        if directory.get("freezer.state")?.trim() == "FROZEN" {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(not_frozen(directory));
        }
        std::thread::sleep(FREEZE_V1_PAUSE);
    }
}

fn thaw_tree(directory: &Directory) {
    let _ = directory.write("freezer.state", "THAWED");
    for name in directory.children().unwrap_or_default() {
        if let Ok(child) = directory.child(&name) {
            thaw_tree(&child);
        }
    }
}

fn not_frozen(directory: &Directory) -> Error {
    Error::new(Kind::State, format!("some process did not stand still within {} s", FREEZE_WAIT.as_secs()))
        .doing(format!("freeze `{}`", directory.path().display()))
        .hint("try again when the container's processes no longer wait for a device or a remote file system")
}

/// Waits until `cgroup.events` of a v2 group has `line`; `false` when the time is up. The kernel tells when the file
/// changes: no sleeping and looking (cgroup-v2.rst, "[Un]populated Notification"). A group that is gone has no process that could be waited for:
/// systemd removes the group of a scope as soon as it is empty.
pub(super) fn wait_for(directory: &Directory, line: &str, limit: Duration) -> Result<bool> {
    let words = || format!("wait for `{line}` in `{}`", directory.path().join("cgroup.events").display());
    let file = match directory.reader("cgroup.events") {
        Err(Errno::NOENT | Errno::NODEV) => return Ok(true),
        other => other.failing(Kind::Cgroup, words)?,
    };
    let end = Instant::now() + limit;
    loop {
        let mut bytes = [0; 128];
        let length = match rustix::io::pread(&file, &mut bytes, 0) {
            // The group itself is gone, and with it every process.
            Err(Errno::NODEV) => return Ok(true),
            other => other.failing(Kind::Cgroup, words)?,
        };
        if String::from_utf8_lossy(&bytes[..length]).lines().any(|each| each == line) {
            return Ok(true);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        match poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).failing(Kind::Cgroup, words),
        }
    }
}

/// A time for poll(2).
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}
