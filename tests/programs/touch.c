/* touch: what does it cost to reach a page? Fills a buffer larger than the cap and reads one word of each page.
 *
 *   touch --mib 1024 --fill zero|heap:FILE|random|text --order seq|random|zipf|together --threads T --passes P [--ops N]
 *         [--writes PERCENT]
 *
 * In order: each thread reads its share of the buffer, page by page; a pass is the whole buffer. At random: each
 * thread reads --ops single pages anywhere in the buffer, all alike or some far more often (Zipf's law with exponent
 * 1.2, the ranks scattered over the buffer); a pass is threads × ops pages. Prints one line of JSON; a
 * pass's time is wall time from the start signal to the last thread's end, divided by all pages that were read.
 * The word that is read is checked each time: zero, or the page's number (mixed). Of single pages --writes percent are
 * written too, in their last word.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "basics.h"
#include "options.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8, PASSES_MAX = 64 };
enum { LATENCY_SUB_BITS = 4, LATENCY_CELLS = 64 << LATENCY_SUB_BITS };
enum fill { ZERO, HEAP, INCOMPRESSIBLE, PROSE };
enum order { SEQ, RANDOM, ZIPF, TOGETHER };
static const char *const order_names[] = {"seq", "random", "zipf", "together"};

static struct {
    uint64_t mib, threads, passes, ops, seed, writes;
    enum fill fill;
    const char *fill_name, *heap_file;
    int order, shared;
} options = {.mib = 1024, .threads = 1, .passes = 3, .ops = 100000, .seed = 1, .fill = ZERO, .fill_name = "zero"};

static char *buffer;
static uint64_t page_count;
static double page_count_root;
static pthread_barrier_t start_signal, end_signal, meeting;
static _Atomic uint64_t latencies[LATENCY_CELLS]; /* reads by their time: sixteen steps for each power of two */
static struct span { uint64_t start_ns, end_ns; } *spans; /* of each thread, in the present pass */

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* A page whose rank has a probability of about rank to the power of -1.2: the inverse of the distribution, which for
 * this exponent takes a fifth root and a fifth power. */
static double fifth_root(double of) {
    double x = 100;
    for (int n = 0; n < 60; n++) x -= (x - of / (x * x * x * x)) / 5;
    return x;
}

static uint64_t zipf(uint64_t *state) {
    double u = (double)(next(state) >> 11) * 0x1p-53, t = 1 - u * (1 - 1 / page_count_root);
    uint64_t rank = (uint64_t)(1 / (t * t * t * t * t)) - 1;
    return (rank < page_count ? rank : page_count - 1) * 2654435761u % page_count;
}

static void fail(const char *what) {
    fprintf(stderr, "touch: %s: %s\n", what, strerror(errno));
    exit(2);
}

static uint64_t first_word(uint64_t page) { return options.fill == ZERO ? 0 : mix(page + 1); }

