/* hammer: readers fault a page in while its writer writes it.
 *
 * Every page has one counter and one writer, which only ever raises it. A reader that sees a counter go back has been
 * given an old version of the page: an eviction lost a write. The rest of the page is constant and is spot-checked.
 *
 *   hammer --mib 512 --seconds 10 --readers 4 --writers 2        (working set larger than the cap)
 *
 * Exit status: 0 all well, 1 a counter went back, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8, NEIGHBOURHOOD = 64 };

struct page {
    _Atomic uint64_t counter;
    uint64_t constant[PAGE_WORDS - 1];
};

struct worker {
    pthread_t thread;
    uint64_t index, operations;
};

static struct {
    uint64_t mib, seconds, readers, writers, seed;
} options = {.mib = 256, .seconds = 5, .readers = 2, .writers = 2, .seed = 1};

static struct page *pages;
static uint64_t page_count;
static atomic_bool stop;
/* Readers and writers meet here: the page that some thread works on at the moment. */
static _Atomic uint64_t spotlight;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static uint64_t seed_of(uint64_t index) { return (options.seed + index) * 0x9e3779b97f4a7c15u | 1; }

/* Half the words repeat, half do not: pages compress about as a heap does. */
static uint64_t constant_at(uint64_t page, uint64_t word) {
    return word % 2 ? page : (page * 0x9e3779b97f4a7c15u) ^ (word * 0xbf58476d1ce4e5b9u);
}

static void fail(const char *what) {
    fprintf(stderr, "hammer: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* Mostly near the spotlight, so that readers and writers collide; sometimes far off, so that pages leave and return. */
static uint64_t choose(uint64_t *state) {
    uint64_t dice = next(state);
    uint64_t center = atomic_load_explicit(&spotlight, memory_order_relaxed);
    if (dice % 8 == 0) {
        uint64_t page = (dice >> 8) % page_count;
        if (dice % 64 == 0) atomic_store_explicit(&spotlight, page, memory_order_relaxed);
        return page;
    }
    return (center + (dice >> 8) % NEIGHBOURHOOD) % page_count;
}

static void *write_counters(void *argument) {
    struct worker *w = argument;
    uint64_t state = seed_of(w->index + 1000);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t page = choose(&state);
        page -= page % options.writers;
        page += w->index;
        if (page >= page_count) continue;
        /* A plain load and store, not fetch_add: the sole writer's increments must never be lost. */
        uint64_t value = atomic_load_explicit(&pages[page].counter, memory_order_relaxed);
        atomic_store_explicit(&pages[page].counter, value + 1, memory_order_release);
        w->operations++;
    }
    return NULL;
}

static void *read_counters(void *argument) {
    struct worker *w = argument;
    uint64_t state = seed_of(w->index), *seen = calloc(page_count, sizeof *seen);
    if (!seen) fail("calloc");
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t page = choose(&state);
        uint64_t value = atomic_load_explicit(&pages[page].counter, memory_order_acquire);
        if (value < seen[page]) {
            printf("WENT BACK: page %" PRIu64 " at %p, reader %" PRIu64 " saw %" PRIu64 " and then %" PRIu64 "\n", page,
                   (void *)&pages[page], w->index, seen[page], value);
            fflush(stdout);
            _exit(1);
        }
        seen[page] = value;
        uint64_t word = next(&state) % (PAGE_WORDS - 1);
        if (pages[page].constant[word] != constant_at(page, word)) {
            printf("WRONG WORD: page %" PRIu64 " at %p, word %" PRIu64 ": expected %" PRIx64 ", found %" PRIx64 "\n",
                   page, (void *)&pages[page], word + 1, constant_at(page, word), pages[page].constant[word]);
            fflush(stdout);
            _exit(1);
        }
        w->operations++;
    }
    free(seen);
    return NULL;
}

static const char *const synopsis =
    "usage: hammer [--mib N] [--seconds S] [--readers R] [--writers W] [--seed X]\n"
    "Readers fault pages in while writers write them: no counter may ever go back.";

static void parse(int argc, char **argv) {
    const struct program_option table[] = {
        NUMBER("--mib", &options.mib),
        NUMBER("--seconds", &options.seconds),
        NUMBER("--readers", &options.readers),
        NUMBER("--writers", &options.writers),
        NUMBER("--seed", &options.seed),
        {0},
    };
    read_options(synopsis, table, argc, argv);
    if (!options.mib || !options.writers) usage(synopsis, 2);
}

static void fill(void) {
    pages = mmap(NULL, page_count * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) fail("mmap");
    for (uint64_t page = 0; page < page_count; page++)
        for (uint64_t word = 0; word < PAGE_WORDS - 1; word++) pages[page].constant[word] = constant_at(page, word);
}

static uint64_t join(struct worker *workers, uint64_t count) {
    uint64_t operations = 0;
    for (uint64_t i = 0; i < count; i++) pthread_join(workers[i].thread, NULL), operations += workers[i].operations;
    return operations;
}

/* Every write must have arrived: the counters' sum is the number of increments. */
static void check_sum(uint64_t increments) {
    uint64_t sum = 0;
    for (uint64_t page = 0; page < page_count; page++) sum += atomic_load(&pages[page].counter);
    if (sum == increments) return;
    printf("LOST WRITES: %" PRIu64 " increments were made, the counters add up to %" PRIu64 "\n", increments, sum);
    exit(1);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    page_count = options.mib * (1024 * 1024 / PAGE_BYTES);
    fill();
    struct worker *readers = calloc(options.readers + 1, sizeof *readers);
    struct worker *writers = calloc(options.writers, sizeof *writers);
    if (!readers || !writers) fail("calloc");
    for (uint64_t i = 0; i < options.writers; i++) {
        writers[i].index = i;
        if ((errno = pthread_create(&writers[i].thread, NULL, write_counters, &writers[i]))) fail("pthread_create");
    }
    for (uint64_t i = 0; i < options.readers; i++) {
        readers[i].index = i;
        if ((errno = pthread_create(&readers[i].thread, NULL, read_counters, &readers[i]))) fail("pthread_create");
    }
    struct timespec pause = {.tv_sec = (time_t)options.seconds};
    while (nanosleep(&pause, &pause) && errno == EINTR) {}
    atomic_store(&stop, true);
    uint64_t reads = join(readers, options.readers), writes = join(writers, options.writers);
    check_sum(writes);
    printf("hammer: %" PRIu64 " MiB, %" PRIu64 " reads, %" PRIu64 " writes, 0 errors\n", options.mib, reads, writes);
    return 0;
}
