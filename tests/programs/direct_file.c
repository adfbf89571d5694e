/* direct_file: reads a file, every word of which is its own number, while everything else is pressed out.
 *
 * direct_file FILE [--early] [--raw]. The file is opened once pages leave; with --early before there is an engine.
 * Exit status: 0 all well, 1 wrong contents, 2 resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <pthread.h>

enum { MIB = 1 << 20, BUFFERS = 24, ROUNDS = 4 };

static volatile int done;

static void *press_on(void *none) {
    while (!done) press();
    return none;
}

static int open_file(const char *name) {
    int file = raw ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY) : open(name, O_RDONLY);
    if (file < 0) fail(name);
    return file;
}

int main(int count, char **arguments) {
    int early = 0;
    const struct program_option table[] = {SWITCH("--early", &early), SWITCH("--raw", &raw), {0}};
    if (count < 2) usage("usage: direct_file FILE [--early] [--raw]", 2);
    read_options("usage: direct_file FILE [--early] [--raw]", table, count - 1, arguments + 1);
    int file = early ? open_file(arguments[1]) : -1;
    press_pages = 80 * 256;
    char *buffers = map(NULL, BUFFERS * 256, PROT_READ | PROT_WRITE, 0);
    fill(buffers, 0, BUFFERS * 256, 1);
    press();
    if (!early) file = open_file(arguments[1]);
    pthread_t presser;
    if (pthread_create(&presser, NULL, press_on, NULL)) fail("a thread");
    for (int round = 0; round < ROUNDS; round++)
        for (size_t nth = 0; nth < BUFFERS; nth++) {
            uint64_t *words = (uint64_t *)(void *)(buffers + nth * MIB);
            if (pread(file, words, MIB, (off_t)(nth * MIB)) != MIB) fail("pread");
            for (size_t word = 0; word < MIB / 8; word++) {
                uint64_t want = nth * MIB / 8 + word;
                if (words[word] != want) wrong("what was read", words + word, want, words[word]);
            }
            fill((char *)words, nth * 256, 256, (uint64_t)round);
        }
    done = 1;
    if (pthread_join(presser, NULL)) fail("a thread");
    puts("all read");
    return 0;
}
