/* own_userfault: a program that answers faults of its own memory, by a userfaultfd of its own.
 *
 *   own_userfault [--press MIB] [--native]
 *
 * A thread answers missing faults with pages of a pattern. Memory is registered before and after the engine runs, with
 * what is in it partly out; then pages are dropped, mappings moved, a child forked, pages moved in by UFFDIO_MOVE from
 * memory that is out, all while other memory has to leave.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources; 77 there is no userfaultfd. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#ifndef UFFDIO_MOVE
struct uffdio_move { uint64_t dst, src, len, mode; int64_t move; };
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

enum { PAGES = 1024, TAG_OLD = 1, TAG_SERVED = 2, TAG_SOURCE = 3, TAG_SECOND = 4 };
static const size_t BYTES = (size_t)PAGES * PAGE_BYTES;

static int uffd;
static char *served_at;              /* page n of what is served is that of served_at */
static unsigned long served;         /* faults answered */
static char *pattern;                /* memory that may be out when it is copied from */

static int open_uffd(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API, .features = 0};
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) fail("UFFDIO_API");
    return fd;
}

static void *serve(void *unused) {
    (void)unused;
    for (;;) {
        struct pollfd polled = {.fd = uffd, .events = POLLIN};
        struct uffd_msg message;
        poll(&polled, 1, -1);
        if (read(uffd, &message, sizeof message) != (ssize_t)sizeof message) continue;
        if (message.event != UFFD_EVENT_PAGEFAULT) fail("another event");
        char *at = (char *)(uintptr_t)(message.arg.pagefault.address & ~(uint64_t)(PAGE_BYTES - 1));
        size_t page = (size_t)(at - served_at) / PAGE_BYTES;
        demand(page < PAGES, "a fault where faults are served");
        struct uffdio_copy copy = {.dst = (uint64_t)(uintptr_t)at, .src = (uint64_t)(uintptr_t)(pattern + page * PAGE_BYTES), .len = PAGE_BYTES};
        __atomic_fetch_add(&served, 1, __ATOMIC_RELAXED);
        while (ioctl(uffd, UFFDIO_COPY, &copy) && errno != EEXIST)
            if (errno != EAGAIN) fail("UFFDIO_COPY");
    }
    return NULL;
}

static void take(char *at, size_t pages) {
    struct uffdio_register registered = {.range = {(uint64_t)(uintptr_t)at, pages * PAGE_BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(uffd, UFFDIO_REGISTER, &registered)) fail("UFFDIO_REGISTER");
}

static void give(char *at, size_t pages) {
    struct uffdio_range range = {(uint64_t)(uintptr_t)at, pages * PAGE_BYTES};
    if (ioctl(uffd, UFFDIO_UNREGISTER, &range)) fail("UFFDIO_UNREGISTER");
}

/* Every fourth page is dropped: it is the pattern's from then on. */
static void drop(char *at) {
    for (size_t page = 0; page < PAGES; page += 4)
        if (madvise(at + page * PAGE_BYTES, PAGE_BYTES, MADV_DONTNEED)) fail("MADV_DONTNEED");
}

static void check_mixed(const char *at) {
    for (size_t page = 0; page < PAGES; page++) check(at + page * PAGE_BYTES, page, 1, page % 4 ? TAG_OLD : TAG_SERVED);
}

/* Reads all of it, by the kernel too, after what is out of a half has been dropped. */
static void exercise(char *at, int child) {
    served_at = at;
    unsigned long before = served;
    for (int round = 0; round < 3; round++) {
        drop(at);
        press();
        check_mixed(at);
    }
    demand(served >= before + 3 * PAGES / 4, "the program answered its faults");
    demand(absent(at, PAGES) == 0, "what the program serves stays in memory");
    drop(at);
    int file = memfd_create("sink", MFD_CLOEXEC);
    if (write(file, at, BYTES) != (ssize_t)BYTES) fail("a write from memory that is served");
    close(file);
    check_mixed(at);
    if (!child) return;
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        /* No userfaultfd here: what is there is the parent's, what was dropped since reads as zeroes. */
        check_mixed(at);
        if (madvise(at, PAGE_BYTES, MADV_DONTNEED)) fail("MADV_DONTNEED");
        check_zero(at, 1);
        press();
        check(at + PAGE_BYTES, 1, 3, TAG_OLD);
        _exit(0);
    }
    drop(at);
    press();
    check_mixed(at);
    int status;
    if (waitpid(pid, &status, 0) != pid) fail("waitpid");
    demand(status == 0, "the child is well");
}

