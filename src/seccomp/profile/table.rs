//! Every system call of the supported kernels, with a verdict and its reason.
//!
//! A new call in `syscalls.in` has no row here, and a test fails.

use super::cases::{self, AF_UNIX, above, allow, is, low, low_half, refuse, without};
use super::{Group, Verdict};

/// `CLONE_NEW*` of linux/sched.h for clone(2) (`CLONE_NEWTIME` is clone3's alone).
const NEW_NAMESPACES: u64 = 0x7e02_0000;
/// Also of unshare(2).
const NEW_TIME_NAMESPACE: u64 = 0x80;
/// On s390x the stack comes first.
const CLONE_FLAGS: u32 = if cfg!(target_arch = "s390x") { 1 } else { 0 };

/// A call, an argument, and bits of which one is enough. The supervisor counts these calls: they fail with EPERM in a
/// program with its own sandbox. clone3 hides its flags; such programs use the other two calls.
pub(super) const REPORTED: &[(&str, u32, u64)] =
    &[("clone", CLONE_FLAGS, NEW_NAMESPACES), ("unshare", 0, NEW_NAMESPACES | NEW_TIME_NAMESPACE)];

/// The bit of `S_IFMT` for devices, not for FIFOs, sockets and files.
const DEVICE: u64 = 0o020_000;

/// `S_ISUID` and `S_ISGID` of linux/stat.h.
pub(super) const SET_ID: u64 = 0o6000;
/// `O_CREAT` and `__O_TMPFILE` of asm-generic/fcntl.h, the same on every machine of the table.
pub(super) const MAKES_FILE: u64 = 0o20_000_100;

/// The argument with the mode, its bits that must be zero, and the argument with the flags of open(2). mkdir(2) ignores
/// both bits (vfs_mkdir).
pub(super) const MODES: &[(&str, u32, u64, Option<u32>)] = &[
    ("chmod", 1, SET_ID, None),
    ("fchmod", 1, SET_ID, None),
    ("fchmodat", 2, SET_ID, None),
    ("fchmodat2", 2, SET_ID, None),
    ("creat", 1, SET_ID, None),
    ("open", 2, SET_ID, Some(1)),
    ("openat", 3, SET_ID, Some(2)),
    ("mknod", 1, SET_ID | DEVICE, None),
    ("mknodat", 2, SET_ID | DEVICE, None),
];

/// linux/seccomp.h: the flag of a filter with a listener.
const NEW_LISTENER: u64 = 8;

/// linux/personality.h: `uname` of a 32-bit machine.
const PER_LINUX32: u64 = 8;

// asm-generic/resource.h: the limits are 0 to 15, and four masks exclude this one. The kernel reads 32 bits.
const RLIMIT_CORE: u32 = 4;

// asm-generic/fcntl.h
const F_OFD_GETLK: u32 = 36;
const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;

// asm-generic/ioctls.h
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const TIOCSETD: u32 = 0x5423;

