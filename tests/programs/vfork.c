/* vfork: a child of vfork works in its parent's memory, takes more of it than there is, and execs; the parent goes on.
 *
 *   vfork
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <sys/wait.h>

enum { PAGES = 24 * 256, OBJECTS = 200, OBJECT_PAGES = 25 };

static char *mapped;
static int round_number;
static char *objects[OBJECTS];

static void await(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("a child");
    demand(!status, "its status");
}

int main(void) {
    begin("a child of vfork maps, allocates and writes");
    pid_t child = vfork();
    if (!child) {
        mapped = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
        fill(mapped, 0, PAGES, 1);
        for (size_t nth = 0; nth < OBJECTS; nth++) {
            objects[nth] = malloc(OBJECT_PAGES * PAGE_BYTES);
            if (!objects[nth]) fail("malloc");
            fill(objects[nth], nth * OBJECT_PAGES, OBJECT_PAGES, 2);
        }
        check(mapped, 0, PAGES, 1);
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    await(child);
    begin("the parent finds all of it, and forks");
    for (; round_number < 3; round_number++) {
        check(mapped, 0, PAGES, 1);
        for (size_t nth = 0; nth < OBJECTS; nth++) check(objects[nth], nth * OBJECT_PAGES, OBJECT_PAGES, 2);
        child = fork();
        if (!child) {
            check(mapped, 0, PAGES, 1);
            for (size_t nth = 0; nth < OBJECTS; nth++) check(objects[nth], nth * OBJECT_PAGES, OBJECT_PAGES, 2);
            _exit(0);
        }
        await(child);
        child = vfork();
        if (!child) {
            fill(mapped, 0, PAGES, 1);
            _exit(0);
        }
        await(child);
    }
    puts("ok");
    return 0;
}
