/* dumped: brings pages into each state, and says where they are: for tests of what `pagetide dump --page` tells.
 *
 *   dumped PRESS_MIB
 *
 * It writes a line `NAME ADDRESS` for a page of each kind: never touched (hole), written with zeroes (zero), with text
 * that compresses (text), with random bytes (noise), and locked in memory (present); then `ready`. The middle three are out of
 * the program. For each line of input it checks them all and ends.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#include "pages.h"

enum { PAGES = 1024 };

static char *area(void) {
    return map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
}

static uint64_t text_at(size_t page, int word) {
    return word % 8 ? 0x6567617020656874u : mix(page);
}

static uint64_t noise_at(size_t page, int word) {
    return mix(page * PAGE_WORDS + (size_t)word + 1);
}

static void write_words(char *at, uint64_t (*value)(size_t, int)) {
    for (size_t page = 0; page < PAGES; page++)
        for (int word = 0; word < PAGE_WORDS; word++) ((uint64_t *)(void *)(at + page * PAGE_BYTES))[word] = value(page, word);
}

static void check_words(const char *at, uint64_t (*value)(size_t, int)) {
    for (size_t page = 0; page < PAGES; page++)
        for (int word = 0; word < PAGE_WORDS; word++) {
            const uint64_t *found = (const uint64_t *)(const void *)(at + page * PAGE_BYTES) + word;
            if (*found != value(page, word)) wrong("a page", found, value(page, word), *found);
        }
}

/* A page that is out, far from both ends: its neighbours are out too, as a rule. */
static size_t away(const char *at) {
    for (int tries = 0; tries < 20; tries++) {
        send_away(at, PAGES);
        for (size_t page = PAGES / 4; page < PAGES; page++)
            if (absent(at + page * PAGE_BYTES, 1)) return page;
    }
    fail("no page leaves");
    return 0;
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: %s PRESS_MIB\n", arguments[0]);
        return 2;
    }
    press_pages = strtoul(arguments[1], NULL, 10) * 256;
    char *hole = area(), *zero = area(), *text = area(), *noise = area(), *present = area();
    memset(zero, 0, PAGES * PAGE_BYTES);
    write_words(text, text_at);
    write_words(noise, noise_at);
    *hole = 1;
    away(zero), away(text), away(noise);
    size_t of_zero = away(zero), of_text = away(text), of_noise = away(noise);
    /* What reclaim has begun goes on for a while, and would take this page too. */
    if (mlock(present + PAGES / 2 * PAGE_BYTES, PAGE_BYTES)) {
        perror("mlock");
        return 2;
    }
    present[PAGES / 2 * PAGE_BYTES] = 1;
    printf("hole %p\nzero %p\ntext %p\nnoise %p\npresent %p\nready\n", (void *)(hole + PAGES / 2 * PAGE_BYTES),
           (void *)(zero + of_zero * PAGE_BYTES), (void *)(text + of_text * PAGE_BYTES),
           (void *)(noise + of_noise * PAGE_BYTES), (void *)(present + PAGES / 2 * PAGE_BYTES));
    fflush(stdout);
    getchar();
    check_zero(zero, PAGES);
    check_words(text, text_at);
    check_words(noise, noise_at);
    return 0;
}
