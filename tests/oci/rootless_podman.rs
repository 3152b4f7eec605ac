//! Podman of an ordinary user with brig beside runc. Podman calls the runtime in a user namespace that does not own the
//! namespaces around it.

use crate::podman::normal;
use crate::rootless::Rootless;
use crate::support::{Done, finish, skip};
use std::path::Path;
use std::process::Stdio;

/// The start of each line.
const CALLS: &str = r#"
typed() { echo command podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime $RT; }
podman() { $(typed) "$@"; }
until_said() { for i in $(seq 300); do podman logs $2 2> /dev/null | grep -q "$1" && return; sleep 0.1; done; echo "not said: $1"; }
"#;

/// A store of the user with the image `bb`, whose command is a process that ends at SIGTERM.
struct Podman {
    user: Rootless,
}

impl Podman {
    fn new() -> Option<Podman> {
        let user = Rootless::new(true)?;
        for path in ["/usr/bin/podman", "/usr/bin/slirp4netns", "/usr/bin/tini-static", "/dev/net/tun"] {
            if !Path::new(path).exists() {
                skip(&format!("needs {path}"));
                return None;
            }
        }
        let lab = &user.lab;
        let conf = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n[engine]\ninfra_image = \"bb\"\n\
             infra_command = \"pause\"\nruntime_supports_nocgroup = [\"brig\"]\nruntime_supports_json = [\"brig\", \"runc\"]\n\
             [engine.runtimes]\nbrig = [\"{}/brig\"]\n",
            lab.path().display()
        );
        std::fs::write(lab.path().join("containers.conf"), conf).unwrap();
        let pause = "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 0.1; done\n";
        std::fs::write(lab.root("/bin/pause"), pause).unwrap();
        // Podman adds up the ranges of a number and of its name.
        for name in ["subuid", "subgid"] {
            let file = lab.path().join(name);
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(file, format!("{}\n", text.lines().next().unwrap())).unwrap();
        }
        let podman = Podman { user };
        let made = "mkdir -m 700 home run; chmod 755 rootfs/bin/pause; chmod 1777 rootfs/tmp; \
                    tar --owner=0 --group=0 -C rootfs -c . | podman import -q -c 'ENV PATH=/bin' -c 'CMD [\"/bin/pause\"]' - bb";
        podman.run(made, "brig").succeeded();
        Some(podman)
    }

    /// Runs a line of shell in which `podman` is the user's, `$RT` the runtime and `$C` a name.
    fn run(&self, line: &str, runtime: &str) -> Done {
        // If only root may open the device of slirp4netns, the user gets one with the same number.
        let device = "chown --reference=. containers.conf rootfs/bin/pause; [ -e tun ] || mknod tun c 10 200; chmod 666 tun; mount --bind tun /dev/net/tun";
        let mut command = self.user.program(device, "/bin/sh -c");
        let at = |name: &str| self.user.lab.path().join(name);
        command.arg(format!("{CALLS}{line}")).env("RT", runtime).env("C", format!("c-{runtime}"));
        command.env("HOME", at("home")).env("XDG_RUNTIME_DIR", at("run")).env("CONTAINERS_CONF", at("containers.conf"));
        command.env_remove("XDG_CONFIG_HOME").env_remove("TMPDIR");
        finish(command.current_dir(self.user.lab.path()).stdin(Stdio::null()))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // The last one is the process that keeps the user's namespaces.
        self.run("podman pod rm -f -t 0 -a; podman rm -f -t 0 -a; kill $(cat run/libpod/tmp/pause.pid)", "brig");
    }
}

const RUN: &str = "podman run --rm --network none";

