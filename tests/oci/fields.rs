//! Rarely used fields and environments: each has its effect, or is refused by name.

use crate::support::{Done, Lab, finish, skip};
use serde_json::json;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

/// The command with an additional variable, or through a line of shell in which `"$@"` is the command.
pub fn through(lab: &Lab, arguments: &[&str], shell: &str) -> Done {
    let command = lab.command(arguments);
    let mut wrapped = Command::new("/bin/sh");
    wrapped.args(["-c", shell, "sh"]).arg(command.get_program()).args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(lab.path());
    finish(wrapped.stdin(Stdio::null()))
}

#[test]
fn a_service_manager_hears_that_the_container_is_ready_and_nothing_else() {
    let Some(mut lab) = Lab::new() else { return };
    // busybox cannot send a datagram to a unix socket: the test's program does, in the container.
    let Some(()) = lab.compile("say", SAY) else { return };
    lab.sh("test $NOTIFY_SOCKET = /run/notify/notify.sock || exit 1; say STATUS=early; say 'STATUS=x\nREADY=1\nMAINPID=4'; sleep 100");
    for verb in ["start", "run", "start"] {
        let path = lab.path().join(format!("manager-{verb}"));
        let manager = UnixDatagram::bind(&path).unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 512];
            let mut said = Vec::new();
            manager.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            while said.len() < 2 {
                let length = manager.recv(&mut bytes).unwrap(); // and so closes the descriptor of the barrier
                said.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
            }
            said
        });
        let verbs: &[&[&str]] =
            if verb == "start" { &[&["create", &lab.id], &["start", &lab.id]] } else { &[&["run", "-d", &lab.id]] };
        for words in verbs {
            let mut command = lab.command(words);
            let status =
                command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            assert!(status.success(), "{words:?}");
        }
        let pid = lab.state()["pid"].to_string();
        assert_eq!(reader.join().unwrap(), [format!("READY=1\nMAINPID={pid}\n"), "BARRIER=1".to_owned()]);
        lab.on(&["delete", "--force"]).succeeded();
        std::fs::remove_file(path).unwrap();
        if verb == "run" {
            // Its root may not enter our private directory of records.
            lab.user_namespace();
        }
    }
}

/// Sends its argument to `$NOTIFY_SOCKET`.
const SAY: &str = r#"
    #include <stdlib.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/un.h>
    int main(int count, char **words) {
        struct sockaddr_un to = { .sun_family = AF_UNIX };
        strncpy(to.sun_path, getenv("NOTIFY_SOCKET"), sizeof to.sun_path - 1);
        int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        return sendto(fd, words[1], strlen(words[1]), 0, (void *)&to, sizeof to) < 0;
    }"#;

#[test]
fn resctrl_is_refused_with_the_cause_where_the_kernel_has_none() {
    let Some(mut lab) = Lab::new() else { return };
    if std::fs::read_to_string("/proc/filesystems").unwrap().contains("resctrl") {
        return skip("this kernel has resctrl");
    }
    lab.config["linux"]["intelRdt"] = json!({"schemata": ["L3:0=f"]});
    lab.create().failed_with("this kernel has no resctrl file system");
    lab.config["linux"].as_object_mut().unwrap().remove("intelRdt");
    lab.args(&["sleep", "100"]).start();
    for flag in ["--l3-cache-schema=L3:0=f", "--mem-bw-schema=MB:0=50"] {
        lab.brig(&["update", flag, &lab.id]).failed_with("without `linux.intelRdt`");
    }
}

#[test]
fn labels_are_refused_with_runcs_words_where_nobody_reads_them() {
    let Some(mut lab) = Lab::new() else { return };
    let good = lab.args(&["sleep", "100"]).config.clone();
    if Path::new("/sys/fs/selinux/enforce").exists() {
        skip("this kernel has SELinux");
    } else {
        let words = "selinux label is specified in config, but selinux is disabled or not supported";
        lab.config["process"]["selinuxLabel"] = json!("system_u:system_r:container_t:s0");
        lab.create().failed_with(words);
        lab.config = good.clone();
        lab.config["linux"]["mountLabel"] = json!("system_u:object_r:container_file_t:s0");
        lab.create().failed_with("set the SELinux context: invalid argument");
        lab.config = good.clone();
        lab.start();
        let done = lab.brig(&["exec", "--process-label", "system_u:system_r:container_t:s0", &lab.id, "true"]);
        assert_eq!(done.failed_with(words).status, 255);
        lab.on(&["delete", "--force"]).succeeded();
    }
    if Path::new("/sys/module/apparmor").exists() {
        return skip("this kernel has AppArmor");
    }
    let words = "apparmor: config provided but apparmor not supported";
    lab.config["process"]["apparmorProfile"] = json!("docker-default");
    lab.create().failed_with(words);
    lab.config = good;
    lab.start();
    assert_eq!(lab.brig(&["exec", "--apparmor", "docker-default", &lab.id, "true"]).failed_with(words).status, 255);
}

