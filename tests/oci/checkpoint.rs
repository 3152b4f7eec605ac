//! `checkpoint` and `restore` with CRIU itself: what continues, its state afterwards, and what is refused. Beside runc
//! if both can do it.

use crate::sockets::receive_from;
use crate::support::{Done, Lab, eventually, finish, skip};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A program that counts in memory, and writes each number.
pub(crate) const COUNT: &str = "i=0; while :; do i=$((i+1)); echo $i > /tmp/m; mv /tmp/m /tmp/n; sleep 0.05; done";

/// The search path with a CRIU that works on this kernel (`tests/criu`).
pub(crate) fn search_path() -> Option<&'static str> {
    static PATH: OnceLock<Result<String, String>> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let done = finish(Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/criu")).stdin(Stdio::null()));
        let found = format!("{}:{}", done.out.trim(), std::env::var("PATH").unwrap_or_default());
        if done.status == 0 { Ok(found) } else { Err(done.err) }
    });
    match path {
        Ok(path) => Some(path),
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "no CRIU: {why}");
            skip("needs a CRIU that works on this kernel");
            None
        }
    }
}

pub(crate) fn lab() -> Option<Lab> {
    let lab = Lab::new()?;
    search_path()?;
    Some(lab)
}

impl Lab {
    pub(crate) fn images(&self) -> PathBuf {
        self.path().join("images")
    }

    /// A command of brig's that finds CRIU.
    pub(crate) fn with_criu(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("PATH", search_path().unwrap());
        command
    }

    pub(crate) fn checkpoint(&self, options: &[&str]) -> Done {
        let images = self.images();
        let all = [&["checkpoint", "--image-path", images.to_str().unwrap()], options, &[&self.id]].concat();
        finish(&mut self.with_criu(&all))
    }

    /// `brig restore --detach`, without our streams.
    pub(crate) fn restore(&self, options: &[&str]) -> Done {
        let (images, log) = (self.images(), self.path().join("restore.text"));
        let log = log.to_str().unwrap();
        let verb = ["--log", log, "restore", "--detach", "--image-path", images.to_str().unwrap()];
        let mut command = self.with_criu(&[&verb, options, &[&self.id]].concat());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        let err = std::fs::read_to_string(log).unwrap_or_default();
        Done { status: status.code().unwrap(), out: String::new(), err }
    }

    pub(crate) fn number(&self) -> u32 {
        std::fs::read_to_string(self.root("tmp/n")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Waits until the counter is beyond `least`.
    pub(crate) fn counts_beyond(&self, least: u32) -> u32 {
        let end = Instant::now() + Duration::from_secs(60);
        while self.number() <= least {
            assert!(Instant::now() < end, "it does not count beyond {least}: {}", self.number());
            std::thread::sleep(Duration::from_millis(10));
        }
        self.number()
    }

    /// The kernel's view of the container's first process: mounts without their numbers, and the `status` lines about
    /// privileges.
    fn looks(&self) -> (Vec<String>, Vec<String>) {
        let pid = self.state()["pid"].as_i64().unwrap();
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        let mut mounts: Vec<String> = read("mountinfo").lines().map(without_numbers).collect();
        mounts.sort();
        let told = ["Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Umask", "Sig", "Cpus_allowed_list"];
        let status = read("status");
        let status = status.lines().filter(|line| told.iter().any(|name| line.starts_with(name)));
        let status = status.filter(|line| !line.starts_with("SigQ") && !line.starts_with("SigPnd"));
        let mut all: Vec<String> = status.map(str::to_owned).collect();
        for name in ["oom_score_adj", "limits", "cgroup", "personality"] {
            all.push(read(name));
        }
        (mounts, all)
    }
}

/// `42 116 0:54 /null /dev/x ro - tmpfs tmpfs rw` without mount ids and minor numbers.
fn without_numbers(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').skip(3).collect();
    words.join(" ")
}

#[test]
fn a_restored_container_goes_on_where_it_was_and_has_what_it_had() {
    let Some(mut lab) = lab() else { return };
    for volume in ["one", "two", "three"] {
        std::fs::create_dir(lab.path().join(volume)).unwrap();
        let source = lab.path().join(volume).display().to_string();
        let options: &[&str] = if volume == "three" { &["rbind", "rw"] } else { &["rbind", "ro", "nosuid"] };
        lab.mount(&format!("/volumes/{volume}"), "bind", &source, options);
        lab.mount(&format!("/again/{volume}"), "bind", &source, options);
    }
    lab.mount("/memory", "tmpfs", "tmpfs", &["size=1m", "noexec"]);
    lab.config["hostname"] = json!("saved");
    lab.config["process"]["capabilities"] =
        json!({"bounding": ["CAP_CHOWN", "CAP_KILL"], "permitted": ["CAP_CHOWN"], "effective": ["CAP_CHOWN"]});
    lab.config["process"]["oomScoreAdj"] = json!(300);
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 64 << 20});
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 33});
    lab.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": ["ptrace"], "action": "SCMP_ACT_ERRNO"}]});
    lab.sh(&format!("echo kept > /memory/file; {COUNT}"));
    lab.start();
    let before = lab.counts_beyond(3);
    let looks = lab.looks();
    lab.checkpoint(&[]).succeeded();
    lab.on(&["state"]).failed_with("container does not exist");
    let stopped = lab.number();
    assert!(stopped >= before);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(lab.number(), stopped, "it still runs");

    // The container must not get the caller's processors.
    let mut one = CpuSet::new();
    one.set(0);
    sched_setaffinity(None, &one).unwrap();
    let pid_file = lab.path().join("pid");
    lab.restore(&["--pid-file", pid_file.to_str().unwrap()]).succeeded();
    assert_eq!(lab.status(), "running");
    assert_eq!(std::fs::read_to_string(pid_file).unwrap(), lab.state()["pid"].to_string());
    let after = lab.counts_beyond(stopped);
    assert!(after < stopped + 100, "it began anew: {stopped}, {after}");
    let restored = lab.looks();
    assert_eq!(looks.0, restored.0, "mounts");
    assert_eq!(looks.1, restored.1, "what it may do");
    let seen = lab.exec("hostname; cat /memory/file; touch /volumes/one/x /volumes/two/x /again/one/x /again/two/x; touch /volumes/three/x && echo written");
    assert_eq!(seen.out, "saved\nkept\nwritten\n", "{}", seen.err);
    assert_eq!(seen.err.matches("Read-only file system").count(), 4, "{}", seen.err);
    lab.on(&["pause"]).succeeded();
    assert_eq!(lab.status(), "paused");
    lab.on(&["resume"]).succeeded();
    // A second time, from the images of the restored one.
    lab.checkpoint(&[]).succeeded();
    let stopped = lab.number();
    lab.restore(&[]).succeeded();
    lab.counts_beyond(stopped);
    lab.on(&["kill", "--all"]).succeeded();
}

