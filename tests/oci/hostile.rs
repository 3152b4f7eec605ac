//! Bad input: a clear error, no panic, and nothing left (the lab's drop looks).

use crate::support::{Lab, eventually};
use serde_json::json;
use std::fs;

#[test]
fn a_broken_config_is_refused() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.path().join("config.json");
    let whole = lab.config.to_string();
    let deep = format!("{{\"mounts\":{}", "[".repeat(200_000));
    let deeper = format!("{{\"later\":{}", "[".repeat(200_000));
    let huge = format!("{{\"x\":\"{}\"}}", "a".repeat(100 << 20));
    let cases = [
        ("", "EOF"),
        ("{", "EOF"),
        (&whole[..whole.len() / 2], "EOF"),
        ("null", "invalid type"),
        ("[]", "`ociVersion`"),
        ("{}", "`ociVersion`"),
        (r#"{"ociVersion":"9.0.0"}"#, "this runtime knows version 1"),
        (r#"{"process":{"args":"x"}}"#, "invalid type"),
        (r#"{"linux":{"namespaces":[{"type":"moon"}]}}"#, "unknown variant"),
        (&deep, "invalid type"),
        (&deeper, "EOF"),
        (&huge, "longer than"),
    ];
    for (text, words) in cases {
        let mut command = lab.command(&["create", &lab.id]);
        fs::write(&path, text).unwrap();
        crate::support::finish(&mut command).failed_with(words);
    }
    let mut command = lab.command(&["create", &lab.id]);
    fs::remove_file(&path).unwrap();
    crate::support::finish(&mut command).failed_with("config.json");
}

#[test]
fn fields_with_values_that_nobody_knows_are_refused_and_unknown_fields_ignored() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["later"] = json!({"a": [1]});
    lab.config["linux"]["later"] = json!(1);
    lab.args(&["true"]).run().succeeded();
    let good = lab.config.clone();
    for (pointer, value, words) in [
        ("/root/path", json!("missing"), "no such file or directory"),
        ("/process/cwd", json!("relative"), "absolute"),
        ("/process/args", json!([]), "args must not be empty"),
        ("/process/args", json!(["a\u{0}b"]), "NUL"),
        ("/process/env", json!(["PATH=/bin", "PATH"]), "invalid environment variable: missing '='"),
        ("/process/env", json!(["=x"]), "invalid environment variable: name cannot be empty"),
        ("/linux/rootfsPropagation", json!("sideways"), "rootfsPropagation"),
        ("/linux/cgroupsPath", json!("/a/../../b"), "cgroup path"),
        ("/linux/uidMappings", json!([{"containerID": 0, "hostID": 0, "size": 1}]), "USER namespace"),
        ("/linux/seccomp", json!({"defaultAction": "SCMP_ACT_MOON"}), "unknown variant"),
        ("/process/scheduler", json!({"policy": "SCHED_MOON"}), "SCHED_MOON"),
        ("/linux/netDevices", json!({"eth9": {}}), "no such device"),
        ("/annotations", json!({"dev.brig.landlock": "{\"rules\": 1}"}), "dev.brig.landlock"),
        ("/linux/personality", json!({"domain": "MOON"}), "MOON"),
    ] {
        lab.config = good.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        lab.config.pointer_mut(parent).unwrap()[name] = value;
        lab.create().failed_with(words);
    }
    lab.config = good;
}

#[test]
fn a_record_that_is_torn_or_from_another_version_is_named_and_can_be_swept_away() {
    let Some(mut lab) = Lab::new() else { return };
    let place = lab.path().join("records").join(&lab.id);
    lab.args(&["true"]).run().succeeded();
    for text in ["{", "", r#"{"version": 99}"#] {
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("state.json"), text).unwrap();
        lab.on(&["state"]).failed_with("state.json");
        assert!(lab.brig(&["list"]).err.contains("load container"));
        lab.on(&["delete"]).failed_with("state.json");
        lab.on(&["delete", "--force"]).succeeded();
        assert!(!place.exists());
    }
}

#[test]
fn a_bundle_that_vanishes_after_create_is_not_missed() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]).create().succeeded();
    let config = lab.path().join("config.json");
    let words = |verb: &[&str]| {
        let mut command = lab.command(verb);
        fs::remove_file(&config).unwrap();
        crate::support::finish(&mut command)
    };
    words(&["start", &lab.id]).succeeded();
    assert_eq!(words(&["exec", &lab.id, "echo", "in"]).succeeded().out, "in\n");
}

#[test]
fn a_group_with_processes_in_it_is_not_taken_over() {
    let Some(mut first) = Lab::new() else { return };
    let name = format!("/{}-shared", first.id);
    first.config["linux"]["cgroupsPath"] = json!(name);
    first.args(&["sleep", "100"]).start();
    let Some(mut second) = Lab::new() else { return };
    second.config["linux"]["cgroupsPath"] = json!(name);
    second.args(&["true"]).create().failed_with("container's cgroup is not empty: 1 process(es) found");
}

