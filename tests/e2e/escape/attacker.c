// What the attacks do inside a sandbox, one a call: `attacker NAME ARGUMENT…` prints `done`, or the name of the error that stopped it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int say(long result) {
    puts(result >= 0 ? "done" : strerrorname_np(errno));
    fflush(stdout);
    return 0;
}

// A call whose errors other than these mean that it was let through to its arguments.
static int say_reached(long result) {
    if (result < 0 && errno != EPERM && errno != EACCES && errno != ENOSYS && errno != EBUSY && errno != EAFNOSUPPORT && errno != EPROTONOSUPPORT && errno != ESOCKTNOSUPPORT) result = 0;
    return say(result);
}

static long number(const char *text) { return text ? strtol(text, 0, 0) : 0; }

static int unix_connect(const char *name, int abstract, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path + abstract, name, sizeof address.sun_path - 2);
    int fd = socket(AF_UNIX, type, 0);
    if (fd < 0) return -1;
    return connect(fd, (void *)&address, offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name));
}

static int tcp_connect(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return fd < 0 ? -1 : connect(fd, (void *)&address, sizeof address);
}

static int child_of(long result) {
    if (result == 0) _exit(0);
    if (result > 0) waitpid(result, 0, 0);
    return say(result);
}

int main(int count, char **words) {
    const char *what = words[1] ? words[1] : "", *a = words[2], *b = a ? words[3] : 0;
#define IS(name) (!strcmp(what, name))
    if (IS("whoami")) {
        char line[256];
        printf("euid=%d\n", geteuid());
        FILE *status = fopen("/proc/self/status", "r");
        while (status && fgets(line, sizeof line, status)) if (!strncmp(line, "Cap", 3)) fputs(line, stdout);
        return 0;
    }
    if (IS("unshare")) return say(unshare(number(a)));
    if (IS("clone")) return child_of(syscall(SYS_clone, number(a) | SIGCHLD, 0, 0, 0, 0));
    if (IS("clone3")) {
        unsigned long long arguments[11] = {number(a), 0, 0, 0, SIGCHLD};
        return child_of(syscall(SYS_clone3, arguments, sizeof arguments));
    }
    if (IS("mount")) return say(mount("none", a, "tmpfs", 0, 0));
    if (IS("bind")) return say(mount(a, b, 0, MS_BIND, 0));
    if (IS("remount")) return say(mount(0, a, 0, MS_REMOUNT | MS_BIND, 0));
    if (IS("umount")) return say(umount2(a, MNT_DETACH));
    if (IS("open-tree")) return say(syscall(SYS_open_tree, AT_FDCWD, a, 1));
    if (IS("chroot")) return say(chroot(a));
    if (IS("pivot")) return say(syscall(SYS_pivot_root, a, a));
    if (IS("make")) return say(open(a, O_WRONLY | O_CREAT | O_EXCL, 0600));
    if (IS("write")) {
        int fd = open(a, O_WRONLY);
        return say(fd < 0 || !b ? fd : write(fd, b, strlen(b)));
    }
    if (IS("read")) {
        char buffer[4096];
        int fd = open(a, O_RDONLY | O_NONBLOCK);
        return say(fd < 0 ? fd : read(fd, buffer, sizeof buffer));
    }
    if (IS("open")) return say(open(a, O_RDONLY | O_NONBLOCK));
    if (IS("readlink")) { char buffer[4096]; return say(readlink(a, buffer, sizeof buffer)); }
    if (IS("link")) return say(link(a, b));
    if (IS("rename")) return say(rename(a, b));
    if (IS("chmod")) return say(chmod(a, number(b)));
    if (IS("mknod")) return say(mknod(a, S_IFCHR | 0600, makedev(number(b), number(words[4]))));
    if (IS("ptrace")) return say(ptrace(PTRACE_SEIZE, number(a), 0, 0));
    if (IS("vm-read")) {
        char byte;
        struct iovec ours = {&byte, 1}, theirs = {(void *)main, 1};
        return say_reached(process_vm_readv(number(a), &ours, 1, &theirs, 1, 0));
    }
    if (IS("take-fd")) {
        int pid = syscall(SYS_pidfd_open, number(a), 0);
        return say(pid < 0 ? pid : syscall(SYS_pidfd_getfd, pid, number(b), 0));
    }
    if (IS("kill")) return say(kill(number(a), number(b)));
    if (IS("set-user")) return say(setresuid(number(a), number(a), number(a)));
    if (IS("host-name")) return say(sethostname(a, strlen(a)));
    if (IS("abstract")) return say(unix_connect(a, 1, SOCK_STREAM));
    if (IS("socket-at")) return say(unix_connect(a, 0, SOCK_STREAM));
    if (IS("tcp")) return say(tcp_connect(number(a)));
    if (IS("shm")) return say(shmget(number(a), 0, 0));
    if (IS("msg")) return say(msgget(number(a), 0));
    if (IS("mq")) return say(mq_open(a, O_RDONLY));
    if (IS("key")) {
        char secret[64] = "";
        long length = syscall(SYS_keyctl, KEYCTL_READ, number(a), secret, sizeof secret);
        return say(length);
    }
    if (IS("tiocsti")) return say(ioctl(0, TIOCSTI, "x"));
    if (IS("call")) {
        long n[7] = {0};
        for (int i = 0; i < 7 && words[2 + i]; i++) n[i] = number(words[2 + i]);
        return say_reached(syscall(n[0], n[1], n[2], n[3], n[4], n[5], n[6]));
    }
    if (IS("option")) { // family type level option: a socket option whose value is a small filter program
        struct sock_filter accept = {BPF_RET | BPF_K, 0, 0, ~0u};
        struct sock_fprog program = {1, &accept};
        int fd = socket(number(a), number(b), 0);
        long result = fd < 0 ? fd : setsockopt(fd, number(words[4]), number(words[5]), &program, sizeof program);
        return say(result < 0 && errno != ENOPROTOOPT ? 0 : result);
    }
    if (IS("out-of-band")) {
        int pair[2];
        struct iovec byte = {"x", 1};
        struct mmsghdr message = {.msg_hdr = {.msg_iov = &byte, .msg_iovlen = 1}};
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) return say(-1);
        if (!strcmp(a, "sendto")) return say(send(pair[0], "x", 1, MSG_OOB));
        if (!strcmp(a, "sendmsg")) return say(sendmsg(pair[0], &message.msg_hdr, MSG_OOB));
        return say(sendmmsg(pair[0], &message, 1, MSG_OOB));
    }
    if (IS("descriptors")) {
        for (int fd = 3; fd < 4096; fd++) if (fcntl(fd, F_GETFD) >= 0) printf("open: %d\n", fd);
        return say(0);
    }
    if (IS("through")) { // a path from an inherited directory
        int fd = openat(number(a), b, O_RDONLY);
        char buffer[4096];
        return say(fd < 0 ? fd : read(fd, buffer, sizeof buffer));
    }
    if (IS("leave")) return say(fchdir(number(a)) < 0 ? -1 : open(b, O_RDONLY));
    if (IS("send")) return say(send(number(a), b, strlen(b), MSG_NOSIGNAL));
    if (IS("core-limit")) {
        struct rlimit none = {0, 0}, now;
        setrlimit(RLIMIT_CORE, &none);
        getrlimit(RLIMIT_CORE, &now);
        printf("%ld %ld\n", (long)now.rlim_cur, (long)now.rlim_max);
        return 0;
    }
    if (IS("fifo")) { // what a reader of the host's FIFO would get
        int fd = open(a, O_WRONLY | O_NONBLOCK);
        return say(fd < 0 ? fd : write(fd, "escaped\n", 8));
    }
    puts("no such attack");
    return 2;
}
