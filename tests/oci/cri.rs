//! The commands of CRI-O, which Debian does not have: conmon, which Podman has, with CRI-O's arguments, and CRI-O's own
//! verbs (`internal/oci/runtime_oci.go`). With systemd its driver is used, as is CRI-O's default.

use crate::support::{Done, Lab, eventually, finish, skip};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A directory for conmon's output.
struct Crio {
    lab: Lab,
    systemd: bool,
}

impl Crio {
    fn new() -> Option<Crio> {
        let mut lab = Lab::new()?;
        if !Path::new("/usr/bin/conmon").exists() {
            skip("needs conmon");
            return None;
        }
        for name in ["exits", "sockets", "persist"] {
            std::fs::create_dir(lab.path().join(name)).unwrap();
        }
        let systemd = Path::new("/run/systemd/private").exists();
        lab.config["linux"]["cgroupsPath"] =
            json!(if systemd { format!("system.slice:crio:{}", lab.id) } else { format!("/crio-{}", lab.id) });
        Some(Crio { lab, systemd })
    }

    /// Runs conmon. The returned file replaces its pipe to CRI-O, to which it writes one line for each report.
    fn conmon(&self, name: &str, words: &[&str]) -> std::path::PathBuf {
        let at = |name: &str| self.lab.path().join(name).display().to_string();
        let command = self.lab.command(&[]); // it writes config.json
        let sync = self.lab.path().join(format!("{name}.sync"));
        let mut conmon = Command::new("/bin/sh");
        conmon.args(["-c", "exec conmon \"$@\" 3> $SYNC", "sh", "-b", &at(""), "-c", &self.lab.id, "-u", &self.lab.id]);
        conmon.args(["-n", "k8s_one_pod"]);
        conmon.args(["-l", &at(&format!("{name}.log")), "--log-level", "info", "-P", &at("conmon.pid")]);
        conmon.args(["--socket-dir-path", &at("sockets"), "-r", command.get_program().to_str().unwrap()]);
        conmon.args(["--runtime-arg", &format!("--root={}", at("records"))]).args(words);
        if self.systemd {
            conmon.arg("-s");
        }
        conmon.env("_OCI_SYNCPIPE", "3").env("SYNC", &sync).current_dir(self.lab.path());
        // The status is that of the command that conmon has waited for.
        conmon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        sync
    }

    /// Creates the container; returns conmon's report: a process, or a sentence.
    fn create(&self, words: &[&str]) -> Value {
        let at = |name: &str| self.lab.path().join(name).display().to_string();
        let (pid, exits, persist) = (at("pidfile"), at("exits"), at("persist"));
        let usual = ["-p", &pid, "--exit-dir", &exits, "--persist-dir", &persist];
        let sync = self.conmon("create", &[&usual, words].concat());
        said(&sync, 1).remove(0)
    }

    /// Its end, as conmon leaves it for CRI-O.
    fn exit(&self) -> String {
        let file = self.lab.path().join("exits").join(&self.lab.id);
        eventually("conmon has seen its end", || file.exists());
        std::fs::read_to_string(file).unwrap()
    }

    /// The socket to which CRI-O attaches.
    fn attach(&self) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let path = self.lab.path().join("sockets").join(&self.lab.id).join("attach");
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(10))).unwrap();
        socket
    }

    /// A verb as CRI-O calls it.
    fn runtime(&self, words: &[&str]) -> Done {
        let driver: &[&str] = if self.systemd { &["--systemd-cgroup"] } else { &[] };
        self.lab.brig(&[driver, words].concat())
    }
}

/// The output from conmon until `words`. A message's first byte is the stream; its number precedes the output of
/// another stream.
fn heard(socket: &OwnedFd, words: &str) -> String {
    let (mut all, mut bytes, mut stream) = (String::new(), [0; 8193], 0);
    while !all.contains(words) {
        let (count, _) = recv(socket, &mut bytes, RecvFlags::empty()).unwrap_or_else(|errno| panic!("{errno}: {all}"));
        assert!(count > 0, "it ended: {all}");
        if stream != bytes[0] {
            stream = bytes[0];
            all += &format!("{stream}:");
        }
        all += String::from_utf8_lossy(&bytes[1..count]).trim_end_matches('\0');
    }
    all
}

