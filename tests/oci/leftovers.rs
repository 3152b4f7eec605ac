//! Containers that fail, started through Docker and through containerd: with wrong programs, limits, mounts, kernel
//! settings, devices, users, directories, filters and hooks. Others are killed during their start. Afterwards none of
//! their monitors (shims), processes, cgroups, mounts and records remains.
//!
//! `BRIG_FAILING_CONTAINERS=1000` starts that many, half of them by each engine; an ordinary run has each case once or
//! twice.

use crate::docker::Docker;
use crate::engines::{Containerd, WITHOUT_KUBERNETES};
use crate::support::{Done, Lab, finish};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How many containers an ordinary run starts by each.
const COUNT: usize = 49;
/// The number of parallel starts.
const THREADS: usize = 3;
/// The time limit for an engine's cleanup, on a busy machine.
const END: Duration = Duration::from_secs(60);

/// Lines for Docker. `run` is `docker run` with the name `$C` and fails, `$N` differs in each.
const BY_DOCKER: [&str; 49] = [
    "run bb nope",
    "run bb /nope",
    "run -d bb /bin/garbage",
    "run bb /bin/lost-interpreter",
    "run bb /etc",
    "run bb /etc/passwd",
    "run bb /etc/passwd/x",
    "run bb true",
    "run -d bb true",
    "run bb sh -c 'exit 3'",
    "run bb sh -c 'kill -9 $$'",
    "run bb sh -c 'sleep 100 & sleep 100 & exit 1'",
    "run --init bb nope",
    "run -t bb nope",
    "run --memory 6m bb sh -c 'tail /dev/zero'",
    "run --pids-limit 1 bb sh -c 'true & wait'",
    "run --cpu-shares 1 bb true",
    "run --cpu-rt-runtime 1000 --cpu-rt-period 100000 bb true",
    "run --blkio-weight-device /dev/loop0:300 bb true",
    "run --ulimit nofile=9999999999 bb true",
    "run -v $PWD/daemon.json:/etc bb true",
    "run -v $PWD/rootfs/etc:/etc/passwd bb true",
    "run -v $PWD/rootfs/etc:/proc bb true",
    "run -v $PWD/daemon.json:/proc/version bb true",
    "run -v $PWD/rootfs/etc:/sys/inside bb true",
    "run --tmpfs /t:size=nope bb true",
    "run --tmpfs /etc/passwd bb true",
    "mkdir v$N; docker create --name $C $OPTIONS -v $PWD/v$N:/v bb true; rmdir v$N; echo > v$N; docker start -a $C; rm v$N",
    "run --sysctl net.nope=1 bb true",
    "run --sysctl net.ipv4.ip_forward=nope bb true",
    "run --network host --sysctl net.ipv4.ip_forward=1 bb true",
    "run --device $PWD/daemon.json bb true",
    "run --device /dev/zero:/etc/passwd/zero bb true",
    "run -u nobodyknows bb true",
    "run -w /etc/passwd bb true",
    "run --read-only -w /not/there bb true",
    "run --security-opt seccomp=$PWD/deny-execve.json bb true",
    "run --hostname $(printf '%070d' 1) bb true",
    "HOOK=prestart run --runtime hooked bb true",
    "HOOK=createContainer run --runtime hooked bb true",
    "run -d bb sleep 100 & sleep 0.$((N % 7)); docker kill $C; docker rm -f $C; wait",
    "run bb sleep 100 & sleep 0.$((N % 7)); kill -9 $!; until docker inspect $C; do sleep 0.1; done; docker rm -f $C; wait",
    "run --runtime killed bb true",
    "run --runtime killed -d bb sleep 100",
    "run --runtime capped bb true",
    "run --runtime capped -d bb sleep 100",
    "run --runtime capped bb nope",
    "run --runtime capped -d bb sleep 100; kill -9 $(pgrep -f -- \"-id $(docker inspect -f '{{.Id}}' $C)\")",
    "run -d --restart on-failure:2 bb nope; docker start $C; docker exec $C true",
];

