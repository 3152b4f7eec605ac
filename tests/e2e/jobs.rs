//! Processes that enter a task: their time limit, their user, and jobs, which outlive their client.

use crate::support::{Lab, Run, eventually, is_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A daemon, a child in the background and a process in the foreground, which ignore every polite signal.
const TREE: &str = "trap '' TERM HUP INT; (setsid sleep 400 &) >/dev/null 2>&1; sleep 401 & echo ready; sleep 402";

#[track_caller]
fn begin(lab: &Lab, arguments: &[&str]) -> String {
    let run = lab.task().plain().args(["--detach"]).args(arguments).sh("sleep 300");
    let id = run.succeeded().stdout.trim().to_owned();
    eventually("its command runs", || lab.brig(["task", "top", &id]).stdout.contains("  sleep 300"));
    id
}

#[track_caller]
fn end(lab: &Lab, id: &str) {
    lab.brig(["task", "kill", id]).succeeded();
    lab.brig(["task", "wait", id]);
}

fn exec(lab: &Lab, id: &str, flags: &[&str], script: &str) -> Run {
    let command = [id, "--", "sh", "-c", script];
    lab.brig(["task", "exec"].iter().chain(flags).chain(&command))
}

#[track_caller]
fn job(lab: &Lab, id: &str, flags: &[&str], script: &str) -> String {
    let flags: Vec<_> = ["-d"].iter().chain(flags).copied().collect();
    exec(lab, id, &flags, script).succeeded().stdout.trim().to_owned()
}

#[track_caller]
fn jobs(lab: &Lab, id: &str) -> Vec<Value> {
    serde_json::from_str(&lab.brig(["task", "jobs", "--json", id]).succeeded().stdout).unwrap()
}

#[track_caller]
fn wait(lab: &Lab, id: &str, job: &str) -> Value {
    serde_json::from_str(&lab.brig(["task", "wait", "--json", id, "--job", job]).stdout).unwrap()
}

fn job_log(lab: &Lab, id: &str, job: &str, flags: &[&str]) -> String {
    let words = ["task", "logs", id, "--job", job];
    lab.brig(words.iter().chain(flags)).succeeded().stdout.clone()
}

/// The number of a task's processes.
#[track_caller]
fn count(lab: &Lab, id: &str) -> usize {
    let top = lab.brig(["task", "top", "--json", id]);
    serde_json::from_str::<Vec<Value>>(&top.succeeded().stdout).unwrap().len()
}

fn kill_supervisor(lab: &Lab, id: &str) {
    let record = std::fs::read(lab.store().join("tasks").join(id).join("record.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    kill_process(Pid::from_raw(record["supervisor"].as_i64().unwrap() as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_time_limit_ends_the_whole_process_tree() {
    let lab = Lab::new();
    let id = begin(&lab, &[]);
    let before = count(&lab, &id);
    let run = exec(&lab, &id, &["--timeout", "1s"], TREE);
    assert_eq!((run.status, run.stdout.as_str()), (Some(124), "ready\n"), "{run:#?}");
    assert!(run.stderr.contains("it ran for 1s and was killed"), "{run:#?}");
    assert!(run.elapsed < Duration::from_secs(10), "{run:#?}");
    eventually("its tree is gone", || count(&lab, &id) <= before);
    let run = exec(&lab, &id, &["--timeout", "1m"], "echo out; echo err >&2; exit 124");
    assert_eq!((run.status, run.stdout.as_str(), run.stderr.as_str()), (Some(124), "out\n", "err\n"));
    exec(&lab, &id, &["--timeout", "0s"], "touch /tmp/begun").refused(125, &["a time-out of 0"]);
    exec(&lab, &id, &["-d", "--timeout", "0s"], "touch /tmp/begun").refused(125, &["a time-out of 0"]);
    assert_eq!(exec(&lab, &id, &[], "ls /tmp").succeeded().stdout, "");
    end(&lab, &id);
}

#[test]
fn a_stopped_client_does_not_extend_a_time_limit() {
    let lab = Lab::new();
    let id = begin(&lab, &[]);
    let before = count(&lab, &id);
    let started = lab.start(["task", "exec", "--timeout", "1500ms", &id, "--", "sh", "-c", TREE]);
    started.wait_for("ready");
    started.signal(Signal::STOP);
    eventually("its tree is gone", || count(&lab, &id) <= before);
    started.signal(Signal::CONT);
    assert_eq!(started.finish().status, Some(124));
    end(&lab, &id);
}

#[test]
fn a_silent_process_with_a_time_limit_is_activity() {
    let lab = Lab::new();
    let id = begin(&lab, &["--idle", "1s"]);
    exec(&lab, &id, &["--timeout", "1m"], "sleep 3").succeeded();
    let name = job(&lab, &id, &["--timeout", "1m"], "sleep 2; echo done");
    assert_eq!(wait(&lab, &id, &name)["state"], "exited");
    let receipt = lab.brig(["task", "wait", "--json", &id]).receipt();
    assert_eq!(receipt["outcome"], "idle_timeout");
}

#[test]
fn a_process_runs_as_another_user_of_the_sandbox() {
    let Some(lab) = Lab::root() else { return };
    let id = begin(&lab, &[]);
    const WHO: &str =
        "id -u; id -g; grep -E '^Cap(Eff|Prm|Bnd)' /proc/self/status | grep -v 0000000000000000; echo $HOME";
    let run = exec(&lab, &id, &["--user", "1234:77"], WHO);
    let own = exec(&lab, &id, &[], "echo $HOME").succeeded().stdout.clone();
    assert_eq!(run.succeeded().stdout, format!("1234\n77\n{own}"), "{run:#?}");
    let name = exec(&lab, &id, &[], "id -un").succeeded().stdout.trim().to_owned();
    assert_eq!(exec(&lab, &id, &["--user", &name], "id -un").succeeded().stdout.trim(), name);
    let file = exec(&lab, &id, &["--user", "0:0"], "echo x > /usr/x; unshare -r true; id -u");
    assert!(file.stdout == "0\n" && file.stderr.contains("denied") || file.stderr.contains("Read-only"), "{file:#?}");
    exec(&lab, &id, &["--user", "missing-user"], "true").refused(125, &["unable to find user missing-user"]);
    exec(&lab, &id, &["--user", "65536"], "true").refused(125, &["beyond the 65536 ids"]);
    exec(&lab, &id, &["--user", "5:65536"], "true").refused(125, &["beyond the 65536 ids"]);
    exec(&lab, &id, &["--user", "4294967296"], "true").refused(125, &["find the user `4294967296`"]);
    for user in ["65531", "65533"] {
        exec(&lab, &id, &["--user", user], "true").refused(125, &["brig's own processes"]);
    }
    end(&lab, &id);
}

#[test]
fn the_id_of_the_gateway_is_refused_by_this_protection() {
    let Some(lab) = Lab::root() else { return };
    let run = lab.task().plain().weakened("exec-user").args(["--detach"]).sh("sleep 300");
    let id = run.succeeded().stdout.trim().to_owned();
    assert_eq!(exec(&lab, &id, &["--user", "65531"], "id -u").succeeded().stdout, "65531\n");
    end(&lab, &id);
}

#[test]
fn an_ordinary_users_sandbox_has_one_user() {
    if is_root() {
        return crate::support::skip("needs an ordinary user");
    }
    let lab = Lab::new();
    let id = begin(&lab, &[]);
    let own = exec(&lab, &id, &[], "id -u; id -g").succeeded().stdout.clone();
    exec(&lab, &id, &["--user", "0:0"], "true").refused(125, &["has the one user"]);
    let (user, group) = own.trim().split_once('\n').unwrap();
    assert_eq!(exec(&lab, &id, &["--user", &format!("{user}:{group}")], "id -u").succeeded().stdout.trim(), user);
    end(&lab, &id);
}

#[test]
fn a_job_has_an_id_a_log_and_a_status() {
    let lab = Lab::new();
    let run = lab.task().plain().env("TOKEN", "correct-horse-battery").args(["-d", "-e", "TOKEN"]).sh("sleep 300");
    let id = run.succeeded().stdout.trim().to_owned();
    let script =
        "echo out; echo err >&2; echo $TOKEN; cat; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo went; exit 7";
    let first = job(&lab, &id, &["-w", "/tmp", "-e", "A=b"], script);
    assert_eq!(first, "j1");
    eventually("its output is in its log", || job_log(&lab, &id, "j1", &[]).contains("redacted"));
    assert_eq!(jobs(&lab, &id)[0]["state"], "running");
    assert!(lab.brig(["task", "jobs", &id]).succeeded().stdout.contains("running"));
    assert_eq!(lab.brig(["task", "wait", "--timeout", "50ms", &id, "--job", "j1"]).status, Some(124));
    let follower = lab.start(["task", "logs", "-f", &id, "--job", "1"]);
    exec(&lab, &id, &[], "touch /tmp/go").succeeded();
    let ended = lab.brig(["task", "wait", &id, "--job", "j1"]);
    assert_eq!(ended.status, Some(7), "{ended:#?}");
    let followed = follower.finish();
    assert!(followed.stdout.contains("out\n") && followed.stdout.ends_with("went\n"), "{followed:#?}");
    assert_eq!(job_log(&lab, &id, "j1", &["--stderr"]), "err\n");
    assert_eq!(job_log(&lab, &id, "j1", &["--stdout"]), "out\n[redacted:TOKEN]\nwent\n");
    assert!(job_log(&lab, &id, "j1", &["--json"]).contains(r#"{"stream":"stderr","text":"err\n"}"#));
    let record = &jobs(&lab, &id)[0];
    assert_eq!((&record["state"], &record["exit_status"]), (&json!("exited"), &json!(7)), "{record}");
    assert_eq!(lab.brig(["task", "logs", &id]).succeeded().stdout, "", "a job's output is not the task's");
    for words in [
        ["task", "logs", &id, "--job", "j9"],
        ["task", "wait", &id, "--job", "j9"],
        ["task", "stop", &id, "--job", "x"],
    ] {
        lab.brig(words).refused(125, &["has no job"]);
    }
    lab.brig(["task", "stop", &id, "--job", "j1"]).refused(125, &["runs no job `j1`"]);
    exec(&lab, &id, &["-d"], "true").succeeded();
    lab.brig(["task", "exec", "-d", &id, "--", "no-such-program"]).refused(127, &["no-such-program"]);
    assert_eq!(jobs(&lab, &id).len(), 2, "a program that cannot start is no job");
    assert_eq!(lab.brig(["task", "exec", "-d", "-i", &id, "--", "true"]).status, Some(125));
    end(&lab, &id);
    let events = lab.brig(["task", "events", &id]).succeeded().stdout.clone();
    let of_jobs: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_jobs: Vec<_> = of_jobs.iter().filter(|event| event["event"] == "job" && event["job"] == "j1").collect();
    assert_eq!((&of_jobs[0]["state"], &of_jobs[1]["exit_status"]), (&json!("running"), &json!(7)), "{events}");
    assert_eq!(job_log(&lab, &id, "j1", &["--stderr"]), "err\n", "the log stays with the record of the task");
    lab.brig(["task", "exec", "-d", &id, "--", "true"]).refused(125, &["it has ended"]);
}

#[test]
fn a_job_and_its_tree_end_at_its_limit_when_stopped_and_with_the_task() {
    let lab = Lab::new();
    let id = begin(&lab, &[]);
    let before = count(&lab, &id);
    let limited = job(&lab, &id, &["--timeout", "1s"], TREE);
    let record = wait(&lab, &id, &limited);
    assert_eq!((&record["state"], &record["exit_status"]), (&json!("timed_out"), &json!(124)), "{record}");
    eventually("its tree is gone", || count(&lab, &id) <= before);
    let stopped = job(&lab, &id, &[], TREE);
    eventually("it runs", || job_log(&lab, &id, &stopped, &[]) == "ready\n");
    lab.brig(["task", "stop", &id, "--job", &stopped, "--grace", "300ms"]).succeeded();
    assert_eq!(wait(&lab, &id, &stopped)["state"], "stopped");
    eventually("its tree is gone", || count(&lab, &id) <= before);
    let polite = job(&lab, &id, &[], "trap 'echo bye; exit 3' USR1; echo ready; while :; do sleep 0.05; done");
    eventually("it runs", || job_log(&lab, &id, &polite, &[]) == "ready\n");
    lab.brig(["task", "kill", &id, "--job", &polite, "USR1"]).succeeded();
    let record = wait(&lab, &id, &polite);
    assert_eq!((&record["state"], &record["exit_status"]), (&json!("exited"), &json!(3)), "{record}");
    let killed = job(&lab, &id, &[], TREE);
    lab.brig(["task", "kill", &id, "--job", &killed]).succeeded();
    assert_eq!(wait(&lab, &id, &killed)["exit_status"], 137);
    // A job leaves no daemon, and its last output comes.
    let daemon = job(&lab, &id, &[], "setsid sleep 403 & (sleep 0.2; echo late) & echo done");
    assert_eq!(wait(&lab, &id, &daemon)["state"], "exited");
    assert_eq!(job_log(&lab, &id, &daemon, &[]), "done\nlate\n");
    eventually("its tree is gone", || count(&lab, &id) <= before);
    let last = job(&lab, &id, &[], TREE);
    eventually("it runs", || job_log(&lab, &id, &last, &[]) == "ready\n");
    end(&lab, &id);
    let record = wait(&lab, &id, &last);
    assert_eq!(record["state"], "ended_with_task", "{record}");
}

#[test]
fn jobs_of_a_killed_supervisor_are_lost_and_leave_nothing() {
    let lab = Lab::new();
    let id = begin(&lab, &[]);
    let name = job(&lab, &id, &[], TREE);
    eventually("it runs", || job_log(&lab, &id, &name, &[]) == "ready\n");
    let waiting = lab.start(["task", "wait", &id, "--job", &name]);
    kill_supervisor(&lab, &id);
    assert_eq!(waiting.finish().status, Some(125));
    assert_eq!(jobs(&lab, &id)[0]["state"], "lost");
    assert_eq!(lab.brig(["task", "show", "--json", &id]).receipt()["outcome"], "lost");
    assert_eq!(job_log(&lab, &id, &name, &[]), "ready\n");
}

#[test]
fn clients_killed_at_any_moment_leave_whole_jobs_or_none() {
    let lab = Lab::new();
    let id = begin(&lab, &[]);
    let before = count(&lab, &id);
    let began = Instant::now();
    for round in 0..40_u64 {
        let started = lab.start(["task", "exec", "-d", "--timeout", "1m", &id, "--", "sh", "-c", TREE]);
        std::thread::sleep(Duration::from_micros((round * 1_777) % 24_000));
        started.signal(Signal::KILL);
        started.finish();
        for each in jobs(&lab, &id).iter().filter(|job| job["state"] == "running") {
            lab.brig(["task", "kill", &id, "--job", each["id"].as_str().unwrap()]).succeeded();
        }
    }
    eventually("no job runs", || {
        let running: Vec<_> = jobs(&lab, &id).into_iter().filter(|job| job["state"] == "running").collect();
        for each in &running {
            lab.brig(["task", "kill", &id, "--job", each["id"].as_str().unwrap()]);
        }
        running.is_empty() && count(&lab, &id) <= before
    });
    assert!(began.elapsed() < Duration::from_secs(80));
    end(&lab, &id);
}

#[test]
fn the_number_of_jobs_and_the_bytes_of_their_logs_are_bounded() {
    let lab = Lab::new();
    let id = begin(&lab, &["--output-bytes", "100K"]);
    let wordy = job(&lab, &id, &[], "head -c 300000 /dev/zero | tr '\\0' x; echo end >&2");
    let record = wait(&lab, &id, &wordy);
    assert_eq!(
        (&record["state"], &record["exit_status"]),
        (&json!("exited"), &json!(0)),
        "it is not stopped: {record}"
    );
    assert_eq!(record["log_bytes"].as_u64().unwrap() + record["left_out_bytes"].as_u64().unwrap(), 300_004);
    assert_eq!(job_log(&lab, &id, &wordy, &[]).len(), 100 << 10);
    let second = job(&lab, &id, &[], "echo more");
    assert_eq!(wait(&lab, &id, &second)["left_out_bytes"], 5);
    for _ in 0..16 {
        job(&lab, &id, &[], "sleep 300");
    }
    exec(&lab, &id, &["-d"], "true").refused(125, &["16 jobs"]);
    lab.brig(["task", "kill", &id, "--job", "j5"]).succeeded();
    wait(&lab, &id, "j5");
    exec(&lab, &id, &["-d"], "true").succeeded();
    end(&lab, &id);
}

#[test]
fn a_copy_leaves_out_what_is_excluded() {
    let lab = Lab::new();
    for name in [
        "tree/a.log",
        "tree/keep.txt",
        "tree/node_modules/x",
        "tree/deep/node_modules/y",
        "tree/deep/b.log",
        "tree/build/c",
    ] {
        lab.file(name, name);
    }
    let id = begin(&lab, &[]);
    let from = lab.path().join("tree");
    let exclude = ["--exclude", "node_modules/", "--exclude", "*.log", "--exclude", "/build"];
    let copy = |from: &str, to: &str| lab.brig(["task", "cp", from, to].iter().chain(&exclude));
    copy(from.to_str().unwrap(), &format!("{id}:/tmp/tree")).succeeded();
    const FIND: &str = "cd /tmp/tree && find . -type f | sort";
    assert_eq!(exec(&lab, &id, &[], FIND).succeeded().stdout, "./keep.txt\n");
    exec(
        &lab,
        &id,
        &[],
        "cd /tmp/tree; touch z.log a; mkdir -p d/node_modules build; touch d/node_modules/q d/e build/f",
    )
    .succeeded();
    let out = lab.path().join("out");
    copy(&format!("{id}:/tmp/tree"), out.to_str().unwrap()).succeeded();
    let names = |path: &str| {
        let entries = std::fs::read_dir(lab.path().join(path)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(
        (names("out"), names("out/d")),
        (["a", "d", "deep", "keep.txt"].map(str::to_owned).to_vec(), vec!["e".to_owned()])
    );
    let wrong = lab.brig([
        "task",
        "cp",
        "--exclude",
        "[z-a]",
        &format!("{id}:/tmp/tree"),
        lab.path().join("no").to_str().unwrap(),
    ]);
    wrong.refused(125, &["invalid pattern `[z-a]` for `--exclude`"]);
    assert!(!lab.path().join("no").exists());
    end(&lab, &id);
}

#[test]
fn a_task_has_no_time_limit_if_it_is_asked_for() {
    let lab = Lab::new();
    let run = lab.task().args(["--wall", "none", "--idle", "none", "--cpu-time", "none"]).sh("sleep 1; echo done");
    let receipt = run.ended_as("succeeded", 0).receipt();
    for name in ["wall", "idle", "cpu_time"] {
        assert_eq!(receipt["limits"][name], Value::Null, "{receipt:#}");
    }
    let explained = lab.task().plain().args(["--explain", "--wall", "none"]).sh("true");
    let is_none = |line: &str| line.split_whitespace().eq(["wall", "none"]);
    assert!(explained.succeeded().stdout.lines().any(is_none), "{explained:#?}");
    lab.task().plain().args(["--memory", "none"]).sh("true").refused(125, &["--memory", "none"]);
    lab.task().plain().args(["--wall", "300years"]).sh("true").refused(125, &["longer than any clock"]);
}

/// The pipe of the job's output never becomes empty.
#[test]
fn a_job_whose_output_another_process_writes_on_does_not_stop_the_supervisor() {
    const RECEIVE: &str = "import fcntl, os, socket, threading, time
listener = socket.socket(socket.AF_UNIX); listener.bind('/tmp/s'); listener.listen(); print('ready', flush=True)
fd = socket.recv_fds(listener.accept()[0], 1, 1)[1][0]
fcntl.fcntl(fd, 1031, 1 << 20) # F_SETPIPE_SZ
def write():
    try:
        while True: os.write(fd, b'x' * 4096)
    except OSError: time.sleep(100)
for _ in range(6): threading.Thread(target=write).start()";
    const SEND: &str = "python3 -c \"import socket
end = socket.socket(socket.AF_UNIX); end.connect('/tmp/s'); socket.send_fds(end, [b'x'], [1])\"";
    let lab = Lab::new();
    let task = lab.task().args(["--wall", "10s"]).start_sh(&format!("exec python3 -c \"{RECEIVE}\""));
    task.wait_for("ready");
    let id = lab.ids().remove(0);
    let name = job(&lab, &id, &[], SEND);
    assert_eq!(wait(&lab, &id, &name)["state"], "exited");
    let run = task.finish();
    run.ended_as("timeout", 124);
    assert!(run.elapsed < Duration::from_secs(20), "{run:#?}");
}

#[test]
fn a_hundred_silent_clients_leave_room_to_stop_the_task() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let lab = Lab::new();
    let id = begin(&lab, &[]);
    let address = SocketAddrUnix::new(lab.store().join("tasks").join(&id).join("control.sock")).unwrap();
    let silent = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &address).unwrap();
        socket
    };
    let held: Vec<_> = (0..100).map(|_| silent()).collect();
    let began = Instant::now();
    lab.brig(["task", "stop", &id]).succeeded();
    lab.brig(["task", "wait", &id]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop(held);
}
