//! More behaviour of runc, beside the real one: hooks inside the container, descriptors of a created container, sources
//! below earlier mounts.

use crate::beside::{has_runc, plain, run_by_runc, same};
use crate::support::{Done, Lab, finish, skip};
use serde_json::{Value, json};
use std::process::Command;

/// A hook that writes its variables into the container.
fn variables(env: Option<Value>) -> Value {
    let mut hook = json!({"path": "/bin/sh", "args": ["sh", "-c", "/bin/busybox env > /tmp/variables"]});
    if let Some(env) = env {
        hook["env"] = env;
    }
    json!([hook])
}

#[test]
fn start_container_hooks_inherit_the_environment_of_the_process() {
    if !has_runc() {
        return;
    }
    for env in [None, Some(Value::Null), Some(json!([])), Some(json!(["X=y", "PATH=/bin"]))] {
        let change = |lab: &mut Lab| {
            lab.config["process"]["env"] = json!(["PATH=/bin", "A=b", "C="]);
            lab.config["hooks"]["startContainer"] = variables(env.clone());
        };
        same(&format!("{env:?}"), change, "/bin/busybox sort /tmp/variables");
    }
}

#[test]
fn hooks_on_the_host_inherit_no_variable() {
    let Some(mut lab) = Lab::new() else { return };
    let seen = lab.path().join("seen");
    let line = format!("/usr/bin/env >> {}", seen.display());
    for moment in ["prestart", "createRuntime", "createContainer", "poststart", "poststop"] {
        lab.config["hooks"][moment] = json!([{"path": "/bin/sh", "args": ["sh", "-c", line]}]);
    }
    lab.config["process"]["env"] = json!(["PATH=/bin", "OF_THE_CONTAINER=1"]);
    lab.args(&["true"]);
    finish(lab.command(&["run", &lab.id]).env("OF_THE_CALLER", "1")).succeeded();
    let text = std::fs::read_to_string(seen).unwrap();
    assert_eq!(text.matches("PWD=").count(), 5, "{text}"); // the shell's own
    assert!(!text.contains("OF_THE"), "{text}");
}

#[test]
fn poststop_hooks_run_after_a_failed_create() {
    if !has_runc() {
        return;
    }
    let run = |by: fn(&Lab) -> Done, fails: bool| {
        let mut lab = Lab::new()?;
        let log = lab.path().join("log");
        let hook = |name: &str, status: u8| {
            let line = format!("echo {name} >> {}; exit {status}", log.display());
            json!([{"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin:/usr/bin"]}])
        };
        lab.config["hooks"] =
            json!({"createRuntime": hook("createRuntime", fails.into()), "poststop": hook("poststop", 0)});
        lab.args(&[if fails { "/bin/true" } else { "/missing" }]);
        let done = by(&lab);
        assert_ne!(done.status, 0, "{done:?}");
        std::fs::read_to_string(log).ok()
    };
    for fails in [true, false] {
        let Some(theirs) = run(run_by_runc, fails) else { return };
        assert_eq!(theirs, "createRuntime\npoststop\n");
        for by in [Lab::run, Lab::create] {
            assert_eq!(run(by, fails).unwrap(), theirs, "{fails}");
        }
    }
}

#[test]
fn a_created_container_holds_one_fifo() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["true"]).create().succeeded();
    let pid = lab.state()["pid"].to_string();
    let listed = finish(Command::new("find").args([&format!("/proc/{pid}/fd"), "-lname", "*exec.fifo"])).out;
    assert_eq!(listed.lines().count(), 1, "{listed}");
}

/// Gives the container a user namespace, and the root directory to its user.
fn give_users(lab: &mut Lab) {
    lab.user_namespace();
    finish(Command::new("chown").args(["-hR", "700000:700000"]).arg(lab.root(""))).succeeded();
    finish(Command::new("chmod").arg("755").arg(lab.path())).succeeded();
}

#[test]
fn a_source_below_an_earlier_mount_is_found_as_by_runc() {
    if !has_runc() {
        return;
    }
    let run = |by: fn(&Lab) -> Done, users: bool, place: &str| {
        let mut lab = Lab::new()?;
        for directory in ["source/a", "rootfs/tmp/y", "rootfs/tmp/x"] {
            std::fs::create_dir_all(lab.path().join(directory)).unwrap();
        }
        let (source, inside) = (lab.path().join("source"), lab.root(place));
        lab.mount("/tmp/y", "bind", source.to_str().unwrap(), &["bind"]);
        lab.mount("/mnt", "bind", inside.to_str().unwrap(), &["bind"]);
        lab.mount("/tmp", "tmpfs", "tmpfs", &["mode=755"]);
        lab.mount("/opt", "bind", lab.root("/tmp").to_str().unwrap(), &["bind"]);
        if users {
            give_users(&mut lab);
        }
        lab.sh("ls /mnt /opt; grep -E ' /(mnt|opt|tmp) ' /proc/self/mountinfo | sort -k 5");
        let done = by(&lab);
        Some((done.status == 0, plain(&lab, &done.out)))
    };
    for (users, place) in [(false, "/tmp/y"), (false, "/tmp/y/a"), (true, "/tmp/y"), (true, "/tmp/y/a")] {
        let (Some(ours), Some(theirs)) = (run(Lab::run, users, place), run(run_by_runc, users, place)) else { return };
        assert_eq!(ours, theirs, "users {users}, {place}: brig, then runc");
    }
}

