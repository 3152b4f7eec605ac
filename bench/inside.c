// Work to time inside and outside a sandbox. It measures itself, without the start of the sandbox.
//
//   inside getpid COUNT            a trivial system call, COUNT times.
//   inside open COUNT FILE         open and close a file.
//   inside time COUNT COMMAND…     run a command and discard its output.
//
// Prints microseconds: of one call, or a line for each run of the command.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}

int main(int count, char **words) {
    if (count < 3) return fprintf(stderr, "usage: inside getpid|open|time COUNT ...\n"), 2;
    long times = atol(words[2]);
    double began = now();
    if (strcmp(words[1], "getpid") == 0) {
        for (long each = 0; each < times; each++) syscall(SYS_getpid);
    } else if (strcmp(words[1], "open") == 0 && count == 4) {
        for (long each = 0; each < times; each++) {
            int file = open(words[3], O_RDONLY | O_CLOEXEC);
            if (file < 0) return perror(words[3]), 1;
            close(file);
        }
    } else {
        for (long each = 0; each < times; each++) {
            began = now();
            pid_t pid = fork();
            if (pid == 0) {
                int nothing = open("/dev/null", O_RDWR);
                for (int stream = 0; stream < 2; stream++) dup2(nothing, stream);
                execvp(words[3], words + 3);
                perror(words[3]);
                _exit(127);
            }
            int status;
            waitpid(pid, &status, 0);
            if (status != 0) return fprintf(stderr, "%s: status %#x\n", words[3], status), 1;
            printf("%.3f\n", now() - began);
        }
        return 0;
    }
    printf("%.5f\n", (now() - began) / times);
    return 0;
}
