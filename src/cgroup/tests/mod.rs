//! Real groups below those of this process.

mod attacks;
mod layouts;
mod plan;
mod support;

use super::controller::Controller;
use super::group::DeviceControl;
use super::*;
use crate::cgroup::{Hierarchy, Purpose};
use crate::spec::resources::{Memory, Pids, Resources};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use support::{Child, TestGroups, needs_root};

fn megabytes(count: i64) -> i64 {
    count << 20
}

fn memory(limit: i64) -> Resources {
    let memory = Memory { limit: Some(limit), swap: Some(limit), ..Memory::default() };
    Resources { memory, ..Resources::default() }
}

#[test]
fn memory_hog_is_killed_and_counted() {
    let Some(test) = TestGroups::new("hog") else { return };
    let group = test.create(Purpose::Task, &memory(megabytes(32)));
    let notifier = group.oom_notifier().unwrap().unwrap();
    assert!(!support::has_event(&notifier, Duration::ZERO), "the notifier announces before an event");
    let mut hog = Child::spawn(&group, "exec tail /dev/zero");
    assert_eq!(hog.wait(), "signal 9");
    assert!(support::has_event(&notifier, Duration::from_secs(5)), "the notifier announces nothing");
    // v2 may announce some milliseconds later.
    support::until("the notifier is cleared", || {
        notifier.clear();
        !support::has_event(&notifier, Duration::ZERO)
    });
    let evidence = group.evidence().unwrap();
    assert_eq!(evidence.oom_kills, 1, "{evidence:?}");
    assert!(evidence.oom_events >= 1, "{evidence:?}");
    let usage = group.usage().unwrap();
    assert!((megabytes(16)..=megabytes(32)).contains(&(usage.memory_peak.unwrap() as i64)), "{usage:?}");
}

#[test]
fn pids_limit_refuses_forks_and_counts_them() {
    let Some(test) = TestGroups::new("pids") else { return };
    let limits = Resources { pids: Pids { limit: Some(3) }, ..Resources::default() };
    let group = test.create(Purpose::Task, &limits);
    assert_eq!(group.evidence().unwrap().pids_max_hits, 0);
    let mut shell = Child::spawn(&group, "sleep 60 & sleep 60 & sleep 60 & wait");
    assert_ne!(shell.wait(), "exit 0");
    assert!(group.evidence().unwrap().pids_max_hits >= 1);
    assert_eq!(group.usage().unwrap().pids_peak, Some(3));
    group.kill().unwrap();
}

#[test]
fn fork_storm_is_killed_to_the_last_process() {
    let Some(test) = TestGroups::new("storm") else { return };
    let limits = Resources { pids: Pids { limit: Some(200) }, ..Resources::default() };
    let group = test.create(Purpose::Task, &limits);
    let mut storm = Child::spawn(&group, "while :; do (while :; do sleep 1 & done) & done");
    support::until("the storm rages", || group.processes().unwrap().len() > 50);
    group.kill().unwrap();
    assert!(group.wait_until_empty(Duration::from_secs(10)).unwrap());
    storm.wait();
    assert_eq!(group.processes().unwrap(), Vec::<i32>::new());
    group.remove().map_err(crate::error::Error::from).unwrap();
}

#[test]
fn removal_leaves_no_group_and_names_a_busy_one() {
    let Some(test) = TestGroups::new("remove") else { return };
    let group = test.create(Purpose::Task, &memory(megabytes(64)));
    let record = group.record();
    let paths: Vec<_> = record.paths().map(|(_, path)| path.to_path_buf()).collect();
    for path in &paths {
        std::fs::create_dir(path.join("below")).unwrap();
    }
    let mut child = Child::spawn(&group, "exec sleep 60");
    let left = group.remove().unwrap_err();
    assert_eq!(left.paths.len(), record.paths().count());
    let error = crate::error::Error::from(left);
    assert_eq!(error.errno(), Some(libc::EBUSY));
    group.kill().unwrap();
    child.wait();
    group.remove().map_err(crate::error::Error::from).unwrap();
    group.remove().map_err(crate::error::Error::from).unwrap();
    assert!(paths.iter().all(|path| !path.exists()));
    assert!(Cgroup::open(&record).unwrap().is_gone());
}

#[test]
fn group_removed_by_another_program_is_empty() {
    let Some(test) = TestGroups::new("removed") else { return };
    let group = test.create(Purpose::Container, &Resources::default());
    for (_, path) in group.record().paths() {
        std::fs::remove_dir(path).unwrap();
    }
    group.kill().unwrap();
    group.signal(rustix::process::Signal::TERM).unwrap();
    group.thaw().unwrap();
    assert!(group.wait_until_empty(Duration::ZERO).unwrap());
    assert_eq!(group.processes().unwrap(), Vec::<i32>::new());
    group.remove().map_err(crate::error::Error::from).unwrap();
}

