//! A process and all that came of it, where no group holds them together.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long the tree is stopped, and then killed, at most: the watch of the sandbox waits meanwhile.
const LONGEST: Duration = Duration::from_secs(1);
/// How often nothing new must be found, and the time between: a list of children that is read while some of them end leaves others out (proc(5)).
const QUIET: u32 = 4;
const PAUSE: Duration = Duration::from_millis(1);
/// How many processes are held at once: each takes a descriptor.
const HELD_AT_ONCE: usize = 256;

/// The children of a process, of all its threads (proc_pid_task_children, proc(5)).
pub(super) fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("children")));
    lists.flatten().flat_map(|text| text.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect()
}

/// A process and all that came of it.
pub(super) fn descendants(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        all.extend(children(parent));
        next += 1;
    }
    all
}

/// Kills a process, not yet waited for, and its tree. The process adopts orphans (`PR_SET_CHILD_SUBREAPER`), so that the tree hangs together while it
/// lives: all are stopped first, that none forks meanwhile, and it is killed last. What is left after so much time ends with the sandbox.
pub(super) fn end(root: i32) {
    signal_all(root, Signal::STOP, BTreeSet::new());
    // Its stopped parent reaps none of them, so that a number stays that of its process.
    signal_all(root, Signal::KILL, BTreeSet::from([root]));
    if let Some(process) = hold(root) {
        send(&process, Signal::KILL);
    }
}

/// Signals all of the tree but those in `reached`, until nothing new was found several times.
fn signal_all(root: i32, kind: Signal, mut reached: BTreeSet<i32>) {
    let end = Instant::now() + LONGEST;
    let mut quiet = 0;
    while quiet < QUIET && Instant::now() < end {
        if signal(root, kind, &mut reached) > 0 {
            quiet = 0;
        } else {
            quiet += 1;
            std::thread::sleep(PAUSE);
        }
    }
}

/// Signals those of the tree that are not in `reached`, and adds them; how many these were. They are held first and looked for again then: a number may
/// have become that of another process since it was listed.
fn signal(root: i32, signal: Signal, reached: &mut BTreeSet<i32>) -> usize {
    let new: Vec<i32> = descendants(root).into_iter().filter(|pid| !reached.contains(pid)).collect();
    for some in new.chunks(HELD_AT_ONCE) {
        let held: Vec<_> = some.iter().filter_map(|&pid| Some((pid, hold(pid)?))).collect();
        let still: BTreeSet<i32> = descendants(root).into_iter().collect();
        held.iter().filter(|(pid, _)| still.contains(pid)).for_each(|(_, process)| send(process, signal));
        reached.extend(some);
    }
    new.len()
}

fn hold(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

fn send(process: &OwnedFd, signal: Signal) {
    // One that has ended needs no signal; one that cannot be signalled ends with the sandbox.
    let _ = pidfd_send_signal(process, signal);
}
