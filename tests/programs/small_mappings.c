/* small_mappings: memory that is mapped a page at a time, or that grows from a page, leaves like any other.
 *
 * Each page of a range is mapped by a call of its own, in random order, and some are unmapped, mapped again or made read-only;
 * a mapping grows from one page by mremap, in place or elsewhere. Then all of it is read. What was locked, or is to be zeroes
 * in a child, is so when it has grown.
 *
 *   small_mappings --mib 64 [--raw]      (each of the two; calls by number)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <sys/wait.h>

static size_t range_pages = 64 * 256;

enum { PAGES = 1, GROWN = 2, AGAIN = 3 };

static void map_page(char *at) {
    if (map(at, 1, PROT_READ | PROT_WRITE, MAP_FIXED) != at) fail("mmap of a page");
}

static void by_pages(void) {
    begin("a range is mapped page by page");
    uint64_t state = 1;
    size_t *order = malloc(range_pages * sizeof *order);
    if (!order) fail("malloc");
    for (size_t nth = 0; nth < range_pages; nth++) {
        size_t other = next_random(&state) % (nth + 1);
        order[nth] = order[other], order[other] = nth;
    }
    char *range = map(NULL, range_pages, PROT_NONE, MAP_NORESERVE);
    unmap(range, range_pages);
    for (size_t nth = 0; nth < range_pages; nth++) {
        char *at = range + order[nth] * PAGE_BYTES;
        map_page(at);
        fill(at, 0, 1, PAGES + order[nth]);
        if (nth % 8 == 1 && mprotect(at, PAGE_BYTES, PROT_READ)) fail("mprotect");
    }
    for (size_t nth = 0; nth < range_pages; nth += 16) {
        char *at = range + order[nth] * PAGE_BYTES;
        check(at, 0, 1, PAGES + order[nth]);
        unmap(at, 1);
        map_page(at);
        check_zero(at, 1);
        fill(at, 0, 1, AGAIN + order[nth]);
    }
    for (size_t nth = 0; nth < range_pages; nth++) {
        uint64_t tag = nth % 16 ? PAGES : AGAIN;
        check(range + order[nth] * PAGE_BYTES, 0, 1, tag + order[nth]);
    }
    unmap(range, range_pages);
    free(order);
}

static void by_growth(void) {
    begin("a mapping grows from one page");
    size_t pages = 1;
    char *at = map(NULL, 1, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, 1, GROWN);
    while (pages < range_pages) {
        size_t more = pages < 4 ? pages + 1 : pages + pages / 2;
        at = mremap(at, pages * PAGE_BYTES, more * PAGE_BYTES, MREMAP_MAYMOVE);
        if (at == MAP_FAILED) fail("mremap");
        check_zero(at + pages * PAGE_BYTES, more - pages);
        fill(at + pages * PAGE_BYTES, pages, more - pages, GROWN);
        pages = more;
    }
    check(at, 0, pages, GROWN);
    unmap(at, pages);
}

/* A page that grows to 64 after a call for it. */
static char *grown(char *at) {
    at = mremap(at, PAGE_BYTES, 64 * PAGE_BYTES, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) fail("mremap");
    fill(at, 0, 64, GROWN);
    press();
    press();
    return at;
}

static void what_was_said_before_holds(void) {
    begin("a locked page grows");
    char *locked = map(NULL, 1, PROT_READ | PROT_WRITE, 0);
    if (mlock(locked, PAGE_BYTES)) fail("mlock");
    locked = grown(locked);
    demand(absent(locked, 64) == 0, "what is locked is there");
    check(locked, 0, 64, GROWN);
    begin("a page that children find empty grows");
    char *wiped = map(NULL, 1, PROT_READ | PROT_WRITE, 0);
    if (madvise(wiped, PAGE_BYTES, MADV_WIPEONFORK)) fail("madvise");
    wiped = grown(wiped);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        check_zero(wiped, 64);
        press();
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    demand(status == 0, "the child found zeroes");
    check(wiped, 0, 64, GROWN);
    unmap(locked, 64), unmap(wiped, 64);
    begin("a page that was reserved, and opened, grows");
    char *opened = map(NULL, 1, PROT_NONE, 0);
    if (mprotect(opened, PAGE_BYTES, PROT_READ | PROT_WRITE)) fail("mprotect");
    opened = grown(opened);
    send_away(opened, 64);
    check(opened, 0, 64, GROWN);
    unmap(opened, 64);
}

int main(int argc, char **argv) {
    const struct program_option table[] = {MIB("--mib", &range_pages), SWITCH("--raw", &raw), {0}};
    read_options("usage: small_mappings [--mib N] [--raw]", table, argc, argv);
    what_was_said_before_holds();
    by_pages();
    by_growth();
    puts("all there");
    return 0;
}
