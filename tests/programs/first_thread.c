/* A process whose first thread has ended, as of it the kernel shows neither memory nor descriptors.
 *
 * first_thread [--mib N] [--shared] [--early] [--pins FILE]
 * The second thread fills N MiB of private (or shared) memory, forks a child that checks all of it, and does so itself. With
 * --early the first one has filled as much before it ended. With --pins a file is open with O_DIRECT by then. */
#define _GNU_SOURCE
#include "basics.h"
#include "options.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static size_t pages = 64 * 256;
static int shared, early;
static unsigned char *first;
static pthread_t leader;

static unsigned char *fill(uint64_t seed) {
    unsigned char *start =
            mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) perror("mmap"), exit(2);
    for (size_t page = 0; page < pages; page++)
        for (size_t at = 0; at < PAGE; at += 64) {
            uint64_t word = mix(seed + page * PAGE + at);
            memcpy(start + page * PAGE + at, &word, 8);
        }
    return start;
}

static void check(const unsigned char *start, uint64_t seed) {
    for (size_t page = 0; page < pages; page++)
        for (size_t at = 0; at < PAGE; at += 64) {
            uint64_t word = mix(seed + page * PAGE + at);
            if (!memcmp(start + page * PAGE + at, &word, 8)) continue;
            fprintf(stderr, "page %zu differs\n", page);
            _exit(1);
        }
}

static void *go_on(void *unused) {
    (void)unused;
    pthread_join(leader, NULL);
    unsigned char *second = fill(2);
    pid_t child = fork();
    if (child < 0) perror("fork"), exit(2);
    if (early) check(first, 1);
    check(second, 2);
    if (!child) _exit(0);
    int status;
    if (waitpid(child, &status, 0) != child || status) fprintf(stderr, "the child: %x\n", status), exit(1);
    exit(0);
}

int main(int count, char **arguments) {
    const char *pins = NULL;
    const struct program_option table[] = {
            MIB("--mib", &pages), SWITCH("--shared", &shared), SWITCH("--early", &early), TEXT("--pins", &pins), {0},
    };
    read_options("usage: first_thread [--mib N] [--shared] [--early] [--pins FILE]", table, count, arguments);
    if (pins && open(pins, O_RDONLY | O_DIRECT) < 0) perror(pins), exit(2);
    if (early) first = fill(1);
    leader = pthread_self();
    pthread_t second;
    if (pthread_create(&second, NULL, go_on, NULL)) exit(2);
    pthread_exit(NULL);
}
