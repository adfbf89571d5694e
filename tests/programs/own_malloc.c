/* own_malloc: a program that brings its own malloc, which maps memory with its lock held, and forks with it held.
 *
 * Whoever allocates from it within mmap, or in a handler of fork, would wait for the lock for ever. And it is the
 * program's threads' alone: one that it does not know ends it.
 *
 * usage: own_malloc [brk] - "brk": it takes its memory by sbrk
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources, SIGABRT a stranger. */
#define _GNU_SOURCE
#include "pages.h"
#include <pthread.h>
#include <sys/wait.h>

enum { CHUNK_BYTES = 1 << 20, PAGES = 14 * 256, OBJECTS = 400, OBJECT_PAGES = 8, BUSY_PAGES = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *chunk;
static size_t left;
static int by_brk;
static __thread int known;

static void take_lock(void) {
    if (!known && gettid() != getpid()) {
        static const char message[] = "a thread of somebody else's uses malloc\n";
        if (write(2, message, sizeof message - 1) < 0) _exit(2);
        abort();
    }
    pthread_mutex_lock(&lock);
}

void *malloc(size_t size) {
    size = (size + 31) / 16 * 16;
    take_lock();
    if (size > left) {
        left = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        chunk = by_brk ? sbrk((intptr_t)left) : mmap(NULL, left, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk == MAP_FAILED) _exit(2);
    }
    char *object = chunk + 16;
    memcpy(chunk, &size, sizeof size);
    chunk += size, left -= size;
    pthread_mutex_unlock(&lock);
    return object;
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void free(void *object) {
    if (!object) return;
    take_lock();
    pthread_mutex_unlock(&lock);
}

void *realloc(void *object, size_t size) {
    char *moved = malloc(size);
    size_t old = 0;
    if (object) memcpy(&old, (char *)object - 16, sizeof old);
    if (object) memcpy(moved, object, old - 16 < size ? old - 16 : size);
    return moved;
}

static void locks(void) { take_lock(); }
static void unlocks(void) { pthread_mutex_unlock(&lock); }

static char *mapped, *objects[OBJECTS];

static void check_all(void) {
    check(mapped, 0, PAGES, 1);
    for (size_t nth = 0; nth < OBJECTS; nth++) check(objects[nth], nth * OBJECT_PAGES, OBJECT_PAGES, 2);
}

/* Allocates, uses and forgets, as long as somebody forks. */
static volatile int busy = 1;
static void *work(void *tag) {
    known = 1;
    for (size_t round = 0; busy && round < 12; round++) {
        char *object = malloc(64 * PAGE_BYTES);
        fill(object, round, 64, (uintptr_t)tag);
        check(object, round, 64, (uintptr_t)tag);
    }
    return NULL;
}

/* Of a function that the program does not bring: another allocator starts in a thread that ends. */
static void *of_another(void *unused) {
    (void)unused;
    known = 1;
    for (int nth = 0; nth < 400; nth++) {
        void *object;
        if (posix_memalign(&object, 64, 1000)) fail("posix_memalign");
        memset(object, nth, 1000);
    }
    return NULL;
}

static void fork_and_check(int deeper) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    check_all();
    if (!child) {
        /* Its own copies, which the parent does not see. */
        char *own = malloc(BUSY_PAGES * PAGE_BYTES);
        fill(own, 0, BUSY_PAGES, 3);
        if (deeper) fork_and_check(0);
        fill(objects[0], 0, OBJECT_PAGES, 4);
        check(own, 0, BUSY_PAGES, 3), check(objects[0], 0, OBJECT_PAGES, 4);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    demand(!status, "its status");
}

int main(int argc, char **argv) {
    by_brk = argc > 1 && !strcmp(argv[1], "brk");
    known = 1;
    for (int round = 0; round < 4; round++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, of_another, NULL)) fail("pthread_create");
        pthread_join(thread, NULL);
    }
    pthread_atfork(locks, unlocks, unlocks);
    mapped = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(mapped, 0, PAGES, 1);
    for (size_t nth = 0; nth < OBJECTS; nth++)
        fill(objects[nth] = malloc(OBJECT_PAGES * PAGE_BYTES), nth * OBJECT_PAGES, OBJECT_PAGES, 2);
    for (int round = 0; round < 2; round++) {
        step = "one thread", fork_and_check(1);
        pthread_t threads[2];
        step = "several threads", busy = 1;
        for (uintptr_t nth = 0; nth < 2; nth++)
            if (pthread_create(&threads[nth], NULL, work, (void *)(10 + nth))) fail("pthread_create");
        fork_and_check(1), busy = 0;
        for (int nth = 0; nth < 2; nth++) pthread_join(threads[nth], NULL);
        check_all();
    }
    puts("ok");
    return 0;
}
