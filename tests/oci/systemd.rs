//! The systemd driver end to end: a real bus with a small systemd that prints its requests. The real one is in
//! `tests/vm`.

use crate::support::{Lab, skip};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A bus and the service on it.
struct FakeSystemd {
    daemon: Child,
    service: Child,
    said: BufReader<ChildStdout>,
    address: String,
}

impl FakeSystemd {
    fn start(lab: &Lab) -> Option<FakeSystemd> {
        // Debian's own interpreter: another one does not have the packages.
        let check = Command::new("/usr/bin/python3").args(["-c", "import dbus, gi"]).stderr(Stdio::null()).status();
        if !check.is_ok_and(|status| status.success()) {
            skip("needs the packages python3-dbus and python3-gi");
            return None;
        }
        if std::path::Path::new("/run/systemd/private").exists() {
            skip("the real systemd runs here, which is asked first");
            return None;
        }
        let address = format!("unix:path={}", lab.path().join("bus").display());
        let daemon = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile", "--print-address=1", "--address", &address])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut daemon) = daemon else {
            skip("needs the program dbus-daemon");
            return None;
        };
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let script = lab.path().join("fake.py");
        std::fs::write(&script, include_bytes!("../../src/systemd/fake.py")).unwrap();
        let mut service = Command::new("/usr/bin/python3");
        let mut service = service.arg(script).arg(&address).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(service.stdout.take().unwrap());
        let mut fake = FakeSystemd { daemon, service, said, address };
        assert_eq!(fake.heard()[0], "Ready");
        Some(fake)
    }

    /// The next request.
    fn heard(&mut self) -> Value {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// The names of all further requests; ends the service.
    fn rest(mut self) -> Vec<String> {
        let _ = self.service.kill();
        let mut text = String::new();
        self.said.read_to_string(&mut text).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()[0].as_str().unwrap().to_owned()).collect()
    }

    /// Runs our command with this service as the host's systemd.
    fn brig(&self, lab: &Lab, arguments: &[&str]) {
        let mut command = lab.command(arguments);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", &self.address).stdout(Stdio::null());
        let log = std::fs::File::create(lab.path().join("log")).unwrap();
        let status = command.stderr(log).status().unwrap();
        let log = std::fs::read_to_string(lab.path().join("log")).unwrap();
        assert!(status.success(), "{arguments:?}: {log}");
    }
}

