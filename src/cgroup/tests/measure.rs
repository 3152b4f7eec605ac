//! The numbers of docs/decisions/0003.
//!
//! `strace -f -c` on this test with `BRIG_ROUNDS=1` and with `BRIG_ROUNDS=101` gives the calls of one round.

use super::support::TestGroups;
use crate::cgroup::{Hierarchy, Purpose};
use crate::spec::resources::Resources;
use std::time::{Duration, Instant};

struct Step(&'static str, Duration);

fn measure<T>(steps: &mut Vec<Step>, name: &'static str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let time = start.elapsed();
    match steps.iter_mut().find(|step| step.0 == name) {
        Some(step) => step.1 = step.1.min(time),
        None => steps.push(Step(name, time)),
    }
    result
}

#[test]
#[ignore = "it measures: run it alone, from an optimised build"]
fn measure_groups() {
    let rounds = std::env::var("BRIG_ROUNDS").map_or(200, |text| text.parse().unwrap());
    let Some(groups) = TestGroups::new("measure") else { return };
    let limits: Resources = serde_json::from_str(
        r#"{"memory": {"limit": 268435456, "swap": 268435456}, "pids": {"limit": 64}, "cpu": {"quota": 50000}}"#,
    )
    .unwrap();
    let mut steps = Vec::new();
    for _ in 0..rounds {
        measure(&mut steps, "probe", || Hierarchy::probe().unwrap());
        measure(&mut steps, "check", || groups.hierarchy().refusals(Purpose::Task, &limits).unwrap());
        let group = measure(&mut steps, "create", || groups.create(Purpose::Task, &limits));
        let notifier = measure(&mut steps, "watch", || group.oom_notifier().unwrap());
        measure(&mut steps, "usage", || group.usage().unwrap());
        measure(&mut steps, "evidence", || group.evidence().unwrap());
        measure(&mut steps, "kill", || group.kill().unwrap());
        drop(notifier);
        measure(&mut steps, "remove", || group.remove().map_err(crate::error::Error::from).unwrap());
    }
    for Step(name, time) in &steps {
        println!("{name:>10} {:>6} us", time.as_micros());
    }
    println!("{:>10} {:>6} us", "all", steps.iter().map(|step| step.1.as_micros()).sum::<u128>());
}
