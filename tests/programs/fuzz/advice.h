/* Steps that advise and lock. */
#pragma once
#include "contents.h"
#include "ranges.h"
#include <sys/uio.h>

/* By either call, as far as the kernel takes that advice about oneself by both (from Linux 6.13). */
static int advise(char *at, size_t bytes, int advice) {
    int self = one_in(3) ? (int)syscall(SYS_pidfd_open, getpid(), 0) : -1;
    if (self < 0) return madvise(at, bytes, advice);
    struct iovec halves[2] = {{at, bytes / 2 / PAGE_BYTES * PAGE_BYTES}, {at + bytes / 2 / PAGE_BYTES * PAGE_BYTES, 0}};
    halves[1].iov_len = bytes - halves[0].iov_len;
    ssize_t advised = process_madvise(self, halves, 2, advice, 0);
    int error = errno;
    close(self);
    if (advised < 0 && error == EINVAL) return madvise(at, bytes, advice);
    errno = error;
    return advised == (ssize_t)bytes ? 0 : -1;
}

static void step_drop(void) {
    size_t first, count = find_run(is_droppable, wanted_pages(), 0, &first);
    if (!count) return;
    succeed(!advise(at(first), count * PAGE_BYTES, MADV_DONTNEED), "MADV_DONTNEED");
    for (size_t page = first; page < first + count; page++) {
        struct page *p = &here->pages[page];
        p->tag = p->backing, p->stamp = 0, p->loose = 0, p->unsure = 0;
    }
}

static void step_free(void) {
    size_t first, count = find_run(is_freeable, wanted_pages(), 0, &first);
    if (!count) return;
    succeed(!advise(at(first), count * PAGE_BYTES, MADV_FREE), "MADV_FREE");
    for (size_t page = first; page < first + count; page++) here->pages[page].loose = 1, here->pages[page].freed = 0;
}

static void step_advise(void) {
    static const struct {
        int advice;
        const char *name;
    } harmless[] = {
        {MADV_WILLNEED, "MADV_WILLNEED"}, {MADV_COLD, "MADV_COLD"},         {MADV_PAGEOUT, "MADV_PAGEOUT"},
        {MADV_PAGEOUT, "MADV_PAGEOUT"},   {MADV_HUGEPAGE, "MADV_HUGEPAGE"}, {MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"},
        {MADV_NORMAL, "MADV_NORMAL"},     {MADV_RANDOM, "MADV_RANDOM"},     {MADV_SEQUENTIAL, "MADV_SEQUENTIAL"},
    };
    size_t which = below(sizeof harmless / sizeof *harmless);
    int advice = harmless[which].advice;
    size_t first, count = find_run(advice == MADV_COLD || advice == MADV_PAGEOUT ? is_droppable : is_mapped, wanted_pages(), 0, &first);
    if (!count) return;
    int done = advise(at(first), count * PAGE_BYTES, advice);
    /* Huge pages are an option of the kernel. */
    succeed(!done || ((advice == MADV_HUGEPAGE || advice == MADV_NOHUGEPAGE) && errno == EINVAL), harmless[which].name);
    if (advice != MADV_WILLNEED && advice != MADV_COLD && advice != MADV_PAGEOUT)
        for (size_t page = first; page < first + count; page++) here->pages[page].advice = (uint8_t)(1 + advice);
}

static void step_remove(void) {
    size_t first, count = find_run(is_movable, wanted_pages(), 0, &first);
    if (!count) return;
    demand(madvise(at(first), count * PAGE_BYTES, MADV_REMOVE) == -1 && errno == EINVAL, "MADV_REMOVE of private memory is refused");
}

static void step_populate(void) {
    int write = one_in(2);
    size_t first, count = find_run(write ? is_writable : is_readable, wanted_pages(), 0, &first);
    if (!count) return;
    int done = madvise(at(first), count * PAGE_BYTES, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    succeed(!done || errno == EINVAL, "MADV_POPULATE");
}

static void step_at_fork(void) {
    size_t first, count = find_run(is_anonymous, wanted_pages(), 0, &first);
    if (!count) return;
    static const int advice[][2] = {{MADV_DOFORK, MADV_KEEPONFORK}, {MADV_DONTFORK, 0}, {MADV_WIPEONFORK, MADV_DOFORK}};
    enum at_fork wanted = (enum at_fork)below(3);
    /* Two flags in the kernel: of each step only one is left. */
    succeed(!madvise(at(first), count * PAGE_BYTES, wanted == OMIT ? MADV_KEEPONFORK : MADV_DOFORK), "advice on forks");
    succeed(!madvise(at(first), count * PAGE_BYTES, advice[wanted][0]), "advice on forks");
    if (wanted == INHERIT) succeed(!madvise(at(first), count * PAGE_BYTES, advice[wanted][1]), "advice on forks");
    for (size_t page = first; page < first + count; page++) here->pages[page].at_fork = (uint8_t)wanted;
}

static void step_lock(void) {
    size_t first, count = find_run(is_readable, 1 + below(64), 0, &first);
    if (!count || here->locked + count > LOCKED_MAX) return;
    if (mlock(at(first), count * PAGE_BYTES)) {
        succeed(errno == ENOMEM || errno == EPERM || errno == EAGAIN, "mlock");
        munlock(at(first), count * PAGE_BYTES);
        for (size_t page = first; page < first + count; page++)
            if (here->pages[page].locked) here->pages[page].locked = 0, here->locked--;
        return;
    }
    for (size_t page = first; page < first + count; page++)
        if (!here->pages[page].locked) here->pages[page].locked = 1, here->locked++;
}

static void step_unlock(void) {
    size_t first, count = find_run(is_locked, PAGES, 0, &first);
    if (!count) return;
    succeed(!munlock(at(first), count * PAGE_BYTES), "munlock");
    for (size_t page = first; page < first + count; page++) here->pages[page].locked = 0, here->locked--;
}
