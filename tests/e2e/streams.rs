//! What goes in and out of a command.

use crate::support::{Lab, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn the_streams_come_out_apart_and_whole() {
    let lab = Lab::new();
    let run = lab.task().plain().sh("printf 'out\\0put'; printf error >&2; exit 4");
    assert_eq!(run.status, Some(4));
    assert_eq!(run.stdout, "out\0put");
    assert!(run.stderr.starts_with("error") && run.stderr.contains("brig: task"), "{run:#?}");
    let run = lab.task().plain().sh("head -c 3000000 /dev/zero");
    assert_eq!(run.stdout.len(), 3_000_000);
}

#[test]
fn with_json_standard_output_is_the_receipt_alone() {
    let lab = Lab::new();
    let run = lab.task().sh("echo out; echo error >&2");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("out\n") && run.stderr.contains("error\n"), "{run:#?}");
}

#[test]
fn standard_input_is_passed_on_to_its_end() {
    let lab = Lab::new();
    let run = lab.task().plain().input("some words").sh("cat; echo .");
    assert_eq!(run.stdout, "some words.\n");
    let run = lab.task().plain().input(vec![b'x'; 1 << 20]).sh("sleep 0.2; wc -c");
    assert_eq!(run.stdout.trim(), "1048576");
    let run = lab.task().plain().args(["-i"]).input("more").sh("cat");
    assert_eq!(run.stdout, "more");
    // Without input, stdin ends at once.
    let run = lab.task().plain().sh("cat; echo .");
    assert_eq!(run.stdout, ".\n");
}

#[test]
fn a_command_that_does_not_read_its_input_is_not_held_up_by_it() {
    let lab = Lab::new();
    let run = lab.task().input(vec![b'x'; 4 << 20]).sh("exec <&-; echo closed; sleep 0.2");
    run.ended_as("succeeded", 0);
    lab.task().input(vec![b'x'; 4 << 20]).sh("sleep 0.2").ended_as("succeeded", 0);
}

#[test]
fn no_descriptor_of_the_host_is_inherited() {
    let lab = Lab::new();
    let script = "echo $BRIG_EVENTS_FD; ls /proc/self/fd; stat -L -c %F /proc/self/fd/0";
    let mut command = lab.task().plain().command_for(["sh", "-c", script]);
    let directory = std::fs::File::open("/").unwrap();
    let output = command.stdin(directory).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (events, rest) = text.split_once('\n').unwrap();
    assert_eq!(rest.lines().collect::<Vec<_>>(), ["0", "1", "2", "3", events, "fifo"], "3 is ls's own: {output:?}");
}

