//! The files in `commands` are lines of shell with Docker's commands. Each line runs with brig and with runc; the exit
//! status and both streams must be the same. A line is one command. Lines without an empty line between them are a
//! block, which runs in order with one name, `$C`. Blocks run in any order and in parallel. `#` starts a comment. `!`
//! starts a command with an intended difference (docs/oci.md): the test fails when the difference is gone. `compared`
//! removes other intended differences.
//!
//! An ordinary run has all blocks of several lines and every third one of the others; `BRIG_DOCKER_ALL=1` runs all.
//! `BRIG_DOCKER_ONLY=TEXT` runs only the blocks that contain the text, and prints their output.

use super::{Docker, WAITS, normal};
use crate::support::Done;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const FILES: [&str; 8] = [
    include_str!("commands/exec.sh"),
    include_str!("commands/life.sh"),
    include_str!("commands/copy.sh"),
    include_str!("commands/failures.sh"),
    include_str!("commands/files.sh"),
    include_str!("commands/isolation.sh"),
    include_str!("commands/limits.sh"),
    include_str!("commands/process.sh"),
];

/// The number of blocks that run in parallel.
const THREADS: usize = 4;
/// The rounds in which a block that differs runs again with each runtime, alone. Parallel clients, and the engine's
/// reports of an end, race on a busy machine. In these rounds brig may never do what runc never does.
const ROUNDS: usize = 5;
/// After the second of these rounds no other starts once this time is over.
const LONGEST: Duration = Duration::from_secs(60);
/// The limit of blocks that differ in the first round only. More are not a race.
const MOST_EXCUSED: usize = 2;

/// Functions for the lines.
///
/// `run` and `up` are `docker run`: in the foreground, and of a container that prints `started`. `fails` prints the
/// status of a `run` and whether Docker printed its hint, without the runtime's words. Both have a private network by
/// default.
const PRELUDE: &str = r#"
OPTIONS="--runtime $RT --cgroup-parent /docker-test-of-brig"
run() { case "$*" in *--network*) ;; *) set -- --network none "$@" ;; esac; docker run --rm $OPTIONS "$@"; }
up() { case "$*" in *--network*) ;; *) set -- --network none "$@" ;; esac; docker run -d --name $C $OPTIONS "$@" | wc -c; comes started 1; }
fails() { run "$@" 2> err-$C; echo $?; grep -c 'Are you trying to mount' err-$C; }
"#;

