//! Bundles that runc and brig run one after the other, each in a fresh root: the container's view of itself must be the
//! same. Intended differences are in docs/oci.md.

use crate::support::{Done, Lab, eventually, finish, skip};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// Whether runc is installed.
pub fn has_runc() -> bool {
    let found =
        Command::new("runc").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !found {
        skip("needs runc");
    }
    found
}

/// Runs the container under runc.
pub fn run_by_runc(lab: &Lab) -> Done {
    std::fs::write(lab.path().join("config.json"), lab.config.to_string()).unwrap();
    let mut command = Command::new("runc");
    command.arg("--root").arg(lab.path().join("runc")).args(["run", "--bundle"]).arg(lab.path()).arg(&lab.id);
    finish(command.stdin(Stdio::null()))
}

/// The output without the differences of each run: numbers of mounts and devices, and the lab's path.
pub fn plain(lab: &Lab, out: &str) -> String {
    let own = lab.path().display().to_string();
    let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    let line = |line: &str| {
        let line = line.replace(&own, "LAB");
        match line.splitn(4, ' ').collect::<Vec<_>>().as_slice() {
            // mountinfo: number, parent, device.
            [numbers @ .., rest] if numbers.len() == 3 && numbers.iter().all(is_number) => (*rest).to_owned(),
            _ => line.clone(),
        }
    };
    out.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Asserts that both runtimes end in the same way and print the same.
#[track_caller]
pub fn same(name: &str, change: impl Fn(&mut Lab), shell: &str) {
    let run = |by: fn(&Lab) -> Done| {
        let mut lab = Lab::new()?;
        lab.sh(shell);
        change(&mut lab);
        let done = by(&lab);
        Some(((done.status == 0, plain(&lab, &done.out)), done.err))
    };
    let (Some((ours, our_words)), Some((theirs, their_words))) = (run(Lab::run), run(run_by_runc)) else { return };
    assert_eq!(ours, theirs, "{name}: brig, then runc\n{our_words}\n{their_words}");
}

/// Binds `file` of the lab at a path.
fn file_at(lab: &mut Lab, place: &str) {
    let file = lab.path().join("file");
    std::fs::write(&file, "data\n").unwrap();
    lab.mount(place, "bind", file.to_str().unwrap(), &["bind"]);
}

#[test]
fn mounts_are_those_of_runc() {
    if !has_runc() {
        return;
    }
    let on = "grep ' /on ' /proc/self/mountinfo | sed 's/,mode=755//'";
    let words: [&[&str]; 8] = [
        &["noatime", "norelatime"],
        &["noatime", "relatime"],
        &["strictatime", "noatime"],
        &["norelatime"],
        &["rnorelatime"],
        &["strictatime", "atime"],
        &["noatime", "atime"],
        &["strictatime", "nostrictatime"],
    ];
    for words in words {
        same(&format!("{words:?}"), |lab| _ = lab.mount("/on", "tmpfs", "tmpfs", words), on);
    }
    for words in [["rbind", "bind"], ["bind", "rbind"]] {
        // /sys has file systems below it on every host.
        let below = "grep -c ' /on/' /proc/self/mountinfo";
        same(&format!("{words:?}"), |lab| _ = lab.mount("/on", "bind", "/sys", &words), below);
    }
    same("a folder at /proc", |lab| _ = lab.mount("/proc", "bind", "/tmp", &["bind"]), "ls /proc");
    same("the host's /proc at /proc", |lab| _ = lab.mount("/proc", "bind", "/proc", &["rbind"]), "echo done");
}

#[test]
fn mount_points_behind_dangling_links_are_made_inside_the_root() {
    if !has_runc() {
        return;
    }
    for (link, target) in [
        ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
        ("etc/absolute", "/run/absolute/file"),
        ("etc/out", "../../../../../../tmp/brig-escaped/file"),
        ("etc/first", "second"),
    ] {
        let change = |lab: &mut Lab| {
            std::os::unix::fs::symlink(target, lab.root(link)).unwrap();
            std::os::unix::fs::symlink("../opt/third", lab.root("etc/second")).unwrap();
            file_at(lab, &format!("/{link}"));
        };
        let shell = format!("cat /{link}; readlink /{link}; grep /file /proc/self/mountinfo; find /run /opt /tmp");
        same(link, change, &shell);
        assert!(!std::path::Path::new("/tmp/brig-escaped").exists(), "a folder of the host was made");
    }
    let var = |place: &'static str, run: &'static str| {
        move |lab: &mut Lab| {
            std::fs::create_dir(lab.root("var")).unwrap();
            std::os::unix::fs::symlink(run, lab.root("var/run")).unwrap();
            lab.mount(place, "tmpfs", "tmpfs", &["mode=700"]);
        }
    };
    for (place, run) in [
        ("/var/run/a/b", "../run"),
        ("/var/run/a/b", "/run/deep/er"),
        ("/var/run", "../run"),
        ("/tmp/none/../../opt/x", "/run"),
    ] {
        same(place, var(place, run), "grep tmpfs /proc/self/mountinfo | grep mode=700; find /var /run /opt /x");
    }
    let looped = |lab: &mut Lab| {
        std::os::unix::fs::symlink("loop", lab.root("etc/loop")).unwrap();
        file_at(lab, "/etc/loop");
    };
    same("a link to itself", looped, "true");
}

#[test]
fn paths_working_directories_and_names_are_those_of_runc() {
    if !has_runc() {
        return;
    }
    let set = |pointer: &'static str, value: Value| {
        move |lab: &mut Lab| *lab.config.pointer_mut(pointer).unwrap() = value.clone()
    };
    let paths = set("/linux/readonlyPaths", json!(["/bin", "/proc/sys"]));
    same("readonlyPaths", paths, "grep -E ' /bin | /proc/sys ' /proc/self/mountinfo; touch /bin/x");
    let cwd = |lab: &mut Lab| {
        lab.config["root"]["readonly"] = json!(true);
        lab.config["process"]["cwd"] = json!("/none/deep");
    };
    same("a missing working directory in a read-only root", cwd, "pwd; stat -c %a:%u /none /none/deep; touch /none/x");
    let no_path = |lab: &mut Lab| {
        lab.config["process"]["env"] = json!(["A=b"]);
        lab.args(&["sh", "-c", "echo found"]);
    };
    same("no PATH", no_path, "");
    let letters = set("/linux/resources/devices", json!([{"allow": false, "access": "rwx"}]));
    same("letters of devices", letters, "echo started");
    let limit = |lab: &mut Lab| lab.config["linux"]["resources"]["pids"] = json!({"limit": -1});
    same("pids limit -1", limit, "echo started");
}