static void moves(void) {
    begin("pages moved in from memory that is out");
    char *source = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0), *target = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    served_at = target;
    take(target, PAGES);
    for (int round = 0; round < 2; round++) {
        fill(source, 0, PAGES, TAG_SOURCE);
        send_away(source, PAGES);
        for (size_t page = 0; page < PAGES; page += 2) {
            struct uffdio_move move = {.dst = (uint64_t)(uintptr_t)(target + page * PAGE_BYTES), .src = (uint64_t)(uintptr_t)(source + page * PAGE_BYTES), .len = PAGE_BYTES};
            while (ioctl(uffd, UFFDIO_MOVE, &move)) {
                if (errno == EINVAL && !page && !round) {
                    fprintf(stderr, "left out: no UFFDIO_MOVE here\n");
                    return;
                }
                if (errno != EAGAIN) fail("UFFDIO_MOVE");
            }
        }
        press();
        for (size_t page = 0; page < PAGES; page++) {
            char *at = source + page * PAGE_BYTES;
            check(target + page * PAGE_BYTES, page, 1, page % 2 ? TAG_SERVED : TAG_SOURCE);
            if (page % 2) check(at, page, 1, TAG_SOURCE);
            else check_zero(at, 1);
        }
        if (madvise(target, BYTES, MADV_DONTNEED)) fail("MADV_DONTNEED");
    }
    unmap(source, PAGES);
    unmap(target, PAGES);
}

/* Memory that is registered before there is an engine, and when it is out, with 512 pages behind it that are not. */
static char *early, *late;

static void registrations(void) {
    begin("memory that is registered before there is an engine");
    early = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(early, 0, PAGES, TAG_OLD);
    served_at = early;
    take(early, PAGES);
    exercise(early, 1);

    begin("memory that is registered when it is out");
    late = map(NULL, PAGES + 512, PROT_READ | PROT_WRITE, 0);
    fill(late, 0, PAGES, TAG_OLD);
    fill(late + BYTES, 0, 512, TAG_SECOND);
    send_away(late, PAGES + 512);
    take(late, PAGES);
    check(late, 0, PAGES, TAG_OLD);
    exercise(late, 1);
    check(late + BYTES, 0, 512, TAG_SECOND);
    check_mixed(early);
}

static void closed_when_registered(void) {
    begin("memory that may be read only, or not at all, when it is registered");
    for (int access = 0; access < 2; access++) {
        char *closed = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
        fill(closed, 0, PAGES, TAG_OLD);
        if (mprotect(closed, BYTES, access ? PROT_READ : PROT_NONE)) fail("mprotect");
        if (access) send_away(closed, PAGES);
        else press(), press();
        take(closed, PAGES);
        if (mprotect(closed, BYTES, PROT_READ | PROT_WRITE)) fail("mprotect");
        exercise(closed, 0);
        unmap(closed, PAGES);
    }
}

static void a_move_away(void) {
    begin("what lies behind it leaves as before");
    send_away(late + BYTES, 512);
    check(late + BYTES, 0, 512, TAG_SECOND);

    begin("a mapping that is served and moves: it is not served where it comes to lie");
    char *moved = mremap(late, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, map(NULL, PAGES, PROT_NONE, 0));
    if (moved == MAP_FAILED) fail("mremap");
    press();
    check_mixed(moved);
    drop(moved);
    for (size_t page = 0; page < PAGES; page += 4) check_zero(moved + page * PAGE_BYTES, 1);
    check(late + BYTES, 0, 512, TAG_SECOND);
}

static void a_move_over(void) {
    begin("memory that moves to where other memory was served");
    char *taken = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(taken, 0, PAGES, TAG_SECOND);
    send_away(taken, PAGES);
    char *over = mremap(taken, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, early);
    if (over != early) fail("mremap");
    send_away(over, PAGES);
    check(over, 0, PAGES, TAG_SECOND);
    take(over, PAGES);
    check(over, 0, PAGES, TAG_SECOND);

    begin("memory that is served no more, and a new mapping in its place");
    give(over, PAGES);
    press();
    check(over, 0, PAGES, TAG_SECOND);
    map(over, PAGES, PROT_READ | PROT_WRITE, MAP_FIXED);
    check_zero(over, PAGES);
    fill(over, 0, PAGES, TAG_OLD);
    send_away(over, PAGES);
    check(over, 0, PAGES, TAG_OLD);
}

int main(int count, char **arguments) {
    const struct program_option table[] = {MIB("--press", &press_pages), SWITCH("--native", &native), {0}};
    read_options("usage: own_userfault [--press MIB] [--native]", table, count, arguments);
    if ((uffd = open_uffd()) < 0) {
        perror("userfaultfd");
        return 77;
    }
    pattern = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(pattern, 0, PAGES, TAG_SERVED);
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, NULL)) fail("pthread_create");

    registrations();
    closed_when_registered();
    a_move_away();
    a_move_over();
    moves();
    puts("ok");
    return 0;
}
