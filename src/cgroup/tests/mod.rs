//! Real groups on this machine: each test makes its own below the groups that this process is in, and leaves none.

mod attacks;
mod layouts;
mod plan;
mod support;

use super::controller::Controller;
use super::group::DeviceControl;
use super::*;
use crate::spec::resources::{Memory, Pids, Resources};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use support::{Child, Place, needs_root};

fn megabytes(count: i64) -> i64 {
    count << 20
}

fn memory(limit: i64) -> Resources {
    let memory = Memory { limit: Some(limit), swap: Some(limit), ..Memory::default() };
    Resources { memory, ..Resources::default() }
}

#[test]
fn a_memory_hog_is_killed_and_counted() {
    let Some(place) = Place::new("hog") else { return };
    let group = place.create(Purpose::Task, &memory(megabytes(32)));
    let notifier = group.oom_notifier().unwrap().unwrap();
    assert!(!support::is_readable(&notifier, Duration::ZERO), "the notifier speaks before anything happened");
    // One process, so that one kill is all that there can be.
    let mut hog = Child::spawn(&group, "exec tail /dev/zero");
    assert_eq!(hog.wait(), "signal 9");
    assert!(support::is_readable(&notifier, Duration::from_secs(5)), "the notifier is silent");
    let evidence = group.evidence().unwrap();
    assert_eq!(evidence.oom_kills, 1, "{evidence:?}");
    assert!(evidence.oom_events >= 1, "{evidence:?}");
    let usage = group.usage().unwrap();
    assert!((megabytes(16)..=megabytes(32)).contains(&(usage.memory_peak.unwrap() as i64)), "{usage:?}");
}

#[test]
fn a_limit_of_tasks_refuses_forks_and_counts_them() {
    let Some(place) = Place::new("pids") else { return };
    let limits = Resources { pids: Pids { limit: Some(3) }, ..Resources::default() };
    let group = place.create(Purpose::Task, &limits);
    assert_eq!(group.evidence().unwrap().pids_max_hits, 0);
    // The shell and two sleepers fit; the third sleeper does not.
    let mut shell = Child::spawn(&group, "sleep 60 & sleep 60 & sleep 60 & wait");
    assert_ne!(shell.wait(), "exit 0");
    assert!(group.evidence().unwrap().pids_max_hits >= 1);
    assert_eq!(group.usage().unwrap().pids_peak, Some(3));
    group.kill().unwrap();
}

#[test]
fn a_storm_of_forks_is_killed_to_the_last_process() {
    let Some(place) = Place::new("storm") else { return };
    let limits = Resources { pids: Pids { limit: Some(200) }, ..Resources::default() };
    let group = place.create(Purpose::Task, &limits);
    let mut storm = Child::spawn(&group, "while :; do (while :; do sleep 1 & done) & done");
    support::until("the storm rages", || group.processes().unwrap().len() > 50);
    group.kill().unwrap();
    assert!(group.wait_until_empty(Duration::from_secs(10)).unwrap());
    storm.wait();
    assert_eq!(group.processes().unwrap(), Vec::<i32>::new());
    group.remove().map_err(crate::error::Error::from).unwrap();
}

