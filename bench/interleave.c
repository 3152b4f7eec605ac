// Times commands in turn, so that disturbances of the machine affect all of them alike. The order is random in each round:
// a command also pays for the kernel's deferred cleanup after the previous one. Names with the same first word (up to a
// space or a slash) stay together in their order.
//
//   interleave ROUNDS PAUSE_MS NAME COMMAND [ARGUMENT…] ::: NAME COMMAND …
//
// NAME@PATH starts it in the mount namespace of PATH; entering is not timed. A NAME with a leading `-` runs in its turn,
// without a pause, and is not reported. Prints a line for each: name, median, 99th percentile and minimum of start + run +
// end in microseconds. A command that fails, or takes longer than 60 s, is excluded with its last output on stderr. All
// names with the same first word are excluded, too. The exit status is then 1.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { MOST = 64, LONGEST_S = 60 };

struct subject {
    const char *name;
    int mounts; // its mount namespace, or -1 for the current one
    int left_out;
    char **arguments;
    double *times;
};

static volatile pid_t running;

static void too_long(int signal) {
    (void)signal;
    if (running > 0) kill(running, SIGKILL);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}

static void enter(int mounts) {
    if (mounts >= 0 && setns(mounts, CLONE_NEWNS) != 0) {
        perror("setns");
        exit(1);
    }
}

// Microseconds, or a negative number on failure.
static double once(const struct subject *subject, posix_spawn_file_actions_t *actions, int words) {
    pid_t pid;
    int status;
    double began = now();
    int error = posix_spawnp(&pid, subject->arguments[0], actions, NULL, subject->arguments, environ); // vfork inside
    if (error != 0) {
        fprintf(stderr, "%s: %s: %s\n", subject->name, subject->arguments[0], strerror(error));
        return -1;
    }
    running = pid;
    alarm(LONGEST_S);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    double took = now() - began;
    alarm(0);
    running = 0;
    if (status != 0) {
        char last[4096] = "";
        pread(words, last, sizeof last - 1, 0);
        fprintf(stderr, "%s: `%s` ended with status %#x: %s\n", subject->name, subject->arguments[0], status, last);
        return -1;
    }
    return took;
}

static int same_word(const char *left, const char *right) {
    left += *left == '-', right += *right == '-';
    size_t length = strcspn(left, " /");
    return length == strcspn(right, " /") && strncmp(left, right, length) == 0;
}

// A number below `limit`; the same ones in each run (xorshift64, Marsaglia 2003).
static int below(int limit) {
    static unsigned long long state = 88172645463325252ULL;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (int)(state % (unsigned)limit);
}

// The order of a round: a name with the first word of the previous one stays behind it.
static void shuffle(const struct subject *subjects, int number, int *order) {
    int firsts[MOST], groups = 0, at = 0;
    for (int each = 0; each < number; each++)
        if (each == 0 || !same_word(subjects[each - 1].name, subjects[each].name)) firsts[groups++] = each;
    for (int left = groups; left > 0; left--) {
        int chosen = below(left), first = firsts[chosen];
        firsts[chosen] = firsts[left - 1];
        do order[at++] = first++;
        while (first < number && same_word(subjects[first - 1].name, subjects[first].name));
    }
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **words) {
    if (count < 5) {
        fprintf(stderr, "usage: interleave ROUNDS PAUSE_MS NAME COMMAND [ARGUMENT...] ::: NAME COMMAND ...\n");
        return 2;
    }
    int rounds = atoi(words[1]), failed = 0;
    long pause_ms = atol(words[2]);
    struct subject subjects[MOST] = {0};
    int number = 0;
    for (int at = 3; at < count && number < MOST; number++) {
        char *place = strchr(words[at], '@');
        subjects[number].mounts = -1;
        if (place != NULL) {
            *place = 0;
            subjects[number].mounts = open(place + 1, O_RDONLY | O_CLOEXEC);
            if (subjects[number].mounts < 0) {
                perror(place + 1);
                return 1;
            }
        }
        subjects[number].name = words[at++];
        subjects[number].arguments = &words[at];
        subjects[number].times = calloc(rounds, sizeof(double));
        while (at < count && strcmp(words[at], ":::") != 0) at++;
        if (at < count) words[at++] = NULL;
    }
    struct sigaction action = {.sa_handler = too_long};
    sigaction(SIGALRM, &action, NULL);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    int errors = memfd_create("errors", 0), own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    posix_spawn_file_actions_adddup2(&actions, errors, 2);
    struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000};
    int warm_up = rounds < 10 ? 1 : 3;
    for (int round = -warm_up; round < rounds; round++) {
        int order[MOST];
        shuffle(subjects, number, order);
        for (int turn = 0; turn < number; turn++) {
            int each = order[turn];
            if (subjects[each].left_out) continue;
            if (pause_ms > 0 && subjects[each].name[0] != '-') nanosleep(&pause, NULL);
            ftruncate(errors, 0);
            lseek(errors, 0, SEEK_SET);
            enter(subjects[each].mounts);
            double took = once(&subjects[each], &actions, errors);
            if (subjects[each].mounts >= 0) enter(own);
            if (round >= 0) subjects[each].times[round] = took;
            if (took >= 0) continue;
            failed = 1;
            for (int other = 0; other < number; other++)
                if (same_word(subjects[other].name, subjects[each].name)) subjects[other].left_out = 1;
        }
    }
    for (int each = 0; each < number; each++) {
        if (subjects[each].left_out || subjects[each].name[0] == '-') continue;
        double *times = subjects[each].times;
        qsort(times, rounds, sizeof(double), ascending);
        int last = rounds * 99 / 100;
        printf("%s\t%.0f\t%.0f\t%.0f\n", subjects[each].name, times[rounds / 2], times[last < rounds ? last : rounds - 1], times[0]);
    }
    return failed;
}
