/* clones: every way other than fork in which the C library or syscall(2) makes a child with a copy of memory, while most
 * of that memory is out: clone, clone3, with and without a stack, and with flags that change what comes after.
 *
 *   clones [--press MIB] [--native]
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/wait.h>

enum { BUFFER_PAGES = 2048, TAG = 9, SMALL_STACK = 8192 };

static char *buffer;
static char stack[1 << 20] __attribute__((aligned(64)));
static jmp_buf back;
static volatile int *shared;

static void send_out(void) {
    fill(buffer, 0, BUFFER_PAGES, TAG);
    send_away(buffer, BUFFER_PAGES);
}

/* What every child does: all of it is there, may be written, and the parent does not see that. */
static int look(void *expected) {
    check(buffer, 0, BUFFER_PAGES, TAG);
    fill(buffer, 0, 16, TAG + 1);
    demand(expected == &shared, "its argument");
    *shared = 1;
    return 7;
}

static int jump(void *unused) {
    (void)unused;
    longjmp(back, 1);
}

static void await(pid_t child, int want, int options) {
    int status;
    if (child < 0) fail("the child");
    if (waitpid(child, &status, options) != child) fail("waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != want) wrong("a child's status", NULL, (uint64_t)want, (uint64_t)status);
    check(buffer, 0, BUFFER_PAGES, TAG);
}

/* clone(3) with these flags. */
static void by_function(const char *name, int flags, size_t stack_bytes) {
    begin(name);
    send_out();
    *shared = 0;
    int pidfd = -1;
    pid_t child = clone(look, stack + stack_bytes, flags | SIGCHLD, (void *)&shared, &pidfd, NULL, NULL);
    if (flags & CLONE_VFORK) demand(*shared == 1, "with CLONE_VFORK the child is done first");
    if (flags & CLONE_PIDFD) {
        struct pollfd polled = {pidfd, POLLIN, 0};
        demand(child > 0 && poll(&polled, 1, -1) == 1, "a pidfd");
        close(pidfd);
    }
    await(child, 7, 0);
}

static void that_jumps(void) {
    begin("clone whose child jumps back to its caller's frame");
    send_out();
    pid_t child = 0;
    if (!setjmp(back)) {
        child = clone(jump, stack + sizeof stack, SIGCHLD, NULL);
        await(child, 9, 0);
        return;
    }
    check(buffer, 0, BUFFER_PAGES, TAG);
    _exit(9);
}

/* A child of the same parent: whoever started us waits for it. Here that is a child of ours. */
static void for_its_parent(void) {
    begin("clone with CLONE_PARENT");
    pid_t middle = fork();
    if (middle < 0) fail("fork");
    if (!middle) {
        send_out();
        pid_t child = clone(look, stack + sizeof stack, CLONE_PARENT | SIGCHLD, (void *)&shared);
        _exit(child > 0 ? 0 : 2);
    }
    int status, seen = 0;
    for (pid_t child; (child = waitpid(-1, &status, 0)) > 0; seen++)
        demand(WIFEXITED(status) && WEXITSTATUS(status) == (child == middle ? 0 : 7), "a status");
    demand(seen == 2, "both were children of ours");
}

/* clone3 by number, on the same stack. */
static void by_structure(const char *name, uint64_t flags, size_t size, int cgroup) {
    begin(name);
    send_out();
    *shared = 0;
    int pidfd = -1;
    struct clone_args arguments = {.flags = flags, .pidfd = (uintptr_t)&pidfd, .exit_signal = SIGCHLD,
                                   .cgroup = (uint64_t)cgroup};
    pid_t child = (pid_t)syscall(SYS_clone3, &arguments, size);
    if (!child) _exit(look((void *)&shared));
    if (flags & CLONE_VFORK) demand(*shared == 1, "with CLONE_VFORK the child is done first");
    if (child < 0 && (flags & CLONE_INTO_CGROUP)) {
        fprintf(stderr, "no child in that cgroup: %s\n", strerror(errno));
        return;
    }
    await(child, 7, 0);
    if (flags & CLONE_PIDFD) close(pidfd);
}

/* The kernel writes the child's number in the child before anything of it runs: into a page that is out. */
static void that_are_told_their_number(void) {
    begin("clone with CLONE_CHILD_SETTID into memory that is out");
    send_out();
    int *number = (int *)(void *)(buffer + 700 * PAGE_BYTES);
    int before = number[0];
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_CHILD_SETTID | SIGCHLD, 0, 0, number, 0);
    if (!child) {
        demand(number[0] == getpid(), "its number");
        number[0] = before;
        check(buffer, 0, BUFFER_PAGES, TAG);
        _exit(8);
    }
    await(child, 8, 0);
}

static void that_are_refused(void) {
    begin("clone by number on another stack");
    send_out();
    struct clone_args arguments = {.exit_signal = SIGCHLD, .stack = (uintptr_t)stack, .stack_size = sizeof stack};
    demand(syscall(SYS_clone, SIGCHLD, stack + sizeof stack, 0, 0, 0) == -1 && errno == EINVAL, "clone says so");
    demand(syscall(SYS_clone3, &arguments, sizeof arguments) == -1 && errno == EINVAL, "clone3 says so");
    demand(waitpid(-1, NULL, 0) == -1 && errno == ECHILD, "and there is no child");
    demand(clone(look, NULL, SIGCHLD, NULL) == -1 && errno == EINVAL, "clone(3) without a stack");
    demand(clone(look, stack + sizeof stack, CLONE_SIGHAND | SIGCHLD, NULL) == -1 && errno == EINVAL,
           "flags that the kernel refuses");
    check(buffer, 0, BUFFER_PAGES, TAG);
}

int main(int count, char **words) {
    for (int nth = 1; nth < count; nth++) {
        if (!strcmp(words[nth], "--press") && nth + 1 < count)
            press_pages = strtoul(words[++nth], NULL, 10) * 256;
        else if (!strcmp(words[nth], "--native")) native = 1;
        else return fprintf(stderr, "clones: what is %s?\n", words[nth]), 2;
    }
    buffer = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("mmap");

    by_function("clone on a stack of its own", 0, sizeof stack);
    by_function("clone on a stack of 8 KiB", 0, SMALL_STACK);
    by_function("clone with CLONE_FILES and CLONE_FS", CLONE_FILES | CLONE_FS, sizeof stack);
    by_function("clone with CLONE_PIDFD", CLONE_PIDFD, sizeof stack);
    by_function("clone with CLONE_VFORK alone", CLONE_VFORK, sizeof stack);
    that_jumps();
    for_its_parent();
    if (!geteuid()) {
        by_function("clone into namespaces", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET, sizeof stack);
        by_function("clone into a pid namespace", CLONE_NEWPID, sizeof stack);
    }
    by_structure("clone3", 0, sizeof(struct clone_args), 0);
    by_structure("clone3 by its first structure", CLONE_PIDFD, CLONE_ARGS_SIZE_VER0, 0);
    by_structure("clone3 with CLONE_VFORK alone", CLONE_VFORK, sizeof(struct clone_args), 0);
    int cgroup = open("/sys/fs/cgroup/unified", O_DIRECTORY | O_RDONLY);
    if (cgroup < 0) cgroup = open("/sys/fs/cgroup", O_DIRECTORY | O_RDONLY);
    if (cgroup >= 0) by_structure("clone3 into a cgroup", CLONE_INTO_CGROUP, sizeof(struct clone_args), cgroup);
    that_are_told_their_number();
    if (!native) that_are_refused();
    return 0;
}
