//! A child that has our memory, and not a copy of it, until it executes another program: vfork(2) without its wait. To copy a memory, to take the copy apart
//! again, and to copy the pages that either side writes meanwhile, takes longer than most of what such a child does (docs/decisions/0005-start-path.md).

use super::clone::exit;
use super::last_errno;
use super::weaken;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the child's stack. What is never touched costs nothing.
const STACK: usize = 256 * 1024;

/// Whether the child still has our memory. The kernel itself writes 0 and wakes who waits, when it has let go of it: set_tid_address(2).
static SHARED: AtomicU32 = AtomicU32::new(0);

/// Whether the child may execute another program.
static GATE: AtomicU32 = AtomicU32::new(OPEN);
const OPEN: u32 = 0;
const SHUT: u32 = 1;
/// Shut, and the child waits.
const AWAITED: u32 = 2;
/// It is to end.
const NEVER: u32 = 3;

/// Runs `work`, which does not return, in a child that has our memory, and `beside` in us. The child passes [`pass`] when `beside` has succeeded; if that fails,
/// it ends there. Returns when the child has executed another program or has ended, with its pid and what `beside` returned.
///
/// The caller has one thread. `beside` must not allocate while it succeeds: the two have one heap, one errno and one of everything else that is a
/// thread's own.
pub(crate) fn share_memory<W: FnOnce(), E>(
    work: W,
    beside: impl FnOnce() -> Result<(), E>,
) -> Result<(i32, Result<(), E>), Errno> {
    extern "C" fn enter<W: FnOnce()>(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the address is that of a static, and the call has no other effect on memory.
        unsafe { libc::syscall(libc::SYS_set_tid_address, SHARED.as_ptr()) };
        // SAFETY: it is the caller's `work`, which stays there until we have left its memory, and which nobody else touches.
        let work = unsafe { (*work.cast::<Option<W>>()).take() };
        if let Some(work) = work {
            work();
        }
        exit(1)
    }
    let mut work = Some(work);
    // SAFETY: a new mapping, that nobody else knows of.
    let stack = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            STACK,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::STACK,
        )?
    };
    SHARED.store(1, Ordering::Relaxed);
    GATE.store(SHUT, Ordering::Relaxed);
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the stack is the child's alone, and like `work` there until it has left our memory, since we wait for that; `enter` does not return.
    let pid = unsafe { libc::clone(enter::<W>, stack.byte_add(STACK), flags, (&raw mut work).cast()) };
    if pid == -1 {
        let errno = last_errno();
        GATE.store(OPEN, Ordering::Relaxed);
        // SAFETY: nobody has used the mapping.
        let _ = unsafe { munmap(stack, STACK) };
        return Err(errno);
    }
    if weaken::is_off("swift-pid-1") {
        std::thread::sleep(std::time::Duration::from_millis(500)); // so that a test can see who waits for whom
    }
    let done = beside();
    if GATE.swap(if done.is_ok() { OPEN } else { NEVER }, Ordering::Release) == AWAITED {
        let _ = futex::wake(&GATE, futex::Flags::empty(), 1); // it looks again by itself if it was not waiting yet
    }
    while SHARED.load(Ordering::Acquire) == 1 {
        // Whatever ends the wait, the word tells.
        let _ = futex::wait(&SHARED, futex::Flags::empty(), 1, None);
    }
    // SAFETY: who used the mapping has another memory now, or has ended.
    let _ = unsafe { munmap(stack, STACK) };
    Ok((pid, done))
}

/// Waits, in a child that shares its parent's memory, until that has done what was to be done beside it. Everywhere else it returns at once.
pub(crate) fn pass() {
    while !weaken::is_off("gate") {
        match GATE.compare_exchange(SHUT, AWAITED, Ordering::Acquire, Ordering::Acquire) {
            Err(OPEN) => return,
            Err(NEVER) => exit(1),
            // Whatever ends the wait, the word tells.
            _ => drop(futex::wait(&GATE, futex::Flags::empty(), AWAITED, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// There is one gate in a process. (Other tests' threads only read their own memory meanwhile.)
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn status_of(pid: i32) -> i32 {
        let pid = rustix::process::Pid::from_raw(pid);
        let (_, status) = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap().unwrap();
        status.exit_status().unwrap()
    }

    #[test]
    fn the_child_writes_our_memory_and_goes_on_when_we_have_done_our_part() {
        let _one = ONE_AT_A_TIME.lock();
        let (seen, done) = (AtomicU32::new(0), AtomicU32::new(0));
        let work = || {
            pass();
            seen.store(1 + done.load(Ordering::Acquire), Ordering::Release);
            exit(7)
        };
        let beside = || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            done.store(41, Ordering::Release);
            Ok::<_, ()>(())
        };
        let (pid, ours) = share_memory(work, beside).unwrap();
        assert_eq!((ours, seen.load(Ordering::Acquire)), (Ok(()), 42));
        assert_eq!(status_of(pid), 7);
        pass(); // nobody is kept waiting any more
    }

    #[test]
    fn the_child_ends_at_the_gate_when_our_part_fails() {
        let _one = ONE_AT_A_TIME.lock();
        let seen = AtomicU32::new(0);
        let work = || {
            pass();
            seen.store(1, Ordering::Release);
            exit(7)
        };
        let (pid, ours) = share_memory(work, || Err("no")).unwrap();
        assert_eq!((ours, seen.load(Ordering::Acquire)), (Err("no"), 0));
        assert_eq!(status_of(pid), 1);
    }

    #[test]
    fn we_go_on_when_the_child_has_become_another_program() {
        let _one = ONE_AT_A_TIME.lock();
        let (ours, theirs) = rustix::pipe::pipe().unwrap();
        let work = || {
            pass();
            let _ = rustix::stdio::dup2_stdin(&ours);
            let words = [c"/bin/cat".as_ptr(), std::ptr::null()];
            let none = [std::ptr::null()];
            // SAFETY: strings and arrays that end as execve(2) wants it.
            unsafe { libc::execve(words[0], words.as_ptr(), none.as_ptr()) };
            exit(9)
        };
        // It runs until its input ends, so whoever returns here has not waited for its end.
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::CLOEXEC).unwrap();
        let (pid, _) = share_memory(work, || Ok::<_, ()>(())).unwrap();
        drop(theirs);
        assert_eq!(status_of(pid), 0);
    }
}
