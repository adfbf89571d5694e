/* Direct I/O whose requests are under way at once: by kernel AIO and by io_uring, through raw system calls. */
#pragma once
#include "pages.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>

enum { CHUNK_BYTES = 64 * PAGE_BYTES, CHUNKS_MAX = 64 };

static inline unsigned chunks_of(size_t bytes) {
    demand(bytes <= (size_t)CHUNKS_MAX * CHUNK_BYTES, "as many requests as fit");
    return (unsigned)((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
}

static inline uint32_t chunk_bytes(size_t bytes, unsigned nth) {
    size_t left = bytes - (size_t)nth * CHUNK_BYTES;
    return (uint32_t)(left < CHUNK_BYTES ? left : CHUNK_BYTES);
}

/* Both return what was moved, as read and write do, or end the program. */
static inline ssize_t by_aio(int fd, char *at, size_t bytes, off_t offset, int writes) {
    aio_context_t context = 0;
    long chunks = chunks_of(bytes);
    if (syscall(SYS_io_setup, CHUNKS_MAX, &context)) fail("io_setup");
    struct iocb blocks[CHUNKS_MAX], *list[CHUNKS_MAX];
    memset(blocks, 0, sizeof blocks);
    for (unsigned nth = 0; nth < chunks; nth++) {
        size_t from = (size_t)nth * CHUNK_BYTES;
        blocks[nth] = (struct iocb){
            .aio_lio_opcode = writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD, .aio_fildes = (uint32_t)fd,
            .aio_buf = (uint64_t)(uintptr_t)(at + from), .aio_nbytes = chunk_bytes(bytes, nth), .aio_offset = offset + (off_t)from};
        list[nth] = &blocks[nth];
    }
    if (syscall(SYS_io_submit, context, chunks, list) != chunks) fail("io_submit");
    struct io_event events[CHUNKS_MAX];
    ssize_t moved = 0;
    for (long got = 0; got < chunks;) {
        long more = syscall(SYS_io_getevents, context, 1, chunks - got, events, NULL);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) fail("io_getevents");
        for (long nth = 0; nth < more; nth++) {
            if (events[nth].res < 0) errno = (int)-events[nth].res, fail("kernel AIO");
            moved += (ssize_t)events[nth].res;
        }
        got += more;
    }
    syscall(SYS_io_destroy, context);
    return moved;
}

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    char *rings;
    size_t rings_bytes, sqes_bytes;
};

static inline int visible_setup(unsigned entries, struct io_uring_params *parameters) {
    return (int)syscall(SYS_io_uring_setup, entries, parameters);
}

/* 0 if there is no io_uring. */
static inline int open_ring_by(struct ring *ring, int (*setup)(unsigned, struct io_uring_params *)) {
    struct io_uring_params parameters = {0};
    ring->fd = setup(CHUNKS_MAX, &parameters);
    if (ring->fd < 0) return 0;
    size_t sq = parameters.sq_off.array + parameters.sq_entries * 4;
    size_t cq = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_bytes = sq > cq ? sq : cq, ring->sqes_bytes = parameters.sq_entries * sizeof *ring->sqes;
    char *at = mmap(NULL, ring->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->sqes = mmap(NULL, ring->sqes_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    if (at == MAP_FAILED || ring->sqes == MAP_FAILED) fail("mapping the ring");
    ring->rings = at;
    ring->sq_tail = (unsigned *)(void *)(at + parameters.sq_off.tail), ring->sq_mask = (unsigned *)(void *)(at + parameters.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(void *)(at + parameters.sq_off.array);
    ring->cq_head = (unsigned *)(void *)(at + parameters.cq_off.head), ring->cq_tail = (unsigned *)(void *)(at + parameters.cq_off.tail);
    ring->cq_mask = (unsigned *)(void *)(at + parameters.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(void *)(at + parameters.cq_off.cqes);
    return 1;
}

static inline int open_ring(struct ring *ring) { return open_ring_by(ring, visible_setup); }

static inline void close_ring(struct ring *ring) {
    if (munmap(ring->rings, ring->rings_bytes) || munmap(ring->sqes, ring->sqes_bytes)) fail("munmap");
    close(ring->fd);
}

/* `buffer`: the number of the registered buffer that `at` is, or -1. */
static inline ssize_t by_ring(struct ring *ring, int fd, char *at, size_t bytes, off_t offset, int writes, int buffer) {
    int fixed = buffer >= 0;
    unsigned chunks = chunks_of(bytes);
    for (unsigned nth = 0; nth < chunks; nth++) {
        size_t from = (size_t)nth * CHUNK_BYTES;
        unsigned tail = *ring->sq_tail, index = tail & *ring->sq_mask;
        ring->sqes[index] = (struct io_uring_sqe){
            .opcode = fixed ? (writes ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED) : (writes ? IORING_OP_WRITE : IORING_OP_READ),
            .fd = fd, .addr = (uint64_t)(uintptr_t)(at + from), .len = chunk_bytes(bytes, nth), .off = (uint64_t)offset + from,
            .buf_index = (uint16_t)(fixed ? buffer : 0)};
        ring->sq_array[index] = index;
        __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    }
    for (unsigned submitted = 0; submitted < chunks;) {
        long more = syscall(SYS_io_uring_enter, ring->fd, chunks - submitted, 0, 0, NULL, 0);
        if (more < 0 && errno != EINTR) fail("io_uring_enter");
        submitted += more > 0 ? (unsigned)more : 0;
    }
    ssize_t moved = 0;
    for (unsigned got = 0; got < chunks;) {
        unsigned head = *ring->cq_head;
        if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
            if (syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno != EINTR) fail("io_uring_enter");
            continue;
        }
        int result = ring->cqes[head & *ring->cq_mask].res;
        if (result < 0) errno = -result, fail("io_uring");
        moved += result;
        __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
        got++;
    }
    return moved;
}
