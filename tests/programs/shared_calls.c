/* Shared anonymous memory, and the calls on it: what is written by one process is read by all, wherever it is mapped,
 * whatever was unmapped, moved, protected or forked meanwhile. Between the steps another mapping is filled, so that with
 * little memory all of it leaves. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

enum { MIB = 1 << 20, PAGE = 4096, LENGTH = 8 * MIB, FILLER = 48 * MIB };

static char *filler;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "WRONG, line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            abort(); \
        } \
    } while (0)

static char *map(size_t length) {
    char *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    return start;
}

/* Another mapping is written, of far more than the cap. */
static void push_out(void) {
    static uint64_t round;
    round++;
    for (size_t at = 0; at < FILLER; at += PAGE) *(uint64_t *)(filler + at) = mix(at + round), *(uint64_t *)(filler + at + 2048) = at;
}

static void fill(char *start, size_t first, size_t end, uint64_t salt) {
    for (size_t page = first; page < end; page++)
        for (size_t at = 0; at < PAGE; at += 8) *(uint64_t *)(start + page * PAGE + at) = mix(page * 512 + at + salt) >> (page % 3 * 20);
}

static int holds(char *start, size_t first, size_t end, uint64_t salt) {
    for (size_t page = first; page < end; page++)
        for (size_t at = 0; at < PAGE; at += 8)
            if (*(uint64_t *)(start + page * PAGE + at) != mix(page * 512 + at + salt) >> (page % 3 * 20)) return 0;
    return 1;
}

static void in_child(void (*run)(char *), char *start) {
    int child = fork(), status;
    CHECK(child >= 0);
    if (child == 0) run(start), _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void child_writes(char *start) {
    CHECK(holds(start, 0, 2048, 1));
    push_out();
    fill(start, 0, 100, 2);
    push_out();
}

static void grandchild(char *start) {
    CHECK(holds(start, 0, 100, 2));
    fill(start, 50, 100, 3);
}

static void child_forks(char *start) {
    push_out();
    in_child(grandchild, start);
    CHECK(holds(start, 0, 50, 2) && holds(start, 50, 100, 3));
}

static sigjmp_buf jump;
static void segv(int signal) {
    (void)signal;
    siglongjmp(jump, 1);
}

static int faults(volatile char *at, int write) {
    if (sigsetjmp(jump, 1)) return 1;
    if (write) *at = *at;
    else (void)*at;
    return 0;
}

static void system_calls(char *start) {
    int ends[2];
    char *copy = malloc(64 * PAGE);
    CHECK(pipe(ends) == 0);
    fill(start, 0, 512, 7);
    for (size_t page = 0; page < 512; page += 8) {
        if (page % 128 == 0) push_out();
        CHECK(write(ends[1], start + page * PAGE, 8 * PAGE) == 8 * PAGE);
        for (ssize_t got = 0, more; got < 8 * PAGE; got += more) CHECK((more = read(ends[0], copy + got, 8 * PAGE - got)) > 0);
        CHECK(memcmp(copy, start + page * PAGE, 8 * PAGE) == 0);
    }
    push_out();
    /* The kernel writes to pages that are out. */
    for (size_t page = 0; page < 512; page += 8) {
        memset(copy, (int)page / 8, 8 * PAGE);
        CHECK(write(ends[1], copy, 8 * PAGE) == 8 * PAGE);
        for (ssize_t got = 0, more; got < 8 * PAGE; got += more)
            CHECK((more = read(ends[0], start + page * PAGE + got, 8 * PAGE - got)) > 0);
    }
    push_out();
    for (size_t at = 0; at < 512 * PAGE; at++) CHECK(start[at] == (char)(at / (8 * PAGE)));
    free(copy);
    close(ends[0]), close(ends[1]);
}

struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    uint64_t turn, sum;
    _Atomic uint32_t word;
};

static void locks(char *start) {
    enum { PROCESSES = 8, TURNS = 40 };
    struct meeting *meeting = (struct meeting *)(start + 5 * PAGE);
    pthread_mutexattr_t of_mutex;
    pthread_condattr_t of_condition;
    memset(meeting, 0, sizeof *meeting);
    pthread_mutexattr_init(&of_mutex), pthread_condattr_init(&of_condition);
    pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&meeting->mutex, &of_mutex), pthread_cond_init(&meeting->condition, &of_condition);
    for (uint64_t index = 0; index < PROCESSES; index++) {
        int child = fork();
        CHECK(child >= 0);
        if (child) continue;
        for (uint64_t turn = index; turn < PROCESSES * TURNS; turn += PROCESSES) {
            pthread_mutex_lock(&meeting->mutex);
            while (meeting->turn != turn) pthread_cond_wait(&meeting->condition, &meeting->mutex);
            meeting->sum += turn, meeting->turn++;
            if (turn % 50 == 0) push_out();
            pthread_cond_broadcast(&meeting->condition);
            pthread_mutex_unlock(&meeting->mutex);
        }
        _exit(0);
    }
    for (int status; wait(&status) > 0;) CHECK(status == 0);
    CHECK(meeting->sum == (uint64_t)PROCESSES * TURNS * (PROCESSES * TURNS - 1) / 2);
    int child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        while (!meeting->word) syscall(SYS_futex, &meeting->word, FUTEX_WAIT, 0, NULL, NULL, 0);
        _exit(0);
    }
    push_out();
    meeting->word = 1;
    int status;
    do syscall(SYS_futex, &meeting->word, FUTEX_WAKE, 1, NULL, NULL, 0), usleep(100);
    while (waitpid(child, &status, WNOHANG) == 0);
    CHECK(status == 0);
}

