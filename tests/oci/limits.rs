//! The kernel has the values of `update` and `unified`, on v1, beside a v2 tree and on v2 alone.

use crate::support::{Lab, finish, skip};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A limit of the lab's cgroup, as the host reads it: by its name on v1, or on v2 where the controller is there.
fn read(lab: &Lab, controller: &str, [v1, v2]: [&str; 2]) -> String {
    let group = |parts: &[&str]| parts.iter().fold(PathBuf::from("/sys/fs/cgroup"), |path, part| path.join(part));
    let old = group(&[controller, &lab.id, v1]);
    let path = if old.exists() { old } else { group(&[&lab.id, v2]) };
    std::fs::read_to_string(&path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_else(|cause| format!("{path:?}: {cause}"))
}

fn is_v2_alone() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

#[test]
fn an_update_with_no_limit_of_processes_leaves_them_unlimited() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["ociVersion"] = json!("1.0.2");
    lab.args(&["sleep", "100"]).start();
    // Until version 1.2, 0 meant unlimited.
    lab.brig(&["update", "--pids-limit", "0", &lab.id]).succeeded();
    assert_eq!(lab.exec("echo forked | cat").succeeded().out, "forked\n");
}

#[test]
fn every_flag_of_update_is_in_force_when_it_returns() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.args(&["sleep", "100"]).start();
    let update = |words: &[&str]| lab.on(&[&["update"], words].concat());
    for (words, controller, files, values) in [
        (&["--memory=64m"][..], "memory", ["memory.limit_in_bytes", "memory.max"], ["67108864"; 2]),
        (&["--memory-reservation", "32m"], "memory", ["memory.soft_limit_in_bytes", "memory.low"], ["33554432"; 2]),
        (
            &["--cpu-period=50000", "--cpu-quota=25000"],
            "cpu",
            ["cpu.cfs_quota_us", "cpu.max"],
            ["25000", "25000 50000"],
        ),
        // Setting one keeps the other.
        (&["--cpu-period", "60000"], "cpu", ["cpu.cfs_quota_us", "cpu.max"], ["25000", "25000 60000"]),
        (&["--cpu-quota", "24000"], "cpu", ["cpu.cfs_quota_us", "cpu.max"], ["24000", "24000 60000"]),
        (&["--cpu-burst", "1000"], "cpu", ["cpu.cfs_burst_us", "cpu.max.burst"], ["1000"; 2]),
        (&["--cpu-quota=-1"], "cpu", ["cpu.cfs_quota_us", "cpu.max"], ["-1", "max 60000"]),
        (&["--cpu-share=512"], "cpu", ["cpu.shares", "cpu.weight"], ["512", "59"]),
        (&["--cpu-idle=1"], "cpu", ["cpu.idle", "cpu.idle"], ["1"; 2]),
        (&["--cpuset-cpus", "0"], "cpuset", ["cpuset.cpus", "cpuset.cpus"], ["0"; 2]),
        (&["--cpuset-mems=0"], "cpuset", ["cpuset.mems", "cpuset.mems"], ["0"; 2]),
        (&["--pids-limit", "33"], "pids", ["pids.max", "pids.max"], ["33"; 2]),
        (&["--pids-limit=-1"], "pids", ["pids.max", "pids.max"], ["max"; 2]),
        (&["--kernel-memory=1", "--kernel-memory-tcp=1"], "pids", ["pids.max", "pids.max"], ["max"; 2]),
    ] {
        update(words).succeeded();
        assert_eq!(read(&lab, controller, files), values[usize::from(is_v2_alone())], "{words:?}");
    }
    if is_v2_alone() {
        update(&["--memory=64m", "--memory-swap=96m"]).succeeded();
        assert_eq!(read(&lab, "memory", ["", "memory.swap.max"]), "33554432");
        update(&["--memory-swap=80m"]).succeeded();
        assert_eq!(
            read(&lab, "memory", ["", "memory.swap.max"]),
            "16777216",
            "beside the memory that was allowed before"
        );
        update(&["--blkio-weight=100"]).succeeded();
        let weight = ["io.bfq.weight", "io.weight"].map(|file| read(&lab, "blkio", ["", file]));
        assert!(
            weight.iter().any(|value| matches!(value.as_str(), "default 100" | "100" | "default 910")),
            "{weight:?}"
        );
        update(&["--cpu-rt-runtime=1000"]).failed_with("cgroup v2 has no limit for real-time tasks");
    } else {
        update(&["--cpu-rt-period=900000"]).succeeded();
        assert_eq!(read(&lab, "cpu", ["cpu.rt_period_us", ""]), "900000");
    }
    // A file, and the flags win over it.
    std::fs::write(lab.path().join("limits"), r#"{"pids": {"limit": 5}, "cpu": {"idle": 0}}"#).unwrap();
    update(&["--resources", "limits", "--pids-limit=6"]).succeeded();
    assert_eq!(read(&lab, "pids", ["pids.max", "pids.max"]), "6");
    assert_eq!(read(&lab, "cpu", ["cpu.idle", "cpu.idle"]), "0");
}

