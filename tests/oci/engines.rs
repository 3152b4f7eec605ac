//! containerd with brig as its runtime: the test starts the daemon with a private socket and store, and removes all
//! afterwards.

use crate::support::{Done, Lab, eventually, finish, skip};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A containerd with the image `bb`.
pub(crate) struct Containerd {
    pub(crate) lab: Lab,
    daemon: Child,
}

/// Without plugins for Kubernetes, which need network configurations.
pub(crate) const WITHOUT_KUBERNETES: &str = "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]";

impl Containerd {
    /// With lines of its configuration, in which `$D` is its directory.
    pub(crate) fn start(lines: &str) -> Option<Containerd> {
        let lab = Lab::new()?;
        if !Path::new("/usr/bin/containerd").exists() || !Path::new("/usr/bin/ctr").exists() {
            skip("needs containerd");
            return None;
        }
        let at = |name: &str| lab.path().join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = \"$D/root\"\nstate = \"$D/state\"\n{lines}\n[grpc]\naddress = \"$D/sock\"\n[ttrpc]\naddress = \"$D/sock.ttrpc\"\n"
        )
        .replace("$D", &lab.path().display().to_string());
        std::fs::write(at("config.toml"), config).unwrap();
        let daemon = Command::new("containerd")
            .args(["--config", &at("config.toml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(at("containerd.log")).unwrap())
            .spawn()
            .unwrap();
        let containerd = Containerd { lab, daemon };
        eventually("containerd answers", || containerd.run("ctr version").status == 0);
        let archive = "printf '#!/bin/sh\\ntrap \"exit 0\" TERM\\nwhile :; do sleep 0.1; done\\n' > rootfs/bin/pause; chmod 755 rootfs/bin/pause; umoci init --layout oci && umoci new --image oci:bb && umoci insert --image oci:bb rootfs / && \
                       umoci config --image oci:bb --config.env PATH=/bin --config.cmd /bin/pause && tar -C oci -cf bb.tar . && \
                       ctr image import --base-name localhost/bb --no-unpack bb.tar";
        let image = containerd.run(archive);
        image.succeeded();
        Some(containerd)
    }

    /// Runs a line of shell in which `ctr` is this daemon's, `$BRIG` the runtime, `$IMAGE` the image and `$C` a name.
    pub(crate) fn run(&self, line: &str) -> Done {
        let socket = self.lab.path().join("sock");
        let image = "IMAGE=$(ctr image ls -q 2> /dev/null | head -n 1); RUN=\"ctr run --snapshotter native --runc-binary $BRIG\"; ";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("{image}{line}")]);
        command
            .env("CONTAINERD_ADDRESS", socket)
            .env("CONTAINERD_NAMESPACE", "k8s.io")
            .env("BRIG", env!("CARGO_BIN_EXE_brig"))
            .env("C", &self.lab.id);
        finish(command.current_dir(self.lab.path()).stdin(Stdio::null()))
    }
}

impl Containerd {
    /// The mounts below its directories.
    pub(crate) fn mounts(&self) -> String {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = self.lab.path().display().to_string();
        mounts.lines().filter(|line| line.contains(&ours)).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.run("ctr task rm -f $C; ctr container rm $C");
        // After a failed test: the monitors of its containers, and these.
        self.run("for shim in $(pgrep -f -- \"-address $PWD/\"); do kill -KILL $(pgrep -P $shim) $shim; done");
        if let Some(pid) = rustix::process::Pid::from_raw(self.daemon.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.daemon.wait();
        unmount_all(self.lab.path());
    }
}

/// The mounts of a daemon below its directories.
pub(crate) fn unmount_all(below: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = below.display().to_string();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|place| place.starts_with(&ours));
    for place in places.collect::<Vec<_>>().into_iter().rev() {
        let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn containerd_runs_its_containers_with_brig() {
    let Some(containerd) = Containerd::start(WITHOUT_KUBERNETES) else { return };
    let check = |line: &str, status: i32, out: &str| {
        let done = containerd.run(line);
        assert_eq!((done.status, done.out.as_str()), (status, out), "{line}\n{}", done.err);
    };
    // On a busy machine containerd takes a short program for ended before it has read its output, with any runtime.
    check("$RUN --rm $IMAGE $C sh -c 'echo hi; sleep 0.3; exit 3'", 3, "hi\n");
    check(
        "$RUN --rm --memory-limit 67108864 --read-only $IMAGE $C sh -c 'touch /x 2> /dev/null || echo ro; id -u; sleep 0.3'",
        0,
        "ro\n0\n",
    );
    check("$RUN --rm --env A=b --cwd /tmp $IMAGE $C sh -c 'echo $A; pwd; sleep 0.3'", 0, "b\n/tmp\n");
    check("$RUN --rm --seccomp $IMAGE $C sh -c 'grep Seccomp: /proc/self/status; sleep 0.3'", 0, "Seccomp:\t2\n");
    let missing = containerd.run("$RUN --rm $IMAGE $C /nope");
    missing.failed_with("no such file or directory");
    containerd.run("ctr container rm $C");
    check(
        "$RUN -d $IMAGE $C sh -c 'trap \"exit 9\" TERM; while :; do sleep 0.1; done' && ctr task ls -q",
        0,
        &format!("{}\n", containerd.lab.id),
    );
    check("ctr task exec --exec-id e $C sh -c 'echo in; sleep 0.3; exit 4'", 4, "in\n");
    check(
        "ctr task pause $C && ctr task ls | awk 'NR == 2 { print $3 }'; ctr task resume $C && ctr task ls | awk 'NR == 2 { print $3 }'",
        0,
        "PAUSED\nRUNNING\n",
    );
    check("ctr task ps $C | wc -l | tr -d ' '", 0, "3\n");
    check("ctr task metrics $C | grep -c memory.usage_in_bytes", 0, "1\n");
    check(
        "ctr task kill -s TERM $C; for i in 1 2 3 4 5 6 7 8 9 10; do ctr task ls | grep -q STOPPED && break; sleep 0.2; done; ctr task delete $C 2>&1 | grep -o \"exit code [0-9]*\"; ctr container rm $C",
        0,
        "exit code 9\n",
    );
}