static const char *map_heap_file(uint64_t *heap_pages) {
    int fd = open(options.heap_file, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) fail(options.heap_file);
    *heap_pages = (uint64_t)status.st_size / PAGE_BYTES;
    if (!*heap_pages) errno = ENODATA, fail(options.heap_file);
    const char *heap = mmap(NULL, *heap_pages * PAGE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    if (heap == MAP_FAILED) fail(options.heap_file);
    close(fd);
    return heap;
}

static void fill_text(char *page, uint64_t *state) {
    static const char *words[16] = {"the ", "page ", "of ", "memory ", "returns ", "and ", "\"name\": \"", "\",\n",
                                    "2024-", "order ", "0x", "customer ", "= ", "total ", "is ", "; "};
    for (size_t at = 0; at < PAGE_BYTES;) {
        char number[24];
        uint64_t dice = next(state);
        const char *word = words[dice >> 60];
        if (dice % 8 == 0) snprintf(number, sizeof number, "%u ", (unsigned)(dice >> 20) % 100000), word = number;
        size_t length = strlen(word);
        if (length > PAGE_BYTES - at) length = PAGE_BYTES - at;
        memcpy(page + at, word, length);
        at += length;
    }
}

static void fill_buffer(void) {
    uint64_t heap_pages = 0, state = mix(options.seed) | 1;
    const char *heap = options.fill == HEAP ? map_heap_file(&heap_pages) : NULL;
    for (uint64_t page = 0; page < page_count; page++) {
        char *at = buffer + page * PAGE_BYTES;
        if (options.fill == ZERO) memset(at, 0, PAGE_BYTES);
        if (options.fill == HEAP) memcpy(at, heap + page % heap_pages * PAGE_BYTES, PAGE_BYTES);
        if (options.fill == INCOMPRESSIBLE)
            for (int i = 0; i < PAGE_WORDS; i++) ((uint64_t *)at)[i] = next(&state);
        if (options.fill == PROSE) fill_text(at, &state);
        *(uint64_t *)at = first_word(page);
    }
    if (heap) munmap((void *)heap, heap_pages * PAGE_BYTES);
}

static void check_page(uint64_t page) {
    uint64_t found = *(volatile uint64_t *)(buffer + page * PAGE_BYTES);
    if (found == first_word(page)) return;
    printf("WRONG WORD: page %" PRIu64 " at %p: expected %016" PRIx64 ", found %016" PRIx64 "\n", page,
           (void *)(buffer + page * PAGE_BYTES), first_word(page), found);
    fflush(stdout);
    _exit(1);
}

static void count_latency(uint64_t ns) {
    unsigned log = ns >> LATENCY_SUB_BITS ? 63 - (unsigned)__builtin_clzll(ns) - LATENCY_SUB_BITS : 0;
    latencies[((uint64_t)log << LATENCY_SUB_BITS) + (ns >> log)]++;
}

/* The time that so many of ten thousand reads did not exceed. */
static uint64_t latency_ns(uint64_t part) {
    uint64_t all = 0, seen = 0;
    for (int i = 0; i < LATENCY_CELLS; i++) all += latencies[i];
    for (int i = 0; i < LATENCY_CELLS; i++)
        if ((seen += latencies[i]) * 10000 >= all * part) {
            unsigned log = i < 2 << LATENCY_SUB_BITS ? 0 : (unsigned)(i >> LATENCY_SUB_BITS) - 1;
            return ((uint64_t)i - ((uint64_t)log << LATENCY_SUB_BITS)) << log;
        }
    return 0;
}

static void touch_page(uint64_t page, uint64_t *state) {
    check_page(page);
    if (options.writes && next(state) % 100 < options.writes)
        ((volatile uint64_t *)(buffer + page * PAGE_BYTES))[PAGE_WORDS - 1] = *state;
}

static void read_together(uint64_t *state) {
    for (uint64_t op = 0; op < options.ops; op++) {
        uint64_t page = next(state) % page_count;
        pthread_barrier_wait(&meeting);
        uint64_t start = now_ns();
        check_page(page);
        count_latency(now_ns() - start);
    }
}

static void *work(void *argument) {
    uint64_t index = (uintptr_t)argument, own = options.order == TOGETHER ? 0 : 99 * (index + 1);
    uint64_t state = mix(options.seed + own) | 1;
    uint64_t from = page_count * index / options.threads, to = page_count * (index + 1) / options.threads;
    for (uint64_t pass = 0; pass < options.passes; pass++) {
        pthread_barrier_wait(&start_signal);
        spans[index].start_ns = now_ns();
        if (options.order == TOGETHER) read_together(&state);
        else if (options.order != SEQ)
            for (uint64_t op = 0; op < options.ops; op++) touch_page(options.order == ZIPF ? zipf(&state) : next(&state) % page_count, &state);
        else
            for (uint64_t page = from; page < to; page++) check_page(page);
        spans[index].end_ns = now_ns();
        pthread_barrier_wait(&end_signal);
    }
    return NULL;
}

/* From the first thread's start to the last thread's end: the main thread's own wake-ups do not count. */
static uint64_t pass_span_ns(void) {
    struct span all = spans[0];
    for (uint64_t i = 1; i < options.threads; i++) {
        if (spans[i].start_ns < all.start_ns) all.start_ns = spans[i].start_ns;
        if (spans[i].end_ns > all.end_ns) all.end_ns = spans[i].end_ns;
    }
    return all.end_ns - all.start_ns;
}

static uint64_t major_faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_majflt;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static const char *const synopsis =
    "usage: touch [--mib N] [--fill zero|heap:FILE|random|text] [--order seq|random|zipf|together]\n"
    "             [--threads T] [--passes P] [--ops N_PER_THREAD] [--writes PERCENT] [--seed X]\n"
    "             [--shared]\n"
    "Prints as JSON what it costs to fill a buffer and to reach its pages.";

static void parse_fill(const char *value) {
    options.fill_name = value;
    if (!strcmp(value, "zero")) options.fill = ZERO;
    else if (!strcmp(value, "random")) options.fill = INCOMPRESSIBLE;
    else if (!strcmp(value, "text")) options.fill = PROSE;
    else if (!strncmp(value, "heap:", 5)) options.fill = HEAP, options.heap_file = value + 5, options.fill_name = "heap";
    else usage(synopsis, 2);
}

static void parse(int argc, char **argv) {
    const char *fill = "zero";
    const struct program_option table[] = {
        NUMBER("--mib", &options.mib),
        NUMBER("--threads", &options.threads),
        NUMBER("--passes", &options.passes),
        NUMBER("--ops", &options.ops),
        NUMBER("--writes", &options.writes),
        NUMBER("--seed", &options.seed),
        SWITCH("--shared", &options.shared),
        TEXT("--fill", &fill),
        CHOICE("--order", &options.order, "seq", "random", "zipf", "together"), /* as in the enum above */
        {0},
    };
    read_options(synopsis, table, argc, argv);
    parse_fill(fill);
    if (!options.mib || !options.threads || options.passes > PASSES_MAX) usage(synopsis, 2);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    page_count = options.mib * (1024 * 1024 / PAGE_BYTES);
    page_count_root = fifth_root((double)page_count);
    buffer = mmap(NULL, page_count * PAGE_BYTES, PROT_READ | PROT_WRITE, (options.shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) fail("mmap");
    uint64_t fill_start = now_ns();
    fill_buffer();
    double fill_ns = (double)(now_ns() - fill_start) / (double)page_count;

    pthread_barrier_init(&start_signal, NULL, (unsigned)options.threads + 1);
    pthread_barrier_init(&meeting, NULL, (unsigned)options.threads);
    pthread_barrier_init(&end_signal, NULL, (unsigned)options.threads + 1);
    pthread_t *threads = calloc(options.threads, sizeof *threads);
    spans = calloc(options.threads, sizeof *spans);
    if (!threads || !spans) fail("calloc");
    for (uintptr_t i = 0; i < options.threads; i++)
        if ((errno = pthread_create(&threads[i], NULL, work, (void *)i))) fail("pthread_create");
    uint64_t pages_a_pass = options.order != SEQ ? options.threads * options.ops : page_count;
    uint64_t faults_before = major_faults();
    double cpu_before = cpu_seconds(), pass_ns[PASSES_MAX];
    for (uint64_t pass = 0; pass < options.passes; pass++) {
        pthread_barrier_wait(&start_signal);
        pthread_barrier_wait(&end_signal);
        pass_ns[pass] = (double)pass_span_ns() / (double)pages_a_pass;
    }
    double cpu = cpu_seconds() - cpu_before;
    uint64_t faults = major_faults() - faults_before;
    for (uint64_t i = 0; i < options.threads; i++) pthread_join(threads[i], NULL);

    printf("{\"mib\": %" PRIu64 ", \"fill\": \"%s\", \"order\": \"%s\", \"threads\": %" PRIu64
           ", \"pages_per_pass\": %" PRIu64 ", \"major_faults\": %" PRIu64
           ", \"passes_cpu_seconds\": %.3f, \"fill_ns_per_page\": %.1f, \"pass_ns_per_page\": [",
           options.mib, options.fill_name, order_names[options.order], options.threads, pages_a_pass, faults,
           cpu, fill_ns);
    for (uint64_t pass = 0; pass < options.passes; pass++) printf("%s%.1f", pass ? ", " : "", pass_ns[pass]);
    printf("]");
    if (options.order == TOGETHER)
        printf(", \"latency_ns\": {\"p50\": %" PRIu64 ", \"p99\": %" PRIu64 ", \"p99.9\": %" PRIu64 ", \"max\": %" PRIu64 "}",
               latency_ns(5000), latency_ns(9900), latency_ns(9990), latency_ns(10000));
    printf("}\n");
    return 0;
}
