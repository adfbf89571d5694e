/* What the programs that test memory have in common: patterns, pressure, and what the kernel says of a page. */
#pragma once
#include "basics.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether calls go by number, past the C library's functions of their names. */
static int raw;
#define mmap(...) (raw ? (void *)syscall(SYS_mmap, __VA_ARGS__) : mmap(__VA_ARGS__))
#define munmap(...) (raw ? (int)syscall(SYS_munmap, __VA_ARGS__) : munmap(__VA_ARGS__))
#define mremap(...) (raw ? (void *)syscall(SYS_mremap, __VA_ARGS__) : mremap(__VA_ARGS__))
#define mprotect(...) (raw ? (int)syscall(SYS_mprotect, __VA_ARGS__) : mprotect(__VA_ARGS__))
#define madvise(...) (raw ? (int)syscall(SYS_madvise, __VA_ARGS__) : madvise(__VA_ARGS__))
#define process_madvise(...) (raw ? (ssize_t)syscall(SYS_process_madvise, __VA_ARGS__) : process_madvise(__VA_ARGS__))
#define mlock(...) (raw ? (int)syscall(SYS_mlock, __VA_ARGS__) : mlock(__VA_ARGS__))
#define munlock(...) (raw ? (int)syscall(SYS_munlock, __VA_ARGS__) : munlock(__VA_ARGS__))
#define fork() (raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork())

enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8 };

static const char *step = "setup";
static size_t press_pages = 36 * 256;
static char *press_buffer;
static uint64_t press_round;

static inline void fail(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", step, what, strerror(errno));
    exit(2);
}

static inline void begin(const char *name) {
    step = name;
    fprintf(stderr, "%s\n", name);
}

static inline void wrong(const char *what, const void *at, uint64_t want, uint64_t found) {
    printf("%s: %s at %p: expected %016" PRIx64 ", found %016" PRIx64 "\n", step, what, at, want, found);
    fflush(stdout);
    _exit(1);
}

static inline void demand(int holds, const char *what) {
    if (holds) return;
    printf("%s: not so: %s\n", step, what);
    fflush(stdout);
    _exit(1);
}

static inline uint64_t word_at(uint64_t tag, size_t page, int word) {
    uint64_t stamp = mix(tag * 1000003 + page);
    if (page % 8 == 5) return mix(stamp + (uint64_t)word);
    return word % 8 ? stamp & 0xff : mix(stamp + (uint64_t)word);
}

/* Page `from + i` of what was filled under `tag` lies at at + i * PAGE_BYTES. */
static inline void fill(char *at, size_t from, size_t count, uint64_t tag) {
    for (size_t page = 0; page < count; page++)
        for (int word = 0; word < PAGE_WORDS; word++)
            ((uint64_t *)(void *)(at + page * PAGE_BYTES))[word] = word_at(tag, from + page, word);
}

static inline void check(const char *at, size_t from, size_t count, uint64_t tag) {
    for (size_t page = 0; page < count; page++)
        for (int word = 0; word < PAGE_WORDS; word++) {
            const uint64_t *found = (const uint64_t *)(const void *)(at + page * PAGE_BYTES) + word;
            if (*found != word_at(tag, from + page, word)) wrong("contents", found, word_at(tag, from + page, word), *found);
        }
}

static inline void check_zero(const char *at, size_t count) {
    for (size_t word = 0; word < count * PAGE_WORDS; word++) {
        const uint64_t *found = (const uint64_t *)(const void *)at + word;
        if (*found) wrong("not zero", found, 0, *found);
    }
}

static inline char *map(void *at, size_t pages, int protection, int flags) {
    char *mapped = mmap(at, pages * PAGE_BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (mapped == MAP_FAILED) fail("mmap");
    return mapped;
}

/* Maps memory by the instruction itself: nobody manages it. */
static inline char *map_unmanaged(size_t pages) {
    register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS, fd __asm__("r8") = -1, offset __asm__("r9") = 0;
    intptr_t at;
    __asm__ volatile("syscall"
                     : "=a"(at)
                     : "a"(SYS_mmap), "D"(0L), "S"(pages * PAGE_BYTES), "d"(PROT_READ | PROT_WRITE), "r"(flags), "r"(fd), "r"(offset)
                     : "rcx", "r11", "memory");
    if (at < 0) errno = (int)-at, fail("mmap by the instruction");
    return (char *)at;
}

static inline void unmap(char *at, size_t pages) {
    if (munmap(at, pages * PAGE_BYTES)) fail("munmap");
}

/* Everything else leaves memory, or would if it could. */
static inline void press(void) {
    if (!press_buffer) press_buffer = map(NULL, press_pages, PROT_READ | PROT_WRITE, 0);
    press_round++;
    for (size_t page = 0; page < press_pages; page++) {
        uint64_t *words = (uint64_t *)(void *)(press_buffer + page * PAGE_BYTES);
        if (press_round > 1 && words[1] != mix(page + press_round - 1)) wrong("the other buffer", words, mix(page + press_round - 1), words[1]);
        words[1] = mix(page + press_round);
        words[300] = mix(words[1]);
    }
}

/* Pages of a range that the page tables do not hold just now. */
static inline size_t absent(const void *at, size_t pages) {
    /* Opened each time: a descriptor goes on showing the process that opened it, also in its children. */
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0) fail("/proc/self/pagemap");
    size_t found = 0;
    for (size_t page = 0; page < pages; page++) {
        uint64_t entry;
        off_t offset = (off_t)((uintptr_t)at / PAGE_BYTES + page) * 8;
        if (pread(pagemap, &entry, 8, offset) != 8) fail("reading /proc/self/pagemap");
        found += !(entry >> 63);
    }
    close(pagemap);
    return found;
}

/* Presses until at least half of a range has left memory. A program that runs without a cap says so by --native. */
static int native;
static inline void send_away(const void *at, size_t pages) {
    for (int round = 0; round < 20; round++) {
        press();
        if (native || absent(at, pages) * 2 >= pages) return;
    }
    errno = 0;
    fail("the pages do not leave memory: is there a cap?");
}
