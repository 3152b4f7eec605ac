//! How a command ends, and how brig reports it.

use crate::support::{Lab, eventually, patience};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

#[test]
fn the_exit_status_is_the_commands_own() {
    let lab = Lab::new();
    lab.task().sh("exit 0").ended_as("succeeded", 0);
    lab.task().sh("exit 1").ended_as("failed", 1);
    let run = lab.task().sh("exit 2");
    run.ended_as("failed", 2);
    assert_eq!(run.receipt()["retryable"], false, "`make` ends so for a failing test");
    lab.task().sh("exit 3").ended_as("failed", 3);
    let run = lab.task().sh("exit 137");
    run.ended_as("failed", 137);
    assert_eq!(run.receipt()["exit_code"], 137);
    lab.task().sh("exit 255").ended_as("failed", 255);
}

#[test]
fn a_program_that_only_the_host_has_is_named_with_the_ways_to_show_it() {
    let lab = Lab::new();
    let tool = lab.file("bin/brig-test-tool", "#!/bin/sh\n");
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", tool.parent().unwrap().display());
    for word in ["brig-test-tool", tool.to_str().unwrap()] {
        let run = lab.task().env("PATH", &path).run([word]);
        run.ended_as("start_failed", 127);
        let hint = run.receipt()["error"]["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains(tool.to_str().unwrap()), "{hint}");
        assert!(hint.contains("--rootfs") && hint.contains("--image") && hint.contains("--dir"), "{hint}");
    }
    let run = lab.task().env("PATH", &path).run(["brig-test-none"]);
    assert!(!run.receipt()["error"]["hint"].as_str().unwrap().contains("host"), "{run:#?}");
}

#[test]
fn a_profile_says_what_exit_codes_mean() {
    let lab = Lab::new();
    let profile = lab.file("p.toml", "[exit_codes]\nsucceeded = [10]\nretryable = [75]\nneeds_input = [20]\n");
    let check = |code: u8, outcome: &str, status: i32, retryable: bool| {
        let run = lab.task().args(["--profile".as_ref(), profile.as_os_str()]).sh(&format!("exit {code}"));
        run.ended_as(outcome, status);
        assert_eq!(run.receipt()["retryable"], retryable, "{code}");
    };
    check(10, "succeeded", 0, false);
    check(75, "failed", 75, true);
    check(20, "needs_input", 20, false);
    check(2, "failed", 2, false);
    check(3, "failed", 3, false);
}

#[test]
fn a_command_that_kills_itself_is_signaled_and_not_out_of_memory() {
    let lab = Lab::new();
    let run = lab.task().sh("kill -KILL $$");
    run.ended_as("signaled", 137);
    assert_eq!(run.receipt()["signal"], 9);
    let run = lab.task().sh("kill -SEGV $$");
    run.ended_as("signaled", 139);
    assert_eq!(run.receipt()["signal"], 11);
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_the_grace() {
    let lab = Lab::new();
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    // A slow machine's shell may need more than 300 ms for its first line.
    let run = lab.task().args(["--wall", "1500ms", "--grace", "700ms"]).sh(script);
    run.ended_as("timeout", 124);
    assert!((2.1..5.0).contains(&run.used("wall_seconds")), "{run:#?}");
}

#[test]
fn a_process_that_obeys_sigterm_has_its_grace_to_clean_up() {
    let lab = Lab::new();
    let script = "trap 'sleep 0.2; echo cleaned up; exit 7' TERM; while :; do sleep 0.05; done";
    let run = lab.task().args(["--wall", "1500ms", "--grace", "30s"]).sh(script);
    run.ended_as("timeout", 124);
    assert!(run.stderr.contains("cleaned up"), "{run:#?}");
    assert!(run.elapsed < Duration::from_secs(5), "{run:#?}");
}

#[test]
fn a_grandchild_that_left_the_session_and_holds_stdout_ends_with_the_command() {
    let lab = Lab::new();
    let script = "use POSIX; if (!fork) { POSIX::setsid(); if (!fork) { $0 = 'daemon'; sleep 300 } exit } wait; print qq(done\\n)";
    let run = lab.task().run(["perl", "-e", script]);
    run.ended_as("succeeded", 0);
    assert!(run.elapsed < Duration::from_secs(5) * patience(), "{run:#?}");
    assert_eq!(run.stderr, "done\n");
}

#[test]
fn orphans_are_adopted_and_reaped_by_pid_1() {
    let lab = Lab::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.05 & ) ; done; sleep 0.5; ps -e -o stat=,comm= 2>/dev/null; \
                  cat /proc/[0-9]*/stat | grep -c ' Z ' || true";
    let run = lab.task().sh(script);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.ends_with("0\n"), "no zombie: {run:#?}");
    // pid 1 is brig's and executes no program of the sandbox.
    let run = lab.task().sh("sleep 0.2 & exec cat /proc/self/stat");
    assert!(run.stderr.contains(" 1 "), "the command is a child of pid 1: {run:#?}");
}

#[test]
fn a_first_ctrl_c_asks_and_the_command_may_clean_up() {
    let lab = Lab::new();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let task = lab.task().start_sh(script);
        task.wait_for("ready");
        task.signal(signal);
        let run = task.finish();
        run.ended_as("cancelled", 130);
        assert!(run.stderr.contains("asked"), "{signal:?}: {run:#?}");
    }
}

