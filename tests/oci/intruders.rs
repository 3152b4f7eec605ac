//! More known attacks on runtimes: from inside a container that other processes enter, with the caller's terminal,
//! variables and names. As in `attacks`, each succeeds on the weakened build.

use crate::attacks::attempt;
use crate::support::{Lab, changed_mounts, finish};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A line of shell around our command, which is `"$@"` in it.
fn around(lab: &Lab, arguments: &[&str], shell: &str) -> crate::support::Done {
    let command = lab.command(arguments);
    let mut wrapped = Command::new("/bin/sh");
    wrapped.args(["-c", shell, "sh"]).arg(command.get_program()).args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(lab.path());
    finish(wrapped.stdin(Stdio::null()))
}

#[test]
fn processes_that_enter_a_container_cannot_be_looked_into() {
    // T-02, T-31, CVE-2016-9962: the container's root watches for entering processes, and may trace those without more
    // power
    attempt("undumpable", looks_into_who_enters);
    // In a user namespace root may trace every process. A process that changes its user on entry is undumpable by that,
    // and must be before if it enters too early.
    attempt("joined-first,undumpable", |lab| looks_into_who_enters(lab.user_namespace()));
}

/// Whether the container has seen the program of an entering process that is not one of its programs.
fn looks_into_who_enters(lab: &mut Lab) -> bool {
    if lab.config["linux"]["uidMappings"].is_array() {
        let all: Vec<_> = (0..=40).filter_map(capability).collect();
        for set in ["bounding", "effective", "permitted"] {
            lab.config["process"]["capabilities"][set] = json!(all);
        }
    }
    // Each new process is stopped at once, and continues after it was read.
    let look = "ls -l /proc/[0-9]*/exe 2> /dev/null; kill -CONT -1; usleep 3000";
    lab.sh(&format!("while :; do kill -STOP -1 2> /dev/null && {{ {look}; }}; done"));
    let seen = lab.path().join("seen");
    for verb in ["create", "start"] {
        let mut command = lab.command(&[verb, &lab.id]);
        let output = std::fs::File::create(&seen).unwrap();
        assert!(command.stdout(output).stderr(Stdio::null()).status().unwrap().success());
    }
    // An unguarded process exists for some microseconds: on the weakened build it may take long to catch one.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        for _ in 0..40 {
            lab.brig(&["exec", &lab.id, "/bin/true"]).succeeded();
        }
        let found = std::fs::read_to_string(&seen).unwrap();
        assert!(found.contains("-> /bin/busybox"), "it has not looked");
        if found.lines().filter_map(|line| line.split_once("-> ")).any(|(_, program)| !program.starts_with("/bin/")) {
            return true;
        }
        if lab.weakened.is_none() || Instant::now() > end {
            return false;
        }
    }
}

fn capability(number: u8) -> Option<String> {
    let names = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST \
                 NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE \
                 SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM \
                 BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";
    names.split_whitespace().nth(number.into()).map(|name| format!("CAP_{name}"))
}

/// Puts a volume over /proc in which there is this file, empty, with nothing masked.
fn false_proc(lab: &mut Lab, file: &str) -> std::path::PathBuf {
    let proc = lab.path().join("fake");
    let file = proc.join(file);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "").unwrap();
    for key in ["maskedPaths", "readonlyPaths"] {
        lab.config["linux"].as_object_mut().unwrap().remove(key);
    }
    lab.unmount("/proc").mount("/proc", "bind", &proc.display().to_string(), &["rbind"]);
    file
}

#[test]
fn labels_are_never_written_to_files_of_the_image() {
    // T-04, T-13, CVE-2019-16884, CVE-2025-52881: a volume over /proc with a file at the path of the label
    attempt("own-procfs", |lab| {
        let fake = false_proc(lab, "thread-self/attr/apparmor/exec");
        lab.config["process"]["apparmorProfile"] = json!("confined");
        lab.args(&["true"]).run();
        !std::fs::read_to_string(fake).unwrap().is_empty()
    });
}

