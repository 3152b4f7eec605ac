//! What goes in and out of a command.

use crate::support::Lab;
use std::io::Read;
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
    // Without input there is an end, and no wait.
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
    // What the caller has and passes on is a secret: given, and hidden in the output.
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
