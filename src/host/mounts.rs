//! The mounts of this mount namespace (proc_pid_mountinfo(5)).

use crate::error::{Context, Kind, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Larger than most tables: the file has no size, and std would read it in eight pieces from 32 bytes on.
const READ_AT_ONCE: usize = 32 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `STATX_MNT_ID` of its files.
    pub id: u64,
    pub parent: u64,
    /// The folder of the file system that is mounted.
    pub root: PathBuf,
    pub point: PathBuf,
    pub kind: String,
    /// A device, or the name that its maker gave.
    pub source: String,
    /// Of the file system; those of the mount are not kept. For cgroup v1 they name the controllers.
    pub options: String,
}

/// Parents before their children.
pub(crate) fn mounts() -> Result<Vec<MountEntry>> {
    let step = || "read the table of mounts";
    let mut table = Vec::with_capacity(READ_AT_ONCE);
    let mut file = File::open("/proc/self/mountinfo").failing(Kind::Mount, step)?;
    file.read_to_end(&mut table).failing(Kind::Mount, step)?;
    Ok(parse_mounts(&table))
}

pub(crate) fn parse_mounts(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

pub(crate) fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let text = |at: usize| fields.get(dash + at).map(|field| String::from_utf8_lossy(field).into_owned());
    Some(MountEntry {
        id: number(fields.first()?)?,
        parent: number(fields.get(1)?)?,
        root: unescaped(fields.get(3)?),
        point: unescaped(fields.get(4)?),
        kind: text(1)?,
        source: text(2)?,
        options: text(3)?,
    })
}

/// Decodes spaces and similar bytes: `\` and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_number_a_place_and_a_kind() {
        let table = b"21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            44 21 0:40 /sub /srv/a\\040b rw,nosuid shared:5 master:2 - fuse.sshfs host: rw\n\
            a broken line\n";
        let entry = |(id, parent), root: &str, point: &str, [kind, source, options]: [&str; 3]| MountEntry {
            id,
            parent,
            root: root.into(),
            point: point.into(),
            kind: kind.into(),
            source: source.into(),
            options: options.into(),
        };
        let entries = [
            entry((21, 1), "/", "/", ["ext4", "/dev/sda1", "rw"]),
            entry((44, 21), "/sub", "/srv/a b", ["fuse.sshfs", "host:", "rw"]),
        ];
        assert_eq!(parse_mounts(table), entries);
    }

    #[test]
    fn the_root_is_in_the_table() {
        assert!(mounts().unwrap().iter().any(|entry| entry.point.parent().is_none()));
    }
}
