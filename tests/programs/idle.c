/* idle: processes that hold memory and make no call, while another takes memory that cannot leave.
 *
 *   idle MIB LOCKED_MIB
 *
 * A parent of MIB waits for a child that locks LOCKED_MIB: one that it forked, and one that is another program. Then a
 * forked child, which shares MIB, waits while its parent locks.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static size_t held_pages, locked_pages;
static char *held;

static void lock_some(uint64_t tag) {
    char *locked = map(NULL, locked_pages, PROT_READ | PROT_WRITE, 0);
    if (mlock(locked, locked_pages * PAGE_BYTES)) fail("mlock");
    fill(locked, 0, locked_pages, tag);
    check(locked, 0, locked_pages, tag);
    unmap(locked, locked_pages);
}

static void await(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("a child");
    demand(!status, "its status");
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: %s MIB LOCKED_MIB\n", arguments[0]);
        return 2;
    }
    held_pages = strtoul(arguments[1], NULL, 10) * 256;
    locked_pages = strtoul(arguments[2], NULL, 10) * 256;
    if (!held_pages) {
        lock_some(3);
        return 0;
    }
    held = map(NULL, held_pages, PROT_READ | PROT_WRITE, 0);
    fill(held, 0, held_pages, 1);

    begin("a parent waits for another program");
    pid_t child;
    char *program[] = {arguments[0], "0", arguments[2], NULL};
    if (posix_spawn(&child, arguments[0], NULL, NULL, program, environ)) fail("posix_spawn");
    await(child);
    check(held, 0, held_pages, 1);

    begin("a parent waits for its child");
    child = fork();
    if (!child) {
        lock_some(2);
        check(held, 0, held_pages, 1);
        _exit(0);
    }
    await(child);
    check(held, 0, held_pages, 1);

    begin("a child waits for its parent");
    int ends[2];
    if (pipe(ends)) fail("pipe");
    child = fork();
    if (!child) {
        char byte;
        close(ends[1]);
        if (read(ends[0], &byte, 1)) _exit(2);
        check(held, 0, held_pages, 1);
        _exit(0);
    }
    close(ends[0]);
    lock_some(4);
    fill(held, 0, held_pages, 5);
    close(ends[1]);
    await(child);
    check(held, 0, held_pages, 5);
    puts("ok");
    return 0;
}
