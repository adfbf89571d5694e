/* mappings: whatever a program does to its mappings, its pages go where it sends them, and nowhere else.
 *
 * Each step changes a mapping with mremap, munmap, mmap, mprotect or madvise. Before and after each step another
 * buffer is written from end to end, so that the pages of the mapping are partly out of memory meanwhile.
 *
 *   mappings --mib 24 --press 64 [--raw]      (the mapping, and the buffer that presses; calls by number)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <setjmp.h>
#include <signal.h>

static size_t mapping_pages = 24 * 256;

static void protect(char *at, size_t pages, int protection) {
    if (mprotect(at, pages * PAGE_BYTES, protection)) fail("mprotect");
}

static sigjmp_buf jump;
static void on_segv(int signal) { (void)signal, siglongjmp(jump, 1); }

/* Whether an access gets SIGSEGV. */
static int faults(volatile char *at, int write) {
    struct sigaction new = {.sa_handler = on_segv, .sa_flags = SA_NODEFER}, old;
    volatile int faulted = 0;
    sigaction(SIGSEGV, &new, &old);
    if (sigsetjmp(jump, 1)) faulted = 1;
    else if (write) *at = 1;
    else (void)*at;
    sigaction(SIGSEGV, &old, NULL);
    return faulted;
}

/* What was filled under `was` is there, and what is written anew stays. */
static void check_and_refill(char *at, size_t pages, uint64_t was, uint64_t is) {
    check(at, 0, pages, was);
    fill(at, 0, pages, is);
    press();
    check(at, 0, pages, is);
}

static void grow_and_shrink(void) {
    size_t n = mapping_pages;
    begin("mremap grows in place or moves");
    char *at = map(NULL, n / 2, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, n / 2, 1);
    press();
    at = mremap(at, n / 2 * PAGE_BYTES, n * PAGE_BYTES, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) fail("mremap");
    check_zero(at + n / 2 * PAGE_BYTES, n - n / 2);
    fill(at + n / 2 * PAGE_BYTES, n / 2, n - n / 2, 1);
    press();
    check(at, 0, n, 1);
    begin("mremap shrinks");
    press();
    if (mremap(at, n * PAGE_BYTES, (n / 3) * PAGE_BYTES, 0) != at) fail("mremap");
    check(at, 0, n / 3, 1);
    begin("mremap grows again: the tail is zero");
    press();
    at = mremap(at, n / 3 * PAGE_BYTES, n * PAGE_BYTES, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) fail("mremap");
    press();
    check(at, 0, n / 3, 1);
    check_zero(at + n / 3 * PAGE_BYTES, n - n / 3);
    unmap(at, n);
}

static void move(void) {
    size_t n = mapping_pages;
    begin("mremap moves to a fixed address that is not aligned alike");
    char *target = map(NULL, n + 1024, PROT_NONE, MAP_NORESERVE), *to = target + 77 * PAGE_BYTES;
    char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, n, 2);
    press();
    if (mremap(at, n * PAGE_BYTES, n * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) fail("mremap");
    check(to, 0, n, 2);
    press();
    begin("a part of a mapping moves over another part's place");
    char *other = map(NULL, n, PROT_READ | PROT_WRITE, 0);
    fill(other, 0, n, 3);
    press();
    char *into = to + n / 4 * PAGE_BYTES;
    if (mremap(other + 10 * PAGE_BYTES, n / 2 * PAGE_BYTES, n / 2 * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, into) != into)
        fail("mremap");
    press();
    check(to, 0, n / 4, 2);
    check(into, 10, n / 2, 3);
    check(to + (n / 4 + n / 2) * PAGE_BYTES, n / 4 + n / 2, n - n / 4 - n / 2, 2);
    check(other, 0, 10, 3);
    check(other + (10 + n / 2) * PAGE_BYTES, 10 + n / 2, n - n / 2 - 10, 3);
    if (!faults(other + 10 * PAGE_BYTES, 0)) wrong("a page that moved away", other, 1, 0);
    unmap(other, n);
    unmap(target, n + 1024);
}

/* The kernel makes one mapping of two that fit together: when a part comes back to where it was. */
static void part_and_meet(void) {
    size_t n = mapping_pages, half = n / 2;
    begin("mremap takes a half away and back");
    char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0), *away = map(NULL, n - half, PROT_NONE, 0);
    char *back = at + half * PAGE_BYTES;
    size_t bytes = (n - half) * PAGE_BYTES;
    fill(at, 0, n, 1);
    press();
    if (mremap(back, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, away) != away) fail("mremap");
    press();
    check(away, half, n - half, 1);
    press();
    if (mremap(away, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, back) != back) fail("mremap");
    check(at, 0, n, 1);
    press();
    check(at, 0, n, 1);
    unmap(at, n);
}

