//! Running tasks and their clients: in the background, entered, paused, measured, copied from and to, ended.

use crate::support::{Lab, Run, eventually, is_root, skip};
use serde_json::Value;
use std::time::Duration;

/// Begins a task in the background and gives its id.
#[track_caller]
fn begin(lab: &Lab, arguments: &[&str], script: &str) -> String {
    let run = lab.task().plain().args(["--detach"]).args(arguments).sh(script);
    run.succeeded().stdout.trim().to_owned()
}

#[track_caller]
fn exec(lab: &Lab, id: &str, script: &str) -> Run {
    lab.brig(["task", "exec", id, "--", "sh", "-c", script])
}

fn logs(lab: &Lab, id: &str) -> String {
    lab.brig(["task", "logs", id]).succeeded().stdout.clone()
}

#[track_caller]
fn wait(lab: &Lab, id: &str) -> Value {
    serde_json::from_str(&lab.brig(["task", "wait", "--json", id]).stdout).unwrap()
}

const UNTIL_GO: &str = "echo ready; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo went; exit 5";

#[test]
fn a_task_in_the_background_goes_on_is_waited_for_and_exits_as_its_command_did() {
    let lab = Lab::new();
    let id = begin(&lab, &[], UNTIL_GO);
    assert!(lab.brig(["task", "ls"]).succeeded().stdout.contains("running"));
    eventually("its output is in the log", || logs(&lab, &id) == "ready\n");
    assert_eq!(lab.brig(["task", "wait", "--timeout", "50ms", &id]).status, Some(124));
    let go = lab.file("go", "");
    lab.brig(["task", "cp", go.to_str().unwrap(), &format!("{id}:/tmp/")]).succeeded();
    let ended = lab.brig(["task", "wait", "--json", &id]);
    assert_eq!(ended.status, Some(5), "{ended:#?}");
    assert_eq!(ended.receipt()["outcome"], "failed");
    assert_eq!(logs(&lab, &id), "ready\nwent\n");
    // After the end the same words say so.
    assert_eq!(lab.brig(["task", "wait", &id]).status, Some(5));
    lab.brig(["task", "stop", &id]).refused(125, &["it has ended"]);
    lab.brig(["task", "exec", &id, "--", "true"]).refused(125, &["it has ended"]);
}

#[test]
fn a_mistake_in_a_task_for_the_background_is_told_at_once() {
    let lab = Lab::new();
    let run = lab.task().plain().args(["--detach", "--dir", "/nowhere"]).sh("true");
    run.refused(125, &["/nowhere"]);
    assert!(lab.ids().is_empty());
}

#[test]
fn what_is_run_in_a_task_is_as_confined_as_its_command() {
    const LOOK: &str = "grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Groups)' /proc/self/status; \
         for n in mnt pid net ipc uts user cgroup; do readlink /proc/self/ns/$n; done; grep -v ' ' /proc/self/cgroup | sed 's:exec-[0-9]*$::'; pwd; \
         touch /usr/x 2>&1; unshare -r true 2>&1; ls /proc/1/root 2>&1; ulimit -n";
    let lab = Lab::new();
    let id = begin(&lab, &[], &format!("{{ {LOOK}; }} 2>&1; echo end; sleep 300"));
    eventually("the command has looked around", || logs(&lab, &id).ends_with("end\n"));
    let own = logs(&lab, &id).replace("end\n", "");
    let run = exec(&lab, &id, LOOK);
    assert_eq!(run.stdout, own, "{run:#?}");
    assert!(
        own.contains("NoNewPrivs:\t1") && own.contains("Seccomp:\t2") && own.contains("Operation not permitted"),
        "{own}"
    );
    // No process may read its memory, its executable (brig's) and its descriptors; none of them is the host's.
    let run = exec(&lab, &id, "ls -l /proc/self/fd | grep -v -E 'pipe|total|/proc/'; echo $?");
    assert_eq!(run.succeeded().stdout, "1\n", "{run:#?}");
    lab.brig(["task", "stop", &id]).succeeded();
    assert_eq!(wait(&lab, &id)["outcome"], "cancelled");
}

