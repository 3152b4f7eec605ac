//! A process that enters a container without a user namespace does not let its processes escape, whatever their power
//! over other processes.

use crate::attacks::attempt;
use crate::support::{Lab, eventually, finish};
use serde_json::json;
use std::process::{Command, Stdio};

/// Docker's capabilities, and that of `--cap-add SYS_PTRACE`.
const GIVEN: [&str; 15] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
    "CAP_SYS_PTRACE",
];

/// Stops each new process, reads it, and lets it run a little further.
const WATCH: &str = r#"
touch /ready
while :; do
    kill -STOP -1 2> /dev/null || continue
    for each in /proc/[0-9]*; do
        [ $each != /proc/1 ] || continue
        echo seen
        [ ! -e $each/root$HOST ] || echo "root of the host's"
        ! grep -q PASSED $each/cmdline || echo "command line of the caller's"
        ! grep -q CALLERS $each/environ || echo "variables of the caller's"
        [ ! -e $each/cwd/config.json ] || echo "cwd of the host's"
        for descriptor in $each/fd/*; do
            [ ! -d $descriptor ] || echo "directory"
        done
        while read name value; do
            case $name in CapEff: | CapPrm: | CapBnd: | Seccomp:) echo $name $value ;; esac
        done < $each/status
    done >> /seen 2> /dev/null
    kill -CONT -1
    usleep 3000
done"#;

/// What the container has seen of entering processes, each line once.
fn watched(lab: &mut Lab, options: &[&str]) -> Vec<String> {
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set] = json!(GIVEN);
    }
    let host = lab.path().join("config.json");
    lab.sh(&format!("HOST={}{WATCH}", host.display())).start();
    eventually("it watches", || lab.root("/ready").exists());
    for _ in 0..60 {
        let mut command =
            lab.command(&[&["exec"], options, &["--env", "PASSED=secret", &lab.id, "/bin/true"]].concat());
        finish(command.env("CALLERS", "secret")).succeeded();
    }
    let seen = std::fs::read_to_string(lab.root("/seen")).unwrap();
    let mut lines: Vec<_> = seen.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines.dedup();
    assert!(lines.iter().any(|line| line == "seen"), "nobody was seen");
    lines
}

#[test]
fn a_container_without_mounts_of_its_own_is_entered_at_its_root() {
    let Some(mut lab) = Lab::new() else { return };
    lab.without("mount").config["mounts"] = json!([]);
    for key in ["maskedPaths", "readonlyPaths"] {
        lab.config["linux"].as_object_mut().unwrap().remove(key);
    }
    lab.args(&["sleep", "100"]).start();
    let host = lab.path().join("config.json");
    assert_eq!(lab.exec(&format!("cat {} || tail -n 1 /etc/passwd | cut -d: -f1", host.display())).out, "user\n");
}

#[test]
fn a_container_of_an_engine_in_a_chroot_is_entered_at_its_own_root() {
    // a chroot on a mount, as arch-chroot and schroot make it; with runc 1.1 the process gets the root of the machine
    attempt("chroot", |lab| {
        let root = lab.path().join("chroot");
        std::fs::create_dir(&root).unwrap();
        lab.args(&["sleep", "100"]);
        let create = lab.command(&["run", "--detach", "--bundle", lab.path().to_str().unwrap(), &lab.id]);
        let script = "mount --make-rprivate / && mount --rbind / $1 && exec chroot \"$@\"";
        let mut engine = Command::new("unshare");
        engine.args(["--mount", "sh", "-c", script, "sh"]).arg(&root).arg(create.get_program()).args(create.get_args());
        engine.envs(create.get_envs().filter_map(|(name, value)| Some((name, value?))));
        // The container keeps the streams.
        finish(engine.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())).succeeded();
        let done = lab.exec(&format!("cat {} || echo out of sight", lab.path().join("config.json").display()));
        done.succeeded();
        done.out != "out of sight\n"
    });
}

/// Whether one of them had a file of the host.
fn is_of_the_host(seen: &[String]) -> bool {
    seen.iter().any(|line| line.contains("host") || line == "directory")
}

/// Whether one of them showed its caller's command line or variables.
fn shows_the_caller(seen: &[String]) -> bool {
    seen.iter().any(|line| line.contains("caller"))
}

/// Whether one of them had a capability that the container does not have.
fn is_mighty(seen: &[String]) -> bool {
    let own: u64 = GIVEN.iter().map(|name| name.parse::<caps::Capability>().unwrap().bitmask()).sum();
    let found = seen.iter().filter_map(|line| line.strip_prefix("Cap")?.split_once(' '));
    found.map(|(_, bits)| u64::from_str_radix(bits.trim(), 16).unwrap()).any(|bits| bits & !own != 0)
}

#[test]
fn processes_that_enter_a_container_bring_nothing_of_the_host() {
    // T-02, CVE-2016-9962: CAP_SYS_PTRACE without a user namespace can trace processes with our capabilities, and
    // undumpable ones
    attempt("joined-first", |lab| {
        let seen = watched(lab, &[]);
        is_of_the_host(&seen) && is_mighty(&seen)
    });
    for options in [[].as_slice(), &["--user", "1000:77"], &["--cwd", "/tmp"]] {
        let Some(mut lab) = Lab::new() else { return };
        let seen = watched(&mut lab, options);
        assert!(!is_of_the_host(&seen) && !is_mighty(&seen) && !shows_the_caller(&seen), "{seen:?}");
    }
}

#[test]
fn processes_that_enter_a_container_do_not_show_the_caller() {
    // the command line of `docker exec -e PASSED=secret` and the engine's variables, which the process has until execve
    attempt("hidden-caller", |lab| shows_the_caller(&watched(lab, &[])));
}

/// Two containers: the processes of the second are in the PID namespace of the first, which runs this loop with
/// `CAP_SYS_PTRACE`.
fn beside(lab: &mut Lab, line: &str) -> Option<Lab> {
    let mut first = Lab::new()?;
    for set in ["bounding", "effective", "permitted"] {
        first.config["process"]["capabilities"][set] = json!(GIVEN);
    }
    first.sh(line).start();
    let path = format!("/proc/{}/ns/pid", first.state()["pid"]);
    lab.without("pid").config["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "pid", "path": path}));
    Some(first)
}

/// Starts a container in the PID namespace of one that writes to the root of every process that it sees. Returns
/// whether that root was the host's.
fn writes_to_the_host(lab: &mut Lab) -> bool {
    let host = lab.path().display().to_string();
    let line =
        format!("while :; do for each in /proc/[0-9]*; do echo evil > $each/root{host}/evil; done; done 2> /dev/null");
    let Some(_first) = beside(lab, &line) else { return false };
    lab.args(&["true"]);
    // The unguarded process exists for a millisecond: on the weakened build it may take long to catch it.
    (0..if lab.weakened.is_some() { 300 } else { 40 }).any(|_| {
        lab.run().succeeded();
        lab.path().join("evil").exists()
    })
}

#[test]
fn a_first_process_brings_nothing_of_the_host_into_a_shared_pid_namespace() {
    // CAP_SYS_PTRACE in the namespace is a power over the runtime's process there: `docker run --pid container:A`
    attempt("joined-first", writes_to_the_host);
}

#[test]
fn a_hook_of_the_host_is_not_seen_in_a_shared_pid_namespace() {
    attempt("joined-first", |lab| {
        let Some(first) = beside(lab, "while :; do cat /proc/[0-9]*/cmdline >> /seen; done 2> /dev/null") else {
            return false;
        };
        let hook = json!([{"path": "/bin/sh", "args": ["sh", "-c", "sleep 0.3; : HOOK; readlink /proc/self/ns/mnt"]}]);
        lab.config["hooks"] = json!({"createContainer": hook, "createRuntime": hook});
        lab.args(&["true"]).run().succeeded();
        std::fs::read_to_string(first.root("/seen")).unwrap().contains("HOOK")
    });
}

