//! Another size for the disk of a kept task: the files stay, and a kill at any moment leaves a whole disk.

use crate::checkpoints::{find_holder, kill_tree};
use crate::crash::{Random, SEED, kills};
use crate::support::{Lab, Run};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Shows what could be lost: content, holes, links, modes, and what the workspace hides of its folder.
const SHOW: &str = "sha256sum -c sum; cat ~/mine; cat d/hard; readlink d/link; stat -c '%a %U %h %s %n' d d/file d/hard sparse; \
    stat -c %b sparse; ls; ls hidden; ls -A /tmp";
const MAKE: &str = "head -c 20M /dev/urandom > big; sha256sum big > sum; echo home > ~/mine; mkdir d; echo in > d/file; \
    ln d/file d/hard; ln -s file d/link; chmod 750 d; chmod 600 d/file; truncate -s 30M sparse; rm gone; rm -r hidden; \
    mkdir hidden; echo new > hidden/new; echo passing > /tmp/passing";

/// A kept task with a disk of 64 MB and 2000 files; its id and what it shows.
#[track_caller]
fn kept(lab: &Lab) -> (String, String) {
    lab.file("work/gone", "of the user\n");
    lab.file("work/hidden/old", "of the user\n");
    let work = lab.path().join("work");
    let flags = ["--keep", "--disk", "64M", "--inodes", "2000", "--dir", work.to_str().unwrap()];
    lab.task().args(flags).sh(MAKE).ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    let shown = resume(lab, &id, &[]);
    (lab.ids().pop().unwrap(), shown.stderr.clone())
}

fn resume(lab: &Lab, id: &str, flags: &[&str]) -> Run {
    lab.brig(["task", "resume", "--json"].iter().chain(flags).chain(&[id, "--", "sh", "-c", SHOW]))
}

/// The bytes and files of its disk, as `df` inside shows them.
#[track_caller]
fn size(lab: &Lab, id: &str) -> (u64, u64) {
    let run = lab.brig(["task", "resume", id, "--", "sh", "-c", "df -k . | tail -1; df -i . | tail -1"]);
    let numbers: Vec<u64> =
        run.succeeded().stdout.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
    (numbers[0] << 10, numbers[1])
}

#[test]
fn a_resumed_task_has_a_larger_or_smaller_disk_with_the_same_files() {
    let Some(lab) = Lab::root() else { return };
    let (mut id, shown) = kept(&lab);
    assert!(shown.contains("big: OK") && shown.contains("new\n") && !shown.contains("gone"), "{shown}");
    for (flags, bytes, inodes) in [
        (&["--disk", "300M"][..], 300 << 20, 2000),
        (&["--inodes", "9000"][..], 300 << 20, 9000),
        (&["--disk", "40M", "--inodes", "500"][..], 40 << 20, 500),
    ] {
        let run = resume(&lab, &id, flags);
        assert_eq!(run.ended_as("succeeded", 0).stderr, shown, "{flags:?}");
        assert_eq!(run.receipt()["limits"]["disk"], bytes, "{flags:?}");
        id = lab.ids().pop().unwrap();
        let (has, files) = size(&lab, &id);
        // ext4 counts a reserve of a fiftieth, which no file can have.
        assert!(has <= bytes + bytes / 40 + (2 << 20) && has > bytes * 9 / 10, "{flags:?}: {has}");
        assert!(files <= inodes + 20 && files > inodes * 9 / 10, "{flags:?}: {files}");
        id = lab.ids().pop().unwrap();
    }
    // The limit is the disk's: no more fits in.
    let full = ["task", "resume", "--json", &id, "--", "sh", "-c", "head -c 60M /dev/urandom > more"];
    assert!(lab.brig(full).hit("disk"));
    lab.assert_clean();
}

#[test]
fn a_disk_that_is_too_small_for_its_files_is_refused_and_nothing_is_lost() {
    let Some(lab) = Lab::root() else { return };
    let (mut id, shown) = kept(&lab);
    for (flags, words) in [
        (["--disk", "12M"], "`--disk` would be 12 MiB"),
        (["--disk", "64M"], ""),
        (["--disk", "1M"], "the least is 4M"),
    ] {
        let run = resume(&lab, &id, &flags);
        assert_eq!(run.status == Some(0), words.is_empty(), "{flags:?}: {run:#?}");
        assert!(run.stderr.contains(words) || run.stdout.contains(words), "{flags:?}: {run:#?}");
        if words.is_empty() {
            assert_eq!(run.stderr, shown, "{flags:?}");
        }
        id = lab.ids().pop().unwrap();
    }
    lab.assert_clean();
}