#[test]
fn a_process_has_its_own_streams_status_and_environment() {
    let lab = Lab::new();
    let id = begin(&lab, &["-e", "MINE=task"], "sleep 300");
    let run = exec(&lab, &id, "echo out; echo err >/dev/stderr; exit 7");
    assert_eq!((run.status, run.stdout.as_str(), run.stderr.as_str()), (Some(7), "out\n", "err\n"));
    assert_eq!(exec(&lab, &id, "kill -TERM $$").status, Some(143));
    let words = ["task", "exec", "-e", "OTHER=own", "-w", "/tmp", &id, "--", "sh", "-c", "echo $MINE $OTHER $PWD"];
    assert_eq!(lab.brig(words).succeeded().stdout, "task own /tmp\n");
    lab.brig(["task", "exec", &id, "--", "no-such-program"]).refused(127, &["no-such-program"]);
    lab.brig(["task", "exec", "-w", "/no-such", &id, "--", "true"]).refused(125, &["no-such"]);
    assert_eq!(logs(&lab, &id), "", "what others run is not the task's output");
    let input = lab.exec_with_input(&id, "line\n".repeat(30_000), "wc -l");
    assert_eq!(input.succeeded().stdout.trim(), "30000");
    lab.brig(["task", "kill", &id]).succeeded();
    assert_eq!(wait(&lab, &id)["outcome"], "cancelled");
}

#[test]
fn no_process_enters_before_the_sandbox_is_built() {
    let lab = Lab::new();
    for _ in 0..15 {
        let id = begin(&lab, &[], "sleep 300");
        let run = exec(&lab, &id, "hostname; cat /etc/hostname; ls /tmp | wc -l");
        assert_eq!(run.succeeded().stdout, "sandbox\nsandbox\n0\n", "{run:#?}");
        lab.brig(["task", "kill", &id]).succeeded();
        wait(&lab, &id);
    }
}

#[test]
fn entered_processes_end_with_the_task_and_with_their_client() {
    let lab = Lab::new();
    let id = begin(&lab, &[], "sleep 300");
    let started =
        lab.start(["task", "exec", &id, "--", "sh", "-c", "echo ready; trap '' TERM HUP; sleep 300; sleep 300"]);
    started.wait_for("ready");
    let count = || {
        let top = lab.brig(["task", "top", "--json", &id]);
        serde_json::from_str::<Value>(&top.succeeded().stdout).unwrap().as_array().unwrap().len()
    };
    let before = count();
    started.signal(rustix::process::Signal::KILL);
    started.finish();
    eventually("its process is gone", || count() < before);
    let started = lab.start(["task", "exec", &id, "--", "sh", "-c", "echo ready; sleep 300"]);
    started.wait_for("ready");
    lab.brig(["task", "stop", "--grace", "100ms", &id]).succeeded();
    assert_eq!(started.finish().status, Some(137));
}

/// Chains of processes that each start the next one in a new session and end; and a daemon.
const FORKER: &str = r#"
    #include <stdio.h>
    #include <unistd.h>
    int main(void) {
        for (int chain = 0; chain < 8; chain++)
            if (fork() == 0)
                for (;;) {
                    pid_t next = fork();
                    if (next > 0) _exit(0);
                    if (next == 0) setsid();
                    usleep(next < 0 ? 1000 : 100);
                }
        if (fork() == 0) { setsid(); if (fork() == 0) for (;;) pause(); _exit(0); }
        puts("ready");
        fflush(stdout);
        for (;;) pause();
    }"#;

/// The number of a task's processes some time after `signal` ended one that started a tree.
fn left_after(lab: &Lab, id: &str, command: &[&str], signal: rustix::process::Signal) -> usize {
    let count = || {
        let top = lab.brig(["task", "top", "--json", id]);
        serde_json::from_str::<Value>(&top.succeeded().stdout).unwrap().as_array().unwrap().len()
    };
    eventually("its command runs", || lab.brig(["task", "top", id]).succeeded().stdout.contains("  sleep 300"));
    let before = count();
    let started = lab.start(["task", "exec", id, "--"].iter().chain(command));
    started.wait_for("ready");
    if let Some((_, last)) = command.last().and_then(|line| line.split_once("echo ready; ")) {
        // dash forgets a SIGINT during fork until the new process has ended.
        eventually("its last process runs", || lab.brig(["task", "top", id]).succeeded().stdout.contains(last));
    }
    assert!(count() > before, "nothing was started");
    started.signal(signal);
    started.finish();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while count() > before && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    count() - before
}

