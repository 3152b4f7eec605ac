//! Attributes of this process that rustix lacks.

use super::check;
use rustix::io::Errno;

/// struct sched_attr of linux/sched/types.h, version 0: 48 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedAttr {
    pub size: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Of SCHED_OTHER and SCHED_BATCH.
    pub nice: i32,
    /// Of SCHED_FIFO and SCHED_RR.
    pub priority: u32,
    /// SCHED_DEADLINE, nanoseconds; also the next two.
    pub runtime: u64,
    pub deadline: u64,
    pub period: u64,
}

/// sched_setattr(2) for this thread.
pub(crate) fn set_scheduling(attributes: &SchedAttr) -> Result<(), Errno> {
    let attributes = SchedAttr { size: size_of::<SchedAttr>() as u32, ..*attributes };
    // SAFETY: attributes is a whole sched_attr with its size, and outlives the call; 0: this thread, no flags.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

// linux/ioprio.h
const WHO_PROCESS: libc::c_int = 1;
const WHO_PROCESS_GROUP: libc::c_int = 2;

/// ioprio_set(2) for this process group.
pub(crate) fn set_io_priority(value: u32) -> Result<(), Errno> {
    set_io_priority_of(WHO_PROCESS_GROUP, value)
}

fn set_io_priority_of(which: libc::c_int, value: u32) -> Result<(), Errno> {
    // SAFETY: no memory is passed; 0 means this thread, or its process group.
    check(unsafe { libc::syscall(libc::SYS_ioprio_set, which, 0, value) })
}

/// Moves I/O from the real-time class to the middle of the best-effort class (linux/ioprio.h).
fn leave_real_time_io() -> Result<(), Errno> {
    const CLASS_SHIFT: u32 = 13;
    const REAL_TIME: libc::c_long = 1;
    const MIDDLE_OF_BEST_EFFORT: u32 = 2 << CLASS_SHIFT | 4;
    // SAFETY: no memory is passed; 0 means this thread.
    let class = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) } >> CLASS_SHIFT;
    if class != REAL_TIME {
        return Ok(());
    }
    set_io_priority_of(WHO_PROCESS, MIDDLE_OF_BEST_EFFORT)
}

/// Leaves SCHED_FIFO, SCHED_RR, SCHED_DEADLINE, and the real-time class of I/O.
pub(crate) fn leave_real_time() -> Result<(), Errno> {
    const RESET_ON_FORK: libc::c_long = 0x4000_0000; // linux/sched.h
    // SAFETY: no memory is passed; 0 means this thread.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } & !RESET_ON_FORK;
    let is_usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(libc::c_long::from).contains(&policy);
    if !is_usual {
        let nice = rustix::process::getpriority_process(None)?;
        set_scheduling(&SchedAttr { policy: libc::SCHED_OTHER as u32, nice, ..SchedAttr::default() })?;
    }
    leave_real_time_io()
}

/// set_mempolicy(2); `nodes` is a bit mask.
pub(crate) fn set_memory_policy(mode: u32, nodes: &[u64]) -> Result<(), Errno> {
    // The kernel uses one bit less than the call names ("maxnode" in set_mempolicy(2)).
    let (mask, bits) = if nodes.is_empty() { (std::ptr::null(), 0) } else { (nodes.as_ptr(), nodes.len() * 64 + 1) };
    // SAFETY: mask is null with 0 bits, or has at least the number of bits that the kernel reads.
    check(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) })
}

/// sched_setaffinity(2); `cpus` is a bit mask.
pub(crate) fn set_affinity(cpus: &[u64]) -> Result<(), Errno> {
    // SAFETY: the mask has the number of bytes that is passed.
    check(unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(cpus), cpus.as_ptr()) })
}

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;

/// The new anonymous keyring makes the caller's keys unreachable. keyctl(2).
pub(crate) fn leave_session_keyring() -> Result<(), Errno> {
    // SAFETY: a null name asks for an anonymous keyring; the kernel accesses no memory through it.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) })
}
