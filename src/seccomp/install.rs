//! Hands a program to the kernel.

use super::Program;
use crate::error::{Error, Kind, Result};
use crate::sys::seccomp::{self as kernel, Instruction};
use crate::sys::weaken;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Installs a filter in this process, which must have one thread, and returns its listener if it has one.
///
/// Needs no_new_privs or CAP_SYS_ADMIN. From here on the filter holds for everything that the process does, so this comes
/// last. Fit for a process that was just cloned: allocates nothing unless it fails.
pub(crate) fn install(program: &Program) -> Result<Option<OwnedFd>> {
    if program.is_empty() || weaken::is_off("seccomp") {
        return Ok(None);
    }
    if let Some(beneath) = &program.beneath {
        install(beneath)?;
    }
    let result = match add(program, program.listens) {
        // The kernel allows one listener for a process, and a container around us may have it. Without a listener the kernel answers with ENOSYS
        // what the listener would have refused.
        Err(Errno::BUSY) if program.reports => add(program, false),
        result => result,
    };
    result.map_err(|errno| explain(program, errno).doing("install the system-call filter"))
}

fn add(program: &Program, listens: bool) -> Result<Option<OwnedFd>, Errno> {
    match add_with(program, listens, program.flags | program.wishes) {
        Err(Errno::INVAL) if program.wishes != 0 => add_with(program, listens, program.flags),
        result => result,
    }
}

fn add_with(program: &Program, listens: bool, flags: u32) -> Result<Option<OwnedFd>, Errno> {
    let instructions: &[Instruction] = &program.instructions;
    if listens {
        kernel::add_filter_with_listener(instructions, flags).map(Some)
    } else {
        kernel::add_filter(instructions, flags).map(|()| None)
    }
}

fn explain(program: &Program, errno: Errno) -> Error {
    let error = Error::os(Kind::Seccomp, errno);
    match errno {
        Errno::ACCESS => error.hint("set `process.noNewPrivileges`, or start the container with CAP_SYS_ADMIN"),
        Errno::INVAL if program.flags != 0 => {
            error.hint("remove the flags of the profile that this kernel does not know")
        }
        Errno::BUSY => error.hint("remove the filter with a listener that is in force already: the kernel allows one"),
        Errno::NOSYS | Errno::INVAL => error.hint("use a kernel built with CONFIG_SECCOMP_FILTER"),
        _ => error,
    }
}
