//! The fields of config.json, each seen from inside a container or from the host.

use crate::support::{Lab, changed_mounts, eventually};
use serde_json::json;

#[test]
fn the_defaults_of_a_bundle_are_what_runc_gives() {
    let Some(mut lab) = Lab::new() else { return };
    let out = lab.sh("hostname; ls /dev; readlink /dev/fd; readlink /dev/ptmx; cat /proc/self/uid_map; grep -E 'CapEff|NoNew' /proc/self/status; umask; pwd; echo $HOME").run().out;
    for part in [
        "brig\n",
        "full\n",
        "null\n",
        "/proc/self/fd\npts/ptmx\n",
        "0          0 4294967295",
        "CapEff:\t0000000020000420",
        "NoNewPrivs:\t1",
        "0022\n/\n/root\n",
    ] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
}

#[test]
fn a_user_has_its_groups_and_umask_and_home() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["process"]["user"] = json!({"uid": 1000, "gid": 1000, "umask": 63, "additionalGids": [1000, 5, 7]});
    lab.config["process"]["cwd"] = json!("/made/deep");
    let out = lab.sh("id; umask; pwd; echo $HOME; echo x > /dev/stderr").run().succeeded().out.clone();
    assert_eq!(out, "uid=1000(user) gid=1000 groups=5,7,1000\n0077\n/made/deep\n/home/user\n");
}

#[test]
fn a_user_namespace_maps_ids_and_has_devices() {
    let Some(mut lab) = Lab::new() else { return };
    lab.user_namespace();
    let out = lab.sh("id -u; cat /proc/self/uid_map; echo x > /dev/null && echo ok; ls -ln /dev/null | cut -c1; mount | grep -c proc").run();
    assert!(out.succeeded().out.contains("0\n         0     700000      65536\nok\nc\n"), "{}", out.out);
    lab.sh("sleep 100").start();
    assert!(lab.exec("id -u").out.starts_with("0\n"));
}

#[test]
fn a_read_only_root_and_masks_hold() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["root"]["readonly"] = json!(true);
    lab.config["linux"]["maskedPaths"] = json!(["/proc/keys", "/sys/firmware", "/missing"]);
    lab.config["linux"]["readonlyPaths"] = json!(["/proc/sys", "/missing"]);
    let out = lab
        .sh("touch /x; cat /proc/keys; ls /sys/firmware; echo 1 > /proc/sys/kernel/panic; touch /dev/x && echo dev")
        .run();
    assert_eq!(out.out, "dev\n");
    assert!(out.err.contains("/x: Read-only") && out.err.contains("panic: Read-only"), "{}", out.err);
}

#[test]
fn every_kind_of_mount_option_holds() {
    let Some(mut lab) = Lab::new() else { return };
    let (outer, inner) = (lab.path().join("outer"), lab.path().join("outer/inner"));
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(outer.join("file"), "content").unwrap();
    std::fs::create_dir_all(lab.root("/copied/sub")).unwrap();
    std::fs::write(lab.root("/copied/sub/file"), "copied").unwrap();
    let source = outer.to_str().unwrap().to_owned();
    lab.mount("/ro", "bind", &source, &["bind", "ro", "nosuid", "noexec"])
        .mount("/rro", "bind", &source, &["rbind", "rro", "rnosuid", "rprivate"])
        .mount("/file", "bind", &format!("{source}/file"), &["bind"])
        .mount("/small", "tmpfs", "tmpfs", &["size=64k", "mode=1755", "noatime"])
        .mount("/tmpro", "tmpfs", "tmpfs", &["ro"])
        .mount("/tmpro/sub", "tmpfs", "tmpfs", &["size=4k"])
        .mount("/copied", "tmpfs", "tmpfs", &["tmpcopyup"]);
    let out = lab.sh("touch /ro/x /rro/x; cat /file /copied/sub/file; stat -c %a /small; touch /tmpro/x; touch /tmpro/sub/x && echo sub; grep -E ' /(ro|rro|small) ' /proc/mounts | cut -d' ' -f2,4").run();
    assert!(out.out.starts_with("contentcopied1755\nsub\n"), "{} {}", out.out, out.err);
    for options in ["/ro ro,nosuid,noexec", "/rro ro,nosuid", "/small rw,noatime"] {
        assert!(out.out.contains(options), "{options} is not in {}", out.out);
    }
    assert_eq!(out.err.matches("Read-only").count(), 3, "{}", out.err);
    lab.mount("/bad", "bind", &source, &["bind", "size=1k"]);
    lab.run().failed_with("bind mounts cannot have any filesystem-specific options");
}