/// In the order of the documentation. The cases of a group never overlap.
pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "Files",
        verdict: Verdict::Allowed,
        reason: "Every program needs them. Mounts, permissions and Landlock decide on the files.",
        calls: "_llseek access cachestat chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 \
            faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat \
            fdatasync flock fstat fstatfs fstatfs64 fsync ftruncate futimesat getcwd getdents getdents64 \
            inotify_add_watch inotify_init inotify_init1 inotify_rm_watch lchown link linkat lseek lstat \
            memfd_create mkdir mkdirat newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 \
            pwritev pwritev2 read readahead readlink readlinkat readv rename renameat renameat2 rmdir sendfile \
            splice stat statfs statfs64 statx symlink symlinkat sync_file_range sync_file_range2 tee truncate \
            umask unlink unlinkat utime utimensat utimes write writev",
    },
    Group {
        name: "Extended attributes",
        verdict: Verdict::Allowed,
        reason: "cp, tar and git use them. `trusted.*` and `security.*` need capabilities that an agent lacks.",
        calls: "fgetxattr flistxattr fremovexattr fsetxattr getxattr getxattrat lgetxattr listxattr listxattrat \
            llistxattr lremovexattr lsetxattr removexattr removexattrat setxattr setxattrat",
    },
    Group {
        name: "Mount table",
        verdict: Verdict::Allowed,
        reason: "Returns the same as /proc/self/mountinfo.",
        calls: "listmount statmount",
    },
    Group {
        name: "Waiting",
        verdict: Verdict::Allowed,
        reason: "Event loops.",
        calls: "_newselect epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 \
            poll ppoll pselect6 select signalfd signalfd4 timerfd_create timerfd_gettime timerfd_settime",
    },
    Group {
        name: "Memory",
        verdict: Verdict::Allowed,
        reason: "Allocators, loaders, JIT compilers. The cgroup limits the amount.",
        calls: "brk madvise map_shadow_stack memfd_secret mincore mlock mlock2 mlockall mmap mprotect mremap mseal msync \
            munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect",
    },
    Group {
        name: "Processes and threads",
        verdict: Verdict::Allowed,
        reason: "Starts, waits for and ends processes of the sandbox's PID namespace.",
        calls: "arch_prctl execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getpgid getpgrp \
            getpid getppid getpriority getrlimit getrusage getsid gettid kill membarrier pause pidfd_open \
            pidfd_send_signal prctl process_mrelease restart_syscall riscv_flush_icache riscv_hwprobe rseq \
            set_robust_list set_thread_area set_tid_address setpgid setpriority setsid swapcontext tgkill \
            times tkill ugetrlimit vfork wait4 waitid waitpid",
    },
    Group {
        name: "Scheduling",
        verdict: Verdict::Allowed,
        reason: "Lower priorities are harmless, higher ones need a capability, and the cgroup limits both.",
        calls: "ioprio_get ioprio_set sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr \
            sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam \
            sched_setscheduler sched_yield",
    },
    Group {
        name: "Signals",
        verdict: Verdict::Allowed,
        reason: "Every runtime handles them.",
        calls: "rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
            rt_tgsigqueueinfo sigaltstack sigprocmask sigreturn",
    },
    Group {
        name: "Time",
        verdict: Verdict::Allowed,
        reason: "Reading clocks and setting timers.",
        calls: "alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time \
            timer_create timer_delete timer_getoverrun timer_gettime timer_settime",
    },
    Group {
        name: "Locks",
        verdict: Verdict::Allowed,
        reason: "Every lock of every language.",
        calls: "futex futex_requeue futex_wait futex_waitv futex_wake",
    },
    Group {
        name: "Identity",
        verdict: Verdict::Allowed,
        reason: "Without CAP_SETUID and CAP_SETGID they change only between the ids that a process has. Package \
                 managers call them.",
        calls: "capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid \
            setgroups setregid setresgid setresuid setreuid setuid",
    },
    Group {
        name: "Machine",
        verdict: Verdict::Allowed,
        reason: "Names, counts and random bytes.",
        calls: "getrandom sysinfo uname",
    },
    Group {
        name: "Shared memory and queues",
        verdict: Verdict::Allowed,
        reason: "Of the sandbox's IPC namespace: PostgreSQL, Python's multiprocessing.",
        calls: "mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd \
            semctl semget semop semtimedop shmat shmctl shmdt shmget",
    },
    Group {
        name: "Connections",
        verdict: Verdict::Allowed,
        reason: "On sockets that `socket` allowed.",
        calls: "accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmsg \
            shutdown",
    },
    Group {
        name: "Debugging",
        verdict: Verdict::Allowed,
        reason: "strace and gdb on the agent's processes. Since Linux 4.8 the filter also sees a call that a tracer \
                 changed. Processes of another user namespace cannot be traced.",
        calls: "process_vm_readv process_vm_writev ptrace",
    },
    Group {
        name: "Probes of the host",
        verdict: Verdict::Allowed,
        reason: "A probed process calls them from the kernel's trampoline; the kernel refuses them elsewhere. A \
                 refusal would kill the program whenever the host traces it.",
        calls: "uprobe uretprobe",
    },
    Group {
        name: "Own sandboxes",
        verdict: Verdict::Allowed,
        reason: "A process may always drop privileges.",
        calls: "landlock_add_rule landlock_create_ruleset landlock_restrict_self",
    },
    Group {
        name: "Own filters",
        verdict: Verdict::Checked(&[
            allow(&[without(1, NEW_LISTENER)]),
            refuse(libc::EBUSY, &[low_half(1, NEW_LISTENER as u32, NEW_LISTENER as u32)]),
        ]),
        reason: "As own sandboxes, except for a filter with a listener (SECCOMP_FILTER_FLAG_NEW_LISTENER). Its \
                 answer would override the supervisor's listener, which refuses requests for namespaces \
                 (linux/seccomp.h, SECCOMP_USER_NOTIF_FLAG_CONTINUE). The kernel returns EBUSY, too, while another \
                 listener exists.",
        calls: "seccomp",
    },
    Group {
        name: "Sockets",
        verdict: Verdict::Checked(cases::FAMILIES),
        reason: "AF_UNIX, AF_INET and AF_INET6 with TCP, UDP and ICMP, and rtnetlink. Programs seldom need other \
                 families, and the kernel loads their code on demand. AF_ALG writes into page caches \
                 (CVE-2026-31431), AF_VSOCK reaches past network namespaces. SCTP, DCCP, TIPC and netfilter's \
                 netlink had exploits. They return the errors of a kernel without them. So do the types of AF_INET above \
                 SOCK_RAW: SOCK_PACKET becomes AF_PACKET, others are SCTP and DCCP.",
        calls: "socket",
    },
    Group {
        name: "Socket pairs",
        verdict: Verdict::Checked(&[allow(&[is(0, AF_UNIX)]), refuse(libc::EAFNOSUPPORT, &[above(0, AF_UNIX)])]),
        reason: "Pairs of AF_UNIX. The only other family with pairs is AF_TIPC.",
        calls: "socketpair",
    },
    Group {
        name: "Socket options",
        verdict: Verdict::Checked(cases::OPTIONS),
        reason: "All of IP, IPv6, ICMPv6, UDP, raw sockets and netlink. Of sockets all but SO_ATTACH_FILTER, \
                 SO_ATTACH_BPF and SO_ATTACH_REUSEPORT_*, which run the caller's program in the kernel. Of TCP all \
                 but TCP_ULP, which loads protocols such as TLS into a connection (CVE-2023-0461, CVE-2025-39682).",
        calls: "setsockopt",
    },
    Group {
        name: "Messages without out-of-band data (flags third)",
        verdict: Verdict::Checked(cases::FLAGS_THIRD),
        reason: "On AF_UNIX, MSG_OOB is new code that few programs use and that had exploits (CVE-2025-38236). A \
                 filter cannot see the family of a socket, so it refuses urgent data of TCP, too.",
        calls: "sendmsg",
    },
    Group {
        name: "Messages without out-of-band data (flags fourth)",
        verdict: Verdict::Checked(cases::FLAGS_FOURTH),
        reason: "As sendmsg. Receiving needs no rule: such data cannot be sent.",
        calls: "send sendmmsg sendto",
    },
    Group {
        name: "Descriptors",
        verdict: Verdict::Checked(&[
            allow(&[low_half(1, !31, 0)]),
            allow(&[low_half(1, !3, 32)]),
            allow(&[low(1, F_OFD_GETLK)]),
            allow(&[low_half(1, !31, 1024)]),
            refuse(libc::EINVAL, &[low(1, F_OFD_SETLK)]),
            refuse(libc::EINVAL, &[low(1, F_OFD_SETLKW)]),
        ]),
        reason: "All but locks of open file descriptions (F_OFD_SETLK). No process owns them, so the supervisor \
                 could not attribute the kernel memory that they use. Programs treat them as missing. Record locks \
                 and flock are allowed. A command that is root inside may make 4,096 such calls.",
        calls: "fcntl",
    },
    Group {
        name: "Device control",
        verdict: Verdict::Unless { index: 1, values: &[TIOCSTI, TIOCLINUX, TIOCSETD] },
        reason: "All but TIOCSTI and TIOCLINUX, which type into the terminal that started the agent \
                 (CVE-2017-5226), and TIOCSETD, which loads line disciplines (CVE-2017-2636). The kernel reads 32 \
                 bits of the request, so does the filter (CVE-2019-7303).",
        calls: "ioctl",
    },
    Group {
        name: "Limits of another process or our own",
        verdict: Verdict::Checked(&[
            allow(&[is(2, 0)]),
            allow(&[above(2, 0), low_half(1, !3, 0)]),
            allow(&[above(2, 0), low_half(1, !0, 5)]),
            allow(&[above(2, 0), low_half(1, !1, 6)]),
            allow(&[above(2, 0), low_half(1, !7, 8)]),
            refuse(0, &[above(2, 0), low_half(1, !0, RLIMIT_CORE)]),
        ]),
        reason: "Reads all limits, sets all but that on core dumps. At 1 the kernel writes none and starts no crash \
                 handler of the host. At 0 it would run one as the host's root on the agent's memory (core(5); \
                 CVE-2015-1318, CVE-2018-6552, CVE-2025-4598). A program that sets it to 0 gets success: it has no \
                 core dumps.",
        calls: "prlimit64",
    },
    Group {
        name: "Own limits",
        verdict: Verdict::Checked(&[
            allow(&[low_half(0, !3, 0)]),
            allow(&[low_half(0, !0, 5)]),
            allow(&[low_half(0, !1, 6)]),
            allow(&[low_half(0, !7, 8)]),
            refuse(0, &[low_half(0, !0, RLIMIT_CORE)]),
        ]),
        reason: "As prlimit64.",
        calls: "setrlimit",
    },
    Group {
        name: "Processes without new namespaces",
        verdict: Verdict::Checked(&[allow(&[without(CLONE_FLAGS, NEW_NAMESPACES)])]),
        reason: "In a new user namespace an agent would have every capability over code that attackers seldom \
                 reach. Most local root exploits begin there.",
        calls: "clone",
    },
    Group {
        name: "clone3",
        verdict: Verdict::Missing,
        reason: "Its flags are in memory, which no filter can see. C libraries fall back to clone.",
        calls: "clone3",
    },
    Group {
        name: "Files but no devices (path first)",
        verdict: Verdict::Checked(&[allow(&[without(1, DEVICE)])]),
        reason: "FIFOs and sockets. Devices need CAP_MKNOD, except overlayfs's mark of a deleted file.",
        calls: "mknod",
    },
    Group {
        name: "Files but no devices (directory first)",
        verdict: Verdict::Checked(&[allow(&[without(2, DEVICE)])]),
        reason: "As mknod.",
        calls: "mknodat",
    },
    Group {
        name: "Personality",
        verdict: Verdict::Checked(&[allow(&[is(0, 0)]), allow(&[is(0, PER_LINUX32)]), allow(&[is(0, 0xffff_ffff)])]),
        reason: "Reads it, sets the normal one, and that of 32-bit builds. Others enable executable data and fixed \
                 addresses.",
        calls: "personality",
    },
    Group {
        name: "Asynchronous I/O",
        verdict: Verdict::Missing,
        reason: "Its rings do not count as the sandbox's memory, and their number (fs.aio-max-nr) is a limit of the \
                 whole machine. Databases fall back to threads.",
        calls: "io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit",
    },
    Group {
        name: "Everything to the disks",
        verdict: Verdict::Ignored,
        reason: "sync writes back every disk of the host, and syncfs that of a file shown from the host. fsync, \
                 fdatasync, msync and sync_file_range write a file of the sandbox, as databases need.",
        calls: "sync syncfs",
    },
    Group {
        name: "Namespaces",
        verdict: Verdict::Refused,
        reason: "The sandbox consists of them.",
        calls: "listns setns unshare",
    },
    Group {
        name: "Mounts",
        verdict: Verdict::Refused,
        reason: "The mounts are fixed before the agent starts. File system parsers are a frequent target of \
                 attacks. A command that is root inside may call chroot.",
        calls: "chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree open_tree_attr pivot_root \
            umount umount2",
    },
    Group {
        name: "io_uring",
        verdict: Verdict::Refused,
        reason: "Its operations bypass filters, and it has had the most kernel exploits. Runtimes fall back to \
                 epoll.",
        calls: "io_uring_enter io_uring_register io_uring_setup",
    },
    Group {
        name: "Programs for the kernel",
        verdict: Verdict::Refused,
        reason: "eBPF and perf run or configure code in the kernel and see the whole machine.",
        calls: "bpf perf_event_open",
    },
    Group {
        name: "Page faults in user space",
        verdict: Verdict::Refused,
        reason: "userfaultfd stops the kernel in the middle of a copy: the usual way to win its races.",
        calls: "userfaultfd",
    },
    Group {
        name: "Keys",
        verdict: Verdict::Refused,
        reason: "Keyrings belong to users and sessions, not to containers.",
        calls: "add_key keyctl request_key",
    },
    Group {
        name: "Files by handle",
        verdict: Verdict::Refused,
        reason: "A handle opens a file of the whole file system, past every mount (the shocker escape).",
        calls: "name_to_handle_at open_by_handle_at",
    },
    Group {
        name: "File-system events",
        verdict: Verdict::Refused,
        reason: "fanotify watches whole file systems. inotify is allowed.",
        calls: "fanotify_init fanotify_mark",
    },
    Group {
        name: "Other processes' descriptors and memory",
        verdict: Verdict::Refused,
        reason: "pidfd_getfd copies descriptors out of processes; kcmp reveals the order of kernel addresses; \
                 process_madvise pages other processes out.",
        calls: "kcmp pidfd_getfd process_madvise",
    },
    Group {
        name: "Pages that are handed over",
        verdict: Verdict::Refused,
        reason: "vmsplice lends pages to a pipe while the caller can still write to them: the base of several \
                 copy-on-write exploits.",
        calls: "vmsplice",
    },
    Group {
        name: "NUMA",
        verdict: Verdict::Refused,
        reason: "The operator places memory (cpuset); moving pages reveals their location.",
        calls: "get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node",
    },
    Group {
        name: "Modules and kernels",
        verdict: Verdict::Refused,
        reason: "Loads code into the kernel or replaces it.",
        calls: "create_module delete_module finit_module get_kernel_syms init_module kexec_file_load kexec_load \
            query_module",
    },
    Group {
        name: "The machine itself",
        verdict: Verdict::Refused,
        reason: "Names, power, swap, quotas, accounting, the kernel's log, ports and the console are the host's.",
        calls: "acct ioperm iopl lookup_dcookie nfsservctl pciconfig_iobase pciconfig_read pciconfig_write quotactl \
            quotactl_fd reboot rtas setdomainname sethostname swapoff swapon syslog vhangup",
    },
    Group {
        name: "Clocks of the machine",
        verdict: Verdict::Refused,
        reason: "There is one for all.",
        calls: "adjtimex clock_adjtime clock_settime settimeofday stime",
    },
    Group {
        name: "Security modules",
        verdict: Verdict::Refused,
        reason: "A label is set by the runtime, once.",
        calls: "lsm_get_self_attr lsm_list_modules lsm_set_self_attr",
    },
    Group {
        name: "Too new",
        verdict: Verdict::Refused,
        reason: "Programs do not rely on them yet. They are newer than every allowed call, so they return ENOSYS.",
        calls: "file_getattr file_setattr rseq_slice_yield",
    },
    Group {
        name: "Segments and old processors",
        verdict: Verdict::Refused,
        reason: "16-bit code and machine-specific corners, of which modify_ldt has a row of exploits.",
        calls: "modify_ldt s390_guarded_storage s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr s390_sthyi \
            spu_create spu_run subpage_prot switch_endian sys_debug_setcontext vm86",
    },
    Group {
        name: "Multiplexers",
        verdict: Verdict::Missing,
        reason: "Their arguments are in memory, which no filter can see, and every call behind them also has a \
                 separate number.",
        calls: "ipc socketcall",
    },
    Group {
        name: "Gone or never there",
        verdict: Verdict::Refused,
        reason: "Old forms of other calls and numbers without a call behind them.",
        calls: "_sysctl afs_syscall bdflush break epoll_ctl_old epoll_wait_old ftime getpmsg gtty idle lock mpx \
            multiplexer nice oldfstat oldlstat oldolduname oldstat olduname prof profil putpmsg readdir remap_file_pages \
            security sgetmask sigaction signal sigpending sigsuspend ssetmask stty sysfs timerfd tuxcall ulimit \
            uselib ustat vserver",
    },
];
