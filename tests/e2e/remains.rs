//! Remains after failures: failed cleanup, restarts of the machine, clock jumps; and remains of a workspace.

use crate::support::{Lab, cgroups_of, eventually, is_root, processes_of, skip};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Every file below `roots` with `marker` in its name or content; files older than the lab are skipped.
fn files_with(lab: &Lab, marker: &str, roots: &[&Path]) -> Vec<PathBuf> {
    let began = fs::metadata(lab.path()).unwrap().created().unwrap_or(SystemTime::UNIX_EPOCH);
    let began = began.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = roots.iter().map(|root| root.to_path_buf()).collect();
    while let Some(path) = open.pop() {
        if path.to_string_lossy().contains(marker) {
            found.push(path.clone());
        }
        let Ok(status) = fs::symlink_metadata(&path) else { continue };
        if status.is_dir() {
            open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if status.is_file() && status.ctime() >= began && holds(&path, marker.as_bytes()) {
            found.push(path);
        }
    }
    found
}

/// Whether a file contains `marker`. Of a large disk image only the data is read.
fn holds(path: &Path, marker: &[u8]) -> bool {
    use rustix::fs::{SeekFrom, seek};
    use std::os::unix::fs::FileExt;
    let Ok(file) = fs::File::open(path) else { return false };
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        let end = seek(&file, SeekFrom::Hole(data)).unwrap_or(u64::MAX);
        at = data;
        while at < end {
            let count = file.read_at(&mut buffer, at).unwrap_or(0);
            if buffer[..count].windows(marker.len()).any(|window| window == marker) {
                return true;
            }
            if count <= marker.len() {
                return false;
            }
            at += (count - marker.len()) as u64; // one that lies across two pieces
            if at + marker.len() as u64 >= end {
                at = end;
            }
        }
    }
    false
}

/// Directories where brig could have left files.
fn places(lab: &Lab) -> Vec<PathBuf> {
    let others = ["/var/tmp", "/dev/shm", "/run"].map(PathBuf::from);
    let own_temporary = fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|entry| entry.path());
    // Labs of concurrent tests are there, and change meanwhile.
    let own_temporary =
        own_temporary.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with("brig-test-"));
    let own_temporary = own_temporary.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("brig"));
    own_temporary.chain(others).chain([lab.path().to_path_buf()]).collect()
}

#[test]
fn nothing_of_a_workspace_is_on_the_host_unless_something_says_so() {
    let lab = Lab::new();
    // In two parts: neither this file nor the command's record contains it.
    let (one, two) = ("brig-marker-", format!("{:08x}", std::process::id()));
    let marker = format!("{one}{two}");
    let script = format!(
        "a={one}; b={two}; echo $a$b >here; mkdir $a$b; echo $a$b >/tmp/there; echo $a$b >~/home; echo $a$b >/dev/shm/memory; ln -s $a$b link; \
         python3 -c 'import sys; open(\"large\",\"w\").write((\"{one}\"+\"{two}\\n\")*200000)'; sync; mkdir .brig; echo '{{}}' >.brig/result.json"
    );
    let places = places(&lab);
    let places: Vec<_> = places.iter().map(PathBuf::as_path).collect();
    let run = lab.task().args(["--no-changes", "--artifact", "nothing-fits"]).sh(&script);
    run.ended_as("succeeded", 0);
    assert_eq!(files_with(&lab, &marker, &places), [] as [PathBuf; 0]);
    assert!(run.receipt()["changes"].is_null());
    lab.brig(["task", "diff", &lab.ids()[0]]).refused(125, &["without handing anything back"]);
    // The control: by default the changes are kept, in the task's own record only.
    let run = lab.task().sh(&script);
    run.ended_as("succeeded", 0);
    let record = lab.store().join("tasks").join(run.receipt()["id"].as_str().unwrap()).join("changes");
    let found = files_with(&lab, &marker, &places);
    assert!(found.len() >= 3 && found.iter().all(|path| path.starts_with(&record)), "{found:#?}");
}

#[test]
fn a_killed_supervisor_leaves_nothing_of_the_workspace_on_the_host() {
    let lab = Lab::new();
    let (one, two) = ("brig-killed-", format!("{:08x}", std::process::id()));
    let marker = format!("{one}{two}");
    let task = lab.task().start_sh(&format!("a={one}; b={two}; echo $a$b >here; sync; echo ready; sleep 60"));
    task.wait_for("ready");
    task.signal(Signal::KILL);
    task.finish();
    eventually("the sandbox is gone", || processes_of(&lab).is_empty());
    lab.reap();
    let places = places(&lab);
    let places: Vec<_> = places.iter().map(PathBuf::as_path).collect();
    assert_eq!(files_with(&lab, &marker, &places), [] as [PathBuf; 0]);
}