#[test]
fn owners_are_shown_by_an_id_map() {
    let Some(mut lab) = Lab::new() else { return };
    let source = lab.path().join("files");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "").unwrap();
    lab.mount("/mapped", "bind", source.to_str().unwrap(), &["bind"]);
    let map = json!([{"containerID": 0, "hostID": 5000, "size": 10}]);
    let mount = lab.config["mounts"].as_array_mut().unwrap().last_mut().unwrap();
    mount["uidMappings"] = map.clone();
    mount["gidMappings"] = map;
    assert_eq!(lab.sh("stat -c %u:%g /mapped/file").run().succeeded().out, "5000:5000\n");
}

#[test]
fn devices_are_made_as_asked() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["devices"] = json!([
        {"path": "/dev/zero2", "type": "c", "major": 1, "minor": 5, "fileMode": 416, "uid": 5, "gid": 6},
        {"path": "/dev/pipe", "type": "p"},
        {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 438},
    ]);
    let out = lab.sh("stat -c '%a %u:%g %t:%T %F' /dev/zero2 /dev/pipe").run().succeeded().out.clone();
    assert_eq!(out, "640 5:6 1:5 character special file\n666 0:0 0:0 fifo\n");
}

#[test]
fn hooks_run_in_their_order_with_the_state_and_an_environment_of_their_own() {
    let Some(mut lab) = Lab::new() else { return };
    let log = lab.path().join("hooks");
    let log = log.to_str().unwrap();
    let hook = |name: &str| {
        let line = format!("echo {name} $(/bin/grep -o '\"status\":\"[a-z]*\"') $A $LD_PRELOAD >> {log}");
        json!([{"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["A=x", "PATH=/bin:/usr/bin"]}])
    };
    for name in ["prestart", "createRuntime", "createContainer", "poststart", "poststop"] {
        lab.config["hooks"][name] = hook(name);
    }
    let inside = json!([{"path": "/bin/sh", "args": ["sh", "-c", "cat > /state; echo startContainer >> /order"]}]);
    lab.config["hooks"]["startContainer"] = inside;
    lab.config["process"]["env"] = json!(["PATH=/bin", "LD_PRELOAD=/evil.so"]); // T-35
    lab.sh("echo program >> /order; sleep 0.2").run().succeeded();
    let order = std::fs::read_to_string(log).unwrap();
    assert_eq!(
        order,
        "prestart \"status\":\"creating\" x\ncreateRuntime \"status\":\"creating\" x\ncreateContainer \"status\":\"creating\" x\npoststart \"status\":\"running\" x\npoststop \"status\":\"stopped\" x\n"
    );
    assert_eq!(std::fs::read_to_string(lab.root("/order")).unwrap(), "startContainer\nprogram\n");
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(lab.root("/state")).unwrap()).unwrap();
    assert_eq!((&state["status"], &state["pid"]), (&json!("created"), &json!(1)));
    // Without a PID namespace the process is not number 1.
    let inside = json!([{"path": "/bin/sh", "args": ["sh", "-c", "cat > /state; echo $PPID > /parent"]}]);
    lab.config["hooks"] = json!({"startContainer": inside});
    lab.without("pid").args(&["true"]).run().succeeded();
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(lab.root("/state")).unwrap()).unwrap();
    assert_eq!(state["pid"].to_string(), std::fs::read_to_string(lab.root("/parent")).unwrap().trim());
}

#[test]
fn a_container_with_the_hosts_namespaces_alone_can_be_entered() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["namespaces"] = json!([]);
    lab.config["mounts"] = json!([]);
    for key in ["maskedPaths", "readonlyPaths"] {
        lab.config["linux"].as_object_mut().unwrap().remove(key);
    }
    lab.config.as_object_mut().unwrap().remove("hostname");
    lab.args(&["/bin/busybox", "sleep", "100"]).start();
    assert_eq!(lab.brig(&["exec", &lab.id, "/bin/busybox", "ls", "/proc"]).succeeded().out, "");
}

