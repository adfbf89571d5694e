/* crossing: copies between processes' memory by process_vm_writev and process_vm_readv while pages of both sides leave
 * and come back: the kernel has pages of one side pinned while it waits for pages of the other.
 *
 * crossing [--mib N] [--rounds N] [--raw]. Exit status: 0 all well, 1 wrong contents, 2 resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <sys/uio.h>
#include <sys/wait.h>

static size_t pages = 24 * 256;

static void cross(pid_t pid, char *here, char *there, int writes) {
    struct iovec local = {here, pages * PAGE_BYTES}, remote = {there, pages * PAGE_BYTES};
    long call = writes ? SYS_process_vm_writev : SYS_process_vm_readv;
    ssize_t done = raw      ? syscall(call, pid, &local, 1, &remote, 1, 0)
                   : writes ? process_vm_writev(pid, &local, 1, &remote, 1, 0)
                            : process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (done != (ssize_t)(pages * PAGE_BYTES)) fail(writes ? "process_vm_writev" : "process_vm_readv");
}

/* Writes what is here to `there`, looks, and reads it back over something else. */
static void to_and_fro(pid_t pid, char *here, char *there, uint64_t tag, void (*look)(char *, uint64_t)) {
    fill(here, 0, pages, tag);
    cross(pid, here, there, 1);
    look(there, tag);
    fill(here, 0, pages, tag + 1);
    cross(pid, here, there, 0);
    check(here, 0, pages, tag);
}

static void look_here(char *there, uint64_t tag) { check(there, 0, pages, tag); }

static int to_child[2], to_parent[2];

/* The child looks at its own memory. */
static void ask_child(char *there, uint64_t tag) {
    uint64_t answer;
    (void)there;
    if (write(to_child[1], &tag, sizeof tag) != sizeof tag) fail("a pipe to the child");
    if (read(to_parent[0], &answer, sizeof answer) != sizeof answer) fail("a pipe from the child");
    demand(answer == tag, "the child found what was written");
}

static void serve(char *there) {
    uint64_t tag;
    close(to_child[1]);
    while (read(to_child[0], &tag, sizeof tag) == sizeof tag) {
        check(there, 0, pages, tag);
        if (write(to_parent[1], &tag, sizeof tag) != sizeof tag) fail("a pipe to the parent");
    }
    _exit(0);
}

int main(int count, char **arguments) {
    uint64_t rounds = 4;
    const struct program_option table[] = {MIB("--mib", &pages), NUMBER("--rounds", &rounds), SWITCH("--raw", &raw), {0}};
    read_options("usage: crossing [--mib N] [--rounds N] [--raw]", table, count, arguments);
    char *here = map(NULL, pages, PROT_READ | PROT_WRITE, 0), *there = map(NULL, pages, PROT_READ | PROT_WRITE, 0);
    char *shared = mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(to_child) || pipe(to_parent)) fail("mmap or pipe");
    begin("its own memory");
    for (uint64_t round = 0; round < rounds; round++) to_and_fro(getpid(), here, there, 2 * round, look_here);
    begin("shared memory");
    for (uint64_t round = 0; round < rounds; round++) to_and_fro(getpid(), here, shared, 1000 + 2 * round, look_here);
    begin("a child's memory");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) serve(there);
    close(to_parent[1]);
    for (uint64_t round = 0; round < rounds; round++) to_and_fro(child, here, there, 2000 + 2 * round, ask_child);
    close(to_child[1]);
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    demand(status == 0, "the child is well");
    check(shared, 0, pages, 1000 + 2 * (rounds - 1));
    puts("all copied");
    return 0;
}
