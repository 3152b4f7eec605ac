//! The command's working directory: never one outside the root.

use crate::error::{Context, Error, Kind, Result, Step};
use rustix::io::Errno;
use std::path::Path;

/// The process was born in its directory (`join`).
pub(super) const ENTERED: &str = "";

/// With the current privileges. [`verify`] judges the result.
pub(super) fn enter(path: &Path) -> Result<(), Errno> {
    if path.as_os_str() == ENTERED { Ok(()) } else { rustix::process::chdir(path) }
}

/// `entered` is the result of an attempt with more privileges. The command's user may be the only one with access, or
/// may have none.
pub(super) fn verify(path: &Path, entered: Result<(), Errno>) -> Result<()> {
    let step = || format!("chdir to cwd (\"{}\") set in config.json failed", path.display()); // runc's words
    let entered = match entered {
        Err(Errno::PERM | Errno::ACCESS) => rustix::process::chdir(path),
        other => other,
    };
    let hint = "name a directory inside that the command's user may enter: `--workdir DIR`, or `cwd` of a bundle";
    entered.failing(Kind::Spec, step).hint(|| hint)?;
    if crate::sys::weaken::is_off("working-directory") {
        return Ok(());
    }
    // A directory outside the root has no path: getcwd(2) answers "(unreachable)", or that it is removed.
    match rustix::process::getcwd(Vec::new()) {
        Ok(name) if name.as_bytes().starts_with(b"/") => Ok(()),
        // The container's filter can deny getcwd.
        Err(errno) if errno != Errno::NOENT => {
            Err(errno).failing(Kind::Spec, || "failed to verify if current working directory is safe")
        }
        _ => Err(Error::new(Kind::Spec, "current working directory is outside of container mount namespace root -- possible container breakout detected"))
            .doing(step),
    }
}