#[test]
fn a_process_tree_ends_with_its_client() {
    use rustix::process::Signal;
    const DAEMONS: &str = "(setsid sleep 400 &) >/dev/null 2>&1; sleep 401 & echo ready; sleep 402";
    let lab = Lab::new();
    lab.compile("work/forker", FORKER);
    let work = lab.path().join("work");
    let id = begin(&lab, &["--dir", work.to_str().unwrap()], "sleep 300");
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        for command in [["sh", "-c", DAEMONS].as_slice(), &["./forker"]] {
            assert_eq!(left_after(&lab, &id, command, signal), 0, "{command:?}, {signal:?}");
        }
    }
    // A command leaves no background process, and its last output comes.
    let run = exec(&lab, &id, "setsid sleep 403 & (sleep 0.2; echo late) & echo done");
    assert_eq!(run.succeeded().stdout, "done\nlate\n");
    eventually("the command's daemon is gone", || {
        !lab.brig(["task", "top", &id]).succeeded().stdout.contains("sleep 403")
    });
    lab.brig(["task", "kill", &id]).succeeded();
}

/// How many fork chains outlive their killed client without these protections.
fn left_without(protections: &str) -> usize {
    let lab = Lab::new();
    lab.compile("work/forker", FORKER);
    let work = lab.path().join("work");
    let task = lab.task().plain().weakened(protections).args(["--detach", "--dir", work.to_str().unwrap()]);
    let id = task.sh("sleep 300").succeeded().stdout.trim().to_owned();
    let left = left_after(&lab, &id, &["./forker"], rustix::process::Signal::KILL);
    lab.brig(["task", "kill", &id]).succeeded();
    left
}

#[test]
fn a_process_tree_without_a_group_is_stopped_and_killed_with_its_client() {
    assert_eq!(left_without("exec-group"), 0);
}

#[test]
fn a_process_tree_outlives_its_client_without_a_group_and_without_the_walk() {
    assert_ne!(left_without("exec-group,exec-tree"), 0);
}

#[test]
fn output_of_a_process_that_entered_is_activity_for_the_idle_limit() {
    let lab = Lab::new();
    let id = begin(&lab, &["--idle", "1s"], "sleep 300");
    let run = exec(&lab, &id, "for n in 1 2 3 4 5 6 7 8 9; do sleep 0.3; echo $n; done");
    assert_eq!(run.succeeded().stdout.lines().count(), 9, "{run:#?}");
    assert_eq!(wait(&lab, &id)["outcome"], "idle_timeout");
}