#[test]
fn kernel_parameters_are_never_written_to_files_of_the_image() {
    // T-13, CVE-2025-52881: a volume over /proc with a file at the path of the parameter
    attempt("own-procfs", |lab| {
        let fake = false_proc(lab, "sys/net/ipv4/ip_unprivileged_port_start");
        lab.mount("/tmp", "proc", "proc", &[]);
        lab.config["linux"]["sysctl"] = json!({"net.ipv4.ip_unprivileged_port_start": "77"});
        let done = lab.args(&["cat", "/tmp/sys/net/ipv4/ip_unprivileged_port_start"]).run();
        let deceived = !std::fs::read_to_string(fake).unwrap().is_empty();
        // On the weakened build the write goes to the other file; otherwise no folder appears there.
        assert!(if deceived { done.out == "1024\n" } else { done.err.contains("not of type proc") }, "{}", done.err);
        deceived
    });
}

#[test]
fn a_profile_around_us_that_does_not_know_a_detached_procfs_is_no_obstacle() {
    // T-26, runc issue 4968: a profile such as LXC's takes a file of a detached procfs for one of /sys
    let Some(lab) = Lab::new() else { return };
    let rules = "file, capability, network, mount, umount, pivot_root, signal, ptrace, unix, userns, change_profile, deny /sys/net/** wkl,";
    let Some(profile) = crate::fields::Profile::load(&lab, "flags=(attach_disconnected,mediate_deleted)", rules) else {
        return;
    };
    let run = |lab: &mut Lab| {
        lab.config["linux"]["sysctl"] = json!({"net.ipv4.ip_forward": "1"});
        lab.sh("cat /proc/sys/net/ipv4/ip_forward");
        around(lab, &["run", &lab.id], &format!("exec aa-exec -p {} -- \"$@\"", profile.name))
    };
    let Some(mut strong) = Lab::new() else { return };
    assert_eq!(run(&mut strong).succeeded().out, "1\n");
    let Some(mut weak) = Lab::new() else { return };
    if weak.weaken("procfs-in-sight").is_some() {
        run(&mut weak).failed_with("permission denied");
    }
}

#[test]
fn a_link_of_the_image_does_not_lead_what_we_inject_to_the_host() {
    // T-14, CVE-2025-24965: the directory of the socket of a service manager
    attempt("resolve", |lab| {
        let canary = lab.path().join("canary");
        std::fs::create_dir(&canary).unwrap();
        symlink(&canary, lab.root("/run")).unwrap();
        lab.args(&["true"]);
        let mut command = lab.command(&["create", &lab.id]);
        let _ = command.env("NOTIFY_SOCKET", "/nowhere").stdout(Stdio::null()).stderr(Stdio::null()).status();
        std::fs::read_dir(&canary).unwrap().count() != 0
    });
}

#[test]
fn long_and_many_lines_of_maps_and_paths_are_refused() {
    // T-07, CVE-2021-43784: a length of 16 bits overflows, and the rest is a path of the host, or a foreign map
    attempt("long-values", |lab| {
        let path = format!("/proc/self/ns/net{}", "/".repeat(1 << 16));
        lab.without("network").config["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "network", "path": path}));
        let hosts = std::fs::read_link("/proc/self/ns/net").unwrap();
        lab.args(&["readlink", "/proc/self/ns/net"]).run().out.trim() == hosts.to_str().unwrap()
    });
    attempt("long-values", |lab| {
        // Lines of one id each, so many that one ends 65536 bytes after the end of one of the first lines.
        let mut text = String::new();
        let mut ends = std::collections::BTreeSet::new();
        let count = (1..)
            .find(|number| {
                text += &format!("{} {} 1\n", number - 1, 699_999 + number);
                ends.insert(text.len());
                text.len() > 1 << 16 && ends.contains(&(text.len() - (1 << 16)))
            })
            .unwrap();
        let many: Vec<_> =
            (0..count).map(|number| json!({"containerID": number, "hostID": 700_000 + number, "size": 1})).collect();
        lab.user_namespace().config["linux"]["uidMappings"] = json!(many);
        let lines = lab.args(&["cat", "/proc/self/uid_map"]).run().out.lines().count();
        lines > 0 && lines < count
    });
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["true"]).user_namespace();
    let good = lab.config.clone();
    let many: Vec<_> =
        (0..3000).map(|number| json!({"containerID": number, "hostID": 700_000 + number, "size": 1})).collect();
    lab.config["linux"]["uidMappings"] = json!(many);
    lab.create().failed_with("340 lines");
    lab.config = good;
    lab.config["linux"]["namespaces"][0] = json!({"type": "pid", "path": format!("/{}", "x/".repeat(35_000))});
    lab.create().failed_with("file name too long");
}

