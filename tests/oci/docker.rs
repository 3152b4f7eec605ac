//! Docker with brig beside runc: the same commands, and the same answers. The daemon is the test's own, on a private socket, and gone afterwards.

use crate::support::{Done, Lab, busybox, finish, skip};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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

    /// With more arguments.
    pub(crate) fn with(arguments: &str) -> Option<Docker> {
        let lab = Lab::new()?;
        if !["/usr/sbin/dockerd", "/usr/bin/dockerd"].iter().any(|path| Path::new(path).exists()) || busybox().is_none()
        {
            skip("needs docker.io");
            return None;
        }
        let at = |name: &str| lab.path().join(name).display().to_string();
        std::fs::write(at("daemon.json"), "{}").unwrap();
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

/// Starts the daemon. One that remaps users runs where accounts have one more, whose ids it may map; that changes no file of the host.
fn spawn(lab: &Lab, arguments: &str) -> Child {
    let at = |name: &str| lab.path().join(name).display().to_string();
    let remapped = arguments.contains("remapped");
    let cover = "for file in subuid subgid passwd group; do [ -e /etc/$file ] && mount --bind $file /etc/$file; done; exec dockerd \"$@\"";
    Command::new(if remapped { "unshare" } else { "/bin/sh" })
        .args(if remapped { &["-m", "/bin/sh"][..] } else { &[] })
        .args(["-c", if remapped { cover } else { "exec dockerd \"$@\"" }, "sh"])
        .args(arguments.split_whitespace())
        .current_dir(lab.path())
        .args([
            "--config-file",
            &at("daemon.json"),
            "-H",
            &format!("unix://{}", at("sock")),
            "--data-root",
            &at("data"),
        ])
        .args(["--exec-root", &at("exec"), "--pidfile", &at("dockerd.pid"), "--bridge=none", "--iptables=false"])
        .args(["--ip6tables=false", "--storage-driver=vfs", "--default-runtime=brig", "--add-runtime"])
        .arg(format!("brig={}", env!("CARGO_BIN_EXE_brig")))
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
            // Of a test that failed without a daemon: the monitors of its containers, and these.
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
            "-name",
            "docker-test-of-brig",
            "-exec",
            "rmdir",
            "{}",
            ";",
        ]));
    }
}

/// What differs from one run to the next, and from one runtime to the other.
pub(crate) fn normal(text: &str) -> String {
    // script(1) now and then has the end of its own input echoed by the terminal.
    let text = text.replace(['\0'], "").replace("^@", "");
    let text = text.trim_end().replace("runc", "RT").replace("brig", "RT");
    let mut words: Vec<String> = Vec::new();
    for word in text.split_inclusive(|each: char| !each.is_ascii_alphanumeric()) {
        let id = word.trim_end_matches(|each: char| !each.is_ascii_alphanumeric());
        let is_id = id.len() >= 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        words.push(if is_id { word.replace(id, "ID") } else { word.to_owned() });
    }
    words.concat()
}

const RUN: &str = "docker run --rm --runtime $RT --network none --cgroup-parent /docker-test-of-brig";

/// Arguments of `docker run`, compared with runc.
const RUNS: [&str; 36] = [
    "bb echo hi",
    "bb sh -c 'exit 3'",
    "bb nope",
    "bb /etc/passwd",
    "-u 1000 bb sh -c 'id; echo $HOME; pwd'",
    "-u user:77 -w /work bb sh -c 'id; pwd'",
    "--init bb sh -c 'readlink /proc/1/exe'",
    "--read-only --tmpfs /t:size=1m bb sh -c 'touch /x; touch /t/x && mount | grep \" /t \"'",
    "--cap-drop ALL --cap-add NET_ADMIN bb grep Cap /proc/self/status",
    "bb grep -E 'Cap|Seccomp:|NoNew' /proc/self/status",
    "--security-opt no-new-privileges bb grep -E 'Cap|Seccomp:|NoNew' /proc/self/status",
    "--security-opt seccomp=unconfined bb grep Seccomp: /proc/self/status",
    "--ulimit nofile=100:200 --ulimit core=0 bb sh -c 'ulimit -n; ulimit -Hn; ulimit -c'",
    "--memory 64m --cpus 0.5 --pids-limit 50 bb cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/pids/pids.max",
    "--sysctl net.ipv4.ip_forward=1 --sysctl kernel.msgmax=1000 bb cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax",
    "--device /dev/loop-control:/dev/lc bb stat -c '%a %t:%T %F' /dev/lc",
    "--device /dev/zero:/dev/z:r bb sh -c 'head -c 1 /dev/z | wc -c; echo x > /dev/z'",
    "--cpu-shares 100 --cpuset-cpus 0 --memory 64m --memory-reservation 32m bb sh -c 'cd /sys/fs/cgroup; cat cpu/cpu.shares cpuset/cpuset.cpus memory/memory.soft_limit_in_bytes'",
    "--userns host bb cat /proc/self/uid_map",
    "--pid host bb sh -c 'test $$ -gt 10 && echo host'",
    "--ipc host bb readlink /proc/self/ns/ipc",
    "--uts host bb readlink /proc/self/ns/uts",
    "-v $PWD/rootfs/etc:/v:ro bb sh -c 'ls /v; touch /v/x'",
    "--shm-size 1m bb sh -c 'mount | grep shm'",
    "-i bb cat",
    "--group-add 55 --hostname hh --add-host a:1.2.3.4 bb sh -c 'id; hostname; tail -2 /etc/hosts'",
    "--oom-score-adj 500 bb cat /proc/self/oom_score_adj",
    "--cgroupns private bb sh -c 'grep -v systemd /proc/self/cgroup | sort'",
    "bb ls /sys/fs/cgroup/memory/tasks",
    "bb sh -c 'mkdir /sys/fs/cgroup/memory/x'",
    "bb sh -c 'echo 1 > /proc/sys/kernel/panic; cat /proc/kcore | head -c 1 | wc -c'",
    "bb sh -c 'ls -A /dev | sort; readlink /dev/fd; readlink /dev/ptmx'",
    "bb sh -c 'unshare -U true; mount -t tmpfs x /tmp'",
    "--tmpfs /t:ro,noexec,mode=700 bb stat -c %a /t",
    "-e A=b -e HOME= bb sh -c 'echo $A $HOME'",
    "--stop-signal INT --entrypoint /bin/id bb -u",
];

