/* fuzz: whatever a program does with its memory, in whatever order, the memory holds what a model says.
 *
 * Each thread has a territory, in which it maps, unmaps, protects, moves, advises, locks, writes and reads at random,
 * and objects from malloc. It forks; the child checks what it inherited and goes on with a few steps of its own. What
 * every page must hold is kept in static memory, which Pagetide does not manage. A step says itself which pages it
 * takes, from the seed and its number alone, so that any selection of steps is a program: a failure can be made small
 * by leaving steps out (tests/fuzz.py does).
 *
 *   fuzz --seed N [--steps N] [--threads N] [--keep LIST] [--print] [--native] [--raw]
 *        [--no-fork] [--no-direct] [--dir DIR]
 *
 * --keep LIST   only these steps: numbers and ranges with commas, as --print writes them
 * --print       writes each step to standard error before it is taken
 * --native      for a run without Pagetide: nothing is expected to leave memory
 * --raw         calls by number, past the C library's functions
 * --no-fork, --no-direct   leave out forks, and O_DIRECT (where a way that is masked cannot live with them)
 *
 * Exit status: 0 all well, 1 wrong contents or a wrong answer, 2 usage or resources. */
#define _GNU_SOURCE
#include "fuzz/steps.h"
#include "options.h"

static void *thread_lives(void *argument) {
    here = argument;
    size_t first = (size_t)(here - territories) * steps;
    step_number = first, step_name = "start";
    pthread_rwlock_rdlock(&world);
    here->base = map((char *)0x200000000000 + ((size_t)(here - territories) << 36), PAGES, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE);
    forget(0, PAGES, (struct page){.mapped = 1, .access = WRITE});
    here->alternate = map(NULL, ALTERNATE_BYTES / PAGE_BYTES, PROT_READ | PROT_WRITE, 0);
    stack_t stack = {.ss_sp = here->alternate, .ss_size = ALTERNATE_BYTES};
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
    for (size_t page = 0; page < PAGES; page += 2) write_page(page);
    pthread_rwlock_unlock(&world);
    take_steps(first, steps);
    pthread_rwlock_rdlock(&world);
    step_number = first + steps - 1, step_name = "end";
    check_all(here);
    for (size_t page = 0; page < PAGES; page++)
        if (is_forbidden(&here->pages[page])) {
            succeed(!mprotect(at(page), PAGE_BYTES, PROT_READ), "mprotect");
            check_page(here, page);
        }
    pthread_rwlock_unlock(&world);
    return NULL;
}

static void keep(const char *list) {
    keeping = 1;
    for (char *rest = (char *)list; *rest;) {
        size_t from = strtoul(rest, &rest, 10), to = *rest == '-' ? strtoul(rest + 1, &rest, 10) : from;
        for (size_t number = from; number <= to && number < STEPS_MAX; number++) kept[number / 8] |= (unsigned char)(1 << number % 8);
        if (*rest == ',') rest++;
        else if (*rest) fprintf(stderr, "fuzz: --keep: a list of numbers and ranges, not %s\n", rest), exit(2);
    }
}

static void parse(int count, char **words) {
    static const char *const synopsis =
        "usage: fuzz [--seed N] [--steps N] [--threads N] [--keep LIST] [--print] [--native] [--raw]\n"
        "            [--no-fork] [--no-direct] [--dir DIR]";
    const char *list = NULL;
    const struct program_option table[] = {
        NUMBER("--seed", &seed),
        NUMBER("--steps", &steps),
        NUMBER("--threads", &threads),
        TEXT("--keep", &list),
        TEXT("--dir", &directory),
        SWITCH("--print", &printing),
        SWITCH("--native", &native),
        SWITCH("--raw", &raw),
        SWITCH("--no-fork", &without_fork),
        SWITCH("--no-direct", &without_direct),
        {0},
    };
    read_options(synopsis, table, count, words);
    if (list) keep(list);
    if (!threads || threads > THREADS_MAX || !steps || threads * steps > STEPS_MAX) fprintf(stderr, "fuzz: 1 to %d threads, and at most %d steps in all\n", THREADS_MAX, STEPS_MAX), exit(2);
}

int main(int count, char **options) {
    parse(count, options);
    scratch_file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    backing_file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (scratch_file < 0 || backing_file < 0) fail(directory);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", scratch_file);
    if (!without_direct) direct_file = open(path, O_RDWR | O_CLOEXEC | O_DIRECT); /* not everywhere: -1 */
    for (uint32_t tag = 1; tag <= FILE_PAGES; tag++) {
        uint64_t page[PAGE_WORDS];
        for (size_t word = 0; word < PAGE_WORDS; word++) page[word] = base_word(tag, word);
        if (pwrite(backing_file, page, sizeof page, (off_t)(tag - 1) * PAGE_BYTES) != sizeof page) fail("write");
    }
    for (size_t thread = 0; thread < threads; thread++) territories[thread].tags = FILE_PAGES;
    children = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (children == MAP_FAILED) fail("mmap");
    shared_area = map(NULL, SHARED_PAGES, PROT_READ | PROT_WRITE, 0);
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    struct sigaction handler = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGSEGV, &fault, NULL), sigaction(SIGBUS, &fault, NULL), sigaction(SIGUSR1, &handler, NULL);
    pthread_t started[THREADS_MAX];
    for (size_t thread = 0; thread < threads; thread++)
        if (pthread_create(&started[thread], NULL, thread_lives, &territories[thread])) fail("pthread_create");
    for (size_t thread = 0; thread < threads; thread++) pthread_join(started[thread], NULL);
    return 0;
}