#[test]
fn mounts_without_a_mount_namespace_are_refused_by_name() {
    // runc would mount them in the host's namespace, so it does not run beside this.
    let Some(mut lab) = Lab::new() else { return };
    for key in ["maskedPaths", "readonlyPaths"] {
        lab.config["linux"].as_object_mut().unwrap().remove(key);
    }
    lab.args(&["true"]).without("mount").run().failed_with("`mounts` need a private MNT namespace");
}

#[test]
fn a_path_that_is_covered_twice_is_mounted_once() {
    // runc 1.1 mounts it twice.
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["maskedPaths"] = json!(["/proc/keys", "/etc", "/proc//keys", "/etc/", "/etc"]);
    lab.config["linux"]["readonlyPaths"] = json!(["/bin", "/proc/sys", "/bin/.", "/proc/sys/"]);
    lab.sh("for each in /proc/keys /etc /bin /proc/sys; do grep -c \" $each \" /proc/self/mountinfo; done; wc -c < /proc/keys; ls /etc");
    assert_eq!(lab.run().succeeded().out, "1\n1\n1\n1\n0\n");
}

#[test]
fn a_read_only_file_system_is_so_itself() {
    if !has_runc() {
        return;
    }
    for (place, kind) in [("/sys", "sysfs"), ("/mnt", "proc"), ("/mnt", "mqueue"), ("/mnt", "devpts")] {
        let change = |lab: &mut Lab| {
            lab.unmount("/sys/fs/cgroup").unmount(place).mount(place, kind, kind, &["nosuid", "noexec", "nodev", "ro"]);
        };
        same(kind, change, &format!("grep ' {place} ' /proc/self/mountinfo"));
    }
}

/// Removes a test's cgroup above the container's.
struct Pod(String);

impl Drop for Pod {
    fn drop(&mut self) {
        let paths = format!("*/{}*", self.0);
        let all = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &paths, "-exec", "rmdir", "{}", ";"];
        finish(Command::new("find").args(all));
    }
}

#[test]
fn an_empty_cpuset_of_a_group_that_exists_is_filled() {
    if !has_runc() {
        return;
    }
    let cpuset = std::path::Path::new("/sys/fs/cgroup/cpuset");
    if !cpuset.join("cpuset.cpus").exists() {
        skip("needs the cgroup v1 controller cpuset");
        return;
    }
    let run = |by: fn(&Lab) -> Done| {
        let mut lab = Lab::new()?;
        let pod = Pod(format!("pod-{}", lab.id));
        std::fs::create_dir_all(cpuset.join(&pod.0).join("inner")).unwrap();
        lab.config["linux"]["cgroupsPath"] = json!(format!("/{}/inner/{}", pod.0, lab.id));
        lab.sh("grep -E 'Cpus_allowed_list|Mems_allowed_list' /proc/self/status");
        let done = by(&lab);
        lab.on(&["delete", "--force"]).succeeded();
        Some((done.status, done.out))
    };
    let (Some(ours), Some(theirs)) = (run(Lab::run), run(run_by_runc)) else { return };
    assert_eq!(ours, theirs, "brig, then runc");
    assert_eq!(ours.0, 0);
}

#[test]
fn a_filter_that_denies_getcwd_is_named_and_no_breakout() {
    let denied = "failed to verify if current working directory is safe";
    for privileges in [false, true] {
        let change = |lab: &mut Lab| {
            lab.config["process"]["noNewPrivileges"] = json!(privileges);
            lab.config["linux"]["seccomp"] = json!({
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{"names": ["getcwd"], "action": "SCMP_ACT_ERRNO"}],
            });
            lab.args(&["/bin/busybox", "true"]);
        };
        let run = |by: fn(&Lab) -> Done| {
            let mut lab = Lab::new()?;
            change(&mut lab);
            Some(by(&lab))
        };
        let Some(ours) = run(Lab::run) else { return };
        assert_eq!(ours.status, i32::from(!privileges), "{}", ours.err);
        if !privileges {
            ours.failed_with(denied).failed_with("peration not permitted");
            assert!(!ours.err.contains("outside"), "{}", ours.err);
        }
        if has_runc()
            && let Some(theirs) = run(run_by_runc)
        {
            assert_eq!(ours.status, theirs.status, "{}", theirs.err);
        }
    }
}

