/* fuzz: whatever a program does with its memory, in whatever order, the memory holds what a model says.
 *
 * Each thread has a territory, in which it maps, unmaps, protects, moves, advises, locks, writes and reads at random,
 * and objects from malloc. It forks; the child checks what it inherited and goes on with a few steps of its own. What
 * every page must hold is kept in static memory, which Pagetide does not manage. A step says itself which pages it
 * takes, from the seed and its number alone, so that any selection of steps is a program: a failure can be made small
 * by leaving steps out (tests/fuzz.py does).
 *
 *   fuzz --seed N [--steps N] [--threads N] [--keep LIST] [--print] [--native] [--raw]
 *        [--no-fork] [--no-direct] [--dir DIR]
 *
 * --keep LIST   only these steps: numbers and ranges with commas, as --print writes them
 * --print       writes each step to standard error before it is taken
 * --native      for a run without Pagetide: nothing is expected to leave memory
 * --raw         calls by number, past the C library's functions
 * --no-fork, --no-direct   leave out forks, and O_DIRECT (where a way that is masked cannot live with them)
 *
 * Exit status: 0 all well, 1 wrong contents or a wrong answer, 2 usage or resources. */
#define _GNU_SOURCE
#include "direct.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum {
    THREADS_MAX = 8,
    PAGES = 6144,      /* of a territory */
    WANTED_MAX = 1536, /* pages that one step takes at most */
    OBJECTS = 24,
    LOCKED_MAX = 128,
    FILE_PAGES = 512,
    FILE_MAX = 512, /* pages of the file that a thread maps at most: they are not managed */
    SHARED_PAGES = 1024,
    CHILD_STEPS = 24,
    CHILD_DEPTH = 3,
    CHILDREN = 2, /* that live at the same time, and have so much each that cannot leave memory */
    STEPS_MAX = 1 << 20,
};
enum access { NONE, READ, WRITE };
enum at_fork { INHERIT, OMIT, WIPE };

struct page {
    uint32_t tag;     /* which bytes; 0 are zeroes */
    uint32_t stamp;   /* what word STAMP holds, if not 0 */
    uint32_t freed;   /* the stamp that a page has if MADV_FREE takes effect */
    uint32_t backing; /* what it holds once dropped: of a file, or 0 */
    uint8_t mapped, access, loose, locked, at_fork, file, advice;
    uint8_t unsure; /* what it holds is not known */
};

struct object {
    char *at;
    size_t size;
    uint32_t tag;
};

struct territory {
    char *base;
    struct page pages[PAGES], moved[WANTED_MAX];
    struct object objects[OBJECTS];
    uint32_t tags, stamps;
    size_t locked, file;
    char *alternate;
    uint64_t shared[SHARED_PAGES];
};

enum { STAMP = 7, ALTERNATE_BYTES = 128 << 10 };
static struct territory territories[THREADS_MAX];
static unsigned char kept[STEPS_MAX / 8];
static uint64_t seed = 1;
static size_t steps = 600, threads = 3;
static int keeping, printing, without_fork, without_direct, depth;
static const char *directory = "/var/tmp";
static int backing_file, scratch_file, direct_file = -1;
static char *shared_area;
static int *children; /* in memory that all processes share */
static pthread_rwlock_t world = PTHREAD_RWLOCK_INITIALIZER;

/* What the calling thread does. */
static __thread struct territory *here;
static __thread size_t step_number;
static __thread const char *step_name;
static __thread uint64_t dice;
static __thread sigjmp_buf jump;
static __thread volatile int jumping;

/* ---- what is told ------------------------------------------------------------------------------------------- */

static void wrong_step(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[600];
    int length = snprintf(text, sizeof text, "fuzz --seed %" PRIu64 ": step %zu (%s), process of depth %d: ", seed, step_number, step_name, depth);
    length += vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    text[length++] = '\n';
    (void)!write(STDOUT_FILENO, text, (size_t)length);
    _exit(1);
}

/* ---- dice --------------------------------------------------------------------------------------------------- */

static uint64_t roll(void) {
    dice += 0x9e3779b97f4a7c15u;
    return mix(dice);
}
static size_t below(size_t limit) { return roll() % limit; }
/* One in `count`. */
static int one_in(size_t count) { return below(count) == 0; }
/* Small numbers more often than large ones. */
static size_t wanted_pages(void) {
    size_t most = (size_t)1 << below(11);
    size_t pages = 1 + below(most);
    return pages < WANTED_MAX ? pages : WANTED_MAX;
}

