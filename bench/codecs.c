/* codecs: what the C libraries of LZ4, LZO and Zstandard make of pages, and how long they take.
 *
 *   codecs FILE…        one line of JSON a file: ratio, nanoseconds a page in and out, medians of nine runs
 *
 * Built by bench/codecs.py with -llz4 -llzo2 -lzstd. A page that does not get smaller counts as it is. */
#include <lz4.h>
#include <lzo/lzo1x.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

enum { PAGE_BYTES = 4096, PAGES_MAX = 2048, RUNS = 9, ROOM = 2 * PAGE_BYTES };

static ZSTD_CCtx *encoder;
static ZSTD_DCtx *decoder;
static unsigned char lzo_work[LZO1X_1_MEM_COMPRESS];

static size_t lz4_in(const char *page, char *out, int level) {
    (void)level;
    return (size_t)LZ4_compress_default(page, out, PAGE_BYTES, ROOM);
}
static int lz4_out(const char *from, size_t length, char *page) { return LZ4_decompress_safe(from, page, (int)length, PAGE_BYTES) == PAGE_BYTES; }
static size_t lzo_in(const char *page, char *out, int level) {
    (void)level;
    lzo_uint length = ROOM;
    lzo1x_1_compress((const unsigned char *)page, PAGE_BYTES, (unsigned char *)out, &length, lzo_work);
    return length;
}
static int lzo_out(const char *from, size_t length, char *page) {
    lzo_uint out = PAGE_BYTES;
    return lzo1x_decompress_safe((const unsigned char *)from, length, (unsigned char *)page, &out, NULL) == LZO_E_OK && out == PAGE_BYTES;
}
static size_t zstd_in(const char *page, char *out, int level) { return ZSTD_compressCCtx(encoder, out, ROOM, page, PAGE_BYTES, level); }
static int zstd_out(const char *from, size_t length, char *page) { return ZSTD_decompressDCtx(decoder, page, PAGE_BYTES, from, length) == PAGE_BYTES; }

static const struct codec {
    const char *name;
    size_t (*in)(const char *, char *, int);
    int (*out)(const char *, size_t, char *);
    int level;
} codecs[] = {{"lz4", lz4_in, lz4_out, 0},        {"lzo", lzo_in, lzo_out, 0},        {"zstd:-5", zstd_in, zstd_out, -5},
              {"zstd:-1", zstd_in, zstd_out, -1}, {"zstd:1", zstd_in, zstd_out, 1}, {"zstd:3", zstd_in, zstd_out, 3}};

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fail(const char *what) {
    perror(what);
    exit(2);
}

/* The same pages as the example `cost` takes: from all over the file. */
static size_t read_pages(const char *path, char *pages) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path);
    size_t all = (size_t)ftell(file) / PAGE_BYTES, step = (all + PAGES_MAX - 1) / PAGES_MAX, count = 0;
    for (size_t at = 0; at < all; at += step)
        if (fseek(file, (long)(at * PAGE_BYTES), SEEK_SET) || fread(pages + PAGE_BYTES * count++, PAGE_BYTES, 1, file) != 1) fail(path);
    fclose(file);
    if (!count) fprintf(stderr, "%s: not a page\n", path), exit(2);
    return count;
}

static void measure(const struct codec *codec, const char *pages, size_t count, char *packed, size_t *lengths) {
    double in[RUNS], out[RUNS];
    char page[PAGE_BYTES];
    size_t bytes = 0, whole = 0;
    for (int run = 0; run < RUNS; run++) {
        double start = now_ns();
        for (size_t nth = 0; nth < count; nth++) lengths[nth] = codec->in(pages + nth * PAGE_BYTES, packed + nth * ROOM, codec->level);
        in[run] = (now_ns() - start) / (double)count;
    }
    for (size_t nth = 0; nth < count; nth++) {
        int smaller = lengths[nth] && lengths[nth] < PAGE_BYTES;
        bytes += smaller ? lengths[nth] : PAGE_BYTES;
        whole += (size_t)smaller;
    }
    for (int run = 0; run < RUNS; run++) {
        double start = now_ns();
        for (size_t nth = 0; nth < count; nth++)
            if (lengths[nth] && lengths[nth] < PAGE_BYTES && !codec->out(packed + nth * ROOM, lengths[nth], page)) fprintf(stderr, "%s: a page is lost\n", codec->name), exit(1);
        out[run] = whole ? (now_ns() - start) / (double)whole : 0;
    }
    qsort(in, RUNS, sizeof *in, ascending), qsort(out, RUNS, sizeof *out, ascending);
    printf("{\"codec\": \"%s\", \"ratio\": %.4f, \"ns_in\": %.0f, \"ns_out\": %.0f}", codec->name, (double)count * PAGE_BYTES / (double)bytes, in[RUNS / 2], out[RUNS / 2]);
}

int main(int count, char **paths) {
    char *pages = malloc((size_t)PAGES_MAX * PAGE_BYTES), *packed = malloc((size_t)PAGES_MAX * ROOM);
    size_t *lengths = malloc(PAGES_MAX * sizeof *lengths);
    encoder = ZSTD_createCCtx(), decoder = ZSTD_createDCtx();
    if (!pages || !packed || !lengths || !encoder || !decoder || lzo_init() != LZO_E_OK) fail("codecs");
    for (int at = 1; at < count; at++) {
        size_t found = read_pages(paths[at], pages);
        printf("{\"pages\": \"%s\", \"count\": %zu, \"codecs\": [", paths[at], found);
        for (size_t nth = 0; nth < sizeof codecs / sizeof *codecs; nth++) {
            if (nth) printf(", ");
            measure(&codecs[nth], pages, found, packed, lengths);
        }
        printf("]}\n");
    }
    return 0;
}
