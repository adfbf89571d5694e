/* unmanaged: children that share what no engine manages, and start engines of their own afterwards.
 *
 *   unmanaged SHARED_MIB CHILDREN HELD_MIB
 *
 * A parent maps SHARED_MIB by the instruction itself, writes there, and forks CHILDREN before it needs an engine. All at
 * once each takes HELD_MIB of memory that can leave, more than there is, and verifies it and what is shared, three times;
 * then it holds both until the standard input ends.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <sys/wait.h>

enum { CHILDREN_MAX = 16, ROUNDS = 3 };

static char *shared;

static void live(size_t shared_pages, size_t held_pages, uint64_t tag) {
    char *held = map(NULL, held_pages, PROT_READ | PROT_WRITE, 0);
    fill(held, 0, held_pages, tag);
    for (int round = 0; round < ROUNDS; round++) {
        check(held, 0, held_pages, tag);
        check(shared, 0, shared_pages, 1);
    }
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0);
    check(held, 0, held_pages, tag);
    unmap(held, held_pages);
}

int main(int count, char **words) {
    if (count != 4) return 2;
    size_t shared_pages = (size_t)atoi(words[1]) << 8, held_pages = (size_t)atoi(words[3]) << 8;
    int children = atoi(words[2]);
    if (children > CHILDREN_MAX) return 2;
    shared = map_unmanaged(shared_pages);
    fill(shared, 0, shared_pages, 1);
    for (int nth = 0; nth < children; nth++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            live(shared_pages, held_pages, (uint64_t)nth + 2);
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