#[test]
fn a_removed_group_leaves_nothing_and_a_busy_one_is_named() {
    let Some(place) = Place::new("remove") else { return };
    let group = place.create(Purpose::Task, &memory(megabytes(64)));
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
fn a_group_that_another_manager_removed_is_empty() {
    let Some(place) = Place::new("removed") else { return };
    let group = place.create(Purpose::Container, &Resources::default());
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
fn a_frozen_container_stands_still_until_it_is_thawed() {
    let Some(place) = Place::new("freeze") else { return };
    let group = place.create(Purpose::Task, &Resources::default());
    let mut child = Child::spawn(&group, "while :; do :; done");
    support::until("it runs", || group.usage().unwrap().cpu_total_ns.unwrap() > 1_000_000);
    assert!(!group.is_frozen().unwrap());
    group.freeze().unwrap();
    assert!(group.is_frozen().unwrap());
    // What it ran before it stood still is counted when it leaves the processor, a moment later.
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
fn a_quota_of_processor_time_throttles() {
    let Some(place) = Place::new("cpu") else { return };
    let limits: Resources = serde_json::from_str(r#"{"cpu": {"quota": 5000, "period": 50000}}"#).unwrap();
    let group = place.create(Purpose::Task, &limits);
    let mut child = Child::spawn(&group, "while :; do :; done");
    let start = std::time::Instant::now();
    support::until("it is throttled", || group.usage().unwrap().throttled_periods.unwrap() > 5);
    group.kill().unwrap();
    child.wait();
    let usage = group.usage().unwrap();
    assert!(usage.throttled_ns.unwrap() > 0, "{usage:?}");
    // A tenth of the time, and one period at either end.
    let most = start.elapsed() / 10 + Duration::from_millis(50);
    assert!(Duration::from_nanos(usage.cpu_total_ns.unwrap()) < most, "{usage:?} within {:?}", start.elapsed());
}

#[test]
fn what_fails_half_way_leaves_nothing() {
    let Some(place) = Place::new("undo") else { return };
    let limits: Resources = serde_json::from_str(r#"{"memory": {"limit": 67108864}, "cpu": {"quota": 1}}"#).unwrap();
    let error = place.try_create(Purpose::Task, &limits).unwrap_err();
    assert!(error.to_string().starts_with("create the container's cgroup: write `1"), "{error}");
    assert_eq!(place.left(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_task_never_takes_over_a_group_and_a_container_only_an_empty_one() {
    let Some(place) = Place::new("taken") else { return };
    let group = place.create(Purpose::Task, &Resources::default());
    let error = place.try_create(Purpose::Task, &Resources::default()).unwrap_err();
    assert_eq!(error.kind(), crate::error::Kind::Exists);
    group.remove().map_err(crate::error::Error::from).unwrap();

    if !needs_root("a container's group is below the mount point") {
        return;
    }
    let hierarchy = place.hierarchy();
    let path = CgroupPath::parse(&format!("/brig-test/{}", place.id())).unwrap();
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
fn an_update_that_fails_gives_the_old_values_back() {
    let Some(place) = Place::new("update") else { return };
    let limits: Resources = serde_json::from_str(
        r#"{"memory": {"limit": 67108864, "swap": 67108864}, "pids": {"limit": 9}, "cpu": {"quota": 50000}}"#,
    )
    .unwrap();
    let group = place.create(Purpose::Task, &limits);
    let read = |controller, file| group.group(controller).unwrap().directory.get(file).unwrap();
    let wrong: Resources =
        serde_json::from_str(r#"{"memory": {"limit": 33554432}, "pids": {"limit": 5}, "cpu": {"quota": 1}}"#).unwrap();
    assert!(group.update(&wrong).is_err());
    assert_eq!(read(Controller::Pids, "pids.max").trim(), "9");
    assert_eq!(read(Controller::Memory, support::memory_file(&group)).trim(), "67108864");
    // Both at once, upwards and downwards: on v1 one of the two orders is refused at first.
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
fn a_record_opens_the_same_groups_and_finds_strays() {
    let Some(place) = Place::new("record") else { return };
    let group = place.create(Purpose::Task, &memory(megabytes(64)));
    let record: Record = serde_json::from_str(&serde_json::to_string(&group.record()).unwrap()).unwrap();
    let again = Cgroup::open(&record).unwrap();
    assert_eq!(again.record(), group.record());
    let mut child = Child::spawn(&group, "exec sleep 60");
    assert_eq!(again.processes().unwrap(), vec![child.id()]);
    let found = record::leftovers(place.hierarchy());
    let mine: Vec<_> = found.iter().filter(|each| each.id == place.id()).collect();
    assert_eq!(mine.len(), group.groups.len());
    assert!(mine.iter().all(|each| each.processes == 1));
    again.kill().unwrap();
    child.wait();
}

#[test]
fn a_process_enters_by_itself_through_the_files_that_it_is_given() {
    let Some(place) = Place::new("enter") else { return };
    let group = place.create(Purpose::Task, &Resources::default());
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
    // On v2 it is born inside.
    assert_eq!(group.clone_into().is_some(), group.v2().is_some());
}

#[test]
fn devices_are_denied_by_the_list_of_v1_and_by_the_filter_of_v2() {
    if !needs_root("device rules") {
        return;
    }
    let rules = |text: &str| -> Resources { serde_json::from_str(&format!(r#"{{"devices": [{text}]}}"#)).unwrap() };
    let null = r#"{"allow": false}, {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"}"#;
    let zero = r#"{"allow": false}, {"allow": true, "type": "c", "major": 1, "minor": 5, "access": "r"}"#;
    for with_v1 in [true, false] {
        let Some(mut place) = Place::new("devices") else { return };
        if !with_v1 {
            place.without_v1(Controller::Devices);
        }
        if !place.has_devices(with_v1) {
            support::skip(&format!("the device rules of {}: not mounted here", if with_v1 { "v1" } else { "v2" }));
            continue;
        }
        let group = place.create(Purpose::Container, &rules(null));
        assert_eq!(group.devices(), DeviceControl::InForce);
        // Each is a bit of the exit status: null may be opened, zero may not, and no node may be made of either.
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
fn the_statistics_of_a_container_that_is_observed_are_complete() {
    let Some(place) = Place::new("stats") else { return };
    let group = place.create(Purpose::Container, &memory(megabytes(64)));
    let mut child = Child::spawn(&group, "x=$(head -c 4000000 /dev/zero | tr '\\0' x); while :; do :; done");
    support::until("it runs", || {
        let stats = group.stats();
        // The shell is alone before its pipeline, too, but has no four megabytes then.
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
fn a_group_gets_the_controllers_that_an_update_needs() {
    let Some(place) = Place::new("widen") else { return };
    let mut group = place.create(Purpose::Task, &Resources::default());
    let mut child = Child::spawn(&group, "exec sleep 60");
    let limits: Resources = serde_json::from_str(r#"{"cpu": {"shares": 512}}"#).unwrap();
    assert!(group.update(&limits).unwrap_err().to_string().contains("the container has no group of the controller"));
    group.widen(place.hierarchy(), &CgroupPath::task(place.id()).unwrap(), &limits).unwrap();
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
fn a_process_joins_a_group_below_and_never_one_beside() {
    let Some(place) = Place::new("below") else { return };
    let group = place.create(Purpose::Container, &Resources::default());
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
    // It may have moved itself into one whose name is no text.
    let odd = paths[0].join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    support::make_group(&odd);
    std::fs::write(odd.join("cgroup.procs"), child.id().to_string()).unwrap();
    assert_eq!(group.processes().unwrap(), vec![child.id()]);
    let again = group.of_process(child.id()).unwrap();
    assert!(again.record().paths().any(|(_, path)| path == odd));
    let beside = format!("../{}x", place.id());
    assert_eq!(group.below(&[&beside]).unwrap_err().to_string(), format!("bad sub cgroup path: {beside}"));
    assert_eq!(group.below(&["/outer"]).unwrap_err().errno(), Some(libc::ENOENT));
    let outside = group.of_process(std::process::id() as i32).unwrap_err().to_string();
    assert!(outside.ends_with(": it is outside the container's group"), "{outside}");
    group.kill().unwrap();
    child.wait();
    group.remove().map_err(crate::error::Error::from).unwrap();
}