impl Drop for FakeSystemd {
    fn drop(&mut self) {
        for child in [&mut self.service, &mut self.daemon] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The cgroups of a process.
fn groups(pid: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

#[test]
fn systemd_makes_the_group_before_the_container_does_anything_and_removes_it() {
    let Some(mut lab) = Lab::new() else { return };
    let Some(mut systemd) = FakeSystemd::start(&lab) else { return };
    let slice = format!("t{}.slice", std::process::id());
    lab.config["linux"]["cgroupsPath"] = json!(format!("{slice}:brig:{}", lab.id));
    lab.config["linux"]["resources"] = json!({"memory": {"limit": 67_108_864}, "pids": {"limit": 33}});
    lab.config["annotations"] = json!({"org.systemd.property.TimeoutStopSec": "uint64 5"});
    let created = lab.path().join("at-create");
    let line = format!("cat /proc/self/cgroup > {}", created.display());
    lab.config["hooks"] =
        json!({"createContainer": [{"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin"]}]});
    lab.args(&["sleep", "100"]);
    systemd.brig(&lab, &["--systemd-cgroup", "create", &lab.id]);
    let state = lab.state();
    let pid = state["pid"].to_string();
    assert_eq!(systemd.heard()[0], "Subscribe");
    let started = systemd.heard();
    assert_eq!((&started[0], &started[1]), (&json!("StartTransientUnit"), &json!(format!("brig-{}.scope", lab.id))));
    let properties = started[3].to_string();
    for words in [
        format!(r#"["Slice",["s","{slice}"]]"#),
        format!(r#"["PIDs",["au",[["u",{pid}]]]]"#),
        r#"["t",67108864]]"#.to_owned(), // MemoryMax, on v1 MemoryLimit
        r#"["TasksMax",["t",33]]"#.to_owned(),
        r#"["TimeoutStopUSec",["t",5000000]]"#.to_owned(),
    ] {
        assert!(properties.contains(&words), "{words} is not in {properties}");
    }
    let unit = format!("/{slice}/brig-{}.scope", lab.id);
    for line in groups(&pid).lines() {
        assert!(line.ends_with(&unit), "{line} is not in {unit}");
    }
    // The cgroup namespace was made inside the cgroups: the container sees these as roots.
    let seen = std::fs::read_to_string(created).unwrap();
    assert!(seen.lines().all(|line| line.ends_with(":/") || line.ends_with(&unit)), "{seen}");

    systemd.brig(&lab, &["start", &lab.id]);
    // The driver is recorded: callers do not repeat it.
    systemd.brig(&lab, &["update", "--pids-limit", "44", &lab.id]);
    assert_eq!(systemd.heard()[0], "Subscribe");
    assert_eq!(systemd.heard()[3], json!([["TasksMax", ["t", 44]]]));
    systemd.brig(&lab, &["exec", &lab.id, "true"]);
    systemd.brig(&lab, &["delete", "--force", &lab.id]);
    let words = systemd.rest();
    assert!(words.contains(&"StopUnit".to_owned()), "{words:?}");
    remove(&slice);
}

#[test]
fn a_container_that_cannot_be_created_leaves_no_unit() {
    let Some(mut lab) = Lab::new() else { return };
    let Some(systemd) = FakeSystemd::start(&lab) else { return };
    let slice = format!("u{}.slice", std::process::id());
    lab.config["linux"]["cgroupsPath"] = json!(format!("{slice}:brig:{}", lab.id));
    lab.args(&["/nope"]);
    let mut command = lab.command(&["--systemd-cgroup", "create", &lab.id]);
    let done = crate::support::finish(command.env("DBUS_SYSTEM_BUS_ADDRESS", &systemd.address));
    done.failed_with("no such file or directory");
    let words = systemd.rest();
    assert!(words.contains(&"StartTransientUnit".to_owned()) && words.contains(&"StopUnit".to_owned()), "{words:?}");
    let left = crate::support::finish(Command::new("find").args([
        "/sys/fs/cgroup",
        "-name",
        &format!("brig-{}.scope", lab.id),
    ]));
    assert_eq!(left.out, "");
    remove(&slice);
}

#[test]
fn without_systemd_its_driver_is_refused_with_what_to_do() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["true"]);
    if !std::path::Path::new("/run/systemd/private").exists() {
        lab.config["linux"]["cgroupsPath"] = json!("system.slice:brig:x");
        let mut command = lab.command(&["--systemd-cgroup", "create", &lab.id]);
        let address = format!("unix:path={}", lab.path().join("nothing").display());
        crate::support::finish(command.env("DBUS_SYSTEM_BUS_ADDRESS", address)).failed_with("connect to systemd");
    }
    lab.config["linux"]["cgroupsPath"] = json!("/not/a/unit");
    lab.brig(&["--systemd-cgroup", "create", &lab.id]).failed_with("slice:prefix:name");
}

/// Removes a v2 group as soon as the processes in it have ended, as systemd does; `None` if no process came within a
/// minute.
fn remove_when_empty(group: &Path) -> Option<()> {
    let end = Instant::now() + Duration::from_secs(60);
    let is_populated =
        || std::fs::read_to_string(group.join("cgroup.events")).is_ok_and(|text| text.contains("populated 1"));
    while !is_populated() {
        if Instant::now() > end {
            return None;
        }
    }
    while group.exists() && Instant::now() < end {
        let _ = std::fs::remove_dir(group);
    }
    Some(())
}

#[test]
fn a_group_that_systemd_removes_meanwhile_is_empty() {
    let Some(mut lab) = Lab::new() else { return };
    let tree = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().map(Path::new);
    let Some(tree) = tree.into_iter().find(|tree| tree.join("cgroup.procs").exists()) else {
        skip("needs a cgroup v2 tree");
        return;
    };
    let Some(systemd) = FakeSystemd::start(&lab) else { return };
    let slice = format!("w{}.slice", std::process::id());
    lab.config["linux"]["cgroupsPath"] = json!(format!("{slice}:brig:{}", lab.id));
    let group = tree.join(&slice).join(format!("brig-{}.scope", lab.id));
    lab.without("pid").args(&["sleep", "0.05"]);
    for round in 0..30 {
        std::thread::scope(|scope| {
            let remover = scope.spawn(|| remove_when_empty(&group));
            if round % 2 == 0 {
                systemd.brig(&lab, &["--systemd-cgroup", "run", &lab.id]);
            } else {
                systemd.brig(&lab, &["--systemd-cgroup", "create", &lab.id]);
                systemd.brig(&lab, &["start", &lab.id]);
                systemd.brig(&lab, &["delete", "--force", &lab.id]);
            }
            remover.join().unwrap().unwrap();
        });
    }
    remove(&slice);
}

/// Removes a slice as systemd does; this service does not.
fn remove(slice: &str) {
    crate::support::finish(Command::new("find").args([
        "/sys/fs/cgroup",
        "-depth",
        "-name",
        slice,
        "-exec",
        "rmdir",
        "{}",
        ";",
    ]));
}
