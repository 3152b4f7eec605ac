//! ioctls of loop devices, loop(4).

use super::errno::{check, last_errno};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// struct loop_info64 of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// struct loop_config of linux/loop.h (kernel 5.8).
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The number of a loop device that nobody uses at this moment, made if needed.
pub(crate) fn free_device(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: this request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    if number < 0 { Err(last_errno()) } else { Ok(number as u32) }
}

/// Backs `device` with `file`. The kernel detaches it when its last user is gone (`LO_FLAGS_AUTOCLEAR`), so a crash leaves none.
pub(crate) fn configure(device: BorrowedFd<'_>, file: BorrowedFd<'_>, block_size: u32) -> Result<(), Errno> {
    let config = LoopConfig {
        fd: file.as_raw_fd() as u32,
        block_size,
        info: LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_AUTOCLEAR,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: config is a whole loop_config that outlives the call; both descriptors are open.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }.into())
}