/// CRIU alone, for a folder that is mounted read-only at two paths.
#[test]
fn a_read_only_volume_is_writable_after_a_restore_on_a_weakened_build() {
    let Some(mut lab) = lab() else { return };
    if lab.weaken("restored-attributes").is_none() {
        return;
    }
    std::fs::create_dir(lab.path().join("shown")).unwrap();
    let source = lab.path().join("shown").display().to_string();
    for volume in ["one", "two"] {
        lab.mount(&format!("/volumes/{volume}"), "bind", &source, &["rbind", "ro"]);
    }
    lab.sh(COUNT);
    lab.start();
    lab.counts_beyond(1);
    lab.checkpoint(&[]).succeeded();
    lab.restore(&[]).succeeded();
    let seen = lab.exec("touch /volumes/one/x || touch /volumes/two/x");
    assert_eq!(seen.status, 0, "CRIU keeps the attributes by itself now; the control proves nothing: {}", seen.err);
}

#[test]
fn pipes_of_the_container_are_those_of_the_restore_and_its_status_is_passed_on() {
    let Some(mut lab) = lab() else { return };
    lab.sh("echo before; touch /tmp/ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; read line; echo after $line; exit 7");
    let mut first = lab
        .with_criu(&["run", "--keep", &lab.id])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !lab.root("tmp/ready").exists() {
        assert!(Instant::now() < end, "it does not run");
        std::thread::sleep(Duration::from_millis(10));
    }
    lab.checkpoint(&[]).succeeded();
    first.wait().unwrap();
    let mut text = String::new();
    first.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "before\n");

    std::fs::write(lab.root("tmp/go"), "").unwrap();
    let images = lab.images();
    let mut second = lab.with_criu(&["restore", "--image-path", images.to_str().unwrap(), &lab.id]);
    let mut second = second.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut second.stdin.take().unwrap(), b"word\n").unwrap();
    let done = second.wait_with_output().unwrap();
    assert_eq!(
        (String::from_utf8_lossy(&done.stdout).as_ref(), done.status.code()),
        ("after word\n", Some(7)),
        "{done:?}"
    );
    lab.on(&["state"]).failed_with("container does not exist");
}

