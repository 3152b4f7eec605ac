//! The driver against a real bus with a fake systemd. `container::group` tests it against the real one.

use super::bus::{Address, Bus, Peer};
use super::*;
use crate::sys::skip;
use serde_json::{Value as Json, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

struct FakeBus {
    daemon: Child,
    service: Child,
    output: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
}

impl FakeBus {
    fn start() -> Option<FakeBus> {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix:path={}", directory.path().join("bus").display());
        // Debian's own interpreter: others do not have the packages.
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
        let mut output = BufReader::new(service.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        assert_eq!(first.trim(), r#"["Ready"]"#);
        Some(FakeBus { daemon, service, output, directory })
    }

    fn connect(&self) -> Systemd {
        let address = Address::Path(self.directory.path().join("bus"));
        Systemd::on(Bus::connect(&address, Peer::Bus).unwrap()).unwrap()
    }

    fn next_call(&mut self) -> Json {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
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
fn unit_is_started_changed_joined_and_stopped_over_a_real_bus() {
    let Some(mut bus) = FakeBus::start() else { return };
    let mut systemd = bus.connect();
    assert_eq!(bus.next_call(), json!(["Subscribe"]));
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
        assert_eq!(bus.next_call(), expected);
    }

    let limits = serde_json::from_str(r#"{"pids": {"limit": 7}}"#).unwrap();
    systemd.set(&scope("late"), &limits, true).unwrap();
    assert_eq!(bus.next_call(), json!(["SetUnitProperties", "late.scope", true, [["TasksMax", ["t", 7]]]]));
    systemd.attach(&scope("late"), "/inner", &[5, 6]).unwrap();
    assert_eq!(bus.next_call(), json!(["AttachProcessesToUnit", "late.scope", "/inner", [5, 6]]));
    systemd.stop(&scope("late")).unwrap();
    assert_eq!(bus.next_call(), json!(["StopUnit", "late.scope", "replace"]));
    assert_eq!(bus.next_call(), json!(["ResetFailedUnit", "late.scope"]));
    systemd.stop(&scope("late")).unwrap();
}

#[test]
fn failed_unit_of_the_same_name_is_reset_and_a_running_one_is_not() {
    let Some(mut bus) = FakeBus::start() else { return };
    let mut systemd = bus.connect();
    let none = crate::spec::resources::Resources::default();
    bus.next_call();
    systemd.start(&scope("old"), Some(1), &none, &[], true).unwrap();
    assert_eq!(bus.next_call(), json!(["ResetFailedUnit", "old.scope"]));
    assert_eq!(bus.next_call()[0], "StartTransientUnit");
    let error = systemd.start(&scope("old"), Some(1), &none, &[], true).unwrap_err().to_string();
    assert_eq!(
        error,
        "start the unit `old.scope`: Unit old.scope was already loaded or has a fragment file. (org.freedesktop.systemd1.UnitExists)"
    );
    bus.next_call();
    let error = systemd.start(&scope("broken"), Some(1), &none, &[], true).unwrap_err().to_string();
    assert_eq!(error, "start the unit `broken.scope`: the job ended as `failed`");
    assert_eq!(bus.next_call()[0], "StartTransientUnit");
    assert_eq!(bus.next_call(), json!(["ResetFailedUnit", "broken.scope"]));
}

#[test]
fn missing_or_dead_bus_is_an_error_and_not_a_hang() {
    let missing = Bus::connect(&Address::Path("/nowhere/bus".into()), Peer::Bus).unwrap_err();
    assert_eq!(missing.to_string(), "connect to the bus `/nowhere/bus`: No such file or directory (os error 2)");
    let Some(mut bus) = FakeBus::start() else { return };
    let mut systemd = bus.connect();
    bus.daemon.kill().unwrap();
    bus.daemon.wait().unwrap();
    let error = systemd.stop(&scope("x")).unwrap_err().to_string();
    assert!(error.starts_with("stop the unit `x.scope`: "), "{error}");
}