/* ---- contents ----------------------------------------------------------------------------------------------- */

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

/* ---- ranges ------------------------------------------------------------------------------------------------- */

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

/* ---- steps -------------------------------------------------------------------------------------------------- */

static void step_write(void) {
    size_t first, count = find_run(is_writable, wanted_pages(), 0, &first);
    for (size_t page = first; page < first + count; page++) write_page(page);
}

static void step_stamp(void) {
    size_t first, count = find_run(is_writable, wanted_pages(), 0, &first);
    for (size_t page = first; page < first + count; page += 1 + below(4)) stamp_page(page);
}

static void step_check(void) {
    size_t first, count = find_run(is_readable, wanted_pages(), 0, &first);
    for (size_t page = first; page < first + count; page++) check_page(here, page);
}

static void step_scatter(void) {
    for (size_t round = 0; round < 64; round++) {
        size_t page = below(PAGES);
        if (is_readable(&here->pages[page])) check_page(here, page);
        if (is_writable(&here->pages[page]) && one_in(3)) stamp_page(page);
    }
}

static void step_sweep(void) {
    int back = one_in(2);
    for (size_t nth = 0; nth < PAGES; nth++) {
        size_t page = back ? PAGES - 1 - nth : nth;
        if (is_readable(&here->pages[page])) check_page(here, page);
    }
}

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

/* Through the kernel from one range to another. */
static void carry(ssize_t (*put)(char *, size_t), ssize_t (*get)(char *, size_t), size_t most) {
    size_t from, to, count = find_run(is_certain, wanted_pages() < most ? wanted_pages() % most + 1 : most, 0, &from);
    if (!count) return;
    size_t room = find_run(is_writable, count, 0, &to);
    if (room < count) count = room;
    if (!count || (from < to + count && to < from + count)) return;
    ssize_t bytes = (ssize_t)(count * PAGE_BYTES);
    succeed(put(at(from), (size_t)bytes) == bytes, "handing pages to the kernel");
    succeed(get(at(to), (size_t)bytes) == bytes, "taking pages from the kernel");
    for (size_t nth = 0; nth < count; nth++) {
        struct page *p = &here->pages[to + nth], *q = &here->pages[from + nth];
        p->tag = q->tag, p->stamp = q->stamp, p->loose = p->unsure = 0;
        check_page(here, to + nth);
    }
}

static __thread int ends[2];
static __thread off_t offset;
static ssize_t put_pipe(char *from, size_t bytes) { return write(ends[1], from, bytes); }
static ssize_t put_splice(char *from, size_t bytes) {
    struct iovec vector = {from, bytes};
    return vmsplice(ends[1], &vector, 1, 0);
}
static ssize_t get_pipe(char *to, size_t bytes) {
    size_t got = 0;
    for (ssize_t more; got < bytes && (more = read(ends[0], to + got, bytes - got)) > 0;) got += (size_t)more;
    return (ssize_t)got;
}
static ssize_t put_file(char *from, size_t bytes) { return pwrite(scratch_file, from, bytes, offset); }
static ssize_t get_file(char *to, size_t bytes) { return pread(scratch_file, to, bytes, offset); }
/* By the thread itself, by kernel AIO, by io_uring, or by io_uring with a buffer that is pinned meanwhile. */
static ssize_t move_direct(char *at, size_t bytes, int writes) {
    struct ring ring;
    size_t way = below(4);
    if (way == 1) return by_aio(direct_file, at, bytes, offset, writes);
    if (way < 2 || !open_ring(&ring)) return writes ? pwrite(direct_file, at, bytes, offset) : pread(direct_file, at, bytes, offset);
    struct iovec whole = {at, bytes};
    /* Locked memory may be limited: then without. */
    int fixed = way == 3 && !syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &whole, 1);
    ssize_t moved = by_ring(&ring, direct_file, at, bytes, offset, writes, fixed ? 0 : -1);
    close_ring(&ring);
    return moved;
}
static ssize_t put_direct(char *from, size_t bytes) { return move_direct(from, bytes, 1); }
static ssize_t get_direct(char *to, size_t bytes) { return move_direct(to, bytes, 0); }
static __thread char *read_from;
static ssize_t put_nothing(char *from, size_t bytes) {
    read_from = from;
    return (ssize_t)bytes;
}
static ssize_t get_process(char *to, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {read_from, bytes};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
}

