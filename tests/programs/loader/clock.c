/* clock: a library to preload, whose clock_gettime allocates when it is first called: libfaketime's does, in dlsym. What it
 * got then must be an object like any other, however early that is. Exit status of the program: 9 if it is not. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char *kept;

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!kept) {
        kept = malloc(40);
        if (kept) strcpy(kept, "kept");
    }
    return (int)syscall(SYS_clock_gettime, clock, time);
}

__attribute__((constructor)) static void begin(void) {
    struct timespec time;
    if (!kept) clock_gettime(CLOCK_REALTIME, &time);
    size_t usable = malloc_usable_size(kept);
    kept = realloc(kept, 100000);
    if (usable < 40 || strcmp(kept, "kept")) {
        dprintf(2, "%zu of 40 bytes may be used, and realloc leaves '%.5s'\n", usable, kept);
        _exit(9);
    }
}
