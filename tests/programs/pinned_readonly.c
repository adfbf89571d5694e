/* pinned_readonly: a page that was pinned while it could be written is written by the device for as long as it is pinned,
 * whatever the program may do with it meanwhile; what lies between such pages leaves memory.
 *
 *   pinned_readonly [--press MIB] [--native] [--closed | --aio]
 *
 * Parts of a buffer are registered with an io_uring; then the buffer is made read-only (or executable, or inaccessible),
 * pages of it leave, and a file is read into the registered parts. With --closed the ring's descriptor is closed before
 * that, and only its mappings are left: a thread of the kernel looks for requests. With --aio there is no ring: reads by
 * kernel AIO from a file opened with O_DIRECT are under way when the buffer is made read-only.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources; 77 there is no io_uring. */
#define _GNU_SOURCE
#include "direct.h"
#include "options.h"
#include <sched.h>
#include <setjmp.h>
#include <sys/uio.h>

enum { PAGES = 2048, PART = 5, STRIDE = 128, PARTS = PAGES / STRIDE, TAG_FILE = 1, TAG_BUFFER = 2, ROUNDS = 8 };
static const size_t BYTES = (size_t)PAGES * PAGE_BYTES, PART_BYTES = (size_t)PART * PAGE_BYTES;

static char *part(char *buffer, int nth) { return buffer + (size_t)nth * STRIDE * PAGE_BYTES + 7 * PAGE_BYTES; }

static sigjmp_buf refused;
static void on_segv(int number) { siglongjmp(refused, number); }

/* Whether a byte can be written; it keeps its value. */
static int is_writable(volatile char *at) {
    if (sigsetjmp(refused, 1)) return 0;
    *at = *at;
    return 1;
}

static void protect(char *at, size_t bytes, int protection) {
    if (mprotect(at, bytes, protection)) fail("mprotect");
}

/* What /proc/self/maps says that may be done with a page. */
static int access_of(const void *at) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) fail("/proc/self/maps");
    char line[8192], letters[5];
    int found = -1;
    while (found < 0 && fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &start, &end, letters) != 3) continue;
        if ((uintptr_t)at < start || (uintptr_t)at >= end) continue;
        found = (letters[0] == 'r' ? PROT_READ : 0) | (letters[1] == 'w' ? PROT_WRITE : 0) | (letters[2] == 'x' ? PROT_EXEC : 0);
    }
    fclose(maps);
    return found;
}

static int polled_setup(unsigned entries, struct io_uring_params *parameters) {
    parameters->flags = IORING_SETUP_SQPOLL;
    parameters->sq_thread_idle = 1000000;
    return visible_setup(entries, parameters);
}

/* The same as by_ring, for one part of a ring whose descriptor may be closed. The kernel's thread is awake: it has had work
 * of late. */
static ssize_t by_polled(struct ring *ring, int fd, char *at, int buffer) {
    unsigned tail = *ring->sq_tail, index = tail & *ring->sq_mask;
    ring->sqes[index] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = fd, .addr = (uint64_t)(uintptr_t)at,
                                              .len = PART_BYTES, .off = (uint64_t)buffer * PART_BYTES, .buf_index = (uint16_t)buffer};
    ring->sq_array[index] = index;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    if (ring->fd >= 0 && syscall(SYS_io_uring_enter, ring->fd, 0, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0) < 0) fail("io_uring_enter");
    unsigned head = *ring->cq_head;
    while (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) sched_yield();
    int result = ring->cqes[head & *ring->cq_mask].res;
    if (result < 0) errno = -result, fail("io_uring");
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

/* Pages that stay may be on their way back just now. */
static void await_presence(const char *at) {
    for (int look = 0; absent(at, PART); look++) {
        demand(look < 60000, "what is pinned is in memory");
        usleep(1000);
    }
}

static void check_between(char *buffer) {
    size_t page = 0;
    for (int nth = 0; nth < PARTS; nth++) {
        size_t first = (size_t)(part(buffer, nth) - buffer) / PAGE_BYTES;
        check(buffer + page * PAGE_BYTES, page, first - page, TAG_BUFFER);
        page = first + PART;
    }
    check(buffer + page * PAGE_BYTES, page, PAGES - page, TAG_BUFFER);
}