#[test]
fn labels_of_apparmor_hold_for_the_container_and_for_exec() {
    let Some(mut lab) = Lab::new() else { return };
    let Some(profile) = Profile::load(&lab, "", "file, capability, network, deny /etc/** r,") else { return };
    let line = "cat /proc/self/attr/current; cat /etc/passwd > /dev/null && echo read";
    let confined = format!("{} (enforce)\n", profile.name);
    lab.config["process"]["apparmorProfile"] = json!(profile.name);
    let first = lab.sh(line).run();
    assert_eq!(first.out, confined, "{}", first.err);
    lab.args(&["sleep", "100"]).start();
    assert_eq!(lab.exec(line).out, confined);
    let by_flag = |name: &str| lab.brig(&["exec", "--apparmor", name, &lab.id, "/bin/sh", "-c", line]);
    assert_eq!(by_flag("unconfined").out, "unconfined\nread\n");
    assert_eq!(by_flag("no-such-profile").failed_with("apply the AppArmor profile `no-such-profile`").status, 255);
}

/// An AppArmor profile, unloaded on drop.
pub struct Profile {
    /// Its name.
    pub name: String,
    source: std::path::PathBuf,
}

impl Profile {
    /// Loads a profile with these flags and rules; `None` without AppArmor.
    pub fn load(lab: &Lab, flags: &str, rules: &str) -> Option<Profile> {
        if !std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y')) {
            skip("needs a kernel with AppArmor");
            return None;
        }
        let (name, source) = (format!("brig-{}", lab.id), lab.path().join("profile"));
        std::fs::write(&source, format!("profile {name} {flags} {{ {rules} }}\n")).unwrap();
        finish(Command::new("apparmor_parser").args(["--replace", "--skip-cache"]).arg(&source)).succeeded();
        Some(Profile { name, source })
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        let _ = finish(Command::new("apparmor_parser").arg("--remove").arg(&self.source));
    }
}

#[test]
fn landlock_rules_of_the_annotation_hold_for_the_container_and_for_exec() {
    let line = "echo x > /tmp/a && echo tmp; echo x > /etc/a && echo etc; ls /proc > /dev/null && echo proc";
    let run = |weakened: bool| {
        let mut lab = Lab::new()?;
        if weakened {
            lab.weaken("landlock")?;
        }
        let rules = json!({"rules": [
            {"path": "/bin", "access": "read-execute"},
            {"path": "/tmp", "access": "write"},
            {"path": "/dev", "access": "device"},
        ]});
        lab.config["annotations"] = json!({"dev.brig.landlock": rules.to_string()});
        let first = lab.sh(line).run().out;
        lab.args(&["sleep", "100"]).start();
        Some((first, lab.exec(line).out))
    };
    let Some((first, second)) = run(false) else { return };
    assert_eq!((first.as_str(), second.as_str()), ("tmp\n", "tmp\n"));
    if let Some((first, second)) = run(true) {
        assert_eq!((first.as_str(), second.as_str()), ("tmp\netc\nproc\n", "tmp\netc\nproc\n"), "the control");
    }
}

#[test]
fn a_user_namespace_is_joined_by_its_path() {
    let Some(mut first) = Lab::new() else { return };
    first.user_namespace().args(&["sleep", "100"]).start();
    let pid = first.state()["pid"].to_string();
    let Some(mut second) = Lab::new() else { return };
    second.sh("cat /proc/self/uid_map; readlink /proc/self/ns/user; id -u; hostname; touch /made; echo $$; cat /proc/self/oom_score_adj");
    second.config["process"]["oomScoreAdj"] = json!(77);
    open_to_all(&second);
    let mut joined = json!([]);
    for kind in ["user", "network", "ipc"] {
        let file = if kind == "network" { "net" } else { kind };
        joined.as_array_mut().unwrap().push(json!({"type": kind, "path": format!("/proc/{pid}/ns/{file}")}));
    }
    for kind in ["pid", "mount", "uts", "cgroup"] {
        joined.as_array_mut().unwrap().push(json!({"type": kind}));
    }
    second.config["linux"]["namespaces"] = joined;
    for with_maps in [false, true] {
        if with_maps {
            let map = json!([{"containerID": 0, "hostID": 700_000, "size": 65_536}]);
            second.config["linux"]["uidMappings"] = map.clone();
            second.config["linux"]["gidMappings"] = map;
        }
        let done = second.run();
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
        let expected = ["0 700000 65536", namespace.to_str().unwrap(), "0", "brig", "1", "77"];
        let lines: Vec<_> =
            done.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, expected, "{}", done.err);
    }
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(second.root("/made")).unwrap().uid(), 700_000);
}