static void step_pipe(void) {
    if (pipe(ends)) fail("pipe");
    carry(one_in(2) ? put_pipe : put_splice, get_pipe, 12);
    close(ends[0]), close(ends[1]);
}
static void step_file(void) {
    offset = ((off_t)(here - territories) + THREADS_MAX * (getpid() % 4096)) * WANTED_MAX * PAGE_BYTES;
    int direct = !without_direct && direct_file >= 0 && one_in(2);
    carry(direct && one_in(2) ? put_direct : put_file, direct ? get_direct : get_file, WANTED_MAX);
    fallocate(scratch_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, WANTED_MAX * PAGE_BYTES);
}
static void step_process(void) { carry(put_nothing, get_process, WANTED_MAX); }

static void step_random(void) {
    size_t first, count = find_run(is_writable, 16, 0, &first);
    if (!count) return;
    /* It may stop at a page for a signal, which a ring that was closed is to the kernel too. */
    for (size_t got = 0; got < count * PAGE_BYTES;) {
        ssize_t more = getrandom(at(first) + got, count * PAGE_BYTES - got, 0);
        succeed(more > 0 || errno == EINTR, "getrandom");
        got += more > 0 ? (size_t)more : 0;
    }
    for (size_t page = first; page < first + count; page++) write_page(page);
}

static void step_kernel_refuses(void) {
    size_t page;
    if (pipe(ends)) fail("pipe");
    if (find_run(is_forbidden, 1, 0, &page)) demand(write(ends[1], at(page), PAGE_BYTES) == -1 && errno == EFAULT, "write from forbidden memory: EFAULT");
    if (find_run(is_hole, 1, 0, &page)) demand(write(ends[1], at(page), PAGE_BYTES) == -1 && errno == EFAULT, "write from no memory: EFAULT");
    if (write(ends[1], "x", 1) != 1) fail("write");
    if (find_run(is_readonly, 1, 0, &page)) demand(read(ends[0], at(page), 1) == -1 && errno == EFAULT, "read into read-only memory: EFAULT");
    close(ends[0]), close(ends[1]);
}

static void step_mincore(void) {
    static __thread unsigned char answers[WANTED_MAX];
    size_t first, count = find_run(is_mapped, wanted_pages(), 0, &first);
    if (count) succeed(!mincore(at(first), count * PAGE_BYTES, answers), "mincore");
    if (count) succeed(!msync(at(first), count * PAGE_BYTES, one_in(2) ? MS_ASYNC : MS_SYNC), "msync");
}

/* ---- objects ------------------------------------------------------------------------------------------------ */

static uint64_t object_word(const struct object *object, size_t word) { return base_word(object->tag, word % 4093); }

static void fill_object(struct object *object, size_t from_byte) {
    for (size_t word = from_byte / 8; word < object->size / 8; word++) ((uint64_t *)(void *)object->at)[word] = object_word(object, word);
}

static void check_object(const struct object *object, size_t bytes) {
    for (size_t word = 0; word < bytes / 8; word++) {
        uint64_t found = ((volatile uint64_t *)(void *)object->at)[word];
        if (found != object_word(object, word))
            wrong_step("object of %zu bytes at %p, word %zu: expected %" PRIx64 ", found %" PRIx64, object->size, (void *)object->at, word, object_word(object, word), found);
    }
}

static void step_object(void) {
    struct object *object = &here->objects[below(OBJECTS)];
    size_t size = (16 + below((size_t)32 << below(17))) & ~(size_t)7;
    if (object->at) check_object(object, object->size);
    if (object->at && one_in(3)) {
        free(object->at);
        *object = (struct object){0};
        return;
    }
    if (object->at) {
        size_t before = object->size;
        char *new = realloc(object->at, size);
        if (!new) wrong_step("realloc of %zu bytes: %s", size, strerror(errno));
        object->at = new, object->size = size;
        check_object(object, before < size ? before : size);
        fill_object(object, before < size ? before : size);
        return;
    }
    int zeroed = one_in(3);
    size_t alignment = (size_t)16 << below(9);
    void *new = NULL;
    if (zeroed) new = calloc(1, size);
    else if (one_in(2)) new = malloc(size), alignment = 16;
    else if (posix_memalign(&new, alignment, size)) new = NULL;
    if (!new) wrong_step("an object of %zu bytes: %s", size, strerror(errno));
    if (!zeroed && (uintptr_t)new % alignment) wrong_step("an object of alignment %zu at %p", alignment, new);
    *object = (struct object){new, size, ++here->tags | (uint32_t)(here - territories) << 28};
    if (zeroed) {
        uint32_t tag = object->tag;
        object->tag = 0;
        check_object(object, size);
        object->tag = tag;
    }
    fill_object(object, 0);
}