/// Lines for containerd. `run` is `ctr run` with the options before the image, and `-- PROGRAM` after it. `config KEY
/// VALUE` changes `config.json` of a bundle of this container alone, which `bundle` runs.
const BY_CONTAINERD: [&str; 30] = [
    "run -- nope",
    "run -- /nope",
    "run -- /bin/garbage",
    "run -- /bin/lost-interpreter",
    "run -- /etc",
    "run -- /etc/passwd",
    "run -- true",
    "run -d -- true",
    "run -- sh -c 'kill -9 $$'",
    "run -- sh -c 'sleep 100 & exit 1'",
    "run --memory-limit 100 -- true",
    "run --memory-limit 6000000 -- sh -c 'tail /dev/zero'",
    "run --cpu-shares 1 -- true",
    "run --cpu-quota 5 --cpu-period 5 -- true",
    "run --mount type=bind,src=/nope,dst=/v,options=rbind -- true",
    "run --mount type=bind,src=/etc/passwd,dst=/etc,options=rbind -- true",
    "run --mount type=bind,src=/etc,dst=/proc,options=rbind -- true",
    "run --mount type=nope,src=x,dst=/v,options=rw -- true",
    "run --cwd /etc/passwd -- true",
    "run --runc-binary $PWD/killed -- true",
    "run -d --runc-binary $PWD/killed -- sleep 100",
    "run -d -- sleep 100 & sleep 0.$((N % 7)); ctr task kill -s KILL $C; ctr task rm -f $C; wait",
    "config '.hooks={prestart:[{path:\"/bin/false\"}]}'; bundle",
    "config '.hooks={createRuntime:[{path:\"/bin/sleep\",args:[\"sleep\",\"100\"],timeout:1}]}'; bundle",
    "config '.hooks={createContainer:[{path:\"/nope\"}]}'; bundle",
    "config '.hooks={startContainer:[{path:\"/bin/false\"}]}'; bundle",
    "config '.hooks={poststart:[{path:\"/bin/false\"}],poststop:[{path:\"/bin/false\"}]}'; bundle",
    "config '.linux.sysctl={\"net.nope\":\"1\"}'; bundle",
    "config '.linux.devices=[{path:\"/etc/passwd/x\",type:\"c\",major:1,minor:3}]'; bundle",
    "config '.process.user.uid=4294967295|.process.args=[\"/nope\"]'; bundle",
];

const DOCKER: &str = r#"
OPTIONS="--runtime brig --network none --cgroup-parent /docker-test-of-brig-$LAB"
run() {
    case "$*" in *--network*) OPTIONS="--cgroup-parent /docker-test-of-brig-$LAB" ;; *--runtime*) OPTIONS="${OPTIONS#--runtime brig}" ;; esac
    timeout 60 docker run --name $C -e HOOK=$HOOK $OPTIONS "$@"
}
"#;

const CONTAINERD: &str = r#"
IMAGE=localhost/failing:failing
run() {
    before=; while [ "$1" != -- ]; do before="$before $1"; shift; done; shift
    timeout 60 $RUN --runc-root $PWD/states $before $IMAGE $C "$@"
}
config() { jq "$1" config.json > config-$C.json; }
bundle() { timeout 60 $RUN --runc-root $PWD/states --config config-$C.json $C; }
"#;

/// The remains of an engine's containers, a line each.
fn remains(lab: &Lab, records: &[&str], group: &str, mounts_before: &BTreeSet<PathBuf>) -> Vec<String> {
    let place = lab.path().display().to_string();
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read(process.path().join(name)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let program = line.split(' ').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        let is_monitor = program.starts_with("containerd-shim") || ["brig", "runc"].contains(&program);
        if is_monitor && line.contains(&place) || String::from_utf8_lossy(&read("cgroup")).contains(group) {
            found.push(format!("process {}: {line}", process.path().display()));
        }
    }
    let groups =
        finish(Command::new("find").args(["/sys/fs/cgroup", "-path", &format!("*{group}*"), "-type", "d"])).out;
    found.extend(groups.lines().filter(|path| !path.ends_with(group)).map(|path| format!("group {path}")));
    // Docker keeps one of the host's network.
    let mounts = mounts(lab.path()).into_iter().filter(|path| !path.ends_with("exec/netns/default"));
    found.extend(mounts.filter(|path| !mounts_before.contains(path)).map(|path| format!("mount {}", path.display())));
    for directory in records {
        let entries = std::fs::read_dir(lab.path().join(directory));
        found.extend(entries.into_iter().flatten().flatten().map(|entry| format!("record {}", entry.path().display())));
    }
    found
}

fn mounts(below: &Path) -> BTreeSet<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    places.filter(|place| place.starts_with(below)).collect()
}

/// Waits until nothing remains; otherwise panics with the remains.
fn assert_nothing_remains(look: impl Fn() -> Vec<String>) {
    let end = Instant::now() + END;
    let mut found = look();
    while !found.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        found = look();
    }
    assert!(found.is_empty(), "{} are left:\n{}", found.len(), found.join("\n"));
}

/// Programs of the image and runtimes that several cases have.
fn prepare(lab: &Lab) {
    let write = |name: &str, text: &str| {
        std::fs::write(lab.path().join(name), text).unwrap();
        finish(Command::new("chmod").args(["755", name]).current_dir(lab.path())).succeeded();
    };
    write("rootfs/bin/garbage", "\x7fELF and nothing else\n");
    write("rootfs/bin/lost-interpreter", "#!/not/there\n");
    write(
        "deny-execve.json",
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["execve"],"action":"SCMP_ACT_ERRNO"}]}"#,
    );
    let brig = env!("CARGO_BIN_EXE_brig");
    // Killed during `create` or `start`: the engine then calls delete.
    let part = "case \" $* \" in *' create '* | *' start '*)";
    let moment = "0.0$(($(date +%N | cut -c 5-7 | sed s/^0*//) % 40))";
    write(
        "killed",
        &format!("#!/bin/sh\n{part} exec timeout -s KILL {moment} {brig} \"$@\" ;; esac\nexec {brig} \"$@\"\n"),
    );
    // The same with a capped root. A killed `delete` is repeated: containerd does not do so.
    let kill = format!("timeout -s KILL {moment} {brig} \"$@\"");
    write(
        "capped",
        &format!(
            "#!/bin/sh\nset -- --annotation dev.brig.disk=16M \"$@\"\n{part} exec {kill} ;; \
             *' delete '*) {kill} && exit; set -- \"$@\" --force ;; esac\nexec {brig} \"$@\"\n"
        ),
    );
    // With a hook that fails, at the moment in the container's variable HOOK.
    let change = "jq '(.process.env[] | select(startswith(\"HOOK=\")) | .[5:]) as $hook | .hooks[$hook] = [{path: \"/bin/false\"}]'";
    let find = "for word; do [ \"$last\" = --bundle ] && cd \"$word\"; last=$word; done";
    write(
        "hooked",
        &format!(
            "#!/bin/sh\n{part} ({find}; {change} config.json > config.new && mv config.new config.json) ;; esac\nexec {brig} \"$@\"\n"
        ),
    );
}

