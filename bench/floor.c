/* The lower bound of a start: only the kernel's work for a sandbox, in brig's order. Parses no file, keeps no state, checks
 * nothing. bench/run compares each start with it, with the same protections.
 *
 *   floor run [OPTIONS] ROOT COMMAND...      make, run, wait, remove.
 *   floor create FIFO [OPTIONS] ROOT COMMAND...   make; the first process waits for FIFO.
 *   floor start FIFO                         continue it.
 *   floor delete GROUP...                    remove its cgroups.
 *   floor exec PID [OPTIONS] COMMAND...      run another process in the namespaces of PID.
 *   floor filter PID                         print the filter of a process (ptrace(2), PTRACE_SECCOMP_GET_FILTER).
 *
 *   --group DIR        make this cgroup, enter it (v2: by the clone; v1: by `tasks`), remove it; exec enters it.
 *   --put FILE VALUE   write a file of a cgroup.
 *   --user             a user namespace: 65536 ids from 100000.
 *   --filter FILE      load this seccomp filter.
 *   --disk DIRECTORY   make ROOT as for a task: a tmpfs, the host's /usr read-only with mapped ids, Landlock.
 *                      Everything writable is a volatile overlay on a copy of DIRECTORY's ext4 image `template`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64, IDS = 65536, FIRST_ID = 100000, READ_ONLY = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };

static char *groups[MOST], *puts_to[MOST], *put_values[MOST], *filter_path, *disk_path, *root, **command;
static int group_count, put_count, user, born_in = -1, tasks[MOST], task_count, scratch = -1, users = -1, between[2];
static struct sock_filter instructions[4096];
static struct sock_fprog filter = {.filter = instructions};

static void die(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}
static int ok(long result, const char *what) {
    if (result < 0) die(what);
    return result;
}

/* A new, detached mount: pairs of key and value, NULL at the end; a NULL value is a flag. */
static int fresh(const char *type, unsigned attributes, const char **options) {
    int at = ok(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), type);
    for (; options && options[0]; options += 2)
        ok(syscall(SYS_fsconfig, at, options[1] ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, options[0], options[1], 0), options[0]);
    ok(syscall(SYS_fsconfig, at, FSCONFIG_CMD_CREATE, NULL, NULL, 0), type);
    int mount = ok(syscall(SYS_fsmount, at, FSMOUNT_CLOEXEC, attributes), type);
    close(at);
    return mount;
}
#define FRESH(type, attributes, ...) fresh(type, attributes, (const char *[]){__VA_ARGS__ __VA_OPT__(,) NULL, NULL})

static void attach(int mount, int at, const char *path) {
    unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | (path[0] ? 0 : MOVE_MOUNT_T_EMPTY_PATH);
    ok(syscall(SYS_move_mount, mount, "", at, path, flags), path);
    close(mount);
}
static int copy(int at, const char *path, unsigned attributes, int ids) {
    int tree = syscall(SYS_open_tree, at, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (tree < 0) return -1;
    struct mount_attr set = {.attr_set = attributes | (ids >= 0 ? MOUNT_ATTR_IDMAP : 0), .userns_fd = ids >= 0 ? ids : 0};
    if (attributes || ids >= 0) ok(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &set, sizeof set), path);
    return tree;
}
static void bind_over(int at, const char *from, const char *to, unsigned attributes) {
    int tree = copy(at, from, attributes, -1);
    if (tree >= 0) attach(tree, at, to);
}
static void file(int at, const char *name, const char *text) {
    int out = ok(openat(at, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644), name);
    ok(write(out, text, strlen(text)), name);
    close(out);
}

