//! The kernel's own doors: system calls, /proc, devices.

use super::{answer, attack, attacker, stopped, task};
use crate::support::{Lab, is_root, skip};

/// A system call that must not reach its arguments' check, and does without the filter.
fn call(number: libc::c_long, arguments: &str, answer: &'static str) -> super::Attack {
    attack(Box::leak(format!("call {number} {arguments}").into_boxed_str()), answer, "seccomp")
}

#[test]
fn sockets_of_dangerous_families_cannot_be_made() {
    let socket = |arguments: &str| call(libc::SYS_socket, arguments, "EAFNOSUPPORT|EPROTONOSUPPORT");
    let mut rows = vec![
        socket("16 3 12"), // netfilter
        socket("16 3 9"),  // audit
    ];
    // Families that this kernel lacks cannot be opened without the filter either.
    for family in [libc::AF_ALG, libc::AF_VSOCK, libc::AF_TIPC, libc::AF_CAN, libc::AF_BLUETOOTH] {
        let mut row = socket(&format!("{family} {} 0", if family == libc::AF_ALG { 5 } else { 1 }));
        if !exists(family) {
            row.without = "";
        }
        rows.push(row);
    }
    stopped(&rows);
    // Without the filter a packet socket still needs a capability, which root inside has over its own network. For
    // SOCK_PACKET the kernel makes AF_PACKET of AF_INET. Types of DCCP and SCTP need modules.
    let refused =
        |arguments: &str| super::Attack { without: "", ..call(libc::SYS_socket, arguments, "ESOCKTNOSUPPORT") };
    let packet = super::Attack { without: "", ..call(libc::SYS_socket, "17 3 0", "EAFNOSUPPORT") };
    stopped(&[
        packet,
        refused("2 10 8"),
        refused("2 0x8000a 8"),
        refused("2 6 0"),
        refused("10 6 0"),
        refused("2 5 0"),
    ]);
}

fn exists(family: libc::c_int) -> bool {
    let kind = if family == libc::AF_ALG { libc::SOCK_SEQPACKET } else { libc::SOCK_STREAM };
    // SAFETY: no pointers; the descriptor is closed at once.
    unsafe {
        let socket = libc::socket(family, kind, 0);
        socket >= 0 && libc::close(socket) == 0
    }
}

#[test]
fn dangerous_system_calls_are_refused() {
    stopped(&[
        call(libc::SYS_io_uring_setup, "1 0", "EPERM"),
        call(libc::SYS_userfaultfd, "1", "EPERM"),
        call(libc::SYS_keyctl, "0 -3 0", "EPERM"),
        call(libc::SYS_add_key, "0 0 0 0 0", "EPERM"),
        call(libc::SYS_request_key, "0 0 0 0", "EPERM"),
        call(libc::SYS_name_to_handle_at, "-1 0 0 0 0", "EPERM"),
        call(libc::SYS_vmsplice, "-1 0 0 0", "EPERM"),
        call(libc::SYS_mbind, "1 1 99 0 0 0", "EPERM"),
        call(libc::SYS_personality, "0x0400000", "EPERM"),
        call(libc::SYS_io_setup, "1 0", "ENOSYS"),
        call(libc::SYS_seccomp, "1 8 0", "EBUSY"),         // another listener
        call(libc::SYS_fanotify_init, "0x200 0", "EPERM"), // what an unprivileged caller may ask
    ]);
    // These also need capabilities, so removing the filter alone shows nothing.
    let also = [
        (libc::SYS_kcmp, "1 1 99"),
        (libc::SYS_bpf, "0 0 0"),
        (libc::SYS_perf_event_open, "0 0 -1 -1 0"),
        (libc::SYS_kexec_load, "0 0 0 0"),
        #[cfg(target_arch = "x86_64")] // the crate `libc` lacks its number on aarch64
        (libc::SYS_kexec_file_load, "-1 -1 0 0 0"),
        (libc::SYS_init_module, "0 0 0"),
        (libc::SYS_finit_module, "-1 0 0"),
        (libc::SYS_delete_module, "0 0"),
        (libc::SYS_open_by_handle_at, "-1 0 0"),
        (libc::SYS_reboot, "0 0 0 0"),
        (libc::SYS_swapon, "0 0"),
        (libc::SYS_acct, "0"),
        (libc::SYS_settimeofday, "0 0"),
        (libc::SYS_clock_settime, "0 0"),
        (libc::SYS_syslog, "3 0 0"),
        (libc::SYS_quotactl, "0 0 0 0"),
        (libc::SYS_fsopen, "0 0"),
        (libc::SYS_mount_setattr, "-1 0 0 0 0"),
        (libc::SYS_move_mount, "-1 0 -1 0 0"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_iopl, "3"),
    ];
    stopped(&also.map(|(number, arguments)| super::Attack { without: "", ..call(number, arguments, "EPERM") }));
}

