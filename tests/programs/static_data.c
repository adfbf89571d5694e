/* static_data: children that share what no engine manages, and start engines of their own afterwards.
 *
 *   static_data STATIC_MIB CHILDREN HELD_MIB
 *
 * A parent writes STATIC_MIB of static data, and forks CHILDREN before it needs an engine. All at once each takes HELD_MIB
 * of memory that can leave, more than there is, and verifies it and the static data, three times; then it holds both until the
 * standard input ends.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <sys/wait.h>

enum { STATIC_MIB_MAX = 64, CHILDREN_MAX = 16, ROUNDS = 3 };

static char still[(size_t)STATIC_MIB_MAX << 20] __attribute__((aligned(4096)));

static void live(size_t still_pages, size_t held_pages, uint64_t tag) {
    char *held = map(NULL, held_pages, PROT_READ | PROT_WRITE, 0);
    fill(held, 0, held_pages, tag);
    for (int round = 0; round < ROUNDS; round++) {
        check(held, 0, held_pages, tag);
        check(still, 0, still_pages, 1);
    }
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0);
    check(held, 0, held_pages, tag);
    unmap(held, held_pages);
}

int main(int count, char **words) {
    if (count != 4) return 2;
    size_t still_pages = (size_t)atoi(words[1]) << 8, held_pages = (size_t)atoi(words[3]) << 8;
    int children = atoi(words[2]);
    if (still_pages > (size_t)STATIC_MIB_MAX << 8 || children > CHILDREN_MAX) return 2;
    fill(still, 0, still_pages, 1);
    for (int nth = 0; nth < children; nth++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            live(still_pages, held_pages, (uint64_t)nth + 2);
            _exit(0);
        }
    }
    for (int nth = 0; nth < children; nth++) {
        int status;
        if (wait(&status) < 0) fail("wait");
        demand(!status, "a child's status");
    }
    return 0;
}
