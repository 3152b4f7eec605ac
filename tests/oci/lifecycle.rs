//! The verbs, their errors and exit statuses, as runc's callers expect them.

use crate::support::{Lab, eventually};
use serde_json::{Value, json};

#[test]
fn a_container_goes_through_its_life() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["annotations"] = json!({"k": "v"});
    lab.args(&["sleep", "100"]);
    lab.create().succeeded();
    let state = lab.state();
    assert_eq!(
        (&state["status"], &state["annotations"]["k"], &state["owner"]),
        (&json!("created"), &json!("v"), &json!(""))
    );
    lab.on(&["start"]).succeeded();
    assert_eq!(lab.status(), "running");
    lab.on(&["start"]).failed_with("cannot start an already running container");
    lab.on(&["pause"]).succeeded();
    assert_eq!(lab.status(), "paused");
    lab.exec("true").failed_with("cannot exec in a paused container (use --ignore-paused to override)");
    lab.on(&["resume"]).succeeded();
    lab.on(&["resume"]).failed_with("container not paused");
    lab.on(&["delete"]).failed_with("that is not stopped: running");
    lab.brig(&["kill", &lab.id, "KILL"]).succeeded();
    eventually("it stops", || lab.status() == "stopped");
    assert_eq!(lab.state()["pid"], json!(0));
    lab.on(&["kill"]).failed_with("container not running");
    lab.on(&["kill", "--all"]).succeeded();
    assert_eq!(lab.exec("true").failed_with("cannot exec in a stopped container").status, 255);
    lab.on(&["start"]).failed_with("cannot start a container that has stopped");
    lab.on(&["delete"]).succeeded();
    lab.on(&["delete"]).failed_with("container does not exist");
    lab.on(&["delete", "--force"]).succeeded();
    lab.on(&["state"]).failed_with("container does not exist");
    lab.on(&["kill"]).failed_with("container does not exist");
}

#[test]
fn the_exit_status_of_run_is_the_programs() {
    let Some(mut lab) = Lab::new() else { return };
    for (line, status) in
        [("exit 0", 0), ("exit 7", 7), ("ulimit -t 1; while :; do :; done", 137), ("kill -9 $$; exit 3", 3)]
    {
        assert_eq!(lab.sh(line).run().status, status, "{line}");
    }
}

#[test]
fn a_program_that_cannot_be_executed_fails_at_create_with_runcs_words() {
    let Some(mut lab) = Lab::new() else { return };
    std::fs::write(lab.root("/etc/file"), "x").unwrap();
    for (program, words) in [
        ("nope", "exec: \"nope\": executable file not found in $PATH"),
        ("/nope", "exec: \"/nope\": stat /nope: no such file or directory"),
        ("/etc", "exec: \"/etc\": is a directory"),
        ("/etc/file", "exec: \"/etc/file\": permission denied"),
        ("/etc/file/x", "exec: \"/etc/file/x\": stat /etc/file/x: not a directory"),
    ] {
        lab.args(&[program])
            .create()
            .failed_with("unable to start container process: ")
            .failed_with(&words.replace('"', "\\\""));
        lab.on(&["state"]).failed_with("container does not exist");
    }
    lab.args(&["sleep", "10"]).start();
    let done = lab.brig(&["exec", &lab.id, "nope"]);
    assert_eq!(done.failed_with("executable file not found in $PATH").status, 255);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
}

#[test]
fn what_cannot_be_executed_after_all_fails_at_start() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mut lab) = Lab::new() else { return };
    std::fs::write(lab.root("/bin/script"), "#!/no/interpreter\n").unwrap();
    std::fs::set_permissions(lab.root("/bin/script"), PermissionsExt::from_mode(0o755)).unwrap();
    lab.args(&["/bin/script"]).create().succeeded();
    lab.on(&["start"]).failed_with("no such file or directory");
    eventually("it stops", || lab.status() == "stopped");
}

