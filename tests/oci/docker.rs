//! Docker with brig beside runc: the same commands, and the same answers. The test starts the daemon on a private
//! socket, and removes it afterwards.

mod commands;

use crate::support::{Done, Lab, busybox, finish, skip};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The argument of a daemon that makes networks, in a separate network namespace.
pub(crate) const BRIDGED: &str = "--bip=172.28.0.1/24";

/// A daemon.
pub(crate) struct Docker {
    pub(crate) lab: Lab,
    daemon: Child,
    arguments: String,
}

impl Docker {
    pub(crate) fn start() -> Option<Docker> {
        Docker::with("")
    }

    /// With another runtime beside brig: its name and its row in daemon.json.
    pub(crate) fn with_runtime(name: &str, runtime: &serde_json::Value) -> Option<Docker> {
        let brig = serde_json::json!({"path": env!("CARGO_BIN_EXE_brig")});
        Docker::make("", &serde_json::json!({"runtimes": {"brig": brig, name: runtime}}).to_string())
    }

    /// With more arguments.
    pub(crate) fn with(arguments: &str) -> Option<Docker> {
        Docker::make(arguments, "{}")
    }

    pub(crate) fn make(arguments: &str, config: &str) -> Option<Docker> {
        let lab = Lab::new()?;
        if !["/usr/sbin/dockerd", "/usr/bin/dockerd"].iter().any(|path| Path::new(path).exists()) || busybox().is_none()
        {
            skip("needs docker.io");
            return None;
        }
        let at = |name: &str| lab.path().join(name).display().to_string();
        std::fs::write(at("daemon.json"), config).unwrap();
        for (name, line) in [
            ("subuid", "remapped:700000:65536"),
            ("subgid", "remapped:700000:65536"),
            ("passwd", "remapped:x:61238:61238::/:/bin/sh"),
            ("group", "remapped:x:61238:"),
        ] {
            let text = std::fs::read_to_string(Path::new("/etc").join(name)).unwrap_or_default();
            std::fs::write(at(name), format!("{}\n{line}\n", text.trim_end())).unwrap();
        }
        let daemon = spawn(&lab, arguments);
        let docker = Docker { lab, daemon, arguments: arguments.to_owned() };
        docker.wait();
        let import = format!("tar -C {} -c . | docker import - bb", docker.lab.root("/").display());
        docker.run(&import, "").succeeded();
        Some(docker)
    }

    /// Waits until the daemon answers.
    fn wait(&self) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while self.run("docker version", "").status != 0 {
            let log = || std::fs::read_to_string(self.lab.path().join("dockerd.log")).unwrap_or_default();
            assert!(std::time::Instant::now() < end, "the daemon does not answer: {}", log());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// Kills the daemon with SIGKILL. The kernel kills its containerd with it.
    pub(crate) fn kill(&mut self) {
        let file = self.lab.path().join("exec/containerd/containerd.pid");
        let containerd = std::fs::read_to_string(&file).unwrap();
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        let stat = format!("/proc/{containerd}/stat");
        let is_running = || std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z "));
        crate::support::eventually("containerd has ended", || !is_running());
        // The next daemon takes a zombie for a containerd that runs, and an init may reap late.
        let _ = std::fs::remove_file(file);
    }

    /// The daemon's pid.
    pub(crate) fn pid(&self) -> String {
        self.daemon.id().to_string()
    }

    /// Starts it again.
    pub(crate) fn start_again(&mut self) {
        self.daemon = spawn(&self.lab, &self.arguments);
        self.wait();
    }

    /// Runs a line of shell in which `docker` is this daemon's and `$RT` the runtime.
    pub(crate) fn run(&self, line: &str, runtime: &str) -> Done {
        let socket = format!("unix://{}/sock", self.lab.path().display());
        finish(
            Command::new("/bin/sh")
                .args(["-c", line])
                .env("DOCKER_HOST", socket)
                .env("RT", runtime)
                .current_dir(self.lab.path())
                .stdin(Stdio::null()),
        )
    }
}

/// Starts the daemon. A daemon that remaps users runs with an additional account, whose ids it may map; no file of the
/// host changes.
fn spawn(lab: &Lab, arguments: &str) -> Child {
    let at = |name: &str| lab.path().join(name).display().to_string();
    let remapped = arguments.contains("remapped");
    let has_no_runtime = std::fs::read_to_string(at("daemon.json")).unwrap() == "{}";
    let cover = "for file in subuid subgid passwd group; do [ -e /etc/$file ] && mount --bind $file /etc/$file; done; exec dockerd \"$@\"";
    // A daemon with networks has a separate network namespace: no device and no rule of the host changes.
    let bridged = arguments == BRIDGED;
    let bridge = "ip link set lo up; exec dockerd \"$@\"";
    let mut command = Command::new(if remapped || bridged { "unshare" } else { "/bin/sh" });
    if arguments.contains("--experimental") {
        command.env("PATH", crate::checkpoint::search_path().unwrap()); // for `docker checkpoint`
    }
    command
        .args(match (remapped, bridged) {
            (true, _) => &["-m", "/bin/sh"][..],
            (_, true) => &["-n", "/bin/sh"],
            _ => &[],
        })
        .args([
            "-c",
            if remapped {
                cover
            } else if bridged {
                bridge
            } else {
                "exec dockerd \"$@\""
            },
            "sh",
        ])
        .args(arguments.split_whitespace())
        .args(if bridged { &[][..] } else { &["--bridge=none", "--iptables=false"] })
        .current_dir(lab.path())
        .args([
            "--config-file",
            &at("daemon.json"),
            "-H",
            &format!("unix://{}", at("sock")),
            "--data-root",
            &at("data"),
        ])
        .args(["--exec-root", &at("exec"), "--pidfile", &at("dockerd.pid")])
        .args(["--ip6tables=false", "--default-runtime=brig"])
        .args(has_no_runtime.then(|| format!("--add-runtime=brig={}", env!("CARGO_BIN_EXE_brig"))))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::options().create(true).append(true).open(at("dockerd.log")).unwrap())
        .spawn()
        .unwrap()
}

