//! A process and all that came of it, where no group holds them together.

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;

/// How often the tree is looked at while its processes fork. Each round stops all that it finds.
const ROUNDS: u32 = 100;

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
/// lives: all are stopped first, that none forks meanwhile, and it is killed last. What is left after so many rounds ends with the sandbox.
pub(super) fn end(root: i32) {
    let mut stopped = BTreeSet::new();
    for _ in 0..ROUNDS {
        if signal(root, Signal::STOP, &mut stopped) == 0 {
            break;
        }
    }
    // Its stopped parent reaps none of them, so that a number stays that of its process.
    let mut killed = BTreeSet::from([root]);
    for _ in 0..ROUNDS {
        if signal(root, Signal::KILL, &mut killed) == 0 {
            break;
        }
    }
    send(root, Signal::KILL, || true);
}

/// Signals those of the tree that are not in `reached`, and adds them; how many these were.
fn signal(root: i32, signal: Signal, reached: &mut BTreeSet<i32>) -> usize {
    let new: Vec<i32> = descendants(root).into_iter().filter(|pid| !reached.contains(pid)).collect();
    for &pid in &new {
        // Held first and looked for again then: the number may have become that of another process since it was listed.
        send(pid, signal, || pid == root || descendants(root).contains(&pid));
        reached.insert(pid);
    }
    new.len()
}

fn send(pid: i32, signal: Signal, is_meant: impl FnOnce() -> bool) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let done = pidfd_open(pid, PidfdFlags::empty()).and_then(|process| match is_meant() {
        true => pidfd_send_signal(&process, signal),
        false => Err(Errno::SRCH),
    });
    // One that has ended needs no signal; one that cannot be signalled ends with the sandbox.
    let _ = done;
}