#[test]
fn socket_options_that_run_code_in_the_kernel_are_refused() {
    let option = |words: &str| attack(Box::leak(format!("option {words}").into_boxed_str()), "ENOPROTOOPT", "seccomp");
    stopped(&[
        option("1 1 1 26"), // SO_ATTACH_FILTER on AF_UNIX
        option("2 2 1 26"), // and on UDP
        option("2 2 1 50"), // SO_ATTACH_BPF
        option("2 2 1 51"), // SO_ATTACH_REUSEPORT_CBPF
        option("2 2 1 52"), // SO_ATTACH_REUSEPORT_EBPF
        option("2 1 6 31"), // TCP_ULP
    ]);
}

#[test]
fn out_of_band_data_cannot_be_sent() {
    stopped(&[
        attack("out-of-band sendto", "EOPNOTSUPP", "seccomp"),
        attack("out-of-band sendmsg", "EOPNOTSUPP", "seccomp"),
        attack("out-of-band sendmmsg", "EOPNOTSUPP", "seccomp"),
    ]);
}

/// How many dirty pages of a file are not on the disk yet: cachestat(2).
const DIRTY: &str = "import ctypes, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
span, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
result = ctypes.CDLL(None, use_errno=True).syscall(451, file, span, found, 0)
print(found[1] if result == 0 else 'unknown')";

#[test]
fn sync_inside_writes_back_no_disk_of_the_host() {
    let lab = Lab::new();
    let dirty_after = |weak: &str, script: &str| {
        let name = format!("work/dirty-{}", script.len() + weak.len()); // a file that is written anew is flushed when it is closed
        let file = lab.file(&name, vec![7; 1 << 20]);
        let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
        task.args(["--dir".as_ref(), file.parent().unwrap().as_os_str()]).sh(script).ended_as("succeeded", 0);
        super::host("python3", &["-c", DIRTY, file.to_str().unwrap()]).trim().to_owned()
    };
    let controls = dirty_after("seccomp", "sync");
    if controls != "0" {
        return skip("this kernel does not count the dirty pages of files here");
    }
    for script in ["sync", "sync -f /usr/bin/env", "sync -f ."] {
        assert_ne!(dirty_after("", script), "0", "{script}");
    }
    task(&lab).sh("echo kept > file && sync file && cat file").ended_as("succeeded", 0); // fsync works as ever
}

#[test]
fn programs_of_another_abi_do_not_run() {
    // The 32-bit and x32 calls have other numbers, which an allow-list of names does not cover.
    let lab = Lab::new();
    let work = attacker(&lab);
    let run = |weak: &str| {
        let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
        // x32: the number of getpid with bit 30.
        task.args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", "call", "0x40000027"])
    };
    let stopped = run("");
    assert!(stopped.outcome() == "signaled" || answer(&stopped) != "done", "{stopped:#?}");
}

#[test]
fn proc_files_that_reach_into_the_machine_cannot_be_written() {
    let own = if is_root() { "" } else { "read-only,landlock" };
    stopped(&[
        attack("write /proc/sys/kernel/core_pattern |/workspace/x", "EACCES|EROFS", ""),
        attack("write /proc/sysrq-trigger b", "EACCES|EROFS|EPERM|ENOENT", ""),
        attack("write /proc/sys/vm/drop_caches 1", "EACCES|EROFS|EPERM", ""),
        attack("write /proc/sys/kernel/hostname x", "EACCES|EROFS|EPERM", ""),
        attack("open /proc/kcore", "EACCES|EPERM|ENOENT|ENXIO", ""),
        attack("open /proc/kmsg", "EACCES|EPERM|ENOENT", ""),
        attack("read /proc/1/environ", "ENOENT", ""),
        // Its own; it writes no core dump.
        attack("write /proc/self/oom_score_adj 500", "EACCES", "landlock").root_gets("done"),
        attack("write /proc/self/oom_score_adj -500", "EACCES", "").root_gets("EACCES"),
        attack("write /proc/self/coredump_filter 0x7f", "EACCES", "landlock").root_gets("done"),
    ]);
    // A setting of the sandbox's own namespaces: its owner could write it without the mount and Landlock.
    if !own.is_empty() {
        stopped(&[attack("write /proc/sys/user/max_user_namespaces 0", "EACCES|EROFS", "")]);
    }
}

