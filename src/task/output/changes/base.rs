use super::copy;
use super::path::Raw;
use super::record::{Base, Content};
use super::tree;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime};

/// Returns only the time of a file over `limit`, or of an unreadable one.
pub(super) fn read(directory: BorrowedFd<'_>, name: &[u8], status: &Stat, limit: u64) -> Result<Base, Errno> {
    let mode = tree::permissions(status);
    Ok(match tree::file_type(status) {
        FileType::Directory => Base::Directory { mode },
        FileType::RegularFile => {
            let digest = digest(directory, name, status, limit);
            let content = digest.map_or(Content::Unread(tree::modified(status)), Content::Sha256);
            Base::File { mode, size: tree::size(status), content }
        }
        FileType::Symlink => Base::Symlink { target: Raw(tree::link_target(directory, name)?) },
        _ => Base::Other,
    })
}

fn digest(directory: BorrowedFd<'_>, name: &[u8], status: &Stat, limit: u64) -> Option<copy::Digest> {
    let size = tree::size(status);
    if size > limit {
        return None;
    }
    let (file, _) = tree::file(directory, name).ok()?;
    let (digest, read) = copy::digest(&file, size).ok()?;
    (read == size).then_some(digest)
}

/// Never for a directory: each new name changes its time, and has its own.
pub(super) fn is_newer(base: &Base, status: &Stat, started: SystemTime) -> bool {
    !matches!(base, Base::Directory { .. }) && changed(status).is_some_and(|changed| changed > started)
}

#[allow(clippy::useless_conversion, reason = "the types of these fields differ between architectures")]
pub(super) fn changed(status: &Stat) -> Option<SystemTime> {
    let seconds = Duration::from_secs(u64::try_from(status.st_ctime).ok()?);
    let rest = Duration::from_nanos(u64::try_from(status.st_ctime_nsec).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(seconds + rest)
}