#[test]
fn an_id_is_used_once_and_flags_are_taken_after_it_too() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]);
    lab.create().succeeded();
    lab.create().failed_with("container with given ID already exists");
    assert_eq!(lab.status(), "created");
    let bundle = lab.path().to_str().unwrap().to_owned();
    lab.brig(&["delete", &lab.id, "--force"]).succeeded();
    let mut command = lab.command(&["create", &lab.id, "--bundle", &bundle, "-pid-file=pid"]);
    assert!(
        command
            .current_dir("/")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    );
    std::fs::remove_file("/pid").unwrap();
}

#[test]
fn the_pid_file_is_bare_digits() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]);
    let mut command = lab.command(&["create", "--pid-file", "pid", &lab.id]);
    assert!(
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).status().unwrap().success()
    );
    let text = std::fs::read_to_string(lab.path().join("pid")).unwrap();
    assert_eq!(text.parse::<i64>().unwrap(), lab.state()["pid"].as_i64().unwrap());
}

#[test]
fn a_log_of_json_has_one_line_for_a_failure() {
    let Some(lab) = Lab::new() else { return };
    let done = lab.brig(&["--log", "log", "--log-format=json", "state", "missing"]);
    let log = std::fs::read_to_string(lab.path().join("log")).unwrap();
    let line: Value = serde_json::from_str(&log).unwrap();
    assert_eq!((&line["level"], &line["msg"]), (&json!("error"), &json!("container does not exist")));
    assert_eq!((done.status, done.err.as_str()), (1, "container does not exist\n"));
    lab.brig(&["--log-format=xml", "list"]).failed_with("invalid log-format");
}

#[test]
fn ids_that_could_lead_out_of_the_directory_are_refused() {
    // T-24
    let Some(lab) = Lab::new() else { return };
    let long = "x".repeat(1025);
    for id in ["../x", "a/b", "", ".", "..", "a\nb", "a b", long.as_str()] {
        for verb in ["create", "state", "start", "delete", "run"] {
            lab.brig(&[verb, id]).failed_with("invalid container ID format");
        }
    }
}

#[test]
fn lists_are_tables_json_and_names() {
    let Some(mut lab) = Lab::new() else { return };
    lab.brig(&["list"]).failed_with("records"); // named, and missing
    lab.args(&["sleep", "100"]).start();
    let table = lab.brig(&["list"]).out;
    assert!(table.starts_with("ID ") && table.contains(&format!("{} ", lab.id)), "{table}");
    assert_eq!(lab.brig(&["list", "-q"]).out.trim(), lab.id);
    let json: Value = serde_json::from_str(&lab.brig(&["list", "--format=json"]).out).unwrap();
    assert_eq!(json[0]["status"], json!("running"));
    let pids: Vec<i64> = serde_json::from_str(&lab.on(&["ps", "--format", "json"]).out).unwrap();
    assert_eq!(pids, [lab.state()["pid"].as_i64().unwrap()]);
    assert!(lab.on(&["ps"]).out.contains("sleep 100"));
}

