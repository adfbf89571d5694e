/* accounts: what the allocator says of itself, in glibc's four forms, follows what the program does.
 *
 * With `threads` other threads allocate and free all the while, and the figures are only to be sane.
 * Exit status: 0 all well, 1 wrong figures, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* mallinfo */

enum { OBJECTS = 20000, OBJECT_BYTES = 1000, LARGE_BYTES = 48 << 20, THREADS = 4, LOOKS = 400 };

/* The number behind `key` in `text`. */
static size_t number(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (!at) fprintf(stderr, "no %s in: %s\n", key, text);
    demand(at != NULL, "the key is there");
    return strtoull(at + strlen(key), NULL, 10);
}

static size_t times(const char *text, const char *word) {
    size_t count = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) count++;
    return count;
}

/* What malloc_info writes: into memory that is not malloc's, so that it changes nothing. */
static const char *info(void) {
    static char text[1 << 16];
    FILE *file = fmemopen(text, sizeof text, "w");
    if (!file) fail("fmemopen");
    demand(malloc_info(0, file) == 0, "malloc_info succeeds");
    demand(malloc_info(1, file) == EINVAL, "malloc_info has no options");
    fclose(file);
    return text;
}

/* What malloc_stats writes. */
static const char *stats(void) {
    static char text[4096];
    fflush(stderr);
    int before = dup(2), file = memfd_create("stats", 0);
    if (before < 0 || file < 0 || dup2(file, 2) < 0) fail("memfd");
    malloc_stats();
    fflush(stderr);
    if (dup2(before, 2) < 0) fail("dup2");
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    if (length < 0) fail("pread");
    text[length] = 0;
    close(before), close(file);
    return text;
}

static void sane(struct mallinfo2 now) {
    demand(now.arena == now.uordblks + now.fordblks, "system is what is in use and what is free");
    demand(now.keepcost <= now.arena, "no more can go back than there is");
    demand(now.arena > 0 && now.uordblks > 0, "something is in use");
    demand((now.hblks == 0) == (now.hblkhd == 0), "mappings have bytes");
}

static atomic_int ended;

static void *churn(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed + 1;
    char *objects[64] = {0};
    while (!ended) {
        state = state * 1103515245 + 12345;
        size_t at = state >> 8 & 63, size = 16u << (state >> 16 & 15);
        free(objects[at]);
        objects[at] = malloc(size);
        if (objects[at]) objects[at][0] = 1;
        if ((state >> 20 & 63) == 0) {
            char *large = memalign(1 << 20, 2 << 20);
            if (large) large[0] = 1, large[(2 << 20) - 1] = 1;
            free(large);
        }
    }
    for (size_t at = 0; at < 64; at++) free(objects[at]);
    return NULL;
}

static void with_threads(void) {
    pthread_t threads[THREADS];
    for (uintptr_t nth = 0; nth < THREADS; nth++)
        if (pthread_create(&threads[nth], NULL, churn, (void *)nth)) fail("pthread_create");
    for (int look = 0; look < LOOKS; look++) {
        struct mallinfo2 now = mallinfo2();
        demand(now.arena == now.uordblks + now.fordblks, "system is what is in use and what is free");
        demand(now.arena < (size_t)4 << 30 && now.hblkhd < (size_t)1 << 30, "figures are of this program");
        demand(times(info(), "</malloc>") == 1, "all is written");
        if (look % 50 == 0) {
            pid_t child = fork();
            if (child < 0) fail("fork");
            if (child == 0) _exit(mallinfo2().arena == 0);
            int status;
            demand(waitpid(child, &status, 0) == child && status == 0, "a child has figures");
        }
    }
    ended = 1;
    for (int nth = 0; nth < THREADS; nth++) pthread_join(threads[nth], NULL);
}

static void alone(void) {
    static char *objects[OBJECTS];
    struct mallinfo2 before = mallinfo2();
    for (size_t nth = 0; nth < OBJECTS; nth++) {
        if (!(objects[nth] = malloc(OBJECT_BYTES))) fail("malloc");
        objects[nth][0] = 1;
    }
    struct mallinfo2 now = mallinfo2();
    sane(now);
    size_t asked = (size_t)OBJECTS * OBJECT_BYTES, used = now.uordblks - before.uordblks;
    demand(used >= asked && used < asked + asked / 4, "objects are in use");
    struct mallinfo small = mallinfo();
    demand((size_t)small.uordblks == mallinfo2().uordblks, "mallinfo says the same");

    char *large = malloc(LARGE_BYTES);
    if (!large || !(large = realloc(large, 2 * LARGE_BYTES))) fail("a large object");
    now = mallinfo2();
    sane(now);
    demand(now.uordblks + now.hblkhd - before.uordblks - before.hblkhd >= asked + 2 * LARGE_BYTES, "it is counted");
    demand(now.hblks == before.hblks + 1, "an object that has grown is a mapping");

    const char *text = info();
    demand(!strncmp(text, "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n", 43), "glibc's form");
    demand(times(text, "</heap>") == 1 && times(text, "<system type=\"max\"") == 2, "glibc's elements");
    const char *whole = strstr(text, "</heap>");
    demand(number(whole, "<system type=\"current\" size=\"") >= asked, "malloc_info: system");
    demand(number(whole, "<total type=\"mmap\" count=\"") == now.hblks, "malloc_info: mappings");
    text = stats();
    demand(number(text, "\nin use bytes     = ") >= asked, "malloc_stats: in use");
    demand(number(strstr(text, "Total"), "\nin use bytes     = ") >= asked + 2 * LARGE_BYTES, "malloc_stats: mappings");
    demand(number(text, "max mmap bytes   = ") >= 2 * LARGE_BYTES, "malloc_stats: the most");

    if (!(large = realloc(large, LARGE_BYTES / 16))) fail("realloc");
    demand(mallinfo2().hblkhd < now.hblkhd - LARGE_BYTES, "it has shrunk");
    free(large);
    for (size_t nth = 0; nth < OBJECTS; nth++) free(objects[nth]);
    struct mallinfo2 after = mallinfo2();
    demand(after.uordblks < before.uordblks + asked / 8, "what is freed is free");
    demand(after.hblks == before.hblks && after.hblkhd == before.hblkhd, "the mapping has gone");
    demand(mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1 && mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1, "options are taken");
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "threads")) with_threads();
    else alone();
    puts("ok");
    return 0;
}
