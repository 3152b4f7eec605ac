//! The driver against a real bus with a small systemd on it, and against the real one where it is there.

use super::bus::{Address, Bus, Peer};
use super::*;
use crate::cgroup::controller::Controller;
use crate::cgroup::tests::support::skip;
use crate::cgroup::{Cgroup, CgroupPath, Hierarchy, Layout, Purpose};
use serde_json::{Value as Json, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

struct FakeBus {
    daemon: Child,
    service: Child,
    said: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
}

impl FakeBus {
    fn start() -> Option<FakeBus> {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix:path={}", directory.path().join("bus").display());
        // Debian's own interpreter: another one does not have the packages.
        let python = "/usr/bin/python3";
        let check = Command::new(python).args(["-c", "import dbus, gi"]).stderr(Stdio::null()).status();
        if !check.is_ok_and(|status| status.success()) {
            skip("systemd's driver on a bus: needs the packages python3-dbus and python3-gi");
            return None;
        }
        let daemon = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile", "--print-address=1", "--address", &address])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut daemon) = daemon else {
            skip("systemd's driver on a bus: needs the program dbus-daemon");
            return None;
        };
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let script = directory.path().join("fake.py");
        std::fs::write(&script, include_bytes!("fake.py")).unwrap();
        let mut service = Command::new(python);
        service.arg(script).arg(address).stdout(Stdio::piped());
        let mut service = service.spawn().unwrap();
        let mut said = BufReader::new(service.stdout.take().unwrap());
        let mut first = String::new();
        said.read_line(&mut first).unwrap();
        assert_eq!(first.trim(), r#"["Ready"]"#);
        Some(FakeBus { daemon, service, said, directory })
    }

    fn connect(&self) -> Systemd {
        let address = Address::Path(self.directory.path().join("bus"));
        Systemd::on(Bus::connect(&address, Peer::Bus).unwrap()).unwrap()
    }

    fn heard(&mut self) -> Json {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for FakeBus {
    fn drop(&mut self) {
        for child in [&mut self.service, &mut self.daemon] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn scope(name: &str) -> Unit {
    Unit::parse(&format!("system.slice::{name}"), "x", Manager::System).unwrap()
}

#[test]
fn a_unit_is_started_changed_joined_and_stopped_over_a_real_bus() {
    let Some(mut bus) = FakeBus::start() else { return };
    let mut systemd = bus.connect();
    assert_eq!(bus.heard(), json!(["Subscribe"]));
    assert_eq!(systemd.version(), 257);
    assert_eq!(systemd.group().unwrap(), "user.slice/user-1000.slice/user@1000.service");

    let limits = serde_json::from_str(
        r#"{"memory": {"limit": 1048576}, "cpu": {"cpus": "0-1"}, "devices": [{"allow": false}, {"allow": true, "type": "c", "major": 1, "minor": 3}]}"#,
    )
    .unwrap();
    let extra = [property("TimeoutStopSec", "uint64 5").unwrap(), property("After", "['a.service']").unwrap()];
    for name in ["late", "early"] {
        systemd.start(&scope(name), Some(4321), &limits, &extra, true).unwrap();
        let expected = json!([
            "StartTransientUnit",
            format!("{name}.scope"),
            "replace",
            [
                ["Description", ["s", format!("brig container {name}.scope")]],
                ["Slice", ["s", "system.slice"]],
                ["Delegate", ["b", 1]],
                ["PIDs", ["au", [["u", 4321]]]],
                ["MemoryAccounting", ["b", 1]],
                ["CPUAccounting", ["b", 1]],
                ["IOAccounting", ["b", 1]],
                ["TasksAccounting", ["b", 1]],
                ["DefaultDependencies", ["b", 0]],
                ["OOMPolicy", ["s", "continue"]],
                ["DevicePolicy", ["s", "strict"]],
                ["DeviceAllow", ["a(ss)", []]],
                ["DeviceAllow", ["a(ss)", [[["s", "/dev/char/1:3"], ["s", "rwm"]]]]],
                ["MemoryMax", ["t", 1048576]],
                ["AllowedCPUs", ["ay", [["y", 3]]]],
                ["TimeoutStopUSec", ["t", 5000000]],
                ["After", ["as", [["s", "a.service"]]]],
            ],
            0
        ]);
        assert_eq!(bus.heard(), expected);
    }

    let limits = serde_json::from_str(r#"{"pids": {"limit": 7}}"#).unwrap();
    systemd.set(&scope("late"), &limits, true).unwrap();
    assert_eq!(bus.heard(), json!(["SetUnitProperties", "late.scope", true, [["TasksMax", ["t", 7]]]]));
    systemd.attach(&scope("late"), "/inner", &[5, 6]).unwrap();
    assert_eq!(bus.heard(), json!(["AttachProcessesToUnit", "late.scope", "/inner", [5, 6]]));
    systemd.stop(&scope("late")).unwrap();
    assert_eq!(bus.heard(), json!(["StopUnit", "late.scope", "replace"]));
    assert_eq!(bus.heard(), json!(["ResetFailedUnit", "late.scope"]));
    systemd.stop(&scope("late")).unwrap();
}

#[test]
fn a_failed_unit_of_the_same_name_is_cleared_and_a_running_one_is_not() {
    let Some(mut bus) = FakeBus::start() else { return };
    let mut systemd = bus.connect();
    let none = crate::spec::resources::Resources::default();
    bus.heard();
    systemd.start(&scope("old"), Some(1), &none, &[], true).unwrap();
    assert_eq!(bus.heard(), json!(["ResetFailedUnit", "old.scope"]));
    assert_eq!(bus.heard()[0], "StartTransientUnit");
    let error = systemd.start(&scope("old"), Some(1), &none, &[], true).unwrap_err().to_string();
    assert_eq!(
        error,
        "start the unit `old.scope`: Unit old.scope was already loaded or has a fragment file. (org.freedesktop.systemd1.UnitExists)"
    );
    bus.heard();
    let error = systemd.start(&scope("broken"), Some(1), &none, &[], true).unwrap_err().to_string();
    assert_eq!(error, "start the unit `broken.scope`: the job ended as `failed`");
    assert_eq!(bus.heard()[0], "StartTransientUnit");
    assert_eq!(bus.heard(), json!(["ResetFailedUnit", "broken.scope"]));
}

#[test]
fn a_bus_that_is_not_there_or_dies_is_an_error_and_not_a_hang() {
    let missing = Bus::connect(&Address::Path("/nowhere/bus".into()), Peer::Bus).unwrap_err();
    assert_eq!(missing.to_string(), "connect to the bus `/nowhere/bus`: No such file or directory (os error 2)");
    let Some(mut bus) = FakeBus::start() else { return };
    let mut systemd = bus.connect();
    bus.daemon.kill().unwrap();
    bus.daemon.wait().unwrap();
    let error = systemd.stop(&scope("x")).unwrap_err().to_string();
    assert!(error.starts_with("stop the unit `x.scope`: "), "{error}");
}

#[test]
fn the_real_systemd_makes_the_group_and_we_write_the_rest() {
    let is_root = rustix::process::geteuid().is_root();
    let manager = if is_root { Manager::System } else { Manager::User };
    let Ok(mut systemd) = Systemd::connect(manager) else {
        return skip("the real systemd: it does not run here");
    };
    let hierarchy = Hierarchy::probe().unwrap();
    let is_v2 = hierarchy.layout() == Layout::Unified;
    let name = format!("test-{}", std::process::id());
    let unit = Unit::parse(&format!(":brig:{name}"), "x", manager).unwrap();
    let above = if is_root { String::new() } else { systemd.group().unwrap() };
    let path = CgroupPath::parse(&format!("/{above}/{}", unit.path().unwrap())).unwrap();
    let limits: crate::spec::resources::Resources = serde_json::from_str(
        r#"{"memory": {"limit": 67108864, "swap": 67108864}, "pids": {"limit": 0}, "cpu": {"quota": 33333, "period": 100000}}"#,
    )
    .unwrap();
    if !hierarchy.refusals(Purpose::Container, &limits).unwrap().is_empty() {
        return skip("the real systemd: its controllers are not here");
    }
    let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
    let extra = [property("CollectMode", "'inactive-or-failed'").unwrap()];
    systemd.start(&unit, Some(child.id() as i32), &limits, &extra, is_v2).unwrap();
    let group = Cgroup::adopt(&hierarchy, &path, child.id() as i32, Purpose::Container, &limits).unwrap();
    assert_eq!(group.processes().unwrap(), vec![child.id() as i32]);
    let read = |controller, file: &str| group.group(controller).unwrap().directory.get(file).unwrap().trim().to_owned();
    // What systemd rounds or does not take is exact in the files: 33.333 %, and no task at all.
    assert_eq!(read(Controller::Pids, "pids.max"), "0");
    if is_v2 {
        assert_eq!(read(Controller::Memory, "memory.max"), "67108864");
        assert_eq!(read(Controller::Memory, "memory.swap.max"), "0");
        assert_eq!(read(Controller::Cpu, "cpu.max"), "33333 100000");
    }
    let limits = serde_json::from_str(r#"{"memory": {"limit": 33554432}, "pids": {"limit": 7}}"#).unwrap();
    systemd.set(&unit, &limits, is_v2).unwrap();
    group.update(&limits).unwrap();
    assert_eq!(read(Controller::Pids, "pids.max"), "7");

    let mut second = Command::new("/bin/sleep").arg("60").spawn().unwrap();
    systemd.attach(&unit, "", &[second.id()]).unwrap();
    assert_eq!(group.processes().unwrap().len(), 2);
    group.kill().unwrap();
    for child in [&mut child, &mut second] {
        assert!(!child.wait().unwrap().success());
    }
    systemd.stop(&unit).unwrap();
    group.remove().map_err(crate::error::Error::from).unwrap();
    assert!(Cgroup::open(&group.record()).unwrap().is_gone());
    systemd.stop(&unit).unwrap();
}
