// Gives up its privileges, and needs more memory than the cap allows: in this process, and in a program that it starts.
//   privileges MIB WAY [NEXT…]
// WAY is any of, in this order, with commas between: user, caps, quiet (not to be dumped), net, root=DIR, number (the
// calls by syscall(2)), exec (starts itself anew, with NEXT), fork (a child does the rest, after it has allocated).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, WORDS = 512 };

static void check(int ok, const char *what) {
    if (!ok) {
        printf("%s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static int has(const char *ways, const char *way) {
    const char *at = strstr(ways, way);
    return at && (at == ways || at[-1] == ',');
}

// Some of each page differs from every other page, and compresses badly.
static uint64_t word(size_t page, int at) {
    uint64_t x = page * WORDS + at + 1;
    x *= 0x9e3779b97f4a7c15;
    return at % 4 ? x ^ x >> 29 : page;
}

static uint64_t *fill(size_t pages) {
    uint64_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    for (size_t page = 0; page < pages; page++)
        for (int at = 0; at < WORDS; at++)
            memory[page * WORDS + at] = word(page, at);
    return memory;
}

static void compare(uint64_t *memory, size_t pages) {
    for (size_t page = 0; page < pages; page++)
        for (int at = 0; at < WORDS; at++)
            if (memory[page * WORDS + at] != word(page, at)) {
                printf("page %zu word %d is wrong: %lx, not %lx\n", page, at, memory[page * WORDS + at], word(page, at));
                exit(3);
            }
}

static void give_up(const char *ways) {
    int by_number = has(ways, "number");
    if (has(ways, "net"))
        check(!unshare(CLONE_NEWNET), "unshare");
    const char *root = strstr(ways, "root=");
    if (root) {
        char directory[4096];
        snprintf(directory, sizeof directory, "%.*s", (int)strcspn(root + 5, ","), root + 5);
        check(!(by_number ? syscall(SYS_chroot, directory) : chroot(directory)) && !chdir("/"), "chroot");
    }
    if (has(ways, "user")) {
        if (by_number) {
            gid_t none = NOBODY;
            check(!syscall(SYS_setgroups, 0, &none) && !syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY)
                && !syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY), "setresuid");
        } else {
            check(!setgroups(0, NULL) && !setgid(NOBODY) && !setuid(NOBODY), "setuid");
        }
        check(geteuid() == NOBODY, "geteuid");
    }
    if (has(ways, "caps")) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0}};
        check(!syscall(SYS_capset, &header, none), "capset");
    }
    if (has(ways, "quiet"))
        check(!prctl(PR_SET_DUMPABLE, 0), "prctl");
}

int main(int argc, char **argv) {
    check(argc >= 3, "usage");
    size_t pages = strtoul(argv[1], NULL, 0) * 256;
    const char *ways = argv[2];
    if (has(ways, "fork")) {
        uint64_t *memory = fill(pages);
        pid_t pid = fork();
        check(pid >= 0, "fork");
        compare(memory, pages);
        int status = 0;
        if (pid) {
            check(waitpid(pid, &status, 0) == pid, "waitpid");
            return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
        }
    }
    give_up(ways);
    if (has(ways, "exec")) {
        check(argc > 3, "usage");
        char *next[] = {argv[0], argv[1], argv[3], NULL};
        execve(argv[0], next, (char *[]){NULL});
        check(0, "execve");
    }
    compare(fill(pages), pages);
    puts("good");
    return 0;
}
