//! The mark of an ext4 that was unmounted in order. A disk has no journal: after a power cut its tables may disagree,
//! and new files may get blocks of old ones.

use super::format::tool;
use crate::error::{Context, Error, Kind, Result};
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::Path;

/// `s_state` of the superblock (ext4 wiki, "The Super Block").
const STATE: u64 = 1024 + 0x3a;
/// `EXT4_VALID_FS` without `EXT4_ERROR_FS`. The kernel clears the first while it is mounted.
const CLEAN: u16 = 1;
/// e2fsck(8): nothing to correct, or all corrected.
const CORRECTED: [i32; 3] = [0, 1, 2];

pub(super) fn is_clean(image: &OwnedFd) -> Result<bool> {
    let mut state = [0; 2];
    pread(image, &mut state, STATE).failing(Kind::Disk, || "read the state of a kept disk")?;
    Ok(u16::from_le_bytes(state) == CLEAN)
}

/// Of a copy that was made after a sync, while no process wrote.
pub(super) fn mark_clean(image: &OwnedFd) -> Result<()> {
    pwrite(image, &CLEAN.to_le_bytes(), STATE).failing(Kind::Disk, || "mark a copy of a disk as clean").map(drop)
}

/// No process may use `path` meanwhile.
pub(super) fn repair(path: &Path) -> Result<()> {
    let step = || format!("check the kept disk `{}`, which was in use when the machine stopped", path.display());
    let output =
        tool("e2fsck").args(["-f", "-y"]).arg(path).output().map_err(|cause| {
            Error::os(Kind::Disk, cause).doing("run `e2fsck`").doing(step()).hint("install e2fsprogs")
        })?;
    if output.status.code().is_some_and(|code| CORRECTED.contains(&code)) {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Error::new(Kind::Disk, format!("e2fsck ended with {}: {words}", output.status))
        .doing(step())
        .hint("begin from a checkpoint of the task, or look at the file with e2fsck and debugfs"))
}