#[test]
fn strange_names_of_destinations_are_only_names() {
    // T-20, CVE-2026-119101: a value in the form of another table's field, and a link of the image to a directory of
    // the host
    attempt("resolve", |lab| {
        let (source, there) = (lab.path().join("source"), lab.path().join("there"));
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir(&there).unwrap();
        std::fs::write(source.join("file"), "in").unwrap();
        symlink(&there, lab.root("/one")).unwrap();
        symlink("one", lab.root("/two")).unwrap();
        std::fs::create_dir_all(lab.root(there.to_str().unwrap())).unwrap();
        for name in ["/a]:b", "/c\nd rw", "/two"] {
            lab.mount(name, "bind", source.to_str().unwrap(), &["bind", "ro"]);
        }
        let there = there.display();
        let done =
            lab.sh(&format!("cat '/a]:b/file' /c*/file; touch '/a]:b/x' && echo written; cat {there}/file")).run();
        assert!(done.out.starts_with("inin") && done.err.contains("Read-only"), "{} {}", done.out, done.err);
        done.out != "ininin" // it went to the target of the link on the host
    });
}

#[test]
fn a_user_with_one_letter_too_many_is_not_root() {
    // T-15, CVE-2026-30892
    attempt("user-number", |lab| {
        lab.args(&["sleep", "60"]);
        lab.start();
        let words = ["1:", ":1", " 1", "1x", "x", "4294967296", "-1", ""];
        let ran: Vec<_> =
            words.iter().filter(|word| lab.brig(&["exec", "--user", word, &lab.id, "id", "-u"]).status == 0).collect();
        assert_eq!(lab.brig(&["exec", "--user", "1", &lab.id, "id", "-u"]).out, "1\n");
        !ran.is_empty()
    });
}

#[test]
fn a_number_of_a_user_is_never_looked_up_as_a_name() {
    // T-01, CVE-2016-3697
    attempt("no-name-service", |lab| {
        std::fs::write(lab.root("/etc/passwd"), "1000:x:0:0::/:/bin/sh\nroot:x:0:0::/root:/bin/sh\n").unwrap();
        lab.args(&["sleep", "60"]);
        lab.start();
        lab.brig(&["exec", "--user", "root", &lab.id, "id", "-u"]).failed_with("is not a user or group id");
        lab.brig(&["exec", "--user", "1000", &lab.id, "id", "-u"]).out != "1000\n"
    });
}

#[test]
fn the_propagation_of_the_hosts_mounts_is_not_ours_to_change() {
    // T-22, runc 1.5.3
    attempt("hosts-propagation", |lab| {
        lab.without("mount").config["mounts"] = json!([]);
        for key in ["maskedPaths", "readonlyPaths"] {
            lab.config["linux"].as_object_mut().unwrap().remove(key);
        }
        lab.config["linux"]["rootfsPropagation"] = json!("rshared");
        lab.args(&["true"]);
        // In a namespace of the test: the control changes it.
        let shell = "exec unshare -m /bin/sh -c 'cat /proc/self/mountinfo > before; \"$@\"; cat /proc/self/mountinfo > after' sh \"$@\"";
        around(lab, &["run", &lab.id], shell);
        let read = |name: &str| std::fs::read_to_string(lab.path().join(name)).unwrap();
        !changed_mounts(&read("before"), &read("after")).is_empty()
    });
}

#[test]
fn a_root_that_is_moved_changes_no_mount_of_the_host() {
    // All mounts are shared, and the root is a mount, as an engine's is.
    attempt("hosts-propagation", |lab| {
        // The old root's kernel mounts would be more.
        let expected = lab.sh("grep -cE ' - (proc|sysfs) ' /proc/self/mountinfo").run().succeeded().out.clone();
        lab.config["linux"]["rootfsPropagation"] = json!("rshared");
        let shell = "exec unshare -m /bin/sh -c 'mount --bind rootfs rootfs; mount --make-rshared /; \
                     cat /proc/self/mountinfo > before; \"$@\"; cat /proc/self/mountinfo > after' sh \"$@\"";
        let done = around(lab, &["run", "--no-pivot", &lab.id], shell);
        let read = |name: &str| std::fs::read_to_string(lab.path().join(name)).unwrap();
        let is_changed = !changed_mounts(&read("before"), &read("after")).is_empty();
        assert!(is_changed || done.out == expected, "{} {}", done.out, done.err);
        // Without the mounts of cgroups, the attack's brig could not remove them.
        let groups = finish(Command::new("find").args(["/sys/fs/cgroup", "-depth", "-name", &lab.id])).out.clone();
        groups.lines().for_each(|group| std::fs::remove_dir(group).unwrap());
        is_changed
    });
}

