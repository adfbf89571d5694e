/* incompressible: writes random data at memory speed from several threads, then verifies all of it.
 *
 * The hardest case for a cap: the pool cannot shrink anything and the program writes faster than a disk. SIGTERM ends it after
 * the pass that is under way.
 *
 *   incompressible --mib 1024 --threads 4 --passes 1
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. Prints nothing that differs between runs on stdout;
 * times go to stderr. */
#define _GNU_SOURCE
#include "basics.h"
#include "options.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct slice {
    pthread_t thread;
    uint64_t *words, count, seed;
};

static struct {
    uint64_t mib, threads, passes, seed;
} options = {.mib = 1024, .threads = 4, .passes = 1, .seed = 1};

static void fail(const char *what) {
    fprintf(stderr, "incompressible: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void *write_slice(void *argument) {
    struct slice *s = argument;
    uint64_t state = s->seed;
    for (uint64_t i = 0; i < s->count; i++) s->words[i] = next_random(&state);
    return NULL;
}

static void *verify_slice(void *argument) {
    struct slice *s = argument;
    uint64_t state = s->seed;
    for (uint64_t i = 0; i < s->count; i++) {
        uint64_t want = next_random(&state);
        if (s->words[i] == want) continue;
        printf("WRONG WORD at %p (word %" PRIu64 " of its thread): expected %016" PRIx64 ", found %016" PRIx64 "\n",
               (void *)&s->words[i], i, want, s->words[i]);
        fflush(stdout);
        _exit(1);
    }
    return NULL;
}

static double run(struct slice *slices, void *(*job)(void *)) {
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < options.threads; i++)
        if ((errno = pthread_create(&slices[i].thread, NULL, job, &slices[i]))) fail("pthread_create");
    for (uint64_t i = 0; i < options.threads; i++) pthread_join(slices[i].thread, NULL);
    return (double)(now_ns() - start) / 1e9;
}

static const char *const synopsis =
    "usage: incompressible [--mib N] [--threads T] [--passes P] [--seed X]\n"
    "Writes random data at memory speed and verifies it.";

static void parse(int argc, char **argv) {
    const struct program_option table[] = {
        NUMBER("--mib", &options.mib),
        NUMBER("--threads", &options.threads),
        NUMBER("--passes", &options.passes),
        NUMBER("--seed", &options.seed),
        {0},
    };
    read_options(synopsis, table, argc, argv);
    if (!options.mib || !options.threads) usage(synopsis, 2);
}

static volatile sig_atomic_t is_enough;

static void enough(int signal) {
    (void)signal;
    is_enough = 1;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    signal(SIGTERM, enough);
    uint64_t bytes = options.mib << 20, each = bytes / 8 / options.threads;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    struct slice *slices = calloc(options.threads, sizeof *slices);
    if (!slices) fail("calloc");
    uint64_t pass = 0;
    for (; pass < options.passes && !is_enough; pass++) {
        for (uint64_t i = 0; i < options.threads; i++) {
            slices[i].words = memory + i * each, slices[i].count = each;
            slices[i].seed = (options.seed + pass * options.threads + i) * 0x9e3779b97f4a7c15u | 1;
        }
        double write_seconds = run(slices, write_slice), verify_seconds = run(slices, verify_slice);
        fprintf(stderr, "incompressible: pass %" PRIu64 ": wrote in %.2f s, verified in %.2f s\n", pass, write_seconds,
                verify_seconds);
    }
    printf("incompressible: %" PRIu64 " MiB, %" PRIu64 " threads, %" PRIu64 " passes, 0 errors\n", options.mib,
           options.threads, pass);
    return 0;
}