#[test]
fn capabilities_are_those_of_runc() {
    if !has_runc() {
        return;
    }
    let two = json!(["CAP_KILL", "CAP_NET_RAW"]);
    for user in [0, 1000] {
        for (permitted, inheritable, ambient) in [
            (json!([]), two.clone(), json!([])),
            (json!([]), two.clone(), two.clone()),
            (two.clone(), json!([]), two.clone()),
            (two.clone(), json!(["CAP_KILL"]), two.clone()),
            (json!(["CAP_KILL"]), two.clone(), two.clone()),
        ] {
            let sets = json!({"bounding": two, "permitted": permitted, "effective": permitted, "inheritable": inheritable, "ambient": ambient});
            let change = |lab: &mut Lab| {
                lab.config["process"]["user"] = json!({"uid": user, "gid": user});
                lab.config["process"]["capabilities"] = sets.clone();
            };
            same(&format!("user {user}, {sets}"), change, "grep Cap /proc/self/status");
        }
    }
}

#[test]
fn a_named_configuration_is_read_instead_of_the_bundles() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("echo of another file");
    let other = lab.path().join("other.json");
    std::fs::write(&other, lab.config.to_string()).unwrap();
    lab.sh("echo of the bundle");
    let done = lab.on(&["run", "--config", other.to_str().unwrap()]);
    assert_eq!(done.succeeded().out, "of another file\n");
    lab.on(&["run", "--config", "none.json"]).failed_with("none.json");
}

#[test]
fn exec_runs_on_every_processor_and_makes_no_directory() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("sleep 100").start();
    let allowed = "grep Cpus_allowed_list /proc/self/status";
    let first = lab.exec(allowed).succeeded().out.clone();
    let mut pinned = Command::new("taskset");
    let command = lab.command(&["exec", &lab.id, "/bin/sh", "-c", allowed]);
    pinned.args(["-c", "0"]).arg(command.get_program()).args(command.get_args()).current_dir(lab.path());
    assert_eq!(finish(pinned.stdin(Stdio::null())).succeeded().out, first, "the caller's affinity was kept");
    // With a cgroup its processors apply; a container without one keeps its caller's.
    lab.on(&["delete", "--force"]).succeeded();
    lab.config["linux"].as_object_mut().unwrap().remove("resources");
    let detached = ["--cgroup-manager=disabled", "run", "--detach", &lab.id];
    let run = lab.command(&detached).stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(run.unwrap().success());
    assert!(finish(&mut pinned).succeeded().out.ends_with("\t0\n"));
    let done = lab.brig(&["exec", "--cwd", "/none", &lab.id, "true"]);
    done.failed_with("chdir to cwd (").failed_with("set in config.json failed: no such file or directory");
    lab.exec("test ! -e /none").succeeded();
}

