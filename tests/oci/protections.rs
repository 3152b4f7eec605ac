//! Protections by annotation (`dev.brig.*`): each is in force for a container of a bundle and of each engine, and not
//! on the weakened build.

use crate::attacks::attempt;
use crate::docker::Docker;
use crate::engines::Containerd;
use crate::podman::Podman;
use crate::support::{Done, Lab, eventually};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

/// A server on the host's loopback that answers each connection with `served`, and its port.
pub(crate) fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nserved");
        }
    });
    port
}

impl Lab {
    /// Adds an annotation.
    fn annotate(&mut self, key: &str, value: &str) -> &mut Lab {
        self.config["annotations"][key] = json!(value);
        self
    }

    /// Gives the process Docker's usual capabilities over files.
    fn file_capabilities(&mut self) -> &mut Lab {
        for set in ["bounding", "effective", "permitted"] {
            for name in ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETUID", "CAP_SETGID"] {
                self.config["process"]["capabilities"][set].as_array_mut().unwrap().push(json!(name));
            }
        }
        self
    }

    /// A directory for receipts.
    fn receipts(&mut self) -> &mut Lab {
        let directory = self.path().join("receipts");
        let _ = std::fs::create_dir(&directory);
        self.annotate("dev.brig.receipt", directory.to_str().unwrap())
    }

    fn receipt(&self) -> Value {
        let path = self.path().join("receipts").join(format!("{}.json", self.id));
        serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display())))
            .unwrap()
    }
}

/// The number of monitors: processes with this lab's records in their command line.
fn monitors(lab: &Lab) -> usize {
    let records = lab.path().join("records").display().to_string();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|each| std::fs::read(each.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&records)).count()
}

#[test]
fn unknown_keys_wrong_values_and_worthless_protections_are_refused() {
    let Some(mut lab) = Lab::new() else { return };
    let mut check = |key: &str, value: &str, words: &str| {
        lab.config["annotations"] = json!({key: value});
        lab.args(&["true"]).run().failed_with(words);
        assert!(lab.on(&["state"]).status != 0, "a container is left: {key}={value}");
    };
    check("dev.brig.sandbox", "yes", "unknown annotation `dev.brig.sandbox`");
    check("dev.brig.seccomp", "docker", "invalid value `docker` of the annotation `dev.brig.seccomp`");
    check("dev.brig.disk", "lots", "invalid value `lots` of the annotation `dev.brig.disk`");
    check("dev.brig.disk.inodes", "1000", "`dev.brig.disk.inodes` is set without `dev.brig.disk`");
    check("dev.brig.egress.allow", "https://a.example/", "dev.brig.egress.allow");
    check("dev.brig.receipt", "/nonexistent/receipts", "`/nonexistent/receipts` of `dev.brig.receipt` does not exist");
    let Some(mut lab) = Lab::new() else { return };
    lab.annotate("dev.brig.egress.allow", "a.example").without("network").args(&["true"]);
    lab.run().failed_with("the network is the host's");
    let Some(mut lab) = Lab::new() else { return };
    lab.config["process"]["capabilities"]["bounding"].as_array_mut().unwrap().push(json!("CAP_SYS_ADMIN"));
    for (key, value) in
        [("dev.brig.egress.allow", "a.example"), ("dev.brig.disk", "16M"), ("dev.brig.seccomp", "agent")]
    {
        lab.config["annotations"] = json!({key: value});
        lab.args(&["true"]).run().failed_with("--privileged");
    }
}

#[test]
fn annotations_of_the_runtimes_flag_hold_and_contradict_no_other() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("dd if=/dev/zero of=/big bs=1M count=32 2> /dev/null || echo full");
    let flag = ["--annotation", "dev.brig.disk=16M"];
    let done = lab.brig(&[&flag[..], &["run", &lab.id]].concat());
    assert_eq!((done.succeeded().out.as_str(), lab.root("/big").exists()), ("full\n", false));
    lab.annotate("dev.brig.disk", "1G");
    lab.brig(&[&flag[..], &["run", &lab.id]].concat()).failed_with("leave it out of one of the two");
    lab.brig(&["--annotation", "dev.brig.disk", "run", &lab.id]).failed_with("is not KEY=VALUE");
}

