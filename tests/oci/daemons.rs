//! Docker's daemon beyond one command: killed while containers run, with remapped users, and inside a container.

use crate::docker::{Docker, WAITS, normal};

/// A process that prints that it is up, then a number again and again, and ends at SIGTERM with 9.
const LOOP: &str = "bb sh -c 'trap \"exit 9\" TERM; echo up; n=0; while :; do n=$((n+1)); echo tick; sleep 0.1; done'";

/// The output of a line with a runtime.
fn outcome(docker: &Docker, line: &str, runtime: &str) -> String {
    let done = docker.run(&format!("{WAITS}C=c-$RT; {line}"), runtime);
    format!("{}\n{}\n{}", done.status, normal(&done.out), normal(&done.err))
}

/// Runs each line with brig and with runc, and searches its output for words; all differences fail together. `|` is
/// between the words of Docker 20.10 and those of Docker 28, where these differ with both runtimes.
fn compare(docker: &Docker, lines: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (line, words) in lines {
        let [ours, theirs] = ["brig", "runc"].map(|runtime| outcome(docker, line, runtime));
        if ours != theirs || !words.split('|').any(|words| ours.contains(words)) {
            wrong.push(format!("{line}\n--- brig, with `{words}`\n{ours}\n--- runc\n{theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn containers_outlive_a_killed_daemon() {
    let Some(mut docker) = Docker::with("--live-restore") else { return };
    let run = "docker run -d --runtime $RT --network none --cgroup-parent /docker-test-of-brig";
    compare(
        &docker,
        &[
            (
                &format!(
                    "{run} --name $C --memory 64m {LOOP} > /dev/null; comes up 1; docker inspect -f '{{{{.State.Pid}}}}' $C > pid-$RT; docker exec -d $C sh -c 'sleep 1000; echo'"
                ),
                "0\n",
            ),
            (
                &format!(
                    "{run} --name $C-ends bb sh -c 'while [ ! -e /proc/1/root/end ]; do sleep 0.1; done; exit 6' > /dev/null"
                ),
                "0\n",
            ),
            (
                &format!(
                    "{run} --name $C-again --restart always bb sh -c 'while [ ! -e /end ]; do sleep 0.1; done; rm /end; exit 6' > /dev/null"
                ),
                "0\n",
            ),
            ("for name in ends again; do docker inspect -f '{{.State.Pid}}' $C-$name > pid-$name-$RT; done", "0\n"),
        ],
    );
    docker.kill();
    // One ends while no daemon runs. The others continue.
    compare(
        &docker,
        &[(
            "for name in ends again; do touch /proc/$(cat pid-$name-$RT)/root/end; done; for i in $(seq 300); do [ -e /proc/$(cat pid-ends-$RT)/root/end ] || break; sleep 0.1; done; kill -0 $(cat pid-$RT) && echo alive",
            "alive",
        )],
    );
    docker.start_again();
    compare(
        &docker,
        &[
            (
                "docker inspect -f '{{.State.Status}} {{.State.Pid}}' $C | sed \"s/$(cat pid-$RT)/same/\"",
                "running same",
            ),
            ("docker exec $C sh -c 'id -u; exit 5'", "5\n0"),
            ("n=$(docker logs $C | grep -c tick); comes tick $((n + 10)); docker logs $C | head -n 1", "up"),
            (
                "docker stats --no-stream --format '{{.Name}} {{.MemUsage}}' $C | grep -c 64MiB; docker top $C -o pid,comm | grep -o COMMAND | sort -u | head -n 1",
                "1\nCOMMAND|0\nCOMMAND",
            ),
            (
                "docker update --memory 80m --memory-swap 160m $C; docker exec $C cat /sys/fs/cgroup/memory/memory.limit_in_bytes",
                "83886080",
            ),
            ("docker pause $C; docker inspect -f '{{.State.Status}}' $C; docker unpause $C", "paused"),
            (
                "C=$C-ends; becomes exited .State.Status; docker inspect -f '{{.State.ExitCode}}' $C; docker start $C; docker kill $C; docker rm $C",
                "exited\n6|exited\n255",
            ),
            ("C=$C-again; becomes running .State.Status; docker rm -f $C", "running"),
            (
                "docker stop -t 30 $C; docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' $C; docker start $C; docker exec $C true; docker rm -f $C",
                "exited 9",
            ),
        ],
    );
}

#[test]
fn containers_outlive_a_killed_containerd() {
    let Some(docker) = Docker::with("--live-restore") else { return };
    let run = "docker run -d --runtime $RT --network none --cgroup-parent /docker-test-of-brig";
    let kill = "kill -KILL $(cat exec/containerd/containerd.pid); for i in $(seq 300); do docker exec $C true > /dev/null 2>&1 && break; sleep 0.1; done";
    compare(
        &docker,
        &[
            (
                &format!(
                    "{run} --name $C {LOOP} > /dev/null; comes up 1; {kill}; docker exec $C sh -c 'echo in; exit 5'"
                ),
                "5\nin",
            ),
            (
                "docker stop -t 30 $C; docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' $C; docker rm $C",
                "exited 9",
            ),
        ],
    );
}

#[test]
fn remapped_users_have_what_they_have_with_runc() {
    let Some(docker) = Docker::with("--userns-remap=remapped") else { return };
    let run = "docker run --runtime $RT --network none --cgroup-parent /docker-test-of-brig";
    compare(
        &docker,
        &[
            (
                &format!(
                    "{run} -d --name $C --memory 64m -v v-$RT:/v --tmpfs /t {LOOP} > /dev/null; comes up 1; docker top $C -o pid,uid | grep -o '700000$' | sort -u"
                ),
                "700000",
            ),
            (
                "docker exec $C sh -c 'id -u; touch /v/x /t/x; stat -c %u /v/x /t/x; tr -s \" \" < /proc/self/uid_map; exit 5'",
                "5\n0\n0\n0\n 0 700000 65536",
            ),
            (
                "docker exec -u 1000:55 -w /tmp -e A=b $C sh -c 'id -u; id -g; pwd; echo $A; touch /v/y'",
                "1000\n55\n/tmp\nb",
            ),
            (
                "docker exec --privileged $C sh -c 'grep Cap /proc/self/status; mount -t tmpfs x /tmp && umount /tmp && echo mounts'",
                "CapEff",
            ),
            ("docker exec $C nope", "126|127"),
            ("script -qec \"docker exec -it $C sh -c 'tty; stat -c %u /dev/pts/0'\" /dev/null", "/dev/pts/"),
            (
                "docker cp daemon.json $C:/tmp/f; docker exec $C stat -c %u /tmp/f; docker cp $C:/tmp/f - | tar -xO; docker cp daemon.json $C:/v/f; docker exec $C cat /v/f",
                "0\n{}{}",
            ),
            (
                "docker update --memory 80m --memory-swap 160m --pids-limit 77 $C; docker exec $C cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max",
                "83886080\n77",
            ),
            (
                "docker run --runtime $RT --rm --cgroup-parent /docker-test-of-brig --network container:$C --pid container:$C bb sh -c 'grep -c tick /proc/1/cmdline; test $$ -gt 1 && echo joined; for name in user pid net; do [ $(stat -Lc %i /proc/1/ns/$name) = $(stat -Lc %i /proc/self/ns/$name) ] && echo $name; done'",
                "1\njoined",
            ),
            (
                "docker pause $C; docker inspect -f '{{.State.Status}}' $C; docker unpause $C; docker commit -q $C > /dev/null && docker diff $C | grep -x 'A /tmp/f'",
                "paused",
            ),
            (
                "docker restart -t 30 $C; comes up 2; docker exec $C cat /v/f; docker stop -t 30 $C; docker inspect -f '{{.State.ExitCode}}' $C; docker rm $C",
                "{}",
            ),
            (&format!("{run} --rm --privileged bb true"), "privileged mode is incompatible with user namespaces"),
            (&format!("{run} --rm --userns host --cap-add NET_ADMIN bb grep CapEff /proc/self/status"), "CapEff"),
            (&format!("{run} --rm --pid host bb true"), "cannot share the host PID"),
            (
                &format!("{run} --rm -v v-$RT:/v bb sh -c 'stat -c \"%u %n\" /v/*'; docker volume rm v-$RT"),
                "0 /v/f\n0 /v/x",
            ),
            (
                &format!(
                    "{run} --rm --device /dev/loop-control --cap-add SYS_ADMIN --security-opt seccomp=unconfined bb sh -c 'stat -c \"%u %t:%T\" /dev/loop-control; mount -t tmpfs x /tmp && echo mounted; mknod /tmp/n c 1 3'"
                ),
                "mounted",
            ),
            (
                &format!(
                    "{run} --rm --init --read-only --tmpfs /t:size=1m,mode=700 --shm-size 1m --sysctl net.ipv4.ip_forward=1 --ulimit nofile=100:200 bb sh -c 'readlink /proc/1/exe; cat /proc/sys/net/ipv4/ip_forward; ulimit -n; stat -c \"%a %u\" /t; mount | grep shm'"
                ),
                "100",
            ),
            (
                &format!(
                    "{run} --name $C --memory 20m bb sh -c 'tail /dev/zero'; becomes true .State.OOMKilled; docker rm $C"
                ),
                "true",
            ),
        ],
    );
}

/// Starts a daemon in the container and runs containers in it with both runtimes. The programs are the host's.
const INNER: &str = r#"
ln -s usr/lib /lib; ln -s usr/lib64 /lib64; mkdir -p /run /var /root
export PATH=/usr/sbin:/usr/bin:/bin DOCKER_HOST=unix:///var/run/docker.sock HOME=/root
dockerd --add-runtime brig=/brig --bridge=none --iptables=false --ip6tables=false --storage-driver=vfs > /log 2>&1 &
for i in $(seq 600); do docker version > /dev/null 2>&1 && break; sleep 0.1; done
docker version > /dev/null || tail -n 20 /log
tar -C /image -c . | docker import - bb > /dev/null
for RT in brig runc; do
    run="docker run --runtime $RT --network none"
    $run --rm --memory 32m bb sh -c 'echo in '$RT'; cat /sys/fs/cgroup/memory/memory.limit_in_bytes; ls /sys/class/net; grep Seccomp: /proc/self/status; exit 3'
    echo $?
    $run -d --name inner bb sh -c 'trap "exit 9" TERM; while :; do sleep 0.1; done' > /dev/null
    docker exec inner sh -c 'echo entered; exit 5'; echo $?
    docker stop -t 30 inner > /dev/null; docker inspect -f '{{.State.ExitCode}}' inner; docker rm inner > /dev/null
done
docker run --rm --runtime brig --network none --privileged bb sh -c 'mount -t tmpfs x /tmp && echo mounts'
kill %1; wait
"#;

#[test]
fn docker_runs_in_a_container() {
    let Some(docker) = Docker::start() else { return };
    std::fs::write(docker.lab.path().join("inner"), INNER).unwrap();
    let line = "docker run --rm --runtime brig --privileged --network none --cgroup-parent /docker-test-of-brig -v /usr:/usr:ro \
                -v $BRIG:/brig:ro -v $PWD/rootfs:/image:ro -v $PWD/inner:/inner:ro -v /var/lib/docker -v /var/lib/containerd bb /bin/sh /inner";
    let done = docker.run(&line.replace("$BRIG", env!("CARGO_BIN_EXE_brig")), "brig");
    let inner = |runtime: &str| format!("in {runtime}\n33554432\nlo\nSeccomp:\t2\n3\nentered\n5\n9\n");
    let wanted = format!("{}{}mounts\n", inner("brig"), inner("runc"));
    assert_eq!(done.out, wanted, "{}", done.err);
}
