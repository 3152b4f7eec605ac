//! Many at once.

use crate::support::{Lab, Started};
use rustix::process::Signal;
use std::collections::HashSet;
use std::time::Duration;

/// Concurrent tasks, for two processors.
const AT_ONCE: usize = 16;

#[test]
fn a_hundred_tasks_run_side_by_side_and_leave_nothing() {
    let lab = Lab::new();
    let work = lab.file("work/file", "shared\n");
    let dir = ["--dir".as_ref(), work.parent().unwrap().as_os_str()];
    let mut running: Vec<(usize, Started)> = Vec::new();
    let check = |number: usize, task: Started| {
        let run = task.finish();
        run.ended_as("failed", (number % 100 + 4) as i32);
        assert_eq!(run.stderr, format!("shared\n{number}\n"), "no task sees another's files");
    };
    for number in 0..100 {
        let script = format!("cat file; echo {number} > file; sleep 0.2; cat file; exit {}", number % 100 + 4);
        running.push((number, lab.task().args(dir).start_sh(&script)));
        if running.len() == AT_ONCE {
            let (number, task) = running.remove(0);
            check(number, task);
        }
    }
    running.into_iter().for_each(|(number, task)| check(number, task));
    assert_eq!(lab.ids().into_iter().collect::<HashSet<_>>().len(), 100);
    assert_eq!(std::fs::read_to_string(&work).unwrap(), "shared\n");
}

/// The read calls of a task's supervisor in two seconds.
fn reads_of_the_supervisor(lab: &Lab, script: &str) -> u64 {
    let task = lab.task().start_sh(script);
    task.wait_for("begun");
    let reads = || {
        let counters = std::fs::read_to_string(format!("/proc/{}/io", task.pid())).unwrap();
        counters.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_secs(1));
    let before = reads();
    std::thread::sleep(Duration::from_secs(2));
    let count = reads() - before;
    task.signal(Signal::TERM);
    task.finish();
    count
}

/// To find a sandbox's netlink sockets, the kernel walks those of all sandboxes.
#[test]
fn a_look_at_an_idle_sandbox_is_one_short_read() {
    let lab = Lab::new();
    let idle = reads_of_the_supervisor(&lab, "echo begun; sleep 60");
    let busy = reads_of_the_supervisor(&lab, "echo begun; while :; do sleep 0.01; done");
    assert!(idle < 45, "{idle} reads");
    assert!(busy > 55, "{busy} reads");
}