/* ---- what all threads share ---------------------------------------------------------------------------------- */

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

/* ---- threads, signals, programs ------------------------------------------------------------------------------- */

static __thread volatile int handled;
static void on_signal(int number) {
    (void)number;
    int error = errno;
    /* On the alternate stack, which may be out of memory, as may be what is looked at. */
    char local[8 * PAGE_BYTES];
    for (size_t byte = 0; byte < sizeof local; byte += 512) ((volatile char *)local)[byte] = (char)byte;
    size_t page;
    if (find_run(is_readable, 1, 0, &page)) check_page(here, page);
    handled = 1;
    errno = error;
}

static void step_signal(void) {
    handled = 0;
    pthread_kill(pthread_self(), SIGUSR1);
    while (!handled) sched_yield();
}

struct errand {
    struct territory *where;
    size_t first, count;
};
static void *run_errand(void *argument) {
    struct errand *errand = argument;
    char local[10 * PAGE_BYTES];
    for (size_t byte = 0; byte < sizeof local; byte++) ((volatile char *)local)[byte] = (char)(byte * 7);
    step_name = "thread";
    here = errand->where;
    for (size_t page = errand->first; page < errand->first + errand->count; page++) check_page(here, page);
    for (size_t byte = 0; byte < sizeof local; byte++)
        if (((volatile char *)local)[byte] != (char)(byte * 7)) wrong_step("a thread's stack, byte %zu", byte);
    return NULL;
}

static void step_thread(void) {
    struct errand errand = {.where = here};
    errand.count = find_run(is_certain, wanted_pages(), 0, &errand.first);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    size_t bytes = 256 << 10;
    char *stack = one_in(2) ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
    if (stack == MAP_FAILED) fail("mmap");
    if (stack) pthread_attr_setstack(&attributes, stack, bytes);
    if (pthread_create(&thread, &attributes, run_errand, &errand)) fail("pthread_create");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    if (stack) munmap(stack, bytes);
}

static void await(pid_t child, int killed) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) _exit(1); /* it has said why */
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    if (!WIFEXITED(status) || WEXITSTATUS(status)) wrong_step("child %d ended with status %#x", child, status);
}

static void step_program(void) {
    extern char **environ;
    pid_t child;
    char *arguments[] = {"true", NULL};
    if (one_in(2)) {
        if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ)) fail("posix_spawn");
    } else {
        child = vfork();
        if (child < 0) fail("vfork");
        if (!child) {
            execve("/bin/true", arguments, environ);
            _exit(3);
        }
    }
    await(child, 0);
}

/* ---- forks -------------------------------------------------------------------------------------------------- */

static void take_steps(size_t first, size_t count);

/* What a child finds of the pages of `t`. */
static void inherit(struct territory *t) {
    for (size_t page = 0; page < PAGES; page++) {
        struct page *p = &t->pages[page];
        p->locked = 0;
        if (!p->mapped || p->at_fork == INHERIT) continue;
        if (p->at_fork == OMIT) *p = (struct page){0}; /* never of the file: that has no such advice here */
        else p->tag = p->stamp = p->loose = p->unsure = 0;
    }
    t->locked = 0;
}

static void check_all(struct territory *t) {
    for (size_t page = 0; page < PAGES; page++)
        if (is_readable(&t->pages[page])) check_page(t, page);
    for (size_t nth = 0; nth < OBJECTS; nth++)
        if (t->objects[nth].at) check_object(&t->objects[nth], t->objects[nth].size);
}

static void child_lives(int all, int bare) {
    depth++;
    for (size_t thread = 0; thread < threads; thread++) {
        struct territory *t = &territories[thread];
        if (!all && t != here) continue;
        inherit(t);
        if (t == here ? !one_in(4) : 1) check_all(t);
    }
    /* Its own steps are its parent's next ones, with other dice. */
    size_t first = step_number;
    if (bare) step_write(), step_stamp(), step_scatter();
    else take_steps(first + 1, CHILD_STEPS);
    step_name = "end of a child";
    check_all(here);
}

