/* own_malloc: a program that brings its own malloc, which maps memory with its lock held, and forks.
 *
 * Whoever starts a thread allocates: the C library does. To start one within mmap, or in a handler of fork, would wait
 * for the lock for ever.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <pthread.h>
#include <sys/wait.h>

enum { CHUNK_BYTES = 1 << 20, PAGES = 24 * 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *chunk;
static size_t left;

void *malloc(size_t size) {
    size = (size + 31) / 16 * 16;
    pthread_mutex_lock(&lock);
    if (size > left) {
        left = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        chunk = mmap(NULL, left, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk == MAP_FAILED) _exit(2);
    }
    char *object = chunk + 16;
    memcpy(chunk, &size, sizeof size);
    chunk += size, left -= size;
    pthread_mutex_unlock(&lock);
    return object;
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void free(void *object) { (void)object; }

void *realloc(void *object, size_t size) {
    char *moved = malloc(size);
    size_t old = 0;
    if (object) memcpy(&old, (char *)object - 16, sizeof old);
    if (object) memcpy(moved, object, old - 16 < size ? old - 16 : size);
    return moved;
}

static void locks(void) { pthread_mutex_lock(&lock); }
static void unlocks(void) { pthread_mutex_unlock(&lock); }

int main(void) {
    pthread_atfork(locks, unlocks, unlocks);
    char *mapped = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0), *objects[100];
    fill(mapped, 0, PAGES, 1);
    for (size_t nth = 0; nth < 100; nth++) fill(objects[nth] = malloc(8 * PAGE_BYTES), nth * 8, 8, 2);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        check(mapped, 0, PAGES, 1);
        for (size_t nth = 0; nth < 100; nth++) check(objects[nth], nth * 8, 8, 2);
        if (!child) _exit(0);
        int status;
        if (waitpid(child, &status, 0) != child) fail("waitpid");
        demand(!status, "its status");
    }
    puts("ok");
    return 0;
}
