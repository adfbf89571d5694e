/* Steps in which the kernel reads and writes pages: pipes, files, direct I/O, other processes, calls that it refuses. */
#pragma once
#include "contents.h"
#include "ranges.h"
#include <sys/random.h>
#include <sys/uio.h>

/* Through the kernel from one range to another. */
static void carry(ssize_t (*put)(char *, size_t), ssize_t (*get)(char *, size_t), size_t most) {
    size_t from, to, count = find_run(is_certain, wanted_pages() < most ? wanted_pages() % most + 1 : most, 0, &from);
    if (!count) return;
    size_t room = find_run(is_writable, count, 0, &to);
    if (room < count) count = room;
    if (!count || (from < to + count && to < from + count)) return;
    ssize_t bytes = (ssize_t)(count * PAGE_BYTES);
    succeed(put(at(from), (size_t)bytes) == bytes, "handing pages to the kernel");
    succeed(get(at(to), (size_t)bytes) == bytes, "taking pages from the kernel");
    for (size_t nth = 0; nth < count; nth++) {
        struct page *p = &here->pages[to + nth], *q = &here->pages[from + nth];
        p->tag = q->tag, p->stamp = q->stamp, p->loose = p->unsure = 0;
        check_page(here, to + nth);
    }
}

static __thread int ends[2];
static __thread off_t offset;
static ssize_t put_pipe(char *from, size_t bytes) { return write(ends[1], from, bytes); }
static ssize_t put_splice(char *from, size_t bytes) {
    struct iovec vector = {from, bytes};
    return vmsplice(ends[1], &vector, 1, 0);
}
static ssize_t get_pipe(char *to, size_t bytes) {
    size_t got = 0;
    for (ssize_t more; got < bytes && (more = read(ends[0], to + got, bytes - got)) > 0;) got += (size_t)more;
    return (ssize_t)got;
}
static ssize_t put_file(char *from, size_t bytes) { return pwrite(scratch_file, from, bytes, offset); }
static ssize_t get_file(char *to, size_t bytes) { return pread(scratch_file, to, bytes, offset); }
/* By the thread itself, by kernel AIO, by io_uring, or by io_uring with a buffer that is pinned meanwhile. */
static ssize_t move_direct(char *at, size_t bytes, int writes) {
    struct ring ring;
    size_t way = below(4);
    if (way == 1) return by_aio(direct_file, at, bytes, offset, writes);
    if (way < 2 || !open_ring(&ring)) return writes ? pwrite(direct_file, at, bytes, offset) : pread(direct_file, at, bytes, offset);
    struct iovec whole = {at, bytes};
    /* Locked memory may be limited: then without. */
    int fixed = way == 3 && !syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &whole, 1);
    ssize_t moved = by_ring(&ring, direct_file, at, bytes, offset, writes, fixed ? 0 : -1);
    close_ring(&ring);
    return moved;
}
static ssize_t put_direct(char *from, size_t bytes) { return move_direct(from, bytes, 1); }
static ssize_t get_direct(char *to, size_t bytes) { return move_direct(to, bytes, 0); }
static __thread char *read_from;
static ssize_t put_nothing(char *from, size_t bytes) {
    read_from = from;
    return (ssize_t)bytes;
}
static ssize_t get_process(char *to, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {read_from, bytes};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
}

static void step_pipe(void) {
    if (pipe(ends)) fail("pipe");
    carry(one_in(2) ? put_pipe : put_splice, get_pipe, 12);
    close(ends[0]), close(ends[1]);
}
static void step_file(void) {
    offset = ((off_t)(here - territories) + THREADS_MAX * (getpid() % 4096)) * WANTED_MAX * PAGE_BYTES;
    int direct = !without_direct && direct_file >= 0 && one_in(2);
    carry(direct && one_in(2) ? put_direct : put_file, direct ? get_direct : get_file, WANTED_MAX);
    fallocate(scratch_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, WANTED_MAX * PAGE_BYTES);
}
static void step_process(void) { carry(put_nothing, get_process, WANTED_MAX); }

static void step_random(void) {
    size_t first, count = find_run(is_writable, 16, 0, &first);
    if (!count) return;
    /* It may stop at a page for a signal, which a ring that was closed is to the kernel too. */
    for (size_t got = 0; got < count * PAGE_BYTES;) {
        ssize_t more = getrandom(at(first) + got, count * PAGE_BYTES - got, 0);
        succeed(more > 0 || errno == EINTR, "getrandom");
        got += more > 0 ? (size_t)more : 0;
    }
    for (size_t page = first; page < first + count; page++) write_page(page);
}

static void step_kernel_refuses(void) {
    size_t page;
    if (pipe(ends)) fail("pipe");
    if (find_run(is_forbidden, 1, 0, &page)) demand(write(ends[1], at(page), PAGE_BYTES) == -1 && errno == EFAULT, "write from forbidden memory: EFAULT");
    if (find_run(is_hole, 1, 0, &page)) demand(write(ends[1], at(page), PAGE_BYTES) == -1 && errno == EFAULT, "write from no memory: EFAULT");
    if (write(ends[1], "x", 1) != 1) fail("write");
    if (find_run(is_readonly, 1, 0, &page)) demand(read(ends[0], at(page), 1) == -1 && errno == EFAULT, "read into read-only memory: EFAULT");
    close(ends[0]), close(ends[1]);
}

static void step_mincore(void) {
    static __thread unsigned char answers[WANTED_MAX];
    size_t first, count = find_run(is_mapped, wanted_pages(), 0, &first);
    if (count) succeed(!mincore(at(first), count * PAGE_BYTES, answers), "mincore");
    if (count) succeed(!msync(at(first), count * PAGE_BYTES, one_in(2) ? MS_ASYNC : MS_SYNC), "msync");
}
