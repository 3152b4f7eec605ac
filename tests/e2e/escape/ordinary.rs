//! Without root: the protections of an ordinary user, and brig inside of another container.

use super::{WITHOUT_GROUP, answer, attacker, executable, task};
use crate::support::{Lab, skip};
use std::process::Command;

#[test]
fn a_missing_group_is_refused_with_all_that_cannot_be_enforced() {
    let Some(lab) = Lab::user() else { return };
    let run = lab.task().plain().sh("true");
    if run.status == Some(0) {
        return skip("this user has a group, so that nothing is missing");
    }
    run.refused(125, &["`memory`", "`pids`", "`cpus`", "`swap`", "`cpu_time`"]);
    // The hint is the fix, word for word.
    let flag = run.stderr.lines().find_map(|line| line.split_once("--allow-degraded ")).unwrap().1.trim().to_owned();
    lab.task().args(["--allow-degraded", &flag]).sh("true").ended_as("succeeded", 0);
    // One of them is not enough, and the error names the rest.
    lab.task()
        .plain()
        .args(["--allow-degraded", "memory,pids"])
        .sh("true")
        .refused(125, &["`cpus`", "`swap`", "`cpu_time`"]);
}

#[test]
fn what_is_missing_is_in_the_receipt() {
    let Some(lab) = Lab::user() else { return };
    let receipt = lab.task().args(["--allow-degraded", WITHOUT_GROUP]).sh("true").receipt();
    assert_eq!(receipt["guarantee"], "rootless");
    let names: Vec<_> =
        receipt["degraded"].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap()).collect();
    if names.is_empty() {
        return skip("this user has a group, so that nothing is missing");
    }
    for name in WITHOUT_GROUP.split(',') {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[test]
fn a_limit_that_may_be_missing_holds_where_it_can() {
    let Some(lab) = Lab::root() else { return };
    let hog = "perl -e '$x = q(x) x (1 << 20); push @kept, $x . rand while 1'";
    let run = lab.task().args(["--memory", "64M", "--allow-degraded", WITHOUT_GROUP]).sh(hog);
    run.ended_as("memory", 137);
    assert_eq!(run.receipt()["degraded"], serde_json::json!([]), "{run:#?}");
}

#[test]
fn an_ordinary_user_is_one_id_and_no_group_inside() {
    let Some(lab) = Lab::user() else { return };
    let run = task(&lab).sh("tr -s ' ' < /proc/self/uid_map; cat /proc/self/setgroups; id -u; id -G");
    let own = rustix::process::geteuid().as_raw();
    let lines: Vec<_> = run.stderr.lines().map(str::trim).collect();
    assert_eq!(lines[0], format!("1000 {own} 1"), "{run:#?}");
    assert_eq!(lines[1..3], ["deny", "1000"], "{run:#?}");
}

#[test]
fn a_folder_can_be_changed_in_every_way_in_a_layer_in_memory() {
    let lab = Lab::new();
    for (name, content) in [("d/one", "1"), ("d/two", "2"), ("kept", "k"), ("gone", "g")] {
        lab.file(&format!("work/{name}"), content);
    }
    let work = lab.path().join("work");
    let script = "rm gone && rm -r d && mkdir d && echo new > d/three && mv kept moved && ls -R | tr '\\n' ' ' && echo fine > gone && cat gone moved";
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).sh(script);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with(".: d moved  ./d: three fine\nk"), "{run:#?}");
    assert_eq!(std::fs::read_to_string(work.join("d/one")).unwrap(), "1");
}

#[test]
fn marks_of_overlayfs_in_a_folder_show_nothing_else() {
    // For an ordinary user overlayfs reads its marks from user.* attributes, which any user can set on files of a
    // folder.
    let lab = Lab::new();
    lab.file("work/secret/inside", "inside");
    let work = lab.path().join("work");
    std::fs::create_dir(work.join("door")).unwrap();
    let value = b"/../../../../etc";
    for name in ["user.overlay.redirect", "user.overlay.metacopy", "user.overlay.origin"] {
        // A file system without such attributes cannot be used for this attack either.
        let _ = rustix::fs::setxattr(work.join("door"), name, value, rustix::fs::XattrFlags::empty());
    }
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).sh("ls -A door | wc -l; cat secret/inside");
    assert!(run.stderr.starts_with("0\ninside"), "{run:#?}");
}

#[test]
fn without_a_group_a_fork_bomb_still_ends() {
    let Some(lab) = Lab::user() else { return };
    let script = "use POSIX; for (1 .. 200) { $pid = fork; if (!defined $pid) { print qq(refused after $_\\n); last } if (!$pid) { sleep 9; POSIX::_exit(0) } }";
    let run = lab
        .task()
        .args(["--pids", "30", "--wall", "20s", "--allow-degraded", WITHOUT_GROUP])
        .run(["perl", "-e", script]);
    assert!(run.stderr.contains("refused after") || run.hit("pids"), "{run:#?}");
}

#[test]
fn brig_inside_a_sandbox_of_brig_is_refused_in_one_line() {
    let lab = Lab::new();
    let program = task(&lab).command().get_program().to_owned();
    let inner = lab.file("work/brig", std::fs::read(program).unwrap());
    executable(&inner, 0o755);
    let work = inner.parent().unwrap();
    let run = task(&lab)
        .plain()
        .args(["--dir".as_ref(), work.as_os_str()])
        .sh("./brig task run --store /tmp/store --empty -- true");
    run.refused(125, &["seccomp filter around us refuses new namespaces"]);
}

#[test]
fn brig_as_the_root_of_another_user_namespace_is_an_ordinary_user_and_says_so() {
    let lab = Lab::new();
    let work = attacker(&lab);
    let command = lab.task().args(["--allow-degraded", WITHOUT_GROUP, "--dir"]).args([&work]).command_for([
        "./attacker",
        "chmod",
        "/dev/null",
        "0600",
    ]);
    let done = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    let receipt: serde_json::Value =
        serde_json::from_slice(&done.stdout).unwrap_or_else(|cause| panic!("{cause}: {done:?}"));
    assert_eq!((&receipt["guarantee"], &receipt["outcome"]), (&"nested".into(), &"succeeded".into()), "{done:?}");
    // The device nodes are the host's there; as root under `unshare` also its files.
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.starts_with("EROFS") || said.starts_with("EPERM"), "{done:?}");
}

#[test]
fn a_kernel_without_landlock_is_refused_unless_that_is_accepted() {
    let lab = Lab::new();
    // The switch hides the kernel's Landlock.
    let run = task(&lab).weakened("kernel-landlock").plain().sh("true");
    run.refused(125, &["`landlock`", "this kernel has no Landlock"]);
    let run = task(&lab).weakened("kernel-landlock").args(["--allow-degraded", "landlock"]).sh("true");
    let receipt = run.receipt();
    assert!(receipt["degraded"].as_array().unwrap().iter().any(|each| each["name"] == "landlock"), "{receipt}");
    assert_eq!(answer(&task(&lab).sh("echo in force")), "in force");
}

#[test]
fn rules_that_an_older_kernel_lacks_are_in_the_receipt() {
    let lab = Lab::new();
    let receipt = task(&lab).weakened("kernel-landlock-scopes").sh("true").succeeded().receipt();
    let degraded = receipt["degraded"].as_array().unwrap();
    let reason = degraded.iter().find(|each| each["name"] == "landlock").map(|each| each["reason"].as_str().unwrap());
    assert_eq!(reason, Some("this kernel has no rule for device ioctls, signals and abstract sockets (ABI 4)"));
}
