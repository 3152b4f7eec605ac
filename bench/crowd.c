// Starts a command many times at once and waits for all.
//
//   crowd COUNT SECONDS NAMESPACE COMMAND [ARGUMENT…]
//
// `{}` in an argument is the number of the copy. NAMESPACE is the mount namespace to start them in, or `-`. A copy that runs
// longer than SECONDS is killed and counts as failed. The first line of output has four numbers: seconds, failed
// copies, the peak memory of the largest process in KiB, processor milliseconds. The last one counts all processes below,
// also of those that end after their copy. Then for each success the microseconds from its start to its end.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}

enum { LAST = 10 }; // seconds for what ends after its copy

static volatile sig_atomic_t over;
static void too_long(int signal) { (void)signal, over = 1; }

static char *numbered(const char *word, int number) {
    const char *place = strstr(word, "{}");
    char *made = malloc(strlen(word) + 16);
    if (place == NULL) return strcpy(made, word);
    sprintf(made, "%.*s%d%s", (int)(place - word), word, number, place + 2);
    char *again = strstr(made, "{}") ? numbered(made, number) : made;
    return again;
}

int main(int count, char **words) {
    if (count < 5) return fprintf(stderr, "usage: crowd COUNT SECONDS NAMESPACE COMMAND [ARGUMENT...]\n"), 2;
    int copies = atoi(words[1]), failed = 0, alive = copies;
    char ***arguments = calloc(copies, sizeof *arguments);
    for (int each = 0; each < copies; each++) {
        arguments[each] = calloc(count, sizeof **arguments);
        for (int word = 4; word < count; word++) arguments[each][word - 4] = numbered(words[word], each);
    }
    if (strcmp(words[3], "-") != 0) {
        int place = open(words[3], O_RDONLY | O_CLOEXEC);
        if (place < 0 || setns(place, CLONE_NEWNS) != 0) return perror(words[3]), 1;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1); // what a copy leaves to end by itself is counted, too
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int each = 0; each < 2; each++) posix_spawn_file_actions_addopen(&actions, each, "/dev/null", O_RDWR, 0);
    pid_t *pids = calloc(copies, sizeof *pids);
    double *begun = calloc(copies, sizeof *begun), *took = calloc(copies, sizeof *took), first = now();
    struct sigaction action = {.sa_handler = too_long}; // no SA_RESTART: wait returns
    sigaction(SIGALRM, &action, NULL);
    alarm(atoi(words[2]));
    for (int each = 0; each < copies; each++) {
        begun[each] = now();
        if (posix_spawnp(&pids[each], arguments[each][0], &actions, NULL, arguments[each], environ) != 0) failed++, alive--, pids[each] = -1;
    }
    while (alive > 0) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && over) {
            for (int each = 0; each < copies; each++)
                if (pids[each] > 0) kill(pids[each], SIGKILL);
            over = 0;
            continue;
        }
        if (pid < 0 && errno == ECHILD) break;
        double end = now();
        for (int each = 0; each < copies; each++) {
            if (pids[each] != pid) continue;
            pids[each] = 0, alive--;
            if (status == 0) took[each] = end - begun[each];
            else failed++;
        }
    }
    double seconds = (now() - first) / 1e6;
    alarm(LAST);
    while (waitpid(-1, NULL, 0) > 0) {}
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    double busy = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3;
    printf("%.6f %d %ld %.1f\n", seconds, failed, used.ru_maxrss, busy);
    for (int each = 0; each < copies; each++)
        if (took[each] > 0) printf("%.0f\n", took[each]);
    return 0;
}
