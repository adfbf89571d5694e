/* zeroes: memory that was written and holds zeroes, read and then written again.
 *
 *   zeroes MIB CAP_MIB [--no-memory]
 *
 * A buffer of MIB is zeroed, more than the cap of CAP_MIB, and four times over: all of it is read; scattered pages are written
 * to as fast as can be, an eighth of the cap and then half of it, and a quarter of them is zeroed anew; each page is verified. In
 * the second round a child writes; before the third memory that nobody manages is written, a quarter of the cap, and then what was read last; in
 * the fourth a file is open for direct I/O. What the kernel counts of the process must stay below the cap. With --no-memory
 * zeroes that were read only must take none.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <sys/wait.h>

enum { ROUNDS = 4, STEP = 7 };

static char *buffer;
static size_t pages, cap_pages;
/* What was written last to the first word of each page. */
static uint64_t *written;

static uint64_t *first(size_t page) { return (uint64_t *)(void *)(buffer + page * PAGE_BYTES); }

static void verify(void) {
    for (size_t page = 0; page < pages; page++) {
        if (*first(page) != written[page]) wrong("the first word", first(page), written[page], *first(page));
        for (int word = 1; word < PAGE_WORDS; word++)
            if (first(page)[word]) wrong("not zero", first(page) + word, 0, first(page)[word]);
    }
}

static size_t held_pages(void) {
    char line[200];
    size_t held = 0, part;
    FILE *status = fopen("/proc/self/status", "r");
    if (!status) fail("/proc/self/status");
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %zu kB", &part) == 1 || sscanf(line, "VmPTE: %zu kB", &part) == 1) held += part;
    fclose(status);
    return held / 4;
}

static void check_cap(void) {
    size_t held = held_pages();
    if (held > cap_pages) wrong("pages above the cap", buffer, cap_pages, held);
}

static void write_scattered(size_t count, uint64_t round) {
    size_t page = round * 100;
    for (size_t nth = 0; nth < count; nth++, page = (page + STEP) % pages) *first(page) = written[page] = mix(round * pages + page);
    check_cap();
    page = round * 100;
    for (size_t nth = 0; nth < count; nth++, page = (page + STEP) % pages)
        if (nth % 4 == 0) *first(page) = written[page] = 0;
}

static void live(uint64_t round) {
    write_scattered(cap_pages / 8, round);
    verify();
    write_scattered(cap_pages / 2, round + 100);
    verify();
}

int main(int count, char **words) {
    int no_memory = count == 4 && !strcmp(words[3], "--no-memory");
    if (count != 3 + no_memory) return 2;
    pages = (size_t)atoi(words[1]) << 8, cap_pages = (size_t)atoi(words[2]) << 8;
    buffer = map(NULL, pages, PROT_READ | PROT_WRITE, 0);
    written = calloc(pages, sizeof *written);
    if (!written) fail("calloc");
    for (size_t page = 0; page < pages; page++) memset(first(page), 0, PAGE_BYTES);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        verify();
        if (round == 1 && no_memory) demand(held_pages() * 2 < pages - absent(buffer, pages), "half of what is there takes no memory");
        if (round == 3) {
            char *unmanaged = map_unmanaged(cap_pages / 4);
            for (size_t page = 0; page < cap_pages / 4; page++) unmanaged[page * PAGE_BYTES] = 1;
            /* Time for samples of what is not managed. */
            usleep(200000);
            for (size_t page = pages - cap_pages * 3 / 4; page < pages; page++) *first(page) = written[page] = mix(page);
            check_cap();
        }
        int direct = round == 4 ? open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600) : -1;
        pid_t child = round == 2 ? fork() : 0;
        if (child < 0) fail("fork");
        if (child > 0) {
            int status;
            if (waitpid(child, &status, 0) != child) fail("waitpid");
            demand(!status, "the child's status");
        } else live(round);
        if (round == 2 && !child) _exit(0);
        if (direct >= 0) close(direct);
        verify();
    }
    puts("ok");
    return 0;
}
