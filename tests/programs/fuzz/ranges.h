/* Runs of pages that fit what a step is to do with them. */
#pragma once
#include "dice.h"

typedef int fits(const struct page *);
static int is_mapped(const struct page *p) { return p->mapped; }
static int is_readable(const struct page *p) { return p->mapped && p->access >= READ; }
static int is_writable(const struct page *p) { return p->mapped && p->access == WRITE; }
static int is_certain(const struct page *p) { return is_readable(p) && !p->loose && !p->unsure; }
static int is_forbidden(const struct page *p) { return p->mapped && p->access == NONE; }
static int is_readonly(const struct page *p) { return p->mapped && p->access == READ; }
static int is_hole(const struct page *p) { return !p->mapped; }
static int is_anonymous(const struct page *p) { return p->mapped && !p->file; }
static int is_droppable(const struct page *p) { return p->mapped && !p->locked; }
static int is_freeable(const struct page *p) { return is_anonymous(p) && !p->locked && !p->unsure; }
static int is_movable(const struct page *p) { return is_anonymous(p) && !p->locked; }
static int is_locked(const struct page *p) { return p->locked; }

/* A run of pages of which each fits, with `alike` also of one kind, so that the kernel sees one mapping. */
static size_t find_run(fits *fit, size_t most, int alike, size_t *first) {
    size_t start = below(PAGES);
    for (size_t looked = 0; looked < PAGES; looked++) {
        size_t page = (start + looked) % PAGES;
        if (!fit(&here->pages[page])) continue;
        const struct page *p = &here->pages[page];
        size_t count = 1;
        while (count < most && page + count < PAGES && fit(&p[count]) &&
               (!alike || (p[count].access == p->access && p[count].locked == p->locked && p[count].at_fork == p->at_fork && p[count].file == p->file && p[count].advice == p->advice)))
            count++;
        *first = page;
        return count;
    }
    return 0;
}

static char *at(size_t page) { return here->base + page * PAGE_BYTES; }
static const int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};

static void succeed(int holds, const char *call) {
    if (!holds) wrong_step("%s: %s", call, strerror(errno));
}
