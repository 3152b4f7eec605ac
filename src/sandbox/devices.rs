//! The host's disks that a sandbox reads: each gets the io limits.

use crate::error::{Context, Error, Kind, Result};
use crate::host::{MountEntry, mounts};
use rustix::fs::{AtFlags, CWD, StatxFlags, major, minor, statx};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Major and minor number.
pub(crate) type Device = (u32, u32);

/// The whole disks under these paths. A file system in memory has none. An unknown disk is an error: its limit would
/// not hold.
pub(crate) fn disks<'paths>(paths: impl IntoIterator<Item = &'paths Path>) -> Result<Vec<Device>> {
    let mut found = BTreeSet::new();
    for path in paths {
        if let Some(device) = disk(path)? {
            found.insert(device);
        }
    }
    Ok(found.into_iter().collect())
}

fn disk(path: &Path) -> Result<Option<Device>> {
    let step = || format!("find the disk under `{}`", path.display());
    let status = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
        .failing(Kind::LimitUnenforceable, step)?;
    let device = (status.stx_dev_major, status.stx_dev_minor);
    if device.0 != 0 {
        return whole(device).failing(Kind::LimitUnenforceable, step).map(Some);
    }
    // Memory, an overlay, or a file system such as btrfs with its own numbers; its source identifies it.
    match source(&mounts()?, status.stx_mnt_id) {
        Some(Source::Memory) => Ok(None),
        Some(Source::Device(source)) => {
            let node = rustix::fs::stat(&source).failing(Kind::LimitUnenforceable, step)?;
            whole((major(node.st_rdev), minor(node.st_rdev))).failing(Kind::LimitUnenforceable, step).map(Some)
        }
        None => Err(Error::new(Kind::LimitUnenforceable, "its file system is on no disk that can be found")
            .doing(step())
            .hint("leave --io-bps and --io-iops out, or use folders of a plain disk")),
    }
}

/// The disk of a partition: the kernel throttles whole disks only.
fn whole((major, minor): Device) -> std::io::Result<Device> {
    let directory = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))?;
    if !directory.join("partition").exists() {
        return Ok((major, minor));
    }
    let text = std::fs::read_to_string(directory.join("../dev"))?;
    let numbers =
        text.trim().split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    numbers.ok_or_else(|| std::io::Error::other(format!("`{}` names no device", text.trim())))
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    Memory,
    Device(PathBuf),
}

fn source(mounts: &[MountEntry], id: u64) -> Option<Source> {
    let mount = mounts.iter().find(|mount| mount.id == id)?;
    match (mount.kind.as_str(), mount.source.as_str()) {
        ("tmpfs" | "ramfs" | "rootfs" | "devtmpfs", _) => Some(Source::Memory),
        (_, device) if device.starts_with("/dev/") => Some(Source::Device(device.into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::parse_mounts;

    #[test]
    fn the_source_of_a_mount_is_memory_a_disk_or_unknown() {
        let mounts = parse_mounts(
            b"20 1 0:5 / /run rw - tmpfs tmpfs rw\n\
                      21 1 0:30 /sub / rw shared:1 - btrfs /dev/sda2 rw,subvol=/sub\n\
                      22 1 0:40 / / rw - overlay overlay rw,lowerdir=/a\n",
        );
        assert_eq!(source(&mounts, 20), Some(Source::Memory));
        assert_eq!(source(&mounts, 21), Some(Source::Device("/dev/sda2".into())));
        assert_eq!(source(&mounts, 22), None);
        assert_eq!(source(&mounts, 2), None);
    }

    #[test]
    fn memory_has_no_disk() {
        assert_eq!(disks([Path::new("/dev")]).unwrap(), []);
    }
}
