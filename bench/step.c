// Which instructions a program and its children execute, as long as they are that program: for bench/order.
//
//   step OUT FIRST LAST COMMAND [ARGUMENT…]
//
// Single-steps (ptrace(2)) and writes each address from FIRST up to LAST (hexadecimal) that was executed, a line each, in the order in which they
// were reached. A program that executes its own file again is followed. Some 10 us an instruction.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 256 };

struct traced {
    pid_t pid;
    int ours; // whether it is the program
};

static struct traced all[MOST];
static int count;

static struct traced *find(pid_t pid) {
    for (int i = 0; i < count; i++)
        if (all[i].pid == pid) return &all[i];
    if (count == MOST) exit(1);
    all[count] = (struct traced){.pid = pid, .ours = 1}; // a child begins as what its parent is
    return &all[count++];
}

// Whether a process executes the file that `own` is, by whatever mount.
static int is_ours(pid_t pid, const struct stat *own) {
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    return stat(path, &found) == 0 && found.st_dev == own->st_dev && found.st_ino == own->st_ino;
}

int main(int argc, char **argv) {
    struct stat own;
    if (argc < 5 || stat(argv[4], &own) != 0) return 2;
    unsigned long first = strtoul(argv[2], 0, 16), last = strtoul(argv[3], 0, 16);
    unsigned char *seen = calloc(1, last - first);
    unsigned long *order = calloc(last - first, sizeof *order), reached = 0;
    if (!seen || !order) return 1;
    pid_t started = fork();
    if (started == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execvp(argv[4], argv + 4);
        _exit(127);
    }
    int status, result = 1;
    waitpid(started, &status, 0);
    long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    ptrace(PTRACE_SETOPTIONS, started, 0, options);
    ptrace(PTRACE_CONT, started, 0, 0);
    find(started)->ours = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        struct traced *traced = find(pid);
        if (!WIFSTOPPED(status)) {
            if (pid == started) result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            continue;
        }
        int signal = WSTOPSIG(status), event = status >> 16, passed = 0;
        if (event == PTRACE_EVENT_EXEC) {
            traced->ours = is_ours(pid, &own);
        } else if (signal == SIGTRAP && event == 0) {
            struct user_regs_struct registers;
            if (traced->ours && ptrace(PTRACE_GETREGS, pid, 0, &registers) == 0 && registers.rip >= first &&
                registers.rip < last && !seen[registers.rip - first]) {
                seen[registers.rip - first] = 1;
                order[reached++] = registers.rip;
            }
        } else if (signal != SIGSTOP && event == 0) {
            passed = signal;
        }
        ptrace(traced->ours ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, 0, passed);
    }
    FILE *out = fopen(argv[1], "w");
    if (!out) return 1;
    for (unsigned long at = 0; at < reached; at++) fprintf(out, "%lx\n", order[at]);
    return fclose(out) || result;
}
