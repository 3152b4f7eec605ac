//! Many at once.

use crate::support::{Lab, Started};
use std::collections::HashSet;

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