/// Runs a command without CAP_SYS_RESOURCE, as a less privileged root.
fn without_resource(command: &Command) -> Done {
    let mut wrapped = Command::new("setpriv");
    wrapped.arg("--bounding-set=-sys_resource").arg(command.get_program()).args(command.get_args());
    finish(wrapped.current_dir(command.get_current_dir().unwrap()).stdin(std::process::Stdio::null()))
}

#[test]
fn what_root_lacks_is_a_warning_that_names_it() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("cat /proc/self/oom_score_adj; grep CapEff /proc/self/status");
    lab.config["process"]["oomScoreAdj"] = json!(-500);
    let done = without_resource(&lab.command(&["run", &lab.id]));
    assert!(!done.succeeded().out.starts_with('-'), "{}", done.out);
    assert!(done.err.contains("level=warning") && done.err.contains("may not lower its oom_score_adj"), "{}", done.err);
    lab.config["process"].as_object_mut().unwrap().remove("oomScoreAdj");
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set] = json!(["CAP_KILL", "CAP_SYS_RESOURCE"]);
    }
    let done = without_resource(&lab.command(&["run", &lab.id]));
    assert!(done.succeeded().out.contains("CapEff:\t0000000000000020"), "{}", done.out);
    assert!(done.err.contains("level=warning") && done.err.contains("CAP_SYS_RESOURCE"), "{}", done.err);
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set] = json!(["CAP_KILL"]);
    }
    let done = without_resource(&lab.command(&["run", &lab.id]));
    assert!(done.succeeded().out.contains("CapEff:\t0000000000000020") && done.err.is_empty(), "{}", done.err);
}

#[test]
fn what_root_lacks_for_exec_is_a_warning_that_names_it() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["/bin/sleep", "100"]).start();
    let shell = ["/bin/sh", "-c", "cat /proc/self/oom_score_adj; grep CapEff /proc/self/status"];
    let exec = |options: &[&str]| lab.command(&[&["exec"], options, &[&lab.id], &shell].concat());
    let done = without_resource(&exec(&["--cap", "CAP_SYS_RESOURCE"]));
    assert!(done.succeeded().out.contains("CapEff:\t0000000020000420"), "{}", done.out);
    assert_eq!(done.err.matches("level=warning").count(), 1, "{}", done.err);
    assert!(done.err.contains("CAP_SYS_RESOURCE"), "{}", done.err);
    // An unknown name, with all privileges.
    let done = finish(&mut exec(&["--cap", "CAP_NOPE"]));
    let words = "ignoring unknown or unavailable capabilities: [CAP_NOPE]";
    assert_eq!(done.succeeded().err.matches(words).count(), 1, "{}", done.err);
    let file = lab.path().join("process.json");
    let process = json!({"args": shell, "cwd": "/", "oomScoreAdj": -500, "env": ["PATH=/bin"]});
    std::fs::write(&file, process.to_string()).unwrap();
    let done = without_resource(&lab.command(&["exec", "--process", file.to_str().unwrap(), &lab.id]));
    assert!(!done.succeeded().out.starts_with('-'), "{}", done.out);
    assert!(done.err.contains("level=warning") && done.err.contains("may not lower its oom_score_adj"), "{}", done.err);
    let done = without_resource(&exec(&[]));
    assert_eq!(done.succeeded().err, "");
}

#[test]
fn devices_that_no_rule_allows_are_denied() {
    if !has_runc() || !std::path::Path::new("/sys/fs/cgroup/devices/devices.list").exists() {
        skip("needs the cgroup v1 controller devices");
        return;
    }
    let list = "grep -v '10:200' /sys/fs/cgroup/devices/devices.list | sort; ls /dev";
    let fuse = json!({"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"});
    let rules = [
        json!([]),
        json!([{"allow": false, "access": "rwm"}]),
        json!([{"allow": true, "access": "rwm"}]),
        json!([fuse]),
        json!([{"allow": true, "type": "a", "access": "rwm"}, {"allow": false, "type": "b", "access": "rwm"}]),
        json!([{"allow": false, "type": "c", "major": 10, "minor": 229, "access": "rwm"}]),
    ];
    for rules in rules {
        let change = |lab: &mut Lab| lab.config["linux"]["resources"]["devices"] = rules.clone();
        same(&rules.to_string(), change, list);
    }
    let change = |lab: &mut Lab| _ = lab.config["linux"].as_object_mut().unwrap().remove("resources");
    same("no resources", change, list);
}