/* /dev as every container has it. In a user namespace nodes cannot be made, and are bound. */
static void devices(int at, int bind) {
    static const struct { const char *name; int major, minor; } nodes[] = {
        {"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
    for (unsigned each = 0; each < sizeof nodes / sizeof *nodes; each++) {
        if (!bind) {
            ok(mknodat(at, nodes[each].name, S_IFCHR | 0666, makedev(nodes[each].major, nodes[each].minor)), "mknod");
            continue;
        }
        char host[32];
        snprintf(host, sizeof host, "/dev/%s", nodes[each].name);
        close(ok(openat(at, nodes[each].name, O_CREAT | O_CLOEXEC, 0666), host));
        attach(ok(copy(AT_FDCWD, host, 0, -1), host), at, nodes[each].name);
    }
    symlinkat("/proc/self/fd", at, "fd");
    symlinkat("/proc/self/fd/0", at, "stdin");
    symlinkat("/proc/self/fd/1", at, "stdout");
    symlinkat("/proc/self/fd/2", at, "stderr");
    symlinkat("pts/ptmx", at, "ptmx");
}
static void masks(int at) {
    static const char *masked[] = {"proc/acpi", "proc/asound", "proc/kcore", "proc/keys", "proc/latency_stats", "proc/timer_list",
                                   "proc/timer_stats", "proc/sched_debug", "proc/scsi", "sys/firmware"};
    static const char *read_only[] = {"proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"};
    int empty = -1;
    for (unsigned each = 0; each < sizeof read_only / sizeof *read_only; each++)
        bind_over(at, read_only[each], read_only[each], READ_ONLY | MOUNT_ATTR_NOEXEC);
    for (unsigned each = 0; each < sizeof masked / sizeof *masked; each++) {
        struct stat status;
        if (fstatat(at, masked[each], &status, 0) < 0) continue;
        if (!S_ISDIR(status.st_mode)) { bind_over(at, "dev/null", masked[each], MOUNT_ATTR_RDONLY); continue; }
        if (empty < 0) empty = FRESH("tmpfs", READ_ONLY | MOUNT_ATTR_NOEXEC, "size", "4096", "nr_inodes", "2", "mode", "555");
        attach(ok(copy(empty, "", 0, -1), masked[each]), at, masked[each]);
    }
}
static void loopback(void) {
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int to = ok(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
    ok(ioctl(to, SIOCSIFFLAGS, &up), "lo");
    close(to);
}

/* The root of an OCI container: what `runc spec` asks for. */
static int container_root(void) {
    ok(syscall(SYS_mount, NULL, "/", NULL, 1 << 14 | 1 << 19, NULL), "mount --make-rslave"); // MS_REC, MS_SLAVE
    int at = ok(syscall(SYS_open_tree, AT_FDCWD, root, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE), root);
    ok(syscall(SYS_move_mount, at, "", AT_FDCWD, root, MOVE_MOUNT_F_EMPTY_PATH), root);
    attach(FRESH("proc", 0), at, "proc");
    attach(FRESH("tmpfs", MOUNT_ATTR_NOSUID | MOUNT_ATTR_STRICTATIME, "mode", "755", "size", "65536k"), at, "dev");
    int dev = ok(openat(at, "dev", O_PATH | O_DIRECTORY | O_CLOEXEC), "dev");
    mkdirat(dev, "pts", 0755), mkdirat(dev, "shm", 0755), mkdirat(dev, "mqueue", 0755);
    attach(FRESH("devpts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, "newinstance", NULL, "ptmxmode", "0666", "mode", "0620", "gid", "5"), dev, "pts");
    attach(FRESH("tmpfs", READ_ONLY & ~MOUNT_ATTR_RDONLY, "mode", "1777", "size", "65536k"), dev, "shm");
    attach(FRESH("mqueue", READ_ONLY & ~MOUNT_ATTR_RDONLY), dev, "mqueue");
    attach(FRESH("sysfs", READ_ONLY | MOUNT_ATTR_NOEXEC), at, "sys");
    if (task_count == 0 && group_count > 0) {
        ok(unshare(CLONE_NEWCGROUP), "unshare"); // before the mount: from the first cgroup namespace it waits for a grace period
        attach(FRESH("cgroup2", READ_ONLY | MOUNT_ATTR_NOEXEC), at, "sys/fs/cgroup");
    } else if (task_count > 0) {
        int place = FRESH("tmpfs", READ_ONLY & ~MOUNT_ATTR_RDONLY, "mode", "755", "size", "1048576");
        ok(syscall(SYS_move_mount, place, "", at, "sys/fs/cgroup", MOVE_MOUNT_F_EMPTY_PATH), "sys/fs/cgroup");
        for (int each = 0; each < group_count; each++) {
            char name[16];
            snprintf(name, sizeof name, "%d", each);
            mkdirat(place, name, 0755);
            attach(ok(copy(AT_FDCWD, groups[each], READ_ONLY | MOUNT_ATTR_NOEXEC, -1), groups[each]), place, name);
        }
        struct mount_attr set = {.attr_set = MOUNT_ATTR_RDONLY};
        ok(syscall(SYS_mount_setattr, place, "", AT_EMPTY_PATH, &set, sizeof set), "mount_setattr");
    }
    devices(dev, user);
    masks(at);
    struct mount_attr set = {.attr_set = MOUNT_ATTR_RDONLY};
    ok(syscall(SYS_mount_setattr, at, "", AT_EMPTY_PATH, &set, sizeof set), "mount_setattr");
    return at;
}

/* A descriptor from one process to another, over `between`. */
static void send_descriptor(int which) {
    char byte = 'D', space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS, rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &which, sizeof(int));
    ok(sendmsg(between[1], &message, 0), "sendmsg");
}
static int receive(void) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    int which;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(between[0], &message, MSG_CMSG_CLOEXEC) != 1) die("the disk");
    memcpy(&which, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return which;
}

/* The root of a task: system folders of the host with mapped ids, a made /etc, one file system for all that is writable. */
static int task_root(void) {
    static const char *shown[] = {"/usr", "/etc/alternatives", "/etc/ssl/certs", "/etc/ca-certificates"};
    ok(syscall(SYS_mount, NULL, "/", NULL, 1 << 14 | 1 << 18, NULL), "mount --make-rprivate"); // MS_REC, MS_PRIVATE
    char id[16];
    snprintf(id, sizeof id, "%d", FIRST_ID);
    int at = FRESH("tmpfs", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, "size", "4194304", "mode", "755", "uid", id, "gid", id);
    ok(syscall(SYS_move_mount, at, "", AT_FDCWD, root, MOVE_MOUNT_F_EMPTY_PATH), root);
    static const char *folders[] = {"usr", "etc", "etc/alternatives", "etc/ssl", "etc/ssl/certs", "etc/ca-certificates", "proc", "dev",
                                    "dev/pts", "dev/shm", "home", "home/agent", "tmp", "workspace", "var", "run", "root"};
    for (unsigned each = 0; each < 8; each++) mkdirat(at, folders[each], 0755);
    for (unsigned each = 0; each < 4; each++) {
        int tree = copy(AT_FDCWD, shown[each], READ_ONLY, users);
        if (tree >= 0) attach(tree, at, shown[each] + 1);
    }
    symlinkat("usr/bin", at, "bin"), symlinkat("usr/sbin", at, "sbin"), symlinkat("usr/lib", at, "lib"), symlinkat("usr/lib64", at, "lib64");
    static const char *files[] = {"passwd", "group", "hosts", "hostname", "nsswitch.conf", "gitconfig"};
    int etc = ok(openat(at, "etc", O_PATH | O_DIRECTORY | O_CLOEXEC), "etc");
    for (unsigned each = 0; each < 6; each++) file(etc, files[each], "some lines of text\n");
    file(etc, "ld.so.cache", "");
    attach(ok(copy(AT_FDCWD, "/etc/ld.so.cache", READ_ONLY, users), "ld.so.cache"), etc, "ld.so.cache");
    attach(FRESH("proc", READ_ONLY & ~MOUNT_ATTR_RDONLY, "hidepid", "4"), at, "proc");
    attach(FRESH("tmpfs", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, "size", "65536", "mode", "755", "uid", id, "gid", id), at, "dev");
    for (unsigned each = 8; each < sizeof folders / sizeof *folders; each++) mkdirat(at, folders[each], 0755);
    int dev = ok(openat(at, "dev", O_PATH | O_DIRECTORY | O_CLOEXEC), "dev");
    devices(dev, 0);
    attach(FRESH("devpts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, "ptmxmode", "0666", "mode", "0620"), dev, "pts");
    attach(FRESH("tmpfs", READ_ONLY & ~MOUNT_ATTR_RDONLY, "size", "67108864", "mode", "1777"), dev, "shm");
    scratch = receive();
    static const char *writable[][2] = {{"home", "home/agent"}, {"tmp", "tmp"}, {"workspace", "workspace"}};
    for (unsigned each = 0; each < 3; each++) {
        fchownat(scratch, writable[each][0], FIRST_ID + 1000, FIRST_ID + 1000, 0);
        attach(ok(copy(scratch, writable[each][0], MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, -1), writable[each][0]), at, writable[each][1]);
    }
    masks(at);
    struct mount_attr set = {.attr_set = READ_ONLY};
    ok(syscall(SYS_mount_setattr, at, "", AT_EMPTY_PATH, &set, sizeof set), "mount_setattr");
    return at;
}

static void fence(void) {
    struct landlock_ruleset_attr all = {.handled_access_fs = (1 << 13) - 1};
    int rules = syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    if (rules < 0) return; // a kernel without Landlock
    static const char *places[] = {"/", "/dev", "/home", "/tmp", "/workspace", "/proc"};
    for (unsigned each = 0; each < 6; each++) {
        struct landlock_path_beneath_attr rule = {.allowed_access = each ? (1 << 13) - 1 : 13, .parent_fd = open(places[each], O_PATH | O_CLOEXEC)};
        ok(syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0), places[each]);
        close(rule.parent_fd);
    }
    ok(syscall(SYS_landlock_restrict_self, rules, 0), "landlock");
}

static _Noreturn void become(int uid, uint32_t kept) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {{.effective = kept, .permitted = kept}};
    for (int each = 0; each <= CAP_LAST_CAP; each++)
        if (each >= 32 || !(kept >> each & 1)) prctl(PR_CAPBSET_DROP, each);
    prctl(PR_SET_KEEPCAPS, 1);
    ok(syscall(SYS_setgroups, 0, NULL), "setgroups");
    ok(syscall(SYS_setresgid, uid, uid, uid), "setresgid");
    ok(syscall(SYS_setresuid, uid, uid, uid), "setresuid");
    ok(syscall(SYS_capset, &header, sets), "capset");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (disk_path) fence();
    if (filter.len) ok(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &filter), "seccomp");
    execvp(command[0], command);
    die(command[0]);
    _exit(1);
}

/* What the first process does. */
static _Noreturn void first(int gate, const char *fifo, int ready) {
    char byte;
    if (user && read(gate, &byte, 1) < 0) die("gate");
    for (int each = 0; each < task_count; each++) ok(write(tasks[each], "0", 1), "tasks");
    if (user) ok(syscall(SYS_setresgid, 0, 0, 0), "setresgid"), ok(syscall(SYS_setresuid, 0, 0, 0), "setresuid");
    umask(0);
    int held = fifo ? ok(open(fifo, O_PATH | O_CLOEXEC), fifo) : -1;
    syscall(SYS_keyctl, 1, NULL);
    sethostname("floor", 5);
    loopback();
    if (disk_path) ok(unshare(CLONE_NEWCGROUP), "unshare");
    int at = disk_path ? task_root() : container_root(), old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    ok(fchdir(at), "chdir");
    ok(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    ok(fchdir(old), "chdir");
    ok(syscall(SYS_mount, NULL, ".", NULL, 1 << 14 | 1 << 19, NULL), "slave");
    ok(syscall(SYS_umount2, ".", 2), "umount"); // MNT_DETACH
    ok(chdir("/"), "chdir");
    struct rlimit files = {1024, 1024};
    prctl(PR_SET_PDEATHSIG, fifo ? 0 : SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    if (disk_path) {
        // As for a task: a reaper, and the command as its child with another id.
        ok(setns(users, CLONE_NEWUSER), "setns");
        pid_t child = ok(fork(), "fork");
        int status = 0;
        if (child == 0) setsid(), setrlimit(RLIMIT_NOFILE, &files), become(1000, 0);
        ok(waitpid(child, &status, 0), "wait");
        _exit(WEXITSTATUS(status));
    }
    setsid();
    setrlimit(RLIMIT_NOFILE, &files);
    if (fifo) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", held);
        ok(write(ready, "R", 1), "ready");
        close(ready);
        ok(open(path, O_WRONLY | O_CLOEXEC), fifo); // waits for `floor start`
    }
    syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
    become(0, 0xa80425fb); // Docker's default capabilities
}

static pid_t spawn(uint64_t flags, int into) {
    struct clone_args how = {.flags = flags | (into >= 0 ? CLONE_INTO_CGROUP : 0), .exit_signal = SIGCHLD, .cgroup = into >= 0 ? into : 0};
    return ok(syscall(SYS_clone3, &how, sizeof how), "clone3");
}
static void map_ids(pid_t pid) {
    static const char *names[] = {"uid_map", "gid_map"};
    char path[64], line[64];
    snprintf(line, sizeof line, "0 %d %d\n", FIRST_ID, IDS);
    for (int each = 0; each < 2; each++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, names[each]);
        file(AT_FDCWD, path, line);
    }
}
/* A user namespace to map the ids of mounts with. */
static int user_namespace(void) {
    char path[64];
    pid_t pid = spawn(CLONE_NEWUSER, -1);
    if (pid == 0) for (;;) pause();
    map_ids(pid);
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int made = ok(open(path, O_RDONLY | O_CLOEXEC), path);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return made;
}
/* An empty file without synchronous writes. `at` is a new directory for the overlay. */
static int volatile_file(int at) {
    static const char *keys[] = {"lowerdir", "upperdir", "workdir"}, *names[] = {"lower", "upper", "work"};
    char path[64];
    int context = ok(syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC), "overlay");
    for (int each = 0; each < 3; each++) {
        ok(mkdirat(at, names[each], 0700), names[each]);
        snprintf(path, sizeof path, "/proc/self/fd/%d/%s", at, names[each]);
        ok(syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, keys[each], path, 0), keys[each]);
    }
    ok(syscall(SYS_fsconfig, context, FSCONFIG_SET_FLAG, "volatile", NULL, 0), "volatile");
    ok(syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0), "overlay");
    int overlay = ok(syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 0), "overlay");
    close(context);
    int made = ok(openat(overlay, "image", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), "image");
    unlinkat(overlay, "image", 0);
    return made; // the overlay stays open: its closing waits for all processors
}
/* What is allocated of `from`. */
static void copy_allocated(int from, int to) {
    static char buffer[32768];
    off_t end = lseek(from, 0, SEEK_END), at = 0, hole;
    if (end < 0) die("template");
    ok(ftruncate(to, end), "image");
    for (; (at = lseek(from, at, SEEK_DATA)) >= 0; at = hole) {
        if ((hole = lseek(from, at, SEEK_HOLE)) < 0) die("template");
        for (ssize_t got; at < hole; at += got) {
            size_t most = hole - at < (off_t)sizeof buffer ? (size_t)(hole - at) : sizeof buffer;
            got = ok(pread(from, buffer, most, at), "template");
            ok(pwrite(to, buffer, got, at), "image");
        }
    }
}
static void forget(int folder, const char *name, int at) {
    static const struct { const char *path; int flags; } made[] = {{"work/work/incompat/volatile/dirty", 0},
        {"work/work/incompat/volatile", AT_REMOVEDIR}, {"work/work/incompat", AT_REMOVEDIR}, {"work/work", AT_REMOVEDIR},
        {"work", AT_REMOVEDIR}, {"upper", AT_REMOVEDIR}, {"lower", AT_REMOVEDIR}};
    for (size_t each = 0; each < sizeof made / sizeof *made; each++) unlinkat(at, made[each].path, made[each].flags);
    unlinkat(folder, name, AT_REMOVEDIR);
}
/* The disk; `folder` and `at`, which name `made`, are for forget(). */
static int disk(int *folder, char *made, size_t room, int *at) {
    *folder = ok(open(disk_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), disk_path);
    snprintf(made, room, "live-%d", getpid());
    ok(mkdirat(*folder, made, 0700), made);
    *at = ok(openat(*folder, made, O_RDONLY | O_DIRECTORY | O_CLOEXEC), made);
    int template = ok(openat(*folder, "template", O_RDONLY | O_CLOEXEC), "template"), number, device;
    int image = volatile_file(*at);
    copy_allocated(template, image);
    int control = ok(open("/dev/loop-control", O_RDWR | O_CLOEXEC), "loop-control");
    char path[32];
    struct loop_config how = {.fd = image, .block_size = 4096, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
    do { // another one may be faster
        number = ok(ioctl(control, LOOP_CTL_GET_FREE), "loop-control");
        snprintf(path, sizeof path, "/dev/loop%d", number);
        device = ok(open(path, O_RDWR | O_CLOEXEC), path);
    } while (ioctl(device, LOOP_CONFIGURE, &how) < 0 && errno == EBUSY);
    int mount = FRESH("ext4", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME, "source", path, "noinit_itable", NULL, "nobarrier", NULL);
    close(device), close(image), close(control), close(template);
    return mount;
}

static void join_groups(int make) {
    for (int each = 0; each < group_count; each++) {
        char path[4096];
        if (make && mkdir(groups[each], 0755) < 0) die(groups[each]);
        snprintf(path, sizeof path, "%s/tasks", groups[each]);
        int to = open(path, O_WRONLY | O_CLOEXEC);
        if (to >= 0) tasks[task_count++] = to;
        else born_in = ok(open(groups[each], O_RDONLY | O_DIRECTORY | O_CLOEXEC), groups[each]);
    }
    for (int each = 0; each < put_count; each++) {
        int to = ok(open(puts_to[each], O_WRONLY | O_CLOEXEC), puts_to[each]);
        ok(write(to, put_values[each], strlen(put_values[each])), puts_to[each]);
        close(to);
    }
}
static void remove_groups(char **names, int count) {
    for (int each = 0; each < count; each++)
        while (rmdir(names[each]) < 0) {
            if (errno != EBUSY) die(names[each]);
            sched_yield(); // the process that exited is still counted in it
        }
}

static int run(const char *fifo) {
    if (disk_path) {
        // The disk is mounted meanwhile. Unmounting it writes the image: as in brig, a background process closes it last.
        ok(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, between), "socketpair");
        if (spawn(0, -1) == 0) {
            char byte, made[32];
            int folder, at;
            close(between[0]);
            send_descriptor(disk(&folder, made, sizeof made, &at));
            forget(folder, made, at);
            read(between[1], &byte, 1); // until the others are gone
            usleep(1000);
            _exit(0);
        }
        close(between[1]);
        users = user_namespace();
    }
    join_groups(1);
    int gate[2] = {-1, -1}, ready[2] = {-1, -1}, status = 0;
    if (user) ok(pipe2(gate, O_CLOEXEC), "pipe");
    if (fifo) ok(mkfifo(fifo, 0600), fifo), ok(pipe2(ready, O_CLOEXEC), "pipe");
    pid_t pid = spawn(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | (user ? CLONE_NEWUSER : 0), born_in);
    if (pid == 0) close(gate[1]), first(gate[0], fifo, ready[1]);
    if (user) map_ids(pid), close(gate[1]);
    if (fifo) {
        char byte;
        close(ready[1]);
        return read(ready[0], &byte, 1) == 1 ? 0 : 1;
    }
    ok(waitpid(pid, &status, 0), "wait");
    remove_groups(groups, group_count);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
static int enter(pid_t pid) {
    int target = ok(syscall(SYS_pidfd_open, pid, 0), "pidfd_open"), status = 0;
    join_groups(0);
    pid_t helper = spawn(0, born_in);
    if (helper == 0) {
        for (int each = 0; each < task_count; each++) ok(write(tasks[each], "0", 1), "tasks");
        ok(setns(target, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET), "setns");
        pid_t child = ok(fork(), "fork");
        if (child == 0) ok(chdir("/"), "chdir"), become(0, 0xa80425fb);
        ok(waitpid(child, &status, 0), "wait");
        _exit(WEXITSTATUS(status));
    }
    ok(waitpid(helper, &status, 0), "wait");
    return WEXITSTATUS(status);
}
static int print_filter(pid_t pid) {
    ok(ptrace(PTRACE_SEIZE, pid, 0, 0), "ptrace");
    ok(ptrace(PTRACE_INTERRUPT, pid, 0, 0), "ptrace");
    ok(waitpid(pid, NULL, __WALL), "wait");
    int count = ok(ptrace(0x420c, pid, 0, instructions), "PTRACE_SECCOMP_GET_FILTER");
    ptrace(PTRACE_DETACH, pid, 0, 0);
    return fwrite(instructions, sizeof *instructions, count, stdout) == (size_t)count ? 0 : 1;
}

int main(int count, char **words) {
    (void)count;
    char *verb = words[1], *object = NULL;
    if (!verb || !words[2]) return fprintf(stderr, "usage: see the top of bench/floor.c\n"), 2;
    words += 2;
    if (strcmp(verb, "start") == 0) return open(words[0], O_RDONLY | O_CLOEXEC) < 0 ? (die(words[0]), 1) : unlink(words[0]);
    if (strcmp(verb, "delete") == 0) return remove_groups(words, count - 2), 0;
    if (strcmp(verb, "filter") == 0) return print_filter(atoi(words[0]));
    if (strcmp(verb, "run") != 0) object = *words++;
    for (; *words && strncmp(*words, "--", 2) == 0; words++) {
        if (strcmp(*words, "--user") == 0) user = 1;
        else if (strcmp(*words, "--group") == 0 && group_count < MOST) groups[group_count++] = *++words;
        else if (strcmp(*words, "--filter") == 0) filter_path = *++words;
        else if (strcmp(*words, "--disk") == 0) disk_path = *++words;
        else if (strcmp(*words, "--put") == 0 && put_count < MOST) puts_to[put_count] = words[1], put_values[put_count++] = words[2], words += 2;
        else return fprintf(stderr, "floor: what is `%s`?\n", *words), 2;
    }
    if (filter_path) {
        int from = ok(open(filter_path, O_RDONLY | O_CLOEXEC), filter_path);
        filter.len = ok(read(from, instructions, sizeof instructions), filter_path) / sizeof *instructions;
        close(from);
    }
    if (strcmp(verb, "exec") == 0) return command = words, enter(atoi(object));
    root = words[0], command = words + 1;
    return run(object);
}
