//! Each attack by a hostile path or container succeeds without its guard.

use super::support::{self, Child, TestGroups, needs_root};
use crate::cgroup::*;
use crate::spec::resources::Resources;

#[test]
fn path_with_dots_makes_no_group_elsewhere() {
    if !needs_root("a container's group is below the mount point") {
        return;
    }
    let Some(test) = TestGroups::new("dots") else { return };
    let _group = test.create(Purpose::Container, &Resources::default());
    let outside = format!("{}-outside", test.id());
    let path = format!("/{PREFIX}{}/../{PREFIX}{outside}", test.id(), PREFIX = path::PREFIX);
    let made = CgroupPath::parse(&path)
        .and_then(|path| Cgroup::create(test.hierarchy(), &path, Purpose::Container, &Resources::default()));
    if let Ok(made) = &made {
        // If this process is not in a hierarchy's root group, the path begins with a group of the attack.
        let name = format!("{}{}", path::PREFIX, test.id());
        let begun: Vec<_> = made.record().paths().map(|(_, path)| path.with_file_name(&name)).collect();
        made.remove().map_err(crate::error::Error::from).unwrap();
        begun.iter().filter(|path| path.exists()).for_each(|path| std::fs::remove_dir(path).unwrap());
    }
    assert!(made.is_err(), "a group was made beside the one that the path begins with");
}

#[test]
fn exec_joins_no_sibling_group() {
    let Some(test) = TestGroups::new("beside") else { return };
    let group = test.create(Purpose::Container, &Resources::default());
    let name = group.main().unwrap().directory.path().file_name().unwrap().to_str().unwrap().to_owned();
    // A comparison of strings would accept this sibling.
    let siblings: Vec<_> = group.record().paths().map(|(_, path)| path.with_file_name(format!("{name}-2"))).collect();
    siblings.iter().for_each(|sibling| support::make_group(sibling));
    let below = group.below(&[&format!("/../{name}-2")]);
    let joined = below.as_ref().ok().map(|below| {
        let mut child = Child::spawn(below, "exec sleep 60");
        let joined = std::fs::read_to_string(siblings[0].join("cgroup.procs")).unwrap();
        below.kill().unwrap();
        child.wait();
        joined
    });
    siblings.iter().for_each(|sibling| directory::remove(sibling, directory::REMOVE_TRIES).unwrap());
    assert_eq!(joined, None, "a process joined the group of another container");
}

/// A container that may write its groups could otherwise keep them for ever.
#[test]
fn groups_deeper_than_a_path_are_listed_and_removed() {
    let Some(test) = TestGroups::new("deep") else { return };
    let group = test.create(Purpose::Container, &Resources::default());
    let name = "x".repeat(255);
    let mut deepest = group.main().unwrap().directory.child(".").unwrap();
    for _ in 0..20 {
        rustix::fs::mkdirat(deepest.fd(), &name, 0o755.into()).unwrap();
        deepest = deepest.child(&name).unwrap();
    }
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    deepest.write("cgroup.procs", &child.id().to_string()).unwrap();
    assert_eq!(group.processes().unwrap(), [child.id() as i32]);
    child.kill().unwrap();
    child.wait().unwrap();
    group.remove().map_err(crate::error::Error::from).unwrap();
    assert!(!group.main().unwrap().directory.path().exists());
}

#[cfg(feature = "weakened")]
const ATTACKS: &[(&str, &str)] = &[
    ("cgroup-path", "attacks::path_with_dots_makes_no_group_elsewhere"),
    ("cgroup-below", "attacks::exec_joins_no_sibling_group"),
    ("cgroup-devices", "devices_are_denied_on_v1_and_v2"),
    ("cgroup-unused", "task_uses_no_existing_group_and_container_only_an_empty_one"),
];

#[cfg(feature = "weakened")]
#[test]
fn every_attack_succeeds_without_its_guard() {
    if !super::support::is_first_run() || !needs_root("the attacks on groups") {
        return;
    }
    let passes = |test: &str, guard: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("cgroup::tests::{test}")]).env_remove("BRIG_WEAKEN");
        command.envs(guard.map(|guard| ("BRIG_WEAKEN", guard)));
        let output = command.output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"), "{test} is not there");
        output.status.success()
    };
    for (guard, test) in ATTACKS {
        assert!(passes(test, None), "{test} fails with all guards");
        assert!(!passes(test, Some(guard)), "{test} passes without {guard}");
    }
}