#[test]
fn exec_has_the_containers_process_and_what_the_command_line_says() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["process"]["env"] = json!(["PATH=/bin", "A=1"]);
    lab.args(&["sleep", "100"]).start();
    let done = lab.brig(&[
        "exec",
        "-u",
        "1000:77",
        "-g",
        "5",
        "-e",
        "B=2",
        "--cwd",
        "/tmp",
        &lab.id,
        "sh",
        "-c",
        "id; pwd; echo $A$B$HOME",
    ]);
    assert_eq!(done.out, "uid=1000(user) gid=77 groups=5\n/tmp\n12/home/user\n");
    assert_eq!(lab.brig(&["exec", &lab.id, "sh", "-c", "exit 9"]).status, 9);
    assert_eq!(lab.exec("kill -9 $$").status, 137);
    lab.brig(&["exec", "-e", "B", &lab.id, "true"]).failed_with("invalid environment variable: missing '='");
    let caps = lab.brig(&["exec", "--cap", "CAP_NET_ADMIN", &lab.id, "grep", "Cap", "/proc/self/status"]).out;
    assert!(caps.contains("CapInh:\t0000000000000000") && caps.contains("CapPrm:\t0000000020001420"), "{caps}"); // T-08
    let process =
        json!({"args": ["sh", "-c", "echo $HOME; id -u"], "cwd": "/", "user": {"uid": 1000}, "env": ["PATH=/bin"]});
    std::fs::write(lab.path().join("process.json"), process.to_string()).unwrap();
    assert_eq!(lab.brig(&["exec", "--process", "process.json", &lab.id]).out, "/home/user\n1000\n");
    // Its streams are the detached process's, so do not wait for their end.
    let mut command = lab.command(&["exec", "-d", "--pid-file", "pid", &lab.id, "sleep", "50"]);
    assert!(
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).status().unwrap().success()
    );
    let pid: i64 = std::fs::read_to_string(lab.path().join("pid")).unwrap().parse().unwrap();
    let pids: Vec<i64> = serde_json::from_str(&lab.on(&["ps", "-f", "json"]).out).unwrap();
    assert!(pids.contains(&pid));
}

#[test]
fn limits_are_updated_and_what_is_used_is_told() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 100});
    lab.args(&["sleep", "100"]).start();
    let read =
        |lab: &Lab, file: &str| lab.exec(&format!("cat /sys/fs/cgroup/{file}")).succeeded().out.trim().to_owned();
    // The tree of v2 alone, or one of v1 for each controller.
    let v1 = std::path::Path::new("/sys/fs/cgroup/pids").exists();
    let (pids, memory) =
        if v1 { ("pids/pids.max", "memory/memory.limit_in_bytes") } else { ("pids.max", "memory.max") };
    assert_eq!(read(&lab, pids), "100");
    lab.on(&["update", "--memory=64m", "--pids-limit", "50"]).succeeded();
    assert_eq!((read(&lab, pids).as_str(), read(&lab, memory).as_str()), ("50", "67108864"));
    let mut command = lab.command(&["update", "--resources=-", &lab.id]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), br#"{"pids":{"limit":40}}"#).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(read(&lab, pids), "40");
    let stats: Value = serde_json::from_str(&lab.on(&["events", "--stats"]).out).unwrap();
    assert_eq!((&stats["type"], &stats["data"]["pids"]["limit"]), (&json!("stats"), &json!(40)));
}

#[test]
fn what_callers_ask_before_anything_else_is_answered() {
    let done = crate::support::finish(crate::support::program().arg("features").env_clear());
    let features: Value = serde_json::from_str(&done.out).unwrap();
    assert!(done.err.is_empty() && features["mountOptions"].as_array().unwrap().contains(&json!("rro")));
    assert_eq!(features["annotations"]["org.opencontainers.runc.checkpoint.enabled"], json!("true"));
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("runc");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_brig"), &link).unwrap();
    let version = crate::support::finish(std::process::Command::new(link).arg("--version")).out;
    assert!(
        version.starts_with("runc version ") && version.contains("\ncommit: ") && version.contains("\nspec: 1.3.0"),
        "{version}"
    );
}

#[test]
fn no_process_of_ours_stays_for_a_container_that_runs() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]).start();
    lab.exec("sleep 77 > /dev/null 2>&1 &").succeeded();
    // Our processes have the lab's directory in their arguments, or our program; a moment after the verb the last has
    // ended.
    let ours = || {
        let pids =
            std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && *pid != std::process::id().to_string())
            .filter(|pid| {
                let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&words).contains(lab.path().to_str().unwrap())
            })
            .collect::<Vec<_>>()
    };
    crate::support::eventually("none is left", || ours().is_empty());
    let mut names: Vec<_> = lab.exec("ps -o comm | sort -u").out.lines().map(str::to_owned).collect();
    names.retain(|name| !matches!(name.as_str(), "COMMAND" | "ps" | "sh" | "sort"));
    assert_eq!(names, ["sleep"]);
}