/// A process that SIGKILL does not end: it waits to write to a frozen file system, in a separate mount namespace.
struct Stuck {
    process: std::process::Child,
    place: std::path::PathBuf,
}

impl Stuck {
    /// `None` if no file system can be frozen.
    fn new(lab: &Lab) -> Option<Stuck> {
        let place = lab.path().join("frozen");
        fs::create_dir(&place).unwrap();
        let image = lab.path().join("frozen.img");
        fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
        let made = std::process::Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&image).status();
        if !made.is_ok_and(|status| status.success()) {
            crate::support::skip("needs e2fsprogs");
            return None;
        }
        let line = "mount -o loop frozen.img frozen && fsfreeze -f frozen && touch ready && exec touch frozen/never";
        let mut process = std::process::Command::new("unshare")
            .args(["-m", "/bin/sh", "-c", line])
            .current_dir(lab.path())
            .spawn()
            .unwrap();
        let state = |process: &std::process::Child| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
            stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('D')).unwrap_or_default()
        };
        eventually("it waits for the file system", || {
            assert_eq!(process.try_wait().unwrap(), None, "nothing can be frozen here");
            lab.path().join("ready").exists() && state(&process)
        });
        Some(Stuck { process, place })
    }

    /// Releases the process, so that it ends.
    fn release(&mut self) {
        let seen = format!("/proc/{}/root{}", self.process.id(), self.place.display());
        let _ = std::process::Command::new("fsfreeze").args(["-u", &seen]).stderr(std::process::Stdio::null()).status();
        let _ = (self.process.kill(), self.process.wait());
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.release();
    }
}

#[test]
fn a_group_that_cannot_be_removed_is_named_and_goes_when_it_can() {
    let Some(mut lab) = Lab::new() else { return };
    let Some(mut stuck) = Stuck::new(&lab) else { return };
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.args(&["sleep", "100"]).start();
    // A foreign cgroup in the container's, in each of its hierarchies, with a process.
    let listed =
        crate::support::finish(std::process::Command::new("find").args(["/sys/fs/cgroup", "-name", &lab.id])).out;
    let groups: Vec<_> = listed.lines().map(std::path::PathBuf::from).collect();
    assert!(!groups.is_empty());
    let pid = stuck.process.id().to_string();
    for group in &groups {
        let below = group.join("others");
        fs::create_dir(&below).unwrap();
        // A cpuset takes no process before it has processors.
        for name in ["cpuset.cpus", "cpuset.mems"].iter().filter(|_| group.starts_with("/sys/fs/cgroup/cpuset")) {
            fs::write(below.join(name), fs::read(group.join(name)).unwrap()).unwrap();
        }
        fs::write(below.join("cgroup.procs"), &pid).unwrap();
    }
    lab.brig(&["kill", &lab.id, "KILL"]).succeeded();
    eventually("it has ended", || lab.status() == "stopped");
    for verb in [&["delete"][..], &["delete", "--force"]] {
        let done = lab.on(verb);
        done.failed_with("remove the group `");
        for words in [groups[0].to_str().unwrap(), "device or resource busy", &format!("process {pid}; end it")] {
            assert!(done.err.contains(words), "{words} is not in {}", done.err);
        }
        assert!(!done.err.contains("panicked"), "{}", done.err);
        // It is there as before, and so is the obstacle.
        assert_eq!(lab.status(), "stopped");
        assert!(groups.iter().all(|group| group.join("others").exists()));
        assert_eq!(stuck.process.try_wait().unwrap(), None);
    }
    stuck.release();
    lab.on(&["delete"]).succeeded();
    assert!(groups.iter().all(|group| !group.exists()));
    lab.on(&["state"]).failed_with("does not exist");
}

#[test]
fn a_container_that_somebody_froze_on_v1_is_deleted_all_the_same() {
    let Some(mut lab) = Lab::new() else { return };
    if !std::path::Path::new("/sys/fs/cgroup/freezer").exists() {
        return crate::support::skip("needs the freezer of v1");
    }
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.args(&["sleep", "100"]);
    let group = std::path::Path::new("/sys/fs/cgroup/freezer").join(&lab.id);
    for below in [false, true] {
        lab.start();
        let place = if below { group.join("below") } else { group.clone() };
        if below {
            fs::create_dir(&place).unwrap();
            lab.exec("sleep 100 > /dev/null 2>&1 &").succeeded();
            let pids: Vec<i64> = serde_json::from_str(&lab.on(&["ps", "-f", "json"]).out).unwrap();
            pids.iter().for_each(|pid| fs::write(place.join("cgroup.procs"), pid.to_string()).unwrap());
        }
        fs::write(place.join("freezer.state"), "FROZEN").unwrap();
        eventually("it stands still", || fs::read_to_string(place.join("freezer.state")).unwrap() == "FROZEN\n");
        let began = std::time::Instant::now();
        lab.on(&["delete", "--force"]).succeeded();
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
        assert!(!group.exists());
    }
}

