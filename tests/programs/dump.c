/* dump: fills memory with pages that say which they are, sends them away, and ends as it is told.
 *
 *   dump --mib 100 --by abort|fault|trap|kill
 *
 * Each page holds the line "DUMP page N of COUNT" and zeroes.
 *
 * Exit status: none, if all goes well: it is killed. 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"

int main(int count, char **options) {
    size_t pages = 100 * 256;
    const char *by = "abort";
    const struct program_option table[] = {MIB("--mib", &pages), TEXT("--by", &by), {0}};
    read_options("usage: dump [--mib N] [--by abort|fault|trap|kill]", table, count, options);
    char *at = map(NULL, pages, PROT_READ | PROT_WRITE, 0);
    for (size_t page = 0; page < pages; page++) snprintf(at + page * PAGE_BYTES, PAGE_BYTES, "DUMP page %zu of %zu\n", page, pages);
    send_away(at, pages);
    if (!strcmp(by, "abort")) abort();
    if (!strcmp(by, "fault")) *(volatile char *)map(NULL, 1, PROT_NONE, 0) = 1;
    if (!strcmp(by, "trap")) __asm__ volatile("int3");
    if (!strcmp(by, "kill")) kill(getpid(), SIGXCPU);
    errno = EINVAL, fail(by);
}
