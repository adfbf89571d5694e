/* own_mmap: a program with an mmap of its own, that makes the call by number: so does gperftools' allocator. Whoever of
 * Pagetide maps memory by that name would come back to itself. Exit status: 0 all well, 1 not. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 100 << 20 };

void *mmap(void *at, size_t length, int access, int flags, int fd, off_t offset) {
    return (void *)syscall(SYS_mmap, at, length, access, flags, fd, offset);
}

int main(void) {
    char *mapped = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 1;
    memset(mapped, 1, BYTES);
    for (int at = 0; at < BYTES; at += 4096)
        if (mapped[at] != 1) return 1;
    return 0;
}