#[test]
fn a_hook_that_fails_or_hangs_ends_the_container() {
    let Some(mut lab) = Lab::new() else { return };
    for name in ["prestart", "createRuntime", "createContainer"] {
        lab.config["hooks"] = json!({name: [{"path": "/bin/sh", "args": ["sh", "-c", "echo why >&2; exit 3"]}]});
        lab.args(&["true"])
            .create()
            .failed_with(&format!("error running {name} hook #0: "))
            .failed_with("exit status 3, output: why");
    }
    lab.config["hooks"] = json!({"createRuntime": [{"path": "/bin/sleep", "args": ["sleep", "60"], "timeout": 1}]});
    lab.create().failed_with("longer than 1 s");
    lab.config["hooks"] = json!({"startContainer": [{"path": "/bin/false"}]});
    lab.args(&["sleep", "60"]).create().succeeded();
    lab.on(&["start"]).failed_with("startContainer hook #0");
    lab.on(&["delete", "--force"]).succeeded();
    lab.config["hooks"] = json!({"poststart": [{"path": "/bin/false"}]});
    lab.create().succeeded();
    lab.on(&["start"]).failed_with("poststart hook #0");
    eventually("it is killed", || lab.status() == "stopped");
    lab.on(&["delete"]).succeeded();
}

#[test]
fn sysctls_of_own_namespaces_are_set() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["sysctl"] = json!({"net.ipv4.ip_forward": "1", "kernel.msgmax": "4096"});
    assert_eq!(lab.sh("cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax").run().succeeded().out, "1\n4096\n");
    lab.without("network").run().failed_with("not allowed in host network namespace");
}

#[test]
fn attributes_of_the_process_are_set() {
    let Some(mut lab) = Lab::new() else { return };
    let process = &mut lab.config["process"];
    process["oomScoreAdj"] = json!(321);
    process["scheduler"] = json!({"policy": "SCHED_BATCH", "nice": 5});
    process["ioPriority"] = json!({"class": "IOPRIO_CLASS_IDLE", "priority": 0});
    process["rlimits"] =
        json!([{"type": "RLIMIT_NOFILE", "soft": 100, "hard": 200}, {"type": "RLIMIT_CORE", "soft": 0, "hard": 0}]);
    lab.config["linux"]["personality"] = json!({"domain": "LINUX32"});
    lab.config["linux"]["memoryPolicy"] = json!({"mode": "MPOL_BIND", "nodes": "0"});
    lab.config["domainname"] = json!("nis");
    let line = "cat /proc/self/oom_score_adj; cut -d' ' -f41 /proc/self/stat; ionice -p $$; ulimit -n; ulimit -Hn; uname -m; cat /proc/sys/kernel/domainname; grep -c bind:0 /proc/self/numa_maps";
    let out = lab.sh(line).run();
    let count = out
        .out
        .strip_prefix("321\n3\nidle\n100\n200\ni686\nnis\n")
        .unwrap_or_else(|| panic!("{} {}", out.out, out.err));
    assert!(count.trim().parse::<u32>().unwrap() > 0, "no memory is bound to node 0: {count}");
    // As with runc, all of the container's processes get the personality.
    lab.args(&["sleep", "100"]).start();
    assert_eq!(lab.exec("uname -m; ionice -p $$").out, "i686\nidle\n");
    let count = lab.exec("grep -c bind:0 /proc/self/numa_maps");
    assert!(count.out.trim().parse::<u32>().unwrap() > 0, "exec has no memory policy: {}", count.err);
    // Settings that need a privilege without the program having it still work.
    let mut process = lab.config["process"].clone();
    process["scheduler"] = json!({"policy": "SCHED_OTHER", "nice": -5});
    process["args"] = json!(["cut", "-d ", "-f19", "/proc/self/stat"]);
    std::fs::write(lab.path().join("process.json"), process.to_string()).unwrap();
    assert_eq!(lab.brig(&["exec", "--process", "process.json", &lab.id]).out, "-5\n");
    // As with runc, a process without limits has the container's.
    process.as_object_mut().unwrap().remove("rlimits");
    process["args"] = json!(["/bin/sh", "-c", "ulimit -n"]);
    std::fs::write(lab.path().join("process.json"), process.to_string()).unwrap();
    assert_eq!(lab.brig(&["exec", "--process", "process.json", &lab.id]).out, "100\n");
    lab.on(&["delete", "--force"]).succeeded();
    lab.args(&["true"]).config["process"]["rlimits"] = json!([{"type": "RLIMIT_MOON", "soft": 1, "hard": 1}]);
    lab.run().failed_with("invalid rlimit type");
}

