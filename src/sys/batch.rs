//! SCHED_BATCH (sched(7)) for a moment: who has it takes no processor from anybody at its own start or when it wakes.
//! docs/decisions/0005-start-path.md, item 28.

use super::check;
use rustix::io::Errno;
use std::cell::Cell;

thread_local! {
    /// Whether this thread, or the one that a process began as a copy of, has it by us.
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// As long as it lives this thread has it, and so do for good the children that are made meanwhile: the scheduler lets a new child run before who has made it,
/// who could have sent it to an idle processor in the next moment. What has another policy than the usual one keeps that.
#[derive(Debug)]
pub(crate) struct Batch(());

impl Batch {
    /// `None` where it cannot be had, which is of no weight, or where somebody further up has it.
    pub(crate) fn begin() -> Option<Batch> {
        // SAFETY: no memory is passed.
        let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        (policy == libc::c_long::from(libc::SCHED_OTHER) && set(libc::SCHED_BATCH).is_ok()).then(|| {
            HELD.set(true);
            Batch(())
        })
    }

    /// For a child that was made meanwhile and is to be as everybody else.
    pub(crate) fn leave() {
        if HELD.replace(false) {
            let _ = set(libc::SCHED_OTHER); // it was ours a moment ago
        }
    }
}

/// Takes the usual policy instead of a real-time one (SCHED_FIFO, SCHED_RR, SCHED_DEADLINE), under which this thread ran before all others of the machine that
/// have a usual one; and the same for what it reads and writes, ioprio_set(2).
pub(crate) fn leave_real_time() -> Result<(), Errno> {
    const RESET_ON_FORK: libc::c_long = 0x4000_0000; // linux/sched.h
    // SAFETY: no memory is passed.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } & !RESET_ON_FORK;
    let is_usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(libc::c_long::from).contains(&policy);
    if !is_usual {
        set(libc::SCHED_OTHER)?;
    }
    super::attributes::leave_real_time_io()
}

impl Drop for Batch {
    fn drop(&mut self) {
        Batch::leave();
    }
}

/// Sets the policy of this thread. sched_setscheduler(2); musl's function of this name does nothing.
fn set(policy: libc::c_int) -> Result<(), Errno> {
    let priority: libc::c_int = 0;
    // SAFETY: a sched_param begins with this number, has nothing else that the kernel reads, and outlives the call; 0 is this thread.
    check(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clone::{Side, clone_process, exit, wait};
    use std::os::fd::AsFd;

    /// The policy that a child made now begins with, and the one after `then`.
    fn of_a_child(then: fn()) -> i32 {
        // SAFETY: no memory is passed.
        let policy = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } as i32;
        match clone_process(0, None).unwrap() {
            Side::Child => {
                let first = policy();
                then();
                exit(first * 8 + policy())
            }
            Side::Parent(_, pidfd) => wait(pidfd.as_fd()).unwrap().unwrap().exit_status().unwrap(),
        }
    }

    #[test]
    fn children_have_it_only_meanwhile_and_those_that_leave_it_do_not_keep_it() {
        let (other, batch) = (libc::SCHED_OTHER, libc::SCHED_BATCH);
        assert_eq!(of_a_child(Batch::leave), other * 8 + other);
        let held = Batch::begin().unwrap();
        assert!(Batch::begin().is_none());
        assert_eq!(of_a_child(|| ()), batch * 8 + batch);
        assert_eq!(of_a_child(Batch::leave), batch * 8 + other);
        drop(held);
        assert_eq!(of_a_child(|| ()), other * 8 + other);
    }
}
