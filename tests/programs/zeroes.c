/* zeroes: memory that was written and holds zeroes, read and then written again.
 *
 *   zeroes MIB CAP_MIB
 *
 * A buffer of MIB is zeroed, more than the cap of CAP_MIB, and four times over: all of it is read; scattered pages are written
 * to as fast as can be, an eighth of the cap and then half of it, in the second round by a child, in the fourth while a file is
 * open for direct I/O, and a quarter of them is zeroed anew; each page is verified. What the kernel counts of the process must
 * stay below the cap.
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

static void check_cap(void) {
    char line[200];
    unsigned long held = 0, part;
    FILE *status = fopen("/proc/self/status", "r");
    if (!status) fail("/proc/self/status");
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %lu kB", &part) == 1 || sscanf(line, "VmPTE: %lu kB", &part) == 1) held += part;
    fclose(status);
    if (held / 4 > cap_pages) wrong("pages above the cap", buffer, cap_pages, held / 4);
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
    if (count != 3) return 2;
    pages = (size_t)atoi(words[1]) << 8, cap_pages = (size_t)atoi(words[2]) << 8;
    buffer = map(NULL, pages, PROT_READ | PROT_WRITE, 0);
    written = calloc(pages, sizeof *written);
    if (!written) fail("calloc");
    for (size_t page = 0; page < pages; page++) memset(first(page), 0, PAGE_BYTES);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        verify();
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