#[test]
fn proc_sys_is_read_only_for_every_user() {
    let lab = Lab::new();
    let run = task(&lab).weakened("landlock").sh("for path in /proc/sys /proc/bus /proc/fs /proc/irq; do grep -q \" $path ro,\" /proc/self/mountinfo && echo ro; done");
    assert_eq!(run.stderr.matches("ro\n").count(), 4, "{run:#?}");
    let run = task(&lab).weakened("read-only").sh("grep -c ' /proc/sys ' /proc/self/mountinfo");
    assert_eq!(answer(&run), "0");
}

#[test]
fn masked_paths_read_as_empty() {
    let lab = Lab::new();
    let script = "for path in /proc/keys /proc/interrupts /proc/timer_list; do [ ! -e $path ] || cat $path; done 2>/dev/null | wc -c; ls -A /proc/acpi /proc/scsi 2>/dev/null | grep -v : | wc -w";
    let run = task(&lab).sh(script);
    assert_eq!(run.stderr.lines().take(2).collect::<Vec<_>>(), ["0", "0"], "{run:#?}");
    let run = task(&lab).weakened("masks").sh(script);
    assert_ne!(answer(&run), "0", "{run:#?}");
    assert!(task(&lab).sh("ls -d /sys/firmware /sys/kernel 2>/dev/null | wc -l").stderr.starts_with('0'));
}

#[test]
fn there_are_only_harmless_devices_and_none_can_be_made() {
    let lab = Lab::new();
    let run = task(&lab).sh(
        "for path in $(find /dev ! -type l | sort); do if [ -b $path ] || [ -c $path ]; then printf '%s ' $path; fi; done",
    );
    let expected = "/dev/full /dev/null /dev/pts/ptmx /dev/random /dev/tty /dev/urandom /dev/zero";
    assert_eq!(run.stderr.lines().next().map(str::trim), Some(expected), "{run:#?}");
    stopped(&[
        attack("mknod /workspace/memory 1 1", "EPERM", ""),
        attack("mknod /workspace/kvm 10 232", "EPERM", ""),
        // Overlayfs takes this one for a deleted file, and the kernel allows every user to make it.
        attack("mknod /tmp/whiteout 0 0", "EPERM", "seccomp"),
        attack("open /dev/kmsg", "ENOENT", ""),
        attack("open /dev/mem", "ENOENT", ""),
        attack("open /dev/loop-control", "ENOENT", ""),
        attack("open /dev/kvm", "ENOENT", ""),
        attack("open /dev/fuse", "ENOENT", ""),
        attack("make /dev/new", "EACCES|EROFS", ""),
        attack("chmod /dev/null 0600", "EPERM|EROFS", ""),
    ]);
}

#[test]
fn terminal_injection_is_refused() {
    // Without the filter the request reaches the standard input, which is not a terminal.
    let lab = Lab::new();
    let work = attacker(&lab);
    let go = |weak: &str| {
        let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
        answer(&task.args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", "tiocsti"]))
    };
    assert_eq!(go(""), "EPERM");
    assert_eq!(go("seccomp"), "ENOTTY");
}

#[test]
fn a_crash_is_never_handed_to_the_hosts_crash_handler() {
    // For a piped core_pattern only a limit of exactly 1 stops the kernel (core(5)); it must not be lowered to 0.
    let lab = Lab::new();
    let work = attacker(&lab);
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", "core-limit"]);
    assert_eq!(answer(&run), "1 1");
    let run =
        task(&lab).weakened("seccomp").args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", "core-limit"]);
    assert_eq!(answer(&run), "0 0");
}
