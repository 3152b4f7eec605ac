//! bpf(2) for the device filter of a cgroup.

use super::{check, new_descriptor};
use rustix::io::Errno;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

// linux/bpf.h
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;
const REPLACE: u32 = 4;

/// With its NUL (`BPF_OBJ_NAME_LEN`).
const NAME_BYTES: usize = 16;
/// In `struct bpf_prog_info`.
const INFO_NAME_AT: usize = 64;

/// `union bpf_attr`, zeroed and larger than any kernel's: every kernel accepts a longer one with a zero end. Kernels
/// 6.17 to 7.1 write 64 bytes into the attribute of a query, whatever its length. It borrows the memory whose addresses
/// it contains.
#[repr(C, align(8))]
struct Attributes<'memory> {
    bytes: [u8; 256],
    memory: PhantomData<&'memory mut [u8]>,
}

impl<'memory> Attributes<'memory> {
    fn new() -> Attributes<'memory> {
        Attributes { bytes: [0; 256], memory: PhantomData }
    }

    fn u32(mut self, at: usize, value: u32) -> Attributes<'memory> {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Attributes<'memory> {
        self.u32(at, fd.as_raw_fd() as u32)
    }

    fn u64(mut self, at: usize, value: u64) -> Attributes<'memory> {
        self.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// Items for the kernel to read; their number is at `count_at`.
    fn items<T>(self, at: usize, items: &'memory [T], count_at: usize) -> Attributes<'memory> {
        self.u64(at, items.as_ptr() as u64).u32(count_at, items.len() as u32)
    }

    /// Items for the kernel to write; their number is at `count_at`.
    fn buffer<T>(self, at: usize, items: &'memory mut [T], count_at: usize) -> Attributes<'memory> {
        self.u64(at, items.as_mut_ptr() as u64).u32(count_at, items.len() as u32)
    }

    fn call(&mut self, command: libc::c_int) -> libc::c_long {
        // SAFETY: the length is that of the attributes; their addresses are borrowed slices with the lengths that they
        // contain.
        unsafe { libc::syscall(libc::SYS_bpf, command, self.bytes.as_mut_ptr(), self.bytes.len()) }
    }
}

/// A name has at most 15 letters. `BPF_PROG_TYPE_CGROUP_DEVICE`, Linux 4.15.
pub(crate) fn load_device_filter(instructions: &[u64], name: &str) -> Result<OwnedFd, Errno> {
    // The instructions call no helper, so the license does not matter; the kernel reads it up to its NUL.
    let license = c"Apache-2.0".to_bytes_with_nul();
    let mut attributes = Attributes::new()
        .items(16, license, 4) // the next line overwrites the count
        .items(8, instructions, 4)
        .u32(0, TYPE_CGROUP_DEVICE)
        .u32(68, CGROUP_DEVICE);
    for (at, byte) in name.bytes().take(NAME_BYTES - 1).enumerate() {
        attributes.bytes[48 + at] = byte;
    }
    new_descriptor(attributes.call(PROG_LOAD))
}

/// Adds the filter to others, or replaces one.
pub(crate) fn attach_device_filter(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    instead_of: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut attributes = Attributes::new().fd(0, cgroup).fd(4, program).u32(8, CGROUP_DEVICE).u32(12, ALLOW_MULTI);
    if let Some(old) = instead_of {
        attributes = attributes.u32(12, ALLOW_MULTI | REPLACE).fd(16, old);
    }
    check(attributes.call(PROG_ATTACH))
}

pub(crate) fn detach_device_filter(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<(), Errno> {
    check(Attributes::new().fd(0, cgroup).fd(4, program).u32(8, CGROUP_DEVICE).call(PROG_DETACH))
}

/// This cgroup's own filters, at most 64, the kernel's limit.
pub(crate) fn device_filters(cgroup: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut ids = [0u32; 64];
    let mut attributes = Attributes::new().fd(0, cgroup).u32(4, CGROUP_DEVICE).buffer(16, &mut ids, 24);
    check(attributes.call(PROG_QUERY))?;
    let mut count = [0; 4];
    count.copy_from_slice(&attributes.bytes[24..28]);
    Ok(ids[..ids.len().min(u32::from_ne_bytes(count) as usize)].to_vec())
}

pub(crate) fn open_program(id: u32) -> Result<OwnedFd, Errno> {
    new_descriptor(Attributes::new().u32(0, id).call(PROG_GET_FD_BY_ID))
}

pub(crate) fn program_name(program: BorrowedFd<'_>) -> Result<String, Errno> {
    let mut info = [0u8; INFO_NAME_AT + NAME_BYTES];
    check(Attributes::new().fd(0, program).buffer(8, &mut info, 4).call(OBJ_GET_INFO_BY_FD))?;
    let name = &info[INFO_NAME_AT..];
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}
