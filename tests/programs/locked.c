/* locked: locks more than the cap allows, by every call that locks; each refusal must be an error, and never the end.
 *
 * Runs under 48 MiB. Exit status: 0 all well, 1 not so, 2 resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <sys/wait.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

enum { MIB = 256 };

static char *at;

static void *part(size_t mib) { return at + mib * MIB * PAGE_BYTES; }
static size_t bytes(size_t mib) { return mib * MIB * PAGE_BYTES; }

static void refused(int result, int error, const char *what) {
    int found = errno;
    demand(result == -1, what);
    if (found != error) fprintf(stderr, "%s: %s: errno %d\n", step, what, found);
    demand(found == error, "the errno");
}

static void locks(int result, const char *what) {
    if (result) fail(what);
}

static void *map_locked(size_t mib, int kind) {
    return mmap(NULL, bytes(mib), PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
}

static void one_process(void) {
    begin("mlock");
    refused(mlock(part(0), bytes(47)), ENOMEM, "47 MiB are locked");
    locks(mlock(part(0), bytes(8)), "8 MiB");
    locks(mlock(part(8), bytes(20)), "20 MiB more");
    refused(mlock(part(28), bytes(18)), ENOMEM, "18 MiB more are locked");
    refused(mlock2(part(28), bytes(18), MLOCK_ONFAULT), ENOMEM, "18 MiB more are locked on fault");
    locks(mlock(part(0), bytes(28)), "the same once more");
    check(at, 0, 100 * MIB, 1);
    demand(absent(at, 28 * MIB) == 0, "what is locked is in memory");
    locks(munlock(part(8), bytes(20)), "munlock");
    locks(mlock(part(28), bytes(18)), "18 MiB in its place");
    unmap(part(28), 18 * MIB);
    locks(mlock(part(8), bytes(18)), "18 MiB in place of what was unmapped");
    locks(munlock(part(0), bytes(28)), "munlock");
}

static void several_processes(void) {
    begin("across processes");
    locks(mlock(part(0), bytes(16)), "16 MiB");
    int to_child[2], to_parent[2];
    char byte = 0;
    if (pipe(to_child) || pipe(to_parent)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        refused(mlock(part(0), bytes(28)), ENOMEM, "28 MiB are locked beside the parent's 16");
        if (write(to_parent[1], &byte, 1) != 1 || read(to_child[0], &byte, 1) != 1) fail("pipe");
        locks(mlock(part(0), bytes(16)), "16 MiB when the parent has none");
        check(at, 0, 16 * MIB, 1);
        _exit(0);
    }
    if (read(to_parent[0], &byte, 1) != 1) fail("pipe");
    locks(munlock(part(0), bytes(16)), "munlock");
    if (write(to_child[1], &byte, 1) != 1) fail("pipe");
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    demand(status == 0, "the child is well");
    /* The launcher gives back what the child had when it sees that it is dead. */
    for (int tries = 0; mlock(part(0), bytes(24)); tries++) {
        if (tries > 30000) fail("24 MiB when the child is dead");
        usleep(1000);
    }
    locks(munlock(part(0), bytes(24)), "munlock");
}

/* Filled while everything else is pressed out, and still there afterwards. */
static void stays(char *locked, size_t mib, uint64_t tag) {
    if (locked == MAP_FAILED) fail("a locked mapping");
    demand(absent(locked, mib * MIB) == 0, "a locked mapping is in memory at once");
    check_zero(locked, mib * MIB);
    fill(locked, 0, mib * MIB, tag);
    check(part(46), 46 * MIB, 54 * MIB, 1);
    demand(absent(locked, mib * MIB) == 0, "a locked mapping stays in memory");
    check(locked, 0, mib * MIB, tag);
}

static void locked_mappings(void) {
    begin("MAP_LOCKED");
    demand(map_locked(44, MAP_PRIVATE) == MAP_FAILED && errno == EAGAIN, "EAGAIN for 44 MiB");
    demand(map_locked(44, MAP_SHARED) == MAP_FAILED && errno == EAGAIN, "EAGAIN for 44 MiB of shared memory");
    char *shared = map_locked(8, MAP_SHARED);
    stays(shared, 8, 4);
    unmap(shared, 8 * MIB);
    char *small = map_locked(8, MAP_PRIVATE);
    stays(small, 8, 5);
    small = mremap(small, bytes(8), bytes(12), MREMAP_MAYMOVE);
    if (small == MAP_FAILED) fail("mremap");
    demand(absent(small, 12 * MIB) == 0, "what a locked mapping grows by is in memory at once");
    check(small, 0, 8 * MIB, 5);
    check_zero(small + 8 * MIB * PAGE_BYTES, 4 * MIB);
    unmap(small, 12 * MIB);
    int mapped = 0;
    while (map_locked(4, MAP_PRIVATE) != MAP_FAILED) mapped++;
    demand(errno == EAGAIN && mapped > 1 && mapped < 12, "EAGAIN after some");
    check(at, 0, 28 * MIB, 1);
    check(part(46), 46 * MIB, 54 * MIB, 1);
    printf("%d of 4 MiB\n", mapped < 12);
    fflush(stdout);
}

static void everything(void) {
    begin("mlockall");
    refused(mlockall(MCL_CURRENT), ENOMEM, "all is locked");
    locks(mlockall(MCL_FUTURE), "MCL_FUTURE");
    demand(mmap(NULL, bytes(60), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EAGAIN,
           "EAGAIN for a mapping of 60 MiB");
    locks(munlockall(), "munlockall");
    char *more = map(NULL, 60 * MIB, PROT_READ | PROT_WRITE, 0);
    fill(more, 0, 60 * MIB, 2);
    check(more, 0, 60 * MIB, 2);
    check(at, 0, 28 * MIB, 1);
}

static void shared_memory(void) {
    begin("shared memory");
    char *shared = mmap(NULL, bytes(60), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("60 MiB");
    fill(shared, 0, 60 * MIB, 3);
    refused(mlock(shared, bytes(46)), ENOMEM, "46 MiB of shared memory are locked");
    locks(mlock(shared, bytes(8)), "8 MiB");
    locks(mlock(shared, bytes(8)), "the same once more");
    refused(mlockall(MCL_CURRENT), ENOMEM, "all is locked");
    check(shared, 0, 60 * MIB, 3);
    unmap(shared, 60 * MIB);
    /* The keeper forgets it when it is told, which nobody waits for. */
    for (int tries = 0; mlock(part(46), bytes(34)); tries++) {
        if (tries > 30000) fail("34 MiB when the shared memory is gone");
        usleep(1000);
    }
    locks(munlock(part(46), bytes(34)), "munlock");
}

int main(int count, char **arguments) {
    raw = count > 1 && !strcmp(arguments[1], "--raw");
    at = map(NULL, 100 * MIB, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, 100 * MIB, 1);
    one_process();
    several_processes();
    shared_memory();
    locked_mappings();
    everything();
    return 0;
}
