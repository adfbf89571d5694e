/* pagetide.h: what a program can ask of the run that it belongs to.
 *
 * Everything here is found at run time in the library that `pagetide run` preloads: there is nothing to link, and the same
 * program runs without Pagetide. There, and in processes that could not join their run, every call fails with ENOSYS, and
 * nothing else happens. Functions return 0, or -1 with errno.
 *
 *     cc `pkg-config --cflags --libs pagetide` program.c        (-ldl, before glibc 2.34)
 */
#ifndef pagetide_h_included
#define pagetide_h_included

#ifndef _GNU_SOURCE
#error "pagetide.h needs _GNU_SOURCE, defined before the first header: RTLD_DEFAULT, MADV_PAGEOUT"
#endif

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Figures of the run, and of this process. Sizes are in bytes. */
struct pagetide_stats {
    uint64_t cap;            /* what all processes of the run may have in memory */
    uint64_t memory;         /* what they have, as last counted */
    uint64_t resident;       /* of that, managed memory in the programs */
    uint64_t pool;           /* of that, the compressed pool */
    uint64_t swapped;        /* pages that are out of the programs, before compression */
    uint64_t disk;           /* what the swap file holds */
    uint64_t processes;      /* that live */
    uint64_t own_resident;   /* of this process: managed memory in it */
    uint64_t own_faults;     /* of this process: faults for pages that were out (pgmajfault) */
    uint64_t own_stalled_ns; /* of this process: the time that its threads have waited for pages, summed over threads */
};

static inline void *pagetide_symbol_(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found)
        errno = ENOSYS;
    return found;
}

/* Fills *stats. */
static inline int pagetide_stats(struct pagetide_stats *stats) {
    int (*fill)(void *, size_t);
    *(void **)&fill = pagetide_symbol_("pagetide_fill_stats");
    return fill ? fill(stats, sizeof *stats) : -1;
}

/* The cap of the run, in bytes. It may change while the run goes on. */
static inline int pagetide_limit(uint64_t *bytes) {
    struct pagetide_stats stats;
    if (pagetide_stats(&stats))
        return -1;
    *bytes = stats.cap;
    return 0;
}

/* Whether this process belongs to a run. */
static inline int pagetide_is_here_(void) {
    uint64_t bytes;
    return pagetide_limit(&bytes) == 0;
}

/* The whole pages in a range; an empty one if there is none. */
static inline void pagetide_whole_pages_(const void **start, size_t *length) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)*start;
    const uintptr_t first = (begin + page - 1) / page * page, last = (begin + *length) / page * page;
    *start = (const void *)first;
    *length = last > first ? last - first : 0;
}

static inline int pagetide_advise_(const void *start, size_t length, int advice) {
    if (!pagetide_is_here_())
        return -1;
    pagetide_whole_pages_(&start, &length);
    return length ? madvise((void *)start, length, advice) : 0;
}

/* Sends the whole pages of a range out: they will not be needed for a while. */
static inline int pagetide_cold(const void *start, size_t length) {
    return pagetide_advise_(start, length, MADV_PAGEOUT);
}

/* Brings the whole pages of a range in, as far as there is room: they will be needed soon. */
static inline int pagetide_prefetch(const void *start, size_t length) {
    return pagetide_advise_(start, length, MADV_WILLNEED);
}

/* Brings a range in and keeps it there, until pagetide_unpin. ENOMEM if the cap has no room for that. */
static inline int pagetide_pin(const void *start, size_t length) {
    return pagetide_is_here_() ? mlock(start, length) : -1;
}

/* Lets a range leave again. Pins do not nest. */
static inline int pagetide_unpin(const void *start, size_t length) {
    return pagetide_is_here_() ? munlock(start, length) : -1;
}

#ifdef __cplusplus
}
#endif
#endif