/// Containers of one lab beside its own, removed on drop, also after a failure.
struct Crowd<'a> {
    lab: &'a Lab,
    ids: Vec<String>,
}

impl Crowd<'_> {
    /// Runs the same command for each, in parallel.
    fn together(&self, words: &[&str]) {
        // Every command writes config.json again, which must not happen after the first has started to read it.
        let log = |id: &str| self.lab.path().join(format!("{id}.log"));
        let commands: Vec<_> = self
            .ids
            .iter()
            .map(|id| {
                let mut command = self.lab.command(words);
                command.arg(id).stdout(std::process::Stdio::null()).stderr(std::fs::File::create(log(id)).unwrap());
                command
            })
            .collect();
        // Wait for all before the first assertion: a command that is not waited for could still make a container.
        let children: Vec<_> = commands.into_iter().map(|mut command| command.spawn().unwrap()).collect();
        let ended: Vec<_> = children.into_iter().map(|mut child| child.wait().unwrap()).collect();
        for (status, id) in ended.into_iter().zip(&self.ids) {
            assert!(status.success(), "{words:?} {id}: {}", std::fs::read_to_string(log(id)).unwrap());
        }
    }
}

impl Drop for Crowd<'_> {
    fn drop(&mut self) {
        // It may have been removed already.
        self.ids.iter().for_each(|id| drop(self.lab.brig(&["delete", "--force", id])));
    }
}

#[test]
fn a_hundred_containers_start_side_by_side() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]);
    let ids = (0..100).map(|number| format!("{}-{number}", lab.id)).collect();
    let crowd = Crowd { lab: &lab, ids };
    crowd.together(&["run", "--detach"]);
    let listed: Value = serde_json::from_str(&lab.brig(&["list", "--format", "json"]).out).unwrap();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), 100);
    assert!(listed.iter().all(|each| each["status"] == "running"), "{listed:?}");
    crowd.together(&["delete", "--force"]);
    let pattern = format!("{}-*", lab.id);
    let left = crate::support::finish(std::process::Command::new("find").args(["/sys/fs/cgroup", "-name", &pattern]));
    assert_eq!(left.out, "");
}

#[test]
fn events_tell_what_is_used_and_that_memory_ran_out() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 16 << 20, "swap": 16 << 20});
    lab.args(&["sleep", "100"]).start();
    let mut command = lab.command(&["events", "--interval", "100ms", &lab.id]);
    let mut events = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(events.stdout.take().unwrap()));
    let mut kinds = lines.map(|line| {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(event["id"], json!(lab.id));
        event["type"].as_str().unwrap().to_owned()
    });
    assert_eq!(kinds.next().as_deref(), Some("stats"));
    assert_ne!(lab.exec("exec tail /dev/zero").status, 0);
    // Ten events a second: it comes within the next twenty seconds or never.
    let ended = kinds.by_ref().take(200).any(|kind| kind == "oom");
    let _ = (events.kill(), events.wait());
    assert!(ended, "no event of memory");
}

/// A program with six lines of descendants that run away: each forks and ends, for some seconds. The program reaps them
/// as long as it lives.
const RUNAWAY: &str = r#"
    #include <signal.h>
    #include <sys/prctl.h>
    #include <time.h>
    #include <unistd.h>
    int main(void) {
        signal(SIGCHLD, SIG_IGN);
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        time_t end = time(0) + 8;
        for (int line = 0; line < 6; line++)
            if (fork() == 0)
                for (;;) {
                    if (fork() > 0 || time(0) > end) _exit(0);
                    setsid();
                }
        for (;;) pause();
    }"#;

