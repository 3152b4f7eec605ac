//! clone3(2), waitid(2), close_range(2) and _exit(2): how a process of ours is made and ended.

use super::batch::Batch;
use super::{check, last_errno};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, getppid, waitid};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The namespaces and flags of [`clone_process`], as in clone(2).
pub(crate) type Flags = u64;

/// `CLONE_INTO_CGROUP` of linux/sched.h (5.7); libc has it as a negative int on some targets.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// struct clone_args of linux/sched.h, version 2 (88 bytes, kernel 5.7).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Which side of the clone we are on.
pub(crate) enum Side {
    /// The new process. It must leave by `execve` or [`exit`], never by returning from `main`.
    Child,
    /// The caller, with the child's pid in our PID namespace and a descriptor that names it for good.
    Parent(i32, OwnedFd),
}

/// Makes a process like fork(2) does, with new namespaces, a pidfd, and (v2) born inside a cgroup. clone3(2), kernel 5.3;
/// with a cgroup 5.7.
///
/// The caller must have one thread: the child gets a copy of the memory with whatever locks other threads held.
pub(crate) fn clone_process(flags: Flags, cgroup: Option<BorrowedFd<'_>>) -> Result<Side, Errno> {
    start(flags, libc::SIGCHLD as u64, cgroup)
}

/// The same, but the new process is our parent's child and not ours (`CLONE_PARENT`): it then signals its end as we would.
pub(crate) fn clone_sibling(flags: Flags) -> Result<Side, Errno> {
    start(flags | libc::CLONE_PARENT as u64, 0, None)
}

/// The flags of [`clone_sibling_under_filter`], as a filter sees them.
pub(crate) const SIBLING: Flags = (libc::CLONE_PARENT | libc::CLONE_PIDFD) as u64;

