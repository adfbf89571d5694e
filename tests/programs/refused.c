/* refused: calls that the kernel refuses, all or in part, leave the memory and the run as they were.
 *
 *   refused [--namespace]      (forks by the C library that fail, in a pid namespace whose init has ended: needs root)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <malloc.h>
#include <sched.h>
#include <sys/wait.h>

enum { PAGES = 12 * 256, FORKS = 100 };

static void ends_well(pid_t child) {
    int status;
    if (child < 0) fail("fork");
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    demand(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child ends as it wants");
}

/* Guards are in the page tables, where the engine would not see them. */
static void guards(char *at) {
    enum { INSTALL = 102, REMOVE = 103 };
    begin("guards");
    demand(madvise(at, PAGE_BYTES, INSTALL) && errno == EINVAL, "not installed");
    demand(madvise(at, PAGE_BYTES, REMOVE) && errno == EINVAL, "not removed");
}

static void moves(char *at) {
    begin("mremap over a part of itself");
    for (int forth = 0; forth < 2; forth++) {
        char *from = at + (forth ? 0 : PAGES / 4) * PAGE_BYTES, *to = at + (forth ? PAGES / 4 : 0) * PAGE_BYTES;
        void *got = mremap(from, PAGES / 2 * PAGE_BYTES, PAGES / 2 * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        demand(got == MAP_FAILED && errno == EINVAL, "EINVAL");
        check(at, 0, PAGES, 1);
        press();
    }
    check(at, 0, PAGES, 1);
}

static void locks(char *at) {
    begin("mlock up to a hole");
    unmap(at + PAGES / 2 * PAGE_BYTES, 1);
    press();
    demand(mlock(at, PAGES * PAGE_BYTES) && errno == ENOMEM, "ENOMEM");
    press();
    check(at, 0, PAGES / 2, 1);
    check(at + (PAGES / 2 + 1) * PAGE_BYTES, PAGES / 2 + 1, PAGES / 2 - 1, 1);
}

static void forks(char *at, int by_library) {
    begin(by_library ? "forks that fail" : "clones that fail");
    if (by_library) {
        if (unshare(CLONE_NEWPID)) fail("unshare");
        /* The namespace's init, with which it ends. */
        pid_t init = fork();
        if (!init) _exit(7);
        ends_well(init);
    }
    for (int nth = 0; nth < FORKS; nth++) {
        long child = by_library ? fork() : syscall(SYS_clone, CLONE_NEWUSER | CLONE_FS | SIGCHLD, 0, 0, 0, 0);
        if (!child) _exit(0);
        demand(child < 0 && errno == (by_library ? ENOMEM : EINVAL), "refused");
    }
    /* With as much memory as before, and room for children. */
    press();
    check(at, 0, PAGES / 2, 1);
    if (by_library) return;
    pid_t child = fork();
    if (!child) {
        check(at, 0, PAGES / 2, 1);
        _exit(7);
    }
    ends_well(child);
}

static void at_fork(void) {
    begin("MADV_DONTFORK, undone, beside MADV_WIPEONFORK");
    char *at = map(NULL, PAGES / 2, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, PAGES / 2, 2);
    press();
    const int all[] = {MADV_DONTFORK, MADV_WIPEONFORK, MADV_DOFORK};
    for (int nth = 0; nth < 3; nth++)
        if (madvise(at, PAGES / 2 * PAGE_BYTES, all[nth])) fail("madvise");
    pid_t child = fork();
    if (!child) {
        check_zero(at, PAGES / 2);
        _exit(7);
    }
    ends_well(child);
    check(at, 0, PAGES / 2, 2);
    unmap(at, PAGES / 2);
}

static void alignments(void) {
    begin("alignments, large ones too");
    for (size_t align = 16; align <= 32 << 20; align *= 4)
        for (size_t size = 0; size <= 4 << 20; size = size ? size * 64 : 100) {
            void *object;
            if ((errno = posix_memalign(&object, align, size))) fail("posix_memalign");
            demand((uintptr_t)object % align == 0 && malloc_usable_size(object) >= size, "aligned");
            memset(object, 1, size);
            object = realloc(object, size + 5000);
            if (!object) fail("realloc");
            for (size_t byte = 0; byte < size; byte += 99) demand(((char *)object)[byte] == 1, "what it held");
            free(object);
        }
    void *object = memalign(24, 100);
    demand(object && (uintptr_t)object % 32 == 0, "a power of two is made of the alignment");
    free(object);
}

int main(int argc, char **argv) {
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--namespace"))) errno = EINVAL, fail(argv[argc - 1]);
    char *at = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, PAGES, 1);
    guards(at);
    press();
    guards(at);
    alignments();
    moves(at);
    locks(at);
    at_fork();
    forks(at, argc == 2);
    printf("refused: 0 errors\n");
    return 0;
}
