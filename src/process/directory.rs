//! The command's working directory: never one outside the root.

use crate::error::{Context, Error, Kind, Result, Step};
use rustix::io::Errno;
use std::path::Path;

/// In the place of a path: the process was born in it (`join`).
pub(super) const ENTERED: &str = "";

/// Enters `path`, with the privileges of before. Whether that went well is for [`settle`].
pub(super) fn enter(path: &Path) -> Result<(), Errno> {
    if path.as_os_str() == ENTERED { Ok(()) } else { rustix::process::chdir(path) }
}

/// Makes sure that we are in `path`, inside the root. `entered` is how the first attempt went, with the privileges of before: the user of the
/// command may be the only one who can enter it, or may be the one who cannot.
pub(super) fn settle(path: &Path, entered: Result<(), Errno>) -> Result<()> {
    let step = || format!("chdir to cwd (\"{}\") set in config.json failed", path.display()); // runc's words
    match entered {
        Ok(()) => {}
        Err(Errno::PERM | Errno::ACCESS) => rustix::process::chdir(path).failing(Kind::Spec, step)?,
        Err(errno) => return Err(errno).failing(Kind::Spec, step),
    }
    if crate::sys::weaken::is_off("working-directory") {
        return Ok(());
    }
    // A directory outside our root has no path for us: the kernel says so (getcwd(2), "(unreachable)"), or that it is gone.
    match rustix::process::getcwd(Vec::new()) {
        Ok(name) if name.as_bytes().starts_with(b"/") => Ok(()),
        // A filter of the container's can deny the question.
        Err(errno) if errno != Errno::NOENT => {
            Err(errno).failing(Kind::Spec, || "failed to verify if current working directory is safe")
        }
        _ => Err(Error::new(Kind::Spec, "current working directory is outside of container mount namespace root -- possible container breakout detected"))
            .doing(step),
    }
}
