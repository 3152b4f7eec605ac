//! The agent's profile against the real kernel: what an agent must not get, tried with the filter and without it, and what it
//! must be able to do. A filter belongs to a thread, so a thread is enough to try it.

use crate::seccomp::{install, profile};
use crate::sys::seccomp::attempt;
use rustix::io::Errno;

/// Runs `work` in a thread under the agent's profile. Its child processes inherit the filter.
pub(super) fn under_the_profile<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            assert!(install(profile::agent().unwrap()).unwrap().is_none());
            work()
        });
        thread.join().unwrap()
    })
}

fn freely<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

type Attempt = (&'static str, i64, [u64; 6], Errno);

/// Everything here gets as far as its arguments without the filter: either it works, or it fails with another error.
const ATTACKS: &[Attempt] = &[
    ("socket(AF_ALG)", libc::SYS_socket, [38, 5, 0, 0, 0, 0], Errno::AFNOSUPPORT),
    ("socket(AF_VSOCK)", libc::SYS_socket, [40, 1, 0, 0, 0, 0], Errno::AFNOSUPPORT),
    ("socket(AF_PACKET)", libc::SYS_socket, [17, 3, 0, 0, 0, 0], Errno::AFNOSUPPORT),
    ("socket(AF_NETLINK, NETLINK_NETFILTER)", libc::SYS_socket, [16, 3, 12, 0, 0, 0], Errno::PROTONOSUPPORT),
    ("socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP)", libc::SYS_socket, [2, 1, 262, 0, 0, 0], Errno::PROTONOSUPPORT),
    ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0], Errno::PERM),
    ("userfaultfd", libc::SYS_userfaultfd, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("keyctl", libc::SYS_keyctl, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("add_key", libc::SYS_add_key, [0; 6], Errno::PERM),
    ("request_key", libc::SYS_request_key, [0; 6], Errno::PERM),
    ("bpf", libc::SYS_bpf, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("perf_event_open", libc::SYS_perf_event_open, [0; 6], Errno::PERM),
    ("ioctl(TIOCSTI)", libc::SYS_ioctl, [!0, 0x5412, 0, 0, 0, 0], Errno::PERM),
    ("ioctl(TIOCSTI with garbage above)", libc::SYS_ioctl, [!0, 0x7_0000_5412, 0, 0, 0, 0], Errno::PERM),
    ("ioctl(TIOCLINUX)", libc::SYS_ioctl, [!0, 0x541c, 0, 0, 0, 0], Errno::PERM),
    ("ioctl(TIOCSETD)", libc::SYS_ioctl, [!0, 0x5423, 0, 0, 0, 0], Errno::PERM),
    ("unshare(CLONE_NEWUSER)", libc::SYS_unshare, [0x1000_0000, 0, 0, 0, 0, 0], Errno::PERM),
    ("unshare(0)", libc::SYS_unshare, [0; 6], Errno::PERM),
    ("setns", libc::SYS_setns, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    // Without the filter these fail on the contradiction between the flags (EINVAL), before a process is made.
    ("clone(CLONE_NEWUSER)", libc::SYS_clone, [0x1000_0200, 0, 0, 0, 0, 0], Errno::PERM),
    ("clone(CLONE_NEWNET)", libc::SYS_clone, [0x4000_8000 | 0x1_0000, 0, 0, 0, 0, 0], Errno::PERM),
    ("clone3", libc::SYS_clone3, [0; 6], Errno::NOSYS),
    ("mount", libc::SYS_mount, [0; 6], Errno::PERM),
    ("umount2", libc::SYS_umount2, [0, !0, 0, 0, 0, 0], Errno::PERM),
    ("fsopen", libc::SYS_fsopen, [0; 6], Errno::PERM),
    ("open_tree", libc::SYS_open_tree, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("mount_setattr", libc::SYS_mount_setattr, [0; 6], Errno::PERM),
    ("pivot_root", libc::SYS_pivot_root, [0; 6], Errno::PERM),
    ("chroot", libc::SYS_chroot, [0; 6], Errno::PERM),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("fanotify_init", libc::SYS_fanotify_init, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("vmsplice", libc::SYS_vmsplice, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("finit_module", libc::SYS_finit_module, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("kexec_load", libc::SYS_kexec_load, [0, 0, 0, !0, 0, 0], Errno::PERM),
    ("mknod(character device)", libc::SYS_mknodat, [!0, 0, 0o020_600, 0, 0, 0], Errno::PERM),
    ("mknod(block device)", libc::SYS_mknodat, [!0, 0, 0o060_600, 0, 0, 0], Errno::PERM),
    ("personality(READ_IMPLIES_EXEC)", libc::SYS_personality, [0x040_0000, 0, 0, 0, 0, 0], Errno::PERM),
    ("modify_ldt", libc::SYS_modify_ldt, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("reboot", libc::SYS_reboot, [0; 6], Errno::PERM),
    ("syslog", libc::SYS_syslog, [!0, 0, 0, 0, 0, 0], Errno::PERM),
    ("a call that does not exist yet", 600, [0; 6], Errno::NOSYS),
];

#[test]
fn what_an_agent_must_not_do_is_refused() {
    let failed: Vec<String> = under_the_profile(|| {
        ATTACKS
            .iter()
            .filter_map(|(name, number, arguments, errno)| match attempt(*number, *arguments) {
                Err(got) if got == *errno => None,
                other => Some(format!("{name}: {other:?}, expected {errno:?}")),
            })
            .collect()
    });
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn without_the_filter_every_attempt_gets_further() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP without_the_filter_every_attempt_gets_further: needs root");
        return;
    }
    let mut refused = Vec::new();
    for (name, number, arguments, errno) in ATTACKS.iter().filter(|attack| attack.3 != Errno::NOSYS) {
        match freely(|| attempt(*number, *arguments)) {
            Err(Errno::AFNOSUPPORT) => eprintln!("SKIP {name}: this kernel has no such family"),
            Err(got) if got == *errno => refused.push(format!("{name}: {got:?} without the filter too")),
            _ => {}
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}
