/* Pages in which each thread has a word of its own. */
#pragma once
#include "dice.h"

static volatile uint64_t *shared_word(size_t page, size_t thread) { return (volatile uint64_t *)(void *)(shared_area + page * PAGE_BYTES + thread * 64); }

static void step_shared(void) {
    size_t mine = (size_t)(here - territories);
    for (size_t round = 0; round < 200; round++) {
        size_t page = below(SHARED_PAGES);
        volatile uint64_t *word = shared_word(page, mine);
        if (*word != here->shared[page]) wrong_step("shared page %zu: my word is %" PRIu64 ", should be %" PRIu64, page, *word, here->shared[page]);
        *word = here->shared[page] + 1;
        __atomic_store_n(&here->shared[page], here->shared[page] + 1, __ATOMIC_RELEASE);
        size_t other = below(threads);
        if (depth) continue; /* the others are not here, and stopped in the middle */
        uint64_t least = __atomic_load_n(&territories[other].shared[page], __ATOMIC_ACQUIRE), found = *shared_word(page, other);
        if (found < least) wrong_step("shared page %zu: the word of thread %zu went back from %" PRIu64 " to %" PRIu64, page, other, least, found);
    }
}

static void step_shared_advice(void) {
    size_t first = below(SHARED_PAGES), count = 1 + below(SHARED_PAGES - first);
    static const int advice[] = {MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_NOHUGEPAGE, MADV_POPULATE_READ};
    madvise(shared_area + first * PAGE_BYTES, count * PAGE_BYTES, advice[below(5)]);
}