#[test]
fn whoever_is_in_a_containers_group_goes_with_it() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.args(&["sleep", "100"]).start();
    let listed =
        crate::support::finish(std::process::Command::new("find").args(["/sys/fs/cgroup", "-name", &lab.id])).out;
    let group = std::path::Path::new(listed.lines().find(|path| !path.contains("/cpuset/")).unwrap());
    fs::create_dir(group.join("others")).unwrap();
    let mut other = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    fs::write(group.join("others/cgroup.procs"), other.id().to_string()).unwrap();
    lab.on(&["delete", "--force"]).succeeded();
    assert!(!group.exists());
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(other.wait().unwrap().signal(), Some(9));
}

#[test]
fn delete_of_an_ended_container_leaves_the_next_one_in_its_group_alone() {
    let Some(mut first) = Lab::new() else { return };
    let Some(mut second) = Lab::new() else { return };
    let group = json!(format!("/{}", first.id));
    for lab in [&mut first, &mut second] {
        lab.config["linux"]["cgroupsPath"] = group.clone();
    }
    first.args(&["true"]).start();
    eventually("the first has ended", || first.status() == "stopped");
    second.args(&["sleep", "100"]).start();
    for force in [&["delete"][..], &["delete", "--force"]] {
        first.on(force).failed_with("still in it");
        assert_eq!(second.status(), "running");
    }
    second.on(&["delete", "--force"]).succeeded();
    first.on(&["delete"]).succeeded();
}

#[test]
fn a_group_inside_whose_name_is_no_text_hides_nobody_and_goes_with_the_container() {
    let Some(mut lab) = Lab::new() else { return };
    lab.unmount("/sys/fs/cgroup")
        .mount("/sys/fs/cgroup", "cgroup2", "cgroup", &["rw"])
        .without("cgroup")
        .namespace("cgroup");
    let line = "group=/sys/fs/cgroup/$(printf 'x\\377'); mkdir $group || exit 1; sleep 100 & echo $! > $group/cgroup.procs || exit 2; \
                touch /ready; wait";
    lab.sh(line).start();
    eventually("somebody is in it", || lab.root("/ready").exists() || lab.status() == "stopped");
    let pids: Vec<i64> = serde_json::from_str(lab.on(&["ps", "--format", "json"]).succeeded().out.trim()).unwrap();
    assert_eq!(pids.len(), 2, "{pids:?}");
    let inside = pids.iter().filter(|pid| fs::read(format!("/proc/{pid}/cgroup")).unwrap().contains(&0xff)).count();
    assert_eq!(inside, 1);
    lab.on(&["delete", "--force"]).succeeded();
}

#[test]
fn a_full_disk_is_told_of_at_each_write_and_leaves_nothing() {
    let Some(mut lab) = Lab::new() else { return };
    fs::create_dir(lab.path().join("records")).unwrap();
    lab.args(&["true"]);
    // Records on a private disk with exactly so many inodes and pages, in a mount namespace of the test.
    let attempt = |inodes: usize, pages: usize| {
        let command = lab.command(&["run", "--pid-file", "records/pid", &lab.id]);
        let shell = format!(
            "mount -t tmpfs -o nr_inodes={inodes},size={}k tmpfs records || exit 99; \"$@\"; status=$?; rm -f records/pid; ls -A records; exit $status",
            pages * 4
        );
        let mut wrapped = std::process::Command::new("unshare");
        wrapped.args(["-m", "/bin/sh", "-c", &shell, "sh"]).arg(command.get_program()).args(command.get_args());
        let done = crate::support::finish(wrapped.current_dir(lab.path()).stdin(std::process::Stdio::null()));
        assert_ne!(done.status, 99, "{}", done.err);
        assert_eq!(done.out, "", "with {inodes} inodes and {pages} pages something is left: {}", done.err);
        assert!(!done.err.contains("panicked"), "{}", done.err);
        if done.status != 0 {
            assert!(done.err.contains("no space left on device"), "{inodes} {pages}: {}", done.err);
        }
        done.status == 0
    };
    let enough = attempt(64, 64);
    assert!(enough, "it does not run with enough either");
    let by_inodes = (1..16).filter(|&inodes| !attempt(inodes, 64)).count();
    let by_pages = (1..16).filter(|&pages| !attempt(64, pages)).count();
    assert!(by_inodes > 2 && by_pages > 0, "it was never full: {by_inodes} {by_pages}");
}
