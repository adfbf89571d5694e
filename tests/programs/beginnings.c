/* beginnings: what a process allocates before it has allocated much, and what becomes of that later.
 *
 *   beginnings little     allocates, resizes and frees some kilobytes
 *   beginnings grown      then much more, while the first objects live on
 *   beginnings threads    much more at first in a thread that ends, after forty keys
 *   beginnings forks      in a child
 *   beginnings watched    20 MiB in a child whose threads are all in a sandbox, while its parent wants memory
 *   beginnings confined   much more in a sandbox (seccomp) in which nothing can be opened or asked, and in one of address space
 *
 * Says how many bytes malloc has (`arena` of mallinfo2). Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <threads.h>

enum { OBJECTS = 100, KEYS = 40, ROUNDS = 12000, LARGE_BYTES = 3000 };

static char *objects[OBJECTS];
static size_t sizes[OBJECTS];

static void check_all(void) {
    for (size_t nth = 0; nth < OBJECTS; nth++)
        for (size_t at = 0; at < sizes[nth]; at++) demand(objects[nth][at] == (char)nth, "what was written");
}

static void hold(size_t nth, size_t size) {
    demand(malloc_usable_size(objects[nth]) >= size, "an object has its size");
    sizes[nth] = size;
    memset(objects[nth], (int)nth, size);
}

/* Objects of every way to allocate; the last ones grow, shrink and go. */
static void little(void) {
    for (size_t nth = 0; nth < OBJECTS; nth++) {
        size_t size = nth * 3, align = (size_t)16 << nth % 5;
        switch (nth % 4) {
        case 0: objects[nth] = malloc(size); break;
        case 1: objects[nth] = calloc(size, 1); break;
        case 2: objects[nth] = aligned_alloc(align, size); break;
        case 3:
            if (posix_memalign((void **)&objects[nth], align, size)) fail("posix_memalign");
        }
        if (!objects[nth]) fail("malloc");
        demand(nth % 4 < 2 || (uintptr_t)objects[nth] % align == 0, "an object is aligned");
        for (size_t at = 0; nth % 4 == 1 && at < size; at++) demand(objects[nth][at] == 0, "calloc gives zeroes");
        hold(nth, size);
    }
    check_all();
    for (size_t nth = OBJECTS / 2; nth < OBJECTS; nth++) {
        size_t size = nth % 2 ? sizes[nth] / 2 : sizes[nth] + 200, kept = size < sizes[nth] ? size : sizes[nth];
        if (!(objects[nth] = realloc(objects[nth], size))) fail("realloc");
        for (size_t at = 0; at < kept; at++) demand(objects[nth][at] == (char)nth, "realloc keeps what was written");
        hold(nth, size);
    }
    for (size_t nth = OBJECTS / 4; nth < OBJECTS / 2; nth++) {
        free(objects[nth]);
        if (!(objects[nth] = calloc(1, sizes[nth] + 1))) fail("calloc");
        for (size_t at = 0; at <= sizes[nth]; at++) demand(objects[nth][at] == 0, "calloc gives zeroes");
        hold(nth, sizes[nth] + 1);
    }
    check_all();
}

static int much(void *unused) {
    (void)unused;
    char *held[ROUNDS];
    for (int nth = 0; nth < ROUNDS; nth++) {
        if (!(held[nth] = malloc(LARGE_BYTES))) fail("malloc");
        memset(held[nth], nth, LARGE_BYTES);
    }
    for (int nth = 0; nth < ROUNDS; nth++) {
        for (int at = 0; at < LARGE_BYTES; at++) demand(held[nth][at] == (char)nth, "what was written");
        free(held[nth]);
    }
    return 0;
}

static void *much_in_thread(void *unused) { return (void *)(intptr_t)much(unused); }

/* The first objects grow beyond what they lie in. */
static void grown(void) {
    much(NULL);
    check_all();
    for (size_t nth = 0; nth < OBJECTS; nth++) {
        size_t before = sizes[nth];
        if (!(objects[nth] = realloc(objects[nth], before + 5000))) fail("realloc");
        for (size_t at = 0; at < before; at++) demand(objects[nth][at] == (char)nth, "realloc keeps what was written");
        hold(nth, before + 5000);
    }
    check_all();
}

