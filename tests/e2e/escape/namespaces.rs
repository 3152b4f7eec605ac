//! Out of each namespace, and into the host's.

use super::{answer, attack, attacker, host, stopped, task};
use crate::support::{Lab, changed_mounts, is_root, skip};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

#[test]
fn no_user_namespace_can_be_made_inside() {
    let free = "seccomp,nested-userns";
    stopped(&[
        attack("unshare 0x10000000", "EPERM", free),
        attack("clone 0x10000000", "EPERM", free),
        attack("clone3 0x10000000", "ENOSYS", free),
        attack("unshare 0x10020000", "EPERM", free),
    ]);
}

#[test]
fn without_the_filter_the_limit_on_user_namespaces_still_stops_them() {
    let lab = Lab::new();
    let work = attacker(&lab);
    let run = task(&lab).weakened("seccomp").args(["--dir".as_ref(), work.as_os_str()]);
    assert_eq!(answer(&run.run(["./attacker", "unshare", "0x10000000"])), "ENOSPC");
}

#[test]
fn no_other_namespace_can_be_made_or_joined_inside() {
    // Without the filter these need capabilities; other tests show that those are gone.
    for flag in ["0x20000", "0x40000000", "0x20000000", "0x8000000", "0x4000000", "0x2000000", "0x80"] {
        let words: &'static str = Box::leak(format!("unshare {flag}").into_boxed_str());
        stopped(&[attack(words, "EPERM", "")]);
    }
    let number = libc::SYS_setns;
    stopped(&[attack(Box::leak(format!("call {number} 0 0").into_boxed_str()), "EPERM", "seccomp")]);
}

#[test]
fn mounts_can_neither_be_made_nor_changed_nor_removed() {
    // As root the mount namespace belongs to the machine's root: all capabilities without a filter do not help. An
    // ordinary user's is the sandbox's own: filter, capabilities and Landlock each refuse.
    let free = if is_root() { "" } else { "seccomp,capabilities,landlock" };
    stopped(&[
        attack("mount /tmp", "EPERM", free),
        attack("bind /tmp /home/agent", "EPERM", free),
        attack("open-tree /usr", "EPERM", free),
        attack("pivot /tmp", "EPERM", ""),
        attack("chroot /tmp", "EPERM", free).root_gets("done"),
        attack("remount /usr", "EPERM", ""),
        attack("umount /proc/keys", "EPERM", free),
    ]);
}

#[test]
fn as_root_the_mount_namespace_is_not_the_sandboxs_to_change() {
    let Some(lab) = Lab::root() else { return };
    let work = attacker(&lab);
    for words in [&["mount", "/tmp"][..], &["umount", "/proc/keys"], &["remount", "/usr"], &["open-tree", "/usr"]] {
        let weak = task(&lab)
            .weakened("seccomp,capabilities,landlock,no-new-privs")
            .args(["--dir".as_ref(), work.as_os_str()]);
        let run = weak.run(["./attacker"].into_iter().chain(words.iter().copied()));
        assert_eq!(answer(&run), "EPERM", "{words:?}: {run:#?}");
    }
}

#[test]
fn the_hosts_mounts_are_the_same_before_during_and_after() {
    let Some(lab) = Lab::root() else { return };
    // In a mount namespace of the test with shared mounts: the weakened run cannot harm the machine.
    let script = |weak: &str| {
        let task = if weak.is_empty() { lab.task() } else { lab.task().weakened(weak) };
        let command = task.plain().command_for(["sleep", "0.3"]);
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_str().unwrap())
            .collect();
        let script = format!(
            "mount --make-rshared /; cat /proc/self/mountinfo > {0}/before; {weak} {1} & sleep 0.2; cat /proc/self/mountinfo > {0}/during; wait; cat /proc/self/mountinfo > {0}/after",
            lab.path().display(),
            words.join(" "),
            weak = if weak.is_empty() { String::new() } else { format!("BRIG_WEAKEN={weak}") },
        );
        host("unshare", &["--mount", "--propagation", "private", "sh", "-c", &script]);
        ["before", "during", "after"].map(|name| std::fs::read_to_string(lab.path().join(name)).unwrap())
    };
    let [before, during, after] = script("");
    assert_eq!(changed_mounts(&before, &during), [""; 0]);
    assert_eq!(changed_mounts(&before, &after), [""; 0]);
    let [before, during, after] = script("propagation");
    assert!(
        !changed_mounts(&before, &during).is_empty() || !changed_mounts(&before, &after).is_empty(),
        "without private mounts the host would have seen them"
    );
    // The mounts covered the directory of the locks, so brig could not remove its directories. The files with the
    // limits covered its cgroups.
    for entry in std::fs::read_dir(lab.store().join("live")).unwrap() {
        let path = entry.unwrap().path();
        let group = format!("brig-{}", path.file_name().unwrap().display());
        for hierarchy in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            let _ = std::fs::remove_dir(std::path::Path::new(hierarchy).join(&group));
        }
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

