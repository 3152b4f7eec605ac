//! Checkpoints: copies of the disk of a running sandbox, for new sandboxes to go on from.
//!
//! The supervisor freezes every process while it copies the used blocks of the image. Files in memory are packed, as at
//! the end of a kept task. FIFREEZE is not used: a killed supervisor would leave the file system frozen. The copy gets
//! its name last, so that a crash leaves no checkpoint or a whole one.

use crate::error::{Context, Error, Kind, Result};
use crate::files;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) const CHECKPOINTS: &str = "checkpoints";
const ENDING: &str = ".img";
pub(crate) const MOST: usize = 16;
/// All checkpoints may take so many times the disk limit.
pub(crate) const TIMES: u64 = 2;
/// Bytes that stay free on the host's disk.
const LEFT_FREE: u64 = 256 << 20;

/// The files of a sandbox at one moment: workspace, home, and changes of the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The name, unique in its task.
    pub name: String,
    /// When it was made, RFC 3339.
    pub created: String,
    /// Bytes on the host's disk. Blocks that it shares with the disk or another checkpoint count.
    pub bytes: u64,
}

/// Refuses a name that could be a path.
pub(crate) fn checkpoint_path(directory: &Path, name: &str) -> Result<PathBuf> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !starts_well || name.len() > 64 || !name.bytes().all(is_plain) {
        return Err(Error::new(Kind::Usage, format!("`{}` is not a name of a checkpoint", name.escape_debug()))
            .hint("use at most 64 letters, digits, `.`, `_` and `-`, with a letter or a digit first"));
    }
    Ok(directory.join(CHECKPOINTS).join(format!("{name}{ENDING}")))
}

/// Returns the oldest first.
pub(crate) fn checkpoints(directory: &Path) -> Result<Vec<Checkpoint>> {
    let path = directory.join(CHECKPOINTS);
    let failed = |cause| files::failed(cause, format!("list `{}`", path.display()));
    let entries = match std::fs::read_dir(&path) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().into_string().unwrap_or_default();
        let Some(name) = name.strip_suffix(ENDING).map(str::to_owned) else { continue };
        let status = entry.metadata().map_err(failed)?;
        let created = status.modified().map_err(failed)?;
        found.push((created, name, status.blocks() * 512));
    }
    found.sort();
    let row = |(created, name, bytes)| Checkpoint {
        name,
        created: humantime::format_rfc3339_micros(created).to_string(),
        bytes,
    };
    Ok(found.into_iter().map(row).collect())
}

/// Returns the path, and the wished name or the first free number. Refuses `new` bytes beyond the bounds of the task,
/// or without room on the host's disk.
pub(super) fn new_checkpoint(
    directory: &Path,
    name: Option<String>,
    new: u64,
    disk_bytes: u64,
) -> Result<(PathBuf, String)> {
    let known = checkpoints(directory)?;
    let is_known = |name: &String| known.iter().any(|each| each.name == *name);
    let name = name.or_else(|| (1..).map(|number: u32| number.to_string()).find(|name| !is_known(name)));
    let name = name.unwrap_or_default();
    let path = checkpoint_path(directory, &name)?;
    if is_known(&name) {
        return Err(Error::new(Kind::State, format!("it has a checkpoint `{name}` already"))
            .hint("give another name; `brig task checkpoints ID` lists them"));
    }
    check_room(directory, &known, new, disk_bytes)?;
    files::create_directories(&directory.join(CHECKPOINTS), 0o700)?;
    Ok((path, name))
}

fn check_room(directory: &Path, known: &[Checkpoint], new: u64, disk_bytes: u64) -> Result<()> {
    let discard = "discard the task's checkpoints with the task, or begin a new task from one: brig task rollback";
    if known.len() >= MOST {
        return Err(Error::new(Kind::State, format!("it has {MOST} checkpoints, and that is the most")).hint(discard));
    }
    let bytes = known.iter().map(|each| each.bytes).sum::<u64>() + new;
    let most = disk_bytes.saturating_mul(TIMES);
    if bytes > most {
        let words = format!("its checkpoints would take {bytes} bytes, and {TIMES} times its disk limit is {most}");
        return Err(Error::new(Kind::Disk, words).hint(discard));
    }
    let step = || format!("measure the room in `{}`", directory.display());
    let room = rustix::fs::statvfs(directory).failing(Kind::Disk, step)?;
    let free = room.f_bavail * room.f_frsize;
    if free < new + LEFT_FREE {
        let words = format!("the host's disk has {} MiB free, and the copy may take {} MiB", free >> 20, new >> 20);
        return Err(Error::new(Kind::Disk, words).hint("remove old tasks: brig task prune --older-than 7d"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_checkpoint_is_one_plain_component() {
        let directory = Path::new("/tasks/t");
        assert_eq!(checkpoint_path(directory, "a.b-1").unwrap(), Path::new("/tasks/t/checkpoints/a.b-1.img"));
        for wrong in ["", ".", "..", "../x", "a/b", "-x", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert!(checkpoint_path(directory, wrong).is_err(), "{wrong:?}");
        }
    }
}
