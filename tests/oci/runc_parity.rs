//! More of what runc does, beside the real one: hooks inside the container, descriptors of a created container, sources below earlier mounts.

use crate::beside::{has_runc, plain, run_by_runc, same};
use crate::support::{Done, Lab, finish};
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
