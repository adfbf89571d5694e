/* How long threads wait for their pages, as they see it themselves: what Pagetide says of it must agree.
 *
 * waits --mib N --threads N --rounds N [--random 1]
 * Each thread reads a word of each page of its own part, in order or at random, and adds up what took longer than a touch
 * of a page that is there. Prints the sum over threads and the accesses that waited. */
#define _GNU_SOURCE
#include "basics.h"
#include "options.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, THREADS_MAX = 64 };
/* Nanoseconds that no touch of a page takes which is in memory. */
static const uint64_t TOUCH = 1500;

struct part {
    volatile unsigned char *start;
    size_t pages;
    uint64_t rounds, random, seed, waited, faults;
};

static void *touch(void *argument) {
    struct part *part = argument;
    for (uint64_t round = 0; round < part->rounds; round++)
        for (size_t nth = 0; nth < part->pages; nth++) {
            size_t page = part->random ? next_random(&part->seed) % part->pages : nth;
            uint64_t before = now_ns();
            unsigned char found = part->start[page * PAGE];
            uint64_t took = now_ns() - before;
            if (found != (unsigned char)(page * 31 + 7)) exit(1);
            if (took > TOUCH) part->waited += took, part->faults++;
        }
    return NULL;
}

int main(int count, char **arguments) {
    uint64_t mib = 64, threads = 1, rounds = 2, random = 0;
    const struct program_option table[] = {
            NUMBER("--mib", &mib), NUMBER("--threads", &threads), NUMBER("--rounds", &rounds), NUMBER("--random", &random), {0},
    };
    read_options("usage: waits [--mib N] [--threads N] [--rounds N] [--random 1]", table, count, arguments);
    if (threads < 1 || threads > THREADS_MAX) return 2;
    size_t pages = (mib << 20) / PAGE / threads;
    static struct part parts[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    uint64_t seed = 88172645463325252ull;
    for (uint64_t thread = 0; thread < threads; thread++) {
        unsigned char *start =
                mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) return 2;
        for (size_t page = 0; page < pages; page++) {
            /* Half of a page does not compress. */
            for (size_t at = 0; at < PAGE / 2; at += 8) {
                uint64_t word = next_random(&seed);
                memcpy(start + page * PAGE + at, &word, 8);
            }
            start[page * PAGE] = page * 31 + 7;
        }
        parts[thread] = (struct part){start, pages, rounds, random, seed + thread, 0, 0};
    }
    uint64_t waited = 0, faults = 0, before = now_ns();
    for (uint64_t thread = 0; thread < threads; thread++)
        if (pthread_create(&ids[thread], NULL, touch, &parts[thread])) return 2;
    for (uint64_t thread = 0; thread < threads; thread++) {
        pthread_join(ids[thread], NULL);
        waited += parts[thread].waited, faults += parts[thread].faults;
    }
    printf("waited %.3f s in %lu accesses of %.3f s\n", waited / 1e9, faults, (now_ns() - before) / 1e9);
    return 0;
}
