/* growing: objects that grow and shrink keep what is in them, however they are moved.
 *
 * Each thread has objects of sizes from a few bytes to --mib MiB, changes one after the other by realloc, and checks
 * what it kept and fills what is new. Every now and then the process forks: the child checks all objects of the
 * forking thread, changes some, and checks those again. Before that, more objects than an allocator keeps special
 * track of grow beyond the size from which it may give each a mapping, and shrink and go again.
 *
 *   growing --threads 3 --mib 12 --rounds 1500 --seed 1
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "basics.h"
#include "options.h"
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 12, STRIDE = 512, THREADS_MAX = 16 };

struct object {
    unsigned char *at;
    size_t size;
    uint64_t tag;
};

static uint64_t threads = 3, mib_max = 12, rounds = 1500, seed = 1;

static uint64_t next(uint64_t *state) { return mix(*state += 0x9e3779b97f4a7c15u); }

static unsigned char byte_at(uint64_t tag, size_t offset) {
    uint64_t state = tag + offset / STRIDE;
    return (unsigned char)(next(&state) >> (offset % 8 * 8));
}

static void put(const struct object *object, size_t from, size_t to) {
    for (size_t offset = from; offset < to; offset++)
        if (offset % STRIDE < 16 || offset + 64 > to) object->at[offset] = byte_at(object->tag, offset);
}

static void check(const struct object *object, size_t size, const char *when) {
    for (size_t offset = 0; offset < size; offset++) {
        if (offset % STRIDE >= 16) {
            offset += STRIDE - 17;
            continue;
        }
        unsigned char want = byte_at(object->tag, offset), found = object->at[offset];
        if (want == found) continue;
        printf("%s: byte %zu of %zu at %p: expected %02x, found %02x (seed %lu)\n", when, offset, object->size,
               (void *)object->at, want, found, seed);
        fflush(stdout);
        _exit(1);
    }
}

static size_t random_size(uint64_t *state) {
    uint64_t most = (uint64_t)mib_max << 20, shift = next(state) % 20;
    return 1 + next(state) % (most >> shift);
}

static void change(struct object *object, uint64_t *state) {
    size_t old = object->size;
    /* Mostly it grows a little, as arrays do. */
    size_t size = next(state) % 4 ? old + old / 8 + 16 : random_size(state);
    if (size > mib_max << 20) size = random_size(state);
    if (next(state) % 16 == 0) {
        free(object->at);
        int zeroed = next(state) % 2;
        object->at = zeroed ? calloc(1, size) : aligned_alloc(65536, size);
        for (size_t offset = 0; zeroed && object->at && offset < size; offset++)
            if (object->at[offset]) {
                printf("calloc: byte %zu of %zu is not zero (seed %lu)\n", offset, size, seed);
                fflush(stdout);
                _exit(1);
            }
        old = 0;
    } else {
        object->at = realloc(object->at, size);
    }
    if (!object->at || malloc_usable_size(object->at) < size) {
        fprintf(stderr, "growing: no object of %zu bytes\n", size);
        _exit(2);
    }
    object->size = size;
    check(object, old < size ? old : size, "after a change");
    put(object, old < size ? old : 0, size);
}

static void *work(void *argument) {
    uint64_t state = seed * 1000 + (uint64_t)(uintptr_t)argument;
    struct object objects[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) {
        objects[i] = (struct object){malloc(64), 64, next(&state)};
        put(&objects[i], 0, 64);
    }
    for (unsigned long round = 0; round < rounds; round++) {
        struct object *object = &objects[next(&state) % OBJECTS];
        check(object, object->size, "before a change");
        change(object, &state);
        if (next(&state) % 400) continue;
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < OBJECTS; i++) check(&objects[i], objects[i].size, "in a child");
            for (int i = 0; i < OBJECTS; i += 2) change(&objects[i], &state);
            for (int i = 0; i < OBJECTS; i++) check(&objects[i], objects[i].size, "in a child, changed");
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror("growing: fork");
            _exit(2);
        }
        if (status) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
    }
    for (int i = 0; i < OBJECTS; i++) {
        check(&objects[i], objects[i].size, "at the end");
        free(objects[i].at);
    }
    return NULL;
}

enum { CROWD = 300, CROWD_STEP = 65536 };

/* One byte in each 64 KiB says whose it is. */
static void crowd(void) {
    static unsigned char *objects[CROWD];
    size_t sizes[] = {600000, 1300000, 1900000, 1200000, 5000};
    for (size_t step = 0, before = 0; step < sizeof sizes / sizeof *sizes; before = sizes[step++])
        for (int nth = 0; nth < CROWD; nth++) {
            unsigned char *object = realloc(objects[nth], sizes[step]);
            if (!object) {
                perror("growing: realloc");
                _exit(2);
            }
            objects[nth] = object;
            for (size_t offset = 0; offset < sizes[step]; offset += CROWD_STEP) {
                unsigned char want = (unsigned char)(1 + nth % 251 + (int)(offset / CROWD_STEP) % 3);
                if (offset < before && object[offset] != want) {
                    printf("object %d of a crowd, byte %zu: expected %02x, found %02x\n", nth, offset, want, object[offset]);
                    fflush(stdout);
                    _exit(1);
                }
                object[offset] = want;
            }
        }
    for (int nth = 0; nth < CROWD; nth++) free(objects[nth]);
}

int main(int count, char **words) {
    const struct program_option table[] = {
        NUMBER("--threads", &threads), NUMBER("--mib", &mib_max), NUMBER("--rounds", &rounds), NUMBER("--seed", &seed), {0},
    };
    read_options("usage: growing [--threads T] [--mib N] [--rounds N] [--seed X]", table, count, words);
    if (threads < 1 || threads > THREADS_MAX || mib_max < 1) return fprintf(stderr, "growing: bad number\n"), 2;
    printf("seed %" PRIu64 "\n", seed);
    crowd();
    pthread_t ids[THREADS_MAX];
    for (unsigned long i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)i)) return 2;
    for (unsigned long i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    return 0;
}