#[test]
fn a_process_of_exec_has_what_it_leaves_out_from_the_container() {
    let Some(mut lab) = Lab::new() else { return };
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set] = json!(["CAP_KILL"]);
    }
    lab.config["process"]["oomScoreAdj"] = json!(500);
    lab.args(&["sleep", "100"]).start();
    let line = "grep CapEff /proc/self/status; cat /proc/self/oom_score_adj";
    let process =
        json!({"args": ["/bin/sh", "-c", line], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}});
    std::fs::write(lab.path().join("process.json"), process.to_string()).unwrap();
    let done = lab.brig(&["exec", "--process", "process.json", &lab.id]);
    assert_eq!(done.succeeded().out, "CapEff:\t0000000000000020\n500\n");
}

#[test]
fn a_time_namespace_has_its_offsets() {
    let Some(mut lab) = Lab::new() else { return };
    lab.namespace("time");
    lab.config["linux"]["timeOffsets"] = json!({"boottime": {"secs": 1_000_000, "nanosecs": 0}});
    let uptime: f64 = lab.sh("cut -d' ' -f1 /proc/uptime").run().succeeded().out.trim().parse().unwrap();
    assert!(uptime > 1_000_000.0);
    lab.config["linux"].as_object_mut().unwrap().remove("timeOffsets");
    lab.args(&["true"]).run().succeeded();
}

#[test]
fn namespaces_of_another_container_are_joined_by_path() {
    let Some(mut first) = Lab::new() else { return };
    first.config["hostname"] = json!("shared");
    first.args(&["sleep", "100"]).start();
    let pid = first.state()["pid"].as_i64().unwrap();
    let Some(mut second) = Lab::new() else { return };
    second.config["hostname"] = json!("");
    for (kind, file) in [("pid", "pid"), ("network", "net"), ("ipc", "ipc"), ("uts", "uts")] {
        second.without(kind);
        let namespace = json!({"type": kind, "path": format!("/proc/{pid}/ns/{file}")});
        second.config["linux"]["namespaces"].as_array_mut().unwrap().push(namespace);
    }
    let inodes =
        |lab: &Lab| lab.exec("readlink /proc/self/ns/pid /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/uts").out;
    second.args(&["sleep", "100"]).start();
    assert_eq!(inodes(&first), inodes(&second));
    assert_eq!(second.exec("hostname; pidof sleep | wc -w").out, "shared\n2\n");
    // Its first process is not pid 1 of a namespace: the cgroup must find all processes.
    second.exec("sleep 77 > /dev/null 2>&1 &").succeeded();
    second.on(&["kill", "--all"]).succeeded();
    second.brig(&["kill", &second.id, "KILL"]);
    second.on(&["delete", "--force"]).succeeded();
    assert!(!first.exec("ps").out.contains("sleep 77"));
}

#[test]
fn groups_and_clocks_of_another_container_are_joined_by_path() {
    let Some(mut first) = Lab::new() else { return };
    first.without("cgroup").namespace("cgroup").namespace("time").args(&["sleep", "100"]);
    first.config["linux"]["timeOffsets"] = json!({"boottime": {"secs": 1_000_000, "nanosecs": 0}});
    first.start();
    let pid = first.state()["pid"].as_i64().unwrap();
    let Some(mut second) = Lab::new() else { return };
    second.without("cgroup").unmount("/sys/fs/cgroup");
    for kind in ["cgroup", "time"] {
        let namespace = json!({"type": kind, "path": format!("/proc/{pid}/ns/{kind}")});
        second.config["linux"]["namespaces"].as_array_mut().unwrap().push(namespace);
    }
    let line =
        "readlink /proc/self/ns/cgroup; readlink /proc/self/ns/time; cut -d. -f1 /proc/uptime; cat /proc/self/cgroup";
    let out = second.sh(line).run().succeeded().out.clone();
    let lines: Vec<_> = out.lines().collect();
    for (line, file) in lines.iter().zip(["cgroup", "time"]) {
        assert_eq!(*line, std::fs::read_link(format!("/proc/{pid}/ns/{file}")).unwrap().to_str().unwrap());
    }
    assert!(lines[2].parse::<u64>().unwrap() > 1_000_000, "{out}");
    // Its cgroup is a sibling of the root that it sees.
    assert!(lines[3..].iter().any(|line| line.contains("/..") && line.ends_with(&second.id)), "{out}");
}

