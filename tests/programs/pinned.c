/* pinned: pages that the kernel has pinned before Pagetide's engine starts stay where they are.
 *
 *   pinned [--press MIB] [--native] [--hidden]      (--hidden: past the C library)
 *
 * A buffer is registered with an io_uring, which holds its pages from then on. Then so much memory is touched that
 * others have to leave, and a file is read into the buffer: into the pages that the kernel holds. Had they left, the
 * program would find what was there before.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources; 77 there is no io_uring. */
#define _GNU_SOURCE
#include "direct.h"
#include "options.h"
#include <sys/uio.h>

enum { PAGES = 1024, TAG_FILE = 1, TAG_BUFFER = 2 };
static const size_t BYTES = (size_t)PAGES * PAGE_BYTES;

/* A call that no library sees. */
static int hidden_setup(unsigned entries, struct io_uring_params *parameters) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_io_uring_setup), "D"(entries), "S"(parameters) : "rcx", "r11", "memory");
    return (int)result;
}

int main(int count, char **arguments) {
    int hidden = 0;
    const struct program_option table[] = {MIB("--press", &press_pages), SWITCH("--native", &native), SWITCH("--hidden", &hidden), {0}};
    read_options("usage: pinned [--press MIB] [--native] [--hidden]", table, count, arguments);
    begin("a file to read from");
    char *source = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    char *buffer = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(source, 0, PAGES, TAG_FILE);
    fill(buffer, 0, PAGES, TAG_BUFFER);
    int file = memfd_create("source", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, source, BYTES, 0) != (ssize_t)BYTES) fail("writing it");
    unmap(source, PAGES);

    begin("a buffer of an io_uring, registered before there is an engine");
    struct ring ring;
    struct iovec vector = {buffer, BYTES};
    if (!open_ring_by(&ring, hidden ? hidden_setup : visible_setup)) {
        perror("io_uring_setup");
        return 77;
    }
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &vector, 1)) fail("IORING_REGISTER_BUFFERS");
    for (int round = 0; round < 3; round++) {
        press();
        if (by_ring(&ring, file, buffer, BYTES, 0, 0, 0) != (ssize_t)BYTES) fail("reading into the buffer");
        check(buffer, 0, PAGES, TAG_FILE);
        fill(buffer, 0, PAGES, TAG_BUFFER);
    }
    demand(native || absent(press_buffer, press_pages) > 0, "others have left");
    close_ring(&ring);
    puts("ok");
    return 0;
}
