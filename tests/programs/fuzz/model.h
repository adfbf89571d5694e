/* What every page must hold, and what the calling thread does: kept in static memory, which Pagetide does not manage. */
#pragma once
#include "../direct.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

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