#[test]
fn a_killed_supervisor_leaves_no_entered_process() {
    let lab = Lab::new();
    let id = begin(&lab, &[], "sleep 300");
    let started = lab.start(["task", "exec", &id, "--", "sh", "-c", "echo ready; sleep 300"]);
    started.wait_for("ready");
    let record: Value =
        serde_json::from_slice(&std::fs::read(lab.store().join("tasks").join(&id).join("record.json")).unwrap())
            .unwrap();
    let supervisor = rustix::process::Pid::from_raw(record["supervisor"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    started.finish().refused(125, &["ended"]);
    let receipt = wait(&lab, &id);
    assert_eq!((&receipt["outcome"], &receipt["retryable"]), (&"lost".into(), &true.into()));
}

#[test]
fn files_go_in_and_out_and_no_link_leads_to_the_host() {
    let lab = Lab::new();
    let secret = lab.file("secret", "of the host\n");
    let id = begin(
        &lab,
        &[],
        &format!(
            "mkdir -p out/deep && echo made > out/deep/file && ln -s {0} out/leak && ln -s {1} /tmp/dir && mkfifo out/fifo; \
             echo ready; sleep 300",
            secret.display(),
            lab.path().display()
        ),
    );
    eventually("it is ready", || logs(&lab, &id) == "ready\n");
    let copy = lab.directory("copy");
    let of = |path: &str| format!("{id}:{path}");
    lab.brig(["task", "cp", &of("out"), copy.to_str().unwrap()]).succeeded();
    assert_eq!(std::fs::read_to_string(copy.join("out/deep/file")).unwrap(), "made\n");
    assert_eq!(std::fs::read_link(copy.join("out/leak")).unwrap(), secret, "a link is copied as the link that it is");
    lab.brig(["task", "cp", &of("out/deep/file"), copy.join("renamed").to_str().unwrap()]).succeeded();
    assert_eq!(std::fs::read_to_string(copy.join("renamed")).unwrap(), "made\n");
    // A link to the host's folder leads nowhere, in either direction.
    lab.brig(["task", "cp", &of("/tmp/dir/secret"), copy.join("x").to_str().unwrap()]).refused(125, &["secret"]);
    lab.brig(["task", "cp", secret.to_str().unwrap(), &of("/tmp/dir/planted")]).refused(125, &["dir"]);
    assert!(!lab.path().join("planted").exists() && !copy.join("x").exists());
    // A folder with links, copied in; it belongs to the sandbox's user.
    lab.file("tree/a/b", "mine\n");
    std::os::unix::fs::symlink("/etc/shadow", lab.path().join("tree/link")).unwrap();
    lab.brig(["task", "cp", lab.path().join("tree").to_str().unwrap(), &of("/workspace")]).succeeded();
    let run = exec(
        &lab,
        &id,
        "cat tree/a/b; readlink tree/link; stat -c %U tree/a/b; echo more >> tree/a/b && echo writable",
    );
    assert_eq!(run.succeeded().stdout, "mine\n/etc/shadow\nagent\nwritable\n");
    lab.brig(["task", "cp", &of("/etc"), &of("/tmp")]).refused(125, &["only one"]);
    lab.brig(["task", "cp", &of("nothing"), copy.to_str().unwrap()]).refused(125, &["nothing"]);
    lab.brig(["task", "stop", "--grace", "0s", &id]).succeeded();
}

#[test]
fn holes_stay_holes_and_a_copy_has_the_disk_limit() {
    use std::os::unix::fs::MetadataExt;
    let lab = Lab::new();
    let script = "mkdir out big; truncate -s 3G out/holes; echo end >>out/holes; ln out/holes out/name; \
                  for i in 1 2 3; do head -c 7M /dev/zero >big/$i; done; echo ready; sleep 300";
    let id = begin(&lab, &["--disk", "32M"], script);
    eventually("it is ready", || logs(&lab, &id) == "ready\n");
    let copy = lab.directory("copy");
    let cp = |path: &str| lab.brig(["task", "cp", &format!("{id}:{path}"), copy.to_str().unwrap()]);
    cp("out").succeeded();
    let status = |name: &str| copy.join("out").join(name).metadata().unwrap();
    assert!(status("holes").len() == (3 << 30) + 4 && status("holes").blocks() < 100);
    assert_eq!(status("holes").ino(), status("name").ino());
    cp("big").succeeded();
    // The host's /usr is larger than this task's disk.
    cp("/usr/bin").refused(125, &["disk limit"]);
    let words = ["task", "cp", &format!("{id}:/usr/bin"), copy.to_str().unwrap()];
    lab.weakened("copy-bounds", words).succeeded();
    lab.brig(["task", "stop", "--grace", "0s", &id]).succeeded();
}

#[test]
fn a_paused_task_stands_still_and_its_idle_limit_rests() {
    let lab = Lab::new();
    let id = begin(&lab, &["--idle", "1s"], "while :; do echo tick; sleep 0.05; done");
    eventually("it ticks", || logs(&lab, &id).contains("tick"));
    let paused = lab.brig(["task", "pause", &id]);
    if !is_root() && paused.stderr.contains("cgroup") {
        lab.brig(["task", "kill", &id]).succeeded();
        wait(&lab, &id);
        return skip("this user has no group that can be frozen");
    }
    paused.succeeded();
    let before = logs(&lab, &id);
    std::thread::sleep(std::time::Duration::from_millis(1300));
    assert_eq!(logs(&lab, &id), before);
    assert!(lab.brig(["task", "stats", &id]).succeeded().stdout.contains("paused"));
    lab.brig(["task", "exec", &id, "--", "true"]).refused(125, &["paused"]);
    lab.brig(["task", "unpause", &id]).succeeded();
    eventually("it ticks again", || logs(&lab, &id) != before);
    // A frozen task can be ended too.
    lab.brig(["task", "pause", &id]).succeeded();
    lab.brig(["task", "stop", &id]).succeeded();
    assert_eq!(wait(&lab, &id)["outcome"], "cancelled");
}

#[test]
fn output_read_during_a_pause_does_not_prolong_the_idle_limit() {
    let Some(lab) = Lab::root() else { return };
    let id = begin(&lab, &["--idle", "4s"], "sleep 300");
    let script = "echo up; sleep 0.5; echo late; sleep 300";
    let entered = lab.start(["task", "exec", &id, "--", "sh", "-c", script]);
    entered.wait_for("up");
    entered.signal(rustix::process::Signal::STOP);
    std::thread::sleep(Duration::from_secs(1));
    lab.brig(["task", "pause", &id]).succeeded();
    std::thread::sleep(Duration::from_secs(8));
    // Its client reports the output as activity.
    entered.signal(rustix::process::Signal::CONT);
    entered.wait_for("late");
    lab.brig(["task", "unpause", &id]).succeeded();
    let unpaused = std::time::Instant::now();
    assert_eq!(wait(&lab, &id)["outcome"], "idle_timeout");
    assert!(unpaused.elapsed() < Duration::from_secs(9), "{:?}", unpaused.elapsed());
    entered.finish();
}

#[test]
fn signals_reach_the_command_and_stop_waits_for_its_grace() {
    let lab = Lab::new();
    let script = "trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let id = begin(&lab, &[], script);
    eventually("it is ready", || logs(&lab, &id) == "ready\n");
    lab.brig(["task", "kill", &id, "USR1"]).succeeded();
    eventually("the signal came", || logs(&lab, &id).contains("usr1\n"));
    lab.brig(["task", "kill", &id, "NONE"]).refused(125, &["NONE"]);
    lab.brig(["task", "kill", &id, "STOP"]).refused(125, &["pause"]);
    lab.brig(["task", "stop", &id]).succeeded();
    assert!(logs(&lab, &id).contains("term\n"));
    let id = begin(&lab, &[], "trap '' TERM; echo ready; while :; do sleep 0.02; done");
    eventually("it is ready", || logs(&lab, &id) == "ready\n");
    let stop = lab.brig(["task", "stop", "--grace", "300ms", &id]);
    assert!(stop.succeeded().elapsed.as_millis() >= 300, "{stop:#?}");
    assert_eq!(wait(&lab, &id)["outcome"], "cancelled");
}

#[test]
fn usage_and_processes_are_what_they_are() {
    let lab = Lab::new();
    let script = "head -c 3M /dev/zero > file; sleep 301 & echo ready; wait";
    let id = begin(&lab, &["--pids", "50"], script);
    eventually("it is ready", || logs(&lab, &id) == "ready\n");
    let stats: Value = serde_json::from_str(&lab.brig(["task", "stats", "--json"]).succeeded().stdout).unwrap();
    assert_eq!((&stats[0]["id"], &stats[0]["pids_limit"]), (&id.as_str().into(), &50.into()));
    assert!(stats[0]["disk_bytes"].as_u64().unwrap() >= 3 << 20, "{stats}");
    let top: Value = serde_json::from_str(&lab.brig(["task", "top", "--json", &id]).succeeded().stdout).unwrap();
    let lines: Vec<_> = top.as_array().unwrap().iter().map(|each| each["command"].as_str().unwrap()).collect();
    assert!(lines.contains(&"sleep 301"), "{lines:?}");
    lab.brig(["task", "stop", &id]).succeeded();
    assert_eq!(lab.brig(["task", "stats", "--json"]).succeeded().stdout.trim(), "[]");
}

#[test]
fn an_attached_client_sees_output_gives_input_and_exits_as_the_task_does() {
    let lab = Lab::new();
    let id = begin(&lab, &["--interactive"], "echo first; read line; echo got $line; cat | wc -c; exit 4");
    eventually("it is ready", || logs(&lab, &id) == "first\n");
    let run = lab.attach_with_input(&id, format!("word\n{}", "x".repeat(200_000)));
    assert_eq!((run.status, run.stdout.as_str()), (Some(4), "first\ngot word\n200000\n"), "{run:#?}");
    // Detaching changes nothing, and two may be attached.
    let id = begin(&lab, &[], UNTIL_GO);
    let one = lab.start(["task", "attach", "--replay", &id]);
    let two = lab.start(["task", "logs", "-f", &id]);
    one.wait_for("ready");
    two.wait_for("ready");
    one.signal(rustix::process::Signal::INT);
    let left = one.finish();
    assert!(left.succeeded().stderr.contains("goes on"), "{left:#?}");
    exec(&lab, &id, "touch /tmp/go").succeeded();
    assert_eq!(two.finish().succeeded().stdout, "ready\nwent\n");
    wait(&lab, &id);
}

#[test]
fn input_that_nothing_reads_holds_up_neither_output_nor_a_signal() {
    let lab = Lab::new();
    let id = begin(&lab, &["--interactive"], UNTIL_GO);
    let much = || "x".repeat(500_000);
    let run = lab.exec_with_input(&id, much(), "head -c 600000 /dev/zero; wc -c");
    assert_eq!(run.succeeded().stdout.trim_start_matches('\0'), "500000\n");
    let asleep =
        lab.start_with_input(["task", "exec", "-i", &id, "--", "sh", "-c", "echo begun; exec sleep 100"], much());
    asleep.wait_for("begun");
    std::thread::sleep(Duration::from_millis(200)); // until no more input is taken
    asleep.signal(rustix::process::Signal::INT);
    assert_eq!(asleep.finish().status, Some(130));
    let attached = lab.start_with_input(["task", "attach", "--replay", &id], much());
    attached.wait_for("ready");
    std::thread::sleep(Duration::from_millis(200));
    attached.signal(rustix::process::Signal::INT);
    assert!(attached.finish().succeeded().stderr.contains("goes on"));
    lab.brig(["task", "stop", &id]).succeeded();
}

#[test]
fn a_task_with_as_many_processes_of_clients_as_it_may_have_is_still_stopped() {
    let lab = Lab::new();
    let id = begin(&lab, &[], UNTIL_GO);
    let words = ["task", "exec", &id, "--", "sh", "-c", "echo begun; exec sleep 100"];
    let all: Vec<_> = (0..64).map(|_| lab.start(words)).collect();
    all.iter().for_each(|each| each.wait_for("begun"));
    exec(&lab, &id, "true").refused(125, &["64 processes of clients run"]);
    lab.brig(["task", "stats", &id]).succeeded();
    let ended = begin(&lab, &[], "true");
    wait(&lab, &ended);
    // One that cannot be stopped does not spare the others.
    lab.brig(["task", "stop", "--grace", "0s", &ended, &id]).refused(125, &["it has ended"]);
    lab.brig(["task", "exec", &id, "--", "true"]).refused(125, &["it has ended"]);
    all.into_iter().for_each(|each| drop(each.finish()));
}

#[test]
fn an_ordinary_user_is_told_by_what_a_sandbox_can_be_held() {
    if is_root() {
        return skip("needs an ordinary user");
    }
    let lab = Lab::new();
    let run = lab.brig(["task", "run", "-d", "--hold", "--empty"]);
    run.refused(125, &["--hold"]);
    assert!(run.stderr.contains("sleep infinity"), "{run:#?}");
    assert!(lab.ids().is_empty());
}
