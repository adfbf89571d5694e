/* A program that tells Pagetide what it knows: which memory it will not need for a while, and which soon.
 *
 *     cc -D_GNU_SOURCE -Iinclude examples/cold.c -o cold && pagetide run --memory 64M -- ./cold
 *
 * It does the same without Pagetide, and says so.
 */
#include <pagetide.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1 << 20)

static void tell(const char *when) {
    struct pagetide_stats stats;
    if (pagetide_stats(&stats)) {
        printf("%s: not under Pagetide (%s)\n", when, strerror(errno));
        return;
    }
    printf("%s: %llu of %llu MiB in memory, %llu MiB swapped, %llu faults\n", when, (unsigned long long)stats.memory / MIB,
           (unsigned long long)stats.cap / MIB, (unsigned long long)stats.swapped / MIB, (unsigned long long)stats.own_faults);
}

/* The sum of a MiB, by one byte a page. */
static unsigned long sum(const unsigned char *from) {
    unsigned long total = 0;
    for (size_t at = 0; at < MIB; at += 4096)
        total += from[at];
    return total;
}

int main(void) {
    enum { YEARS = 20 };
    unsigned char *years[YEARS];
    for (int year = 0; year < YEARS; year++) {
        years[year] = malloc(MIB);
        if (!years[year])
            return 2;
        for (size_t at = 0; at < MIB; at++)
            years[year][at] = (unsigned char)(at / 64 + at * at % 7 + (size_t)year);
        /* The year is complete: what comes next will not look at it. */
        pagetide_cold(years[year], MIB);
    }
    tell("written");
    unsigned long total = 0;
    for (int year = 0; year < YEARS; year++) {
        if (year + 1 < YEARS)
            pagetide_prefetch(years[year + 1], MIB);
        total += sum(years[year]);
    }
    tell("read");
    if (pagetide_pin(years[0], MIB) == 0) {
        printf("pinned: the first year stays in memory\n");
        pagetide_unpin(years[0], MIB);
    }
    printf("sum %lu\n", total);
    return 0;
}
