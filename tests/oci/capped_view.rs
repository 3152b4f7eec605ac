//! The capped root (`dev.brig.disk`) at the path of the bundle's root: engines that read this path, as `docker cp` does,
//! find the container's view. Nothing of it remains afterwards, whatever was killed.

use crate::docker::Docker;
use crate::podman::Podman;
use crate::support::{Done, Lab, finish, program};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};

/// A line of shell for a container that makes files and waits.
const MAKES: &str =
    "mkdir /made; echo inside > /made/file; ln -s /../../../../etc/passwd /made/link; echo ready; sleep 1000";
/// `ready`: waits until the container `cap` has made its files.
const READY: &str = "ready() { for i in $(seq 300); do docker logs cap 2> /dev/null | grep -q ready && return; sleep 0.1; done; echo late; }\n";

/// A row of daemon.json: brig with a cap of 24 MB.
fn capped() -> serde_json::Value {
    json!({"path": env!("CARGO_BIN_EXE_brig"), "runtimeArgs": ["--annotation", "dev.brig.disk=24M"]})
}

/// The capped roots that the mount table of this test shows below a directory.
fn shown(below: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_ours = |line: &&str| line.contains(" brig-root:") && line.contains(below.to_str().unwrap());
    table.lines().filter(is_ours).map(str::to_owned).collect()
}

/// Runs lines of shell, and compares the output of each.
fn check(docker: &Docker, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        let done = docker.run(&format!("{READY}{line}"), "agent");
        assert_eq!(done.out, *expected, "{line}: {done:?}");
    }
}

#[test]
fn docker_copies_and_exports_what_a_capped_container_has() {
    let Some(docker) = Docker::with_runtime("agent", &capped()) else { return };
    let run =
        format!("docker run -d --name cap --runtime agent --network none -v data:/vol bb sh -c '{MAKES}' > id; ready");
    check(
        &docker,
        &[
            (&run, ""),
            ("docker cp cap:/made/file - | tar -xO", "inside\n"),
            ("echo outside > sent; docker cp sent cap:/made/sent; docker exec cap cat /made/sent", "outside\n"),
            ("docker export cap | tar -t | grep ^made/", "made/\nmade/file\nmade/link\nmade/sent\n"),
            // A link of the container leads nowhere else than inside.
            ("docker cp -L cap:/made/link - | tar -xO | head -n 1", "root:x:0:0::/root:/bin/sh\n"),
            ("docker exec cap sh -c 'echo of-volume > /vol/a'; docker cp cap:/vol/a - | tar -xO", "of-volume\n"),
            (
                "docker cp sent cap:/vol/b; docker exec cap cat /vol/b; docker exec cap grep -c ' /vol ' /proc/mounts",
                "outside\n1\n",
            ),
            // The cap holds for copies, too.
            (
                "dd if=/dev/zero of=big bs=1M count=40 2> /dev/null; docker cp big cap:/big 2>&1 | grep -o 'no space left on device'; \
                 docker exec cap rm -f /big; docker exec cap sh -c 'echo more > /made/more && cat /made/more'",
                "no space left on device\nmore\n",
            ),
            // `diff` compares trees. `commit` reads the engine's own layer, if the kernel lets Docker do so.
            ("docker diff cap | grep -c /made/file", "1\n"),
            (
                "trees=$(docker info 2> /dev/null | grep -c 'Native Overlay Diff: false'); docker commit cap kept > /dev/null; \
                 found=$(docker run --rm --network none kept ls /made 2> /dev/null | grep -c file); \
                 [ $found = $trees ] || echo $found, not $trees",
                "",
            ),
        ],
    );
    // The same by the API, without the command's own work.
    let at = "curl -sS --unix-socket sock -g http://d/v1.41/containers/cap/archive?path=";
    check(
        &docker,
        &[
            (
                &format!("{at}/made/file | tar -xO; {at}/made/file -I | head -n 1 | tr -d '\\r'"),
                "inside\nHTTP/1.1 200 OK\n",
            ),
            (
                &format!(
                    "echo put > put; tar -c put | {at}/made -X PUT -T - -H 'Content-Type: application/x-tar'; docker exec cap cat /made/put"
                ),
                "put\n",
            ),
        ],
    );
    assert_eq!(shown(docker.lab.path()).len(), 1);
    let of_host = shown(docker.lab.path()).concat();
    assert!(of_host.contains("nosuid,nodev"), "{of_host}");
    // A stopped container has the engine's files alone, and each start begins with them.
    check(
        &docker,
        &[(
            "docker stop -t 0 cap; docker cp cap:/made/file - 2>&1 | grep -c 'Could not find the file'; docker diff cap | grep -c made",
            "cap\n1\n0\n",
        )],
    );
    assert_eq!(shown(docker.lab.path()), Vec::<String>::new());
    check(
        &docker,
        &[
            (
                "docker cp sent cap:/etc/kept; docker start cap; ready; docker exec cap cat /etc/kept; docker cp cap:/made/file - | tar -xO",
                "cap\noutside\ninside\n",
            ),
            (
                "docker restart -t 0 cap; ready; docker cp cap:/etc/kept - | tar -xO; docker rm -f cap; docker volume rm data",
                "cap\noutside\ncap\ndata\n",
            ),
        ],
    );
    assert_eq!(shown(docker.lab.path()), Vec::<String>::new());
}