#[test]
fn a_terminal_comes_back_through_the_console_socket() {
    let Some(mut lab) = lab() else { return };
    lab.config["process"]["terminal"] = json!(true);
    lab.sh("touch /tmp/ready; read line; echo got $line; touch /tmp/read; sleep 100");
    let (_, master) = receive_from(&lab, "first", lab.command(&["create", "--console-socket", "first", &lab.id]));
    lab.on(&["start"]).succeeded();
    let wait = |name: &str| {
        let end = Instant::now() + Duration::from_secs(60);
        while !lab.root(name).exists() {
            assert!(Instant::now() < end, "there is no {name}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait("tmp/ready");
    lab.checkpoint(&[]).succeeded();
    drop(master);
    let images = lab.images();
    let arguments = ["restore", "-d", "--console-socket", "second", "--image-path", images.to_str().unwrap(), &lab.id];
    let (_, master): (String, OwnedFd) = receive_from(&lab, "second", lab.with_criu(&arguments));
    let mut terminal = std::fs::File::from(master);
    std::io::Write::write_all(&mut terminal, b"word\n").unwrap();
    wait("tmp/read");
    let mut bytes = [0; 4096];
    let length = terminal.read(&mut bytes).unwrap();
    assert!(String::from_utf8_lossy(&bytes[..length]).contains("word"));
}

/// A restored process gets its pid again. No other process in the namespace may have that pid, not even a zombie. The
/// caller of `run` reaps the container's first process, and pid 1 of the namespace the others.
#[test]
fn joined_pid_namespace_is_joined_again_if_the_pids_are_free() {
    let Some(mut first) = lab() else { return };
    first.sh("while :; do sleep 0.1; done").start();
    let holder = first.state()["pid"].to_string();
    let namespace = format!("/proc/{holder}/ns/pid");
    let Some(mut lab) = lab() else { return };
    let joined = json!({"type": "pid", "path": namespace});
    lab.without("pid").config["linux"]["namespaces"].as_array_mut().unwrap().push(joined);
    lab.sh(COUNT);
    let quiet = || Stdio::null();
    let mut run = lab.with_criu(&["run", "--keep", &lab.id]).stdout(quiet()).stderr(quiet()).spawn().unwrap();
    lab.counts_beyond(1);
    let status = std::fs::read_to_string(format!("/proc/{}/status", lab.state()["pid"])).unwrap();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    let pid: u32 = ids.split_whitespace().next_back().unwrap().parse().unwrap();
    lab.checkpoint(&[]).succeeded();
    run.wait().unwrap();
    let stopped = lab.number();
    let is_used = |pid: u32| first.exec(&format!("[ -e /proc/{pid} ]")).status == 0;
    eventually("its processes are reaped", || !is_used(pid));

    // Another process gets the pid, and the error names it.
    let line = format!("echo {} > /proc/sys/kernel/ns_last_pid; sleep 1000 > /dev/null 2>&1 &", pid - 1);
    finish(Command::new("nsenter").args(["--target", &holder, "--pid", "sh", "-c", &line])).succeeded();
    assert!(is_used(pid));
    lab.restore(&[]).failed_with(&format!("Can't fork for {pid}: File exists"));
    lab.on(&["state"]).failed_with("does not exist");
    first.exec(&format!("kill {pid}")).succeeded();
    eventually("the other process is reaped", || !is_used(pid));

    lab.restore(&[]).succeeded();
    lab.counts_beyond(stopped + 3);
    let inside = std::fs::read_link(format!("/proc/{}/ns/pid", lab.state()["pid"])).unwrap();
    assert_eq!(inside, std::fs::read_link(&namespace).unwrap());
    assert!(
        first.exec(&format!("cat /proc/{pid}/cmdline")).out.contains("while :; do"),
        "the other container does not see it"
    );
}

#[test]
fn a_network_namespace_of_others_is_joined_and_a_connection_in_it_goes_on() {
    let Some(mut lab) = lab() else { return };
    let name = format!("brig-{}", lab.id);
    assert_eq!(finish(Command::new("ip").args(["netns", "add", &name])).status, 0);
    let _undo = Namespace(name.clone());
    assert_eq!(finish(Command::new("ip").args(["-n", &name, "link", "set", "lo", "up"])).status, 0);
    for namespace in lab.config["linux"]["namespaces"].as_array_mut().unwrap() {
        if namespace["type"] == "network" {
            namespace["path"] = json!(format!("/run/netns/{name}"));
        }
    }
    let joined = |lab: &Lab| {
        let inside = std::fs::read_link(format!("/proc/{}/ns/net", lab.state()["pid"])).unwrap();
        let outside = finish(Command::new("ip").args(["netns", "exec", &name, "readlink", "/proc/self/ns/net"])).out;
        assert_eq!(inside.to_str().unwrap(), outside.trim());
    };
    lab.sh(COUNT);
    lab.start();
    lab.counts_beyond(1);
    lab.checkpoint(&[]).succeeded();
    lab.restore(&[]).succeeded();
    joined(&lab);
    lab.on(&["delete", "--force"]).succeeded();

    // Both ends of the connection are in the container.
    lab.sh("mkfifo /tmp/in; (sleep 1000 > /tmp/in | nc -l -p 4321 < /tmp/in > /tmp/got) & sleep 0.3; \
            (while :; do i=$((i+1)); echo $i; echo $i > /tmp/m; mv /tmp/m /tmp/n; sleep 0.05; done) | nc 127.0.0.1 4321");
    lab.start();
    lab.counts_beyond(3);
    let refused = lab.checkpoint(&[]);
    refused.failed_with("criu failed: type DUMP errno ");
    assert!(refused.err.contains("images/dump.log"), "{}", refused.err);
    assert_eq!(lab.status(), "running", "a failed checkpoint leaves it as it was");
    lab.counts_beyond(lab.number());
    let saved = lab.checkpoint(&["--tcp-established"]);
    if saved.err.contains("Can't get 1:34 opt") {
        skip("CRIU does not know the TCP sockets of this kernel (SO_PASSSEC, 6.16)");
        return;
    }
    assert!(refused.err.contains("tcp-established"), "{}", refused.err);
    saved.succeeded();
    let stopped = lab.number();
    lab.restore(&["--tcp-established"]).succeeded();
    let now = lab.counts_beyond(stopped + 3);
    let end = Instant::now() + Duration::from_secs(30);
    let got = || std::fs::read_to_string(lab.root("tmp/got")).unwrap_or_default();
    while !got().lines().any(|line| line == now.to_string()) {
        assert!(Instant::now() < end, "the connection is dead: {now} is not in {}", got());
        std::thread::sleep(Duration::from_millis(20));
    }
    joined(&lab);
}

/// A network namespace of the test.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        finish(Command::new("ip").args(["netns", "delete", &self.0]));
    }
}

#[test]
fn a_container_can_run_on_after_its_checkpoint() {
    let Some(mut lab) = lab() else { return };
    lab.sh(COUNT);
    lab.start();
    lab.counts_beyond(1);
    lab.checkpoint(&["--leave-running", "--work-path", lab.path().join("work").to_str().unwrap()]).succeeded();
    assert_eq!(lab.status(), "running");
    assert!(lab.path().join("work/dump.log").exists() && !lab.images().join("dump.log").exists());
    lab.counts_beyond(lab.number());
    // First memory only, then its changes, if the kernel tracks these.
    let earlier = lab.path().join("earlier");
    let pre =
        finish(&mut lab.with_criu(&["checkpoint", "--pre-dump", "--image-path", earlier.to_str().unwrap(), &lab.id]));
    if pre.status == 0 {
        assert_eq!(lab.status(), "running");
        lab.checkpoint(&["--parent-path", "../earlier"]).succeeded();
        let stopped = lab.number();
        lab.restore(&[]).succeeded();
        lab.counts_beyond(stopped);
    } else {
        pre.failed_with("criu is missing features: [MemTrack]");
        assert!(pre.err.contains("MEM_SOFT_DIRTY"), "{}", pre.err);
        assert_eq!(lab.status(), "running");
    }
}

/// Docker pauses a container before its checkpoint.
#[test]
fn a_paused_container_is_saved_and_stays_paused() {
    let Some(mut lab) = lab() else { return };
    lab.sh(COUNT);
    lab.start();
    lab.counts_beyond(1);
    lab.on(&["pause"]).succeeded();
    lab.checkpoint(&["--leave-running"]).succeeded();
    assert_eq!(lab.status(), "paused");
    let stopped = lab.number();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(lab.number(), stopped);
    lab.on(&["resume"]).succeeded();
    lab.counts_beyond(stopped);
    lab.on(&["pause"]).succeeded();
    lab.checkpoint(&[]).succeeded();
    let stopped = lab.number();
    lab.restore(&[]).succeeded();
    assert_eq!(lab.status(), "running");
    lab.counts_beyond(stopped);
}

#[test]
fn hooks_that_set_up_the_network_run_when_a_container_comes_back() {
    let Some(mut lab) = lab() else { return };
    lab.sh(COUNT);
    lab.start();
    lab.counts_beyond(1);
    lab.checkpoint(&[]).succeeded();
    let told = lab.path().join("told");
    let hook = |word: &str| json!([{"path": "/bin/sh", "args": ["sh", "-c", format!("echo {word} >> {}; readlink /proc/$(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')/ns/net >> {0}", told.display())]}]);
    lab.config["hooks"] =
        json!({"prestart": hook("prestart"), "createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    lab.restore(&["--empty-ns", "network"]).succeeded();
    let inside = std::fs::read_link(format!("/proc/{}/ns/net", lab.state()["pid"])).unwrap();
    let inside = inside.to_str().unwrap();
    let text = std::fs::read_to_string(&told).unwrap();
    assert_eq!(text, format!("prestart\n{inside}\ncreateRuntime\n{inside}\n"));
    lab.on(&["delete", "--force"]).succeeded();
    assert!(std::fs::read_to_string(&told).unwrap().contains("poststop"));
}