static void with_threads(void) {
    for (int nth = 0; nth < KEYS; nth++) {
        pthread_key_t key;
        if (pthread_key_create(&key, NULL)) fail("pthread_key_create");
    }
    thrd_t first;
    if (thrd_create(&first, much, NULL) != thrd_success) fail("thrd_create");
    thrd_join(first, NULL);
    much(NULL);
    for (int round = 0; round < 8; round++) {
        pthread_t thread[2];
        for (int nth = 0; nth < 2; nth++)
            if (pthread_create(&thread[nth], NULL, much_in_thread, NULL)) fail("pthread_create");
        if (round % 4 == 3) {
            pid_t child = fork();
            if (child < 0) fail("fork");
            if (child == 0) grown(), exit(0);
            int status;
            demand(waitpid(child, &status, 0) == child && status == 0, "a child finds all of it");
        }
        for (int nth = 0; nth < 2; nth++) pthread_join(thread[nth], NULL);
    }
}

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

enum { BY_PRCTL, BY_NUMBER, OF_ALL_THREADS };

/* Ends the process for any call but those by which an allocator grows, and what reads and prints. */
static void enter_sandbox(int how) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(madvise), ALLOW(mprotect), ALLOW(brk), ALLOW(futex),
        ALLOW(rt_sigprocmask), ALLOW(getpid), ALLOW(read), ALLOW(write), ALLOW(newfstatat), ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("prctl");
    unsigned flags = how == OF_ALL_THREADS ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    int entered = how == BY_PRCTL ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                                  : (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    if (entered) fail("seccomp");
}

/* 2 MiB, object by object, and errno is left alone. */
static void some(void) {
    errno = 0;
    for (int nth = 0; nth < 2000; nth++) {
        char *object = malloc(1000);
        if (!object) fail("malloc");
        demand(errno == 0, "a malloc that succeeds leaves errno alone");
        memset(object, nth, 1000);
    }
}

static void confined(void) {
    for (int how = 0; how < 3; how++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            if (how < 2) {
                enter_sandbox(how);
            } else {
                struct rlimit all;
                getrlimit(RLIMIT_AS, &all);
                all.rlim_cur = (rlim_t)1 << 40;
                if (setrlimit(RLIMIT_AS, &all)) fail("setrlimit");
                all.rlim_cur = (rlim_t)1 << 36;
                if (setrlimit(RLIMIT_AS, &all)) fail("setrlimit");
            }
            some(), check_all();
            _exit(0);
        }
        int status;
        demand(waitpid(child, &status, 0) == child && status == 0, "a child that is confined allocates");
    }
    some();
}

/* Others may ask it for memory, which a thread of ours waits for: it must make no call that the sandbox forbids. */
static void watched(void) {
    enum { HELD = 20 << 20, WANTED = 70 << 20 };
    int ready[2], go[2];
    char byte = 0;
    if (pipe(ready) || pipe(go)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        char *held = malloc(HELD);
        if (!held) fail("malloc");
        memset(held, 7, HELD);
        enter_sandbox(OF_ALL_THREADS);
        demand(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1, "the parent goes on");
        for (size_t at = 0; at < HELD; at++) demand(held[at] == 7, "what was written");
        check_all();
        _exit(0);
    }
    demand(read(ready[0], &byte, 1) == 1, "the child is in its sandbox");
    char *wanted = malloc(WANTED);
    if (!wanted) fail("malloc");
    for (int round = 1; round < 4; round++) {
        memset(wanted, round, WANTED);
        for (size_t at = 0; at < WANTED; at++) demand(wanted[at] == (char)round, "what was written");
    }
    demand(write(go[1], &byte, 1) == 1, "the child goes on");
    int status;
    demand(waitpid(child, &status, 0) == child && status == 0, "a child in a sandbox of all threads goes on");
    free(wanted);
}

int main(int count, char **arguments) {
    const char *how = count == 2 ? arguments[1] : "";
    little();
    if (!strcmp(how, "threads")) {
        with_threads();
    } else if (!strcmp(how, "forks")) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) grown(), exit(0);
        int status;
        demand(waitpid(child, &status, 0) == child && status == 0, "a child finds all of it");
        check_all();
        grown();
    } else if (!strcmp(how, "watched")) {
        watched();
    } else if (!strcmp(how, "confined")) {
        confined();
    } else if (!strcmp(how, "grown")) {
        grown();
    } else if (strcmp(how, "little")) {
        fprintf(stderr, "usage: beginnings little|grown|threads|forks|watched|confined\n");
        return 2;
    }
    check_all();
    printf("%zu\n", mallinfo2().arena);
    for (size_t nth = 0; nth < OBJECTS; nth++) free(objects[nth]);
    return 0;
}
