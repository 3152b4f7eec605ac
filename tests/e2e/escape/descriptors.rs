//! Descriptors that a careless caller leaves open when it starts brig.

use super::{answer, attacker, task};
use crate::support::Lab;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

/// Runs the attacker with the descriptors that the shell line `leak` opens before brig starts.
fn leaking(lab: &Lab, weak: &str, leak: &str, words: &[&str]) -> Output {
    let work = attacker(lab);
    let task = if weak.is_empty() { task(lab) } else { task(lab).weakened(weak) };
    let command = task
        .plain()
        .args(["--dir".as_ref(), work.as_os_str()])
        // The number of the command's own progress pipe comes first on the other stream.
        .command_for(
            ["sh", "-c", "echo $BRIG_EVENTS_FD >&2; exec /workspace/attacker \"$@\"", "sh"].iter().chain(words),
        );
    let environment: Vec<_> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    let script = format!("exec \"$@\" {leak}");
    Command::new("bash")
        .args(["-c", &script, "bash"])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(environment)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn no_descriptor_of_the_caller_is_open_inside() {
    let lab = Lab::new();
    let leak = "9< / 8< /etc/passwd 17<> /dev/null";
    let output = leaking(&lab, "", leak, &["descriptors"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let events = format!("open: {}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap());
    let rest: Vec<_> = text.lines().filter(|line| *line != events).collect();
    assert_eq!(rest.first(), Some(&"done"), "{output:?}");
    let output = leaking(&lab, "descriptors", leak, &["descriptors"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("open: 17"), "{output:?}");
}

#[test]
fn a_leaked_directory_is_no_way_out() {
    // CVE-2024-21626: a directory descriptor of the host, and a working directory through it.
    let lab = Lab::new();
    for words in [
        ["through", "9", "etc/os-release"],
        ["leave", "9", "etc/os-release"],
        ["open", "/proc/self/fd/9/etc/os-release", ""],
    ] {
        assert!(matches!(said(&leaking(&lab, "", "9< /", &words)).as_str(), "EBADF" | "ENOENT"), "{words:?}");
        // Landlock has no rule for a path outside of the root.
        assert_eq!(said(&leaking(&lab, "descriptors", "9< /", &words)), "EACCES", "{words:?}");
        assert_eq!(said(&leaking(&lab, "descriptors,landlock", "9< /", &words)), "done", "{words:?}");
    }
}

#[test]
fn a_leaked_socket_is_no_way_out() {
    let lab = Lab::new();
    let path = lab.path().join("host.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let leak = format!("9<> /dev/tcp/127.0.0.1/{}", port.local_addr().unwrap().port());
    assert_eq!(said(&leaking(&lab, "", &leak, &["send", "9", "hello"])), "EBADF");
    assert_eq!(said(&leaking(&lab, "descriptors", &leak, &["send", "9", "hello"])), "done");
    drop(listener);
}

#[test]
fn a_directory_as_standard_input_is_not_given_to_the_command() {
    let lab = Lab::new();
    let output = leaking(&lab, "", "0< /", &["through", "0", "etc/os-release"]);
    assert_eq!(said(&output), "ENOTDIR", "{output:?}");
}

#[test]
fn the_command_never_holds_the_callers_own_streams() {
    let lab = Lab::new();
    let file = lab.file("work/input", "secret line\n");
    // A write goes into the pipe at most.
    leaking(&lab, "", &format!("0<> {}", file.display()), &["write", "/proc/self/fd/0", "x"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "secret line\n");
    let run = task(&lab).input("typed").sh("readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 | cut -d: -f1");
    assert_eq!(run.stderr.matches("pipe").count(), 3, "{run:#?}");
    assert!(answer(&task(&lab).sh("readlink /proc/self/fd/0")).starts_with("pipe"));
}

#[test]
fn standard_streams_can_be_opened_again_by_name() {
    let lab = Lab::new();
    let run = task(&lab).plain().sh("echo out > /dev/stdout; echo err > /dev/stderr");
    assert_eq!(run.stdout, "out\n", "{run:#?}");
    assert!(run.stderr.starts_with("err\n"), "{run:#?}");
}