static void by_rings(char *buffer, int file, int closed) {
    begin(closed ? "parts of a buffer of a ring whose descriptor is closed" : "parts of a buffer of an io_uring");
    struct ring ring;
    struct iovec vectors[PARTS];
    for (int nth = 0; nth < PARTS; nth++) vectors[nth] = (struct iovec){part(buffer, nth), PART_BYTES};
    if (!open_ring_by(&ring, closed ? polled_setup : visible_setup)) {
        perror("io_uring_setup");
        exit(77);
    }
    fill(buffer, 0, PAGES, TAG_BUFFER);
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, vectors, PARTS)) fail("IORING_REGISTER_BUFFERS");
    if (closed) {
        by_polled(&ring, file, part(buffer, 0), 0);
        close(ring.fd);
        ring.fd = -1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        fill(buffer, 0, PAGES, TAG_BUFFER);
        int access = ((int[]){PROT_READ, PROT_NONE, PROT_READ | PROT_EXEC, PROT_READ})[round % 4];
        protect(buffer, BYTES, access);
        send_away(buffer, PAGES);
        for (int nth = 0; nth < PARTS; nth++) {
            char *at = part(buffer, nth);
            await_presence(at);
            demand(access_of(at) == access, "a page that stayed may be used as before");
            ssize_t got = closed ? by_polled(&ring, file, at, nth)
                                 : by_ring(&ring, file, at, PART_BYTES, (off_t)((size_t)nth * PART_BYTES), 0, nth);
            demand(got == (ssize_t)PART_BYTES, "all is read");
            if (access != PROT_NONE) demand(!is_writable(at), "it may not be written");
        }
        /* What came in anew can leave anew, and the rest still stays. */
        if (round % 2) press();
        if (access == PROT_NONE) protect(buffer, BYTES, PROT_READ);
        for (int nth = 0; nth < PARTS; nth++) check(part(buffer, nth), (size_t)nth * PART, PART, TAG_FILE);
        check_between(buffer);
        protect(buffer, BYTES, PROT_READ | PROT_WRITE);
    }
    close_ring(&ring);
    begin("after the ring has gone all of it can leave");
    fill(buffer, 0, PAGES, TAG_BUFFER);
    protect(buffer, BYTES, PROT_READ);
    send_away(buffer, PAGES);
    check(buffer, 0, PAGES, TAG_BUFFER);
}

/* The requests of by_aio, with work between submission and completion. */
static void by_requests(char *buffer, const char *source) {
    begin("reads by kernel AIO that are under way");
    int file = open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    if (file < 0) fail("a file opened with O_DIRECT");
    for (unsigned nth = 0; nth < chunks_of(BYTES); nth++)
        if (pwrite(file, source + (size_t)nth * CHUNK_BYTES, CHUNK_BYTES, (off_t)((size_t)nth * CHUNK_BYTES)) != CHUNK_BYTES) fail("writing it");
    for (int round = 0; round < ROUNDS; round++) {
        aio_context_t context = 0;
        long chunks = chunks_of(BYTES);
        if (syscall(SYS_io_setup, CHUNKS_MAX, &context)) fail("io_setup");
        fill(buffer, 0, PAGES, TAG_BUFFER);
        struct iocb blocks[CHUNKS_MAX], *list[CHUNKS_MAX];
        memset(blocks, 0, sizeof blocks);
        for (unsigned nth = 0; nth < chunks; nth++) {
            size_t from = (size_t)nth * CHUNK_BYTES;
            blocks[nth] = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)file, .aio_nbytes = CHUNK_BYTES,
                                        .aio_buf = (uint64_t)(uintptr_t)(buffer + from), .aio_offset = (off_t)from};
            list[nth] = &blocks[nth];
        }
        if (syscall(SYS_io_submit, context, chunks, list) != chunks) fail("io_submit");
        protect(buffer, BYTES, PROT_READ);
        press();
        struct io_event events[CHUNKS_MAX];
        for (long got = 0; got < chunks;) {
            long more = syscall(SYS_io_getevents, context, 1, chunks - got, events, NULL);
            if (more < 0 && errno == EINTR) continue;
            if (more <= 0) fail("io_getevents");
            for (long nth = 0; nth < more; nth++) demand(events[nth].res == CHUNK_BYTES, "all is read");
            got += more;
        }
        send_away(buffer, PAGES);
        check(buffer, 0, PAGES, TAG_FILE);
        protect(buffer, BYTES, PROT_READ | PROT_WRITE);
        syscall(SYS_io_destroy, context);
    }
}

int main(int count, char **arguments) {
    int closed = 0, aio = 0;
    const struct program_option table[] = {MIB("--press", &press_pages), SWITCH("--native", &native), SWITCH("--closed", &closed), SWITCH("--aio", &aio), {0}};
    read_options("usage: pinned_readonly [--press MIB] [--native] [--closed | --aio]", table, count, arguments);
    signal(SIGSEGV, on_segv);
    char *source = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    char *buffer = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(source, 0, PAGES, TAG_FILE);
    if (aio) by_requests(buffer, source);
    else {
        int file = memfd_create("source", MFD_CLOEXEC);
        if (file < 0 || pwrite(file, source, PARTS * PART_BYTES, 0) != (ssize_t)(PARTS * PART_BYTES)) fail("a file");
        by_rings(buffer, file, closed);
    }
    puts("ok");
    return 0;
}