/// Arguments of `docker run` that fail: the status and the hint follow from the runtime's words.
const FAILURES: [&str; 8] = [
    "bb /nope",
    "bb /etc",
    "bb /etc/passwd/x",
    "-v $PWD/daemon.json:/etc bb true",
    "-v $PWD/rootfs/etc:/etc/passwd bb true",
    "--sysctl net.nope=1 bb true",
    "-v $PWD/daemon.json:/proc/version bb true",
    "-v $PWD/rootfs/etc:/proc bb true",
];

/// `comes WORD N`: waits until the container has said it for the Nth time. `becomes VALUE FIELD`: waits for a value and prints the field.
/// A busy machine needs more time than any that could be written here, and a quiet one less.
pub(crate) const WAITS: &str = r#"
comes() { for i in $(seq 200); do [ "$(docker logs $C 2> /dev/null | grep -c $1)" -ge $2 ] && return; sleep 0.1; done; echo "no $1"; }
becomes() {
    for i in $(seq 100); do [ "$(docker inspect -f "{{$2}}" $C)" = $1 ] && break; sleep 0.1; done
    docker inspect -f "{{$2}}" $C
}
"#;

/// What is done, in this order, with one container that runs; `$C` is its name.
const STEPS: [&str; 28] = [
    "docker run -d --runtime $RT --network none --cgroup-parent /docker-test-of-brig --name $C bb sh -c 'trap \"exit 9\" TERM; trap \"echo usr\" USR1; echo started; while :; do sleep 0.1; done'; comes started 1",
    "docker exec $C sh -c 'id; exit 5'",
    "docker exec -u 1000 -e A=1 -w /tmp $C sh -c 'id; echo $A; pwd'",
    "docker exec $C nope",
    "docker exec $C /etc/passwd",
    "docker exec -i $C cat < daemon.json",
    "docker pause $C",
    "docker inspect -f '{{.State.Status}}' $C",
    "docker exec $C true",
    "docker unpause $C",
    "docker update --memory 80m --memory-swap 160m --cpu-shares 100 --pids-limit 77 $C",
    "docker exec $C cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/pids/pids.max",
    "docker run --rm --runtime $RT --network container:$C --pid container:$C --ipc container:$C bb sh -c 'grep -c started /proc/1/cmdline; test $$ -gt 1 && echo joined'",
    "script -qec \"docker exec -it $C sh -c 'tty; test -t 0 && echo terminal'\" /dev/null",
    "docker top $C -o comm | grep -v sleep | sort -u",
    "docker stats --no-stream --format '{{.Name}}' $C",
    "docker kill -s USR1 $C; comes usr 1; docker logs $C",
    "docker cp daemon.json $C:/tmp/f; docker cp $C:/tmp/f - | tar -xO; docker exec $C cat /tmp/f",
    "docker restart -t 5 $C; comes started 2; docker inspect -f '{{.State.Status}}' $C",
    "docker stop -t 5 $C; docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' $C",
    "docker start $C; comes started 3; docker kill $C; docker inspect -f '{{.State.ExitCode}}' $C",
    "docker start $C; comes started 4; { sleep 1; docker kill -s TERM $C; } & docker wait $C; wait",
    "docker start $C; comes started 5; { sleep 1; docker kill -s TERM $C; } & docker attach $C; echo $?; wait",
    "docker rm -f $C; docker run --rm --runtime $RT --network host bb readlink /proc/self/ns/net",
    "docker run -d --runtime $RT --network none --name $C --health-cmd 'test -e /tmp/ok || { touch /tmp/ok; false; }' --health-interval 300ms bb sleep 100; becomes healthy .State.Health.Status; docker rm -f $C",
    "script -qec \"docker run --rm --runtime $RT --network none -it bb sh -c 'tty; test -c /dev/console && echo console'\" /dev/null",
    "docker run --name $C --runtime $RT --network none --memory 20m bb sh -c 'tail /dev/zero'; becomes true .State.OOMKilled; docker rm $C",
    "docker ps -aq",
];

#[test]
fn docker_gets_from_brig_what_it_gets_from_runc() {
    let Some(docker) = Docker::start() else { return };
    let mut wrong = Vec::new();
    let mut compare = |line: &str| {
        let [ours, theirs] = ["brig", "runc"].map(|runtime| {
            let done = docker.run(&format!("{WAITS}C=c-$RT; {line}"), runtime);
            format!("{}\n{}\n{}", done.status, normal(&done.out), normal(&done.err))
        });
        if ours != theirs {
            wrong.push(format!("{line}\n--- brig\n{ours}\n--- runc\n{theirs}"));
        }
    };
    RUNS.iter().for_each(|arguments| compare(&format!("{RUN} {arguments}")));
    FAILURES.iter().for_each(|arguments| {
        compare(&format!("{RUN} {arguments} 2> err; echo $?; grep -c 'Are you trying to mount' err"));
    });
    STEPS.iter().for_each(|step| compare(step));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

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
