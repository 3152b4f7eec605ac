//! The return values of a filter (linux/seccomp.h).

use crate::error::{Error, Kind, Result};
use crate::spec::seccomp::Action;

pub(super) const KILL_PROCESS: u32 = 0x8000_0000;
pub(super) const KILL_THREAD: u32 = 0x0000_0000;
pub(super) const TRAP: u32 = 0x0003_0000;
pub(super) const ERRNO: u32 = 0x0005_0000;
pub(super) const USER_NOTIF: u32 = 0x7fc0_0000;
pub(super) const TRACE: u32 = 0x7ff0_0000;
pub(super) const LOG: u32 = 0x7ffc_0000;
pub(super) const ALLOW: u32 = 0x7fff_0000;

/// `MAX_ERRNO` of linux/err.h; the kernel clamps greater ones.
const MAX_ERRNO: u32 = 4095;
/// `SECCOMP_RET_DATA`.
const MAX_DATA: u32 = 0xffff;

/// The call returns `number` without being made.
pub(super) const fn errno(number: u32) -> u32 {
    ERRNO | number
}

pub(super) fn value(action: Action, errno_ret: Option<u32>) -> Result<u32> {
    let most = match action {
        Action::Errno => MAX_ERRNO,
        Action::Trace => MAX_DATA,
        _ => match errno_ret {
            Some(number) => {
                return Err(Error::new(
                    Kind::Spec,
                    format!("`{}` takes no error number, `{number}` was given", action.word()),
                ));
            }
            None => 0,
        },
    };
    let number = errno_ret.unwrap_or(libc::EPERM as u32);
    if errno_ret.is_some() && number > most {
        return Err(Error::new(Kind::Spec, format!("invalid error number `{number}`: the greatest is {most}")));
    }
    Ok(match action {
        Action::Kill | Action::KillThread => KILL_THREAD,
        Action::KillProcess => KILL_PROCESS,
        Action::Trap => TRAP,
        Action::Errno => errno(number),
        Action::Trace => TRACE | number,
        Action::Allow => ALLOW,
        Action::Log => LOG,
        Action::Notify => USER_NOTIF,
    })
}