#[test]
fn the_agents_filter_holds_for_the_container_and_for_exec_beside_its_own() {
    let line = "unshare -U true 2> /dev/null && echo users; mkdir /tmp/made 2> /dev/null && echo made; echo on";
    let run = |weakened: bool| {
        let mut lab = Lab::new()?;
        if weakened {
            lab.weaken("agent-annotation")?;
        }
        lab.annotate("dev.brig.seccomp", "agent");
        lab.config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
        });
        let first = lab.sh(line).run().out;
        lab.args(&["sleep", "100"]).start();
        Some((first, lab.exec(line).out))
    };
    let Some((first, second)) = run(false) else { return };
    assert_eq!((first.as_str(), second.as_str()), ("on\n", "on\n"));
    if let Some((first, second)) = run(true) {
        assert_eq!((first.as_str(), second.as_str()), ("users\non\n", "users\non\n"), "the control");
    }
}

#[test]
fn agents_filter_leaves_no_packet_socket_to_a_container_with_the_capability() {
    // The kernel makes AF_PACKET of AF_INET for this type.
    let packet = "#include <sys/socket.h>\nint main(void) { return socket(AF_INET, SOCK_PACKET, 8) < 0; }";
    attempt("agent-annotation", |lab| {
        if lab.compile("packet", packet).is_none() {
            return lab.weakened.is_some();
        }
        for set in ["bounding", "effective", "permitted"] {
            lab.config["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_NET_RAW"));
        }
        lab.annotate("dev.brig.seccomp", "agent").sh("packet && echo made").run().out == "made\n"
    });
}

#[test]
fn agents_filter_beside_a_filter_with_a_listener_is_refused() {
    let Some(mut lab) = Lab::new() else { return };
    lab.annotate("dev.brig.seccomp", "agent");
    lab.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": "/run/listener",
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}],
    });
    lab.sh("true").run().failed_with("allows no other filter with a listener");
}

#[test]
fn landlock_of_an_older_kernel_is_refused_unless_it_is_optional() {
    let Some(mut lab) = Lab::new() else { return };
    if lab.weaken("kernel-landlock-scopes").is_none() {
        return;
    }
    let rules = r#"{"rules": [{"path": "/", "access": "write"}], "optional": true}"#;
    for strict in ["agent", r#"{"rules": []}"#] {
        lab.annotate("dev.brig.landlock", strict)
            .sh("echo ran")
            .run()
            .failed_with("no rule for device ioctls, signals");
    }
    for optional in ["agent,optional", rules] {
        lab.receipts().annotate("dev.brig.landlock", optional);
        assert_eq!(lab.sh("echo ran").run().out, "ran\n", "{optional}");
        assert_eq!(lab.receipt()["protections"]["landlock"], json!(false));
        std::fs::remove_dir_all(lab.path().join("receipts")).unwrap();
    }
    lab.weakened = None;
    lab.receipts().annotate("dev.brig.landlock", "agent,optional");
    assert_eq!(lab.sh("echo ran").run().out, "ran\n");
    assert_eq!(lab.receipt()["protections"]["landlock"], json!(true));
}

#[test]
fn capped_root_takes_no_more_than_its_bytes_and_never_changes_the_bundle() {
    let line = "dd if=/dev/zero of=/big bs=1M count=40 2> /dev/null || echo full; rm -f /big; rm /bin/ls; \
                mkdir -p /logs/a; echo x > /logs/a/b; chown 1000:1000 /etc/passwd; stat -c %u:%a /etc/passwd / | tr '\\n' ' '";
    let run = |weakened: bool| {
        let mut lab = Lab::new()?;
        if weakened {
            lab.weaken("disk-annotation")?;
        }
        lab.file_capabilities().annotate("dev.brig.disk", "24M");
        let out = lab.sh(line).run().out;
        Some((out, lab.root("/logs").exists(), !lab.root("/bin/ls").is_symlink()))
    };
    let Some((out, is_made, is_removed)) = run(false) else { return };
    assert_eq!((out.as_str(), is_made, is_removed), ("full\n1000:644 0:755 ", false, false));
    if let Some((out, is_made, is_removed)) = run(true) {
        assert!(!out.contains("full") && is_made && is_removed, "the control: {out}");
    }
}

#[test]
fn capped_root_holds_no_more_files_than_its_inodes() {
    let Some(mut lab) = Lab::new() else { return };
    lab.annotate("dev.brig.disk", "16M").annotate("dev.brig.disk.inodes", "200").receipts();
    lab.sh("i=0; while touch /tmp/$i; do i=$((i + 1)); [ $i -lt 1000 ] || break; done 2> /dev/null; echo $i");
    let out = lab.run().out;
    let made: u32 = out.trim().parse().unwrap_or(1000);
    assert!((100..=200).contains(&made), "{out}");
    let receipt = lab.receipt();
    assert_eq!(receipt["limits_hit"], json!(["disk"]), "{receipt}");
}