#[test]
fn processes_of_the_host_are_neither_seen_nor_reached() {
    let lab = Lab::new();
    let script = "ls /proc | grep -c '^[0-9]'; kill -0 $HOST 2>&1 | head -1";
    let count = |run: &crate::support::Run| run.stderr.lines().next().unwrap().parse::<usize>().unwrap();
    let pid = std::process::id().to_string();
    let run = task(&lab).args(["-e", &format!("HOST={pid}")]).sh(script);
    assert!(count(&run) <= 4, "{run:#?}");
    assert!(run.stderr.contains("No such process"), "{run:#?}");
    if is_root() {
        // An ordinary user's procfs needs a new PID namespace, so the counterpart runs as root.
        let run = task(&lab).weakened("pid-namespace,hidepid").args(["-e", &format!("HOST={pid}")]).sh(script);
        assert!(count(&run) > 10 && !run.stderr.contains("No such process"), "{run:#?}");
    }
}

#[test]
fn the_hosts_loopback_and_abstract_sockets_are_out_of_reach() {
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port().to_string();
    let name = format!("brig-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let lab = Lab::new();
    let work = attacker(&lab);
    let go = |weak: &str, words: [&str; 2]| {
        let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
        answer(&task.args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", words[0], words[1]]))
    };
    assert_eq!(go("", ["tcp", &port]), "ECONNREFUSED");
    assert_eq!(go("", ["abstract", &name]), "ECONNREFUSED");
    if !is_root() {
        return skip("the counterpart without a network namespace needs root");
    }
    assert_eq!(go("network-namespace", ["tcp", &port]), "done");
    // Landlock's scope is a second protection: its ABI 6 is in kernel 6.12.
    assert_eq!(go("network-namespace", ["abstract", &name]), "EPERM");
    assert_eq!(go("network-namespace,landlock", ["abstract", &name]), "done");
}

#[test]
fn there_is_no_network_but_a_loopback_of_its_own() {
    let lab = Lab::new();
    let run = task(&lab).sh("tail -n +3 /proc/net/dev | cut -d: -f1; wc -l < /proc/net/route");
    assert_eq!(run.stderr.split_whitespace().take(2).collect::<Vec<_>>(), ["lo", "1"], "{run:#?}");
    // What listens inside is reached inside.
    let script = "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 1, LocalAddr => q(127.0.0.1)) or die; \
                  IO::Socket::INET->new(PeerAddr => q(127.0.0.1), PeerPort => $l->sockport) or die; print qq(reached\\n)'";
    let run = task(&lab).sh(script);
    assert!(run.stderr.contains("reached"), "{run:#?}");
}

#[test]
fn shared_memory_and_queues_of_the_host_are_not_there() {
    let key = 0x6272_0000 + (std::process::id() as i32 & 0xffff);
    let (memory, queue) = ipc::make(key);
    let lab = Lab::new();
    let work = attacker(&lab);
    let words = [format!("shm {key}"), format!("msg {key}"), "mq /brig-test".to_owned()];
    let go = |weak: &str, words: &str| {
        let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
        answer(&task.args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker"].into_iter().chain(words.split(' '))))
    };
    for words in &words {
        assert_eq!(go("", words), "ENOENT", "{words}");
    }
    let found: Vec<_> = words.iter().map(|words| go("ipc-namespace", words)).collect();
    ipc::remove(memory, queue);
    // Without the namespace they are found, and the owner's mode decides: done, or refused as another user's.
    assert!(found.iter().all(|answer| answer == "done" || answer == "EACCES"), "{found:?}");
}

#[test]
fn the_name_of_the_machine_is_the_sandboxs_and_cannot_be_set() {
    let lab = Lab::new();
    let before = host("uname", &["-n"]);
    let run = task(&lab).sh("uname -n");
    assert_eq!(run.stderr.lines().next(), Some("sandbox"), "{run:#?}");
    let run = task(&lab).weakened("uts-namespace").sh("uname -n");
    assert_eq!(run.stderr.lines().next(), Some(before.trim()), "{run:#?}");
    stopped(&[attack("host-name broken", "EPERM", if is_root() { "" } else { "seccomp,capabilities" })]);
    assert_eq!(host("uname", &["-n"]), before);
}

#[test]
fn of_control_groups_only_the_limits_are_shown_and_their_path_on_the_host_is_hidden() {
    let lab = Lab::new();
    let script = "cut -d: -f3 /proc/self/cgroup | sort -u; find /sys -type d | sort | tr '\\n' ' '; echo; find /sys/fs/cgroup -writable 2>/dev/null | wc -l; ls /sys/fs/cgroup | wc -w";
    let run = task(&lab).sh(script);
    let lines: Vec<_> = run.stderr.lines().collect();
    assert_eq!(lines[0], "/", "{run:#?}");
    // A limit that is not in force is not shown.
    let (of_ours, files) = if is_root() {
        ("/sys /sys/fs /sys/fs/cgroup /sys/fs/cgroup/memory /sys/fs/limits /sys/fs/limits/memory", "7")
    } else {
        ("/sys /sys/fs /sys/fs/cgroup /sys/fs/limits", "2")
    };
    assert_eq!(lines[1].trim(), of_ours, "{run:#?}");
    assert_eq!(lines[2], "0", "{run:#?}");
    assert_eq!(lines[3], files, "{run:#?}");
    stopped(&[
        attack("make /sys/fs/cgroup/x", "EROFS|EACCES|EPERM", ""),
        attack("write /sys/fs/cgroup/memory.max max", "EROFS|EACCES|EPERM|ENOENT", ""),
        attack("write /proc/cgroups x", "EROFS|EACCES|EPERM", ""),
        attack("umount /sys/fs/cgroup", "EPERM", ""),
    ]);
    let run = task(&lab).weakened("cgroup-namespace").sh(script);
    let hidden = host("sh", &["-c", "cut -d: -f3 /proc/self/cgroup | sort -u"]);
    if hidden.trim() == "/" && !is_root() {
        return skip("the tests run in the root group, so that there is no path to hide");
    }
    let mut groups = run.stderr.lines().take_while(|line| !line.starts_with("/sys "));
    assert!(groups.any(|line| line.len() > 1 && line.starts_with('/')), "{run:#?}");
}

mod ipc {
    //! Objects of the host, made by hand.
    use std::ffi::CString;

    pub fn make(key: i32) -> (i32, i32) {
        let name = CString::new("/brig-test").unwrap();
        // SAFETY: plain calls with numbers and a NUL-terminated name; what they return is checked and removed by
        // `remove`.
        let (memory, queue, named) = unsafe {
            let flags = libc::IPC_CREAT | 0o666;
            (
                libc::shmget(key, 4096, flags),
                libc::msgget(key, flags),
                libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o666, std::ptr::null::<libc::mq_attr>()),
            )
        };
        assert!(memory >= 0 && queue >= 0 && named >= 0, "{}", std::io::Error::last_os_error());
        (memory, queue)
    }

    pub fn remove(memory: i32, queue: i32) {
        let name = CString::new("/brig-test").unwrap();
        // SAFETY: removes what `make` made; null is allowed for IPC_RMID.
        unsafe {
            libc::shmctl(memory, libc::IPC_RMID, std::ptr::null_mut());
            libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut());
            libc::mq_unlink(name.as_ptr());
        }
    }
}