#[test]
fn an_ordinary_users_podman_gets_from_brig_what_it_gets_from_runc() {
    let Some(podman) = Podman::new() else { return };
    let run = |line: &str| format!("{RUN} {line}");
    let lines = [
        (run("bb sh -c 'id -u; cat /proc/self/setgroups; grep -E \"CapEff|Seccomp:\" /proc/self/status; exit 3'"), "3\n0\nallow"),
        (run("--user 1000 --read-only --tmpfs /t bb sh -c 'id -u; touch /t/x && echo t; touch /x'"), "1000\nt"),
        (run("--userns keep-id bb sh -c 'id -u; wc -l < /proc/self/uid_map; touch /tmp/x && stat -c %u /tmp/x'"), "61237\n3\n61237"),
        (run("--privileged bb sh -c 'grep -E \"CapEff|Seccomp:\" /proc/self/status; mount -t tmpfs x /tmp && echo mounted'"), "mounted"),
        (run("-v $PWD/home:/v --device /dev/null:/dev/n bb sh -c 'touch /v/x; stat -c %u /v/x; echo x > /dev/n && echo written'; stat -c %u home/x"), "0\nwritten\n61237"),
        (run("--init --init-path /usr/bin/tini-static bb sh -c 'tr \"\\0\" \" \" < /proc/1/cmdline'"), "init -- sh"),
        ("printf 'FROM bb\\nRUN id -u > /made; touch /own; chown 5:5 /own; stat -c %%u /own >> /made\\n' | podman build --isolation oci --network none --no-cache -q -t m-$RT - | wc -c; podman run --rm --network none m-$RT cat /made".to_owned(), "65\n0\n5"),
        // A container that others join: the user's namespace owns its namespaces, and not those around it.
        ("podman run -d --network none --name $C bb sh -c 'trap \"exit 9\" TERM; echo up; while :; do sleep 0.1; done' > /dev/null; until_said up $C; podman exec -u 1000 $C sh -c 'id -u; exit 5'".to_owned(), "5\n1000"),
        ("podman run --rm --network container:$C bb sh -c 'ls /sys/class/net; test $$ -lt 9 && echo own'".to_owned(), "lo\nown"),
        ("podman run --rm --network container:$C --pid container:$C bb sh -c 'grep -c trap /proc/1/cmdline; test $$ -gt 1 && echo joined'".to_owned(), "1\njoined"),
        ("podman run --rm --network container:$C --uidmap 0:1:500 --gidmap 0:1:500 bb sh -c 'id -u; ip -o link | cut -d: -f2'".to_owned(), "0\n lo"),
        ("podman stop -t 30 $C; podman inspect -f '{{.State.ExitCode}}' $C; podman rm $C".to_owned(), "9"),
        ("podman pod create --name $C --network none --share ipc,net,uts,pid --hostname podhost > /dev/null; podman run -d --pod $C --name $C-a bb > /dev/null; podman run --rm --pod $C bb sh -c 'hostname; grep -c pause /proc/1/cmdline; echo x > /dev/shm/x'; podman exec $C-a ls /dev/shm".to_owned(), "podhost\n1\nx"),
        ("podman pod rm -f -t 30 $C | wc -c; podman pod create --name $C --network none --share ipc,net,uts,pid --userns auto:size=1000 > /dev/null; podman run --rm --pod $C bb sh -c 'wc -l < /proc/self/uid_map; grep -c pause /proc/1/cmdline'; podman pod rm -f -t 30 $C 2> /dev/null | wc -c".to_owned(), "65\n1\n1\n65"),
        // Podman makes the network's namespace, and the runtime joins it.
        ("podman run -d --network slirp4netns --name $C bb sh -c 'echo hello > /tmp/index.html; echo up; exec httpd -f -p 8000 -h /tmp' > /dev/null; until_said up $C; podman run --rm --network container:$C bb sh -c 'for i in $(seq 100); do wget -q -O - http://127.0.0.1:8000/ && break; sleep 0.1; done; ip route | head -n 1'; podman rm -f -t 0 $C".to_owned(), "hello\ndefault via"),
        ("podman ps -aq".to_owned(), "0\n"),
    ];
    let mut wrong = Vec::new();
    for (line, words) in &lines {
        let [ours, theirs] = ["brig", "runc"].map(|runtime| {
            let done = podman.run(line, runtime);
            // Podman warns about the machine, and runc about cgroups that it did not make.
            let groups = "due to lack of cgroup (Hint: enable cgroup v2 delegation)";
            let passed = ["is not a shared mount", "cannot toggle freezer", "lstat : no such file", groups];
            let err = done.err.lines().filter(|line| !passed.iter().any(|words| line.contains(words)));
            let err: Vec<_> = err.collect();
            format!("{}\n{}\n{}", done.status, normal(&done.out), normal(&err.join("\n")))
        });
        if ours != theirs || !ours.contains(words) {
            wrong.push(format!("{line}\n--- brig, with `{words}`\n{ours}\n--- runc\n{theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn egress_rules_close_the_network_of_slirp4netns() {
    let Some(podman) = Podman::new() else { return };
    let port = crate::protections::server();
    let get = |at: &str| format!("timeout 3 wget -q -O - http://{at}:{port}/ 2> /dev/null || echo refused");
    let run = |annotations: &str| {
        let line = format!("{}; echo; {}", get("127.0.0.1"), get("10.0.2.2"));
        let network = "--network slirp4netns:allow_host_loopback=true";
        let done = podman.run(&format!("podman run --rm {network} {annotations} bb sh -c '{line}'"), "brig");
        (done.out.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), done.err)
    };
    let (out, err) = run(&format!("--annotation dev.brig.egress.allow=127.0.0.1:{port}"));
    assert_eq!(out, ["served", "refused"], "{err}");
    let (out, err) = run("");
    assert_eq!(out, ["refused", "served"], "without the annotation: {err}");
    // The view of a capped root is at the path that `export` reads, in Podman's mount namespace.
    let line = "podman run -d --name capped --network none --annotation dev.brig.disk=16M bb sh -c 'echo inside > /made; echo up; exec sleep 1000' \
                > /dev/null; until_said up capped; podman export capped | tar -xO made; podman cp capped:/made - | tar -xO; \
                podman rm -f -t 0 capped > /dev/null; podman unshare grep -c brig-root: /proc/self/mountinfo";
    let done = podman.run(line, "brig");
    assert_eq!(done.out, "inside\ninside\n0\n", "{done:?}");
}
