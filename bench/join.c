// What it costs a new process to get into a cgroup, by each way there is. For docs/decisions/0002-cgroup-joining.md; run by `bench/join`.
//
//   join ROUNDS PAUSE_MS V1_GROUP V2_GROUP        (either group may be `-`)
//
// A child is made and put into the group, then ends. Prints a line for each way: name, median and 99th percentile in microseconds from before the
// clone until the child is in the group.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum way { ALONE, V1_TASKS, V1_PROCS, V2_PROCS, V2_CLONE };
static const char *NAMES[] = {"fork alone", "v1: child writes tasks", "v1: child writes cgroup.procs", "v2: child writes cgroup.procs",
                              "v2: clone3 with CLONE_INTO_CGROUP"};

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}

static void must(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

static double once(enum way way, int directory, const char *file) {
    int pipes[2];
    must(pipe2(pipes, O_CLOEXEC) == 0, "pipe");
    int target = file ? openat(directory, file, O_WRONLY | O_CLOEXEC) : -1;
    must(!file || target >= 0, file);
    struct clone_args args = {.exit_signal = SIGCHLD};
    if (way == V2_CLONE) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = directory;
    }
    double began = now();
    pid_t child = syscall(SYS_clone3, &args, sizeof args);
    must(child >= 0, "clone3");
    if (child == 0) {
        if (target >= 0 && write(target, "0", 1) != 1) _exit(1);
        double joined = now();
        write(pipes[1], &joined, sizeof joined);
        _exit(0);
    }
    double joined;
    must(read(pipes[0], &joined, sizeof joined) == sizeof joined, "the child could not join");
    waitpid(child, NULL, 0);
    close(pipes[0]), close(pipes[1]), close(target);
    return joined - began;
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: join ROUNDS PAUSE_MS V1_GROUP V2_GROUP\n");
        return 2;
    }
    int rounds = atoi(words[1]);
    struct timespec pause = {0, atol(words[2]) * 1000000};
    int v1 = open(words[3], O_RDONLY | O_DIRECTORY), v2 = open(words[4], O_RDONLY | O_DIRECTORY);
    struct { enum way way; int directory; const char *file; } ways[] = {
        {ALONE, 0, NULL}, {V1_TASKS, v1, "tasks"}, {V1_PROCS, v1, "cgroup.procs"}, {V2_PROCS, v2, "cgroup.procs"}, {V2_CLONE, v2, NULL}};
    double *times[5];
    for (int way = 0; way < 5; way++) times[way] = calloc(rounds, sizeof(double));
    for (int round = -3; round < rounds; round++)
        for (int way = 0; way < 5; way++) {
            if (ways[way].directory < 0) continue;
            if (pause.tv_nsec) nanosleep(&pause, NULL);
            double took = once(ways[way].way, ways[way].directory, ways[way].file);
            if (round >= 0) times[way][round] = took;
        }
    for (int way = 0; way < 5; way++) {
        if (ways[way].directory < 0) continue;
        qsort(times[way], rounds, sizeof(double), ascending);
        printf("%s\t%.0f\t%.0f\n", NAMES[way], times[way][rounds / 2], times[way][rounds * 99 / 100]);
    }
    return 0;
}
