/* hot: scattered pages are written all the time, while the pages beside them are read once in a long while and leave. What
 * is hot stays; what happens to a cluster that is watched for writes must change no byte: holes, forks, mremap, mprotect,
 * system calls that write, O_DIRECT.
 *
 *   hot [--direct] [--sandboxed] [--rounds N] | --inherited
 *
 *   --direct      a file is open past the page cache, so that pages may be pinned
 *   --sandboxed   after the first round all threads are in a sandbox that kills for `process_madvise`
 *   --inherited   it is kept over an exec of this program
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* Every eighth page of the first half is hot. The rest is cold, and more than a cap of 36 MiB. */
enum { PAGES = 64 * 256, HOT_STEP = 8, PART = 700, TAG = 5 };

static char *all;
static uint64_t rounds_of[PAGES];
static int is_hole[PAGES];

static uint64_t *page_at(size_t page) { return (uint64_t *)(void *)(all + page * PAGE_BYTES); }

static int is_hot(size_t page) { return page % HOT_STEP == 0 && page < PAGES / 2; }

/* Word 1 of each page is the round in which it was written last. */
static void verify(size_t page) {
    const uint64_t *words = page_at(page);
    if (words[1] != rounds_of[page]) wrong("the round", words + 1, rounds_of[page], words[1]);
    for (int word = 0; word < PAGE_WORDS; word += word == 0 ? 2 : 37) {
        uint64_t want = is_hole[page] ? 0 : word_at(TAG, page, word);
        if (words[word] != want) wrong("contents", words + word, want, words[word]);
    }
}

static void write_hot(uint64_t round) {
    for (size_t page = 0; page < PAGES; page++)
        if (is_hot(page)) verify(page), page_at(page)[1] = rounds_of[page] = round;
}

static void scan_cold(size_t from, size_t count) {
    for (size_t page = from; page < from + count; page++)
        if (!is_hot(page % PAGES)) verify(page % PAGES);
}

/* Pages that are written by the kernel. */
static void read_into(size_t page, uint64_t round, int direct, off_t size) {
    size_t to = page % (size_t)(PAGES - 8);
    if (direct >= 0) {
        /* What is there goes to the file, and comes back with another round. */
        char *bounce = page_at(to)[1] == rounds_of[to] ? (char *)page_at(to) : NULL;
        demand(bounce != NULL, "the page is as it was");
        page_at(to)[1] = rounds_of[to] = round;
        if (pwrite(direct, bounce, PAGE_BYTES, (off_t)(page * PAGE_BYTES) % size) != PAGE_BYTES) fail("pwrite");
        page_at(to)[1] = 1;
        if (pread(direct, bounce, PAGE_BYTES, (off_t)(page * PAGE_BYTES) % size) != PAGE_BYTES) fail("pread");
    } else {
        int ends[2];
        if (pipe(ends) || write(ends[1], &round, 8) != 8 || read(ends[0], page_at(to) + 1, 8) != 8) fail("a pipe");
        close(ends[0]), close(ends[1]);
        rounds_of[to] = round;
    }
    verify(to);
}

/* A part moves away and comes back, at the same address. */
static void move_part(size_t from) {
    char *at = all + from * PAGE_BYTES, *elsewhere = map(NULL, PART, PROT_NONE, 0);
    if (mremap(at, PART * PAGE_BYTES, PART * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) != elsewhere) fail("mremap away");
    if (mremap(elsewhere, PART * PAGE_BYTES, PART * PAGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) fail("mremap back");
}

static void drop_part(size_t from) {
    if (madvise(all + from * PAGE_BYTES, 9 * PAGE_BYTES, MADV_DONTNEED)) fail("madvise");
    for (size_t page = from; page < from + 9; page++) is_hole[page] = 1, rounds_of[page] = 0;
}

/* A child writes what its parent must not see, and the other way round. */
static void fork_once(uint64_t round) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    write_hot(round);
    if (!child) {
        for (size_t page = 0; page < PAGES; page += 5) verify(page);
        _exit(0);
    }
    scan_cold(0, PAGES / 4);
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    demand(status == 0, "the child has ended well");
}

static void enter_sandbox(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("prctl");
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) fail("seccomp");
}

int main(int count, char **arguments) {
    int direct = -1, sandboxed = 0;
    uint64_t rounds = 8, state = 88172645463325252u;
    for (int at = 1; at < count; at++) {
        if (!strcmp(arguments[at], "--direct")) {
            direct = open("/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
            if (direct < 0) fail("a file opened with O_DIRECT");
        } else if (!strcmp(arguments[at], "--sandboxed")) {
            sandboxed = 1;
        } else if (!strcmp(arguments[at], "--inherited")) {
            enter_sandbox();
            execl("/proc/self/exe", "hot", (char *)NULL);
            fail("exec");
        } else if (!strcmp(arguments[at], "--rounds") && at + 1 < count) {
            rounds = strtoull(arguments[++at], NULL, 10);
        } else {
            fprintf(stderr, "usage: hot [--direct] [--sandboxed] [--rounds N] | --inherited\n");
            return 2;
        }
    }
    const off_t size = 64 * PAGE_BYTES;
    if (direct >= 0 && ftruncate(direct, size)) fail("ftruncate");
    all = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(all, 0, PAGES, TAG);
    for (size_t page = 0; page < PAGES; page++) page_at(page)[1] = 0;
    for (uint64_t round = 1; round <= rounds; round++) {
        for (size_t part = 0; part < 16; part++) {
            write_hot(round * 100 + part);
            scan_cold((round * 16 + part) * (PAGES / 40), PAGES / 40);
        }
        read_into(next_random(&state) % PAGES, round * 100 + 50, direct, size);
        if (sandboxed && round == 1) enter_sandbox();
        size_t from = next_random(&state) % (PAGES - PART);
        if (round % 4 == 1) move_part(from);
        if (round % 4 == 2) drop_part(from);
        if (round % 4 == 3) fork_once(round * 100 + 60);
        if (round % 4 == 0) {
            if (mprotect(all + from * PAGE_BYTES, PART * PAGE_BYTES, PROT_READ)) fail("mprotect");
            scan_cold(0, PAGES);
            if (mprotect(all + from * PAGE_BYTES, PART * PAGE_BYTES, PROT_READ | PROT_WRITE)) fail("mprotect");
        }
    }
    for (size_t page = 0; page < PAGES; page++) verify(page);
    puts("ok");
    return 0;
}