#[test]
fn docker_with_remapped_users_copies_what_a_capped_container_has() {
    let config = json!({"runtimes": {"brig": {"path": env!("CARGO_BIN_EXE_brig")}, "agent": capped()}});
    let Some(docker) = Docker::make("--userns-remap=remapped", &config.to_string()) else { return };
    let run = format!("docker run -d --name cap --runtime agent --network none bb sh -c '{MAKES}' > id; ready");
    check(
        &docker,
        &[
            (&run, ""),
            ("docker cp cap:/made/file - | tar -xO; docker exec cap stat -c %u /made/file", "inside\n0\n"),
            (
                "echo outside > sent; docker cp sent cap:/made/sent; docker exec cap sh -c 'cat /made/sent; stat -c %u /made/sent'",
                "outside\n0\n",
            ),
            (
                "docker exec cap sh -c 'dd if=/dev/zero of=/big bs=1M count=40 2> /dev/null || echo full; rm -f /big'",
                "full\n",
            ),
            ("docker rm -f cap", "cap\n"),
        ],
    );
}

#[test]
fn docker_forgets_a_capped_container_whose_monitor_was_killed() {
    let Some(mut docker) = Docker::with_runtime("agent", &capped()) else { return };
    let run = format!("docker run -d --name cap --runtime agent --network none bb sh -c '{MAKES}' > id; ready");
    let kill = "kill -9 $(pgrep -f -- \"-id $(cat id)\"); for i in $(seq 100); do docker inspect -f '{{.State.Running}}' cap | grep -q false && break; sleep 0.1; done";
    check(&docker, &[(&run, ""), (kill, ""), ("docker rm -f cap", "cap\n")]);
    assert_eq!(shown(docker.lab.path()), Vec::<String>::new());
    // With the daemon: the next one cleans up.
    check(&docker, &[(&run, "")]);
    docker.kill();
    docker.start_again();
    check(&docker, &[("docker rm -f cap", "cap\n")]);
    crate::support::eventually("the capped root is gone", || shown(docker.lab.path()).is_empty());
}

#[test]
fn podman_exports_what_a_capped_container_has() {
    let Some(podman) = Podman::new("podman") else { return };
    let run = "podman run -d --name c --network none --annotation dev.brig.disk=24M bb sh -c 'mkdir /made; echo inside > /made/file; echo ready; exec /bin/pause' > /dev/null; until_said ready c";
    let done =
        podman.run(&format!("{run}; podman export c | tar -xO made/file; podman cp c:/made/file got; cat got"), "brig");
    assert_eq!(done.out, "inside\ninside\n", "{done:?}");
    assert_eq!(shown(podman.path()).len(), 1);
    let done = podman.run(
        "podman stop -t 1 c; podman start c > /dev/null && until_said ready c; podman rm -f -t 0 c > /dev/null",
        "brig",
    );
    assert_eq!((done.status, done.out.as_str()), (0, "c\n"), "{done:?}");
    assert_eq!(shown(podman.path()), Vec::<String>::new());
}

/// A lab with a capped container that runs `line` and waits.
fn started(line: &str) -> Option<Lab> {
    let mut lab = Lab::new()?;
    lab.annotate_disk().sh(&format!("{line}; echo ready > /ready; sleep 1000")).start();
    crate::support::eventually("the container is ready", || lab.root("/ready").exists());
    Some(lab)
}

impl Lab {
    fn annotate_disk(&mut self) -> &mut Lab {
        self.config["annotations"] = json!({"dev.brig.disk": "16M"});
        self
    }
}

