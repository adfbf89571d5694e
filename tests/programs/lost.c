/* lost: what a program finds when its swap fails: each page as it was, or SIGBUS for that page alone. Never other bytes.
 *
 *   lost [--mib MIB] [--rounds N]      prints how many pages were lost, and how many there are
 *
 * Exit status: 0 all well (pages may be lost), 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <setjmp.h>

static sigjmp_buf jump;
static char is_lost[1 << 20]; /* not managed: never lost itself */
static void *volatile address;
static void on_bus(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    address = info->si_addr;
    siglongjmp(jump, 1);
}

int main(int count, char **options) {
    static size_t pages = 96 * 256; /* not in registers, which a jump would lose */
    static uint64_t rounds = 2;
    const struct program_option table[] = {MIB("--mib", &pages), NUMBER("--rounds", &rounds), {0}};
    read_options("usage: lost [--mib MIB] [--rounds N]", table, count, options);
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    size_t lost = 0;
    char *at = map(NULL, pages, PROT_READ | PROT_WRITE, 0);
    if (pages > sizeof is_lost) fprintf(stderr, "lost: at most %zu MiB\n", sizeof is_lost / 256), exit(2);
    begin("filling");
    fill(at, 0, pages, 1);
    for (size_t round = 0; round < rounds; round++) {
        begin("checking");
        for (size_t nth = 0; nth < pages; nth++) {
            size_t volatile page = nth * 1031 % pages;
            char *here = at + page * PAGE_BYTES;
            if (!sigsetjmp(jump, 1)) {
                check(here, page, 1, 1);
                demand(!is_lost[page], "what is lost stays lost");
            } else {
                if ((char *)address < here || (char *)address >= here + PAGE_BYTES) wrong("SIGBUS names another page", here, (uintptr_t)here, (uintptr_t)address);
                lost += !is_lost[page];
                is_lost[page] = 1;
            }
        }
    }
    begin("mapping anew what was lost");
    for (size_t page = 0; page < pages; page++)
        if (is_lost[page]) {
            map(at + page * PAGE_BYTES, 1, PROT_READ | PROT_WRITE, MAP_FIXED);
            check_zero(at + page * PAGE_BYTES, 1);
            fill(at + page * PAGE_BYTES, page, 1, 1);
        }
    /* Not by printf, nor through exit handlers: the allocator's own pages may be lost too. */
    char text[64];
    int length = snprintf(text, sizeof text, "%zu of %zu pages lost\n", lost, pages);
    if (write(STDOUT_FILENO, text, (size_t)length) != length) fail("write");
    _exit(0);
}
