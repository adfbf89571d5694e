/* Shared memory with a descriptor or a name: memfds and files of /dev/shm. What is written through one mapping is found by
 * every other process, program and call, also when it has left in between. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

enum { MIB = 1 << 20, PAGE = 4096, LENGTH = 4 * MIB, FILLER = 32 * MIB };

static char *filler;
static const char *own;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "WRONG, line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            abort(); \
        } \
    } while (0)

/* Another mapping is written, of far more than the cap. */
static void push_out(void) {
    static uint64_t round;
    round++;
    for (size_t at = 0; at < FILLER; at += PAGE) *(uint64_t *)(filler + at) = mix(at + round), *(uint64_t *)(filler + at + 2048) = at;
}

static uint64_t word(size_t at, uint64_t salt) { return mix(at + salt) >> (at / PAGE % 3 * 20); }

static void fill(char *start, size_t length, uint64_t salt) {
    for (size_t at = 0; at < length; at += 8) *(uint64_t *)(start + at) = word(at, salt);
}

static int holds(const char *start, size_t first, size_t length, uint64_t salt) {
    for (size_t at = 0; at < length; at += 8)
        if (*(uint64_t *)(start + at) != word(first + at, salt)) return 0;
    return 1;
}

static int memfd(size_t length) {
    int fd = memfd_create("shared_files", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, length));
    return fd;
}

static char *map(int fd, size_t length) {
    char *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(start != MAP_FAILED);
    return start;
}

/* A descriptor of an object that was filled and has left, for a step that is told how to look at it. */
static char *object(int *fd, uint64_t salt) {
    *fd = memfd(LENGTH);
    char *start = map(*fd, LENGTH);
    fill(start, LENGTH, salt);
    push_out();
    return start;
}

static void await(int child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void a_descriptor_looks_as_it_did(void) {
    int fd = memfd(LENGTH), flags = fcntl(fd, F_GETFL);
    struct stat before, after;
    CHECK(!fstat(fd, &before));
    char *start = map(fd, LENGTH);
    CHECK(fcntl(fd, F_GETFL) == flags && !fstat(fd, &after));
    CHECK(before.st_ino == after.st_ino && after.st_size == LENGTH && before.st_mode == after.st_mode);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    int copy = dup(fd);
    CHECK(copy >= 0 && fcntl(copy, F_GETFD) == 0 && !close(fd));
    fill(start, LENGTH, 1);
    push_out();
    char *again = map(copy, LENGTH);
    CHECK(holds(again, 0, LENGTH, 1) && holds(start, 0, LENGTH, 1));
    /* A part of it, from within, and all of it as private memory. */
    char *part = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, copy, 5 * PAGE);
    CHECK(part != MAP_FAILED && holds(part, 5 * PAGE, PAGE, 1));
    CHECK(!munmap(start, LENGTH) && !munmap(again, LENGTH) && !munmap(part, PAGE));
    push_out();
    char *later = map(copy, LENGTH);
    CHECK(holds(later, 0, LENGTH, 1));
    char *private = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE, copy, 0);
    CHECK(private != MAP_FAILED && holds(private, 0, LENGTH, 1));
    private[0]++;
    CHECK(holds(later, 0, LENGTH, 1));
    CHECK(!munmap(later, LENGTH) && !munmap(private, LENGTH) && !close(copy));
    puts("a descriptor looks as it did");
}

