/* The cost of mounting a root of many layers: an overlay with a new upper layer on a tmpfs, in a temporary mount namespace.
 *
 * usage: layers dirs|erofs ROUNDS FOLDER LAYER...
 *
 * Layers, topmost first, are directories or EROFS images. Images are mounted from their files (Linux 6.12), unattached, and
 * passed to the overlay as descriptors (6.13). Prints a line for each round: microseconds of mounting, of the first walk
 * through the root's names, and of the end of the namespace. ROUNDS 0: mounts it and reads every file once, for the caller
 * to time.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CONFIG_FLAG 0
#define CONFIG_STRING 1
#define CONFIG_FD 5
#define CONFIG_CREATE 6

static void die(const char *what) { perror(what); exit(1); }

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void set(int context, int command, const char *key, const char *value, int number) {
    if (syscall(SYS_fsconfig, context, command, key, value, number) < 0) {
        char log[512];
        int failed = errno;
        ssize_t length = read(context, log, sizeof log - 1);
        if (length > 0) fprintf(stderr, "%.*s\n", (int)length, log);
        errno = failed;
        die(key ? key : "fsconfig");
    }
}

static int mounted(int context) {
    set(context, CONFIG_CREATE, NULL, NULL, 0);
    int mount = syscall(SYS_fsmount, context, 1, 0);
    if (mount < 0) die("fsmount");
    return mount;
}

static int begin(const char *kind) {
    int context = syscall(SYS_fsopen, kind, 1);
    if (context < 0) die(kind);
    return context;
}

static long once(int erofs, const char *folder, char **layers, long *walk) {
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) die("a mount namespace");
    long start = now();
    if (mount("tmpfs", folder, "tmpfs", 0, NULL) < 0 || chdir(folder) < 0) die(folder);
    if (mkdir("upper", 0755) < 0 || mkdir("work", 0755) < 0 || mkdir("root", 0755) < 0) die("a folder");
    int overlay = begin("overlay");
    for (char **layer = layers; *layer; layer++) {
        if (!erofs) {
            set(overlay, CONFIG_STRING, "lowerdir+", *layer, 0);
            continue;
        }
        int image = begin("erofs");
        set(image, CONFIG_STRING, "source", *layer, 0);
        // Stays open: without a descriptor an unattached mount ends before the overlay clones it.
        set(overlay, CONFIG_FD, "lowerdir+", NULL, mounted(image));
        close(image);
    }
    set(overlay, CONFIG_STRING, "upperdir", "upper", 0);
    set(overlay, CONFIG_STRING, "workdir", "work", 0);
    set(overlay, CONFIG_FLAG, "volatile", NULL, 0);
    if (syscall(SYS_move_mount, mounted(overlay), "", AT_FDCWD, "root", 4) < 0) die("move_mount");
    long took = now() - start;
    DIR *root = opendir("root");
    for (struct dirent *entry; root && (entry = readdir(root));) {
        struct stat status;
        fstatat(dirfd(root), entry->d_name, &status, AT_SYMLINK_NOFOLLOW);
    }
    *walk = now() - start - took;
    return took;
}

int main(int count, char **words) {
    if (count < 5) return 2;
    int erofs = !strcmp(words[1], "erofs");
    if (!strcmp(words[2], "0")) {
        long walk;
        once(erofs, words[3], words + 4, &walk);
        execlp("sh", "sh", "-c", "find root -type f -exec cat {} + | wc -c", NULL);
        die("sh");
    }
    for (int round = atoi(words[2]); round > 0; round--) {
        int pipes[2];
        if (pipe(pipes) < 0) die("pipe");
        pid_t child = fork();
        if (child == 0) {
            long told[3];
            told[0] = once(erofs, words[3], words + 4, &told[1]);
            told[2] = now();
            if (write(pipes[1], told, sizeof told) < 0) die("write");
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        long end = now(), told[3];
        if (status != 0 || read(pipes[0], told, sizeof told) != sizeof told) return 1;
        printf("%ld %ld %ld\n", told[0], told[1], end - told[2]);
        close(pipes[0]), close(pipes[1]);
    }
    return 0;
}