#[test]
fn signals_reach_what_runc_lets_them_reach() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("sleep 100");
    // A container that waits for `start` ends at the signal, though it is pid 1 of its namespace.
    lab.create().succeeded();
    lab.brig(&["kill", &lab.id, "0"]).succeeded();
    lab.brig(&["kill", &lab.id, "TERM"]).succeeded();
    eventually("it has ended", || lab.status() == "stopped");
    lab.brig(&["kill", &lab.id, "0"]).failed_with("container not running");
    lab.on(&["delete"]).succeeded();
    // Without a private PID namespace the other processes would outlive the first one.
    lab.without("pid").sh("sleep 101 & sleep 100").start();
    eventually("two processes run", || lab.brig(&["ps", &lab.id]).out.matches("sleep 10").count() >= 2);
    let others = || finish(Command::new("pgrep").args(["-f", "^sleep 101$"])).out;
    assert!(!others().is_empty());
    lab.brig(&["kill", &lab.id, "KILL"]).succeeded();
    eventually("all have ended", || others().is_empty());
}

#[test]
fn a_start_that_failed_leaves_a_container_that_has_stopped() {
    let Some(mut lab) = Lab::new() else { return };
    std::fs::write(lab.root("/bin/broken"), "\x7fELF no program").unwrap();
    std::fs::write(lab.root("/bin/script"), "#!/no/interpreter\n").unwrap();
    for name in ["broken", "script"] {
        finish(Command::new("chmod").arg("755").arg(lab.root("/bin").join(name))).succeeded();
    }
    let hook = json!([{"path": "/bin/false"}]);
    for round in 0..48 {
        let (args, hooks): (&[&str], Value) = match round % 4 {
            0 => (&["/bin/broken"], json!({})),
            1 => (&["/bin/script"], json!({})),
            2 => (&["/bin/true"], json!({"startContainer": hook})),
            _ => (&["/bin/sleep", "100"], json!({"poststart": hook})),
        };
        lab.args(args).config["hooks"] = hooks;
        lab.create().succeeded();
        assert_ne!(lab.on(&["start"]).status, 0);
        assert_eq!(lab.status(), "stopped", "round {round}");
        lab.on(&["delete"]).succeeded();
    }
}

#[test]
fn a_terminal_passes_newlines_as_they_are_and_is_refused_where_there_is_none() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["process"]["terminal"] = json!(true);
    lab.sh("echo one; echo two");
    lab.run().failed_with("provided file is not a console");
    let command = lab.command(&["run", &lab.id]);
    let line = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<_> = line.map(|word| word.to_str().unwrap()).collect();
    // Standard error is a terminal, standard output a file.
    let out = lab.path().join("out");
    let inner = format!("{} > {}", line.join(" "), out.display());
    finish(Command::new("script").args(["-qec", &inner, "/dev/null"]).current_dir(lab.path())).succeeded();
    let out = std::fs::read_to_string(&out).unwrap();
    // The end of `script`'s own input comes at any place.
    assert!(out.replace("^@", "").contains("one\ntwo\n"), "{out:?}");
}

#[test]
fn exec_in_a_terminal_passes_newlines_as_they_are() {
    let mut outs = Vec::new();
    for by_runc in [false, true] {
        if by_runc && !has_runc() {
            break;
        }
        let Some(mut lab) = Lab::new() else { return };
        lab.args(&["/bin/sleep", "100"]);
        let records = lab.path().join("runc");
        let command = |arguments: &[&str]| {
            let ours = lab.command(arguments);
            let mut command = Command::new(if by_runc { "runc" } else { ours.get_program().to_str().unwrap() });
            match by_runc {
                true => command.arg("--root").arg(&records).args(arguments),
                false => command.args(ours.get_args()),
            };
            command.current_dir(lab.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        assert!(command(&["run", "--detach", &lab.id]).status().unwrap().success());
        let exec = command(&["exec", "--tty", &lab.id, "/bin/sh", "-c", "echo one; echo two"]);
        let words = std::iter::once(exec.get_program()).chain(exec.get_args());
        let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        let line = format!("{} > out", words.join(" "));
        let mut script = Command::new("script");
        // The end of an empty input would be typed into the terminal.
        let script = script.args(["-qec", &line, "/dev/null"]).current_dir(lab.path()).stdin(Stdio::piped());
        let mut child = script.stdout(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take();
        assert!(child.wait().unwrap().success());
        drop(input);
        outs.push(std::fs::read_to_string(lab.path().join("out")).unwrap());
        assert!(command(&["delete", "--force", &lab.id]).status().unwrap().success());
    }
    assert!(outs.iter().all(|out| out == "one\ntwo\n"), "brig, then runc: {outs:?}");
}

#[test]
fn a_failed_exec_leaves_no_process() {
    let Some(mut lab) = Lab::new() else { return };
    std::fs::write(lab.root("/bin/broken"), "\x7fELF no program").unwrap();
    finish(Command::new("chmod").arg("755").arg(lab.root("/bin/broken"))).succeeded();
    lab.args(&["/bin/sleep", "100000"]).start();
    for _ in 0..12 {
        for (arguments, words) in [
            (&["/bin/broken"][..], "exec format error"),
            (&["/nope"], "no such file or directory"),
            (&["--cwd", "/none", "/bin/true"], "chdir to cwd"),
            (&["--user", "7", "/etc"], "permission denied"),
        ] {
            let (options, program) = arguments.split_at(arguments.len() - 1);
            let done = lab.brig(&[&["exec"], options, &[&lab.id], program].concat());
            assert_eq!(done.failed_with(words).status, 255, "{arguments:?}: {}", done.err);
            let pids = lab.brig(&["ps", "--format", "json", &lab.id]).succeeded().out.clone();
            let pids: Vec<i32> = serde_json::from_str(&pids).unwrap();
            assert_eq!(pids.len(), 1, "{arguments:?}: a process is left: {pids:?}, {}", lab.status());
        }
    }
}

#[test]
fn a_limit_of_no_processes_lets_a_container_start() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 0});
    lab.args(&["/bin/sleep", "100"]).start();
    assert_eq!(pids_max(&lab), "1\n", "runc writes 1");
}