/* What was taken apart and is alike again is one mapping, which moves as a whole. */
static void alike_again(void) {
    size_t n = mapping_pages, half = n / 2, bytes = n * PAGE_BYTES;
    begin("mremap moves what a small piece was unmapped of and mapped again");
    char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0), *away = map(NULL, n, PROT_NONE, 0);
    fill(at, 0, n, 1);
    press();
    unmap(at + half * PAGE_BYTES, 1);
    map(at + half * PAGE_BYTES, 1, PROT_READ | PROT_WRITE, MAP_FIXED);
    check_zero(at + half * PAGE_BYTES, 1);
    fill(at + half * PAGE_BYTES, half, 1, 1);
    press();
    if (mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, away) != away) fail("mremap");
    check_and_refill(away, n, 1, 2);
    unmap(away, n);
    begin("mremap moves shared memory of which a part was read-only");
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    away = map(NULL, n, PROT_NONE, 0);
    fill(at, 0, n, 1);
    press();
    protect(at + half * PAGE_BYTES, n / 4, PROT_READ);
    protect(at + half * PAGE_BYTES, n / 4, PROT_READ | PROT_WRITE);
    if (mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, away) != away) fail("mremap");
    check_and_refill(away, n, 1, 2);
    unmap(away, n);
}

static void holes(void) {
    size_t n = mapping_pages;
    begin("munmap of a part, and a new mapping over a part");
    char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, n, 4);
    press();
    unmap(at + n / 4 * PAGE_BYTES, n / 4);
    if (!faults(at + n / 4 * PAGE_BYTES, 0)) wrong("an unmapped page", at, 1, 0);
    check(at, 0, n / 4, 4);
    map(at + n / 2 * PAGE_BYTES, n / 4, PROT_READ | PROT_WRITE, MAP_FIXED);
    check_zero(at + n / 2 * PAGE_BYTES, n / 4);
    fill(at + n / 2 * PAGE_BYTES, 0, n / 4, 5);
    press();
    map(at + n / 4 * PAGE_BYTES, n / 4, PROT_READ | PROT_WRITE, MAP_FIXED);
    press();
    check(at, 0, n / 4, 4);
    check_zero(at + n / 4 * PAGE_BYTES, n / 4);
    check(at + n / 2 * PAGE_BYTES, 0, n / 4, 5);
    check(at + n / 4 * 3 * PAGE_BYTES, n / 4 * 3, n - n / 4 * 3, 4);
    unmap(at, n);
}

static void protections(void) {
    size_t n = mapping_pages;
    begin("mprotect to nothing, to reading, and back");
    char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, n, 6);
    press();
    protect(at, n / 2, PROT_NONE);
    protect(at + n / 2 * PAGE_BYTES, n / 4, PROT_READ);
    press();
    if (!faults(at, 0)) wrong("a page that may not be read", at, 1, 0);
    check(at + n / 2 * PAGE_BYTES, n / 2, n / 4, 6);
    if (!faults(at + n / 2 * PAGE_BYTES, 1)) wrong("a page that may not be written", at, 1, 0);
    press();
    protect(at, n, PROT_READ | PROT_WRITE);
    check_and_refill(at, n, 6, 7);
    unmap(at, n);
}

static void half_a_protection(void) {
    size_t n = mapping_pages;
    for (int readable = 0; readable < 2; readable++) {
        begin(readable ? "mprotect to reading, which fails half-way" : "mprotect to nothing, which fails half-way");
        char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
        unmap(at + n / 2 * PAGE_BYTES, n - n / 2);
        fill(at, 0, n / 2, 17);
        press();
        fill(at, 0, n / 4, 17);
        if (!mprotect(at, n * PAGE_BYTES, readable ? PROT_READ : PROT_NONE) || errno != ENOMEM) fail("mprotect over a hole");
        press();
        if (!faults(at, 1) || faults(at, 0) == readable) wrong("a page that was protected", at, 1, 0);
        protect(at, n / 2, PROT_READ | PROT_WRITE);
        check_and_refill(at, n / 2, 17, 18);
        unmap(at, n / 2);
    }
}

static void drops(void) {
    size_t n = mapping_pages;
    begin("madvise(DONTNEED) leaves zeroes");
    char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, n, 8);
    press();
    if (madvise(at + 33 * PAGE_BYTES, n / 2 * PAGE_BYTES, MADV_DONTNEED)) fail("madvise");
    check_zero(at + 33 * PAGE_BYTES, n / 2);
    fill(at + 33 * PAGE_BYTES, 0, n / 8, 9);
    press();
    check(at, 0, 33, 8);
    check(at + 33 * PAGE_BYTES, 0, n / 8, 9);
    check_zero(at + (33 + n / 8) * PAGE_BYTES, n / 2 - n / 8);
    check(at + (33 + n / 2) * PAGE_BYTES, 33 + n / 2, n - n / 2 - 33, 8);
    unmap(at, n);
}

