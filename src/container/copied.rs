//! A copy of a tree that becomes the container's own: each file's owner n is the container's id n from then on.
//!
//! The tree lies in a directory that only we can enter, and nothing runs in it yet: paths are safe here, as long as no link is followed.

use crate::error::{Context, Kind, Result};
use crate::ns::Range;
use std::fs::{Metadata, Permissions, set_permissions, symlink_metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// Whom an id belongs to that a container has not (`overflowuid`, proc_sys_kernel(5)): what an idmapped mount would show.
const NOBODY: u32 = 65_534;

/// Gives everything in and below `tree` to the ids from `base` on.
pub(super) fn give(tree: &Path, base: u32) -> Result<()> {
    let shown = |path: &Path| format!("give `{}` to the sandbox", path.display());
    let mut directories = vec![tree.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let found = symlink_metadata(&directory).failing(Kind::Store, || shown(&directory))?;
        for entry in std::fs::read_dir(&directory).failing(Kind::Store, || shown(&directory))? {
            let path = entry.failing(Kind::Store, || shown(&directory))?.path();
            let found = symlink_metadata(&path).failing(Kind::Store, || shown(&path))?;
            if found.is_dir() {
                directories.push(path);
            } else {
                one(&path, &found, base).failing(Kind::Store, || shown(&path))?;
            }
        }
        one(&directory, &found, base).failing(Kind::Store, || shown(&directory))?;
    }
    Ok(())
}

fn one(path: &Path, found: &Metadata, base: u32) -> std::io::Result<()> {
    // Another name of it was here before.
    if found.uid() >= base {
        return Ok(());
    }
    let inside = |id: u32| base + if id < Range::SIZE { id } else { NOBODY };
    lchown(path, Some(inside(found.uid())), Some(inside(found.gid())))?;
    // A new owner takes the set-id bits away, chown(2); a link has none.
    if found.mode() & 0o6000 != 0 && !found.is_symlink() {
        set_permissions(path, Permissions::from_mode(found.mode() & 0o7777))?;
    }
    Ok(())
}
