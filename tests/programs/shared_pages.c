/* Processes that share anonymous memory, and check every page of it.
 *
 * Each page has a lock of its own, in its first word, and a generation. A process takes the lock of a random page,
 * checks that all words of the page are those of its generation, which is no older than this process has seen it, and
 * in some cases writes the next one. What each process has seen is kept in its private memory. In the end the first
 * process checks every page against all that the others have seen.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"
#include "options.h"

enum { WORDS = 4096 / 8 };

struct page {
    _Atomic uint64_t lock;
    uint64_t number, generation, words[WORDS - 3];
};

static struct {
    uint64_t mib, processes, ops, writes, seed;
} options = {.mib = 64, .processes = 4, .ops = 20000, .writes = 50, .seed = 1};

static struct page *pages;
static uint64_t page_count;

static uint64_t word(const struct page *page, uint64_t at) {
    /* Every fourth page does not compress; the others do, a little or well. */
    return page->number % 4 ? page->generation * 77 + (at >> page->number % 4) : mix(page->number ^ page->generation << 32 ^ at << 50);
}

static void fill(struct page *page) {
    for (uint64_t at = 0; at < WORDS - 3; at++) page->words[at] = word(page, at);
}

static void check(const struct page *page, uint64_t number, uint64_t seen) {
    bool fresh = page->number == 0 && page->generation == 0;
    bool right = fresh ? seen == 0 : page->number == number + 1 && page->generation >= seen;
    for (uint64_t at = 0; right && at < WORDS - 3; at++) right = page->words[at] == (fresh ? 0 : word(page, at));
    if (right) return;
    fprintf(stderr, "WRONG: page %lu: number %lu, generation %lu, seen before %lu\n", number, page->number, page->generation, seen);
    abort();
}

static void take(struct page *page) {
    while (atomic_exchange_explicit(&page->lock, 1, memory_order_acquire)) sched_yield();
}

static void work(uint64_t index, uint64_t *seen) {
    uint64_t state = options.seed * 1000 + index;
    for (uint64_t op = 0; op < options.ops; op++) {
        state = mix(state + 0x9e3779b97f4a7c15u);
        uint64_t number = state % page_count;
        struct page *page = &pages[number];
        take(page);
        check(page, number, seen[number]);
        if ((state >> 40) % 100 < options.writes) {
            page->number = number + 1;
            page->generation++;
            fill(page);
        }
        seen[number] = page->generation;
        atomic_store_explicit(&page->lock, 0, memory_order_release);
    }
}

int main(int argc, char **argv) {
    static const char *const synopsis =
        "usage: shared_pages [--mib N] [--processes P] [--ops N_EACH] [--writes PERCENT] [--seed X]";
    const struct program_option table[] = {
        NUMBER("--mib", &options.mib),       NUMBER("--processes", &options.processes), NUMBER("--ops", &options.ops),
        NUMBER("--writes", &options.writes), NUMBER("--seed", &options.seed),           {0},
    };
    read_options(synopsis, table, argc, argv);
    page_count = options.mib << 8;
    pages = mmap(NULL, options.mib << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return perror("mmap"), 1;
    for (uint64_t index = 0; index < options.processes; index++) {
        int child = fork();
        if (child < 0) return perror("fork"), 1;
        if (child == 0) {
            uint64_t *seen = calloc(page_count, sizeof *seen);
            work(index, seen);
            /* Once more, all of them. */
            for (uint64_t number = 0; number < page_count; number++) {
                take(&pages[number]);
                check(&pages[number], number, seen[number]);
                atomic_store_explicit(&pages[number].lock, 0, memory_order_release);
            }
            _exit(0);
        }
    }
    bool failed = false;
    for (int status; wait(&status) > 0;) failed |= status != 0;
    if (failed) return 1;
    uint64_t written = 0;
    for (uint64_t number = 0; number < page_count; number++) check(&pages[number], number, 0), written += pages[number].generation;
    printf("%lu pages, %lu generations\n", page_count, written);
    return 0;
}
