//! Descriptors over the caller's sockets: a terminal, a pidfd, a filter's listener.

use crate::support::{Lab, eventually, in_terminal};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

/// Runs our command, which sends one descriptor to a socket at `path`; returns the message.
fn receive(lab: &Lab, path: &str, arguments: &[&str]) -> (String, OwnedFd) {
    receive_from(lab, path, lab.command(arguments))
}

/// Runs any command that sends one descriptor to a socket at `path`.
pub fn receive_from(lab: &Lab, path: &str, mut command: Command) -> (String, OwnedFd) {
    let listener = UnixListener::bind(lab.path().join(path)).unwrap();
    std::fs::set_permissions(lab.path().join(path), Permissions::from_mode(0o777)).unwrap();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (stream, _) = listener.accept().unwrap();
    let (text, descriptor) = accept_descriptor(&stream);
    assert!(child.wait().unwrap().success());
    (text, descriptor.unwrap())
}

/// The text from a socket, and the one descriptor with it; none if the peer closes the socket first.
pub fn accept_descriptor(stream: &UnixStream) -> (String, Option<OwnedFd>) {
    let mut bytes = vec![0; 16 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length =
        recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
    let mut descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| if let RecvAncillaryMessage::ScmRights(found) = message { Some(found) } else { None })
        .flatten()
        .collect();
    assert!(descriptors.len() <= 1);
    (String::from_utf8(bytes[..length].to_vec()).unwrap(), descriptors.pop())
}

#[test]
fn a_terminal_goes_to_the_console_socket() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["process"]["terminal"] = json!(true);
    lab.config["process"]["consoleSize"] = json!({"height": 33, "width": 99});
    lab.sh("tty; stty size; test -c /dev/console && echo console; echo x > /dev/tty; read line; echo got $line");
    let (name, master) = receive(&lab, "console", &["create", "--console-socket", "console", &lab.id]);
    assert!(name.starts_with("/dev/pts/"), "{name}");
    lab.on(&["start"]).succeeded();
    let mut terminal = std::fs::File::from(master);
    terminal.write_all(b"word\n").unwrap();
    let mut text = String::new();
    let mut bytes = [0; 4096];
    // EIO means that no process has the other side open.
    while let Ok(length @ 1..) = terminal.read(&mut bytes) {
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    for part in ["/dev/pts/0", "33 99", "console", "x", "got word"] {
        assert!(text.contains(part), "`{part}` is not in {text:?}");
    }
}

/// The program reads its input only while its output is read. Another program has made the terminal non-blocking, as
/// node does.
#[test]
fn a_foreground_terminal_passes_all_that_a_program_reads_and_writes() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]).start();
    std::fs::write(lab.path().join("in"), "a".repeat(1_000_000)).unwrap();
    let line = "stty raw -echo; echo ready; head -c 1000000 | cat; echo DONE";
    // The program must have set its terminal before the input arrives.
    let feed = "{ sleep 1; cat in; } | ";
    let done = in_terminal(&lab, &["exec", "-t", &lab.id, "/bin/sh", "-c", line], feed, " > out; cat out");
    assert!(done.out.contains("DONE"), "{} bytes", done.out.len());
    let line = "yes | head -c 2000000; echo DONE";
    let unblocked = "perl -e 'use Fcntl; fcntl(STDOUT, F_SETFL, O_RDWR | O_NONBLOCK); exec @ARGV' ";
    let done = in_terminal(&lab, &["exec", "-t", &lab.id, "/bin/sh", "-c", line], unblocked, "");
    assert!(done.out.contains("DONE") && done.out.len() > 2_000_000, "{} bytes", done.out.len());
}

#[test]
fn a_terminal_without_a_socket_is_refused_when_nobody_stays() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["process"]["terminal"] = json!(true);
    lab.create().failed_with("cannot allocate tty if runc will detach without setting console socket");
    lab.config["process"]["terminal"] = json!(false);
    lab.brig(&["create", "--console-socket", "x", &lab.id]).failed_with("cannot use console socket");
}

#[test]
fn a_pidfd_goes_to_its_socket() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]);
    let (words, process) = receive(&lab, "pidfd", &["create", "--pidfd-socket", "pidfd", &lab.id]);
    assert_eq!(words, "standard");
    lab.on(&["start"]).succeeded();
    rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL).unwrap();
    eventually("it is killed", || lab.status() == "stopped");
}

#[test]
fn a_filters_listener_goes_to_the_agent_with_the_state() {
    let Some(mut lab) = Lab::new() else { return };
    let path = lab.path().join("agent");
    lab.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": path,
        "listenerMetadata": "meta",
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}],
    });
    lab.sh("mkdir /made; echo $?; sleep 100");
    for privileges in [true, false] {
        lab.config["process"]["noNewPrivileges"] = json!(privileges);
        let (text, listener) = receive(&lab, "agent", &["create", &lab.id]);
        let state: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&state["fds"], &state["metadata"], &state["state"]["id"]),
            (&json!(["seccompFd"]), &json!("meta"), &json!(lab.id))
        );
        assert_eq!(state["pid"], lab.state()["pid"]);
        lab.on(&["start"]).succeeded();
        // The call waits for the listener: until it is readable; then, without an answer, the call fails.
        let mut watched = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut watched, Some(&wait)).unwrap(), 1);
        drop(listener);
        assert!(!lab.root("/made").exists());
        lab.on(&["delete", "--force"]).succeeded();
        std::fs::remove_file(&path).unwrap();
    }
    lab.config["linux"]["seccomp"]["listenerPath"] = json!("");
    lab.create().failed_with("listenerPath");
}

#[test]
fn a_filters_listener_in_exec_goes_to_the_agent_too() {
    let Some(mut lab) = Lab::new() else { return };
    let path = lab.path().join("agent");
    lab.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": path,
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}],
    });
    lab.args(&["sleep", "100"]);
    let (_, listener) = receive(&lab, "agent", &["create", &lab.id]);
    drop(listener);
    lab.on(&["start"]).succeeded();
    for privileges in ["--no-new-privs", "--no-new-privs=false"] {
        std::fs::remove_file(&path).unwrap();
        let arguments = ["exec", "-d", privileges, &lab.id, "/bin/sh", "-c", "mkdir /made; sleep 100"];
        let (text, listener) = receive(&lab, "agent", &arguments);
        let state: Value = serde_json::from_str(&text).unwrap();
        assert_ne!(state["pid"], lab.state()["pid"], "the pid is that of the process of exec");
        assert_eq!((&state["state"]["status"], &state["state"]["pid"]), (&json!("running"), &lab.state()["pid"]));
        let mut watched = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut watched, Some(&wait)).unwrap(), 1, "{privileges}");
        drop(listener);
        assert!(!lab.root("/made").exists());
    }
}