#[test]
fn the_hosts_sysfs_is_read_only_to_the_last_mount() {
    // T-23: a container with the host's network gets the host's /sys, with its submounts
    attempt("host-sysfs", |lab| {
        lab.user_namespace()
            .without("network")
            .sh("grep ' /sys' /proc/self/mountinfo | grep -v ' /sys/fs/cgroup ' | cut -d' ' -f6 | grep -c '^rw'");
        lab.unmount("/sys/fs/cgroup");
        for key in ["maskedPaths", "readonlyPaths"] {
            lab.config["linux"].as_object_mut().unwrap().remove(key);
        }
        let done = lab.run();
        assert!(!done.out.is_empty(), "{}", done.err);
        done.out.trim() != "0"
    });
}

#[test]
fn names_that_lead_out_of_the_directory_of_records_make_nothing() {
    // T-24
    attempt("container-id", |lab| {
        lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
        lab.args(&["true"]);
        let outside = lab.path().join("outside");
        let mut command = lab.command(&["create", "../outside"]);
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let through = outside.exists();
        if through {
            assert!(lab.brig(&["delete", "--force", "../outside"]).status == 0);
        }
        through
    });
}

#[test]
fn callers_learn_which_annotations_reach_the_host() {
    // T-25
    attempt("unsafe-annotations", |lab| {
        let features: Value = serde_json::from_str(&lab.brig(&["features"]).out).unwrap();
        let told = features["potentiallyUnsafeConfigAnnotations"].as_array().unwrap();
        !["bundle", "org.systemd.property.", "org.criu.config"].iter().all(|name| told.contains(&json!(name)))
    });
}

#[test]
fn the_callers_terminal_cannot_be_reached_through_dev_tty() {
    // T-30, CVE-2017-5226: without a controlling terminal there is nothing to push characters into either
    attempt("new-session", |lab| {
        lab.sh("exec 2> /dev/null; echo reached > /dev/tty");
        let shell = "exec script -qec \"$(printf '%s ' \"$@\") > /dev/null 2>&1\" /dev/null";
        around(lab, &["run", &lab.id], shell).out.contains("reached")
    });
}

#[test]
fn the_root_groups_of_v1_cannot_be_reached() {
    // T-32, CVE-2022-0492: no release_agent is visible, and the visible cgroups are read-only
    let Some(mut lab) = Lab::new() else { return };
    let line = "find /sys/fs/cgroup -name release_agent; for each in /sys/fs/cgroup/*/notify_on_release; do echo 1 > $each && echo written; done";
    let done = lab.sh(line).run();
    assert_eq!(done.out, "", "{}", done.err);
    // The same bundle with the host's whole tree, as a careless caller would mount it, shows what can be found.
    lab.unmount("/sys/fs/cgroup").mount("/sys/fs/cgroup", "bind", "/sys/fs/cgroup", &["rbind", "ro"]);
    if std::path::Path::new("/sys/fs/cgroup/pids/release_agent").exists() {
        assert!(lab.sh("find /sys/fs/cgroup -name release_agent").run().out.contains("release_agent"));
    }
}

#[test]
fn abstract_sockets_of_the_host_are_out_of_reach() {
    // T-33, CVE-2020-15257
    let Some(mut lab) = Lab::new() else { return };
    use std::os::linux::net::SocketAddrExt;
    let name = format!("brig-test-{}", lab.id);
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let line = format!("grep -c {name} /proc/net/unix");
    assert_eq!(lab.sh(&line).run().out, "0\n");
    assert_eq!(lab.without("network").unmount("/sys").unmount("/sys/fs/cgroup").run().out, "1\n", "the control");
}