#[test]
fn an_update_that_is_refused_changes_nothing() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 40});
    lab.config["linux"]["resources"]["cpu"] = json!({"cpus": "0"});
    lab.args(&["sleep", "100"]).start();
    for (words, said) in [
        (&["--memory=x"][..], "invalid value for memory: x"),
        (&["--pids-limit", "7", "--memory-swap=64m", "--memory=128m"], "memory+swap limit should be >= memory limit"),
        (&["--pids-limit", "7", "--blkio-weight=5"], "10 to 1000"),
        (&["--pids-limit", "7", "--cpuset-cpus", "4000"], "cpuset.cpus"),
        (&["--pids-limit", "7", "--resources=missing"], "read the limits from `missing`"),
    ] {
        lab.on(&[&["update"], words].concat()).failed_with(said);
        assert_eq!(read(&lab, "pids", ["pids.max", "pids.max"]), "40", "{words:?}");
        assert_eq!(read(&lab, "cpuset", ["cpuset.cpus", "cpuset.cpus"]), "0", "{words:?}");
    }
    lab.brig(&["kill", &lab.id, "KILL"]).succeeded();
    crate::support::eventually("it has ended", || lab.status() == "stopped");
    lab.on(&["update", "--pids-limit=7"]).failed_with("container not running");
}

#[test]
fn unified_names_files_of_v2_and_is_refused_where_the_controller_is_not_there() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.args(&["sleep", "100"]);
    lab.config["linux"]["resources"]["unified"] = json!({"cgroup.max.descendants": "7", "memory.high": "50331648"});
    if is_v2_alone() {
        lab.config["linux"]["resources"]["memory"] = json!({"limit": 64 << 20});
        lab.start();
        for (file, value) in [("cgroup.max.descendants", "7"), ("memory.high", "50331648"), ("memory.max", "67108864")]
        {
            assert_eq!(read(&lab, "none", ["none", file]), value, "{file}");
        }
        lab.on(&["delete", "--force"]).succeeded();
    } else {
        lab.create().failed_with("can't be set: controller \\\"memory\\\" not available");
    }
    for (key, words) in
        [("a/memory.max", "no slashes"), ("memory", "CONTROLLER.PARAMETER"), ("moon.max", "not available")]
    {
        lab.config["linux"]["resources"]["unified"] = json!({key: "1"});
        lab.create().failed_with(words);
    }
}

#[test]
fn exec_joins_the_groups_below_that_it_names() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.args(&["sleep", "100"]).start();
    let listed = crate::support::finish(std::process::Command::new("find").args(["/sys/fs/cgroup", "-name", &lab.id]));
    for group in listed.out.lines().map(PathBuf::from) {
        let below = group.join("child/inner");
        std::fs::create_dir_all(&below).unwrap();
        // A cpuset takes no process before it has processors.
        for name in ["cpuset.cpus", "cpuset.mems"].iter().filter(|_| group.starts_with("/sys/fs/cgroup/cpuset")) {
            let value = std::fs::read(group.join(name)).unwrap();
            std::fs::write(group.join("child").join(name), &value).unwrap();
            std::fs::write(below.join(name), &value).unwrap();
        }
    }
    // Its path on the host: the container's own view may start anywhere.
    let places = |words: &[&str]| {
        let pid = lab.path().join("pid");
        let mut command =
            lab.command(&[&["exec", "-d", "--pid-file", "pid"], words, &[&lab.id, "sleep", "50"]].concat());
        let quiet = || std::process::Stdio::null();
        assert!(command.stdout(quiet()).stderr(quiet()).status().unwrap().success(), "{words:?}");
        std::fs::read_to_string(format!("/proc/{}/cgroup", std::fs::read_to_string(pid).unwrap())).unwrap()
    };
    let ours = |text: &str| text.lines().filter(|line| line.contains(&lab.id)).map(str::to_owned).collect::<Vec<_>>();
    let own = ours(&places(&[]));
    assert!(!own.is_empty() && own.iter().all(|line| line.ends_with(&lab.id)), "{own:?}");
    for (path, end) in
        [("child", "/child"), ("/child/inner", "/child/inner"), ("child/../child/./inner", "/child/inner")]
    {
        let there = ours(&places(&["--cgroup", path]));
        assert!(
            there.len() == own.len() && there.iter().all(|line| line.ends_with(&format!("{}{end}", lab.id))),
            "{there:?}"
        );
    }
    if !is_v2_alone() {
        let there = ours(&places(&["--cgroup", "pids:child", "--cgroup", "memory,freezer:child/inner"]));
        let end = |name: &str| {
            there.iter().find(|line| line.contains(name)).unwrap().rsplit_once(&lab.id).unwrap().1.to_owned()
        };
        assert_eq!(
            [":pids:", ":memory:", ":freezer:", ":devices:"].map(end),
            ["/child", "/child/inner", "/child/inner", ""]
        );
    }
    lab.brig(&["exec", "--cgroup", "missing", &lab.id, "true"]).failed_with("missing");
    lab.brig(&["exec", "--cgroup", "moon:child", &lab.id, "true"]).failed_with("unknown controller moon");
}