#[test]
fn a_cgroup_namespace_is_joined_together_with_a_user_namespace() {
    // A new user namespace, which has no power over the other; and one that is joined as well, as in a pod.
    for is_pod in [false, true] {
        let Some(mut first) = Lab::new() else { return };
        first.without("cgroup").namespace("cgroup").args(&["sleep", "100"]);
        if is_pod {
            first.user_namespace();
        }
        first.start();
        let pid = first.state()["pid"].as_i64().unwrap();
        let Some(mut second) = Lab::new() else { return };
        second.without("cgroup").user_namespace();
        open_to_all(&second);
        let namespaces = second.config["linux"]["namespaces"].as_array_mut().unwrap();
        if is_pod {
            namespaces.retain(|each| !["user", "network"].contains(&each["type"].as_str().unwrap()));
            namespaces.push(json!({"type": "user", "path": format!("/proc/{pid}/ns/user")}));
            namespaces.push(json!({"type": "network", "path": format!("/proc/{pid}/ns/net")}));
        }
        namespaces.push(json!({"type": "cgroup", "path": format!("/proc/{pid}/ns/cgroup")}));
        let line = "readlink /proc/self/ns/cgroup; cat /proc/self/uid_map; cat /proc/self/cgroup";
        let done = second.sh(line).run();
        let lines: Vec<_> = done.succeeded().out.lines().collect();
        let theirs = std::fs::read_link(format!("/proc/{pid}/ns/cgroup")).unwrap();
        assert_eq!(lines[0], theirs.to_str().unwrap(), "pod: {is_pod}");
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["0", "700000", "65536"]);
        // Its cgroup is a sibling of the root that it sees; an entering process is there too.
        let id = second.id.clone();
        let beside = |text: &str| text.lines().any(|line| line.contains("/..") && line.ends_with(&id));
        assert!(beside(&done.out), "pod: {is_pod}: {}", done.out);
        second.args(&["sleep", "100"]).start();
        let entered = second.exec(line);
        assert_eq!(entered.succeeded().out.lines().next(), theirs.to_str());
        assert!(beside(&entered.out), "pod: {is_pod}: {}", entered.out);
    }
}

/// Lets a user of another namespace make files in the root.
fn open_to_all(lab: &Lab) {
    use std::os::unix::fs::PermissionsExt;
    for path in [lab.path().to_path_buf(), lab.root("/")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
}

#[test]
fn sources_that_only_the_hosts_root_may_reach_are_mounted_in_a_user_namespace_too() {
    let Some(mut lab) = Lab::new() else { return };
    let source = lab.path().join("closed/inner");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::create_dir(lab.root("/in")).unwrap();
    std::fs::write(source.join("file"), "content").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(lab.path().join("closed"), std::fs::Permissions::from_mode(0o700)).unwrap();
    lab.user_namespace().mount("/in", "bind", source.to_str().unwrap(), &["rbind", "ro"]);
    let done = lab.sh("cat /in/file; echo; grep -c shared: /proc/self/mountinfo").run();
    assert_eq!(done.out, "content\n0\n", "{}", done.err);
}

#[test]
fn network_devices_move_with_their_addresses_and_come_up() {
    let Some(mut lab) = Lab::new() else { return };
    if !Path::new("/sbin/ip").exists() {
        return skip("needs iproute2");
    }
    lab.config["linux"]["netDevices"] = json!({"brigtest0": {"name": "eth%d"}, "brigtest1": {}});
    lab.sh("ip -o addr show; ip link show eth0; ip link show brigtest1");
    let make = "unshare -n /bin/sh -c 'ip link add brigtest0 type veth peer name brigtest1 && \
                ip addr add 192.0.2.7/24 dev brigtest0 && ip addr add 2001:db8::7/64 dev brigtest0 && \"$@\"; \
                ip link show brigtest0 2>&1' sh \"$@\"";
    let mut done = through(&lab, &["run", &lab.id], make);
    done.out = done.out.replace("NO-CARRIER,", ""); // the kernel finds the carrier a moment later
    for words in [
        "eth0    inet 192.0.2.7/24",
        "eth0    inet6 2001:db8::7/64",
        "eth0@brigtest1: <BROADCAST,MULTICAST,UP",
        "brigtest1@eth0: <BROADCAST,MULTICAST,UP",
        "does not exist",
    ] {
        assert!(done.out.contains(words), "`{words}` is not in {}\n{}", done.out, done.err);
    }
    lab.config["linux"]["netDevices"] = json!({"lo": {"name": "sixteen-letters!"}});
    lab.create().failed_with("no name of a network device");
}

#[test]
fn without_a_cgroup_manager_no_group_is_made_and_no_limit_is_promised() {
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["resources"] = json!({});
    // it would see its own cgroup at the root
    lab.without("cgroup").sh("cat /proc/self/cgroup; mkdir /sys/fs/cgroup/made");
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let done = lab.brig(&["--cgroup-manager=disabled", "run", &lab.id]);
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&done.out), sorted(&own));
    assert!(done.err.contains("Read-only file system"), "{}", done.err);
    lab.config["linux"]["resources"] = json!({"pids": {"limit": 7}});
    lab.brig(&["--cgroup-manager=disabled", "run", &lab.id]).failed_with("limits need a cgroup");
}