/* As runtimes do that commit parts of a reservation, and map one file several times. */
static void a_file_is_mapped_over_other_memory(void) {
    int fd = memfd(2 * MIB), other = memfd(LENGTH);
    char *private = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *shared = map(other, LENGTH);
    CHECK(private != MAP_FAILED);
    fill(private, LENGTH, 21), fill(shared, LENGTH, 22);
    push_out();
    char *views[] = {private + MIB, shared + MIB};
    for (int nth = 0; nth < 2; nth++) CHECK(mmap(views[nth], 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == views[nth]);
    fill(views[0], 2 * MIB, 23);
    push_out();
    for (int nth = 0; nth < 2; nth++) {
        char *start = nth ? shared : private;
        CHECK(holds(views[nth], 0, 2 * MIB, 23));
        CHECK(holds(start, 0, MIB, 21 + nth) && holds(start + 3 * MIB, 3 * MIB, MIB, 21 + nth));
    }
    /* Private memory in its place again: zeroes. */
    CHECK(mmap(views[0], 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == views[0]);
    CHECK(!views[0][0] && !views[0][2 * MIB - 1]);
    fill(views[0], 2 * MIB, 24);
    push_out();
    CHECK(holds(views[0], 0, 2 * MIB, 24) && holds(views[1], 0, 2 * MIB, 23) && holds(private, 0, MIB, 21));
    CHECK(!munmap(private, LENGTH) && !munmap(shared, LENGTH) && !close(fd) && !close(other));
    puts("a file is mapped over other memory");
}

static void calls_find_what_was_written(void) {
    static char bytes[64 * 1024];
    int fd;
    char *start = object(&fd, 2);
    CHECK(pread(fd, bytes, sizeof bytes, 2 * MIB) == sizeof bytes && holds(bytes, 2 * MIB, sizeof bytes, 2));
    CHECK(!munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 3);
    CHECK(read(fd, bytes, sizeof bytes) == sizeof bytes && holds(bytes, 0, sizeof bytes, 3));
    CHECK(lseek(fd, 0, SEEK_CUR) == sizeof bytes && lseek(fd, 0, SEEK_END) == LENGTH);
    CHECK(!munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 4);
    memset(bytes, 'x', sizeof bytes);
    CHECK(pwrite(fd, bytes, sizeof bytes, MIB) == sizeof bytes && !memcmp(start + MIB, bytes, sizeof bytes));
    CHECK(holds(start, 0, MIB, 4) && holds(start + MIB + sizeof bytes, MIB + sizeof bytes, MIB, 4));
    CHECK(!munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 5);
    CHECK(!ftruncate(fd, 2 * LENGTH) && holds(start, 0, LENGTH, 5));
    CHECK(!munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 6);
    int pipes[2], other = memfd(LENGTH);
    off_t from = 2 * MIB;
    CHECK(!pipe(pipes) && sendfile(pipes[1], fd, &from, PAGE) == PAGE && read(pipes[0], bytes, PAGE) == PAGE);
    CHECK(holds(bytes, 2 * MIB, PAGE, 6) && !munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 7);
    from = MIB;
    CHECK(copy_file_range(fd, &from, other, NULL, PAGE, 0) == PAGE && pread(other, bytes, PAGE, 0) == PAGE);
    CHECK(holds(bytes, MIB, PAGE, 7) && !munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 8);
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) && start[0] == 0 && start[PAGE - 1] == 0);
    CHECK(holds(start + PAGE, PAGE, LENGTH - PAGE, 8) && !munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 9);
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) && fcntl(fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW));
    CHECK(ftruncate(fd, 0) == -1 && errno == EPERM && holds(start, 0, LENGTH, 9) && !munmap(start, LENGTH) && !close(fd));
    start = object(&fd, 10);
    /* These say nothing about contents, and cost none of its pages a way back. */
    CHECK(!posix_fadvise(fd, 0, LENGTH, POSIX_FADV_DONTNEED) && posix_fadvise(fd, 0, LENGTH, 77) == EINVAL);
    CHECK(!fsync(fd) && !fdatasync(fd) && !posix_fallocate(fd, 0, LENGTH) && !fallocate(fd, 0, 0, LENGTH));
    CHECK(holds(start, 0, LENGTH, 10));
    push_out();
    FILE *stream = fdopen(fd, "r+");
    CHECK(stream && fread(bytes, 1, PAGE, stream) == PAGE && holds(bytes, 0, PAGE, 10));
    CHECK(!munmap(start, LENGTH) && !fclose(stream) && !close(other) && !close(pipes[0]) && !close(pipes[1]));
    start = object(&fd, 11);
    CHECK(syscall(SYS_pread64, fd, bytes, (size_t)PAGE, (off_t)MIB) == PAGE && holds(bytes, MIB, PAGE, 11));
    CHECK(!munmap(start, LENGTH) && !close(fd));
    puts("calls find what was written");
}

