//! Docker of an ordinary user (`dockerd-rootless.sh`) with brig beside runc. RootlessKit makes the daemon's user
//! namespace.

use crate::docker::{WAITS, normal};
use crate::rootless::Rootless;
use crate::support::{Done, finish, skip};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCRIPT: &str = "/usr/share/docker.io/contrib/dockerd-rootless.sh";

/// A daemon of the user with the image `bb`.
struct Docker {
    user: Rootless,
    daemon: Child,
}

impl Docker {
    fn start() -> Option<Docker> {
        let user = Rootless::new(true)?;
        for path in [SCRIPT, "/usr/bin/rootlesskit", "/usr/bin/slirp4netns", "/dev/net/tun"] {
            if !Path::new(path).exists() {
                skip(&format!("needs {path}"));
                return None;
            }
        }
        // RootlessKit adds up the ranges of a number and of its name.
        for name in ["subuid", "subgid"] {
            let file = user.lab.path().join(name);
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(file, format!("{}\n", text.lines().last().unwrap())).unwrap();
        }
        // If only root may open the device of slirp4netns, the user gets one with the same number.
        let device = "mknod tun c 10 200; chmod 666 tun; mount --bind tun /dev/net/tun";
        let line = "mkdir home; mkdir -m 700 run; exec /bin/sh $SCRIPT --add-runtime brig=$PWD/brig --add-runtime capped=$PWD/capped --bridge=none --iptables=false --ip6tables=false \
                    --storage-driver=vfs --data-root $PWD/data --exec-root $PWD/run/exec --config-file $PWD/daemon.json";
        std::fs::write(user.lab.path().join("daemon.json"), "{}").unwrap();
        let make = "printf '#!/bin/sh\\nexec %s/brig --annotation dev.brig.disk=16M \"$@\"\\n' $PWD > capped; chmod 755 capped";
        finish(Command::new("sh").args(["-c", make]).current_dir(user.lab.path())).succeeded();
        let at = |name: &str| user.lab.path().join(name);
        let mut command = user.program(device, "/bin/sh -c");
        command.arg(line).env("SCRIPT", SCRIPT).env("HOME", at("home")).env("XDG_RUNTIME_DIR", at("run"));
        command.env_remove("TMPDIR").current_dir(user.lab.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(at("log")).unwrap());
        let daemon = command.spawn().unwrap();
        let docker = Docker { user, daemon };
        let end = Instant::now() + Duration::from_secs(60);
        while docker.run("docker version", "").status != 0 {
            let log = || std::fs::read_to_string(docker.user.lab.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the daemon does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        let import = "tar --owner=0 --group=0 -C rootfs -c . | docker import -c 'ENV PATH=/bin' - bb";
        docker.run(import, "").succeeded();
        Some(docker)
    }

    /// Runs a line of shell in which `docker` is this daemon's, `$RT` the runtime and `$C` a name.
    fn run(&self, line: &str, runtime: &str) -> Done {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("{WAITS}{line}")]).env("RT", runtime).env("C", format!("c-{runtime}"));
        command.env("DOCKER_HOST", format!("unix://{}/run/docker.sock", self.user.lab.path().display()));
        finish(command.current_dir(self.user.lab.path()).stdin(Stdio::null()))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        self.run("docker rm -f $(docker ps -aq)", "");
        if let Some(pid) = rustix::process::Pid::from_raw(self.daemon.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.daemon.wait();
    }
}

/// Commands, and words in their output. Without a cgroup nothing is limited or paused.
const LINES: [(&str, &str); 11] = [
    (
        "docker info 2> /dev/null | grep -E 'rootless|Cgroup Driver'; docker run --rm --runtime $RT --network none bb sh -c 'id -u; cat /proc/self/uid_map; grep -E \"CapEff|Seccomp:\" /proc/self/status; exit 3'",
        "3\n Cgroup Driver: none\n  rootless\n0\n",
    ),
    (
        "docker run --rm --runtime $RT --network none --read-only --user 1000 --tmpfs /t bb sh -c 'id -u; touch /t/x && echo t; touch /x'",
        "1000\nt",
    ),
    (
        "docker run --rm --runtime $RT --network none --privileged bb sh -c 'grep CapEff /proc/self/status; mount -t tmpfs x /tmp && echo mounted'",
        "mounted",
    ),
    ("docker run --rm --runtime $RT --network none --memory 64m bb echo unlimited", "unlimited"),
    ("docker run --rm --runtime $RT --network none bb /nope", "127\n"),
    ("docker run --rm --runtime $RT --network host bb ip -o link | cut -d: -f2", "tap0"),
    (
        "docker run -d --runtime $RT --network none --name $C -v v-$RT:/v bb sh -c 'trap \"exit 9\" TERM; echo up; while :; do sleep 0.1; done' > /dev/null; comes up 1; docker exec -u 1000 $C sh -c 'id -u; exit 5'",
        "5\n1000",
    ),
    (
        "docker run --rm --runtime $RT --network container:$C --pid container:$C bb sh -c 'grep -c trap /proc/1/cmdline; test $$ -gt 1 && echo joined; ls /sys/class/net'",
        "1\njoined\nlo",
    ),
    (
        "docker cp daemon.json $C:/v/f; docker exec $C cat /v/f; docker cp $C:/v/f - | tar -xO; docker logs $C; for verb in pause top; do docker $verb $C 2> /dev/null; echo $?; done",
        "{}{}up\n1\n1",
    ),
    ("docker stop -t 30 $C; docker inspect -f '{{.State.ExitCode}}' $C; docker rm $C; docker volume rm v-$RT", "9\n"),
    (
        "printf 'FROM bb\\nRUN id -u > /made; chown 5:5 /made\\n' | DOCKER_BUILDKIT=0 docker build --network none -q -t m-$RT - > /dev/null; docker run --rm --runtime $RT --network none m-$RT stat -c %u /made",
        "5",
    ),
];

#[test]
fn an_ordinary_users_docker_gets_from_brig_what_it_gets_from_runc() {
    let Some(docker) = Docker::start() else { return };
    let mut wrong = Vec::new();
    for (line, words) in LINES {
        let [ours, theirs] = ["brig", "runc"].map(|runtime| {
            let done = docker.run(line, runtime);
            format!("{}\n{}\n{}", done.status, normal(&done.out), normal(&done.err))
        });
        if ours != theirs || !ours.contains(words) {
            wrong.push(format!("{line}\n--- brig, with `{words}`\n{ours}\n--- runc\n{theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    // Copies of a capped root, whose changes are in memory.
    let line = "C=capped; docker run -d --runtime capped --network none --name $C bb sh -c 'echo inside > /made; echo up; exec sleep 1000' > /dev/null; \
                comes up 1; docker cp $C:/made - | tar -xO; docker cp daemon.json $C:/sent; docker exec $C cat /sent; \
                docker exec $C sh -c 'dd if=/dev/zero of=/big bs=1M count=40 2> /dev/null || echo full'; docker rm -f $C";
    let done = docker.run(line, "capped");
    assert_eq!(done.out, "inside\n{}full\ncapped\n", "{done:?}");
}