#[test]
fn a_container_with_users_and_groups_of_its_own_may_divide_its_group_and_not_widen_it() {
    let Some(mut lab) = Lab::new() else { return };
    if !is_v2_alone() {
        return skip("needs cgroup v2 alone");
    }
    lab.user_namespace().without("cgroup").namespace("cgroup");
    let line = "cd /sys/fs/cgroup; mkdir inner && echo $$ > inner/cgroup.procs && cat /proc/self/cgroup; echo max > memory.max || echo held; \
                stat -c %u cgroup.procs memory.max";
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 64 << 20});
    for mount in lab.config["mounts"].as_array_mut().unwrap() {
        if mount["destination"] == "/sys/fs/cgroup" {
            mount["options"].as_array_mut().unwrap().retain(|word| word != "ro");
        }
    }
    assert_eq!(lab.sh(line).run().out, "0::/inner\nheld\n0\n65534\n");
    // A read-only cgroup keeps its owner.
    lab.config["mounts"].as_array_mut().unwrap().retain(|mount| mount["destination"] != "/sys/fs/cgroup");
    lab.mount("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "ro"]);
    let done = lab.sh("mkdir /sys/fs/cgroup/inner; stat -c %u /sys/fs/cgroup/cgroup.procs").run();
    assert_eq!(done.out, "65534\n", "{}", done.err);
}

/// Every path in a document, without the numbers of lists.
fn keys(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    found.insert(at.to_owned());
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| keys(value, &format!("{at}.{key}"), found)),
        Value::Array(items) => items.iter().for_each(|value| keys(value, &format!("{at}[]"), found)),
        _ => {}
    }
}

#[test]
fn what_a_container_uses_is_told_in_the_shape_that_runc_has() {
    let Some(mut lab) = Lab::new() else { return };
    if !Path::new("/usr/sbin/runc").exists() && !Path::new("/usr/bin/runc").exists() {
        return skip("needs runc");
    }
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 64 << 20});
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 30});
    lab.args(&["sleep", "100"]).start();
    // Zeroes are left out. So each runtime uses memory of a file and, with a disk, a read of it: otherwise only the
    // first one has these values.
    let use_all = "dd if=/dev/zero of=/dev/shm/file bs=64k count=1 && dd if=/dev/zero of=/tmp/$0 bs=64k count=1; \
                   dd if=/tmp/$0 of=/dev/null bs=4k count=1 iflag=direct; true";
    lab.brig(&["exec", &lab.id, "sh", "-c", use_all, "ours"]).succeeded();
    let mut ours = BTreeSet::new();
    keys(&serde_json::from_str(&lab.on(&["events", "--stats"]).succeeded().out).unwrap(), "", &mut ours);
    let line = "runc --root runc run -d $C > /dev/null 2>&1 < /dev/null && runc --root runc exec $C sh -c \"$USE\" theirs 2> /dev/null \
                && runc --root runc events --stats $C; runc --root runc delete -f $C";
    let mut runc = std::process::Command::new("/bin/sh");
    let done = finish(
        runc.args(["-c", line]).env("C", format!("{}-runc", lab.id)).env("USE", use_all).current_dir(lab.path()),
    );
    let mut theirs = BTreeSet::new();
    keys(&serde_json::from_str(&done.out).expect(&done.err), "", &mut theirs);
    assert!(theirs.len() > 30, "{theirs:?}");
    // On v2 both leave out unused values, the second one reads the program from memory, and runc's cgroup has fewer
    // controllers.
    let by_use = |key: &str| {
        is_v2_alone()
            && (key.starts_with(".data.blkio.io") || key.starts_with(".data.hugetlb.") || key == ".data.memory.cache")
    };
    let more: Vec<_> = theirs.difference(&ours).filter(|key| !by_use(key)).collect();
    assert!(more.is_empty(), "runc has more: {more:?}");
    // A file of the kernel's that only a newer runc reads.
    let more: Vec<_> = ours.difference(&theirs).filter(|key| !key.contains(".psi") && !by_use(key)).collect();
    assert!(more.is_empty(), "runc has less: {more:?}");
}