#[test]
fn a_container_in_a_shared_pid_namespace_sees_its_processes() {
    let Some(mut lab) = Lab::new() else { return };
    let Some(first) = beside(&mut lab, "sleep 1000; : FIRST") else { return };
    let marks = |name: &str| lab.path().join(name).display().to_string();
    let (host, inside) = (marks("host"), marks("inside"));
    let hook = |file: &str| {
        let line = format!("{{ cat; echo; readlink /proc/self/ns/mnt; }} > {file}");
        json!([{"path": "/bin/sh", "args": ["sh", "-c", line]}])
    };
    lab.config["hooks"] = json!({"createRuntime": hook(&host), "createContainer": hook(&inside)});
    lab.sh("cat /proc/1/cmdline; echo; ls -d /proc/[0-9]* > /seen; sleep 1001").start();
    eventually("it has looked", || lab.root("/seen").exists());
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    assert!(read(&host).contains(&own) && !read(&inside).contains(&own), "{} {}", read(&host), read(&inside));
    assert!(read(&inside).contains(&lab.id));
    let exec = lab.exec("tr '\\0' ' ' < /proc/1/cmdline");
    assert!(exec.out.contains("FIRST"), "{}", exec.out);
    let theirs = first.exec("cat /proc/*/cmdline | tr '\\0' ' '").out;
    assert!(theirs.contains("sleep 1000; : FIRST") && theirs.contains("sleep 1001"), "{theirs}");
    lab.brig(&["kill", &lab.id, "KILL"]).succeeded();
    eventually("it is stopped", || lab.status() == "stopped");
    lab.on(&["delete"]).succeeded();
    assert_eq!(first.status(), "running");
}

