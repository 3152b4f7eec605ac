//! The same tests for an ordinary user, without a v2 tree, and in parallel.

use super::support::{self, TestGroups, needs_root};
use super::{megabytes, memory};
use crate::cgroup::controller::Controller;
use crate::cgroup::*;
use crate::spec::resources::Resources;

#[test]
fn parallel_tasks_do_not_disturb_each_other() {
    let limits: Resources = serde_json::from_str(
        r#"{"memory": {"limit": 67108864, "swap": 67108864}, "pids": {"limit": 9}, "cpu": {"quota": 50000}}"#,
    )
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let limits = &limits;
            scope.spawn(move || {
                for round in 0..20 {
                    let Some(test) = TestGroups::new(&format!("many-{thread}-{round}")) else { return };
                    // Groups of other threads come and go meanwhile.
                    assert_eq!(test.hierarchy().refusals(Purpose::Task, limits).unwrap(), Vec::new());
                    let group = test.create(Purpose::Task, limits);
                    assert_eq!(group.processes().unwrap(), Vec::<i32>::new());
                    group.usage().unwrap();
                    group.remove().map_err(crate::error::Error::from).unwrap();
                }
            });
        }
    });
}

#[test]
fn only_limits_without_a_controller_are_refused() {
    let Some(test) = TestGroups::new("refusals") else { return };
    let hierarchy = test.hierarchy();
    let limits = memory(megabytes(64));
    assert_eq!(hierarchy.refusals(Purpose::Task, &limits).unwrap(), Vec::new());
    let mut test = test;
    test.without_v1(Controller::Memory);
    test.without_v2();
    let refusals = test.hierarchy().refusals(Purpose::Task, &limits).unwrap();
    let refusal = refusals.iter().find(|each| each.limit == "memory").unwrap();
    assert_eq!(refusal.reason, "no controller `memory` is mounted");
    assert_eq!(refusal.fix, "boot with the kernel parameters cgroup_enable=memory swapaccount=1");
    let error = test.try_create(Purpose::Task, &limits).unwrap_err();
    assert_eq!(error.kind(), crate::error::Kind::LimitUnenforceable, "{error}");
    assert_eq!(test.left(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn new_owner_can_make_groups_in_a_delegated_group() {
    if !needs_root("to give a group away") {
        return;
    }
    let Some(test) = TestGroups::new("give") else { return };
    let group = test.create(Purpose::Container, &Resources::default());
    group.give_to(65534).unwrap();
    let Some(v2) = group.v2().map(|group| group.directory.path().to_path_buf()) else {
        support::skip("to give a group away: needs cgroup v2");
        return;
    };
    let try_as_owner = |path: &std::path::Path| {
        let mut command = std::process::Command::new("/bin/mkdir");
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        command.arg(path).stderr(std::process::Stdio::null()).status().unwrap().success()
    };
    assert!(try_as_owner(&v2.join("child")));
    assert!(!try_as_owner(&v2.parent().unwrap().join(format!("{}-beside", test.id()))));
    use std::os::unix::fs::MetadataExt;
    let owner = |file: &str| std::fs::metadata(v2.join(file)).unwrap().uid();
    assert_eq!((owner("cgroup.procs"), owner("cgroup.freeze")), (65534, 0));
    group.remove().map_err(crate::error::Error::from).unwrap();
}

#[test]
fn ordinary_user_passes_the_same_tests_in_delegated_groups() {
    if !support::is_first_run() || !needs_root("to give groups to a user") {
        return;
    }
    // The v2 tree of a hybrid host may be delegated too, or not.
    let is_hybrid = Hierarchy::probe().unwrap().layout() == Layout::Hybrid;
    for with_v2 in if is_hybrid { &[true, false][..] } else { &[true] } {
        let Some(test) = TestGroups::new("user") else { return };
        let group = test.create(Purpose::Container, &Resources::default());
        if *with_v2 {
            group.give_to(65534).unwrap();
        }
        // Only what systemd-run or an administrator's script would delegate.
        for group in group.groups.iter().filter(|group| !group.is_v2) {
            for file in ["", "cgroup.procs", "tasks"] {
                std::os::unix::fs::chown(group.directory.path().join(file), Some(65534), None).unwrap();
            }
        }
        let (status, output) = support::run_again(Some(&group), "user");
        assert_eq!(status, "exit 0", "{output}");
        assert!(output.contains("memory_hog_is_killed_and_counted ... ok"), "{output}");
        assert!(!output.contains("SKIP groups of"), "{output}");
    }
}

#[test]
fn same_tests_pass_without_a_v2_tree() {
    if !support::is_first_run() || Hierarchy::probe().unwrap().layout() == Layout::Unified {
        return support::skip("the legacy layout: needs v1 controllers");
    }
    let (status, output) = support::run_again(None, "legacy");
    assert_eq!(status, "exit 0", "{output}");
    assert!(output.contains("fork_storm_is_killed_to_the_last_process ... ok"), "{output}");
}
