//! ioctl(2) on pidfds.

use super::check;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOWR(0xFF, 11, struct pidfd_info)` of linux/pidfd.h (Linux 6.13).
const PIDFD_GET_INFO: u32 = 0xC040_FF0B;
/// The exit status as of wait(2), after the process was reaped (Linux 6.15).
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// struct pidfd_info, first version: 64 bytes.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `None` before any process has reaped the target. An older kernel returns an error.
pub(crate) fn exit_status(pidfd: BorrowedFd<'_>) -> Result<Option<i32>, Errno> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel writes at most the size that the request names into `info`, which is that large.
    check(unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) }.into())?;
    Ok((info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::os::fd::AsFd;

    #[test]
    fn status_of_a_reaped_process_is_known() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_raw(child.id() as i32).unwrap(), PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        match exit_status(pidfd.as_fd()) {
            Ok(status) => assert_eq!(status, Some(7 << 8)),
            Err(errno) => crate::sys::skip(&format!("status_of_a_reaped_process_is_known: {errno} (Linux 6.15)")),
        }
    }
}
