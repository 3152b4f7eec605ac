//! Secrets as files in memory, read-only inside, and writable for the supervisor outside.

use crate::error::{Context, Kind, Result, Step as _};
use crate::mounts::mount::{attach, clone_tree, restrict, tmpfs};
use crate::mounts::resolve;
use crate::mounts::write::own;
use crate::spec::root::Ids;
use crate::spec::root::{Attributes, Hidden};
use crate::sys::mount as bits;
use rustix::fs::{Mode, OFlags, openat};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Room for values that longer ones replace.
const ROOM: u64 = 1 << 20;
/// A new file is beside the old one for a moment; one is the directory itself.
const MORE_INODES: u64 = 16;
/// No program runs there, and this view is read-only.
const SHOWN: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::NOEXEC | bits::RDONLY);

/// Returns the directory, writable.
pub(super) fn make(
    stage: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    at: &Path,
    files: &[(String, Hidden)],
    user: Ids,
) -> Result<OwnedFd> {
    let step = || "make the files of the secrets";
    let bytes = files.iter().map(|(_, value)| value.0.len() as u64 * 2).sum::<u64>() + ROOM;
    let writable = tmpfs(bytes, files.len() as u64 * 2 + MORE_INODES, 0o700, user, Attributes::KERNEL)?;
    // Before Linux 6.15 only an attached tree can be copied, so it gets a name on the stage, which is invisible inside.
    let place = resolve::directory(stage, Path::new("/secrets"), 0o700)?.0;
    attach(&writable, place.as_fd()).doing(step)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(&writable, ".", flags, Mode::empty()).failing(Kind::Mount, step)?;
    for (name, value) in files {
        let file = openat(&directory, name.as_str(), resolve::NEW_FILE, Mode::from_raw_mode(0o400))
            .failing(Kind::Mount, step)?;
        own(file.as_fd(), "", user)?;
        std::fs::File::from(file).write_all(&value.0).failing(Kind::Mount, step)?;
    }
    let shown = clone_tree(stage, Path::new("secrets"))?;
    restrict(&shown, SHOWN)?;
    attach(&shown, resolve::directory(root, at, 0o755)?.0.as_fd()).doing(step)?;
    Ok(directory)
}