/// Prints a container's view of itself, in sections.
const PROBE: &str = r#"#!/bin/sh
echo == mountinfo; cat /proc/self/mountinfo
echo == status; grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Seccomp_filters|Cap...|Cpus_allowed_list|Mems_allowed_list|Umask|SigBlk|SigIgn):' /proc/self/status
echo == limits; cat /proc/self/limits
echo == environment; env | grep -v -e ^SHLVL= | sort
echo == names; id; pwd; hostname; umask; cat /proc/self/oom_score_adj /proc/self/uid_map /proc/self/setgroups
echo == devices; stat -c '%n %F %a %u:%g %t:%T %N' /dev/* /dev/pts/ptmx; ls /proc/self/fd
echo == namespaces; for each in /proc/self/ns/*; do echo $each $(readlink $each); done
echo == groups; cat /proc/self/cgroup | sort; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/pids/pids.max
echo == kernel; cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax; ip link show lo | head -n 1
echo == writing; for each in / /tmp /v /dev /sys /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/fs/cgroup; do test -w $each && echo $each; done
echo == end
"#;

/// Runs until it gets SIGTERM, and prints the other signals that it gets.
const SERVE: &str = r#"#!/bin/sh
trap 'exit 9' TERM
trap 'echo usr' USR1
trap 'echo hup' HUP
echo started
while :; do sleep 0.1; done
"#;

fn filter(calls: &str, action: &str) -> String {
    format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{{"names":[{calls}],"action":"{action}"}}]}}"#)
}

/// Files of the image and of the host for the lines.
fn prepare(docker: &Docker) {
    let write = |name: &str, text: &str| std::fs::write(docker.lab.path().join(name), text).unwrap();
    write("rootfs/bin/probe", PROBE);
    write("rootfs/bin/serve", SERVE);
    write("rootfs/bin/garbage", "\x7fELF and nothing else\n");
    write("rootfs/bin/lost-interpreter", "#!/not/there\n");
    write("rootfs/etc/group", "root:x:0:\nuser:x:1000:\nmore:x:1001:user\n");
    write("deny-mkdir.json", &filter(r#""mkdir","mkdirat""#, "SCMP_ACT_ERRNO"));
    write("kill-mkdir.json", &filter(r#""mkdir","mkdirat""#, "SCMP_ACT_KILL_PROCESS"));
    write("deny-execve.json", &filter(r#""execve""#, "SCMP_ACT_ERRNO"));
    let lines = "cd rootfs && chmod 755 bin/probe bin/serve bin/garbage bin/lost-interpreter && ln -s /etc link && mkdir secret \
                 && echo '#!/bin/sh' > secret/program && chmod 755 secret/program && chmod 700 secret && cd .. \
                 && mkdir -p source/below devices && echo in > source/file && chown 77:77 source/file && echo deep > source/below/deep \
                 && ln -s below source/link && mknod devices/one c 1 5 && mknod devices/two c 1 3 \
                 && tar -C rootfs -c . | docker import - bb \
                 && tar -C rootfs -c . | docker import -c 'USER user' -c 'ENV FROM=image' -c 'WORKDIR /made/by/image' \
                    -c 'ENTRYPOINT [\"/bin/sh\", \"-c\"]' -c 'CMD [\"id; pwd; env | sort\"]' -c 'VOLUME /volume' - image";
    docker.run(lines, "").succeeded();
}

/// The blocks, the longest ones first.
fn blocks() -> Vec<Vec<&'static str>> {
    let mut blocks = Vec::new();
    for file in FILES {
        for block in file.split("\n\n") {
            let lines: Vec<&str> = block.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
            blocks.push(lines);
        }
    }
    blocks.sort_by_key(|lines| std::cmp::Reverse(lines.len()));
    blocks
}

/// runc 1.1's errors where brig starts the container with a warning (docs/oci.md): the host's root lacks a privilege.
const CALLER_LACKS_POWER: [&str; 2] =
    ["unable to apply caps: operation not permitted", "can't get final child's PID from pipe"];

/// Status and streams without the differences of each run and those in docs/oci.md.
fn compared(done: &Done) -> String {
    let mut section = "";
    let (mut lines, mut mounts) = (Vec::new(), Vec::new());
    for line in done.out.lines() {
        section = line.strip_prefix("== ").unwrap_or(section);
        match section {
            "mountinfo" => mounts.extend(mount(line)),
            _ => lines.push(plain(line)),
        }
    }
    mounts.sort();
    // Docker 20.10's client sometimes prints this when a run fails.
    let err = done.err.lines().filter(|line| !line.contains("error waiting for container: context canceled"));
    let err: Vec<_> = err.map(plain).collect();
    // The terminal sometimes echoes the end of script(1)'s input.
    let [mounts, out, err] = [mounts, lines, err].map(|lines| lines.join("\n").trim_end().to_owned());
    format!("{}\n{mounts}\n{out}\n{err}", done.status)
}

/// A line without ids of containers and inodes.
fn plain(line: &str) -> String {
    let line = without_runtimes_words(&normal(line));
    let is_host = |kind: &str, number: &str| {
        let own = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
        own.to_string_lossy() == format!("{kind}:[{number}]")
    };
    match line.split_once(":[").and_then(|(left, right)| Some((left, right.split_once(']')?))) {
        Some((left, (number, rest))) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            let kind = left.rsplit([' ', '/']).next().unwrap_or_default();
            format!("{left}:[{}]{rest}", if is_host(kind, number) { "host" } else { "own" })
        }
        _ => line,
    }
}

/// An error of the daemon with the last of the runtime's words only: clients and daemons use these (`permission
/// denied`), not the failed step.
fn without_runtimes_words(line: &str) -> String {
    let Some((before, rest)) = line.split_once("OCI runtime ") else { return line.to_owned() };
    // Newer daemons end without this word.
    let (words, after) = rest.rsplit_once(": unknown").unwrap_or((rest, ""));
    format!("{before}OCI runtime: {}{after}", words.rsplit(": ").next().unwrap_or_default())
}

/// A mount without its numbers. Masks and the directory of the cgroups, which are stricter than runc's, only by their
/// paths.
fn mount(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [_, _, _, root, place, rest @ ..] = fields.as_slice() else { return None };
    let is_mask = *root == "/null" || ["/proc/acpi", "/proc/scsi", "/proc/asound", "/sys/firmware"].contains(place);
    Some(match rest {
        _ if is_mask => format!("mask {place}"),
        [.., "tmpfs", _, _] if *place == "/sys/fs/cgroup" => format!("groups {place}"),
        // The layers of the root have other names in each container.
        [options, ..] if *place == "/" => format!("/ {options}"),
        _ => {
            let rest = rest.iter().map(|field| {
                field.split_once(':').filter(|(name, _)| *name == "master").map_or(*field, |(name, _)| name)
            });
            normal(&format!("{root} {place} {}", rest.collect::<Vec<_>>().join(" ")))
        }
    })
}

#[test]
fn docker_commands_do_with_brig_what_they_do_with_runc() {
    let Some(docker) = Docker::start() else { return };
    prepare(&docker);
    let only = std::env::var("BRIG_DOCKER_ONLY").ok();
    let runs_all = std::env::var("BRIG_DOCKER_ALL").is_ok();
    let mut blocks = blocks();
    let mut number = 0;
    blocks.retain(|lines| {
        number += 1;
        match &only {
            Some(text) => lines.join("\n").contains(text),
            None => runs_all || lines.len() > 1 || number % 3 == 0,
        }
    });
    let count: usize = blocks.iter().map(Vec::len).sum();
    println!("{count} commands");
    let run = |index: usize, name: &str, runtime| -> Vec<Done> {
        let lines = blocks[index].iter().map(|line| {
            let begin = Instant::now();
            let line = line.trim_start_matches("! ");
            let done = docker.run(&format!("{WAITS}{PRELUDE}C={name}{index}-$RT\n{line}"), runtime);
            if only.is_some() {
                println!("{:?} {runtime} {line}\n{}", begin.elapsed(), compared(&done));
            }
            done
        });
        lines.collect()
    };
    let jobs: Vec<_> = (0..blocks.len()).flat_map(|index| [(index, "brig"), (index, "runc")]).collect();
    let (jobs, results) = (Mutex::new(jobs.into_iter()), Mutex::new(HashMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let Some((index, runtime)) = jobs.lock().unwrap().next() else { return };
                    let done = run(index, "c", runtime);
                    results.lock().unwrap().insert((index, runtime), done);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    let (mut wrong, mut excused) = (Vec::new(), Vec::new());
    for (index, lines) in blocks.iter().enumerate() {
        let mut take = |runtime| vec![results.remove(&(index, runtime)).unwrap()];
        let (mut ours, mut theirs) = (take("brig"), take("runc"));
        let first = differences(lines, &ours, &theirs);
        if first.is_empty() {
            continue;
        }
        let begin = Instant::now();
        for round in 1..=ROUNDS {
            ours.push(run(index, &format!("again{round}-"), "brig"));
            theirs.push(run(index, &format!("again{round}-"), "runc"));
            if round > 1 && begin.elapsed() > LONGEST {
                break;
            }
        }
        let again = differences(lines, &ours[1..], &theirs);
        // The first result may be one that runc had, too, in a later round.
        if again.is_empty() && !differences(lines, &ours, &theirs).is_empty() {
            excused.push(format!(
                "{} rounds of brig alone did not do this again:\n{}",
                ours.len() - 1,
                first.join("\n\n")
            ));
        }
        wrong.extend(again);
    }
    println!("{} blocks differed once and never again\n{}", excused.len(), excused.join("\n\n"));
    if excused.len() > MOST_EXCUSED {
        wrong.append(&mut excused);
    }
    assert!(wrong.is_empty(), "{} of {count} commands differ\n{}", wrong.len(), wrong.join("\n\n"));
}

/// The lines of a block with a result of brig in some round that runc had in none. Also the lines with `!` without any
/// other result.
fn differences(lines: &[&str], ours: &[Vec<Done>], theirs: &[Vec<Done>]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let lacks_power =
            |done: &Done| CALLER_LACKS_POWER.iter().any(|words| done.out.contains(words) || done.err.contains(words));
        let is_intended = line.starts_with('!') || theirs.iter().any(|round| lacks_power(&round[index]));
        let known: Vec<String> = theirs.iter().map(|round| compared(&round[index])).collect();
        let found: Vec<String> = ours.iter().map(|round| compared(&round[index])).collect();
        let other = found.iter().find(|each| !known.contains(each));
        if other.is_some() != is_intended {
            let ours = other.unwrap_or(&found[0]);
            wrong.push(format!("{line}\n--- brig\n{ours}\n--- runc\n{}", known.join("\n--- or runc\n")));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(all: &[&str]) -> Vec<Vec<Done>> {
        let done = |out: &&str| vec![Done { status: 0, out: (*out).to_owned(), err: String::new() }];
        all.iter().map(done).collect()
    }

    #[test]
    fn a_result_that_runc_never_has_is_a_difference() {
        for (line, ours, theirs, is_wrong) in [
            ("run", &["a"][..], &["a"][..], false),
            ("run", &["b"], &["a"], true),
            ("run", &["a", "b", "a"], &["a", "a", "a"], true),
            ("run", &["a", "b"], &["b", "a"], false),
            ("! run", &["b"], &["a"], false),
            ("! run", &["a"], &["a"], true),
        ] {
            let found = differences(&[line], &rounds(ours), &rounds(theirs));
            assert_eq!(!found.is_empty(), is_wrong, "{line} {ours:?} {theirs:?}");
        }
    }
}