#[test]
fn a_reader_that_went_away_ends_nothing_and_the_log_has_it_all() {
    let lab = Lab::new();
    let mut command = lab.task().plain().command_for(["sh", "-c", "seq 1 20000; exit 6"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
    let log = lab.brig(["task", "logs", &lab.ids()[0]]);
    assert_eq!(log.succeeded().stdout.lines().count(), 20000);
}

#[test]
fn a_reader_that_does_not_read_does_not_stop_the_wall_limit() {
    let lab = Lab::new();
    let mut command = lab.task().plain().args(["--wall", "1s", "--grace", "1s"]).command_for(["yes"]);
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(124));
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    drop(child.stdout.take());
}

#[test]
fn a_slow_reader_slows_the_command_and_gets_everything() {
    let lab = Lab::new();
    let mut command = lab.task().plain().command_for(["seq", "1", "200000"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(text.lines().count(), 200_000);
}

/// A pipe with this room left, in bytes.
fn pipe_with_room(room: usize) -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let capacity = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    writer.write_all(&vec![b' '; capacity - room]).unwrap();
    (reader, writer)
}

#[test]
fn output_that_its_reader_leaves_is_in_the_log() {
    let lab = Lab::new();
    let (reader, writer) = pipe_with_room(0);
    let mut command = lab.task().plain().command_for(["sh", "-c", "seq 1 10000; exit 6"]);
    let status = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(6));
    drop(reader);
    let log = lab.brig(["task", "logs", &lab.ids()[0]]);
    assert_eq!(log.succeeded().stdout.lines().count(), 10_000);
}

#[test]
fn signal_while_the_last_output_waits_for_its_reader_cancels_nothing() {
    let lab = Lab::new();
    let (reader, writer) = pipe_with_room(0);
    let mut command = lab.task().plain().command_for(["sh", "-c", "echo end >&2; seq 1 100; exit 6"]);
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    child.stderr.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
    drop(reader);
}

#[test]
fn late_reader_of_an_entered_command_gets_everything() {
    let lab = Lab::new();
    let task = lab.task().plain().start_sh("echo up; sleep 60");
    task.wait_for("up");
    let id = lab.ids().remove(0);
    let script = "echo up >&2; while [ ! -e /tmp/go ]; do sleep 0.02; done; seq 1 10000; touch /tmp/end";
    let mut command = lab.command(["task", "exec", &id, "--", "sh", "-c", script]).command();
    // Room for the first read of the rest, not for the second.
    let (mut reader, writer) = pipe_with_room(24 << 10);
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    child.stderr.take().unwrap().read_exact(&mut [0; 3]).unwrap();
    let signal = |signal| kill_process(Pid::from_child(&child), signal).unwrap();
    signal(Signal::STOP);
    lab.brig(["task", "exec", &id, "--", "touch", "/tmp/go"]).succeeded();
    eventually("the command ends", || {
        lab.brig(["task", "exec", &id, "--", "test", "-e", "/tmp/end"]).status == Some(0)
    });
    std::thread::sleep(Duration::from_millis(500));
    signal(Signal::CONT);
    std::thread::sleep(Duration::from_secs(3));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(text.trim_start().lines().eq((1..=10_000).map(|line| line.to_string())), "{} bytes", text.len());
    lab.brig(["task", "kill", &id]).succeeded();
    task.finish();
}

#[test]
fn the_environment_is_empty_but_for_what_a_program_needs() {
    let lab = Lab::new();
    let run = lab.task().plain().env("SECRET_OF_THE_HOST", "hidden").run(["env"]);
    let mut names: Vec<_> = run.stdout.lines().map(|line| line.split('=').next().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["BRIG_EVENTS_FD", "GIT_CONFIG_SYSTEM", "HOME", "LANG", "LOGNAME", "PATH", "TERM", "USER"],
        "{run:#?}"
    );
}

#[test]
fn a_variable_is_passed_on_by_name_or_set_and_its_value_is_in_no_record() {
    let lab = Lab::new();
    let task = lab.task().plain().env("MINE", "from outside");
    let run = task.args(["-e", "MINE", "-e", "OTHER=a=b c", "-e", "HOME=/tmp", "-e", "EMPTY="]).run(["env"]);
    // A variable passed on from the caller is a secret: given, and hidden in the output.
    for line in ["MINE=[redacted:MINE]", "OTHER=a=b c", "HOME=/tmp", "EMPTY="] {
        assert!(run.stdout.lines().any(|each| each == line), "{line}: {run:#?}");
    }
    assert_eq!(run.stdout.matches("HOME=").count(), 1, "{run:#?}");
    let task = lab.task().plain().env("MINE", "from outside");
    task.args(["-e", "MINE"]).sh("test \"$MINE\" = 'from outside'").succeeded();
    let record = std::fs::read_to_string(lab.store().join("tasks").join(&lab.ids()[0]).join("record.json")).unwrap();
    assert!(record.contains("MINE") && !record.contains("from outside"), "{record}");
    lab.task().plain().args(["-e", "NOT_SET_ANYWHERE"]).sh("true").refused(125, &["`NOT_SET_ANYWHERE`", "not set"]);
    lab.task().plain().args(["-e", "=x"]).sh("true").refused(125, &["`=x`"]);
}

#[test]
fn what_a_command_writes_is_in_its_log() {
    let lab = Lab::new();
    lab.task().sh("echo out; echo error >&2").succeeded();
    let log = lab.brig(["task", "logs", &lab.ids()[0]]);
    let mut lines: Vec<_> = log.succeeded().stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["error", "out"]);
}

