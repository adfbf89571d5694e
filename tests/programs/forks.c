/* forks: every process of a family sees its own memory, and nobody else's changes.
 *
 * The parent holds --mib of malloc'ed pages, each with a pattern of its own. It forks three children in turn and four
 * at once; each verifies every page, writes a third of them, verifies all again, and one forks a grandchild that does
 * the same. The parent verifies after each wave that its own pages are what they were, then changes some.
 *
 *   forks --mib 60 --seed 1
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <sys/wait.h>

enum { BLOCK_PAGES = 256, IN_TURN = 3, AT_ONCE = 4 };

static uint64_t mib = 60, seed = 1, page_count;
static uint64_t **pages;
static uint32_t *versions; /* of each page, as this process wrote it last */

/* Every eighth word differs from page to page and version to version; one page in eight does not compress at all. */
static uint64_t word_of(uint64_t page, uint32_t version, int word) {
    uint64_t stamp = mix(seed * 0x9e3779b97f4a7c15u + page * 65536 + version);
    if (page % 8 == 3) return mix(stamp + (uint64_t)word);
    return word % 8 ? 0x6761702065687420u : mix(stamp + (uint64_t)word);
}

static void write_page(uint64_t page, uint32_t version) {
    versions[page] = version;
    for (int word = 0; word < PAGE_WORDS; word++) pages[page][word] = word_of(page, version, word);
}

static void verify(const char *who) {
    for (uint64_t page = 0; page < page_count; page++)
        for (int word = 0; word < PAGE_WORDS; word++) {
            uint64_t want = word_of(page, versions[page], word), found = pages[page][word];
            if (found == want) continue;
            printf("%s (pid %d): page %" PRIu64 " at %p, version %u, word %d: expected %016" PRIx64 ", found %016" PRIx64
                   "\n", who, (int)getpid(), page, (void *)pages[page], versions[page], word, want, found);
            fflush(stdout);
            _exit(1);
        }
}

static void change(uint32_t version, uint64_t remainder) {
    for (uint64_t page = remainder % 3; page < page_count; page += 3) write_page(page, version);
}

static pid_t start(uint32_t version, int depth);

static void wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    printf("forks: a child ended with status %x\n", status);
    fflush(stdout);
    _exit(1);
}

static void live(uint32_t version, int depth) {
    verify("child, as it began");
    change(version, version);
    verify("child, after it wrote");
    if (depth) {
        wait_for(start(version + 1000, depth - 1));
        verify("child, after its own child");
    }
    _exit(0);
}

static pid_t start(uint32_t version, int depth) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) live(version, depth);
    return child;
}

int main(int argc, char **argv) {
    const struct program_option table[] = {NUMBER("--mib", &mib), NUMBER("--seed", &seed), {0}};
    read_options("usage: forks [--mib N] [--seed X]", table, argc, argv);
    page_count = mib * (1024 * 1024 / PAGE_BYTES);
    pages = malloc(page_count * sizeof *pages);
    versions = calloc(page_count, sizeof *versions);
    if (!pages || !versions) fail("malloc");
    for (uint64_t page = 0; page < page_count; page += BLOCK_PAGES) {
        char *block = malloc(BLOCK_PAGES * PAGE_BYTES);
        if (!block) fail("malloc");
        for (uint64_t i = 0; i < BLOCK_PAGES && page + i < page_count; i++)
            pages[page + i] = (uint64_t *)(void *)(block + i * PAGE_BYTES);
    }
    for (uint64_t page = 0; page < page_count; page++) write_page(page, 1);
    verify("parent, before any fork");
    for (uint32_t nth = 0; nth < IN_TURN; nth++) {
        wait_for(start(10 + nth, nth == 1));
        verify("parent, after a child");
        change(2 + nth, nth);
    }
    pid_t children[AT_ONCE];
    for (uint32_t nth = 0; nth < AT_ONCE; nth++) children[nth] = start(20 + nth, 0);
    change(9, 1); /* while they run */
    verify("parent, beside its children");
    for (int nth = 0; nth < AT_ONCE; nth++) wait_for(children[nth]);
    verify("parent, at the end");
    printf("forks: %" PRIu64 " MiB, %d processes, 0 errors\n", mib, 1 + IN_TURN + 1 + AT_ONCE);
    return 0;
}