/// [`clone_sibling`] by clone(2): common filters refuse clone3(2), whose flags they cannot see.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn clone_sibling_under_filter() -> Result<Side, Errno> {
    let mut pidfd: i32 = -1;
    // SAFETY: no stack and no CLONE_VM, so the child runs on a copy of our memory like after fork(2); the kernel writes the descriptor to a live local.
    let result = unsafe { libc::syscall(libc::SYS_clone, SIBLING, 0_usize, &raw mut pidfd, 0_usize, 0_usize) };
    match result {
        -1 => Err(last_errno()),
        0 => Ok(Side::Child),
        // SAFETY: the kernel has just stored a new descriptor there, which has no other owner.
        pid => Ok(Side::Parent(pid as i32, unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Machines on which clone(2) takes its arguments in another order have clone3(2) alone.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn clone_sibling_under_filter() -> Result<Side, Errno> {
    clone_sibling(0)
}

fn start(flags: Flags, exit_signal: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Side, Errno> {
    let mut pidfd: i32 = -1;
    let mut args = CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: args is a valid clone_args that outlives the call; no stack and no CLONE_VM, so the child runs on a copy of
    // our memory like after fork(2).
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    match result {
        -1 => Err(last_errno()),
        0 => Ok(Side::Child),
        // SAFETY: the kernel has just stored a new descriptor there, which has no other owner.
        pid => Ok(Side::Parent(pid as i32, unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Runs `work` on `with` in a child that has our memory and new namespaces, while we wait for its end: vfork(2), with the namespaces of `flags`. The child
/// is over then and not yet buried, so /proc still tells its user namespace (none of the others). It sends no signal: a program that buries whatever has ended,
/// or ignores SIGCHLD, does not bury it, only [`wait`] does.
pub(crate) fn visit(flags: Flags, work: fn(u32), with: u32) -> Result<(i32, OwnedFd), Errno> {
    struct Task {
        work: fn(u32),
        with: u32,
    }
    extern "C" fn enter(task: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it is the task below, which outlives the child.
        let task = unsafe { &*task.cast::<Task>() };
        (task.work)(task.with);
        0
    }
    // On ours, of which the pages are there: the work is small.
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; 1 << 10];
    let mut task = Task { work, with };
    let mut pidfd: i32 = -1;
    let flags = flags as libc::c_int | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    // SAFETY: the stack is the child's alone and, like the task, there until it has ended, since we wait for that; the child returns from `enter` only.
    let pid = unsafe {
        libc::clone(enter, stack.as_mut_ptr_range().end.cast(), flags, (&raw mut task).cast(), &raw mut pidfd)
    };
    match pid {
        -1 => Err(last_errno()),
        // SAFETY: the kernel has just stored a new descriptor there, which has no other owner.
        pid => Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Sends a new child to another processor than ours, if it may run on one. The scheduler puts it behind us when it takes the others for busy, and there it
/// waits until we do; one that is to work beside us has lost then what it was made for. What cannot be had is of no weight.
pub(crate) fn send_away(pid: i32) {
    let (Ok(mut allowed), Some(pid)) = (sched_getaffinity(None), Pid::from_raw(pid)) else { return };
    let ours = sched_getcpu();
    if allowed.count() > 1 && ours < CpuSet::MAX_CPU {
        allowed.unset(ours);
        let _ = sched_setaffinity(Some(pid), &allowed);
    }
}

/// Brings a child to our processor, where we are about to wait for it: what else runs on its own, such as the kernel taking apart the network of a
/// container before, need not give way to it, and nobody moves it here for some milliseconds. What cannot be had is of no weight.
pub(crate) fn bring_here(pid: i32) {
    let (mut here, ours) = (CpuSet::new(), sched_getcpu());
    if let (Some(pid), true) = (Pid::from_raw(pid), ours < CpuSet::MAX_CPU) {
        here.set(ours);
        let _ = sched_setaffinity(Some(pid), &here);
    }
}

/// Brings our parent, if it still is `parent`, to our processor, on which we are about to have nothing to do, if it is held on another one ([`Here`]): it
/// waits there behind a child that it is about to leave that processor to. What cannot be had is of no weight. It must free itself in the end
/// ([`Allowed`]), since it may have left meanwhile.
pub(crate) fn relieve(parent: i32) {
    let Some(parent) = getppid().filter(|ours| ours.as_raw_pid() == parent) else { return };
    let ours = sched_getcpu();
    if sched_getaffinity(Some(parent))
        .is_ok_and(|held| held.count() == 1 && ours < CpuSet::MAX_CPU && !held.is_set(ours))
    {
        bring_here(parent.as_raw_pid());
    }
}

/// The processors that we may run on.
#[derive(Clone, Debug)]
pub(crate) struct Allowed(CpuSet);

impl Allowed {
    /// Takes back whatever else has held us.
    pub(crate) fn again(&self) {
        let _ = sched_setaffinity(None, &self.0); // it was allowed a moment ago
    }
}

/// As long as it lives we stay on the processor that we are on, and so does a child that is made meanwhile, whom we leave it to then: the scheduler often puts
/// a new child behind what is at work on another one, or it behind us, where it waits although somebody idles. What cannot be had is of no weight.
pub(crate) struct Here {
    /// Where we may run.
    allowed: Allowed,
    /// Where we are.
    ours: usize,
    /// That we go before the child does.
    batch: Option<Batch>,
}

impl Here {
    /// `None` where there is only one processor for us.
    pub(crate) fn stay() -> Option<Here> {
        let (mut here, ours) = (CpuSet::new(), sched_getcpu());
        if ours >= CpuSet::MAX_CPU {
            return None;
        }
        here.set(ours);
        let allowed = sched_getaffinity(None).ok().filter(|allowed| allowed.count() > 1 && allowed.is_set(ours))?;
        sched_setaffinity(None, &here).ok()?;
        Some(Here { allowed: Allowed(allowed), ours, batch: Batch::begin() })
    }

    /// Where we may run when it is over.
    pub(crate) fn allowed(&self) -> Allowed {
        self.allowed.clone()
    }

    /// Goes elsewhere, until what is returned is dropped. The child may run anywhere from now on, and begins here.
    pub(crate) fn leave_to(mut self, child: i32) -> Elsewhere {
        if let Some(child) = Pid::from_raw(child) {
            let _ = sched_setaffinity(Some(child), &self.allowed.0); // one that has ended needs no processor
        }
        let mut others = self.allowed.0;
        others.unset(self.ours);
        let _ = sched_setaffinity(None, &others);
        self.batch = None;
        Elsewhere(self)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.allowed.again();
    }
}

/// That we are on another processor than a child. Dropped, we may be on any again.
pub(crate) struct Elsewhere(#[expect(dead_code, reason = "is dropped")] Here);

/// Whether clone3(2) gets through to the kernel. A filter around us (a container's, another sandbox's) cannot see its flags, so those that want no
/// new namespaces answer ENOSYS for all of it; the kernel itself finds that there are no arguments (EINVAL).
pub(crate) fn can_clone() -> bool {
    // SAFETY: a size of 0 is refused before anything is read.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<CloneArgs>(), 0) };
    result == -1 && last_errno() == Errno::INVAL
}

/// Children that send another signal than SIGCHLD, or none, too (`__WALL`; for waitid(2) since kernel 4.7).
const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(libc::__WALL as u32);

/// Waits until the child that `pidfd` names has ended, and buries it; how it ended, or `None` if it is buried already.
pub(crate) fn wait(pidfd: BorrowedFd<'_>) -> Result<Option<WaitIdStatus>, Errno> {
    loop {
        match waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | ALL) {
            Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(None),
            other => return other,
        }
    }
}

/// Whether it has ended. If so it is buried, and asked again it still has.
pub(crate) fn is_over(pidfd: BorrowedFd<'_>) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | ALL;
    !matches!(waitid(WaitId::PidFd(pidfd), options), Ok(None) | Err(Errno::INTR))
}

/// Closes every descriptor from `first` up but those of `kept`. close_range(2), kernel 5.9.
pub(crate) fn close_from(first: u32, kept: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut kept: Vec<u32> = kept.iter().map(|each| each.as_raw_fd() as u32).filter(|each| *each >= first).collect();
    kept.sort_unstable();
    let mut start = first;
    for number in kept.into_iter().map(Some).chain([None]) {
        let last = number.map_or(Some(libc::c_uint::MAX), |number| number.checked_sub(1));
        if let Some(last) = last.filter(|last| *last >= start) {
            close_range(start, last)?;
        }
        start = number.map_or(libc::c_uint::MAX, |number| number + 1);
    }
    Ok(())
}

/// Closes every descriptor but one. Unlike [`close_from`] it allocates nothing.
pub(crate) fn close_but(kept: BorrowedFd<'_>) -> Result<(), Errno> {
    let kept = kept.as_raw_fd() as libc::c_uint;
    if kept > 0 {
        close_range(0, kept - 1)?;
    }
    close_range(kept + 1, libc::c_uint::MAX)
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> Result<(), Errno> {
    // SAFETY: the descriptors belong to values of this process that are never used or dropped again: callers leave by `exit`.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })
}

/// Ends this process at once: no destructors, no buffers, no `atexit`. After a raw clone on musl `abort` and `raise` would
/// signal the parent (stale thread id), so this is the only way out of a child.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: _exit takes no pointers and does not return.
    unsafe { libc::_exit(status) }
}
