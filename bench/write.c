/* The lower bound of unpacking: writes every file of uncompressed tars (ustar, from bench/unpack), one thread for each
 * processor. Checks nothing and sets no owner, time or attribute.
 *
 * usage: write DIRECTORY TAR...
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char **tars;
static int count, next_tar;
static const char *directory;

static void die(const char *what) { perror(what); exit(1); }

static void one(int index) {
    int fd = open(tars[index], O_RDONLY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0) die(tars[index]);
    char *data = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (data == MAP_FAILED) die("mmap");
    char root[4096];
    snprintf(root, sizeof root, "%s/%d", directory, index);
    mkdir(root, 0755);
    int at = open(root, O_PATH | O_DIRECTORY);
    for (char *header = data; header + 512 <= data + status.st_size && header[0];) {
        char name[512], *prefix = header + 345;
        if (prefix[0]) snprintf(name, sizeof name, "%.155s/%.100s", prefix, header);
        else snprintf(name, sizeof name, "%.100s", header);
        long size = strtol(header + 124, NULL, 8);
        if (header[156] == '5') {
            if (mkdirat(at, name, 0755) < 0 && errno != EEXIST) die(name);
        } else if (header[156] == '2') {
            char target[128];
            snprintf(target, sizeof target, "%.100s", header + 157);
            if (symlinkat(target, at, name) < 0) die(name);
        } else {
            int file = openat(at, name, O_WRONLY | O_CREAT | O_EXCL, 0644);
            if (file < 0) die(name);
            for (long done = 0; done < size;) {
                ssize_t written = write(file, header + 512 + done, size - done);
                if (written < 0) die(name);
                done += written;
            }
            close(file);
        }
        header += 512 + (size + 511) / 512 * 512;
    }
}

static void *work(void *unused) {
    (void)unused;
    for (int index; (index = __sync_fetch_and_add(&next_tar, 1)) < count;) one(index);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    directory = argv[1], tars = argv + 2, count = argc - 2;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[64];
    for (long each = 0; each < processors && each < 64; each++) pthread_create(&threads[each], NULL, work, NULL);
    for (long each = 0; each < processors && each < 64; each++) pthread_join(threads[each], NULL);
    return 0;
}