impl Drop for Docker {
    fn drop(&mut self) {
        if self.arguments.contains("live-restore") {
            self.run("docker rm -f $(docker ps -aq)", "");
            // After a test that failed without a daemon: the monitors of its containers, and these.
            let line = "for shim in $(pgrep -f -- \"-address $PWD/\"); do kill -KILL $(pgrep -P $shim) $shim; done";
            self.run(line, "");
        }
        if let Some(pid) = rustix::process::Pid::from_raw(self.daemon.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.daemon.wait();
        // The daemon's network namespace of `--network none` containers is bound below its own directory.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let ours = self.lab.path().display().to_string();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|place| place.starts_with(&ours));
        for place in places.collect::<Vec<_>>().into_iter().rev() {
            let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
        }
        // Groups that the daemon or a runtime made for `--cgroup-parent`; busy ones are another daemon's.
        let _ = finish(Command::new("find").args([
            "/sys/fs/cgroup",
            "-depth",
            "-type",
            "d",
            "-path",
            "*/docker-test-of-brig*",
            "-exec",
            "rmdir",
            "{}",
            ";",
        ]));
    }
}

/// Replaces the differences between runs and between runtimes.
pub(crate) fn normal(text: &str) -> String {
    // The terminal sometimes echoes the end of script(1)'s input.
    let text = text.replace(['\0'], "").replace("^@", "");
    // Of runc since 1.2 alone.
    let text = text.replace("error during container init: ", "");
    let text = text.trim_end().replace("runc", "RT").replace("brig", "RT");
    let mut words: Vec<String> = Vec::new();
    for word in text.split_inclusive(|each: char| !each.is_ascii_alphanumeric()) {
        let id = word.trim_end_matches(|each: char| !each.is_ascii_alphanumeric());
        let is_id = matches!(id.len(), 12 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        words.push(if is_id { word.replace(id, "ID") } else { word.to_owned() });
    }
    words.concat()
}

/// `comes WORD N`: waits until the container has printed it for the Nth time. `becomes VALUE FIELD`: waits for a value
/// and prints the field. A busy machine needs more time than any fixed time, and an idle one less.
pub(crate) const WAITS: &str = r#"
comes() { for i in $(seq 300); do [ "$(docker logs $C 2> /dev/null | grep -c $1)" -ge $2 ] && return; sleep 0.1; done; echo "no $1"; }
becomes() {
    for i in $(seq 300); do [ "$(docker inspect -f "{{$2}}" $C)" = $1 ] && break; sleep 0.1; done
    docker inspect -f "{{$2}}" $C
}
"#;

#[test]
fn docker_builds_images_with_brig() {
    let Some(docker) = Docker::start() else { return };
    let build = "printf 'FROM bb\\nRUN echo built > /made && id -u >> /made\\nUSER 1000\\nCMD cat /made; id -u\\n' | \
                 DOCKER_BUILDKIT=0 docker build --network none -q -t made - && docker run --rm --network none made";
    let done = docker.run(build, "brig");
    done.succeeded();
    assert!(done.out.ends_with("built\n0\n1000\n"), "{}", done.out);
}

#[test]
fn docker_with_remapped_users_has_what_it_has_with_runc() {
    let Some(docker) = Docker::with("--userns-remap=remapped") else { return };
    let run = "docker run --rm --runtime $RT --network none";
    for arguments in [
        "bb sh -c 'tr -s \" \" < /proc/self/uid_map; id -u; touch /made && stat -c %u /made'",
        "-v $PWD/remapped:/in:ro --tmpfs /t bb sh -c 'cat /in/file; touch /t/x && echo t; ls -ln /dev/null | cut -c1-10'",
        "--user 1000 --read-only bb sh -c 'id -u; touch /x 2> /dev/null || echo ro'",
        "--memory 64m --pids-limit 50 bb cat /proc/sys/kernel/hostname | wc -l",
        "--userns host bb sh -c 'tr -s \" \" < /proc/self/uid_map'",
    ] {
        let [ours, theirs] = ["brig", "runc"].map(|runtime| {
            let line = format!("mkdir -p remapped; echo in > remapped/file; {run} {arguments}");
            let done = docker.run(&line, runtime);
            format!("{}\n{}\n{}", done.status, normal(&done.out), normal(&done.err))
        });
        assert_eq!(ours, theirs, "{arguments}");
        assert!(ours.starts_with("0\n"), "{ours}");
    }
}