static void *advise_on(void *start) {
    for (;;) madvise(start, MIB, MADV_NORMAL);
    return NULL;
}

/* Forks while another thread makes calls on the memory. */
static void forks_beside_calls(char *start) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, advise_on, start) == 0);
    for (int nth = 0; nth < 300; nth++) {
        int child = fork(), status;
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

int main(void) {
    filler = mmap(NULL, FILLER, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(filler != MAP_FAILED);
    struct sigaction action = {.sa_handler = segv};
    sigaction(SIGSEGV, &action, NULL);

    char *start = map(LENGTH);
    fill(start, 0, 2048, 1);
    in_child(child_writes, start);
    CHECK(holds(start, 0, 100, 2) && holds(start, 100, 2048, 1));
    in_child(child_forks, start);
    CHECK(holds(start, 0, 50, 2) && holds(start, 50, 100, 3));
    puts("forks");

    fill(start, 0, 2048, 4);
    CHECK(mprotect(start + 64 * PAGE, 64 * PAGE, PROT_READ) == 0);
    push_out();
    CHECK(!faults(start + 64 * PAGE, 0) && faults(start + 64 * PAGE, 1) && !faults(start + 63 * PAGE, 1) && !faults(start + 128 * PAGE, 1));
    CHECK(mprotect(start + 100 * PAGE, PAGE, PROT_NONE) == 0);
    push_out();
    CHECK(faults(start + 100 * PAGE, 0));
    CHECK(mprotect(start, LENGTH, PROT_READ | PROT_WRITE) == 0);
    CHECK(holds(start, 0, 2048, 4));
    puts("protection");

    CHECK(munmap(start + 700 * PAGE, 5 * PAGE) == 0);
    push_out();
    CHECK(faults(start + 702 * PAGE, 0) && holds(start, 0, 700, 4) && holds(start, 705, 2048, 4));
    CHECK(mmap(start + 700 * PAGE, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start + 700 * PAGE);
    CHECK(start[702 * PAGE] == 0);
    CHECK(mmap(start + 900 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start + 900 * PAGE);
    memset(start + 900 * PAGE, 9, 8 * PAGE);
    push_out();
    for (size_t at = 900 * PAGE; at < 908 * PAGE; at++) CHECK(start[at] == 9);
    CHECK(holds(start, 705, 900, 4) && holds(start, 908, 2048, 4));
    CHECK(munmap(start, LENGTH) == 0);
    puts("unmapping");

    start = map(LENGTH);
    fill(start, 0, 2048, 5);
    push_out();
    char *again = mremap(start, 0, LENGTH, MREMAP_MAYMOVE);
    CHECK(again != MAP_FAILED && again != start && holds(again, 0, 2048, 5));
    fill(again, 10, 20, 6);
    push_out();
    CHECK(holds(start, 10, 20, 6));
    char *place = mmap(NULL, 2 * LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(place != MAP_FAILED && munmap(place, 2 * LENGTH) == 0);
    char *moved = mremap(start, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    CHECK(moved == place && faults(start, 0) && holds(moved, 20, 2048, 5));
    CHECK(mremap(moved, LENGTH, LENGTH / 2, 0) == moved && faults(moved + LENGTH / 2, 0));
    push_out();
    fill(moved, 0, 10, 8);
    CHECK(holds(again, 0, 10, 8) && holds(again, 1024, 2048, 5));
    CHECK(munmap(again, LENGTH) == 0 && holds(moved, 20, 1024, 5));
    /* Over a reserve, and over other shared memory. */
    char *reserve = mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *other = map(LENGTH);
    fill(other, 0, 2048, 9);
    push_out();
    CHECK(mremap(moved, LENGTH / 2, LENGTH / 2, MREMAP_MAYMOVE | MREMAP_FIXED, reserve) == reserve && faults(moved, 0));
    CHECK(mremap(reserve, LENGTH / 2, LENGTH / 2, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other && faults(reserve, 0));
    push_out();
    moved = other;
    CHECK(holds(moved, 20, 1024, 5) && holds(moved, 1024, 2048, 9) && munmap(moved + LENGTH / 2, LENGTH / 2) == 0);
    puts("moves");

    start = map(LENGTH);
    fill(start, 0, 2048, 6);
    push_out();
    CHECK(remap_file_pages(start + 100 * PAGE, 200 * PAGE, 0, 1000, 0) == 0 && holds(start, 0, 100, 6));
    CHECK(memcmp(start + 100 * PAGE, start + 1000 * PAGE, 200 * PAGE) == 0);
    start[100 * PAGE] = 77;
    push_out();
    CHECK(start[1000 * PAGE] == 77 && holds(start, 300, 1000, 6) && munmap(start, LENGTH) == 0);
    puts("pages mapped anew");

    CHECK(madvise(moved, 100 * PAGE, MADV_DONTNEED) == 0 && holds(moved, 20, 100, 5));
    push_out();
    CHECK(madvise(moved + 30 * PAGE, 10 * PAGE, MADV_REMOVE) == 0);
    for (size_t at = 30 * PAGE; at < 40 * PAGE; at++) CHECK(moved[at] == 0);
    CHECK(holds(moved, 20, 30, 5) && holds(moved, 40, 1024, 5));
    CHECK(mlock(moved, 64 * PAGE) == 0);
    push_out();
    CHECK(holds(moved, 40, 64, 5) && munlock(moved, 64 * PAGE) == 0);
    puts("advice");

    system_calls(moved);
    puts("system calls");
    locks(moved);
    puts("locks");
    forks_beside_calls(moved);
    puts("forks beside calls");
    return 0;
}