/// The output of a line of shell with a full container of two processes, with `$RUN` (the runtime) and `$C` (the
/// container).
fn full(runtime: &str, change: impl Fn(&mut Lab), line: &str) -> Option<String> {
    let mut lab = Lab::new()?;
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 2});
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.sh("sleep 1000 & exec sleep 1000");
    change(&mut lab);
    std::fs::write(lab.path().join("config.json"), lab.config.to_string()).unwrap();
    let whole = format!(
        "$RUN run -d $C > /dev/null 2>&1 < /dev/null
         for i in $(seq 100); do [ $($RUN ps -f json $C | tr , '\\n' | wc -l) = 2 ] && break; sleep 0.05; done
         {line}
         $RUN delete -f $C"
    );
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", &whole]).current_dir(lab.path()).env("C", &lab.id).env("RUN", runtime);
    let done = finish(&mut shell);
    Some(format!("{}{}", done.out, done.err))
}

#[test]
fn full_container_is_entered_as_with_runc() {
    let brig = format!("{} --root records", env!("CARGO_BIN_EXE_brig"));
    let words = "$RUN exec $C id -u; $RUN exec --user 1000:1000 $C id -u; $RUN exec $C /bin/false; echo $?
        $RUN exec $C sh -c 'true & wait' > /dev/null 2>&1; echo fork: $?
        $RUN exec -d --pid-file pid $C sleep 50 < /dev/null > /dev/null 2>&1; echo $?
        cut -d : -f 2- /proc/$(cat pid)/cgroup > entered; $RUN state $C | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' > first
        cut -d : -f 2- /proc/$(cat first)/cgroup | diff - entered && grep -q $C entered && echo in its groups";
    for (name, change) in [
        ("private", (|_| ()) as fn(&mut Lab)),
        ("processes of the host", |lab| _ = lab.without("pid")),
        ("user namespace", |lab| _ = lab.user_namespace()),
        ("filter", |lab| {
            lab.config["process"]["noNewPrivileges"] = json!(false);
            let rule = json!({"names": ["mount"], "action": "SCMP_ACT_ERRNO"});
            lab.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]});
        }),
        // One place is free: for a helper, and then none for the process.
        ("one free", |lab| lab.config["linux"]["resources"]["pids"] = json!({"limit": 3})),
    ] {
        let Some(ours) = full(&brig, change, words) else { return };
        assert_eq!(ours, "0\n1000\n1\nfork: 2\n0\nin its groups\n", "{name}");
    }
    if !is_v2_alone() && crate::beside::has_runc() {
        // Its own threads may find no free place, which ends it with an error; on a slow machine always.
        let often = "for i in $(seq 50); do $RUN exec $C id -u 2> /dev/null && break; done";
        assert_eq!(full("runc --root runc", |_| (), often).unwrap(), "0\n");
    }
}

/// Traces each process that `exec` makes in the container's PID namespace as soon as it can. Returns whether one of
/// them was outside the container's cgroups.
fn traces_an_uncounted_process(lab: &mut Lab) -> bool {
    lab.config["linux"]["resources"]["pids"] = json!({"limit": 1});
    lab.args(&["sleep", "1000"]).start();
    let pid = lab.state()["pid"].to_string();
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let counted = |pid: &str| {
        let of = |line: &str| line.contains(":pids:") || (is_v2_alone() && line.starts_with("0:"));
        read(format!("/proc/{pid}/cgroup")).lines().find(|line| of(line)).map(str::to_owned)
    };
    let (own, group) = (space(&pid), counted(&pid));
    (0..if lab.weakened.is_some() { 300 } else { 40 }).any(|_| {
        let mut runtime = lab.command(&["exec", &lab.id, "true"]).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", runtime.id());
        let mut outside = false;
        while runtime.try_wait().unwrap().is_none() {
            for child in read(children.clone()).split_whitespace().filter(|child| space(child) == own) {
                let number: i32 = child.parse().unwrap();
                // SAFETY: both requests take no pointers.
                let request = |request: libc::c_uint| unsafe { libc::ptrace(request as _, number, 0, 0) };
                if request(libc::PTRACE_SEIZE as _) == 0 {
                    let is_elsewhere = counted(child).is_some_and(|now| Some(now) != group);
                    request(libc::PTRACE_INTERRUPT as _);
                    let mut status = 0;
                    // SAFETY: the kernel writes one int to a live local.
                    unsafe { libc::waitpid(number, &raw mut status, libc::__WALL) };
                    request(libc::PTRACE_DETACH as _);
                    // A process that is ending is in no group.
                    outside |= is_elsewhere && libc::WIFSTOPPED(status);
                }
            }
        }
        outside
    })
}

#[test]
fn process_that_enters_a_full_container_is_counted_before_it_can_be_traced() {
    crate::attacks::attempt("traced-newborn", traces_an_uncounted_process);
}
