//! Containers of an ordinary user: with the set-uid helpers and a range of ids, and with only the user's own id.

use crate::support::{Done, Lab, finish, skip};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// An account that no Debian machine has, with a unique range; only its number matters.
const USER: u32 = 61_237;
const FIRST: u32 = 0x6000_0000;

/// A bundle that belongs to an ordinary user, and the user's directory for records.
pub(crate) struct Rootless {
    pub(crate) lab: Lab,
    /// Whether the command runs in a mount namespace in which files of /etc give the user a range.
    range: bool,
}

impl Rootless {
    pub(crate) fn new(range: bool) -> Option<Rootless> {
        let mut lab = Lab::new()?;
        if range && !Path::new("/usr/bin/newuidmap").exists() {
            skip("needs uidmap");
            return None;
        }
        let program = lab.path().join("brig");
        assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_brig")).arg(&program).status().unwrap().success());
        let owned = Command::new("chown").args(["-hR", &format!("{USER}:{USER}")]).arg(lab.path()).status();
        assert!(owned.unwrap().success());
        std::fs::set_permissions(lab.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["subuid", "subgid"] {
            std::fs::write(lab.path().join(name), format!("{USER}:{FIRST}:65536\nrooty:{FIRST}:65536\n")).unwrap();
        }
        for (name, line) in
            [("passwd", format!("rooty:x:{USER}:{USER}::/:/bin/sh\n")), ("group", format!("rooty:x:{USER}:\n"))]
        {
            let mut text = std::fs::read_to_string(Path::new("/etc").join(name)).unwrap();
            text.push_str(&line);
            std::fs::write(lab.path().join(name), text).unwrap();
        }
        let line = |first: u32, outside: u32, size: u32| json!({"containerID": first, "hostID": outside, "size": size});
        let map = if range { json!([line(0, USER, 1), line(1, FIRST, 65_535)]) } else { json!([line(0, USER, 1)]) };
        lab.config["linux"]["uidMappings"] = map.clone();
        lab.config["linux"]["gidMappings"] = map;
        lab.namespace("user");
        lab.config["linux"].as_object_mut().unwrap().remove("resources");
        if !range {
            // An id of the terminals' group is not mapped: `brig spec --rootless` leaves it out as well.
            for mount in lab.config["mounts"].as_array_mut().unwrap() {
                if let Some(options) = mount["options"].as_array_mut() {
                    options.retain(|word| !word.as_str().unwrap().starts_with("gid="));
                }
            }
        }
        Some(Rootless { lab, range })
    }

    /// Runs our command as the user.
    fn brig(&self, arguments: &[&str]) -> Done {
        finish(&mut self.command(arguments))
    }

    /// Our command. A separate mount namespace covers the files of accounts.
    fn command(&self, arguments: &[&str]) -> Command {
        let command = self.lab.command(arguments); // writes config.json
        let mut wrapped = self.program("true", "./brig");
        wrapped.args(command.get_args());
        wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        wrapped.env_remove("XDG_RUNTIME_DIR").current_dir(self.lab.path()).stdin(Stdio::null());
        wrapped
    }

    /// A program of the user, after a line of root in that mount namespace.
    pub(crate) fn program(&self, line: &str, program: &str) -> Command {
        let covered = if self.range { "passwd group subuid subgid" } else { "passwd group" };
        let shell = format!(
            "for file in {covered}; do touch /etc/$file; mount --bind $file /etc/$file || exit 99; done; {line}; \
             exec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all -- {program} \"$@\""
        );
        let mut wrapped = Command::new("unshare");
        wrapped.args(["-m", "/bin/sh", "-c", &shell, "sh"]);
        wrapped
    }

    fn run(&mut self, line: &str) -> Done {
        self.lab.sh(line);
        let id = self.lab.id.clone();
        self.brig(&["run", &id])
    }
}

#[test]
fn a_user_with_a_range_of_ids_has_a_whole_container() {
    let Some(mut user) = Rootless::new(true) else { return };
    let line = "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '; id -u; touch /made && stat -c %u /made; \
                cat /proc/self/setgroups; echo x > /dev/null && echo null; ip link show lo | grep -c UP; hostname; ls /sys/class/net; \
                echo x 2> /dev/null > /proc/sys/kernel/core_pattern || echo masked";
    let done = user.run(line);
    let map = format!(" 0 {USER} 1\n 1 {FIRST} 65535\n");
    assert_eq!(done.out, format!("{map}{map}0\n0\nallow\nnull\n1\nbrig\nlo\nmasked\n"), "{}", done.err);
    user.lab.config["process"]["user"] = json!({"uid": 1000, "gid": 1000, "additionalGids": [1000, 7]});
    let done = user.run("id -u; id -G");
    assert_eq!(done.out, "1000\n1000 7\n", "{}", done.err);
}

#[test]
fn exec_of_a_user_without_a_group_runs_on_every_processor() {
    let Some(mut user) = Rootless::new(false) else { return };
    user.lab.args(&["/bin/sleep", "100"]);
    let status = user.command(&["run", "--detach", &user.lab.id]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(status.unwrap().success());
    let exec = user.command(&["exec", &user.lab.id, "/bin/grep", "Cpus_allowed_list", "/proc/self/status"]);
    let all = std::fs::read_to_string("/proc/1/status").unwrap();
    let all = all.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap();
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", "0"]).arg(exec.get_program()).args(exec.get_args()).current_dir(user.lab.path());
    let done = finish(pinned.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null()));
    let deleted = user.brig(&["delete", "--force", &user.lab.id]);
    assert_eq!(done.out.trim(), all, "{}", done.err);
    deleted.succeeded();
}

#[test]
fn a_user_has_a_container_where_files_in_memory_are_not_executable() {
    // vm.memfd_noexec belongs to a PID namespace, so the test sets it in a new one.
    let Some(mut user) = Rootless::new(false) else { return };
    let setting = "/proc/sys/vm/memfd_noexec";
    if !Path::new(setting).exists() {
        skip("needs a kernel with vm.memfd_noexec (6.3)");
        return;
    }
    user.lab.sh("id -u");
    for (value, hint) in [("1", None), ("2", Some("vm.memfd_noexec"))] {
        let command = user.command(&["run", &user.lab.id]);
        let line = format!("echo {value} > {setting} || exit 98; exec \"$@\"");
        let mut wrapped = Command::new("unshare");
        wrapped.args(["--pid", "--fork", "--mount-proc", "/bin/sh", "-c", &line, "sh"]);
        wrapped.arg(command.get_program()).args(command.get_args()).current_dir(user.lab.path()).stdin(Stdio::null());
        let done = finish(wrapped.env_remove("XDG_RUNTIME_DIR"));
        match hint {
            None => assert_eq!(done.succeeded().out, "0\n"),
            Some(words) => {
                done.failed_with(words);
            }
        }
    }
}

#[test]
fn a_user_with_one_id_has_a_container_of_that_id() {
    let Some(mut user) = Rootless::new(false) else { return };
    let done = user.run("cat /proc/self/uid_map | tr -s ' '; id -u; cat /proc/self/setgroups; touch /made && echo made; echo x > /dev/null && echo null");
    assert_eq!(done.out, format!(" 0 {USER} 1\n0\ndeny\nmade\nnull\n"), "{}", done.err);
    user.lab.config["process"]["user"] = json!({"uid": 0, "gid": 0, "additionalGids": [7]});
    user.run("true").failed_with("set the supplementary groups");
}

#[test]
fn a_range_that_is_not_the_users_is_refused_with_what_to_do() {
    let Some(mut user) = Rootless::new(true) else { return };
    user.lab.config["linux"]["uidMappings"][1]["hostID"] = json!(1);
    let done = user.run("true");
    done.failed_with("map the ids of a user namespace by `newuidmap`");
}

#[test]
fn an_ordinary_users_container_goes_through_its_life() {
    let Some(mut user) = Rootless::new(true) else { return };
    let id = user.lab.id.clone();
    user.lab.args(&["sleep", "100"]);
    let mut started = user.command(&["run", "-d", &id]);
    assert!(started.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    let state: Value = serde_json::from_str(&user.brig(&["state", &id]).out).unwrap();
    assert_eq!(state["status"], "running");
    let done = user.brig(&[
        "exec",
        "--user",
        "33:33",
        &id,
        "/bin/sh",
        "-c",
        "id -u; cat /proc/self/uid_map | wc -l; hostname",
    ]);
    assert_eq!(done.out, "33\n2\nbrig\n", "{}", done.err);
    user.brig(&["kill", &id, "KILL"]).succeeded();
    user.brig(&["delete", "--force", &id]).succeeded();
}

/// Creates a container of the user, without our streams.
fn create(user: &Rootless) -> bool {
    let mut command = user.command(&["create", &user.lab.id]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn an_ordinary_users_exec_enters_a_created_container() {
    let Some(mut user) = Rootless::new(false) else { return };
    let id = user.lab.id.clone();
    let allowed = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mknod"], "action": "SCMP_ACT_ERRNO"}],
    });
    for (privileges, filter) in [(true, None), (true, Some(&allowed)), (false, Some(&allowed))] {
        user.lab.config["process"]["noNewPrivileges"] = json!(privileges);
        user.lab.config["linux"]["seccomp"] = filter.cloned().unwrap_or_default();
        user.lab.sh("grep Seccomp: /proc/self/status > /filtered; sleep 100");
        assert!(create(&user));
        for _ in 0..2 {
            let filtered =
                user.brig(&["exec", &id, "/bin/sh", "-c", "grep Seccomp: /proc/1/status; ls -d /proc/1/ns/mnt"]);
            let mode = if filter.is_some() { 2 } else { 0 };
            // The filter of the first process is in force before a process enters.
            assert_eq!(filtered.succeeded().out, format!("Seccomp:\t{mode}\n/proc/1/ns/mnt\n"));
        }
        user.brig(&["start", &id]).succeeded();
        crate::support::eventually("it runs", || user.lab.root("/filtered").exists());
        user.brig(&["exec", &id, "true"]).succeeded();
        user.brig(&["delete", "--force", &id]).succeeded();
        std::fs::remove_file(user.lab.root("/filtered")).unwrap();
    }
}

#[test]
fn the_first_process_of_an_ordinary_user_is_undumpable_until_another_one_enters() {
    let Some(mut user) = Rootless::new(false) else { return };
    user.lab.sh("sleep 100");
    assert!(create(&user));
    let pid = serde_json::from_str::<Value>(&user.brig(&["state", &user.lab.id]).out).unwrap()["pid"].to_string();
    // The files of an undumpable process belong to root.
    let owner = || std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}/stat")).unwrap());
    assert_eq!(owner(), 0);
    user.brig(&["exec", &user.lab.id, "true"]).succeeded();
    assert_eq!(owner(), USER);
}

#[test]
fn an_ordinary_users_filter_may_have_a_listener() {
    let Some(mut user) = Rootless::new(false) else { return };
    let path = user.lab.path().join("agent");
    user.lab.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": path,
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}],
    });
    user.lab.sh("mkdir /made; touch /failed; sleep 100");
    for privileges in [true, false] {
        user.lab.config["process"]["noNewPrivileges"] = json!(privileges);
        let command = user.command(&["create", &user.lab.id]);
        let (text, listener) = crate::sockets::receive_from(&user.lab, "agent", command);
        let pid = serde_json::from_str::<Value>(&text).unwrap()["pid"].to_string();
        let stat = std::fs::metadata(format!("/proc/{pid}/stat")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&stat), 0, "it is undumpable again");
        user.brig(&["start", &user.lab.id]).succeeded();
        drop(listener);
        crate::support::eventually("the call fails without a listener", || user.lab.root("/failed").exists());
        assert!(!user.lab.root("/made").exists());
        user.brig(&["delete", "--force", &user.lab.id]).succeeded();
        std::fs::remove_file(user.lab.root("/failed")).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_device_dev_ptmx_is_the_link_to_the_containers_own() {
    let Some(mut user) = Rootless::new(false) else { return };
    let device = json!([{"path": "/dev/ptmx", "type": "c", "major": 5, "minor": 2}]);
    user.lab.config["linux"]["devices"] = device.clone();
    assert_eq!(user.run("readlink /dev/ptmx").succeeded().out, "pts/ptmx\n");
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["devices"] = device;
    assert_eq!(lab.sh("readlink /dev/ptmx").run().succeeded().out, "pts/ptmx\n");
}