#[test]
fn forks_have_another_size_and_their_original_stays() {
    let Some(lab) = Lab::root() else { return };
    let (id, shown) = kept(&lab);
    let fork = lab.brig(["task", "fork", "--disk", "200M", &id, "--", "sh", "-c", SHOW]);
    let fork = fork.succeeded().stdout.trim().to_owned();
    assert_eq!(lab.brig(["task", "wait", "--json", &fork]).receipt()["outcome"], "succeeded");
    assert!(size(&lab, &fork).0 > 180 << 20);
    assert_eq!(resume(&lab, &id, &[]).stderr, shown);
    let now = lab.ids().pop().unwrap();
    assert!(size(&lab, &now).0 < 80 << 20);
    lab.assert_clean();
}

#[test]
fn kill_at_any_moment_of_a_change_of_size_leaves_a_whole_disk() {
    let Some(lab) = Lab::root() else { return };
    let (mut holder, shown) = kept(&lab);
    let began = Instant::now();
    resume(&lab, &holder, &["--disk", "100M"]).ended_as("succeeded", 0);
    let whole = began.elapsed();
    holder = lab.ids().pop().unwrap();
    let mut random = Random(SEED);
    for round in 0..kills(10) {
        let size = ["120M", "80M"][round % 2];
        let begun = lab.start(["task", "resume", "--disk", size, &holder, "--", "sh", "-c", SHOW]);
        kill_tree(begun.pid(), &mut random, whole);
        begun.finish();
        find_holder(&lab, &mut holder);
        for other in lab.ids().into_iter().filter(|other| *other != holder) {
            lab.brig(["task", "rm", &other]).succeeded();
        }
    }
    assert_eq!(resume(&lab, &holder, &["--disk", "90M"]).ended_as("succeeded", 0).stderr, shown);
    lab.assert_reaped();
}

/// Waits for the last unmount, which comes after the task's end, writes, and marks the disk as clean.
#[track_caller]
fn unmounted(image: &Path) -> std::fs::File {
    let file = std::fs::File::open(image).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}

/// e2fsck's status for an image that it may not change.
#[track_caller]
fn checked(image: &Path) -> Option<i32> {
    let _unmounted = unmounted(image);
    Command::new("e2fsck").args(["-f", "-n"]).arg(image).output().unwrap().status.code()
}

#[test]
fn a_disk_that_was_in_use_at_a_power_cut_is_repaired_before_it_is_used_again() {
    let Some(lab) = Lab::root() else { return };
    let task = lab.task().args(["--keep", "--disk", "64M"]).start_sh("echo work > file; echo ready; sleep 300");
    task.wait_for("ready");
    let id = lab.ids().remove(0);
    let image = lab.store().join("tasks").join(&id).join("workspace.img");
    lab.brig(["task", "checkpoint", &id, "before"]).succeeded(); // writes all out
    // What the host's disk has while the sandbox runs, and a table of which the last state was not written.
    let cut = lab.path().join("cut");
    std::fs::copy(&image, &cut).unwrap();
    let damage = ["-w", "-R", "freei /files/file"];
    assert!(Command::new("debugfs").args(damage).arg(&cut).output().unwrap().status.success());
    assert_eq!(checked(&cut), Some(4), "e2fsck(8): errors left uncorrected");
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
    let unmounted = unmounted(&image);
    std::fs::copy(&cut, &image).unwrap();
    drop(unmounted);
    let words = ["--json", &id, "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo other > $i; done; cat file"];
    let run = lab.brig(["task", "resume"].iter().chain(&words));
    assert_eq!(run.ended_as("succeeded", 0).stderr, "work\n");
    let holder = lab.ids().pop().unwrap();
    assert_eq!(checked(&lab.store().join("tasks").join(&holder).join("workspace.img")), Some(0));
    // The copy of a running sandbox is whole and marked so: a fork must not write into it.
    let state = std::fs::read(lab.store().join("tasks").join(&id).join("checkpoints/before.img")).unwrap();
    assert_eq!(state[0x43a..0x43c], [1, 0], "`s_state`");
    lab.assert_clean();
}