/// The first lines of a pipe, after they have arrived.
fn said(sync: &Path, count: usize) -> Vec<Value> {
    let lines = || std::fs::read_to_string(sync).unwrap_or_default();
    eventually("conmon answers", || lines().matches('\n').count() >= count);
    lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_container_of_a_pod_lives_as_cri_o_has_it() {
    let Some(mut pod) = Lab::new() else { return };
    pod.config["hostname"] = json!("pod");
    pod.args(&["sleep", "100"]).start();
    let first = pod.state()["pid"].as_i64().unwrap();
    let Some(mut crio) = Crio::new() else { return };
    let lab = &mut crio.lab;
    lab.config["hostname"] = json!("");
    for (kind, file) in [("network", "net"), ("ipc", "ipc"), ("uts", "uts")] {
        let namespace = json!({"type": kind, "path": format!("/proc/{first}/ns/{file}")});
        lab.without(kind).config["linux"]["namespaces"].as_array_mut().unwrap().push(namespace);
    }
    lab.config["annotations"] =
        json!({"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.pod.name": "pod"});
    lab.sh("trap 'exit 9' TERM; hostname; echo complaint >&2; while :; do sleep 0.1; done");
    let pid = crio.create(&[])["pid"].as_i64().unwrap();
    let lab = &crio.lab;
    assert_eq!(std::fs::read_to_string(lab.path().join("pidfile")).unwrap(), pid.to_string());
    let state: Value = serde_json::from_str(&crio.runtime(&["state", &lab.id]).out).unwrap();
    assert_eq!((&state["status"], &state["pid"]), (&json!("created"), &json!(pid)));
    assert!(humantime_like(state["created"].as_str().unwrap()), "{state}");
    crio.runtime(&["start", &lab.id]).succeeded();
    let log = || std::fs::read_to_string(lab.path().join("create.log")).unwrap_or_default();
    eventually("it has said all", || log().lines().count() >= 2);
    assert!(log().contains(" stdout F pod\n") && log().contains(" stderr F complaint\n"), "{}", log());

    // ExecSync, through conmon and without it.
    let process = json!({"args": ["sh", "-c", "echo in; exit 5"], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}});
    let file = lab.path().join("process.json");
    std::fs::write(&file, process.to_string()).unwrap();
    let direct = crio.runtime(&["exec", "--process", file.to_str().unwrap(), &lab.id]);
    assert_eq!((direct.status, direct.out.as_str()), (5, "in\n"), "{}", direct.err);
    let inner = lab.path().join("exec.pid").display().to_string();
    let sync =
        crio.conmon("exec", &["-e", "--sync", "-p", &inner, "-T", "30", "--exec-process-spec", file.to_str().unwrap()]);
    assert_eq!(said(&sync, 1)[0]["exit_code"], json!(5));
    assert!(std::fs::read_to_string(lab.path().join("exec.log")).unwrap().contains(" stdout F in\n"));

    let mut update = lab.command(&["update", "--resources", "-", &lab.id]);
    let mut child = update.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        br#"{"memory":{"limit":67108864},"pids":{"limit":44}}"#,
    )
    .unwrap();
    assert!(child.wait().unwrap().success());
    let stats: Value = serde_json::from_str(&crio.runtime(&["events", "--stats", &lab.id]).out).unwrap();
    assert_eq!(
        (&stats["data"]["pids"]["limit"], &stats["data"]["memory"]["usage"]["limit"]),
        (&json!(44), &json!(67_108_864))
    );
    for (verb, status) in [("pause", "paused"), ("resume", "running")] {
        crio.runtime(&[verb, &lab.id]).succeeded();
        assert_eq!(lab.status(), status);
    }
    crio.runtime(&["kill", "-a", &lab.id, "15"]).succeeded();
    assert_eq!(crio.exit(), "9");
    // The errors that CRI-O takes for "it has ended already", and for "it is gone already".
    let again = crio.runtime(&["kill", &lab.id, "15"]);
    let known = ["no such process", "container not running", "invalid process"];
    assert!(again.status != 0 && known.iter().any(|words| again.err.to_lowercase().contains(words)), "{}", again.err);
    crio.runtime(&["delete", "--force", &lab.id]).succeeded();
    crio.runtime(&["delete", "--force", &lab.id]).succeeded();
}

