//! Images of `docker build` and `buildah bud`: brig unpacks the same files as they show. The test starts a Docker
//! daemon on a private socket, in a separate mount namespace, and ends it.

use crate::support::{Ran, Scratch, assert_same, has, is_root, list, run, skipped};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The group that Docker's builds run below.
const GROUP: &str = "docker-images-of-brig";

/// Files that Docker adds to or changes in every container; the root and `/etc` get other times.
const DOCKERS: [&str; 13] = [
    ".",
    ".dockerenv",
    "dev",
    "dev/console",
    "dev/pts",
    "dev/shm",
    "etc",
    "etc/hostname",
    "etc/hosts",
    "etc/mtab",
    "etc/resolv.conf",
    "proc",
    "sys",
];

struct Docker {
    scratch: Scratch,
    daemon: Child,
}

impl Docker {
    fn start() -> Docker {
        let scratch = Scratch::new();
        std::fs::write(scratch.path("daemon.json"), "{}").unwrap();
        let daemon = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "dockerd", "--bridge=none", "--iptables=false"])
            .args(["--ip6tables=false", "--storage-driver=vfs", "--config-file", &scratch.path("daemon.json")])
            .args(["-H", &format!("unix://{}", scratch.path("sock")), "--data-root", &scratch.path("data")])
            .args(["--exec-root", &scratch.path("exec"), "--pidfile", &scratch.path("pid")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(scratch.path("log")).unwrap())
            .spawn()
            .unwrap();
        let docker = Docker { scratch, daemon };
        let end = Instant::now() + Duration::from_secs(60);
        while docker.run("docker version").status != 0 {
            let log = || std::fs::read_to_string(docker.scratch.path("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the daemon does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        docker
    }

    /// Runs a line of shell in the scratch directory, where `docker` is this daemon's.
    fn run(&self, line: &str) -> Ran {
        let mut command = Command::new("sh");
        command.args(["-ec", line]).env("DOCKER_HOST", format!("unix://{}", self.scratch.path("sock")));
        run(command.env("DOCKER_BUILDKIT", "0").current_dir(self.scratch.path("")))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.daemon.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.daemon.wait();
        let groups = ["/sys/fs/cgroup", "-depth", "-type", "d", "-name", GROUP, "-exec", "rmdir", "{}", ";"];
        let _ = run(Command::new("find").args(groups));
    }
}

/// A listing without what only one side has.
fn without(listing: &str, names: &[&str]) -> String {
    let own: Vec<String> = names.iter().map(|name| format!("'{name}' ")).collect();
    listing.lines().filter(|line| !own.iter().any(|name| line.starts_with(name))).collect::<Vec<_>>().join("\n")
}

fn contains_all(tree: &str) {
    for wanted in [
        "'bin/ping' 0o100755 7:8 4 1600000000000000000",
        "'security.capability': '0100000200200000000000000000000000000000'",
        "'bin/su2' 0o104755",
        "'home' 0o100644",
        "'made/a' 0o104711 0:0 2 981173106000000000",
        "'made/deep' 0o42750 77:88",
        "'made/null' 0o20644 0:0 0",
        "'made/p' 0o40755",
        "'made/sparse' 0o100644 0:0 8388613",
        "'o/new'",
        "'srv' 0o40700 5:50",
        "'usr/lib/b'",
        "'copied/here' 0o100644 5:6",
    ] {
        assert!(tree.contains(wanted), "{wanted} is not in\n{tree}");
    }
    for gone in ["'gone'", "'o/hidden'", "'o/sub'"] {
        assert!(!tree.contains(gone), "{gone} is in\n{tree}");
    }
}

#[test]
fn an_image_of_docker_build_is_what_docker_exports() {
    let missing = skipped("root", is_root()) || skipped("docker.io", has("dockerd") && has("docker") && has("busybox"));
    if missing {
        return;
    }
    let docker = Docker::start();
    let scratch = &docker.scratch;
    let context = scratch.layout("context", "");
    let build = format!("docker build -q --network none --cgroup-parent /{GROUP} -t made {context}");
    docker.run(&format!("{build}; docker save -o saved.tar made; docker create --name shown made")).good();
    let extract = "tar -x -C exported -p --numeric-owner --xattrs --xattrs-include='*'";
    docker.run(&format!("mkdir exported; docker export shown | {extract}; docker rm shown")).good();
    let theirs = without(&list(&scratch.path("exported"), &[]), &DOCKERS);
    contains_all(&theirs);
    // Through the store, and straight from the archive.
    scratch.image(&["load", &scratch.path("saved.tar"), "--name", "x"]).good();
    let archive = format!("docker-archive:{}", scratch.path("saved.tar"));
    for (reference, name) in [("x", "copied"), (archive.as_str(), "moved")] {
        let target = scratch.path(name);
        scratch.image(&["unpack", reference, &target]).good();
        let ours = without(&list(&format!("{target}/rootfs"), &[]), &DOCKERS);
        assert_same(&ours, &theirs, &format!("{reference}: ours and Docker's"));
    }
    let config = std::fs::read_to_string(scratch.path("copied/config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["process"]["cwd"], "/made/work");
    assert_eq!(config["process"]["user"]["uid"], 77);
    assert_eq!(config["process"]["args"], serde_json::json!(["/bin/busybox", "true"]));
}

#[test]
fn an_image_of_buildah_is_what_buildah_mounts() {
    if skipped("root", is_root()) || skipped("buildah", has("buildah") && has("busybox")) {
        return;
    }
    let scratch = Scratch::new();
    let context = scratch.layout("context", "");
    let buildah = |line: &str| {
        // vfs and chroot: no mount, no container. In a mount namespace all the same, for what a chroot of buildah's
        // needs.
        let own =
            format!("buildah --storage-driver vfs --root {} --runroot {}", scratch.path("graph"), scratch.path("run"));
        let line = line.replace("buildah", &own);
        run(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-ec", &line]))
    };
    // With a layer for each step, and with one for all.
    for (tag, option) in [("steps", "--layers"), ("squashed", "--squash")] {
        let layout = scratch.path(&format!("layout-{tag}"));
        buildah(&format!("buildah bud {option} --cap-add MKNOD --isolation chroot -q -t {tag} {context}")).good();
        buildah(&format!("buildah push -q {tag} oci:{layout}:t")).good();
        let shown = buildah(&format!("buildah mount $(buildah from --pull-never {tag})")).good();
        // Its storage makes the root 0555 and with another time.
        let theirs = without(&list(shown.out.trim(), &[]), &["."]);
        contains_all(&theirs);
        assert!(theirs.contains("'user.note': '6f6e650a74776f'"), "{theirs}");
        scratch.image(&["load", &layout, "--name", tag]).good();
        for (reference, name) in [(tag.to_owned(), "copied"), (format!("oci:{layout}"), "moved")] {
            let target = scratch.path(&format!("{name}-{tag}"));
            scratch.image(&["unpack", &reference, &target]).good();
            let ours = without(&list(&format!("{target}/rootfs"), &[]), &["."]);
            assert_same(&ours, &theirs, &format!("{reference}: ours and buildah's"));
        }
    }
}