/// Starts `count` containers, some in parallel; returns how many failed.
fn start(cases: &[&str], count: usize, run: impl Fn(usize, &str) -> Done + Sync) -> usize {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let hung = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let case = cases[index % cases.len()];
                    let done = run(index, case);
                    failed.fetch_add(usize::from(done.status != 0), Ordering::Relaxed);
                    if done.status == 124 {
                        hung.lock().unwrap().push(case); // timeout(1)
                    }
                    if std::env::var("BRIG_FAILING_VERBOSE").is_ok() {
                        println!("{} {case}\n    {}{}", done.status, done.out.trim_end(), done.err.trim_end());
                    }
                }
            });
        }
    });
    let hung = hung.into_inner().unwrap();
    assert!(hung.is_empty(), "these did not end: {hung:?}");
    failed.into_inner()
}

fn count() -> usize {
    std::env::var("BRIG_FAILING_CONTAINERS").map_or(COUNT, |text| text.parse::<usize>().unwrap().div_ceil(2))
}

#[test]
fn failed_containers_of_docker_leave_nothing() {
    let Some(lab) = Lab::new() else { return };
    prepare(&lab);
    let runtime = |name: &str| format!("--add-runtime {name}={}", lab.path().join(name).display());
    let Some(docker) = Docker::with(&["killed", "capped", "hooked"].map(runtime).join(" ")) else { return };
    prepare(&docker.lab);
    docker.run("tar -C rootfs -c . | docker import - bb", "").succeeded();
    let group = format!("docker-test-of-brig-{}", docker.lab.id);
    let before = mounts(docker.lab.path());
    let failed = start(&BY_DOCKER, count(), |index, case| {
        let id = &docker.lab.id;
        let line = format!(
            "LAB={id}; N={index}; C=f{index}\n{DOCKER}({case})\nstatus=$?; docker rm -fv $C > /dev/null 2>&1; exit $status"
        );
        docker.run(&line, "brig")
    });
    println!("{} containers of Docker, {failed} of them failed", count());
    assert_eq!(docker.run("docker ps -aq", "").out, "");
    let task = "exec/containerd/daemon/io.containerd.runtime.v2.task/moby";
    let records = ["brig", "killed", "capped", "hooked"].map(|name| format!("exec/runtime-{name}/moby"));
    let records: Vec<&str> = records.iter().map(String::as_str).chain([task]).collect();
    assert_nothing_remains(|| remains(&docker.lab, &records, &group, &before));
}

#[test]
fn failed_containers_of_containerd_leave_nothing() {
    let Some(containerd) = Containerd::start(WITHOUT_KUBERNETES) else { return };
    let lab = &containerd.lab;
    prepare(lab);
    let image = "umoci init --layout own && umoci new --image own:failing && umoci insert --image own:failing rootfs / && \
                 umoci config --image own:failing --config.env PATH=/bin && tar -C own -cf own.tar . && \
                 ctr image import --base-name localhost/failing --no-unpack own.tar";
    containerd.run(image).succeeded();
    let mut config = lab.config.clone();
    config["root"]["path"] = lab.root("/").display().to_string().into();
    config["process"]["args"] = serde_json::json!(["/bin/true"]);
    std::fs::write(lab.path().join("config.json"), config.to_string()).unwrap();
    let before = mounts(lab.path());
    let failed = start(&BY_CONTAINERD, count(), |index, case| {
        let line = format!(
            "{CONTAINERD}N={index}; C={}-f$N\n({case})\nstatus=$?; (ctr task rm -f $C; ctr container rm $C; rm -f config-$C.json) > /dev/null 2>&1; exit $status",
            lab.id
        );
        containerd.run(&line)
    });
    println!("{} containers of containerd, {failed} of them failed", count());
    assert_eq!(containerd.run("ctr task ls -q; ctr container ls -q").out, "");
    let records = ["states/k8s.io", "state/io.containerd.runtime.v2.task/k8s.io"];
    assert_nothing_remains(|| remains(lab, &records, &format!("{}-f", lab.id), &before));
}