#[test]
fn pids_limit_of_zero_is_no_limit_before_version_1_3() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["ociVersion"] = json!("1.0.2-dev");
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 0});
    lab.args(&["/bin/sleep", "100"]).start();
    assert_eq!(pids_max(&lab), "max\n");
}

/// The file `pids.max` of the container's group.
fn pids_max(lab: &Lab) -> String {
    let group = format!("/proc/{}/cgroup", lab.state()["pid"]);
    let group = std::fs::read_to_string(group).unwrap();
    let path = |line: &str| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        matches!(names, "pids" | "").then(|| format!("/sys/fs/cgroup/{names}{path}/pids.max"))
    };
    let read = |path: String| std::fs::read_to_string(path).ok();
    group.lines().filter_map(path).find_map(read).unwrap()
}

#[test]
fn the_device_of_tunnels_is_none_of_the_default_ones() {
    let Some(mut lab) = Lab::new() else { return };
    // runc 1.1 has it, newer ones have not.
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_MKNOD"));
    }
    lab.sh("mknod /tmp/tun c 10 200 && mknod /tmp/null c 1 3 && cat < /tmp/null && echo null; cat < /tmp/tun");
    let done = lab.run();
    assert_eq!(done.out, "null\n", "{}", done.err);
    assert!(done.status != 0 && done.err.contains("Operation not permitted"), "{}", done.err);
}

#[test]
fn create_container_hooks_run_in_the_root() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["hooks"] =
        json!({"createContainer": [{"path": "/bin/sh", "args": ["sh", "-c", "pwd > hook-was-here"]}]});
    lab.sh("cat /hook-was-here");
    assert_eq!(lab.run().succeeded().out.trim(), lab.root("").display().to_string().trim_end_matches('/'));
}

/// A filter may refuse every call that brig needs no more than runc: these, and those of the program itself.
const NEEDED: [&str; 17] = [
    "fcntl", // where the standard library asserts that a descriptor is open
    "fstat",
    "openat",
    "capget",
    "capset",
    "chdir",
    "close",
    "execve",
    "exit_group",
    "getcwd",
    "newfstatat",
    "prctl",
    "read",
    "setgroups",
    "setresgid",
    "setresuid",
    "write",
];
/// Those of busybox's `true`.
const OF_THE_PROGRAM: [&str; 10] = [
    "arch_prctl",
    "brk",
    "getuid",
    "mprotect",
    "prctl",
    "prlimit64",
    "readlink",
    "readlinkat",
    "set_robust_list",
    "set_tid_address",
];

#[test]
fn a_filter_that_allows_little_starts_its_program() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["/bin/busybox", "true"]);
    for action in ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS"] {
        for no_new_privileges in [true, false] {
            let mut names: Vec<&str> =
                [&OF_THE_PROGRAM[..], &["execve", "exit_group", "rseq", "getrandom", "rt_sigprocmask"]].concat();
            if !no_new_privileges {
                names.extend(NEEDED);
            }
            lab.config["process"]["noNewPrivileges"] = json!(no_new_privileges);
            lab.config["linux"]["seccomp"] = json!({
                "defaultAction": action,
                "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}],
            });
            let done = lab.run();
            assert_eq!(done.status, 0, "{action}, no_new_privs {no_new_privileges}: {}", done.err);
        }
    }
}