static void step_fork(void) {
    if (without_fork || depth >= CHILD_DEPTH) return;
    if (__atomic_add_fetch(children, 1, __ATOMIC_SEQ_CST) > CHILDREN) {
        __atomic_sub_fetch(children, 1, __ATOMIC_SEQ_CST);
        return;
    }
    uint64_t how = roll();
    /* A child that the C library does not know of must not use what other threads may have locked. */
    int all = depth == 0 && how % 4 == 0, killed = how % 16 == 5, bare = how % 8 == 3;
    if (all) {
        /* Nobody is in the middle of a step: the child knows what everybody's pages hold. */
        pthread_rwlock_unlock(&world);
        pthread_rwlock_wrlock(&world);
    }
    pid_t child = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child < 0) fail("fork");
    if (!child) {
        child_lives(all, bare);
        if (how % 16 == 7) execl("/bin/true", "true", NULL);
        _exit(0);
    }
    if (all) {
        pthread_rwlock_unlock(&world);
        pthread_rwlock_rdlock(&world);
    }
    if (killed) {
        usleep((useconds_t)(roll() % 20000));
        kill(child, SIGKILL);
    } else if (how >> 32 & 1) {
        /* Both go on at the same time. */
        for (int round = 0; round < 8; round++) step_scatter(), step_stamp();
    }
    await(child, killed);
    __atomic_sub_fetch(children, 1, __ATOMIC_SEQ_CST);
}

