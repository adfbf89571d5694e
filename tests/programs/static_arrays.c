/* static_arrays: static data that begins as zeroes leaves like any other memory, and a child has its own.
 *
 *   static_arrays
 *
 * An array of 48 MiB is read, filled and checked, three times; a child fills it anew, and the parent checks its own.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <sys/wait.h>

enum { PAGES = 48 * 256 };

static char array[(size_t)PAGES * PAGE_BYTES] __attribute__((aligned(4096)));
static char small[PAGE_BYTES] = "initialised";

int main(void) {
    check_zero(array, PAGES);
    for (uint64_t round = 1; round < 4; round++) {
        fill(array, 0, PAGES, round);
        check(array, 0, PAGES, round);
    }
    pid_t child = fork();
    if (child < 0) fail("fork");
    fill(array, 0, PAGES, child ? 4 : 5);
    check(array, 0, PAGES, child ? 4 : 5);
    demand(!strcmp(small, "initialised"), "other static data is as it was");
    int status = 0;
    if (child && waitpid(child, &status, 0) != child) fail("waitpid");
    demand(status == 0, "the child ended well");
    if (child) puts("all there");
    return 0;
}
