//! Kept roots: what a task changed in an image or in a root of the user's own, and its home, in a new sandbox.

use crate::support::{Image, Lab, Run, Task};
use serde_json::{Value, json};
use std::path::PathBuf;

fn image<'lab>(lab: &'lab Lab, content: &str) -> Image<'lab> {
    Image::new(lab, "kept")
        .config(json!({ "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["true"], "User": "root", "WorkingDir": "/srv/app" }))
        .file("opt/tool/old", content, 0o644)
        .file("opt/gone", "image\n", 0o644)
}

fn task_in<'lab>(lab: &'lab Lab, more: &[&str]) -> Task<'lab> {
    lab.task().args(["--pull", "never", "--image", "kept:1"]).args(more)
}

/// The id of a finished run.
fn id(run: &Run) -> String {
    run.receipt()["id"].as_str().unwrap().to_owned()
}

/// The directory of the only image that the store has.
fn image_directory(lab: &Lab) -> PathBuf {
    let mut entries = std::fs::read_dir(lab.store().join("images")).unwrap();
    entries.next().unwrap().unwrap().path()
}

const CHANGE: &str = "echo new > /etc/new; rm /opt/gone; rm -r /opt/tool; mkdir /opt/tool; echo n > /opt/tool/new; \
     cp /bin/busybox /opt/su; chmod 4755 /opt/su; ln -s /proc /opt/link; \
     echo session > ~/session; echo work > work; echo x > /tmp/mine; rm /etc/hosts; ln -s /proc/self/environ /etc/hosts; pwd";
const LOOK: &str = "cat /etc/new ~/session work; ls /opt /opt/tool /tmp; stat -c '%u %g %a %n' /opt/su; \
     grep -c ' / / .*nosuid,nodev' /proc/self/mountinfo; pwd";

#[test]
fn root_and_home_of_an_image_go_on() {
    let Some(lab) = Lab::root() else { return };
    image(&lab, "one\n").load();
    let first = task_in(&lab, &["--keep"]).run([CHANGE]);
    first.ended_as("succeeded", 0);
    let digest = first.receipt()["image"]["digest"].clone();
    // The name means another image now; a kept root goes on from its own.
    image(&lab, "two\n").load();
    let run = lab.brig(["task", "resume", "--json", &id(&first), "--", LOOK]);
    run.ended_as("succeeded", 0);
    let start = first.stderr.lines().last().unwrap();
    let expected = format!(
        "new\nsession\nwork\n/opt:\nlink\nsu\ntool\n\n/opt/tool:\nnew\n\n/tmp:\n0 0 4755 /opt/su\n1\n{start}\n"
    );
    assert!(run.stderr.contains(&expected), "{expected}: {run:#?}");
    assert_eq!(run.receipt()["image"]["digest"], digest);
    assert_eq!(run.receipt()["image"]["reference"], "kept:1");
    // The same command once more, and then a fork.
    let again = lab.brig(["task", "resume", "--json", &id(&run)]);
    assert_eq!(again.ended_as("succeeded", 0).receipt()["command"], run.receipt()["command"], "{again:#?}");
    let fork = lab.brig(["task", "fork", &id(&again), "--", "cat /opt/tool/new ~/session"]);
    let fork = fork.succeeded().stdout.trim().to_owned();
    let ended: Value = serde_json::from_str(&lab.brig(["task", "wait", "--json", &fork]).stdout).unwrap();
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(lab.brig(["task", "logs", &fork]).succeeded().stdout, "n\nsession\n");
    lab.assert_clean();
}

#[test]
fn owners_and_set_id_bits_of_root_inside_go_on_in_another_range() {
    let Some(lab) = Lab::root() else { return };
    image(&lab, "one\n").load();
    let change = "cp /bin/busybox /opt/su; chown 1001 /opt/su; chmod 6755 /opt/su; echo x > /opt/file; \
         chown 1001:1002 /opt/file /opt/tool; mkdir /new";
    let first = id(task_in(&lab, &["--keep", "--root-inside"]).run([change]).ended_as("succeeded", 0));
    // It has the first range now.
    let other = lab.task().start_sh("echo ready; sleep 300");
    other.wait_for("ready");
    let look = "stat -c '%u %g %a %n' /opt/su /opt/file /opt/tool /new; id -u";
    let run = lab.brig(["task", "resume", "--json", &first, "--", look]);
    let expected = "1001 0 6755 /opt/su\n1001 1002 644 /opt/file\n1001 1002 755 /opt/tool\n0 0 755 /new\n0\n";
    assert!(run.ended_as("succeeded", 0).stderr.contains(expected), "{run:#?}");
    other.signal(rustix::process::Signal::TERM);
    other.finish();
    lab.assert_clean();
}

