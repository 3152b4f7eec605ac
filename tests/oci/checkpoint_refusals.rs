//! Refusals of `checkpoint` and `restore`; a failed restore leaves nothing.

use crate::checkpoint::{COUNT, lab};
use crate::support::{Lab, finish};
use serde_json::{Value, json};
use std::process::Command;

#[test]
fn a_restore_that_fails_leaves_nothing() {
    let Some(mut lab) = lab() else { return };
    lab.sh(COUNT);
    lab.restore(&[]).failed_with("descriptors.json");
    lab.on(&["state"]).failed_with("container does not exist");
    lab.start();
    lab.counts_beyond(1);
    lab.checkpoint(&[]).succeeded();
    let groups = |lab: &Lab| finish(Command::new("find").args(["/sys/fs/cgroup", "-name", &lab.id])).out;
    let core = std::fs::read_dir(lab.images())
        .unwrap()
        .flatten()
        .find(|each| each.file_name().to_string_lossy().starts_with("core-"));
    let core = core.unwrap().path();
    let whole = std::fs::read(&core).unwrap();
    for broken in [&whole[..whole.len() / 2], &[], b"not an image"] {
        std::fs::write(&core, broken).unwrap();
        let failed = lab.restore(&[]);
        failed.failed_with("criu failed");
        assert!(failed.err.contains("restore.log") || failed.err.contains("Error ("), "{}", failed.err);
        lab.on(&["state"]).failed_with("container does not exist");
        assert_eq!(groups(&lab), "");
    }
    std::fs::write(&core, whole).unwrap();
    lab.restore(&["--pid-file", "/nowhere/at/all"]).failed_with("/nowhere/at/all");
    lab.on(&["state"]).failed_with("container does not exist");
    assert_eq!(groups(&lab), "");
    lab.restore(&[]).succeeded();
    lab.restore(&[]).failed_with("container with given ID already exists");
    assert_eq!(lab.status(), "running");
}

#[test]
fn what_criu_cannot_keep_is_refused() {
    let Some(mut lab) = lab() else { return };
    lab.sh(COUNT);
    lab.create().succeeded();
    lab.checkpoint(&[]).failed_with("Container cannot be checkpointed in created state");
    lab.on(&["start"]).succeeded();
    lab.counts_beyond(0);
    let images = lab.images();
    let images = images.to_str().unwrap();
    let mut without = lab.command(&["checkpoint", "--image-path", images, &lab.id]);
    finish(without.env("PATH", "/nowhere")).failed_with("exec: \\\"criu\\\": executable file not found in $PATH");
    for (option, words) in [
        (["--manage-cgroups-mode", "maybe"], "invalid manage-cgroups-mode value"),
        (["--parent-path", "/absolute"], "--parent-path must be relative"),
        (["--parent-path", "../missing"], "invalid --parent-path"),
        (["--empty-ns", "moon"], "namespace moon is not supported"),
        (["--page-server", "there"], "use --page-server ADDRESS:PORT to specify page server"),
        (["--status-fd", "77"], "--status-fd"),
    ] {
        lab.checkpoint(&option).failed_with(words);
    }
    assert_eq!(lab.status(), "running");
    lab.brig(&["kill", &lab.id, "KILL"]).succeeded();
    crate::support::eventually("it has ended", || lab.status() == "stopped");
    lab.checkpoint(&[]).failed_with("Container cannot be checkpointed in stopped state");
    lab.on(&["delete"]).succeeded();

    let rule =
        json!({"rules": [{"path": "/", "access": "read-execute"}, {"path": "/tmp", "access": "write"}]}).to_string();
    for (key, value, words) in [
        ("dev.brig.landlock", rule.as_str(), "Landlock"),
        ("org.criu.config", "/etc/passwd", "can run programs as root on the host"),
    ] {
        lab.config["annotations"] = json!({key: value});
        lab.start();
        lab.checkpoint(&[]).failed_with(words);
        lab.on(&["delete", "--force"]).succeeded();
        lab.restore(&[]).failed_with(words);
    }
    lab.config["annotations"] = Value::Null;
    // An engine's setup gives annotations on the command line.
    let (annotation, images) = (format!("dev.brig.landlock={rule}"), lab.images());
    let arguments = ["--annotation", &annotation, "restore", "--detach", "--image-path", images.to_str().unwrap()];
    finish(&mut lab.with_criu(&[&arguments[..], &[&lab.id]].concat())).failed_with("Landlock");
    // Podman asks in this way whether the verb exists.
    for verb in ["checkpoint", "restore"] {
        assert!(lab.brig(&[verb, "--help"]).succeeded().out.contains("--image-path"));
    }
}

/// A configuration that is stricter than the one of the checkpoint.
fn saved_with_more_privileges() -> Option<Lab> {
    let mut lab = lab()?;
    lab.sh(&format!("sleep 1000 & {COUNT}"));
    lab.config["process"]["noNewPrivileges"] = json!(false);
    lab.start();
    lab.counts_beyond(1);
    lab.checkpoint(&[]).succeeded();
    Some(lab)
}

#[test]
fn processes_with_more_privileges_than_the_configuration_gives_are_not_restored() {
    let Some(mut lab) = saved_with_more_privileges() else { return };
    let filter = json!({"defaultAction": "SCMP_ACT_ALLOW"});
    let stopped = lab.number();
    for (place, key, value, words) in [
        ("process", "capabilities", json!({"bounding": ["CAP_KILL"]}), "has capabilities"),
        ("process", "noNewPrivileges", json!(true), "no `noNewPrivileges`"),
        ("linux", "seccomp", filter, "no filter of system calls"),
    ] {
        let before = lab.config[place][key].take();
        lab.config[place][key] = value;
        lab.restore(&[]).failed_with(words);
        lab.on(&["state"]).failed_with("container does not exist");
        assert_eq!(finish(Command::new("find").args(["/sys/fs/cgroup", "-name", &lab.id])).out, "");
        assert_eq!(lab.number(), stopped, "it ran");
        lab.config[place][key] = before;
    }
    lab.restore(&[]).succeeded();
    lab.counts_beyond(stopped);
}

#[test]
fn such_processes_run_on_a_weakened_build() {
    let Some(mut lab) = saved_with_more_privileges() else { return };
    if lab.weaken("restored-privileges").is_none() {
        return;
    }
    lab.config["process"]["capabilities"] = json!({});
    lab.restore(&[]).succeeded();
    lab.counts_beyond(lab.number());
}
