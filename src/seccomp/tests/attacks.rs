//! The agent's profile against the real kernel. A filter applies to a thread, so each test uses one.

use crate::seccomp::abi::{NATIVE, abi};
use crate::seccomp::table::Call;
use crate::seccomp::{Program, compile, install, profile};
use crate::spec::seccomp::{Action, Rule, Seccomp};
use crate::sys::seccomp::{attempt, let_through, next_waiting, refuse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Its listener refuses as the supervisor does. Child processes inherit the filter.
pub(super) fn under_the_profile<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let (sender, receiver) = std::sync::mpsc::channel::<OwnedFd>();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            // The weakened build has no filter.
            if let Some(listener) = install(profile::agent().unwrap()).unwrap() {
                sender.send(listener).unwrap();
            }
            drop(sender);
            work()
        });
        let is_over = &is_over;
        scope.spawn(move || {
            let Ok(listener) = receiver.recv() else { return };
            while !is_over.load(Ordering::Acquire) {
                let mut wait = [PollFd::new(&listener, PollFlags::IN)];
                poll(&mut wait, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
                if wait[0].revents().contains(PollFlags::IN) {
                    let waiting = next_waiting(listener.as_fd()).unwrap();
                    refuse(listener.as_fd(), waiting.id, Errno::PERM).unwrap();
                }
            }
        });
        let done = thread.join();
        is_over.store(true, Ordering::Release);
        done.unwrap()
    })
}

#[test]
fn without_a_listener_a_request_for_a_namespace_is_refused_all_the_same() {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            drop(install(profile::agent().unwrap()).unwrap().unwrap());
            let call = |name| Call::named(name).unwrap().number(NATIVE.and_then(abi).unwrap().column).unwrap();
            assert_eq!(attempt(call("unshare").into(), [0x1000_0000, 0, 0, 0, 0, 0]), Err(Errno::NOSYS));
            // A second filter cannot add a listener that allows the call.
            assert!(install(profile::agent().unwrap()).unwrap().is_none());
            assert_eq!(attempt(call("unshare").into(), [0x1000_0000, 0, 0, 0, 0, 0]), Err(Errno::NOSYS));
        });
        thread.join().unwrap();
    });
}

fn freely<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// unshare(CLONE_NEWUSER) in a thread whose filter lost its listener, under a second filter with a new one.
fn with_an_own_listener(first: &Program) -> Result<i64, Errno> {
    let own = compile(&Seccomp {
        syscalls: vec![Rule {
            names: vec!["unshare".into()],
            action: Action::Notify,
            errno_ret: None,
            args: Vec::new(),
        }],
        default_action: Action::Allow,
        default_errno_ret: None,
        listener_path: "/own".into(),
        ..profile::agent_spec()
    })
    .unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<OwnedFd>();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let sender = sender;
            rustix::thread::set_no_new_privs(true).unwrap();
            drop(install(first).unwrap().unwrap());
            sender
                .send(install(&own).map_err(|error| Errno::from_raw_os_error(error.errno().unwrap()))?.unwrap())
                .unwrap();
            call("unshare", [0x1000_0000, 0, 0, 0, 0, 0])
        });
        if let Ok(listener) = receiver.recv() {
            let waiting = next_waiting(listener.as_fd()).unwrap();
            let_through(listener.as_fd(), waiting.id).unwrap();
        }
        thread.join().unwrap()
    })
}

#[test]
fn no_listener_of_an_agents_own_can_let_requests_for_namespaces_through() {
    assert_eq!(with_an_own_listener(profile::agent().unwrap()), Err(Errno::BUSY));
    // Without that rule the kernel makes the call, which fails in a process with threads only.
    let mut spec = profile::reporting_spec();
    spec.syscalls.iter_mut().filter(|rule| rule.names.contains(&"seccomp".into())).for_each(|rule| {
        (rule.action, rule.errno_ret, rule.args) = (Action::Allow, None, Vec::new());
    });
    assert_eq!(with_an_own_listener(&compile(&spec).unwrap()), Err(Errno::INVAL));
}

/// Its name, call, arguments and error.
type Attempt = (&'static str, &'static str, [u64; 6], Errno);

