//! Freezes and thaws a container.

use super::controller::Controller;
use super::directory::Directory;
use super::group::{Cgroup, Group};
use crate::error::{Context, Error, Kind, Result};
use crate::files::is_ready_by;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// A process in uninterruptible sleep (a dead NFS server) cannot be frozen. runc and crun give up after the same time.
const FREEZE_WAIT: Duration = Duration::from_secs(10);
/// v1 has no notification. FREEZING ends when each task has passed the scheduler.
const FREEZE_V1_PAUSE: Duration = Duration::from_micros(100);

impl Cgroup {
    /// Thaws the processes again after ten seconds.
    pub(crate) fn freeze(&self) -> Result<()> {
        let group = self.freezer()?;
        let frozen = if group.is_v2 { freeze_v2(&group.directory) } else { freeze_v1(&group.directory) };
        frozen.map_err(|error| match self.thaw() {
            Ok(()) => error,
            Err(second) => error.doing(format!("thaw what was frozen ({second})")),
        })
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        let group = self.freezer()?;
        let (file, value) = if group.is_v2 { ("cgroup.freeze", "0") } else { ("freezer.state", "THAWED") };
        match group.directory.write(file, value) {
            // The group and its processes are gone.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(errno) => Err(group.directory.refused(file, value, errno)),
        }
    }

    /// Also thaws the container's v1 freezer groups, which another program may have frozen. A signal does not reach
    /// processes there.
    pub(crate) fn thaw_all(&self) {
        // The caller waits for the processes and reports those that stay frozen.
        let _ = self.thaw();
        let freezers = self.v1().filter(|group| group.controllers.has(Controller::Freezer));
        freezers.for_each(|group| thaw_tree(&group.directory));
    }

    /// By brig or another program; freezing counts.
    pub(crate) fn is_frozen(&self) -> Result<bool> {
        let group = self.freezer()?;
        if group.is_v2 {
            return Ok(group.directory.get("cgroup.freeze")?.trim() == "1");
        }
        Ok(group.directory.get("freezer.state")?.trim() != "THAWED")
    }

    pub(super) fn freezer(&self) -> Result<&Group> {
        self.v2().or_else(|| self.group(Controller::Freezer)).ok_or_else(|| {
            Error::new(Kind::Cgroup, "it has no group with a freezer")
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
        // Write each time: the kernel then retries a task that was in vfork or traced (freezer-subsystem.rst).
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
    Error::new(Kind::State, format!("a process was not frozen within {} s", FREEZE_WAIT.as_secs()))
        .doing(format!("freeze `{}`", directory.path().display()))
        .hint("try again when the container's processes no longer wait for a device or a remote file system")
}

/// `false` after `limit`. The kernel announces each change of the file (cgroup-v2.rst, "\[Un\]populated Notification").
/// A removed group has no process: systemd removes a scope's group as soon as it is empty.
pub(super) fn wait_for(directory: &Directory, line: &str, limit: Duration) -> Result<bool> {
    let step = || format!("wait for `{line}` in `{}`", directory.path().join("cgroup.events").display());
    let file = match directory.reader("cgroup.events") {
        Err(Errno::NOENT | Errno::NODEV) => return Ok(true),
        other => other.failing(Kind::Cgroup, step)?,
    };
    let end = Instant::now() + limit;
    loop {
        let mut bytes = [0; 128];
        let length = match rustix::io::pread(&file, &mut bytes, 0) {
            Err(Errno::NODEV) => return Ok(true),
            other => other.failing(Kind::Cgroup, step)?,
        };
        if String::from_utf8_lossy(&bytes[..length]).lines().any(|each| each == line) {
            return Ok(true);
        }
        if !is_ready_by(&file, PollFlags::PRI, end).failing(Kind::Cgroup, step)? {
            return Ok(false);
        }
    }
}
