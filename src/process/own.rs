//! Protects our executable, which a process in a container shows as /proc/PID/exe, even for a moment. The container's
//! root could write to it, and own the host at the next run (CVE-2019-5736).

use crate::error::{Context, Error, Kind, Result};
use crate::sys::exec::{Vector, execveat};
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags, fcntl_add_seals, fcntl_get_seals, fstatvfs, memfd_create,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

const EXECUTABLE: &str = "/proc/self/exe";

/// If needed, executes itself again from a detached read-only mount, or (ordinary user) from a sealed copy in memory.
/// Call it first.
pub(crate) fn protect_own_executable() -> Result<()> {
    let step = || "protect our own executable";
    if crate::sys::weaken::is_off("own-executable") {
        return Ok(());
    }
    let file =
        rustix::fs::open(EXECUTABLE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Identity, step)?;
    if is_safe(&file).failing(Kind::Identity, step)? {
        return Ok(());
    }
    let safe = match view(&file) {
        Err(Errno::PERM | Errno::NOSYS | Errno::INVAL) => match copy(&file) {
            // Engines show the cause only, without a hint.
            Err(cause) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                let words = "sysctl vm.memfd_noexec forbids to execute a copy in memory: set it to 0 or 1";
                return Err(Error::new(Kind::Identity, words).doing(step()));
            }
            other => other.failing(Kind::Identity, step)?,
        },
        other => other.failing(Kind::Identity, step)?,
    };
    let strings = |words: Vec<OsString>| {
        words.into_iter().map(|word| CString::new(word.into_vec())).collect::<Result<Vec<_>, _>>()
    };
    let nul = |_| Error::new(Kind::Internal, "an argument with a NUL");
    let arguments = strings(std::env::args_os().collect()).map_err(nul)?;
    let environment = std::env::vars_os().map(|(name, value)| [name, value].join("=".as_ref())).collect();
    let environment = strings(environment).map_err(nul)?;
    Err(execveat(safe.as_fd(), &Vector::new(arguments), &Vector::new(environment))).failing(Kind::Identity, step)
}

fn is_safe(file: &OwnedFd) -> Result<bool, Errno> {
    if fstatvfs(file)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(true);
    }
    // Only memory files have seals.
    Ok(fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::WRITE)))
}

fn view(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(file, "", flags)?;
    set_attributes(tree.as_fd(), c"", false, &MountAttr { set: bits::RDONLY, ..MountAttr::default() })?;
    Ok(tree)
}

fn copy(file: &OwnedFd) -> Result<OwnedFd, std::io::Error> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // vm.memfd_noexec=1 requires MFD_EXEC; kernels before 6.3 refuse the flag.
    let made = match memfd_create("brig", flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => memfd_create("brig", flags)?,
        other => other?,
    };
    let mut target = File::from(made.try_clone()?);
    std::io::copy(&mut File::from(file.try_clone()?), &mut target)?;
    fcntl_add_seals(&made, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    // execve refuses a file that is open for writing.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made));
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