#[test]
fn a_signal_for_all_reaches_those_who_run_away_too() {
    let Some(mut lab) = Lab::new() else { return };
    let Some(()) = lab.compile("runaway", RUNAWAY) else { return };
    lab.without("pid").args(&["runaway"]);
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 2000}); // otherwise they escape
    for signal in ["KILL", "TERM"] {
        lab.start();
        lab.brig(&["kill", "--all", &lab.id, signal]).succeeded();
        let began = std::time::Instant::now();
        eventually("all have ended", || {
            lab.status() == "stopped" && lab.on(&["ps", "--format", "json"]).out.trim() == "[]"
        });
        assert!(began.elapsed().as_secs() < 5, "{signal}: they ended by themselves");
        lab.on(&["delete"]).succeeded();
    }
}

#[test]
fn a_signal_for_all_reaches_the_first_process_without_a_group() {
    let Some(mut lab) = Lab::new() else { return };
    lab.without("pid").without("cgroup").args(&["sleep", "100"]);
    lab.config["linux"].as_object_mut().unwrap().remove("resources");
    let mut command = lab.command(&["--cgroup-manager=disabled", "run", "--detach", &lab.id]);
    let quiet = || std::process::Stdio::null();
    assert!(command.stdout(quiet()).stderr(quiet()).status().unwrap().success());
    lab.brig(&["kill", "--all", &lab.id, "KILL"]).succeeded();
    eventually("it has ended", || lab.status() == "stopped");
    lab.brig(&["kill", "--all", &lab.id, "KILL"]).succeeded();
    lab.brig(&["kill", &lab.id, "TERM"]).failed_with("container not running");
}

#[test]
fn a_signal_for_all_leaves_a_container_paused_that_was() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("trap 'echo heard >> /heard' USR1; touch /ready; while :; do sleep 0.01; done").start();
    eventually("it listens", || lab.root("/ready").exists());
    lab.on(&["pause"]).succeeded();
    lab.brig(&["kill", "--all", &lab.id, "USR1"]).succeeded();
    assert_eq!(lab.status(), "paused");
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!lab.root("/heard").exists());
    lab.on(&["resume"]).succeeded();
    eventually("it has heard", || lab.root("/heard").exists());
    // A running container continues.
    lab.brig(&["kill", "--all", &lab.id, "USR1"]).succeeded();
    assert_eq!(lab.status(), "running");
    eventually("it has heard again", || std::fs::read_to_string(lab.root("/heard")).unwrap() == "heard\nheard\n");
}

#[test]
fn killed_create_leaves_groups_that_are_shown_and_removed() {
    // The remains of a `create` that is killed after it has made the cgroups and before it has recorded them: no
    // record, no process.
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]);
    let line = r#"
        mount -t tmpfs none /run
        "$0" create "$1" > /dev/null 2>&1
        "$0" kill "$1" KILL
        until "$0" state "$1" | grep -q stopped; do sleep 0.02; done
        rm "/run/brig/$1/state.json"
        echo before
        "$0" doctor --leaks --store /run/store | grep "$1"
        "$0" delete --force "$1"
        echo after
        "$0" doctor --leaks --store /run/store | grep "$1"
        find /sys/fs/cgroup -name "$1"
    "#;
    let command = lab.command(&[]); // writes config.json
    let mut script = std::process::Command::new("unshare");
    script.args(["-m", "/bin/sh", "-c", line]).arg(command.get_program()).arg(&lab.id).current_dir(lab.path());
    let done = crate::support::finish(&mut script);
    let (before, after) = done.out.split_once("after\n").unwrap_or_else(|| panic!("{} {}", done.out, done.err));
    assert!(before.contains(&format!("container whose `create` was killed  /run/brig/{}", lab.id)), "{before}");
    assert!(before.contains("cgroup of a container  /sys/fs/cgroup"), "{before}");
    assert_eq!(after, "", "{}", done.err);
}