#[test]
fn capped_root_in_a_user_namespace_takes_no_more_than_its_bytes() {
    let Some(mut lab) = Lab::new() else { return };
    let done = std::process::Command::new("chown").args(["-R", "700000:700000"]).arg(lab.root("/")).status();
    assert!(done.unwrap().success());
    std::fs::set_permissions(lab.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // On a disk of the host's root: the container's memory is less.
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 12 << 20});
    lab.user_namespace().annotate("dev.brig.disk", "16M");
    lab.sh("dd if=/dev/zero of=/tmp/big bs=1M count=40 2> /dev/null || echo full; rm -f /tmp/big; rm /bin/ls && echo removed");
    assert_eq!(lab.run().succeeded().out, "full\nremoved\n");
    assert!(lab.root("/bin/ls").is_symlink());
}

#[test]
fn egress_leads_to_the_allowed_host_and_nowhere_else() {
    let (open, other) = (server(), server());
    let Some(mut lab) = Lab::new() else { return };
    lab.annotate("dev.brig.egress.allow", &format!("127.0.0.1:{open}")).receipts();
    lab.sh(&format!(
        "wget -q -O - http://127.0.0.1:{open}/; echo; wget -q -O - http://127.0.0.1:{other}/ 2> /dev/null || echo refused; \
         nslookup a.example 2>&1 | grep -o NXDOMAIN | head -n 1; nc -w 5 192.0.2.1 80 2>&1 | grep -c unreachable; \
         ls /sys/class/net | tr '\\n' ' '"
    ));
    assert_eq!(lab.run().succeeded().out.trim_end(), "served\nrefused\nNXDOMAIN\n1\nlo");
    let receipt = lab.receipt();
    let rows = receipt["egress"].as_array().unwrap();
    let row = |host: &str| rows.iter().find(|row| row["host"] == host).unwrap_or_else(|| panic!("{host}: {receipt}"));
    assert_eq!((&row("127.0.0.1")["allowed"], &row("a.example")["allowed"]), (&json!(true), &json!(false)));
    assert!(row("127.0.0.1")["received_bytes"].as_u64().unwrap() > 0, "{receipt}");
    eventually("the monitor ends with the container", || monitors(&lab) == 0);
}

#[test]
fn killed_monitor_closes_the_network_and_delete_still_works() {
    let open = server();
    let Some(mut lab) = Lab::new() else { return };
    lab.annotate("dev.brig.egress.allow", &format!("127.0.0.1:{open}")).args(&["sleep", "100"]).start();
    let line = format!("wget -q -O - http://127.0.0.1:{open}/");
    assert_eq!(lab.exec(&line).out, "served");
    let record = std::fs::read(lab.path().join("records").join(&lab.id).join("state.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let pid = rustix::process::Pid::from_raw(record["monitor"]["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("the way out is closed", || lab.exec(&line).status != 0);
    lab.on(&["delete", "--force"]).succeeded();
    eventually("no process is left", || monitors(&lab) == 0);
}

/// Whether the kernel reports the end of a process to others than its parent (PIDFD_GET_INFO, Linux 6.15).
fn has_exit_info() -> bool {
    let release = rustix::system::uname().release().to_str().unwrap().to_owned();
    let mut numbers = release.split(|each: char| !each.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 15)
}

#[test]
fn receipt_says_how_the_container_ended() {
    let Some(mut lab) = Lab::new() else { return };
    lab.receipts();
    let mut check = |line: &str, outcome: &str, code: Value, signal: Value| {
        lab.sh(line).run();
        let receipt = lab.receipt();
        if !has_exit_info() && receipt["outcome"] == "unknown" {
            assert!(receipt["faults"][0].as_str().unwrap().contains("Linux 6.15"), "{line}: {receipt}");
            return receipt;
        }
        assert_eq!(
            (&receipt["outcome"], &receipt["exit_code"], &receipt["signal"]),
            (&json!(outcome), &code, &signal),
            "{line}: {receipt}"
        );
        receipt
    };
    check("true", "succeeded", json!(0), Value::Null);
    check("exit 3", "failed", json!(3), Value::Null);
    let receipt = check("trap - TERM; kill -TERM $$; exec sleep 5", "succeeded", json!(0), Value::Null);
    assert_eq!(receipt["limits_hit"], json!([]));
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 16 << 20, "swap": 16 << 20});
    let mut lab = lab;
    lab.sh("exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'").run();
    let receipt = lab.receipt();
    assert_eq!((&receipt["outcome"], &receipt["limits_hit"]), (&json!("memory"), &json!(["memory"])), "{receipt}");
    assert!(
        receipt["evidence"]["oom_kills"].as_u64().unwrap() > 0 && receipt["usage"]["memory_peak"].as_u64().is_some()
    );
}