static long instruction(long number, long a, void *b, long c, long d) {
    long result;
    register long fourth asm("r10") = d;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

/* As Java's ZGC does: all of a heap is set aside before it is mapped, some of it goes, and some comes again. */
static void what_is_set_aside_takes_no_memory(void) {
    const char *mask = getenv("PAGETIDE_MASK");
    int is_served = getenv("PAGETIDE_GROUP") && !(mask && strstr(mask, "shared"));
    struct stat found;
    size_t length = 16 * LENGTH;
    int fd = memfd(LENGTH);
    CHECK(!syscall(SYS_fallocate, fd, FALLOC_FL_KEEP_SIZE, (off_t)0, (off_t)length) && !fstat(fd, &found) && found.st_size == LENGTH);
    CHECK(!syscall(SYS_fallocate, fd, 0, (off_t)0, (off_t)length / 2) && !fstat(fd, &found) && found.st_size == (off_t)length / 2);
    CHECK(!posix_fallocate(fd, length / 2, length / 2) && !fstat(fd, &found) && found.st_size == (off_t)length);
    CHECK(!is_served || found.st_blocks <= 3 * PAGE / 512);
    CHECK(fallocate(fd, 0, -1, PAGE) == -1 && errno == EINVAL && posix_fallocate(fd, 0, 0) == EINVAL);
    char *start = map(fd, length);
    fill(start, LENGTH, 25);
    CHECK(!fstat(fd, &found) && (!is_served || found.st_blocks <= (LENGTH + PAGE) / 512));
    push_out();
    CHECK(!syscall(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)MIB, (off_t)MIB));
    CHECK(!fallocate(fd, 0, 0, length) && !fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, length - PAGE, LENGTH));
    CHECK(!is_served || instruction(SYS_pread64, fd, start, PAGE, 0) == -EBADF);
    CHECK(holds(start, 0, MIB, 25) && holds(start + 2 * MIB, 2 * MIB, LENGTH - 2 * MIB, 25));
    for (size_t at = MIB; at < 2 * MIB; at++) CHECK(!start[at]);
    fill(start + MIB, MIB, 26);
    push_out();
    CHECK(holds(start + MIB, 0, MIB, 26) && holds(start, 0, MIB, 25) && !start[length - 1]);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB - 8, 16) == 0);
    for (size_t at = MIB - 8; at < MIB + 8; at++) CHECK(!start[at]);
    CHECK(holds(start, 0, MIB - 8, 25) && holds(start + MIB + 8, 8, MIB - 8, 26) && !munmap(start, length) && !close(fd));
    /* What was written before it became shared memory is there; what was set aside past the library is not held. */
    fd = memfd(LENGTH);
    CHECK(pwrite(fd, "x", 1, 3 * PAGE) == 1 && !instruction(SYS_fallocate, fd, NULL, 0, LENGTH));
    start = map(fd, LENGTH);
    CHECK(start[3 * PAGE] == 'x' && !start[0] && !start[LENGTH - 1]);
    CHECK(!munmap(start, LENGTH) && !close(fd));
    puts("what is set aside takes no memory");
}

/* What the library does not see may fail, but reads no zeroes. */
static void nobody_reads_a_hole(void) {
    static char bytes[PAGE];
    int fd;
    char *start = object(&fd, 12);
    long read = instruction(SYS_pread64, fd, bytes, PAGE, 2 * MIB);
    CHECK(read == -EBADF || (read == PAGE && holds(bytes, 2 * MIB, PAGE, 12)));
    char path[64];
    sprintf(path, "/proc/self/fd/%d", fd);
    long other = instruction(SYS_open, (long)path, (void *)O_RDONLY, 0, 0);
    CHECK(other >= 0 && instruction(SYS_pread64, other, bytes, PAGE, 2 * MIB) == PAGE && holds(bytes, 2 * MIB, PAGE, 12));
    CHECK(holds(start, 0, LENGTH, 12) && !munmap(start, LENGTH) && !close(fd) && !close(other));
    puts("nobody reads a hole");
}

