/* stages: holds pages that do not compress, and does what it is told, one line after the other:
 *
 *   grow N    fill N MiB more
 *   check     read all of it
 *   change    read all of it, and fill it with other bytes
 *
 * It answers `done` to each, and ends when nothing more is said. Exit status: 0 all well, 1 wrong contents, 2 usage or
 * resources. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / 8, ROOM_MIB = 4096 };

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static uint64_t seed(uint64_t page, uint64_t round) {
    return (page + 1) * 0x9e3779b97f4a7c15u ^ (round + 1) * 0xc2b2ae3d27d4eb4fu;
}

static void fill(uint64_t *words, uint64_t page, uint64_t round) {
    uint64_t state = seed(page, round);
    for (int i = 0; i < WORDS; i++) words[i] = next(&state);
}

static void check(const uint64_t *words, uint64_t page, uint64_t round) {
    uint64_t state = seed(page, round);
    for (int i = 0; i < WORDS; i++) {
        uint64_t want = next(&state);
        if (words[i] == want) continue;
        printf("page %lu, word %d: expected %016lx, found %016lx\n", page, i, want, words[i]);
        fflush(stdout);
        _Exit(1);
    }
}

int main(void) {
    uint64_t *words = mmap(NULL, (size_t)ROOM_MIB << 20, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (words == MAP_FAILED) return perror("mmap"), 2;
    uint64_t pages = 0, round = 0, mib;
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "grow %lu", &mib) == 1) {
            for (uint64_t end = pages + mib * 256; pages < end; pages++) fill(words + pages * WORDS, pages, round);
        } else if (!strcmp(line, "check\n")) {
            for (uint64_t page = 0; page < pages; page++) check(words + page * WORDS, page, round);
        } else if (!strcmp(line, "change\n")) {
            for (uint64_t page = 0; page < pages; page++) {
                check(words + page * WORDS, page, round);
                fill(words + page * WORDS, page, round + 1);
            }
            round++;
        } else {
            return fprintf(stderr, "stages: what is %s", line), 2;
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
