//! Requests of ioctl(2) that rustix and nix lack.

use super::{check, last_errno, new_descriptor};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

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

/// The kernel makes a device if none is free. loop(4).
pub(crate) fn free_device(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: this request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    if number < 0 { Err(last_errno()) } else { Ok(number as u32) }
}

/// The kernel detaches `file` when its last user ends (`LO_FLAGS_AUTOCLEAR`). loop(4).
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

/// EPERM if it is outside of the caller's. ioctl_ns(2), `NS_GET_USERNS`.
pub(crate) fn owning_user_namespace(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: the request takes no argument.
    new_descriptor(unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_USERNS as libc::Ioctl) }.into())
}

/// struct ifreq of linux/if.h as `SIOCSIFFLAGS` reads it.
#[repr(C)]
struct InterfaceFlags {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    /// This request ignores the rest of the union.
    unused: [u8; 22],
}

/// Acts in the socket's network namespace, and needs CAP_NET_ADMIN there. netdevice(7).
pub(crate) fn bring_loopback_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut request = InterfaceFlags {
        name: [0; libc::IFNAMSIZ],
        flags: (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short,
        unused: [0; 22],
    };
    request.name[..2].copy_from_slice(b"lo");
    const { assert!(size_of::<InterfaceFlags>() >= size_of::<libc::ifreq>()) };
    // SAFETY: request is as large as an ifreq, has a NUL-terminated name and outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request) }.into())
}