#[test]
fn offsets_of_a_time_namespace_are_an_ordinary_users_too() {
    let Some(mut user) = Rootless::new(true) else { return };
    user.lab.namespace("time");
    user.lab.config["linux"]["timeOffsets"] = json!({"boottime": {"secs": 1_000_000, "nanosecs": 0}});
    let done = user.run("cut -d. -f1 /proc/uptime");
    let seconds: u64 = done.out.trim().parse().unwrap_or_else(|_| panic!("{}", done.err));
    assert!(seconds >= 1_000_000, "{seconds}");
}

#[test]
fn groups_cannot_be_changed_from_a_user_namespace_without_a_cgroup_namespace() {
    // T-09, CVE-2023-25809
    let attack = |weakened: bool| {
        let mut lab = Lab::new()?;
        lab.user_namespace().without("cgroup").unmount("/sys/fs/cgroup");
        lab.mount("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev"]);
        lab.config["linux"]["cgroupsPath"] = json!(format!("/{}", lab.id));
        if weakened {
            lab.weaken("groups-read-only")?;
        }
        lab.args(&["sleep", "100"]).create().succeeded();
        // As if a group was delegated to the user: its writable files go to the container too. find(1) fails if another
        // test removes a file; the control shows whether anything changed owner.
        let find = format!("find /sys/fs/cgroup -name {} -exec chown 700000 {{}} + 2> /dev/null", lab.id);
        let _ = Command::new("/bin/sh").args(["-c", &find]).status().unwrap();
        lab.on(&["start"]).succeeded();
        let made = lab.exec("for place in $(find /sys/fs/cgroup -type d -maxdepth 1); do mkdir $place/made 2> /dev/null && echo $place; done");
        lab.exec("rmdir /sys/fs/cgroup/made /sys/fs/cgroup/*/made");
        Some(made.out)
    };
    let Some(out) = attack(false) else { return };
    assert_eq!(out, "");
    if let Some(out) = attack(true) {
        assert_ne!(out, "", "without the protection nothing is different: it proves nothing");
    }
}
