/* lending: children that write a little of what their parent had, in all ways in which memory is written or given up.
 *
 * The parent maps --mib MiB, each page with a pattern of its own, and forks --children children, one after the other, while it
 * goes on itself. Each makes --steps steps drawn at random: it writes to pages itself, by system calls and by threads that
 * end, drops some, moves mappings, closes them for a while, and verifies. Now and then one forks a child that does
 * the same. At last all pages are verified. With --orphans a process between the two forks the children, and ends at once.
 *
 *   lending --mib 60 --children 4 --steps 3000 --seed 1 [--orphans]
 *
 * With --read PASSES the children do nothing but verify all pages, so often.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { BLOCK_PAGES = 300 };

static uint64_t mib = 60, seed = 1, child_count = 4, steps = 3000, passes;
static int orphans;
static uint64_t block_count, page_count;
static char **blocks;      /* where each is */
static uint32_t *versions; /* of each page, as this process wrote it last; 0: zeroes */
static int ends[2];        /* held by all: the reader hears when the last has ended; a byte says what went wrong */

static uint64_t word_of(uint64_t page, uint32_t version, int word) {
    if (!version) return 0;
    uint64_t stamp = mix(seed * 0x9e3779b97f4a7c15u + page * 65536 + version);
    if (page % 4 == 3) return mix(stamp + (uint64_t)word);
    return word % 8 ? 0x6761702065687420u : mix(stamp + (uint64_t)word);
}

static uint64_t *at(uint64_t page) {
    return (uint64_t *)(void *)(blocks[page / BLOCK_PAGES] + page % BLOCK_PAGES * PAGE_BYTES);
}

static void compose(uint64_t page, uint32_t version, uint64_t *to) {
    for (int word = 0; word < PAGE_WORDS; word++) to[word] = word_of(page, version, word);
}

static void verify(uint64_t page, const char *who) {
    for (int word = 0; word < PAGE_WORDS; word++) {
        uint64_t want = word_of(page, versions[page], word), found = at(page)[word];
        if (found == want) continue;
        printf("%s (pid %d): page %" PRIu64 " at %p, version %u, word %d: expected %016" PRIx64 ", found %016" PRIx64 "\n",
               who, (int)getpid(), page, (void *)at(page), versions[page], word, want, found);
        fflush(stdout);
        (void)!write(ends[1], "w", 1);
        _exit(1);
    }
}

static void verify_all(const char *who) {
    for (uint64_t page = 0; page < page_count; page++) verify(page, who);
}

/* What a thread that ends has to write. */
struct errand {
    uint64_t first, count;
};

static void *run_errand(void *told) {
    struct errand *errand = told;
    for (uint64_t page = errand->first; page < errand->first + errand->count; page++)
        compose(page, versions[page], at(page));
    return NULL;
}