#[test]
fn affinity_is_that_of_the_group_and_of_exec_what_it_says() {
    let Some(mut lab) = Lab::new() else { return };
    let line = "grep Cpus_allowed_list /proc/self/status | cut -f2";
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if all == "0\n" {
        return skip("needs two processors");
    }
    lab.sh(line);
    // Not the caller's affinity, which may be one processor.
    assert_eq!(through(&lab, &["run", &lab.id], "taskset -c 0 \"$@\"").out, all);
    lab.args(&["sleep", "100"]).start();
    for (affinity, expected) in [
        (json!({"initial": "0", "final": "1"}), "1\n"),
        (json!({"initial": "0"}), "0\n"),
        (json!({"final": "0-1"}), "0-1\n"),
    ] {
        let mut process = lab.config["process"].clone();
        process["args"] = json!(["/bin/sh", "-c", line]);
        process["execCPUAffinity"] = affinity;
        std::fs::write(lab.path().join("process.json"), process.to_string()).unwrap();
        assert_eq!(lab.brig(&["exec", "--process", "process.json", &lab.id]).out, expected);
    }
}

#[test]
fn the_root_has_the_propagation_that_was_asked_for() {
    let Some(mut lab) = Lab::new() else { return };
    // In a namespace with shared mounts, like that of a service manager's host.
    let shell = "unshare -m /bin/sh -c 'mount --make-rshared / && \"$@\"' sh \"$@\"";
    lab.sh("grep -E '^[0-9]+ [0-9]+ [0-9:]+ [^ ]+ / ' /proc/self/mountinfo");
    for (word, expected) in [
        ("", " - "),
        ("slave", "master:"),
        ("rslave", "master:"),
        ("shared", "shared:"),
        ("rshared", "shared:"),
        ("private", " - "),
        ("rprivate", " - "),
        ("unbindable", "unbindable"),
        ("runbindable", "unbindable"),
    ] {
        lab.config["linux"]["rootfsPropagation"] = json!(word);
        let done = through(&lab, &["run", &lab.id], shell);
        let fields = done.out.split_once(" - ").map(|(left, _)| left.split(' ').skip(6).collect::<Vec<_>>().join(" "));
        let fields = fields.unwrap_or_else(|| panic!("{word}: {}", done.err));
        match expected {
            " - " => assert_eq!(fields, "", "{word}"),
            expected => assert!(fields.contains(expected), "{word}: {fields}"),
        }
    }
}

#[test]
fn sockets_of_a_service_manager_come_before_those_that_are_preserved() {
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("echo $LISTEN_FDS $LISTEN_PID; cat <&3; cat <&4; ls /proc/self/fd | wc -l; test -e /proc/self/fd/5 && echo leak");
    for (name, text) in [("one", "first"), ("two", "second"), ("three", "third")] {
        std::fs::File::create(lab.path().join(name)).unwrap().write_all(text.as_bytes()).unwrap();
    }
    let shell = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\" 3< one 4< two 5< three";
    let done = through(&lab, &["run", "--preserve-fds", "1", &lab.id], shell);
    assert!(done.out.starts_with("1 1\nfirstsecond"), "{} {}", done.out, done.err);
    assert!(!done.out.contains("leak"), "{}", done.out);
}

#[test]
fn the_containers_variables_are_no_other_users_to_read() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]);
    through(&lab, &["create", &lab.id], "umask 0; exec \"$@\" > /dev/null 2>&1").succeeded();
    use std::os::unix::fs::PermissionsExt;
    let config = lab.path().join("records").join(&lab.id).join("config.json");
    assert_eq!(std::fs::metadata(config).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_container_is_in_systemds_own_hierarchy_too() {
    let Some(mut lab) = Lab::new() else { return };
    if !std::fs::read_to_string("/proc/self/cgroup").unwrap().contains("name=systemd") {
        return skip("needs the hierarchy name=systemd of v1");
    }
    lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
    lab.args(&["sleep", "100"]).start();
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", lab.state()["pid"])).unwrap();
    assert!(groups.contains(&format!("name=systemd:/{}", lab.id)), "{groups}");
}