#[test]
fn cri_o_attaches_to_the_streams_of_a_container() {
    let Some(mut crio) = Crio::new() else { return };
    crio.lab.sh("read line; echo got $line; echo complaint >&2; cat; exit 3");
    crio.create(&["-i"]);
    let socket = crio.attach();
    crio.runtime(&["start", &crio.lab.id]).succeeded();
    send(&socket, b"one\n", SendFlags::empty()).unwrap();
    let all = heard(&socket, "complaint\n");
    assert!(all.contains("2:got one\n") && all.contains("3:complaint\n"), "{all}");
    send(&socket, b"two\n", SendFlags::empty()).unwrap();
    assert_eq!(heard(&socket, "two\n"), "2:two\n");
    // End of input: without `--leave-stdin-open` it ends with the attached client.
    drop(socket);
    assert_eq!(crio.exit(), "3");
    let log = std::fs::read_to_string(crio.lab.path().join("create.log")).unwrap();
    assert!(log.contains(" stdout F got one\n") && log.contains(" stderr F complaint\n"), "{log}");
}

#[test]
fn cri_o_attaches_to_the_terminal_of_a_container_and_changes_its_size() {
    let Some(mut crio) = Crio::new() else { return };
    crio.lab.config["process"]["terminal"] = json!(true);
    crio.lab.sh("stty -echo; echo ready; while read line; do stty size; done");
    crio.create(&["-i", "-t"]);
    let socket = crio.attach();
    crio.runtime(&["start", &crio.lab.id]).succeeded();
    heard(&socket, "ready\r\n");
    let mut control = std::fs::File::options().write(true).open(crio.lab.path().join("ctl")).unwrap();
    std::io::Write::write_all(&mut control, b"1 33 77\n").unwrap();
    eventually("it has the size", || {
        send(&socket, b"\n", SendFlags::empty()).unwrap();
        heard(&socket, "\r\n").contains("33 77")
    });
    // CRI-O's streaming exec is the runtime itself, in a terminal of CRI-O's.
    let process = json!({"terminal": true, "args": ["sh", "-c", "test -t 0 && tty; exit 6"], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}});
    let file = crio.lab.path().join("process.json");
    std::fs::write(&file, process.to_string()).unwrap();
    let command = crio.lab.command(&["exec", "--process", file.to_str().unwrap(), &crio.lab.id]);
    let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
    let line = format!("{} {}", command.get_program().display(), words.join(" "));
    let done = finish(Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()));
    assert!(done.status == 6 && done.out.contains("/dev/pts/1"), "{} {} {}", done.status, done.out, done.err);
    crio.runtime(&["kill", "-a", &crio.lab.id, "9"]).succeeded();
    assert_eq!(crio.exit(), "137");
}

#[test]
fn cri_o_learns_from_conmon_that_memory_was_not_enough() {
    let Some(mut crio) = Crio::new() else { return };
    crio.lab.config["linux"]["resources"]["memory"] = json!({"limit": 16 << 20, "swap": 16 << 20});
    crio.lab.args(&["tail", "/dev/zero"]);
    crio.create(&[]);
    crio.runtime(&["start", &crio.lab.id]).succeeded();
    assert_eq!(crio.exit(), "137");
    for name in ["oom", "persist/oom"] {
        eventually(name, || crio.lab.path().join(name).exists());
    }
}

#[test]
fn cri_o_learns_from_conmon_why_a_container_cannot_be_made() {
    let Some(mut crio) = Crio::new() else { return };
    crio.lab.args(&["/nope"]);
    let told = crio.create(&[]);
    assert_eq!(told["pid"], json!(-1));
    assert!(told["message"].as_str().unwrap().contains("stat /nope: no such file or directory"), "{told}");
    crio.runtime(&["state", &crio.lab.id]).failed_with("does not exist");
}

#[test]
fn features_are_json_and_nothing_else_on_both_streams() {
    let program = crate::support::program();
    let line = "exec 2>&1; \"$0\" features";
    let done = finish(Command::new("/bin/sh").args(["-c", line]).arg(program.get_program()).env_clear());
    let features: Value = serde_json::from_str(&done.succeeded().out).unwrap();
    assert_eq!(features["linux"]["mountExtensions"]["idmap"]["enabled"], json!(true));
    assert!(features["mountOptions"].as_array().unwrap().contains(&json!("rro")));
}

/// `2026-01-02T03:04:05.678Z`: a time in Go's format.
fn humantime_like(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20 && bytes[4] == b'-' && bytes[10] == b'T' && bytes[13] == b':' && text.ends_with('Z')
}