/// Starts a container with CAP_SYS_PTRACE that looks at others, which are to join its PID namespace and its namespace
/// `kind`. It reads their processes, and the objects of the IPC and network namespaces.
fn start_watcher(lab: &mut Lab, kind: &str) -> Option<Lab> {
    let host = lab.path().join("config.json");
    // A socket without a name, such as those between our processes, cannot be reached from there.
    let objects = "for file in /proc/sysvipc/*; do
        while read line; do case $line in *key*) ;; *) echo object $file $line ;; esac; done < $file; done >> /seen
        while read number count protocol flags kind state inode name; do
            case $number$name in Num* | *:) ;; *) echo object socket $name ;; esac; done < /proc/net/unix >> /seen";
    // A process of the second container is stopped as soon as it is seen.
    let watch = WATCH.replace("usleep 3000", objects);
    let line = format!("HOST={}{watch}", host.display());
    let mut first = Lab::new()?;
    for set in ["bounding", "effective", "permitted"] {
        first.config["process"]["capabilities"][set] = json!(GIVEN);
    }
    match kind {
        "user" => {
            // The root of the user namespace needs access to its root, and writes there.
            std::os::unix::fs::chown(first.root("/"), Some(700_000), Some(700_000)).unwrap();
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(first.path(), open).unwrap();
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(lab.path(), open).unwrap();
            first.user_namespace();
        }
        "mount" => {
            // The root of the second container is where it is on the host.
            let root = lab.root("/").display().to_string();
            first.mount(&root, "bind", &root, &["rbind", "rw"]);
        }
        _ => {
            first.without(kind).namespace(kind);
        }
    }
    first.sh(&line).start();
    eventually("it watches", || first.root("/ready").exists());
    let pid = first.state()["pid"].clone();
    let file = match kind {
        "network" => "net",
        "mount" => "mnt",
        other => other,
    };
    for (kind, file) in [("pid", "pid"), (kind, file)] {
        let namespace = json!({"type": kind, "path": format!("/proc/{pid}/ns/{file}")});
        lab.without(kind).config["linux"]["namespaces"].as_array_mut().unwrap().push(namespace);
    }
    Some(first)
}

/// What such a container has seen of 40 starts, each line once.
fn seen_of_joined_starts(lab: &mut Lab, kind: &str) -> Option<Vec<String>> {
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set] = json!(GIVEN);
    }
    lab.unmount("/sys/fs/cgroup").args(&["/bin/true"]);
    // A start in the mount namespace moves the root of the watcher, which writes to the second root then. So each start has a new watcher.
    let (watchers, starts) = if kind == "mount" { (10, 1) } else { (1, 40) };
    let read = |lab: &Lab| std::fs::read_to_string(lab.root("/seen")).unwrap_or_default();
    let mut seen = String::new();
    for _ in 0..watchers {
        let first = start_watcher(lab, kind)?;
        for _ in 0..starts {
            finish(lab.command(&["run", &lab.id]).env("CALLERS", "secret")).succeeded();
        }
        seen += &read(&first);
    }
    seen += &read(lab);
    let mut lines: Vec<_> = seen.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines.dedup();
    assert!(lines.iter().any(|line| line == "seen"), "no process was seen");
    Some(lines)
}

/// Whether a start in a joined namespace shows something of the host there. Its capabilities do not count: the process
/// that opens the procfs of the PID namespace has CAP_SYS_ADMIN, an empty root and a filter of ten calls.
fn joined_start_shows(lab: &mut Lab, kind: &str) -> bool {
    let Some(seen) = seen_of_joined_starts(lab, kind) else { return false };
    is_of_the_host(&seen) || shows_the_caller(&seen) || seen.iter().any(|line| line.starts_with("object "))
}