#[test]
fn the_image_of_a_kept_root_stays_until_it_is_discarded() {
    let Some(lab) = Lab::root() else { return };
    image(&lab, "one\n").load();
    let first = id(task_in(&lab, &["--keep"]).run([CHANGE]).ended_as("succeeded", 0));
    let removed = lab.brig(["image", "rm", "kept:1"]);
    assert!(removed.succeeded().stdout.contains("untagged") && !removed.stdout.contains("removed"), "{removed:#?}");
    let prune = || lab.brig(["image", "prune"]).succeeded().stdout.clone();
    assert!(prune().contains("in use"));
    let second = id(lab.brig(["task", "resume", "--json", &first, "--", "cat /etc/new"]).ended_as("succeeded", 0));
    assert!(prune().contains("in use"), "the disk has another task now");
    lab.brig(["task", "discard", &second]).succeeded();
    assert!(prune().contains("removed"));
    assert_eq!(std::fs::read_dir(lab.store().join("layers")).unwrap().count(), 0);
    // Without the note the layers go, and the kept root cannot go on.
    image(&lab, "one\n").load();
    let third = id(task_in(&lab, &["--keep"]).run([CHANGE]).ended_as("succeeded", 0));
    lab.brig(["image", "rm", "kept:1"]).succeeded();
    assert!(lab.weakened("image-holders", ["image", "prune"]).succeeded().stdout.contains("removed"));
    lab.brig(["task", "resume", &third]).refused(125, &["which is not in the store"]);
}

#[test]
fn a_resume_whose_image_is_gone_loses_nothing() {
    let Some(lab) = Lab::root() else { return };
    image(&lab, "one\n").load();
    let first = id(task_in(&lab, &["--keep"]).run([CHANGE]).ended_as("succeeded", 0));
    let aside = lab.path().join("aside");
    let directory = image_directory(&lab);
    std::fs::rename(&directory, &aside).unwrap();
    let run = lab.brig(["task", "resume", &first]);
    run.refused(125, &["which is not in the store"]);
    for words in ["nothing is lost", "brig image pull docker.io/library/kept@sha256:"] {
        assert!(run.stderr.contains(words), "{words}: {run:#?}");
    }
    assert_eq!(lab.ids().len(), 1, "nothing was begun");
    std::fs::rename(&aside, &directory).unwrap();
    let run = lab.brig(["task", "resume", "--json", &first, "--", "cat /etc/new"]);
    assert!(run.ended_as("succeeded", 0).stderr.contains("new\n"), "{run:#?}");
}

#[test]
fn root_and_home_of_a_folder_go_on_and_another_folder_is_refused() {
    let Some(lab) = Lab::root() else { return };
    let root = lab.directory("root");
    for folder in ["bin", "etc", "tmp", "opt"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| PathBuf::from(path).exists()).unwrap();
    std::fs::copy(busybox, root.join("bin/busybox")).unwrap();
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    std::os::unix::fs::symlink("busybox", root.join("bin/cat")).unwrap();
    std::os::unix::fs::chown(root.join("opt"), Some(1000), Some(1000)).unwrap();
    std::fs::set_permissions(root.join("opt"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let script = "echo root > /opt/new; echo home > ~/new; echo work > new";
    let task = lab.task().args(["--keep".as_ref(), "--rootfs".as_ref(), root.as_os_str()]);
    let first = id(task.run(["/bin/sh", "-c", script]).ended_as("succeeded", 0));
    assert!(!root.join("opt/new").exists());
    std::fs::rename(&root, lab.path().join("other")).unwrap();
    std::fs::create_dir(&root).unwrap();
    lab.brig(["task", "resume", &first]).refused(125, &["another folder"]);
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(lab.path().join("other"), &root).unwrap();
    let look = ["/bin/sh", "-c", "cat /opt/new ~/new new"];
    let run = lab.brig([&["task", "resume", "--json", &first, "--"], &look[..]].concat());
    assert!(run.ended_as("succeeded", 0).stderr.contains("root\nhome\nwork\n"), "{run:#?}");
}