#[test]
fn no_library_of_the_image_is_loaded_by_who_prepares_or_enters_the_container() {
    // T-34, CVE-2019-14271: the image has its own name service library, which prints when it is loaded
    if Command::new("cc").arg("--version").output().is_err() {
        return crate::support::skip("needs cc");
    }
    attempt("no-name-service", |lab| {
        let source = lab.path().join("evil.c");
        let line = "__attribute__((constructor)) static void loaded(void) { close(open(\"/loaded\", O_CREAT | O_WRONLY, 0600)); }";
        std::fs::write(&source, format!("#include <fcntl.h>\n#include <unistd.h>\n{line}\n")).unwrap();
        let libraries = lab.root("/lib/x86_64-linux-gnu");
        std::fs::create_dir_all(&libraries).unwrap();
        let library = libraries.join("libnss_evil.so.2");
        // Without the C library's start, so that it needs no file of the image.
        let mut made = Command::new("cc");
        let made = made.args(["-shared", "-fPIC", "-nostartfiles", "-o"]).arg(&library).arg(&source);
        assert!(made.status().unwrap().success());
        std::fs::create_dir_all(lab.root("/usr/lib")).unwrap();
        symlink("x86_64-linux-gnu/libnss_evil.so.2", lab.root("/lib/libnss_evil.so.2")).unwrap();
        std::fs::write(lab.root("/etc/nsswitch.conf"), "passwd: evil\ngroup: evil\n").unwrap();
        lab.args(&["sleep", "60"]);
        lab.start();
        for user in ["0", "1000:1000"] {
            lab.brig(&["exec", "--user", user, &lab.id, "/bin/true"]).succeeded();
        }
        lab.root("/loaded").exists()
    });
}

#[test]
fn hooks_have_no_variable_that_was_not_given_to_them() {
    // T-35, CVE-2025-23266
    attempt("hook-environment", |lab| {
        let seen = lab.path().join("seen");
        let line = format!("env > {}", seen.display());
        let hook = json!([{"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin:/usr/bin"]}]);
        lab.config["hooks"] = json!({"createContainer": hook});
        lab.config["process"]["env"] = json!(["PATH=/bin", "LD_PRELOAD=/evil.so"]);
        lab.args(&["true"]);
        assert!(lab.command(&["run", &lab.id]).env("LD_CANARY", "x").status().unwrap().success());
        let text = std::fs::read_to_string(seen).unwrap();
        assert!(text.contains("PATH=/bin:/usr/bin"));
        text.contains("LD_")
    });
}

#[test]
fn a_user_that_is_no_number_of_a_user_is_not_root() {
    // T-38: the largest number means "no change" to the kernel
    let Some(mut lab) = Lab::new() else { return };
    for (uid, words) in
        [(json!(4_294_967_296_u64), "invalid value"), (json!(-1), "invalid value"), (json!("1000"), "invalid type")]
    {
        lab.config["process"]["user"] = json!({"uid": uid, "gid": 0});
        lab.create().failed_with(words);
    }
    lab.config["process"]["user"] = json!({"uid": 2_147_483_648_u32, "gid": 0});
    assert_eq!(lab.sh("id -u").run().out, "2147483648\n");
}

#[test]
fn hooks_of_a_forged_checkpoint_do_not_run() {
    // T-40, CVE-2026-95837: hooks and mounts are those of the caller's bundle, never of files beside the images
    let Some(lab) = crate::checkpoint::lab() else { return };
    let (frozen, victim, pid) = (lab.images(), lab.path().join("victim"), lab.path().join("pid"));
    std::fs::create_dir(&frozen).unwrap();
    let mut spec = lab.config.clone();
    let touch = json!({ "path": "/bin/touch", "args": ["touch", victim] });
    spec["hooks"] = json!({ "prestart": [touch], "createRuntime": [touch], "poststart": [touch] });
    for name in ["config.json", "config.dump", "spec.dump", "inventory.img"] {
        std::fs::write(frozen.join(name), spec.to_string()).unwrap();
    }
    lab.restore(&[]).failed_with("descriptors.json");
    std::fs::write(frozen.join("descriptors.json"), "[]").unwrap();
    lab.restore(&[]).failed_with("criu failed");
    // In the words of containerd's shim.
    let at = frozen.to_str().unwrap();
    lab.restore(&["--work-path", at, "--no-pivot", "--pid-file", pid.to_str().unwrap()]).failed_with("criu failed");
    lab.on(&["state"]).failed_with("does not exist");
    assert!(!victim.exists() && !pid.exists(), "something was restored");
}