/// Without the filter each gets past its arguments: it works, or fails with another error.
const ATTACKS: &[Attempt] = &[
    // An invalid type: the kernel checks it before the family and returns EINVAL (`__sock_create`), even without AF_ALG
    // (CVE-2026-31431, T-42).
    ("socket(AF_ALG)", "socket", [38, 15, 0, 0, 0, 0], Errno::AFNOSUPPORT),
    ("socket(AF_VSOCK)", "socket", [40, 1, 0, 0, 0, 0], Errno::AFNOSUPPORT),
    ("socket(AF_PACKET)", "socket", [17, 3, 0, 0, 0, 0], Errno::AFNOSUPPORT),
    ("socket(AF_NETLINK, NETLINK_NETFILTER)", "socket", [16, 3, 12, 0, 0, 0], Errno::PROTONOSUPPORT),
    ("socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP)", "socket", [2, 1, 262, 0, 0, 0], Errno::PROTONOSUPPORT),
    // Of these the kernel checks a capability, or lacks the code. Its errors are others, even then.
    ("socket(AF_INET, SOCK_PACKET, ETH_P_IP)", "socket", [2, 10, 8, 0, 0, 0], Errno::SOCKTNOSUPPORT),
    ("socket(AF_INET, SOCK_PACKET and a flag)", "socket", [2, 0x8_000a, 8, 0, 0, 0], Errno::SOCKTNOSUPPORT),
    ("io_uring_setup", "io_uring_setup", [1, 0, 0, 0, 0, 0], Errno::PERM),
    ("userfaultfd", "userfaultfd", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("keyctl", "keyctl", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("add_key", "add_key", [0; 6], Errno::PERM),
    ("request_key", "request_key", [0; 6], Errno::PERM),
    ("bpf", "bpf", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("perf_event_open", "perf_event_open", [0; 6], Errno::PERM),
    ("ioctl(TIOCSTI)", "ioctl", [!0, 0x5412, 0, 0, 0, 0], Errno::PERM),
    ("ioctl(TIOCSTI with garbage above)", "ioctl", [!0, 0x7_0000_5412, 0, 0, 0, 0], Errno::PERM),
    ("ioctl(TIOCLINUX)", "ioctl", [!0, 0x541c, 0, 0, 0, 0], Errno::PERM),
    ("ioctl(TIOCSETD)", "ioctl", [!0, 0x5423, 0, 0, 0, 0], Errno::PERM),
    ("unshare(CLONE_NEWUSER)", "unshare", [0x1000_0000, 0, 0, 0, 0, 0], Errno::PERM),
    ("unshare(0)", "unshare", [0; 6], Errno::PERM),
    ("seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER)", "seccomp", [1, 8, 0, 0, 0, 0], Errno::BUSY),
    ("seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER and others)", "seccomp", [1, 0x7_0000_000a, 0, 0, 0, 0], Errno::BUSY),
    ("setns", "setns", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    // Without the filter, contradicting flags fail with EINVAL before a process is made.
    ("clone(CLONE_NEWUSER)", "clone", [0x1000_0200, 0, 0, 0, 0, 0], Errno::PERM),
    ("clone(CLONE_NEWNET)", "clone", [0x4000_8000 | 0x1_0000, 0, 0, 0, 0, 0], Errno::PERM),
    ("clone3", "clone3", [0; 6], Errno::NOSYS),
    ("mount", "mount", [0; 6], Errno::PERM),
    ("umount2", "umount2", [0, !0, 0, 0, 0, 0], Errno::PERM),
    ("fsopen", "fsopen", [0; 6], Errno::PERM),
    ("open_tree", "open_tree", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("mount_setattr", "mount_setattr", [0; 6], Errno::PERM),
    ("pivot_root", "pivot_root", [0; 6], Errno::PERM),
    ("chroot", "chroot", [0; 6], Errno::PERM),
    ("open_by_handle_at", "open_by_handle_at", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("fanotify_init", "fanotify_init", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("vmsplice", "vmsplice", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("pidfd_getfd", "pidfd_getfd", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("finit_module", "finit_module", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("kexec_load", "kexec_load", [0, 0, 0, !0, 0, 0], Errno::PERM),
    ("mknod(character device)", "mknodat", [!0, 0, 0o020_600, 0, 0, 0], Errno::PERM),
    ("mknod(block device)", "mknodat", [!0, 0, 0o060_600, 0, 0, 0], Errno::PERM),
    ("personality(READ_IMPLIES_EXEC)", "personality", [0x040_0000, 0, 0, 0, 0, 0], Errno::PERM),
    ("modify_ldt", "modify_ldt", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("reboot", "reboot", [0; 6], Errno::PERM),
    ("syslog", "syslog", [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("a call that is too new", "listns", [0; 6], Errno::NOSYS),
];

fn number(name: &str) -> Option<u32> {
    Call::named(name).unwrap().number(NATIVE.and_then(abi).unwrap().column)
}

pub(super) fn call(name: &str, arguments: [u64; 6]) -> Result<i64, Errno> {
    attempt(number(name).unwrap().into(), arguments)
}

fn attacks() -> impl Iterator<Item = &'static Attempt> {
    ATTACKS.iter().filter(|attack| number(attack.1).is_some())
}

#[test]
fn what_an_agent_must_not_do_is_refused() {
    let failed: Vec<String> = under_the_profile(|| {
        let refused = |(what, name, arguments, errno): &Attempt| match call(name, *arguments) {
            Err(got) if got == *errno => None,
            other => Some(format!("{what}: {other:?}, expected {errno:?}")),
        };
        attacks().filter_map(refused).collect()
    });
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn without_the_filter_every_attempt_gets_further() {
    if !rustix::process::geteuid().is_root() {
        crate::sys::skip("without_the_filter_every_attempt_gets_further: needs root");
        return;
    }
    let mut refused = Vec::new();
    for (what, name, arguments, errno) in attacks() {
        match freely(|| call(name, *arguments)) {
            Err(Errno::AFNOSUPPORT) => crate::sys::skip(&format!("{what}: this kernel has no such family")),
            Err(Errno::NOSYS) => crate::sys::skip(&format!("{what}: this kernel has no such call")),
            Err(got) if got == *errno => refused.push(format!("{what}: {got:?} without the filter too")),
            _ => {}
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

#[cfg(feature = "weakened")]
#[test]
fn on_a_weakened_build_the_attempts_are_not_refused() {
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "seccomp::tests::attacks::what_an_agent_must_not_do_is_refused"]);
    let output = again.env("BRIG_WEAKEN", "seccomp").output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    let let_through = |attack: &&Attempt| output.contains(&format!("{}: ", attack.0));
    assert!(output.contains("1 failed") && attacks().filter(let_through).count() > attacks().count() / 2, "{output}");
}
