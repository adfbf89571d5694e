/* readonly_direct: a program that once opened a file past the page cache (O_DIRECT), and then has more read-only memory
 * than fits: it leaves memory like any other.
 *
 *   readonly_direct [--open]      (--open: the file stays open, as a database has it)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"

enum { KEPT = 80 * 256, MORE = 128 * 256, TAG_KEPT = 1, TAG_MORE = 2 };

int main(int count, char **arguments) {
    int stays = count > 1 && !strcmp(arguments[1], "--open");
    if (count > 1 + stays) {
        fprintf(stderr, "usage: readonly_direct [--open]\n");
        return 2;
    }
    int file = open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    if (file < 0) fail("a file opened with O_DIRECT");
    if (!stays) close(file);
    char *kept = map(NULL, KEPT, PROT_READ | PROT_WRITE, 0);
    fill(kept, 0, KEPT, TAG_KEPT);
    if (mprotect(kept, (size_t)KEPT * PAGE_BYTES, PROT_READ)) fail("mprotect");
    for (int round = 0; round < 3; round++) {
        char *more = map(NULL, MORE, PROT_READ | PROT_WRITE, 0);
        fill(more, 0, MORE, TAG_MORE);
        check(more, 0, MORE, TAG_MORE);
        unmap(more, MORE);
        check(kept, 0, KEPT, TAG_KEPT);
    }
    puts("ok");
    return 0;
}
