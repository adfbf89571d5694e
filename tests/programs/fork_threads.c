/* fork_threads: forks from a program whose other threads fault, allocate and use streams meanwhile.
 *
 * --threads threads go round their part of --mib MiB: each page carries its index and a generation in every 64th word,
 * and a thread always finishes a page before it begins the next. One more thread opens, writes and closes streams
 * without a pause, so that a fork often comes while it holds the C library's list of streams. The main thread forks
 * --forks children, one after another. A child verifies every page: its index and its generation, twice. Then it writes
 * some, forks by itself once, and ends by exit(), which flushes all streams, or by executing /bin/true.
 *
 *   fork_threads --mib 64 --threads 2 --forks 20
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { STEP = 64, THREADS_MAX = 16 };

static uint64_t mib = 64, threads = 2, forks = 20, page_count;
static uint64_t *memory;
static _Atomic int stop;

static uint64_t stamp(uint64_t page, uint64_t generation) { return page << 32 | generation; }

static void write_page(uint64_t page, uint64_t generation) {
    uint64_t *words = memory + page * PAGE_WORDS;
    for (int word = 0; word < PAGE_WORDS; word += STEP) words[word] = stamp(page, generation);
}

static void *writer(void *argument) {
    uint64_t self = (uintptr_t)argument, from = page_count * self / threads, to = page_count * (self + 1) / threads;
    for (uint64_t generation = 2; !stop; generation++)
        for (uint64_t page = from; page < to && !stop; page++) {
            uint64_t *words = memory + page * PAGE_WORDS;
            uint64_t before = words[0];
            if (before != stamp(page, generation - 1)) {
                printf("page %" PRIu64 ": found %016" PRIx64 ", expected generation %" PRIu64 "\n", page, before,
                       generation - 1);
                fflush(stdout);
                _exit(1);
            }
            write_page(page, generation);
        }
    return NULL;
}

static void *streamer(void *argument) {
    (void)argument;
    while (!stop) {
        FILE *stream = fopen("/dev/null", "w");
        if (!stream) fail("/dev/null");
        char *text = malloc(3000);
        if (!text) fail("malloc");
        memset(text, 'x', 3000);
        fwrite(text, 1, 3000, stream);
        free(text);
        fclose(stream);
    }
    return NULL;
}

/* A fork is no snapshot of one instant: a page that a thread was writing may end with words of one generation before.
 * Returns a checksum of all that was found. */
static uint64_t verify(void) {
    uint64_t sum = 0;
    for (uint64_t page = 0; page < page_count; page++) {
        uint64_t *words = memory + page * PAGE_WORDS, last = words[0];
        for (int word = 0; word < PAGE_WORDS; word += STEP) {
            uint64_t found = words[word];
            sum = (sum ^ found) * 0x9e3779b97f4a7c15u;
            if (found >> 32 == page && (found == last || (last == words[0] && found == last - 1))) {
                last = found;
                continue;
            }
            printf("child %d: page %" PRIu64 ", word %d: %016" PRIx64 ", the first is %016" PRIx64 "\n", (int)getpid(), page,
                   word, found, words[0]);
            fflush(stdout);
            _exit(1);
        }
    }
    return sum;
}

static void wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    printf("fork_threads: a child ended with status %x\n", status);
    fflush(stdout);
    _exit(1);
}

static void live(uint64_t nth) {
    if (verify() != verify()) {
        printf("child %d: its pages change although nobody writes them\n", (int)getpid());
        fflush(stdout);
        _exit(1);
    }
    for (uint64_t page = nth % 5; page < page_count; page += 5) write_page(page, 1000000 + nth);
    uint64_t sum = verify();
    pid_t child = fork();
    if (child < 0) fail("fork in a child");
    if (!child) {
        if (verify() != sum) _exit(1);
        exit(0);
    }
    wait_for(child);
    if (nth % 2) exit(0);
    execl("/bin/true", "true", NULL);
    fail("/bin/true");
}

int main(int argc, char **argv) {
    const struct program_option table[] = {NUMBER("--mib", &mib), NUMBER("--threads", &threads), NUMBER("--forks", &forks), {0}};
    read_options("usage: fork_threads [--mib N] [--threads T] [--forks N]", table, argc, argv);
    if (threads < 1 || threads > THREADS_MAX) errno = EINVAL, fail("--threads");
    page_count = mib * (1024 * 1024 / PAGE_BYTES);
    memory = mmap(NULL, page_count * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    for (uint64_t page = 0; page < page_count; page++) write_page(page, 1);
    pthread_t handles[THREADS_MAX + 1];
    for (uint64_t thread = 0; thread <= threads; thread++)
        if ((errno = pthread_create(&handles[thread], NULL, thread < threads ? writer : streamer, (void *)(uintptr_t)thread)))
            fail("pthread_create");
    for (uint64_t nth = 0; nth < forks; nth++) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (!child) live(nth);
        wait_for(child);
    }
    stop = 1;
    for (uint64_t thread = 0; thread <= threads; thread++) pthread_join(handles[thread], NULL);
    printf("fork_threads: %" PRIu64 " MiB, %" PRIu64 " forks beside %" PRIu64 " threads, 0 errors\n", mib, forks, threads);
    return 0;
}
