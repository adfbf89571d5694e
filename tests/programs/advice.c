/* advice: what a program says about its memory holds: locks, madvise, and what a child is to inherit.
 *
 *   advice [--press MIB] [--native] [--raw]
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <sys/wait.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

enum { PAGES = 2048 };
static const size_t BYTES = (size_t)PAGES * PAGE_BYTES;

static void advise(char *at, size_t pages, int advice, const char *name) {
    if (madvise(at, pages * PAGE_BYTES, advice)) fail(name);
}

static char *filled(uint64_t tag) {
    char *at = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, PAGES, tag);
    return at;
}

static void locks(void) {
    begin("mlock brings pages in, and they stay");
    char *at = filled(1);
    send_away(at, PAGES);
    char *part = at + 300 * PAGE_BYTES;
    if (mlock(part + 5, 1000 * PAGE_BYTES)) fail("mlock");
    demand(absent(part, 1001) == 0, "all are in memory");
    for (int round = 0; round < 4; round++) {
        press();
        demand(absent(part, 1001) == 0, "all stay in memory");
    }
    check(at, 0, PAGES, 1);
    demand(madvise(part, PAGE_BYTES, MADV_DONTNEED) == -1 && errno == EINVAL, "what is locked is not dropped");

    begin("munlock lets them go");
    if (munlock(part + 5, 1000 * PAGE_BYTES)) fail("munlock");
    send_away(part, 1000);
    check(at, 0, PAGES, 1);

    begin("mlock2 with MLOCK_ONFAULT locks what is touched");
    send_away(at, PAGES);
    if (mlock2(at, BYTES, MLOCK_ONFAULT)) fail("mlock2");
    check(at, 0, PAGES, 1);
    press(), press();
    demand(absent(at, PAGES) == 0, "all stay in memory");
    fill(at, 0, PAGES, 2);

    begin("a child inherits no lock");
    pid_t child = fork();
    if (!child) {
        check(at, 0, PAGES, 2);
        fill(at, 0, PAGES, 3);
        send_away(at, PAGES);
        check(at, 0, PAGES, 3);
        _exit(0);
    }
    int status;
    demand(waitpid(child, &status, 0) == child && status == 0, "the child's end");
    demand(absent(at, PAGES) == 0, "the parent's pages stay in memory");
    check(at, 0, PAGES, 2);
    if (munlock(at, BYTES)) fail("munlock");
    unmap(at, PAGES);

    begin("mlockall");
    at = filled(4);
    send_away(at, PAGES);
    /* What presses must be allowed to leave. */
    unmap(press_buffer, press_pages), press_buffer = NULL, press_round = 0;
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) fail("mlockall");
    demand(absent(at, PAGES) == 0, "all are in memory");
    char *later = filled(5);
    if (munlock(at, BYTES)) fail("munlock");
    demand(absent(later, PAGES) == 0, "what is mapped later stays too");
    if (munlockall()) fail("munlockall");
    send_away(later, PAGES);
    check(at, 0, PAGES, 4);
    check(later, 0, PAGES, 5);
    unmap(at, PAGES), unmap(later, PAGES);
}

static void hints(void) {
    press();
    begin("MADV_PAGEOUT sends out");
    char *at = filled(6);
    advise(at, PAGES, MADV_COLD, "MADV_COLD");
    advise(at, PAGES, MADV_PAGEOUT, "MADV_PAGEOUT");
    /* As long as it takes: a test that hangs says so. */
    while (!native && absent(at, PAGES) < PAGES) usleep(1000), advise(at, PAGES, MADV_PAGEOUT, "MADV_PAGEOUT");
    begin("MADV_WILLNEED brings in, as far as there is room");
    advise(at, PAGES, MADV_WILLNEED, "MADV_WILLNEED");
    demand(native || absent(at, PAGES) < PAGES, "some are in memory");
    check(at, 0, PAGES, 6);
    begin("MADV_POPULATE_READ and MADV_POPULATE_WRITE");
    send_away(at, PAGES);
    advise(at, 64, 22, "MADV_POPULATE_READ");
    advise(at + 64 * PAGE_BYTES, 64, 23, "MADV_POPULATE_WRITE");
    check(at, 0, PAGES, 6);
    begin("MADV_FREE leaves the pages or zeroes, and new contents stay");
    send_away(at, PAGES);
    advise(at, PAGES, MADV_FREE, "MADV_FREE");
    fill(at, 0, PAGES / 2, 7);
    press();
    check(at, 0, PAGES / 2, 7);
    begin("advice without consequences");
    advise(at, PAGES, MADV_HUGEPAGE, "MADV_HUGEPAGE"), advise(at, PAGES, MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE");
    advise(at, PAGES, MADV_SEQUENTIAL, "MADV_SEQUENTIAL"), advise(at, PAGES, MADV_DONTDUMP, "MADV_DONTDUMP");
    if (madvise(at, BYTES, MADV_MERGEABLE) && errno != EINVAL) fail("MADV_MERGEABLE");
    fill(at, 0, PAGES, 8);
    send_away(at, PAGES);
    check(at, 0, PAGES, 8);
    if (msync(at, BYTES, MS_SYNC) || msync(at, BYTES, MS_ASYNC)) fail("msync");
    demand(madvise(at + 1, PAGE_BYTES, MADV_DONTNEED) == -1 && errno == EINVAL, "an odd address");
    demand(madvise(at, BYTES, 9999) == -1 && errno == EINVAL, "unknown advice");
    unmap(at, PAGES);
}

static void at_fork(void) {
    begin("MADV_WIPEONFORK and MADV_DONTFORK");
    char *wiped = filled(9), *omitted = filled(10), *kept = filled(11);
    advise(wiped, PAGES, MADV_WIPEONFORK, "MADV_WIPEONFORK");
    advise(omitted, PAGES, MADV_DONTFORK, "MADV_DONTFORK");
    advise(kept, PAGES, MADV_WIPEONFORK, "MADV_WIPEONFORK"), advise(kept, PAGES, MADV_DONTFORK, "MADV_DONTFORK");
    advise(kept, PAGES, MADV_KEEPONFORK, "MADV_KEEPONFORK"), advise(kept, PAGES, MADV_DOFORK, "MADV_DOFORK");
    for (int round = 0; round < 2; round++) {
        if (round) send_away(wiped, PAGES), send_away(omitted, PAGES);
        pid_t child = fork();
        if (!child) {
            check_zero(wiped, PAGES);
            check(kept, 0, PAGES, 11);
            if (map(omitted, PAGES, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) != omitted) fail("the place is not free");
            check_zero(omitted, PAGES);
            fill(wiped, 0, PAGES, 12), fill(omitted, 0, PAGES, 13);
            send_away(wiped, PAGES), send_away(omitted, PAGES);
            check(wiped, 0, PAGES, 12), check(omitted, 0, PAGES, 13), check(kept, 0, PAGES, 11);
            _exit(0);
        }
        int status;
        demand(waitpid(child, &status, 0) == child && status == 0, "the child's end");
    }
    check(wiped, 0, PAGES, 9), check(omitted, 0, PAGES, 10), check(kept, 0, PAGES, 11);
    unmap(wiped, PAGES), unmap(omitted, PAGES), unmap(kept, PAGES);
}

int main(int count, char **arguments) {
    const struct program_option table[] = {MIB("--press", &press_pages), SWITCH("--native", &native), SWITCH("--raw", &raw), {0}};
    read_options("usage: advice [--press MIB] [--native] [--raw]", table, count, arguments);
    hints();
    at_fork();
    locks();
    puts("ok");
    return 0;
}
