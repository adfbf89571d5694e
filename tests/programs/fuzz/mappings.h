/* Steps that map, unmap, protect and move; and accesses that must fault. */
#pragma once
#include "contents.h"
#include "ranges.h"

static void step_map(void) {
    size_t count = wanted_pages() * 2;
    if (count > WANTED_MAX) count = WANTED_MAX;
    size_t first = below(PAGES - count);
    enum access access = one_in(5) ? NONE : one_in(8) ? READ : WRITE;
    int flags = MAP_PRIVATE | MAP_FIXED;
    struct page as = {.mapped = 1, .access = access};
    if (one_in(6)) {
        if (count > FILE_PAGES) count = FILE_PAGES;
        if (here->file + count > FILE_MAX) return;
        size_t from = below(FILE_PAGES - count + 1);
        char *got = mmap(at(first), count * PAGE_BYTES, protections[access], flags, backing_file, (off_t)(from * PAGE_BYTES));
        succeed(got == at(first), "mmap of a file");
        for (size_t nth = 0; nth < count; nth++) {
            as.file = 1, as.tag = as.backing = (uint32_t)(from + nth + 1);
            forget(first + nth, 1, as);
        }
        return;
    }
    flags |= MAP_ANONYMOUS | (one_in(3) ? MAP_NORESERVE : 0) | (one_in(6) ? MAP_POPULATE : 0);
    char *got = mmap(at(first), count * PAGE_BYTES, protections[access], flags, -1, 0);
    succeed(got == at(first), "mmap");
    forget(first, count, as);
}

static void step_unmap(void) {
    size_t first = below(PAGES), count = wanted_pages();
    if (first + count > PAGES) count = PAGES - first;
    succeed(!munmap(at(first), count * PAGE_BYTES), "munmap");
    forget(first, count, (struct page){0});
}

static void step_protect(void) {
    size_t first, count = find_run(is_mapped, wanted_pages(), 0, &first);
    if (!count) return;
    enum access access = one_in(4) ? NONE : one_in(4) ? READ : WRITE;
    succeed(!mprotect(at(first), count * PAGE_BYTES, protections[access]), "mprotect");
    for (size_t page = first; page < first + count; page++) here->pages[page].access = (uint8_t)access;
}

static void step_move(void) {
    /* Several mappings at once from Linux 6.17 on, if their size stays. */
    int several = one_in(3), keeps = !several && one_in(3), flags = MREMAP_MAYMOVE | MREMAP_FIXED | (keeps ? MREMAP_DONTUNMAP : 0);
    size_t first, count = find_run(is_movable, wanted_pages(), !several, &first);
    if (!count) return;
    size_t space = several || keeps || one_in(2) ? count : 1 + below(2 * count);
    size_t to = below(PAGES - (space > count ? space : count));
    if (space > WANTED_MAX || (to < first + count && first < to + space)) return;
    char *got = mremap(at(first), count * PAGE_BYTES, space * PAGE_BYTES, flags, at(to));
    if (got == MAP_FAILED) {
        /* Several mappings for the kernel, whatever they have in common. Before Linux 6.18 the target is gone. */
        succeed(errno == EFAULT || errno == EINVAL || errno == ENOMEM, "mremap");
        succeed(!munmap(at(to), space * PAGE_BYTES), "munmap");
        forget(to, space, (struct page){0});
        return;
    }
    succeed(got == at(to), "mremap");
    struct page *moved = here->moved;
    memcpy(moved, &here->pages[first], count * sizeof *moved);
    struct page fresh = moved[0];
    fresh.tag = fresh.stamp = fresh.freed = fresh.loose = fresh.unsure = 0;
    if (keeps) forget(first, count, fresh);
    else forget(first, count, (struct page){0});
    forget(to, space, fresh);
    memcpy(&here->pages[to], moved, (space < count ? space : count) * sizeof *moved);
}

/* Grows in place or where the kernel likes; comes back into the territory then. */
static void step_grow(void) {
    size_t first, count = find_run(is_movable, wanted_pages() / 2 + 1, 1, &first);
    if (!count) return;
    size_t space = count + 1 + below(count + 16);
    int flags = one_in(3) ? 0 : MREMAP_MAYMOVE;
    if (space > WANTED_MAX) return;
    char *got = mremap(at(first), count * PAGE_BYTES, space * PAGE_BYTES, flags);
    if (got == MAP_FAILED) return succeed(errno == EFAULT || errno == ENOMEM, "mremap that grows");
    struct page *moved = here->moved;
    memcpy(moved, &here->pages[first], count * sizeof *moved);
    struct page fresh = moved[0];
    fresh.tag = fresh.stamp = fresh.freed = fresh.loose = fresh.unsure = 0;
    size_t to = first;
    if (got != at(first)) {
        forget(first, count, (struct page){0});
        to = below(PAGES - space);
        char *back = mremap(got, space * PAGE_BYTES, space * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, at(to));
        succeed(back == at(to), "mremap back");
    } else if (first + space > PAGES) {
        succeed(!munmap(at(PAGES), (first + space - PAGES) * PAGE_BYTES), "munmap");
        space = PAGES - first;
    }
    forget(to, space, fresh);
    memcpy(&here->pages[to], moved, count * sizeof *moved);
}

static void step_shrink(void) {
    size_t first, count = find_run(is_movable, wanted_pages(), 1, &first);
    if (count < 2) return;
    size_t left = 1 + below(count - 1);
    char *got = mremap(at(first), count * PAGE_BYTES, left * PAGE_BYTES, one_in(2) ? MREMAP_MAYMOVE : 0);
    succeed(got == at(first), "mremap that shrinks");
    forget(first + left, count - left, (struct page){0});
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    if (jumping) siglongjmp(jump, number);
    wrong_step("signal %d at %p", number, info->si_addr);
}

static int faults(volatile char *address, int write) {
    volatile int got = 0;
    if (sigsetjmp(jump, 1)) got = 1;
    else {
        jumping = 1;
        if (write) *address = 1;
        else (void)*address;
    }
    jumping = 0;
    return got;
}

static void step_trespass(void) {
    size_t page;
    if (find_run(is_forbidden, 1, 0, &page) && !faults(at(page), (int)below(2))) wrong_step("page %zu may not be touched, and can be", page);
    if (find_run(is_readonly, 1, 0, &page) && !faults(at(page), 1)) wrong_step("page %zu may not be written, and can be", page);
    if (find_run(is_hole, 1, 0, &page) && !faults(at(page), (int)below(2))) wrong_step("page %zu is not mapped, and can be touched", page);
}