/// An engine's container with all protections: the results are those of the tests above.
fn line(open: u16, other: u16) -> String {
    format!(
        "wget -q -O - http://127.0.0.1:{open}/; echo; wget -q -O - http://127.0.0.1:{other}/ 2> /dev/null || echo refused; \
         dd if=/dev/zero of=/big bs=1M count=40 2> /dev/null || echo full; rm -f /big; \
         unshare -U true 2> /dev/null || echo no users; mkdir -p /logs && chown 1000 /logs && su user -c 'id -u'; exit 4"
    )
}

fn check_engine(done: &Done, receipts: &Path) {
    assert_eq!((done.status, done.out.as_str()), (4, "served\nrefused\nfull\nno users\n1000\n"), "{}", done.err);
    let mut receipt = Value::Null;
    eventually("the receipt is written", || {
        let files = std::fs::read_dir(receipts)
            .unwrap()
            .flatten()
            .find(|file| file.path().extension().is_some_and(|e| e == "json"));
        receipt = files
            .and_then(|file| serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok())
            .unwrap_or(Value::Null);
        receipt != Value::Null
    });
    let is_unknown = !has_exit_info() && receipt["outcome"] == "unknown";
    assert!(is_unknown || (&receipt["outcome"], &receipt["exit_code"]) == (&json!("failed"), &json!(4)), "{receipt}");
    assert!(receipt["protections"]["seccomp"] == "agent" && receipt["disk"]["used_bytes"].is_u64(), "{receipt}");
}

const LANDLOCK: &str = r#"{"rules":[{"path":"/","access":"write"}]}"#;

/// Every protection as `KEY=VALUE`.
fn every(open: u16, receipts: &Path) -> Vec<String> {
    vec![
        format!("dev.brig.egress.allow=127.0.0.1:{open}"),
        "dev.brig.disk=24M".to_owned(),
        "dev.brig.seccomp=agent".to_owned(),
        format!("dev.brig.receipt={}", receipts.display()),
        format!("dev.brig.landlock={LANDLOCK}"),
    ]
}

#[test]
fn docker_has_every_protection_by_the_runtimes_arguments() {
    let (open, other) = (server(), server());
    let receipts = tempfile::tempdir().unwrap();
    // Docker before 23 runs the runtime by an unquoted line of shell.
    let quoted = |each: String| format!("'{each}'");
    let arguments: Vec<_> =
        every(open, receipts.path()).into_iter().flat_map(|each| ["--annotation".to_owned(), quoted(each)]).collect();
    let runtime = json!({"path": env!("CARGO_BIN_EXE_brig"), "runtimeArgs": arguments});
    let Some(docker) = Docker::with_runtime("agent", &runtime) else { return };
    let line = line(open, other);
    let done = docker
        .run(&format!("docker run --rm --runtime agent --network none bb sh -c '{}'", line.replace('\'', "'\\''")), "");
    check_engine(&done, receipts.path());
    let done = docker.run("docker run --rm --privileged --runtime agent --network none bb true", "");
    done.failed_with("--privileged");
}

#[test]
fn podman_has_every_protection_by_annotations() {
    let (open, other) = (server(), server());
    let receipts = tempfile::tempdir().unwrap();
    let Some(podman) = Podman::new("podman") else { return };
    let annotations = podman.annotations(&every(open, receipts.path()));
    let line = line(open, other).replace('\'', "'\\''");
    let done = podman.run(&format!("podman run --rm --network none{annotations} bb sh -c '{line}'"), "brig");
    check_engine(&done, receipts.path());
}

#[test]
fn containerd_has_every_protection_by_annotations() {
    let (open, other) = (server(), server());
    let receipts = tempfile::tempdir().unwrap();
    let Some(containerd) = Containerd::start("") else { return };
    let annotations: String =
        every(open, receipts.path()).into_iter().map(|each| format!(" --annotation '{each}'")).collect();
    // containerd loses the last line of a container that ends at once.
    let line = line(open, other).replace('\'', "'\\''").replace("; exit 4", "; sleep 0.5; exit 4");
    let done = containerd.run(&format!("$RUN --rm{annotations} $IMAGE $C sh -c '{line}'"));
    check_engine(&done, receipts.path());
}
