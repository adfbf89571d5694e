/* large_calls: reads into, and writes from, parts of a large buffer that is mostly out.
 *
 * usage: large_calls MIB CALL-KIB COUNT
 *
 * Reads that do less than they are asked to leave the rest of the buffer as it was.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"

enum { SOURCE_CALLS = 16, FIRST_TAG = 1, SOURCE_TAG = 2 };

/* What lies in each part of the buffer: the part of the source, or SOURCE_CALLS for what was there at first. */
static unsigned char *holds;

static char path[] = "large_calls.XXXXXX";

static void check_part(const char *buffer, size_t part, size_t pages) {
    int of_source = holds[part] < SOURCE_CALLS;
    check(buffer + part * pages * PAGE_BYTES, (of_source ? holds[part] : part) * pages, pages, of_source ? SOURCE_TAG : FIRST_TAG);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    size_t pages = strtoul(argv[2], NULL, 10) / 4, parts = strtoul(argv[1], NULL, 10) * 256 / pages;
    size_t count = strtoul(argv[3], NULL, 10), bytes = pages * PAGE_BYTES;
    char *buffer = map(NULL, parts * pages, PROT_READ | PROT_WRITE, 0), *small = malloc(bytes);
    if (!small || !(holds = malloc(parts))) fail("malloc");
    memset(holds, SOURCE_CALLS, parts);
    fill(buffer, 0, parts * pages, FIRST_TAG);

    begin("a source");
    int source = mkstemp(path);
    if (source < 0 || unlink(path)) fail(path);
    for (size_t part = 0; part < SOURCE_CALLS; part++) {
        fill(small, part * pages, pages, SOURCE_TAG);
        if (write(source, small, bytes) != (ssize_t)bytes) fail("write");
    }

    begin("reads");
    uint64_t random = 1;
    for (size_t call = 0; call < count; call++) {
        random = mix(random + call);
        size_t part = random % parts, from = random / parts % SOURCE_CALLS;
        if (pread(source, buffer + part * bytes, bytes, (off_t)(from * bytes)) != (ssize_t)bytes) fail("pread");
        holds[part] = (unsigned char)from;
    }
    printf("read %zu times\n", count);
    fflush(stdout);

    begin("short reads");
    /* The last page of the source is all that such a read finds. */
    size_t last = SOURCE_CALLS * pages - 1;
    for (size_t call = 0; call < 64; call++) {
        size_t part = call * 7 % parts, other = (part + parts / 2) % parts, from = call % SOURCE_CALLS;
        char *at = buffer + part * bytes;
        /* After a call that did all, the next on its descriptor is believed. */
        if (pread(source, buffer + other * bytes, bytes, (off_t)(from * bytes)) != (ssize_t)bytes) fail("pread");
        holds[other] = (unsigned char)from;
        if (pread(source, at, bytes, (off_t)(last * PAGE_BYTES)) != PAGE_BYTES) fail("a short read");
        check(at, last, 1, SOURCE_TAG);
        int of_source = holds[part] < SOURCE_CALLS;
        size_t page = (of_source ? holds[part] : part) * pages;
        check(at + PAGE_BYTES, page + 1, pages - 1, of_source ? SOURCE_TAG : FIRST_TAG);
        fill(at, page, 1, of_source ? SOURCE_TAG : FIRST_TAG);
    }

    begin("writes");
    for (size_t part = 0; part < parts; part += 5) {
        int copy = memfd_create("copy", 0);
        if (copy < 0 || pwrite(copy, small, bytes, 0) != (ssize_t)bytes) fail("a copy");
        if (pwrite(copy, buffer + part * bytes, bytes, 0) != (ssize_t)bytes) fail("pwrite");
        if (pread(copy, small, bytes, 0) != (ssize_t)bytes) fail("pread");
        int of_source = holds[part] < SOURCE_CALLS;
        check(small, (of_source ? holds[part] : part) * pages, pages, of_source ? SOURCE_TAG : FIRST_TAG);
        close(copy);
    }

    begin("contents");
    for (size_t part = 0; part < parts; part++) check_part(buffer, part, pages);
    return 0;
}