#[test]
fn a_log_has_its_streams_apart_and_together_in_their_order() {
    let lab = Lab::new();
    // The supervisor keeps the streams' order if it has time between the writes.
    let script = "for n in 1 2 3; do printf 'out %s é\\n' $n; sleep 0.1; echo error $n >&2; sleep 0.1; done";
    lab.task().sh(script).succeeded();
    let id = &lab.ids()[0];
    let logs = |flags: &[&str]| {
        let words = ["task", "logs"].iter().chain(flags).copied().chain([id.as_str()]);
        lab.brig(words).succeeded().stdout.clone()
    };
    let both = "out 1 é\nerror 1\nout 2 é\nerror 2\nout 3 é\nerror 3\n";
    assert_eq!(logs(&[]), both);
    assert_eq!(logs(&["--stdout", "--stderr"]), both);
    assert_eq!(logs(&["--stdout"]), "out 1 é\nout 2 é\nout 3 é\n");
    assert_eq!(logs(&["--stderr", "--follow"]), "error 1\nerror 2\nerror 3\n");
    let objects = |flags: &[&str]| -> Vec<(String, String)> {
        let text = |object: &serde_json::Value, key: &str| object[key].as_str().unwrap().to_owned();
        let lines = logs(flags);
        let objects = lines.lines().map(|line| serde_json::from_str(line).unwrap());
        objects.map(|object| (text(&object, "stream"), text(&object, "text"))).collect()
    };
    let all = objects(&["--json"]);
    assert_eq!(all.iter().map(|(_, text)| text.as_str()).collect::<String>(), both);
    assert!(all.iter().all(|(stream, text)| (stream == "stderr") == text.starts_with("error")), "{all:?}");
    assert_eq!(objects(&["--json", "--stderr"]).len(), 3);

    assert_eq!(logs(&["--tail", "3"]), "error 2\nout 3 é\nerror 3\n");
    assert_eq!(logs(&["-n1", "-f"]), "error 3\n");
    assert_eq!(logs(&["-n", "0"]), "");
    assert_eq!([logs(&["--tail", "all"]), logs(&["--tail=-1"]), logs(&["-n", "9"])], [both; 3]);
    assert_eq!(logs(&["--tail", "3", "--stderr"]), "error 2\nerror 3\n");
    let last = objects(&["--tail", "2", "--json"]);
    assert_eq!(last, [("stdout".into(), "out 3 é\n".into()), ("stderr".into(), "error 3\n".into())]);
}

#[test]
fn a_follower_of_one_stream_sees_it_as_it_comes_and_nothing_of_the_other() {
    let lab = Lab::new();
    let task = lab.task().start_sh("while [ ! -e /tmp/end ]; do echo out; echo error >&2; sleep 0.05; done");
    task.wait_for("error");
    let id = lab.ids().remove(0);
    let follower = lab.start(["task", "logs", "--follow", "--stderr", &id]);
    follower.wait_for("error\nerror\n");
    lab.brig(["task", "exec", &id, "--", "touch", "/tmp/end"]).succeeded();
    let run = follower.finish();
    assert!(run.stdout.lines().all(|line| line == "error"), "{run:#?}");
    task.finish().succeeded();
}

#[test]
fn the_log_of_an_older_version_is_read_and_a_terminal_has_one_stream() {
    let lab = Lab::new();
    lab.task().sh("echo out; sleep 0.1; echo error >&2").succeeded();
    let id = &lab.ids()[0];
    // The log of a version that did not separate the streams.
    std::fs::remove_file(lab.store().join("tasks").join(id).join("output.streams")).unwrap();
    assert_eq!(lab.brig(["task", "logs", id]).succeeded().stdout, "out\nerror\n");
    let run = lab.brig(["task", "logs", "--stderr", id]);
    run.refused(125, &["older version"]);
    assert!(run.stderr.contains("brig task events"), "{run:#?}");
    let run = lab.task().plain().args(["--tty", "--detach"]).sh("echo out; echo error >&2");
    lab.brig(["task", "wait", run.succeeded().stdout.trim()]);
    let id = &lab.ids()[1];
    let run = lab.brig(["task", "logs", "--stderr", id]);
    assert_eq!((run.succeeded().stdout.as_str(), run.stderr.contains("has a terminal")), ("", true), "{run:#?}");
}
