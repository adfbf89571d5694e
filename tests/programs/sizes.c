/* sizes: objects of many sizes, one of each, of which an allocator sets aside far more than is used.
 *
 * A page of one of them is made unreadable and readable again, as programs do with what they got from malloc.
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>

enum { SIZE_MAX_BYTES = 400 << 10, SIZES = 64 };

static sigjmp_buf back;
static void unreadable(int signal) { siglongjmp(back, signal); }

int main(void) {
    static char *objects[SIZES];
    size_t sizes[SIZES], count = 0;
    for (size_t size = 24; size < SIZE_MAX_BYTES; size += size / 4 + 8) sizes[count++] = size;
    for (int round = 0; round < 2; round++) {
        for (size_t nth = 0; nth < count; nth++) {
            if (!(objects[nth] = malloc(sizes[nth]))) fail("malloc");
            memset(objects[nth], (int)nth + 1, sizes[nth]);
        }
        for (size_t nth = 0; nth < count; nth++) {
            for (size_t at = 0; at < sizes[nth]; at++) demand(objects[nth][at] == (char)(nth + 1), "what was written");
            free(objects[nth]);
        }
    }

    char *page = memalign(PAGE_BYTES, 2 * PAGE_BYTES);
    if (!page) fail("memalign");
    memset(page, 7, 2 * PAGE_BYTES);
    if (mprotect(page, PAGE_BYTES, PROT_NONE)) fail("mprotect");
    signal(SIGSEGV, unreadable);
    if (!sigsetjmp(back, 1)) {
        (void)*(volatile char *)page;
        demand(0, "an access to what has none ends in SIGSEGV");
    }
    demand(page[PAGE_BYTES] == 7, "its neighbour is there");
    if (mprotect(page, PAGE_BYTES, PROT_READ | PROT_WRITE)) fail("mprotect");
    for (size_t at = 0; at < 2 * PAGE_BYTES; at++) demand(page[at] == 7, "what was there before");
    free(page);
    puts("ok");
    return 0;
}