#[test]
fn a_start_in_a_joined_ipc_namespace_brings_nothing_of_the_host() {
    attempt("joined-first", |lab| joined_start_shows(lab, "ipc"));
}

#[test]
fn a_start_in_a_joined_network_namespace_brings_nothing_of_the_host() {
    attempt("joined-first", |lab| joined_start_shows(lab, "network"));
}

#[test]
fn a_start_in_a_joined_user_namespace_brings_nothing_of_the_host() {
    // In a user namespace of the container's own a process must be dumpable too to be looked into.
    attempt("joined-first,undumpable", |lab| joined_start_shows(lab, "user"));
}

#[test]
fn a_start_in_a_joined_mount_namespace_brings_nothing_of_the_host() {
    attempt("joined-first", |lab| joined_start_shows(lab, "mount"));
}

#[test]
fn a_start_in_a_joined_cgroup_namespace_brings_nothing_of_the_host() {
    attempt("joined-first", |lab| joined_start_shows(lab, "cgroup"));
}

/// Whether an entering process was seen without the filter, or with the capability that installs it. Docker's default
/// has no `noNewPrivileges`.
fn comes_before_its_filter(lab: &mut Lab) -> bool {
    lab.config["process"]["noNewPrivileges"] = json!(false);
    let refuse = |names: &[&str], errno: i32| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno});
    let namespaces = json!({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "args": [
        {"index": 0, "value": 0x7e02_0000_u32, "valueTwo": 0x1000_0000, "op": "SCMP_CMP_MASKED_EQ"}]});
    let rules = json!([refuse(&["clone3"], 38), refuse(&["mount", "fsopen", "setns", "unshare"], 1), namespaces]);
    lab.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules});
    let seen = watched(lab, &["--user", "1000:77"]);
    is_mighty(&seen) || seen.iter().any(|line| line == "Seccomp: 0")
}

#[test]
fn a_filter_is_in_force_before_a_process_is_born_in_the_container() {
    attempt("filter-first", comes_before_its_filter);
}

#[test]
fn a_filter_that_leaves_no_calls_comes_last() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["process"]["noNewPrivileges"] = json!(false);
    let rule = json!([{"names": ["clone", "clone3", "fork", "vfork", "setsid"], "action": "SCMP_ACT_KILL_PROCESS"}]);
    lab.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rule});
    lab.config["process"]["rlimits"] =
        json!([{"type": "RLIMIT_NPROC", "soft": 7, "hard": 9}, {"type": "RLIMIT_CORE", "soft": 1, "hard": 2}]);
    lab.args(&["sleep", "100"]).start();
    let shown =
        lab.brig(&["exec", &lab.id, "/bin/cat", "/proc/self/limits", "/proc/self/status"]).succeeded().out.clone();
    assert!(shown.contains("Seccomp:\t2"), "{shown}");
    let limits = |text: &str| {
        let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        words.filter(|line| line.starts_with("Max processes") || line.starts_with("Max core")).collect::<Vec<_>>()
    };
    let expected = ["Max core file size 1 2 bytes", "Max processes 7 9 processes"];
    assert_eq!(limits(&shown), expected);
    // The same limits where the filter comes first.
    lab.config["linux"]["seccomp"]["syscalls"] = json!([{"names": ["mount"], "action": "SCMP_ACT_ERRNO"}]);
    let Some(mut other) = Lab::new() else { return };
    other.config = lab.config.clone();
    other.args(&["sleep", "100"]).start();
    assert_eq!(limits(&other.exec("cat /proc/self/limits").out), expected);
}

#[test]
fn a_process_that_enters_joins_the_resctrl_group() {
    // This machine may have no such hardware: the record names a directory with the kernel's files.
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]).start();
    let monitor = lab.path().join("class/mon_groups/m");
    std::fs::create_dir_all(&monitor).unwrap();
    let tasks = [lab.path().join("class/tasks"), monitor.join("tasks")];
    tasks.iter().for_each(|path| std::fs::write(path, "").unwrap());
    let file = lab.path().join("records").join(&lab.id).join("state.json");
    let kept = std::fs::read(&file).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    record["resctrl"] = json!({"path": lab.path().join("class"), "made": false, "monitor": monitor});
    std::fs::write(&file, record.to_string()).unwrap();
    lab.exec("true").succeeded();
    assert_eq!(tasks.map(|path| std::fs::read_to_string(path).unwrap()), ["0", "0"]);
    std::fs::write(&file, kept).unwrap();
}