#[test]
fn a_mount_namespace_is_joined_by_its_path() {
    let Some(mut lab) = Lab::new() else { return };
    std::fs::create_dir(lab.path().join("held")).unwrap();
    let line = "mount --make-rprivate / && mount -t tmpfs tmpfs held && echo theirs > held/file && touch ready; exec sleep 100";
    let mut holder = std::process::Command::new("unshare");
    let mut holder = holder.args(["-m", "/bin/sh", "-c", line]).current_dir(lab.path()).spawn().unwrap();
    eventually("its namespace is made", || lab.path().join("ready").exists());
    let path = format!("/proc/{}/ns/mnt", holder.id());
    let theirs = std::fs::read_link(&path).unwrap();
    lab.without("mount").config["linux"]["namespaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "mount", "path": path}));
    let source = lab.path().join("held").display().to_string();
    lab.mount("/in", "bind", &source, &["bind", "ro"]);
    let done = lab.sh("cat /in/file; readlink /proc/self/ns/mnt").run();
    let _ = (holder.kill(), holder.wait());
    assert_eq!(done.out, format!("theirs\n{}\n", theirs.display()), "{}", done.err);
}

#[test]
fn a_container_without_a_mount_namespace_changes_no_mount_of_the_host() {
    // T-22
    let Some(mut lab) = Lab::new() else { return };
    lab.without("mount");
    for key in ["maskedPaths", "readonlyPaths"] {
        lab.config["linux"].as_object_mut().unwrap().remove(key);
    }
    lab.config["mounts"] = json!([]);
    lab.sh("/bin/busybox ls /");
    // In a copy of the host's mounts: other tests change the host's own meanwhile.
    let bundle = lab.path().to_str().unwrap().to_owned();
    let run = lab.command(&["run", "--bundle", &bundle, &lab.id]);
    let script = "cat /proc/self/mountinfo > \"$0/before\"; \"$@\"; cat /proc/self/mountinfo > \"$0/after\"";
    let mut apart = std::process::Command::new("unshare");
    apart.args(["--mount", "--propagation", "private", "sh", "-ec", script, &bundle]);
    apart.arg(run.get_program()).args(run.get_args());
    assert_eq!(crate::support::finish(&mut apart).succeeded().out.lines().count(), 6);
    let mounts = |name: &str| std::fs::read_to_string(lab.path().join(name)).unwrap();
    assert_eq!(changed_mounts(&mounts("before"), &mounts("after")), [""; 0]);
}

#[test]
fn the_root_can_be_moved_instead_of_pivoted() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("ls / | wc -l; ls /proc/1 > /dev/null && echo proc; grep -cE ' - (proc|sysfs) ' /proc/self/mountinfo");
    let expected = lab.run().succeeded().out.clone();
    assert!(expected.starts_with("6\nproc\n"), "{expected}");
    let bundle = lab.path().to_str().unwrap().to_owned();
    // Wherever the caller is, the container's own /proc and /sys stay.
    let moved = |lab: &Lab, directory: &str| {
        let mut command = lab.command(&["run", "--no-pivot", "--bundle", &bundle, &lab.id]);
        crate::support::finish(command.current_dir(directory)).succeeded().out.clone()
    };
    for directory in [bundle.as_str(), "/", "/proc", "/tmp"] {
        assert_eq!(moved(&lab, directory), expected, "from {directory}");
    }
    let other = tempfile::Builder::new().prefix("brig oci-").tempdir().unwrap();
    std::fs::rename(lab.root("/"), other.path().join("root")).unwrap();
    lab.config["root"]["path"] = json!(other.path().join("root"));
    assert_eq!(moved(&lab, &bundle), expected, "with a root that is elsewhere");
}

#[test]
fn descriptors_are_handed_through_and_no_others() {
    use std::os::fd::AsRawFd;
    let Some(mut lab) = Lab::new() else { return };
    let directory = std::fs::File::open("/").unwrap();
    lab.sh("ls /proc/self/fd | tr '\\n' ' '");
    let mut command = lab.command(&["run", "--preserve-fds", "1", &lab.id]);
    let host = directory.as_raw_fd();
    // Both 3 (to be passed on) and 9 (leaked by the caller) are the host's root.
    let shell = format!("exec 3<&{host} 9<&{host}; exec \"$0\" \"$@\"");
    let mut wrapped = std::process::Command::new("/bin/sh");
    wrapped.args(["-c", &shell]).arg(command.get_program()).args(command.get_args()).current_dir(lab.path());
    rustix::io::fcntl_setfd(&directory, rustix::io::FdFlags::empty()).unwrap();
    let out = crate::support::finish(&mut wrapped);
    rustix::io::fcntl_setfd(&directory, rustix::io::FdFlags::CLOEXEC).unwrap();
    assert_eq!(out.succeeded().out, "0 1 2 3 4 "); // 4 is that of ls itself
    command = lab.command(&["run", "--preserve-fds", "40", &lab.id]);
    crate::support::finish(&mut command).failed_with("unable to stat preserved-fd");
}