static void send_descriptor(int socket, int fd) {
    char data = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&data, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_descriptor(int socket) {
    char data, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&data, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd;
    CHECK(recvmsg(socket, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void descriptors_go_to_other_processes(void) {
    int fd, sockets[2];
    char *start = object(&fd, 13);
    int child = fork();
    if (!child) {
        CHECK(holds(start, 0, LENGTH, 13));
        char *again = map(fd, LENGTH);
        CHECK(holds(again, 0, LENGTH, 13));
        fill(again, LENGTH, 14);
        _exit(0);
    }
    await(child);
    CHECK(holds(start, 0, LENGTH, 14));
    push_out();
    child = fork();
    if (!child) {
        char number[16];
        sprintf(number, "%d", fd);
        CHECK(!fcntl(fd, F_SETFD, 0));
        execl(own, own, "--descriptor", number, (char *)NULL);
        _exit(1);
    }
    await(child);
    CHECK(holds(start, 0, LENGTH, 15));
    push_out();
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets));
    child = fork();
    if (!child) {
        char *again = map(receive_descriptor(sockets[1]), LENGTH);
        CHECK(holds(again, 0, LENGTH, 15));
        fill(again, LENGTH, 16);
        _exit(0);
    }
    send_descriptor(sockets[0], fd);
    await(child);
    CHECK(holds(start, 0, LENGTH, 16) && !munmap(start, LENGTH) && !close(fd) && !close(sockets[0]) && !close(sockets[1]));
    puts("descriptors go to other processes");
}

static void names_lead_to_the_same_memory(void) {
    char name[64], path[80];
    sprintf(name, "/pagetide-test-%d", getpid());
    sprintf(path, "/dev/shm%s", name);
    /* Not a whole number of pages: what lies behind the end is memory, too. */
    const size_t length = LENGTH + 1000;
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, length));
    char *start = map(fd, length);
    CHECK(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
    fill(start, LENGTH, 17);
    memset(start + LENGTH, 'e', PAGE);
    push_out();
    CHECK(start[LENGTH + PAGE - 1] == 'e' && start[LENGTH] == 'e');
    int reader = shm_open(name, O_RDONLY, 0);
    CHECK(reader >= 0 && (fcntl(reader, F_GETFL) & O_ACCMODE) == O_RDONLY);
    CHECK(mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED && errno == EACCES);
    char *seen = mmap(NULL, length, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(seen != MAP_FAILED && holds(seen, 0, LENGTH, 17) && seen[LENGTH] == 'e');
    CHECK(mprotect(seen, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    int child = fork();
    if (!child) {
        execl(own, own, "--name", name, (char *)NULL);
        _exit(1);
    }
    await(child);
    CHECK(holds(seen, 0, LENGTH, 18) && holds(start, 0, LENGTH, 18));
    push_out();
    int opened = open(path, O_RDWR);
    CHECK(opened >= 0);
    char *third = map(opened, LENGTH);
    CHECK(holds(third, 0, LENGTH, 18) && !shm_unlink(name) && shm_open(name, O_RDWR, 0) == -1 && errno == ENOENT);
    push_out();
    CHECK(holds(third, 0, LENGTH, 18) && holds(seen, 0, LENGTH, 18));
    CHECK(!munmap(third, LENGTH) && !munmap(seen, length) && !munmap(start, length));
    CHECK(!close(fd) && !close(reader) && !close(opened));
    puts("names lead to the same memory");
}

/* What somebody else has open, or has locks on, stays as it is. */
static void what_cannot_be_served_is_left_alone(void) {
    int fd = memfd(LENGTH);
    char path[64];
    sprintf(path, "/proc/self/fd/%d", fd);
    int other = open(path, O_RDWR);
    CHECK(other >= 0 && lseek(other, 100, SEEK_SET) == 100);
    char *start = map(fd, LENGTH);
    fill(start, LENGTH, 19);
    push_out();
    static char bytes[PAGE];
    CHECK(instruction(SYS_pread64, other, bytes, PAGE, MIB) == PAGE && holds(bytes, MIB, PAGE, 19));
    CHECK(lseek(other, 0, SEEK_CUR) == 100 && lseek(fd, 0, SEEK_CUR) == 0);
    CHECK(!munmap(start, LENGTH) && !close(fd) && !close(other));
    fd = memfd(LENGTH);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    CHECK(!fcntl(fd, F_SETLK, &lock));
    start = map(fd, LENGTH);
    int child = fork();
    if (!child) {
        CHECK(!fcntl(fd, F_GETLK, &lock) && lock.l_type == F_WRLCK && lock.l_pid == getppid());
        _exit(0);
    }
    await(child);
    CHECK(!munmap(start, LENGTH) && !close(fd));
    puts("what cannot be served is left alone");
}

/* More altogether than the swap file has room for: each goes when nobody has it any more. */
static void objects_end(void) {
    for (int nth = 0; nth < 24; nth++) {
        int fd;
        char *start = object(&fd, 20 + nth);
        CHECK(holds(start, 0, LENGTH, 20 + nth) && !munmap(start, LENGTH));
        if (nth % 3 == 0) push_out();
        CHECK(!close(fd));
    }
    puts("objects end");
}

int main(int count, char **words) {
    own = words[0];
    if (count == 3 && !strcmp(words[1], "--descriptor")) {
        char *start = map(atoi(words[2]), LENGTH);
        CHECK(holds(start, 0, LENGTH, 14));
        fill(start, LENGTH, 15);
        return 0;
    }
    if (count == 3 && !strcmp(words[1], "--name")) {
        int fd = shm_open(words[2], O_RDWR, 0);
        CHECK(fd >= 0);
        char *start = map(fd, LENGTH);
        CHECK(holds(start, 0, LENGTH, 17));
        fill(start, LENGTH, 18);
        return 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    filler = mmap(NULL, FILLER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(filler != MAP_FAILED);
    a_descriptor_looks_as_it_did();
    a_file_is_mapped_over_other_memory();
    calls_find_what_was_written();
    what_is_set_aside_takes_no_memory();
    nobody_reads_a_hole();
    descriptors_go_to_other_processes();
    names_lead_to_the_same_memory();
    what_cannot_be_served_is_left_alone();
    objects_end();
    return 0;
}