/* ---- the run ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    void (*take)(void);
    unsigned weight;
} kinds[] = {
    {"write", step_write, 16},     {"stamp", step_stamp, 12},     {"check", step_check, 12},     {"scatter", step_scatter, 10},
    {"sweep", step_sweep, 2},      {"map", step_map, 10},         {"unmap", step_unmap, 3},      {"protect", step_protect, 6},
    {"drop", step_drop, 4},        {"free", step_free, 3},        {"advise", step_advise, 8},    {"remove", step_remove, 1},
    {"populate", step_populate, 3}, {"at fork", step_at_fork, 3}, {"lock", step_lock, 2},        {"unlock", step_unlock, 2},
    {"move", step_move, 6},        {"grow", step_grow, 4},        {"shrink", step_shrink, 3},    {"trespass", step_trespass, 3},
    {"pipe", step_pipe, 4},        {"file", step_file, 4},        {"process", step_process, 3},  {"random", step_random, 1},
    {"refusal", step_kernel_refuses, 2}, {"mincore", step_mincore, 2}, {"object", step_object, 24}, {"shared", step_shared, 8},
    {"shared advice", step_shared_advice, 3}, {"signal", step_signal, 3}, {"thread", step_thread, 3}, {"program", step_program, 1},
    {"fork", step_fork, 2},
};

static int is_kept(size_t number) { return !keeping || kept[number / 8] >> number % 8 & 1; }

static void take_step(size_t number) {
    unsigned total = 0;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) total += kinds[kind].weight;
    dice = mix(seed * 0x100000001b3u + number * 8 + (uint64_t)depth);
    unsigned drawn = (unsigned)below(total);
    size_t kind = 0;
    while (drawn >= kinds[kind].weight) drawn -= kinds[kind++].weight;
    step_number = number, step_name = kinds[kind].name;
    if (printing) fprintf(stderr, "%zu depth %d pid %d %s\n", number, depth, getpid(), step_name);
    if (!depth) pthread_rwlock_rdlock(&world);
    kinds[kind].take();
    if (!depth) pthread_rwlock_unlock(&world);
}

static void take_steps(size_t first, size_t count) {
    size_t end = ((size_t)(here - territories) + 1) * steps;
    for (size_t number = first; number < first + count && number < end; number++)
        if (is_kept(number)) take_step(number);
}

static void *thread_lives(void *argument) {
    here = argument;
    size_t first = (size_t)(here - territories) * steps;
    step_number = first, step_name = "start";
    pthread_rwlock_rdlock(&world);
    here->base = map((char *)0x200000000000 + ((size_t)(here - territories) << 36), PAGES, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE);
    forget(0, PAGES, (struct page){.mapped = 1, .access = WRITE});
    here->alternate = map(NULL, ALTERNATE_BYTES / PAGE_BYTES, PROT_READ | PROT_WRITE, 0);
    stack_t stack = {.ss_sp = here->alternate, .ss_size = ALTERNATE_BYTES};
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
    for (size_t page = 0; page < PAGES; page += 2) write_page(page);
    pthread_rwlock_unlock(&world);
    take_steps(first, steps);
    pthread_rwlock_rdlock(&world);
    step_number = first + steps - 1, step_name = "end";
    check_all(here);
    for (size_t page = 0; page < PAGES; page++)
        if (is_forbidden(&here->pages[page])) {
            succeed(!mprotect(at(page), PAGE_BYTES, PROT_READ), "mprotect");
            check_page(here, page);
        }
    pthread_rwlock_unlock(&world);
    return NULL;
}

static void keep(const char *list) {
    keeping = 1;
    for (char *rest = (char *)list; *rest;) {
        size_t from = strtoul(rest, &rest, 10), to = *rest == '-' ? strtoul(rest + 1, &rest, 10) : from;
        for (size_t number = from; number <= to && number < STEPS_MAX; number++) kept[number / 8] |= (unsigned char)(1 << number % 8);
        if (*rest == ',') rest++;
        else if (*rest) fprintf(stderr, "fuzz: --keep: a list of numbers and ranges, not %s\n", rest), exit(2);
    }
}

static void read_options(int count, char **options) {
    for (int nth = 1; nth < count; nth++) {
        const char *name = options[nth], *value = nth + 1 < count ? options[nth + 1] : NULL;
        if (!strcmp(name, "--print")) printing = 1;
        else if (!strcmp(name, "--native")) native = 1;
        else if (!strcmp(name, "--raw")) raw = 1;
        else if (!strcmp(name, "--no-fork")) without_fork = 1;
        else if (!strcmp(name, "--no-direct")) without_direct = 1;
        else if (!value) fprintf(stderr, "fuzz: %s: unknown, or without its value\n", name), exit(2);
        else if (!strcmp(name, "--seed")) seed = strtoull(value, NULL, 10), nth++;
        else if (!strcmp(name, "--steps")) steps = strtoul(value, NULL, 10), nth++;
        else if (!strcmp(name, "--threads")) threads = strtoul(value, NULL, 10), nth++;
        else if (!strcmp(name, "--dir")) directory = value, nth++;
        else if (!strcmp(name, "--keep")) keep(value), nth++;
        else fprintf(stderr, "fuzz: unknown option %s\n", name), exit(2);
    }
    if (!threads || threads > THREADS_MAX || !steps || threads * steps > STEPS_MAX) fprintf(stderr, "fuzz: 1 to %d threads, and at most %d steps in all\n", THREADS_MAX, STEPS_MAX), exit(2);
}

int main(int count, char **options) {
    read_options(count, options);
    scratch_file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    backing_file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (scratch_file < 0 || backing_file < 0) fail(directory);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", scratch_file);
    if (!without_direct) direct_file = open(path, O_RDWR | O_CLOEXEC | O_DIRECT); /* not everywhere: -1 */
    for (uint32_t tag = 1; tag <= FILE_PAGES; tag++) {
        uint64_t page[PAGE_WORDS];
        for (size_t word = 0; word < PAGE_WORDS; word++) page[word] = base_word(tag, word);
        if (pwrite(backing_file, page, sizeof page, (off_t)(tag - 1) * PAGE_BYTES) != sizeof page) fail("write");
    }
    for (size_t thread = 0; thread < threads; thread++) territories[thread].tags = FILE_PAGES;
    children = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (children == MAP_FAILED) fail("mmap");
    shared_area = map(NULL, SHARED_PAGES, PROT_READ | PROT_WRITE, 0);
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    struct sigaction handler = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGSEGV, &fault, NULL), sigaction(SIGBUS, &fault, NULL), sigaction(SIGUSR1, &handler, NULL);
    pthread_t started[THREADS_MAX];
    for (size_t thread = 0; thread < threads; thread++)
        if (pthread_create(&started[thread], NULL, thread_lives, &territories[thread])) fail("pthread_create");
    for (size_t thread = 0; thread < threads; thread++) pthread_join(started[thread], NULL);
    return 0;
}
