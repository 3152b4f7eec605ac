//! Files of the caller's own configuration: `~/.config/brig` (`$XDG_CONFIG_HOME`).
//!
//! brig finds them by itself: they must belong to the caller or root, and no other user may write them. So root with
//! another user's HOME takes no settings from there. The check is on the open file that is read.

use crate::error::{Error, Kind, Result};
use crate::files;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// For all programs.
pub(crate) fn config_home() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))
}

pub(in crate::task) fn config_folder() -> Result<PathBuf> {
    config_home().map(|base| base.join("brig")).ok_or_else(|| {
        Error::new(Kind::Profile, "neither HOME nor XDG_CONFIG_HOME is set").hint("name a file by its path")
    })
}

pub(in crate::task) fn open_own(path: &Path) -> Result<File> {
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let open = opened.and_then(|file| file.metadata().map(|status| (file, status)));
    let (file, status) = open.map_err(|cause| files::failed(cause, format!("open `{}`", path.display())))?;
    let caller = rustix::process::geteuid().as_raw();
    if (status.uid() == caller || status.uid() == 0) && status.mode() & 0o022 == 0 {
        return Ok(file);
    }
    let cause = format!("`{}` is another user's, or others may write it", path.display());
    let hint = "take the right to write away from others (chmod go-w), or name the file by its path";
    Err(Error::new(Kind::Profile, cause).hint(hint))
}
