/* fits_malloc: an allocator under load that fits in memory (in the manner of larson and mstress).
 *
 * Threads exchange blocks through shared slots: a block is mostly freed by another thread than the one that allocated
 * it. Sizes are log-uniform from 8 bytes to 32 KiB (mean 3.9 KiB); the number of slots bounds the live set. Each
 * block carries its size and a stamp at both ends, which are checked when it is freed.
 *
 *   fits_malloc --threads 8 --live-mib 200 --ops 1000000
 *
 * Exit status: 0 all well, 1 a block was damaged, 2 usage or resources. */
#define _GNU_SOURCE
#include "basics.h"
#include "options.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE_MIN_LOG2 = 3, SIZE_MAX_LOG2 = 15, SIZE_MEAN = 3938, NEAR_SLOTS = 64 };
#define STAMP 0x7069u

static struct {
    uint64_t threads, live_mib, ops, seed;
} options = {.threads = 8, .live_mib = 200, .ops = 1000000, .seed = 1};

static _Atomic(char *) *slots;
static uint64_t slot_count;

static void fail(const char *what) {
    fprintf(stderr, "fits_malloc: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* Blocks of 8 bytes have room for the size and the first stamp only: 4 bytes size, 2 bytes stamp, 2 bytes end stamp. */
static char *make_block(uint64_t *state) {
    uint64_t dice = next_random(state);
    uint32_t floor = 1u << (SIZE_MIN_LOG2 + dice % (SIZE_MAX_LOG2 - SIZE_MIN_LOG2));
    uint32_t size = floor + (uint32_t)((dice >> 32) % floor);
    char *block = malloc(size);
    if (!block) fail("malloc");
    uint16_t stamp = STAMP;
    if (size > 64) memset(block + 8, (int)(dice >> 8), size < 256 ? size - 10 : 246);
    memcpy(block, &size, 4);
    memcpy(block + 4, &stamp, 2);
    memcpy(block + size - 2, &stamp, 2);
    return block;
}

static void destroy_block(char *block) {
    if (!block) return;
    uint32_t size;
    uint16_t first, last;
    memcpy(&size, block, 4);
    memcpy(&first, block + 4, 2);
    if (first == STAMP && size >= 8 && size <= 1u << SIZE_MAX_LOG2) {
        memcpy(&last, block + size - 2, 2);
        if (last == STAMP) {
            free(block);
            return;
        }
    }
    printf("DAMAGED BLOCK at %p: size %" PRIu32 ", stamp %x\n", (void *)block, size, first);
    fflush(stdout);
    _exit(1);
}

/* Three of four exchanges are near the thread's own place (warm), one is anywhere (freed across threads). */
static void *work(void *argument) {
    uint64_t index = (uintptr_t)argument, state = (options.seed + index) * 0x9e3779b97f4a7c15u | 1;
    uint64_t home = slot_count / options.threads * index;
    for (uint64_t op = 0; op < options.ops; op++) {
        uint64_t dice = next_random(&state);
        uint64_t slot = dice % 4 ? home + (op / NEAR_SLOTS * 16 + (dice >> 8) % NEAR_SLOTS) : dice >> 8;
        destroy_block(atomic_exchange(&slots[slot % slot_count], make_block(&state)));
    }
    return NULL;
}

static const char *const synopsis =
    "usage: fits_malloc [--threads T] [--live-mib N] [--ops N_PER_THREAD] [--seed X]\n"
    "malloc and free from many threads, freed across threads; prints operations a second.";

static void parse(int argc, char **argv) {
    const struct program_option table[] = {
        NUMBER("--threads", &options.threads),
        NUMBER("--live-mib", &options.live_mib),
        NUMBER("--ops", &options.ops),
        NUMBER("--seed", &options.seed),
        {0},
    };
    read_options(synopsis, table, argc, argv);
    if (!options.threads || !options.live_mib) usage(synopsis, 2);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    slot_count = (options.live_mib << 20) / SIZE_MEAN;
    slots = calloc(slot_count, sizeof *slots);
    pthread_t *threads = calloc(options.threads, sizeof *threads);
    if (!slots || !threads) fail("calloc");
    uint64_t state = options.seed * 0x9e3779b97f4a7c15u | 1;
    for (uint64_t i = 0; i < slot_count; i++) atomic_store(&slots[i], make_block(&state));
    uint64_t start = now_ns();
    for (uintptr_t i = 0; i < options.threads; i++)
        if ((errno = pthread_create(&threads[i], NULL, work, (void *)i))) fail("pthread_create");
    for (uint64_t i = 0; i < options.threads; i++) pthread_join(threads[i], NULL);
    double seconds = (double)(now_ns() - start) / 1e9;
    for (uint64_t i = 0; i < slot_count; i++) destroy_block(atomic_load(&slots[i]));
    fprintf(stderr, "fits_malloc: %.0f operations a second\n", (double)(options.ops * options.threads) / seconds);
    printf("fits_malloc: %" PRIu64 " threads, %" PRIu64 " operations, 0 errors\n", options.threads,
           options.ops * options.threads);
    return 0;
}
