/* What pages hold: written, stamped, checked. */
#pragma once
#include "model.h"

static uint64_t base_word(uint32_t tag, size_t word) {
    if (!tag) return 0;
    uint64_t stamp = mix(tag * 1000003u + 17);
    switch (tag % 16) {
    case 5: case 11: return mix(stamp + word); /* does not compress */
    case 9: return stamp;                      /* one word again and again */
    case 13: return word < 4 ? stamp + word : 0;
    default: return word % 8 ? stamp & 0xff : mix(stamp + word);
    }
}

static uint64_t page_word(uint32_t tag, uint32_t stamp, size_t word) { return word == STAMP && stamp ? stamp : base_word(tag, word); }

static uint64_t *words(struct territory *t, size_t page) { return (uint64_t *)(void *)(t->base + page * PAGE_BYTES); }

/* The first word that is not as it should be, or PAGE_WORDS. */
static size_t differs(const volatile uint64_t *found, uint32_t tag, uint32_t stamp) {
    size_t word = 0;
    while (word < PAGE_WORDS && found[word] == page_word(tag, stamp, word)) word++;
    return word;
}

static void check_contents(const volatile uint64_t *found, uint32_t tag, uint32_t stamp, const char *what, size_t page) {
    size_t word = differs(found, tag, stamp);
    if (word == PAGE_WORDS) return;
    uint64_t value = found[word];
    char bytes[200];
    int length = 0;
    for (size_t at = 0; at < 8; at++) length += snprintf(bytes + length, sizeof bytes - (size_t)length, " %" PRIx64, found[at]);
    wrong_step("%s %zu at %p, word %zu: expected %" PRIx64 " (tag %x, stamp %x), found %" PRIx64 ", then %" PRIx64 "; its first words:%s", what, page,
               (const void *)found, word, page_word(tag, stamp, word), tag, stamp, value, found[word], bytes);
}

/* Checks a page of a territory, and learns what MADV_FREE has left of it. */
static void check_page(struct territory *t, size_t page) {
    struct page *p = &t->pages[page];
    if (p->unsure) return;
    if (p->loose && differs(words(t, page), 0, p->freed) == PAGE_WORDS) *p = (struct page){.stamp = p->freed, .mapped = 1, .access = p->access, .at_fork = p->at_fork, .locked = p->locked, .advice = p->advice};
    check_contents(words(t, page), p->tag, p->stamp, "page", page);
}

static void write_page(size_t page) {
    struct page *p = &here->pages[page];
    uint64_t *to = words(here, page);
    p->tag = ++here->tags | (uint32_t)(here - territories) << 28, p->stamp = 0, p->loose = 0, p->unsure = 0;
    for (size_t word = 0; word < PAGE_WORDS; word++) to[word] = base_word(p->tag, word);
}

/* One word of a page: the others stay. */
static void stamp_page(size_t page) {
    struct page *p = &here->pages[page];
    ((volatile uint64_t *)words(here, page))[STAMP] = p->freed = p->stamp = ++here->stamps | 1u << 31;
    if (p->loose) {
        /* It is dirty again: what it holds now, it keeps. */
        check_page(here, page);
        p->loose = 0;
    }
}

static void forget(size_t first, size_t count, struct page as) {
    for (size_t page = first; page < first + count; page++) {
        if (here->pages[page].locked) here->locked--;
        if (here->pages[page].file) here->file--;
        if (as.file) here->file++;
        here->pages[page] = as;
    }
}