static void locked_growth(void) {
    size_t n = mapping_pages;
    for (int may_move = 0; may_move < 2; may_move++) {
        begin(may_move ? "a locked mapping grows, and may move" : "a locked mapping grows in place");
        char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
        unmap(at + n / 2 * PAGE_BYTES, n - n / 2);
        fill(at, 0, n / 2, 12);
        press();
        /* The last 256 pages, which become a mapping of their own. */
        char *part = at + (n / 2 - 256) * PAGE_BYTES;
        if (mlock(part, 256 * PAGE_BYTES)) fail("mlock");
        char *grown = mremap(part, 256 * PAGE_BYTES, 512 * PAGE_BYTES, may_move ? MREMAP_MAYMOVE : 0);
        if (grown == MAP_FAILED) fail("mremap");
        check(grown, n / 2 - 256, 256, 12);
        check_zero(grown + 256 * PAGE_BYTES, 256);
        fill(grown + 256 * PAGE_BYTES, n / 2, 256, 12);
        press();
        if (munlock(grown, 512 * PAGE_BYTES)) fail("munlock");
        press();
        check(at, 0, n / 2 - 256, 12);
        check(grown, n / 2 - 256, 512, 12);
        unmap(at, n / 2 - 256);
        unmap(grown, 512);
    }
}

/* As a program does it that brings its own runtime. */
static void unmap_by_instruction(char *at, size_t pages) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_munmap), "D"(at), "S"(pages * PAGE_BYTES) : "rcx", "r11", "memory");
    if (result) errno = (int)-result, fail("munmap");
#else
    if (munmap(at, pages * PAGE_BYTES)) fail("munmap");
#endif
}

static void unheard(void) {
    size_t n = mapping_pages;
    begin("where a mapping went unheard the next one is empty");
    char *at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, n, 13);
    press();
    unmap_by_instruction(at, n);
    if (map(at, n, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) != at) fail("mmap");
    check_zero(at, n);
    fill(at, 0, n, 14);
    press();
    check(at, 0, n, 14);
    /* A file in memory cannot leave, nor what is written to it privately: both must fit into the cap. */
    n /= 2;
    unmap(at + n * PAGE_BYTES, n);
    begin("or a file, which stays what it is");
    int file = memfd_create("file", 0);
    char *all = file < 0 || ftruncate(file, (off_t)(n * PAGE_BYTES)) ? MAP_FAILED : mmap(NULL, n * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0L);
    if (all == MAP_FAILED) fail("a file");
    fill(all, 0, n, 15);
    unmap(all, n);
    press();
    unmap_by_instruction(at, n);
    if (mmap(at, n * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, 0L) != at) fail("mmap");
    fill(at, 0, n / 2, 16);
    press();
    check(at, 0, n / 2, 16);
    check(at + n / 2 * PAGE_BYTES, n / 2, n - n / 2, 15);
    unmap(at, n);
    begin("shared memory comes over a mapping once more");
    char *shared = mmap(NULL, n * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0L);
    if (shared == MAP_FAILED) fail("mmap");
    at = map(NULL, n, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, n, 19);
    press();
    if (mremap(shared, 0, n * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) fail("mremap");
    press();
    check(at, 0, n, 15);
    fill(at, 0, n, 20);
    press();
    check(shared, 0, n, 20);
    unmap(at, n);
    unmap(shared, n);
    close(file);
}

static void reservations(void) {
    size_t n = mapping_pages, reserved = 1u << 20; /* 4 GiB */
    begin("a reservation is committed by mprotect and by mmap, and given back");
    char *at = map(NULL, reserved, PROT_NONE, MAP_NORESERVE), *second = at + (reserved / 2 + 123) * PAGE_BYTES;
    for (int round = 0; round < 2; round++) {
        protect(at + 5 * PAGE_BYTES, n / 2, PROT_READ | PROT_WRITE);
        map(second, n / 2, PROT_READ | PROT_WRITE, MAP_FIXED);
        check_zero(at + 5 * PAGE_BYTES, n / 2);
        fill(at + 5 * PAGE_BYTES, 0, n / 2, 10);
        fill(second, 0, n / 2, 11);
        press();
        check(at + 5 * PAGE_BYTES, 0, n / 2, 10);
        check(second, 0, n / 2, 11);
        press();
        /* Given back in the two ways in which runtimes do it. */
        if (madvise(at + 5 * PAGE_BYTES, n / 2 * PAGE_BYTES, MADV_DONTNEED)) fail("madvise");
        protect(at + 5 * PAGE_BYTES, n / 2, PROT_NONE);
        map(second, n / 2, PROT_NONE, MAP_FIXED | MAP_NORESERVE);
        if (!faults(second, 0) || !faults(at + 5 * PAGE_BYTES, 1)) wrong("a page that was given back", at, 1, 0);
    }
    unmap(at, reserved);
}

int main(int argc, char **argv) {
    const struct program_option table[] = {SWITCH("--raw", &raw), MIB("--mib", &mapping_pages), MIB("--press", &press_pages), {0}};
    const char *const synopsis = "usage: mappings [--mib MIB] [--press MIB] [--raw]";
    read_options(synopsis, table, argc, argv);
    if (mapping_pages < 512 || press_pages < 512) usage(synopsis, 2);
    press_buffer = map(NULL, press_pages, PROT_READ | PROT_WRITE, 0);
    press();
    grow_and_shrink();
    move();
    part_and_meet();
    alike_again();
    holes();
    protections();
    half_a_protection();
    drops();
    reservations();
    locked_growth();
    unheard();
    printf("mappings: %zu MiB beside %zu MiB, 0 errors\n", mapping_pages / 256, press_pages / 256);
    return 0;
}