/// The receipt of a task as `brig task show` has it.
fn shown(lab: &Lab, id: &str) -> serde_json::Value {
    let shown = lab.brig(["task", "show", "--json", id]);
    shown.succeeded();
    shown.receipt()
}

#[test]
fn a_task_of_before_a_restart_is_lost_and_told_so_once() {
    let lab = Lab::new();
    let task = lab.task().start_sh("echo ready; sleep 60");
    task.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    // After a power cut: the record, the log and the lock's file, without process, cgroup, mount or loop device.
    let kept = lab.directory("kept");
    let copy =
        |from: &Path, to: &Path| assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    for name in ["tasks", "live"] {
        copy(&lab.store().join(name), &kept.join(name));
    }
    task.signal(Signal::KILL);
    task.finish();
    eventually("the sandbox is gone", || processes_of(&lab).is_empty());
    lab.reap();
    for name in ["tasks", "live"] {
        fs::remove_dir_all(lab.store().join(name)).unwrap();
        copy(&kept.join(name), &lab.store().join(name));
    }
    let list = lab.brig(["task", "ls"]);
    list.succeeded();
    assert!(list.stdout.lines().any(|line| line.contains(&id) && line.contains("lost")), "{list:#?}");
    let receipt = shown(&lab, &id);
    assert_eq!((&receipt["outcome"], &receipt["retryable"]), (&"lost".into(), &true.into()), "{receipt:#}");
    assert_eq!(receipt["cleanup"]["left"], serde_json::json!([]));
    assert!(lab.brig(["task", "logs", &id]).stdout.contains("ready"));
    assert_eq!(fs::read_dir(lab.store().join("live")).unwrap().count(), 0);
    // Another task runs as ever, and the lost one stays as it is.
    lab.task().sh("true").ended_as("succeeded", 0);
    assert_eq!(shown(&lab, &id), receipt);
}

#[test]
fn a_clock_that_is_set_back_or_forward_moves_no_deadline() {
    // A time namespace shifts the supervisor's monotonic clock by years: no calculation may start at its zero.
    let lab = Lab::new();
    if !is_root() {
        return skip("needs root");
    }
    for offset in ["100000000", "-1"] {
        // A negative offset must leave the clock above zero.
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", offset, "--boottime", offset]);
        command.arg(crate::support::program_under_test()).args(["task", "--store"]).arg(lab.store());
        command.args(["run", "--json", "--wall", "1s", "--", "sh", "-c", "echo begun; sleep 30"]);
        let began = std::time::Instant::now();
        let done = command.output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        if done.stdout.is_empty() && String::from_utf8_lossy(&done.stderr).contains("unshare") {
            return skip("no time namespace can be made here");
        }
        let receipt: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{done:?}"));
        assert_eq!(receipt["outcome"], "timeout", "{receipt:#}");
        assert!((0.9..5.0).contains(&receipt["usage"]["wall_seconds"].as_f64().unwrap()), "{receipt:#}");
        assert!(began.elapsed().as_secs() < 20);
    }
}

#[test]
fn records_from_the_future_or_from_1970_do_no_harm() {
    let lab = Lab::new();
    lab.task().sh("true").ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    let path = lab.store().join("tasks").join(&id).join("receipt.json");
    for time in ["2099-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000000Z"] {
        let mut receipt = shown(&lab, &id);
        receipt["created"] = time.into();
        receipt["ended"] = time.into();
        fs::write(&path, receipt.to_string()).unwrap();
        lab.brig(["task", "ls"]).succeeded();
        lab.brig(["task", "prune", "--older-than", "3000d", "--dry-run"]);
        lab.task().sh("true").ended_as("succeeded", 0);
    }
}

#[test]
fn an_immutable_file_of_the_folder_is_only_refused_to_the_command() {
    let Some(lab) = Lab::root() else { return };
    lab.file("work/fixed", "fixed\n");
    let work = lab.path().join("work");
    let set = |flag: &str| {
        Command::new("chattr").arg(flag).arg(work.join("fixed")).status().is_ok_and(|status| status.success())
    };
    if !set("+i") {
        return skip("this file system has no immutable files");
    }
    let run =
        lab.task().args(["--dir".as_ref(), work.as_os_str()]).sh("echo more >>fixed; rm -f fixed; echo x >new; true");
    assert!(set("-i"));
    run.ended_as("succeeded", 0);
    assert_eq!(fs::read_to_string(work.join("fixed")).unwrap(), "fixed\n");
}