#[test]
fn a_grace_beyond_every_clock_loses_no_task() {
    let lab = Lab::new();
    let long = format!("{}s", u64::MAX);
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let task = lab.task().args(["--grace", &long]).start_sh(script);
    task.wait_for("ready");
    task.signal(Signal::INT);
    task.finish().ended_as("cancelled", 130);
    let id = lab.task().plain().args(["--detach"]).sh(script).succeeded().stdout.trim().to_owned();
    lab.brig(["task", "stop", "--grace", &long, &id]).succeeded();
    assert_eq!(lab.brig(["task", "wait", &id]).status, Some(130));
}

#[test]
fn a_second_ctrl_c_kills_at_once() {
    let lab = Lab::new();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done";
    let task = lab.task().args(["--grace", "60s"]).start_sh(script);
    task.wait_for("ready");
    task.signal(Signal::INT);
    task.wait_for("asked");
    task.signal(Signal::INT);
    let run = task.finish();
    run.ended_as("cancelled", 130);
    assert!(run.elapsed < Duration::from_secs(10), "{run:#?}");
}

#[test]
fn first_signal_after_a_limit_asks_and_the_second_kills() {
    let lab = Lab::new();
    for (flags, outcome, status) in
        [(&["--wall", "2s"][..], "timeout", 124), (&["--health", "false", "--health-start", "1s"], "unhealthy", 125)]
    {
        let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done";
        let task = lab.task().args(["--grace", "60s"]).args(flags).start_sh(script);
        task.wait_for("asked");
        task.signal(Signal::INT);
        eventually("the first signal asks", || task.output().matches("asked").count() == 2);
        task.signal(Signal::INT);
        let run = task.finish();
        run.ended_as(outcome, status);
        assert!(run.elapsed < Duration::from_secs(30), "{run:#?}");
    }
}

#[test]
fn signal_or_limit_after_the_commands_end_leaves_its_outcome() {
    let lab = Lab::new();
    for signal in [Some(Signal::TERM), None] {
        let task = lab.task().args(["--wall", "5s"]).start_sh("echo ready; sleep 1; exit 5");
        task.wait_for("ready");
        let pid_1 = task.pid_1();
        task.signal(Signal::STOP);
        let state = || std::fs::read_to_string(format!("/proc/{pid_1}/stat")).unwrap();
        eventually("the command ends", || state().contains(") Z "));
        match signal {
            Some(signal) => task.signal(signal),
            None => std::thread::sleep(Duration::from_secs(5)),
        }
        task.signal(Signal::CONT);
        let run = task.finish();
        run.ended_as("failed", 5);
        assert!(!run.hit("wall"), "{run:#?}");
    }
}

#[test]
fn a_cancelled_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let lab = Lab::new();
    let task = lab.task().args(["--grace", "500ms"]).start_sh("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    task.wait_for("ready");
    task.signal(Signal::INT);
    let run = task.finish();
    run.ended_as("cancelled", 130);
    assert!(run.used("wall_seconds") > 0.5, "{run:#?}");
}

#[test]
fn the_death_of_pid_1_by_the_hosts_hand_ends_everything() {
    let lab = Lab::new();
    let task = lab.task().start_sh("sleep 300 & echo ready; sleep 300");
    task.wait_for("ready");
    kill_process(Pid::from_raw(task.pid_1()).unwrap(), Signal::KILL).unwrap();
    let run = task.finish();
    run.ended_as("signaled", 137);
    assert!(run.elapsed < Duration::from_secs(5), "{run:#?}");
}

#[test]
fn a_stopped_brig_goes_on_where_it_was() {
    let lab = Lab::new();
    let mut task = lab.task().args(["--wall", "30s"]).start_sh("echo ready; sleep 0.3; echo end; exit 5");
    task.wait_for("ready");
    task.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(800));
    assert!(!task.has_ended());
    task.signal(Signal::CONT);
    let run = task.finish();
    run.ended_as("failed", 5);
    assert!(run.stderr.contains("end"), "{run:#?}");
}

#[test]
fn a_command_that_is_missing_or_no_program_has_dockers_exit_codes() {
    let lab = Lab::new();
    let run = lab.task().plain().run(["no-such-program"]);
    run.refused(127, &["`no-such-program`", "No such file or directory"]);
    lab.task().plain().run(["/no/such/program"]).refused(127, &["`/no/such/program`"]);
    lab.task().plain().run(["/usr"]).refused(126, &["`/usr`", "Permission denied"]);
    lab.task().plain().run(["/etc/passwd"]).refused(126, &["`/etc/passwd`", "Permission denied"]);
    let work = lab.directory("work");
    let script = lab.file("work/no-interpreter", "no program\n");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = lab.task().plain().args(["--dir"]).args([&work]).run(["./no-interpreter"]);
    run.refused(126, &["`./no-interpreter`", "Exec format error"]);
    let run = lab.task().run(["no-such-program"]);
    run.ended_as("start_failed", 127);
    assert_eq!(run.receipt()["error"]["code"], "E-COMMAND-NOT-FOUND");
    eventually("every refusal has a receipt", || lab.ids().len() == 6);
}

#[test]
fn the_last_value_of_a_variable_is_in_force_and_no_other_is_there() {
    let lab = Lab::new();
    let profile = lab.file("env.toml", "[env]\nA = \"profile\"\nB = \"profile\"\n").display().to_string();
    let run = lab.task().args(["--profile", &profile, "-e", "A=1", "-e", "A=2"]).run(["/usr/bin/env"]);
    let lines: Vec<_> =
        run.succeeded().stderr.lines().filter(|line| line.starts_with("A=") || line.starts_with("B=")).collect();
    assert_eq!(lines, ["B=profile", "A=2"]);
}