#[test]
fn set_uid_program_of_a_capped_root_gains_nothing_on_the_host() {
    let run = |weakened: bool| {
        let mut lab = Lab::new()?;
        if weakened {
            lab.weaken("nosuid")?;
        }
        finish(Command::new("cp").arg("/usr/bin/id").arg(lab.root("/bin/id-of-host"))).succeeded();
        std::fs::set_permissions(lab.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        lab.annotate_disk().sh("cp /bin/id-of-host /raised; chmod 4755 /raised; echo > /ready; sleep 1000").start();
        crate::support::eventually("the container is ready", || lab.root("/ready").exists());
        let user = ["--reuid", "61234", "--regid", "61234", "--clear-groups"];
        let done = finish(Command::new("setpriv").args(user).arg(lab.root("/raised")).arg("-u"));
        Some(done.out)
    };
    let Some(found) = run(false) else { return };
    assert_eq!(found, "61234\n");
    if let Some(found) = run(true) {
        assert_eq!(found, "0\n", "the control");
    }
}

#[test]
fn containers_of_one_root_have_their_own_capped_views() {
    let Some(first) = started("echo first > /name") else { return };
    let other = format!("{}b", first.id);
    let mut config = first.config.clone();
    config["process"]["args"] =
        json!(["/bin/sh", "-c", "cat /name 2> /dev/null; echo second > /name; echo > /second; sleep 1000"]);
    let bundle = tempfile::tempdir().unwrap();
    config["root"]["path"] = json!(first.root("/"));
    std::fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
    let mut command = first.command(&["run", "--detach", "--bundle", bundle.path().to_str().unwrap(), &other]);
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
    let name = || std::fs::read_to_string(first.root("/name")).unwrap_or_default();
    crate::support::eventually("the second one is ready", || first.root("/second").exists());
    assert_eq!((name().as_str(), shown(first.path()).len()), ("second\n", 2));
    assert_eq!(first.exec("cat /name").out, "first\n");
    first.on(&["delete", "--force"]).succeeded();
    assert_eq!((name().as_str(), shown(first.path()).len()), ("second\n", 1));
    first.brig(&["delete", "--force", &other]).succeeded();
    assert_eq!((name().as_str(), shown(first.path()).len()), ("", 0));
}

#[test]
fn delete_finds_the_capped_root_as_others_have_left_it() {
    let Some(lab) = started("true") else { return };
    // As an engine that unmounts first.
    finish(Command::new("umount").arg("-l").arg(lab.root("/"))).succeeded();
    lab.on(&["delete", "--force"]).succeeded();
    let Some(lab) = started("true") else { return };
    finish(Command::new("mount").args(["-t", "tmpfs", "another"]).arg(lab.root("/"))).succeeded();
    lab.on(&["delete", "--force"]).failed_with("a mount of `another` (tmpfs) covers it");
    finish(Command::new("umount").arg(lab.root("/"))).succeeded();
    lab.on(&["delete", "--force"]).succeeded();
}

#[test]
fn create_that_fails_or_is_killed_leaves_no_capped_root() {
    let Some(mut lab) = Lab::new() else { return };
    lab.annotate_disk().args(&["/bin/sleep", "1000"]);
    lab.config["mounts"]
        .as_array_mut()
        .unwrap()
        .push(json!({"destination": "/v", "type": "bind", "source": "/nope", "options": ["bind"]}));
    lab.create().failed_with("/nope");
    assert_eq!(shown(lab.path()), Vec::<String>::new());
    lab.config["mounts"].as_array_mut().unwrap().pop();
    let mut killed = 0;
    for step in 0..24 {
        let brig = lab.command(&["create", &lab.id]);
        let moment = format!("0.{:03}", step * 4);
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", &moment]).arg(brig.get_program()).args(brig.get_args()).current_dir(lab.path());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        killed += u32::from(!status.success());
        let done: Done = lab.on(&["delete", "--force"]);
        done.succeeded();
        assert_eq!(shown(lab.path()), Vec::<String>::new(), "killed after {moment} s");
    }
    assert!(killed > 0, "no create was killed");
    // Other tests have disks at this moment: only those without an owner are left.
    let free = |path: &Path| finish(Command::new("flock").args(["-n", "-E", "9"]).arg(path).arg("true")).status != 9;
    crate::support::eventually("no directory of a disk is left", || {
        let entries = std::fs::read_dir("/var/lib/brig/live").into_iter().flatten().flatten();
        !entries.map(|entry| entry.path()).any(|path| path.is_dir() && free(&path) && path.exists())
    });
}

#[test]
fn the_loop_device_of_a_running_container_is_not_a_leak() {
    let leaks = || {
        let done = finish(program().args(["doctor", "--leaks", "--store", "/var/lib/brig"]));
        assert_eq!(done.err, "");
        done.out.lines().filter(|line| line.starts_with("loop device")).map(str::to_owned).collect::<Vec<_>>()
    };
    let Some(lab) = started("true") else { return };
    assert_eq!(leaks(), Vec::<String>::new());
    lab.on(&["delete", "--force"]).succeeded();
    assert_eq!(leaks(), Vec::<String>::new());
}

#[test]
fn deletes_at_once_of_containers_with_one_root_leave_no_capped_root() {
    let Some(mut lab) = Lab::new() else { return };
    lab.annotate_disk().args(&["/bin/sleep", "1000"]);
    for round in 0..4 {
        let ids: Vec<_> = (0..6).map(|number| format!("{}-{round}-{number}", lab.id)).collect();
        for id in &ids {
            let mut create = lab.command(&["create", id]);
            assert!(create.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        }
        assert_eq!(shown(lab.path()).len(), ids.len());
        let deletes: Vec<_> = ids.iter().map(|id| lab.command(&["delete", "--force", id]).spawn().unwrap()).collect();
        for mut delete in deletes {
            assert!(delete.wait().unwrap().success());
        }
        assert_eq!(shown(lab.path()), Vec::<String>::new(), "round {round}");
    }
}