#[test]
fn a_record_that_cannot_be_removed_says_so_and_goes_when_it_can() {
    let Some(lab) = Lab::root() else { return };
    lab.task().sh("echo x >file").ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    let file = lab.store().join("tasks").join(&id).join("changes/files/file");
    let set = |flag: &str, file: &Path| {
        Command::new("chattr").arg(flag).arg(file).status().is_ok_and(|status| status.success())
    };
    if !set("+i", &file) {
        return skip("this file system has no immutable files");
    }
    let removed = lab.brig(["task", "rm", &id]);
    // Hidden under another name now, with the file still immutable.
    let hidden = lab.store().join("tasks").join(format!(".removed-{id}")).join("changes/files/file");
    assert!(set("-i", if hidden.exists() { &hidden } else { &file }));
    assert_eq!(removed.status, Some(125), "{removed:#?}");
    assert!(removed.stderr.contains(&id) && removed.stderr.contains("not permitted"), "{removed:#?}");
    lab.task().sh("true").ended_as("succeeded", 0);
    let _ = fs::remove_dir_all(lab.store().join("tasks").join(format!(".removed-{id}")));
}

#[test]
fn a_group_that_cannot_be_removed_is_told_of_and_goes_later() {
    let Some(lab) = Lab::root() else { return };
    // Another process on the host makes a cgroup inside the task's. While it has a process, the task's cannot be
    // removed.
    let task = lab.task().args(["--wall", "20s"]).start_sh("echo ready; while [ ! -e stop ]; do sleep 0.05; done");
    task.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    let Some(group) = cgroups_of(&id).into_iter().next() else {
        task.signal(Signal::TERM);
        task.finish();
        return skip("no group of the task is seen here");
    };
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let inner = group.join("intruder");
    let is_in =
        fs::create_dir(&inner).is_ok() && fs::write(inner.join("cgroup.procs"), sleeper.id().to_string()).is_ok();
    task.signal(Signal::TERM);
    let run = task.finish();
    let left_it = group.exists();
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    if !is_in {
        let _ = fs::remove_dir(&inner);
        lab.reap();
        return skip("no process can be put into a group below the task's");
    }
    // Either it ended with the rest, since everything in the cgroup is the task's, or the receipt lists the remains.
    let receipt = run.receipt();
    let left = receipt["cleanup"]["left"].as_array().unwrap();
    assert_eq!(left_it, left.iter().any(|each| each.as_str().unwrap().contains(&id)), "{receipt:#}");
    // The next command removes what can be removed by then.
    lab.reap();
    assert!(!group.exists(), "{}", group.display());
}

#[test]
fn a_busy_mount_delays_no_end_and_nothing_stays_after_its_release() {
    let Some(lab) = Lab::root() else { return };
    let task = lab.task().start_sh("echo ready; while [ ! -e stop ]; do sleep 0.05; done");
    task.wait_for("ready");
    let pid_1 = task.pid_1();
    let held = fs::File::open(format!("/proc/{pid_1}/root/workspace")).unwrap();
    let began = std::time::Instant::now();
    task.signal(Signal::TERM);
    let run = task.finish();
    assert!(began.elapsed().as_secs() < 20, "{run:#?}");
    assert_eq!(run.outcome(), "cancelled", "{run:#?}");
    // The next task does not mind either.
    lab.task().sh("true").ended_as("succeeded", 0);
    drop(held);
    lab.assert_clean();
}

/// brig's helper that keeps the mounts of pid 1.
fn holder(brig: i32, pid_1: i32) -> Option<i32> {
    let namespace = fs::metadata(format!("/proc/{pid_1}/ns/mnt")).ok()?;
    let children = fs::read_to_string(format!("/proc/{brig}/task/{brig}/children")).ok()?;
    let holds = |child: &i32| {
        let open = fs::read_dir(format!("/proc/{child}/fd")).into_iter().flatten().flatten();
        let mut open = open.filter_map(|entry| fs::metadata(entry.path()).ok());
        *child != pid_1 && open.any(|open| (open.dev(), open.ino()) == (namespace.dev(), namespace.ino()))
    };
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(holds)
}

#[test]
fn the_mounts_are_left_to_a_helper_before_the_task_ends() {
    let Some(lab) = Lab::root() else { return };
    // The helper stays for two seconds. A loaded machine may be slower once.
    let is_held = (0..5).any(|_| {
        let task = lab.task().start_sh("echo ready; while [ ! -e stop ]; do sleep 0.05; done");
        task.wait_for("ready");
        let helper = holder(task.pid(), task.pid_1());
        task.signal(Signal::TERM);
        task.finish();
        helper.is_some()
    });
    assert!(is_held);
    lab.assert_clean();
}
