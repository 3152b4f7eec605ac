//! Docker with brig beside runc: the same commands, and the same answers. The daemon is the test's own, on a private socket, and gone afterwards.

use crate::support::{Done, Lab, busybox, finish, skip};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A daemon.
struct Docker {
    lab: Lab,
    daemon: Child,
}

impl Docker {
    fn start() -> Option<Docker> {
        let lab = Lab::new()?;
        if !["/usr/sbin/dockerd", "/usr/bin/dockerd"].iter().any(|path| Path::new(path).exists()) || busybox().is_none()
        {
            skip("needs docker.io");
            return None;
        }
        let at = |name: &str| lab.path().join(name).display().to_string();
        std::fs::write(at("daemon.json"), "{}").unwrap();
        let daemon = Command::new("dockerd")
            .args([
                "--config-file",
                &at("daemon.json"),
                "-H",
                &format!("unix://{}", at("sock")),
                "--data-root",
                &at("data"),
            ])
            .args(["--exec-root", &at("exec"), "--pidfile", &at("dockerd.pid"), "--bridge=none", "--iptables=false"])
            .args(["--ip6tables=false", "--storage-driver=vfs", "--add-runtime"])
            .arg(format!("brig={}", env!("CARGO_BIN_EXE_brig")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(at("dockerd.log")).unwrap())
            .spawn()
            .unwrap();
        let docker = Docker { lab, daemon };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while docker.run("docker version", "").status != 0 {
            let log = || std::fs::read_to_string(docker.lab.path().join("dockerd.log")).unwrap_or_default();
            assert!(std::time::Instant::now() < end, "the daemon does not answer: {}", log());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let import = format!("tar -C {} -c . | docker import - bb", docker.lab.root("/").display());
        docker.run(&import, "").succeeded();
        Some(docker)
    }

    /// Runs a line of shell in which `docker` is this daemon's and `$RT` the runtime.
    fn run(&self, line: &str, runtime: &str) -> Done {
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

impl Drop for Docker {
    fn drop(&mut self) {
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
fn normal(text: &str) -> String {
    let text = text.replace("runc", "RT").replace("brig", "RT");
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
const RUNS: [&str; 34] = [
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

/// What is done, in this order, with one container that runs; `$C` is its name.
const STEPS: [&str; 24] = [
    "docker run -d --runtime $RT --network none --cgroup-parent /docker-test-of-brig --name $C bb sh -c 'trap \"exit 9\" TERM; trap \"echo usr\" USR1; echo started; while :; do sleep 0.1; done'; sleep 0.5",
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
    "docker top $C -o comm | sort -u",
    "docker stats --no-stream --format '{{.Name}}' $C",
    "docker kill -s USR1 $C; sleep 0.5; docker logs $C",
    "docker cp daemon.json $C:/tmp/f; docker cp $C:/tmp/f - | tar -xO; docker exec $C cat /tmp/f",
    "docker restart -t 5 $C; docker inspect -f '{{.State.Status}}' $C",
    "docker stop -t 5 $C; docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' $C",
    "docker start $C; docker kill $C; docker inspect -f '{{.State.ExitCode}}' $C",
    "docker rm -f $C",
    "docker run -d --runtime $RT --network none --name $C --health-cmd 'test -e /tmp/ok || { touch /tmp/ok; false; }' --health-interval 300ms bb sleep 100; sleep 2; docker inspect -f '{{.State.Health.Status}}' $C; docker rm -f $C",
    "script -qec \"docker run --rm --runtime $RT --network none -it bb sh -c 'tty; test -c /dev/console && echo console'\" /dev/null",
    "docker run --name $C --runtime $RT --network none --memory 20m bb sh -c 'tail /dev/zero'; docker inspect -f '{{.State.OOMKilled}}' $C; docker rm $C",
    "docker ps -aq",
];

#[test]
fn docker_gets_from_brig_what_it_gets_from_runc() {
    let Some(docker) = Docker::start() else { return };
    let mut wrong = Vec::new();
    let mut compare = |line: &str| {
        let [ours, theirs] = ["brig", "runc"].map(|runtime| {
            let done = docker.run(&format!("C=c-$RT; {line}"), runtime);
            format!("{}\n{}\n{}", done.status, normal(&done.out), normal(&done.err))
        });
        if ours != theirs {
            wrong.push(format!("{line}\n--- brig\n{ours}\n--- runc\n{theirs}"));
        }
    };
    RUNS.iter().for_each(|arguments| compare(&format!("{RUN} {arguments}")));
    STEPS.iter().for_each(|step| compare(step));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