#[test]
fn frozen_container_uses_no_time_until_thawed() {
    let Some(test) = TestGroups::new("freeze") else { return };
    let group = test.create(Purpose::Task, &Resources::default());
    let mut child = Child::spawn(&group, "while :; do :; done");
    support::until("it runs", || group.usage().unwrap().cpu_total_ns.unwrap() > 1_000_000);
    assert!(!group.is_frozen().unwrap());
    group.freeze().unwrap();
    assert!(group.is_frozen().unwrap());
    // The kernel counts the last slice a moment later.
    std::thread::sleep(Duration::from_millis(100));
    let before = group.usage().unwrap().cpu_total_ns;
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(group.usage().unwrap().cpu_total_ns, before);
    group.thaw().unwrap();
    support::until("it runs again", || group.usage().unwrap().cpu_total_ns > before);
    group.freeze().unwrap();
    group.kill().unwrap();
    assert_eq!(child.wait(), "signal 9", "a frozen container can be killed");
}

#[test]
fn cpu_quota_throttles() {
    let Some(test) = TestGroups::new("cpu") else { return };
    let limits: Resources = serde_json::from_str(r#"{"cpu": {"quota": 5000, "period": 50000}}"#).unwrap();
    let group = test.create(Purpose::Task, &limits);
    let mut child = Child::spawn(&group, "while :; do :; done");
    let start = std::time::Instant::now();
    support::until("it is throttled", || group.usage().unwrap().throttled_periods.unwrap() > 5);
    group.kill().unwrap();
    child.wait();
    let usage = group.usage().unwrap();
    assert!(usage.throttled_ns.unwrap() > 0, "{usage:?}");
    // A tenth of the time, and one period at each end.
    let most = start.elapsed() / 10 + Duration::from_millis(50);
    assert!(Duration::from_nanos(usage.cpu_total_ns.unwrap()) < most, "{usage:?} within {:?}", start.elapsed());
}

#[test]
fn failed_create_leaves_no_group() {
    let Some(test) = TestGroups::new("undo") else { return };
    let limits: Resources = serde_json::from_str(r#"{"memory": {"limit": 67108864}, "cpu": {"quota": 1}}"#).unwrap();
    let error = test.try_create(Purpose::Task, &limits).unwrap_err();
    assert!(error.to_string().starts_with("create the container's cgroup: write `1"), "{error}");
    assert_eq!(test.left(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn task_uses_no_existing_group_and_container_only_an_empty_one() {
    let Some(test) = TestGroups::new("taken") else { return };
    let group = test.create(Purpose::Task, &Resources::default());
    let error = test.try_create(Purpose::Task, &Resources::default()).unwrap_err();
    assert_eq!(error.kind(), crate::error::Kind::Exists);
    group.remove().map_err(crate::error::Error::from).unwrap();

    if !needs_root("a container's group is below the mount point") {
        return;
    }
    let hierarchy = test.hierarchy();
    let path = CgroupPath::parse(&format!("/brig-test/{}", test.id())).unwrap();
    let create = || Cgroup::create(hierarchy, &path, Purpose::Container, &memory(megabytes(64)));
    let first = create().unwrap();
    let _removing = support::Removing(first.record());
    let second = create().unwrap();
    let mut child = Child::spawn(&second, "exec sleep 60");
    let error = create().unwrap_err().to_string();
    assert!(error.ends_with("container's cgroup is not empty: 1 process(es) found"), "{error}");
    second.kill().unwrap();
    child.wait();
    second.freeze().unwrap();
    let error = create().unwrap_err().to_string();
    assert!(error.ends_with("container's cgroup unexpectedly frozen"), "{error}");
}

#[test]
fn failed_update_restores_old_values() {
    let Some(test) = TestGroups::new("update") else { return };
    let limits: Resources = serde_json::from_str(
        r#"{"memory": {"limit": 67108864, "swap": 67108864}, "pids": {"limit": 9}, "cpu": {"quota": 50000}}"#,
    )
    .unwrap();
    let group = test.create(Purpose::Task, &limits);
    let read = |controller, file| group.group(controller).unwrap().directory.get(file).unwrap();
    let wrong: Resources =
        serde_json::from_str(r#"{"memory": {"limit": 33554432}, "pids": {"limit": 5}, "cpu": {"quota": 1}}"#).unwrap();
    assert!(group.update(&wrong).is_err());
    assert_eq!(read(Controller::Pids, "pids.max").trim(), "9");
    assert_eq!(read(Controller::Memory, support::memory_file(&group)).trim(), "67108864");
    // On v1 one of the two orders, upwards or downwards, is refused at first.
    for size in [megabytes(512), megabytes(16)] {
        group.update(&memory(size)).unwrap();
        assert_eq!(read(Controller::Memory, support::memory_file(&group)).trim(), size.to_string());
    }
    let checked: Resources = serde_json::from_str(r#"{"memory": {"limit": 1, "checkBeforeUpdate": true}}"#).unwrap();
    let mut child = Child::spawn(&group, "exec sleep 60");
    support::until("it uses memory", || group.usage().unwrap().memory_current.unwrap() > 1);
    let error = group.update(&checked).unwrap_err().to_string();
    assert!(error.contains("rejecting memory limit 1 because of the usage ("), "{error}");
    group.kill().unwrap();
    child.wait();
}

#[test]
fn record_opens_the_same_groups_and_search_finds_them() {
    let Some(test) = TestGroups::new("record") else { return };
    let group = test.create(Purpose::Task, &memory(megabytes(64)));
    let record: Record = serde_json::from_str(&serde_json::to_string(&group.record()).unwrap()).unwrap();
    let again = Cgroup::open(&record).unwrap();
    assert_eq!(again.record(), group.record());
    let mut child = Child::spawn(&group, "exec sleep 60");
    assert_eq!(again.processes().unwrap(), vec![child.id()]);
    let found = record::leftovers(test.hierarchy());
    let mine: Vec<_> = found.iter().filter(|each| each.id == test.id()).collect();
    assert_eq!(mine.len(), group.groups.len());
    assert!(mine.iter().all(|each| each.processes == 1));
    for each in mine {
        let below = each.path.join("below");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(below.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    assert!(
        record::leftovers(test.hierarchy()).iter().filter(|each| each.id == test.id()).all(|each| each.processes == 1)
    );
    again.kill().unwrap();
    child.wait();
}

#[test]
fn process_enters_by_its_join_files() {
    let Some(test) = TestGroups::new("enter") else { return };
    let group = test.create(Purpose::Task, &Resources::default());
    let v1: Vec<_> = group.groups.iter().filter(|group| !group.is_v2).collect();
    let files = group.join_files().unwrap();
    assert_eq!(files.len(), v1.len());
    for (file, group) in files.into_iter().zip(v1) {
        let mut child = std::process::Command::new("/bin/sh");
        let mut child = child.args(["-c", "echo 0 >&0; exec sleep 60"]).stdin(file).spawn().unwrap();
        let pid = child.id().to_string();
        support::until("it has entered", || group.directory.get("cgroup.procs").unwrap().trim() == pid);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(group.clone_into().is_some(), group.v2().is_some());
}

#[test]
fn devices_are_denied_on_v1_and_v2() {
    if !needs_root("device rules") {
        return;
    }
    let rules = |text: &str| -> Resources { serde_json::from_str(&format!(r#"{{"devices": [{text}]}}"#)).unwrap() };
    let null = r#"{"allow": false}, {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"}"#;
    let zero = r#"{"allow": false}, {"allow": true, "type": "c", "major": 1, "minor": 5, "access": "r"}"#;
    for with_v1 in [true, false] {
        let Some(mut test) = TestGroups::new("devices") else { return };
        if !with_v1 {
            test.without_v1(Controller::Devices);
        }
        if !test.has_devices(with_v1) {
            support::skip(&format!("the device rules of {}: not mounted here", if with_v1 { "v1" } else { "v2" }));
            continue;
        }
        let group = test.create(Purpose::Container, &rules(null));
        assert_eq!(group.devices(), DeviceControl::InForce);
        // The bits of the exit status: null can be opened, zero can be opened, a node can be made.
        let probe = |path: &str| {
            format!(
                "2>/dev/null; n=0; (: < /dev/null) && n=$((n+1)); (: < /dev/zero) && n=$((n+2)); \
             mknod {path} c 1 3 && n=$((n+4)); rm -f {path}; exit $n"
            )
        };
        let node = std::env::temp_dir().join(format!("brig-node-{}", std::process::id()));
        let probe = probe(node.to_str().unwrap());
        assert_eq!(Child::spawn(&group, &probe).wait(), "exit 1", "v1: {with_v1}");
        group.update(&rules(zero)).unwrap();
        assert_eq!(Child::spawn(&group, &probe).wait(), "exit 2", "v1: {with_v1}");
        group.update(&rules(r#"{"allow": true, "access": "rwm"}"#)).unwrap();
        assert_eq!(Child::spawn(&group, &probe).wait(), "exit 7", "v1: {with_v1}");
        if !with_v1 {
            let filters = crate::sys::bpf::device_filters(group.clone_into().unwrap()).unwrap();
            assert_eq!(filters.len(), 1, "an update leaves the old filter in force");
        }
    }
}

#[test]
fn statistics_are_complete() {
    let Some(test) = TestGroups::new("stats") else { return };
    let group = test.create(Purpose::Container, &memory(megabytes(64)));
    let mut child = Child::spawn(&group, "x=$(head -c 4000000 /dev/zero | tr '\\0' x); while :; do :; done");
    support::until("it runs", || {
        let stats = group.stats();
        // Before its pipeline the shell is alone too.
        stats.memory.usage.usage > 4_000_000 && stats.cpu.usage.user > 0 && stats.pids.current == 1
    });
    let stats = group.stats();
    assert_eq!(stats.memory.usage.limit, 64 << 20);
    assert!(stats.memory.usage.usage > 0 && !stats.memory.raw.is_empty(), "{stats:?}");
    assert_eq!((stats.pids.current, stats.pids.limit), (1, 0));
    assert!(stats.cpu.usage.total >= 10_000_000, "{stats:?}");
    let has_v1 = |controller| group.group(controller).is_some_and(|group| !group.is_v2);
    assert_eq!(!stats.cpuset.cpus.is_empty(), has_v1(Controller::Cpuset), "{stats:?}");
    let percpu: u64 = stats.cpu.usage.percpu.iter().sum();
    let is_counted = percpu > 0 && !stats.cpu.usage.percpu_user.is_empty();
    assert_eq!(is_counted, has_v1(Controller::Cpuacct), "{stats:?}");
    group.kill().unwrap();
    child.wait();
}

#[test]
fn update_adds_missing_controllers() {
    let Some(test) = TestGroups::new("widen") else { return };
    let mut group = test.create(Purpose::Task, &Resources::default());
    let mut child = Child::spawn(&group, "exec sleep 60");
    let limits: Resources = serde_json::from_str(r#"{"cpu": {"shares": 512}}"#).unwrap();
    assert!(group.update(&limits).unwrap_err().to_string().contains("the container has no group of the controller"));
    group.widen(test.hierarchy(), &CgroupPath::task(test.id()).unwrap(), &limits).unwrap();
    group.update(&limits).unwrap();
    let cpu = group.group(Controller::Cpu).unwrap();
    assert_eq!(
        cpu.directory.get(if cpu.is_v2 { "cpu.weight" } else { "cpu.shares" }).unwrap().trim(),
        if cpu.is_v2 { "59" } else { "512" }
    );
    assert_eq!(cpu.directory.get("cgroup.procs").unwrap().trim(), child.id().to_string());
    group.kill().unwrap();
    child.wait();
    group.remove().map_err(crate::error::Error::from).unwrap();
}

#[test]
fn process_joins_a_group_below_and_never_a_sibling() {
    let Some(test) = TestGroups::new("below") else { return };
    let group = test.create(Purpose::Container, &Resources::default());
    let paths: Vec<_> = group.record().paths().map(|(_, path)| path.to_path_buf()).collect();
    paths.iter().for_each(|path| support::make_group(&path.join("inner")));
    let below = group.below(&["/inner"]).unwrap();
    let mut child = Child::spawn(&below, "exec sleep 60");
    for path in &paths {
        assert_eq!(std::fs::read_to_string(path.join("inner/cgroup.procs")).unwrap().trim(), child.id().to_string());
    }
    assert_eq!(group.processes().unwrap(), vec![child.id()]);
    let again = group.of_process(child.id()).unwrap();
    assert_eq!(again.record(), below.record());
    // It may move itself into a group whose name is not UTF-8.
    let odd = paths[0].join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    support::make_group(&odd);
    std::fs::write(odd.join("cgroup.procs"), child.id().to_string()).unwrap();
    assert_eq!(group.processes().unwrap(), vec![child.id()]);
    let again = group.of_process(child.id()).unwrap();
    assert!(again.record().paths().any(|(_, path)| path == odd));
    let beside = format!("../{}x", test.id());
    assert_eq!(group.below(&[&beside]).unwrap_err().to_string(), format!("bad sub cgroup path: {beside}"));
    assert_eq!(group.below(&["/outer"]).unwrap_err().errno(), Some(libc::ENOENT));
    let outside = group.of_process(std::process::id() as i32).unwrap_err().to_string();
    assert!(outside.ends_with(": it is outside the container's group"), "{outside}");
    group.kill().unwrap();
    child.wait();
    group.remove().map_err(crate::error::Error::from).unwrap();
}

// The numbers of docs/decisions/0003.
//
// `strace -f -c` on this test with `BRIG_ROUNDS=1` and with `BRIG_ROUNDS=101` gives the calls of one round.

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
