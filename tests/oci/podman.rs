//! Podman and Buildah with brig beside runc: the same commands, and the same answers. Store, configuration and cgroups
//! are private to the test.

use crate::support::{Done, Lab, finish, skip};
use std::path::Path;
use std::process::{Command, Stdio};

/// The start of each line.
const CALLS: &str = r#"
podman() { $(typed) "$@"; }
buildah() { command buildah --root $D/store --runroot $D/run --storage-driver vfs "$@"; }
typed() { echo command podman --root $D/store --runroot $D/run --tmpdir $D/tmp --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime $RT; }
program() { if [ $RT = brig ]; then echo $BRIG; else echo $RT; fi; }
until_is() { for i in $(seq 300); do [ "$(podman inspect -f "{{$2}}" $3)" = "$1" ] && break; sleep 0.1; done; podman inspect -f "{{$2}}" $3; }
until_said() { for i in $(seq 300); do podman logs $2 2> /dev/null | grep -q "$1" && return; sleep 0.1; done; echo "not said: $1"; }
"#;

/// A store with the image `bb`, whose command is a process that ends at SIGTERM.
pub(crate) struct Podman {
    lab: Lab,
}

impl Podman {
    pub(crate) fn new(program: &str) -> Option<Podman> {
        let lab = Lab::new()?;
        for name in ["podman", program] {
            if !Path::new("/usr/bin").join(name).exists() {
                skip(&format!("needs {name}"));
                return None;
            }
        }
        let conf = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\ninfra_image = \"bb\"\ninfra_command = \"pause\"\nruntime_supports_nocgroup = [\"brig\"]\n\
             runtime_supports_json = [\"brig\", \"runc\"]\n[engine.runtimes]\nbrig = [\"{}\"]\n",
            env!("CARGO_BIN_EXE_brig")
        );
        std::fs::write(lab.path().join("containers.conf"), conf).unwrap();
        let pause = "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 0.1; done\n";
        std::fs::write(lab.root("/bin/pause"), pause).unwrap();
        for (name, text) in FILES {
            std::fs::write(lab.path().join(name), text).unwrap();
        }
        let made = "mkdir tmpdir rootfs/run; chmod 755 rootfs/bin/pause; chmod 1777 rootfs/tmp; tar -C rootfs -c . | podman import -q -c 'ENV PATH=/bin' -c 'CMD [\"/bin/pause\"]' - bb";
        let podman = Podman { lab };
        podman.run(made, "brig").succeeded();
        Some(podman)
    }

    /// Runs a line of shell in which `podman` and `buildah` use this store, `$RT` is the runtime, `$C` a name and `$G`
    /// a parent of groups.
    pub(crate) fn run(&self, line: &str, runtime: &str) -> Done {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("{CALLS}{line}")]).env("BRIG", env!("CARGO_BIN_EXE_brig"));
        command.env("RT", runtime).env("C", format!("c-{runtime}")).env("G", format!("/podman-{}", self.lab.id));
        let at = |name: &str| self.lab.path().join(name);
        command.env("D", self.lab.path()).env("TMPDIR", at("tmpdir")).env("CONTAINERS_CONF", at("containers.conf"));
        command.env("XDG_CONFIG_HOME", self.lab.path()).env_remove("XDG_RUNTIME_DIR");
        finish(command.current_dir(self.lab.path()).stdin(Stdio::null()))
    }

    /// The flags for annotations, each `KEY=VALUE`, as words of shell.
    pub(crate) fn annotations(&self, all: &[String]) -> String {
        // Podman before 5 reads the flag as a line of comma-separated values.
        let version = self.run("podman version --format '{{.Client.Version}}'", "brig").out;
        let is_csv = version.split('.').next().unwrap().parse::<u32>().unwrap() < 5;
        let quoted = |each: &String| if is_csv { format!("\"{}\"", each.replace('"', "\"\"")) } else { each.clone() };
        all.iter().map(|each| format!(" --annotation '{}'", quoted(each))).collect()
    }

    /// A path of its directory.
    pub(crate) fn path(&self) -> &Path {
        self.lab.path()
    }

    /// Runs each line by brig and by runc, and searches its output for words; all differences fail together.
    fn compare(&self, lines: &[(&str, &str)]) {
        let mut wrong = Vec::new();
        for (line, words) in lines {
            let [ours, theirs] = ["brig", "runc"].map(|runtime| {
                let done = self.run(line, runtime);
                format!("{}\n{}\n{}", done.status, normal(&done.out), normal(&done.err))
            });
            if ours != theirs || !ours.contains(words) {
                wrong.push(format!("{line}\n--- brig, with `{words}`\n{ours}\n--- runc\n{theirs}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.run("podman pod rm -f -t 0 -a; podman rm -f -t 0 -a; podman rmi -af; buildah rm -a", "brig");
        crate::engines::unmount_all(self.lab.path());
        remove_groups(&format!("podman-{}", self.lab.id));
    }
}

/// Removes the groups below a parent. Podman leaves its monitor's, and those of pods in hierarchies without
/// controllers.
fn remove_groups(parent: &str) {
    let path = format!("/sys/fs/cgroup/*/{parent}*");
    let find = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &path, "-exec", "rmdir", "{}", ";"];
    let _ = finish(Command::new("find").args(find));
}

/// Replaces the differences between runs and between runtimes.
pub(crate) fn normal(text: &str) -> String {
    let text =
        text.replace(env!("CARGO_BIN_EXE_brig"), "RT").replace("/usr/bin/runc", "RT").replace("/usr/sbin/runc", "RT");
    // Old releases of Buildah request impossible ambient capabilities: runc 1.1 ignores them, later ones warn about
    // each.
    let lines = text.lines().filter(|line| !line.contains("can't raise ambient capability"));
    let lines = lines.map(|line| match line.split_once("time=\"") {
        Some((before, after)) => format!("{before}{}", after.split_once('"').map_or("", |(_, rest)| rest)),
        None => line.to_owned(),
    });
    crate::docker::normal(&lines.collect::<Vec<_>>().join("\n"))
}

const RUN: &str = "podman run --rm --network none --cgroup-parent $G";

/// Arguments of `podman run`, and words in its output.
const RUNS: [(&str, &str); 13] = [
    ("bb sh -c 'echo hi; exit 3'", "3\nhi"),
    ("bb /nope", "127\n"),
    (
        "--init --init-path /usr/bin/tini-static bb sh -c 'readlink /proc/1/exe; tr \"\\0\" \" \" < /proc/1/cmdline'",
        "init -- sh",
    ),
    (
        "--privileged bb sh -c 'grep -E \"CapEff|Seccomp:\" /proc/self/status; mount -t tmpfs x /tmp && echo mounted'",
        "mounted",
    ),
    (
        "--pid host --ipc host --uts host --cgroupns host bb sh -c 'for name in ipc uts cgroup pid; do readlink /proc/self/ns/$name; done'",
        "pid:[",
    ),
    (
        "-v $PWD/rootfs/etc:/v:ro --tmpfs /t:size=1m --device /dev/zero:/dev/z:r --shm-size 1m bb sh -c 'ls /v; touch /v/x; mount | grep -E \" /(t|dev/shm) \"; head -c 1 /dev/z | wc -c'",
        "Read-only",
    ),
    ("--uidmap 0:700000:65536 -v $C:/v:U bb sh -c 'stat -c %u /v; touch /v/x; stat -c %u /v/x'", "0\n0\n0"),
    ("--security-opt unmask=ALL --security-opt mask=/etc bb sh -c 'mount | grep -c proc; ls /etc'", "0\n1"),
    ("--rootfs $PWD/rootfs sh -c 'echo rootfs'", "rootfs"),
    (
        "--pids-limit -1 --ulimit nofile=100:200 --ulimit nproc=1000:1000 --cap-drop all --cap-add net_admin --security-opt no-new-privileges bb sh -c 'ulimit -n; grep -E \"CapEff|NoNew\" /proc/self/status'",
        "NoNewPrivs:\t1",
    ),
    (
        "--sysctl net.ipv4.ip_forward=1 --hostname hh --add-host a:1.2.3.4 --group-add 55 --umask 077 --tz UTC bb sh -c 'cat /proc/sys/net/ipv4/ip_forward; hostname; grep 1.2.3.4 /etc/hosts; id -G; umask'",
        "0 55\n0077",
    ),
    ("--preserve-fds 1 bb sh -c 'cat <&3' 3< containers.conf", "infra_image"),
    ("--no-hosts --read-only bb sh -c 'touch /tmp/x /run/x && touch /x'", "/x: Read-only"),
];

/// A process that prints that it is up, and ends at SIGTERM with 7.
const LOOP: &str = "bb sh -c 'trap \"exit 7\" TERM; echo up; while :; do sleep 0.1; done' > /dev/null";

#[test]
fn podman_gets_from_brig_what_it_gets_from_runc() {
    let Some(podman) = Podman::new("tini-static") else { return };
    let runs: Vec<_> = RUNS.iter().map(|(arguments, words)| (format!("{RUN} {arguments}"), *words)).collect();
    podman.compare(&runs.iter().map(|(line, words)| (line.as_str(), *words)).collect::<Vec<_>>());
    let detached = "podman run -d --network none --cgroup-parent $G --name $C";
    podman.compare(&[
        // A container that is made, entered, measured, copied from and ended.
        (&format!("{detached} --memory 64m --pids-limit 44 {LOOP}; until_said up $C; podman stats --no-stream --format '{{{{.Name}}}} {{{{.MemLimit}}}}' $C"), "67108864"),
        ("podman exec -u 1000 -w /tmp -e A=b $C sh -c 'id -u; pwd; echo $A; exit 5'", "5\n1000\n/tmp\nb"),
        ("podman exec --privileged $C grep Cap /proc/self/status; podman exec $C grep Cap /proc/self/status", "CapBnd"),
        ("podman exec -i $C cat < containers.conf; podman exec $C nope", "127\n[containers]"),
        ("podman exec -d $C touch /tmp/d; for i in $(seq 100); do podman exec $C test -e /tmp/d && break; sleep 0.1; done; podman diff $C | grep /tmp", "A /tmp/d"),
        ("podman update --memory 80m $C; podman exec $C cat /sys/fs/cgroup/memory/memory.limit_in_bytes", "83886080"),
        ("podman top $C comm; podman pause $C; podman inspect -f '{{.State.Status}}' $C; podman unpause $C", "paused"),
        ("podman cp containers.conf $C:/tmp/f; podman cp $C:/tmp/f - | tar -xO | cmp - containers.conf && podman commit -q $C $C-made | wc -c", "65"),
        ("podman attach --no-stdin $C > attached & for i in $(seq 300); do podman exec $C sh -c 'echo word > /proc/1/fd/1'; grep -q word attached && break; sleep 0.1; done; podman stop -t 30 $C; wait; podman inspect -f '{{.State.Status}} {{.State.ExitCode}}' $C; podman rm $C", "exited 7"),
        ("podman create --name $C --network none --cgroup-parent $G bb sh -c 'echo first; exit 3' > /dev/null; podman init $C; podman inspect -f '{{.State.Status}}' $C; podman start -a $C; echo $?; podman start -a $C; echo $?; podman rm $C", "initialized\nfirst\n3\nfirst\n3"),
        (&format!("{detached} --health-cmd 'test -e /tmp/ok' --health-interval disable --health-retries 1 bb > /dev/null; podman healthcheck run $C; echo $?; podman exec $C touch /tmp/ok; podman healthcheck run $C; echo $?; podman inspect -f '{{{{.State.Health.Status}}}}' $C; podman rm -f -t 30 $C"), "1\n0\nhealthy"),
        ("podman run --name $C --network none --cgroup-parent $G --memory 20m bb tail /dev/zero; echo $?; podman inspect -f '{{.State.ExitCode}}' $C; podman rm $C; podman ps -aq", "137\n137"),
    ]);
    let terminal = "podman run -it --rm --network none --cgroup-parent $G bb sh -c 'tty; sleep 1; exit 5'";
    podman.compare(&[(
        &format!("script -qec \"$(typed) {}\" /dev/null", terminal.trim_start_matches("podman ")),
        "/dev/pts/0",
    )]);
}

#[test]
fn pods_of_podman_share_what_they_share_with_runc() {
    let Some(podman) = Podman::new("podman") else { return };
    // The default parent of cgroups is Podman's, one for the machine. No other test uses it.
    let parent_is_new = !Path::new("/sys/fs/cgroup/pids/libpod_parent").exists();
    podman.compare(&[
        (&format!("podman pod create --name $C-p --cgroup-parent $G --network none --share ipc,net,uts --hostname podhost > /dev/null; podman run -d --pod $C-p --name $C-a {LOOP}; until_said up $C-a; podman pod inspect -f '{{{{.State}}}} {{{{len .Containers}}}}' $C-p"), "Running 2"),
        ("podman exec $C-a touch /dev/shm/x; podman run --rm --pod $C-p bb sh -c 'hostname; ls /dev/shm; test $$ -lt 9 && echo own'", "podhost\nx\nown"),
        ("A=$(podman inspect -f '{{.State.Pid}}' $C-a); I=$(podman inspect -f '{{.State.Pid}}' $(podman pod inspect -f '{{.InfraContainerID}}' $C-p)); for name in ipc net uts pid mnt; do [ $(readlink /proc/$A/ns/$name) = $(readlink /proc/$I/ns/$name) ] && echo $name; done", "ipc\nnet\nuts"),
        ("podman pod pause $C-p; podman pod inspect -f '{{.State}}' $C-p; podman pod unpause $C-p; podman pod top $C-p comm | sort -u | head -n 1; podman pod stats --no-stream --format '{{.CID}}' $C-p | wc -l", "Paused"),
        ("podman pod kill -s TERM $C-p; until_is exited .State.Status $C-a; podman inspect -f '{{.State.ExitCode}}' $C-a", "exited\n7"),
        ("podman pod start $C-p; podman wait --condition running $C-a; podman pod restart $C-p; podman inspect -f '{{.State.Status}}' $C-a; podman pod stop -t 30 $C-p; until_is exited .State.Status $C-a; podman pod rm -f $C-p", "running"),
        ("podman pod create --name $C-p --cgroup-parent $G --network none --share pid,ipc > /dev/null; podman run --rm --pod $C-p bb sh -c 'grep -c pause /proc/1/cmdline; test $$ -gt 1 && echo joined; kill -0 1 && echo signals'; podman pod rm -f -t 30 $C-p", "1\njoined\nsignals"),
        ("sed s/NAME/$C/ pod.yaml > k.yaml; podman kube play --network none k.yaml 2>&1 | grep Error; until_said end $C-one; podman logs $C-one; podman healthcheck run $C-one; echo $?; podman pod inspect -f '{{.State}}' $C; podman exec $C-two hostname; podman kube down k.yaml 2> /dev/null; podman pod ps -q; podman ps -aq", "kubehost\ninit\nconfigured\n1000\n67108864"),
    ]);
    podman.run("podman run --rm --network none --cgroups=disabled bb echo no-group", "brig").succeeded();
    if parent_is_new {
        remove_groups("libpod_parent");
    }
}

#[test]
fn podman_and_buildah_build_with_brig_what_they_build_with_runc() {
    let Some(podman) = Podman::new("buildah") else { return };
    let build = "--network none --build-arg WORD=word --secret id=s,src=secret -f Containerfile rootfs/etc";
    let run = "buildah run --runtime $(program) --isolation oci --network none";
    podman.compare(&[
        (&format!("podman build --runtime $RT --no-cache -t $C-made {build} | grep -v -e '-->'; {RUN} $C-made cat /made /user"), "word b\n0\nroot"),
        (&format!("buildah build --runtime $(program) --isolation oci --no-cache -q --memory 64m --ulimit nproc=1000 -t $C-made {build} | tail -n 1 | wc -c"), "65"),
        ("printf 'FROM bb\nRUN exit 5\n' | podman build --runtime $RT --network none -; echo $?; printf 'FROM bb\nRUN [\"/nope\"]\n' | podman build --runtime $RT --network none -", "stat /nope: no such file"),
        (&format!("buildah from --name $C bb; {run} $C sh -c 'id -u; tr -s \" \" < /proc/self/uid_map; echo hi > /made; exit 4'"), "4\n"),
        (&format!("{run} --user 1000 --workingdir /tmp --env A=b --cap-drop all --volume $PWD/rootfs/etc:/v:ro $C sh -c 'id -u; pwd; echo $A; cat /made; grep CapEff /proc/self/status; touch /v/x'"), "1000\n/tmp\nb\nhi"),
        (&format!("{run} $C nope; echo in | {run} $C cat"), "\nin\n"),
        (&format!("buildah commit -q $C $C-made | wc -c; buildah rm $C > /dev/null; {RUN} $C-made cat /made"), "hi"),
        (&format!("buildah from --name $C --userns-uid-map 0:700000:65536 --userns-gid-map 0:700000:65536 bb; {run} $C sh -c 'id -u; tr -s \" \" < /proc/self/uid_map; touch /tmp/made; stat -c %u /tmp/made'; buildah rm $C > /dev/null"), " 0 700000 65536\n0"),
    ]);
}

const FILES: [(&str, &str); 3] = [
    ("secret", "hidden\n"),
    (
        "Containerfile",
        "FROM bb AS first
ARG WORD=none
ENV A=b
RUN echo $WORD $A > /made; id -u >> /made
RUN --mount=type=tmpfs,target=/t --mount=type=bind,source=.,target=/ctx touch /t/x && cat /ctx/passwd >> /made
RUN --mount=type=cache,target=/cache echo c > /cache/c
RUN --mount=type=secret,id=s cat /run/secrets/s >> /made
WORKDIR /work
USER 1000
RUN id -u > /tmp/user; pwd >> /tmp/user; grep -E 'CapEff|Seccomp:|NoNew' /proc/self/status >> /tmp/user
FROM bb
COPY --from=first /made /tmp/user /
RUN [\"/bin/sh\", \"-c\", \"cat /made /user; ls /\"]
",
    ),
    (
        "pod.yaml",
        r#"apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {WORD: configured}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  hostname: kubehost
  restartPolicy: Never
  initContainers:
  - {name: first, image: localhost/bb:latest, imagePullPolicy: Never, command: [sh, -c, "echo init > /shared/init"], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - name: one
    image: localhost/bb:latest
    imagePullPolicy: Never
    command: [sh, -c, "trap 'exit 7' TERM; hostname; cat /shared/init; echo $WORD; id -u; cat /sys/fs/cgroup/memory/memory.limit_in_bytes; grep NoNew /proc/self/status; touch /x; echo end; while :; do sleep 0.1; done"]
    envFrom: [{configMapRef: {name: words}}]
    resources: {limits: {memory: 64Mi, cpu: 500m}}
    securityContext: {runAsUser: 1000, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: shared, mountPath: /shared, readOnly: true}]
    livenessProbe: {exec: {command: [test, -e, /shared/init]}}
  - {name: two, image: localhost/bb:latest, imagePullPolicy: Never, command: [pause]}
  volumes:
  - {name: shared, emptyDir: {}}
"#,
    ),
];