static void write_by_call(uint64_t page) {
    static _Alignas(8) uint64_t bytes[PAGE_WORDS];
    int pipe_ends[2];
    if (pipe(pipe_ends)) fail("pipe");
    compose(page, versions[page], bytes);
    if (write(pipe_ends[1], bytes, PAGE_BYTES) != PAGE_BYTES) fail("write");
    for (size_t got = 0; got < PAGE_BYTES;) {
        ssize_t more = read(pipe_ends[0], (char *)at(page) + got, PAGE_BYTES - got);
        if (more <= 0) fail("read");
        got += (size_t)more;
    }
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

static void make_step(uint64_t draw, uint32_t version) {
    uint64_t page = (draw >> 8) % page_count, block = page / BLOCK_PAGES;
    uint64_t left = BLOCK_PAGES - page % BLOCK_PAGES, run = 1 + (draw >> 40) % 20;
    if (run > left) run = left;
    switch (draw % 32) {
    case 0: { /* two threads: one ends while the other writes */
        struct errand errands[2] = {{page, run / 2}, {page + run / 2, run - run / 2}};
        pthread_t threads[2];
        for (uint64_t nth = 0; nth < run; nth++) versions[page + nth] = version;
        for (int nth = 0; nth < 2; nth++)
            if (pthread_create(&threads[nth], NULL, run_errand, &errands[nth])) fail("pthread_create");
        for (int nth = 0; nth < 2; nth++) pthread_join(threads[nth], NULL);
        break;
    }
    case 1:
        if (madvise(at(page), run * PAGE_BYTES, MADV_DONTNEED)) fail("madvise");
        for (uint64_t nth = 0; nth < run; nth++) versions[page + nth] = 0;
        break;
    case 2: { /* to another place */
        char *to = mmap(NULL, BLOCK_PAGES * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (to == MAP_FAILED) fail("mmap");
        to = mremap(blocks[block], BLOCK_PAGES * PAGE_BYTES, BLOCK_PAGES * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        if (to == MAP_FAILED) fail("mremap");
        blocks[block] = to;
        break;
    }
    case 3:
        if (mprotect(at(page), run * PAGE_BYTES, PROT_READ)) fail("mprotect");
        verify(page, "while it is read-only");
        if (mprotect(at(page), run * PAGE_BYTES, PROT_READ | PROT_WRITE)) fail("mprotect");
        break;
    case 4:
    case 5:
        versions[page] = version;
        write_by_call(page);
        break;
    case 6:
        if (mlock(at(page), PAGE_BYTES) == 0) munlock(at(page), PAGE_BYTES);
        break;
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
        for (uint64_t nth = 0; nth < run; nth++) {
            versions[page + nth] = version;
            compose(page + nth, version, at(page + nth));
        }
        break;
    default:
        verify(page, "amid its steps");
    }
}

static void live(uint64_t number, int depth);

static pid_t start(uint64_t number, int depth) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child) return child;
    live(number, depth);
    _exit(0);
}

static void wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    printf("lending: a child ended with status %x\n", status);
    fflush(stdout);
    (void)!write(ends[1], "s", 1);
    _exit(1);
}

static void live(uint64_t number, int depth) {
    for (uint64_t nth = 0; nth < passes; nth++) verify_all("a reader");
    if (passes) return;
    for (uint64_t nth = 0; nth < steps; nth++) {
        make_step(mix(seed + (number << 32) + nth), (uint32_t)(number * 65536 + nth % 65536 + 1));
        if (depth && nth == steps / 2) {
            pid_t child = start(number + 1000, depth - 1);
            verify_all("beside its own child");
            wait_for(child);
        }
    }
    verify_all("at its end");
}

static void have_children(void) {
    pid_t children[64];
    for (uint64_t nth = 0; nth < child_count; nth++) {
        children[nth] = start(nth + 1, nth == 1);
        if (!passes)
            for (uint64_t more = 0; more < steps / 10; more++) make_step(mix(seed * 7 + nth * steps + more), (uint32_t)(more + 2));
    }
    if (orphans) _exit(0);
    for (uint64_t nth = 0; nth < child_count; nth++) wait_for(children[nth]);
}

int main(int argc, char **argv) {
    const struct program_option table[] = {NUMBER("--mib", &mib),     NUMBER("--children", &child_count),
                                           NUMBER("--steps", &steps), NUMBER("--read", &passes),
                                           NUMBER("--seed", &seed),   SWITCH("--orphans", &orphans),
                                           {0}};
    read_options("usage: lending [--mib N] [--children N] [--steps N] [--read PASSES] [--seed X] [--orphans]", table, argc, argv);
    if (child_count > 64 || pipe(ends)) fail("pipe");
    block_count = mib * (1024 * 1024 / PAGE_BYTES) / BLOCK_PAGES;
    page_count = block_count * BLOCK_PAGES;
    blocks = malloc(block_count * sizeof *blocks);
    versions = calloc(page_count, sizeof *versions);
    if (!blocks || !versions) fail("malloc");
    for (uint64_t nth = 0; nth < block_count; nth++) {
        blocks[nth] = mmap(NULL, BLOCK_PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (blocks[nth] == MAP_FAILED) fail("mmap");
    }
    for (uint64_t page = 0; page < page_count; page++) compose(page, versions[page] = 1, at(page));
    for (int wave = 0; wave < 2; wave++) {
        if (orphans) {
            pid_t between = fork();
            if (between < 0) fail("fork");
            if (!between) have_children();
            wait_for(between);
        } else {
            have_children();
        }
        verify_all("the parent");
    }
    close(ends[1]);
    char wrong;
    if (read(ends[0], &wrong, 1) != 0) return 1; /* when the last orphan has ended */
    verify_all("the parent, at the end");
    printf("lending: %" PRIu64 " MiB, %" PRIu64 " children, 0 errors\n", mib, child_count);
    return 0;
}
