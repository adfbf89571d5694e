/* integrity: no page may ever come back wrong, torn, exchanged or old.
 *
 * Every 4 KiB slot holds contents that follow from (seed, slot, generation) alone. The last generation of each slot
 * is kept in a shared file mapping, which swap in user space does not manage: a slot that reverts to an older version
 * is found even though that version was once right. A slot belongs to one thread of one process, which alone writes it.
 *
 *   integrity --mib 512 --threads 4 --seconds 10 --writes 30 --seed 7 --alloc malloc --pattern mixed
 *
 * With memory that processes share (--alloc shared, memfd or shm) there may be several; each reads the slots of the
 * others too, and knows by a mark beside the generation when one of those is being written. With --kill-every one of
 * them is killed every so many milliseconds, and another goes on in its place with what it finds; the slots that the
 * killed one was writing are nobody's to check. In the end the first process checks all.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. The seed is printed; with --ops instead of
 * --seconds a run replays exactly (per thread). */
#define _GNU_SOURCE
#include "basics.h"
#include "options.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES_MAX = 64 };
enum { PAGE_BYTES = 4096, PAGE_WORDS = PAGE_BYTES / 8, BLOCK_PAGES_MAX = 64, HISTORY = 64 };
enum kind { ALL_ZERO, HEADER_ONLY, SAME_FILLED, TEXT, INCOMPRESSIBLE, KINDS };
enum pattern { RANDOM, SEQUENTIAL, MIXED };
enum alloc { USE_MALLOC, USE_MMAP, USE_SHARED, USE_MEMFD, USE_SHM };
#define WRITING ((uint64_t)1 << 63) /* beside a generation: the next one is being written */

static const char *kind_names[KINDS] = {"all zero", "header only", "same-filled", "text", "incompressible"};
static const char *vocabulary[16] = {"the page ", "ebbs ", "out ", "of memory ", "into a pool; ", "and flows ",
                                     "back when ", "touched, ", "whole. ", "\n", "id=", "0x7f3a", ",\"name\":\"",
                                     "customer", "2024-11-", "price: "};

static struct {
    uint64_t mib, processes, threads, seconds, ops, write_percent, kill_every, seed;
    int alloc, pattern; /* of the enums above */
    const char *dir;
} options = {.mib = 256, .processes = 1, .threads = 2, .seconds = 5, .write_percent = 30, .alloc = USE_MMAP, .pattern = MIXED};

static uint64_t slot_count;
static uint64_t **slots;               /* where each slot's 4096 bytes lie (unaligned under malloc) */
static _Atomic uint64_t *generations;  /* shared file mapping: the last generation written to each slot */
static atomic_bool stop;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static uint64_t stamp_of(uint64_t slot, uint64_t generation) {
    return mix(mix(options.seed * 0x9e3779b97f4a7c15u + slot + 1) + generation) | 1;
}

static enum kind kind_of(uint64_t stamp) { return (stamp >> 17) % KINDS; }

/* The contents of a slot at a generation: the definition that both writing and checking use. */
static void compose(uint64_t *words, uint64_t slot, uint64_t generation) {
    uint64_t stamp = stamp_of(slot, generation), state = stamp;
    enum kind kind = kind_of(stamp);
    if (kind == ALL_ZERO || kind == HEADER_ONLY) memset(words, 0, PAGE_BYTES);
    if (kind == SAME_FILLED)
        for (int i = 0; i < PAGE_WORDS; i++) words[i] = stamp;
    if (kind == INCOMPRESSIBLE)
        for (int i = 0; i < PAGE_WORDS; i++) words[i] = next(&state);
    if (kind == TEXT) {
        char *text = (char *)words;
        for (size_t at = 0; at < PAGE_BYTES;) {
            const char *word = vocabulary[next(&state) >> 60];
            size_t length = strlen(word);
            if (length > PAGE_BYTES - at) length = PAGE_BYTES - at;
            memcpy(text + at, word, length);
            at += length;
        }
    }
    if (kind != ALL_ZERO && kind != SAME_FILLED) words[0] = slot, words[1] = generation, words[2] = stamp;
}

/* Which generation do the found contents belong to? -1: none that we can tell. */
static int64_t recognise(const uint64_t *found, uint64_t slot, uint64_t expected) {
    uint64_t copy[PAGE_WORDS];
    for (uint64_t back = 0; back <= HISTORY && back <= expected; back++) {
        compose(copy, slot, expected - back);
        if (!memcmp(copy, found, PAGE_BYTES)) return (int64_t)(expected - back);
    }
    return -1;
}

static void report(uint64_t slot, uint64_t expected, const uint64_t *want) {
    uint64_t found[PAGE_WORDS];
    memcpy(found, slots[slot], PAGE_BYTES);
    int first = 0, wrong = 0;
    for (int i = PAGE_WORDS - 1; i >= 0; i--)
        if (found[i] != want[i]) first = i, wrong++;
    int64_t generation = recognise(found, slot, expected);
    flockfile(stdout);
    printf("MISMATCH slot %" PRIu64 " at %p: expected generation %" PRIu64 " (%s), found ", slot, (void *)slots[slot],
           expected, kind_names[kind_of(stamp_of(slot, expected))]);
    if (generation == (int64_t)expected) printf("the right contents at the second look");
    else if (generation >= 0) printf("its older generation %" PRId64, generation);
    else if (found[0] < slot_count && found[2] == stamp_of(found[0], found[1]))
        printf("slot %" PRIu64 " generation %" PRIu64 "%s", found[0], found[1], found[0] == slot ? " in part" : "");
    else printf("no version of it");
    printf("\n  %d words differ, first at word %d: expected %016" PRIx64 ", found %016" PRIx64
           "\n  header found: %016" PRIx64 " %016" PRIx64 " %016" PRIx64 "\n  replay with --seed %" PRIu64 "\n",
           wrong, first, want[first], found[first], found[0], found[1], found[2], options.seed);
    fflush(stdout);
    _exit(1);
}

static void write_slot(uint64_t slot) {
    uint64_t generation = (atomic_load(&generations[slot]) & ~WRITING) + 1;
    atomic_store(&generations[slot], (generation - 1) | WRITING);
    compose(slots[slot], slot, generation);
    atomic_store(&generations[slot], generation);
}

/* A slot of another thread, which may be writing it. Returns whether it was not. */
static bool verify_foreign(uint64_t slot) {
    uint64_t want[PAGE_WORDS], found[PAGE_WORDS], generation = atomic_load(&generations[slot]);
    if (generation & WRITING) return false;
    memcpy(found, slots[slot], PAGE_BYTES);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&generations[slot]) != generation) return false;
    if (generation == 0) memset(want, 0, PAGE_BYTES);
    else compose(want, slot, generation);
    if (memcmp(found, want, PAGE_BYTES)) report(slot, generation, want);
    return true;
}

static void verify_slot(uint64_t slot, uint64_t *state, bool complete) {
    uint64_t want[PAGE_WORDS], generation = atomic_load_explicit(&generations[slot], memory_order_acquire);
    compose(want, slot, generation);
    const uint64_t *found = slots[slot];
    if (complete) {
        if (memcmp(found, want, PAGE_BYTES)) report(slot, generation, want);
        return;
    }
    for (int i = 0; i < 3; i++)
        if (found[i] != want[i]) report(slot, generation, want);
    for (int i = 0; i < 5; i++) {
        uint64_t at = next(state) % PAGE_WORDS;
        if (found[at] != want[at]) report(slot, generation, want);
    }
}

struct worker {
    pthread_t thread;
    uint64_t index, reads, writes, complete;
    bool resumes; /* in the place of one that was killed */
};

static uint64_t workers_in_all(void) { return options.processes * options.threads; }

/* Of W workers in all the slots of worker w are w, w + W, w + 2W, … */
static uint64_t choose(struct worker *w, uint64_t own_count, uint64_t *position, uint64_t *state) {
    bool jump = options.pattern == RANDOM || (options.pattern == MIXED && next(state) % 64 == 0);
    if (options.pattern == MIXED && (*position / 1024) % 2) jump = true; /* stretches of order, stretches of chance */
    uint64_t at = jump ? next(state) % own_count : *position % own_count;
    ++*position;
    return at * workers_in_all() + w->index;
}

static void *work(void *argument) {
    struct worker *w = argument;
    uint64_t state = mix(options.seed + 77 * (w->index + 1)) | 1, position = 0;
    uint64_t own_count = (slot_count - w->index + workers_in_all() - 1) / workers_in_all();
    for (uint64_t i = 0; i < own_count; i++) {
        uint64_t slot = i * workers_in_all() + w->index, generation = atomic_load(&generations[slot]);
        if (w->resumes && generation && !(generation & WRITING)) verify_slot(slot, &state, true), w->reads++, w->complete++;
        else write_slot(slot), w->writes++;
    }
    for (uint64_t op = 0; options.ops ? op < options.ops : !atomic_load_explicit(&stop, memory_order_relaxed); op++) {
        uint64_t slot = choose(w, own_count, &position, &state), dice = next(&state);
        if (options.processes > 1 && (dice >> 40) % 3 == 0) {
            bool stood = verify_foreign((slot + 1 + (dice >> 44) % slot_count) % slot_count);
            w->reads += stood, w->complete += stood;
        } else if (dice % 100 < options.write_percent) {
            write_slot(slot), w->writes++;
        } else {
            bool complete = (dice >> 32) % 4 == 0;
            verify_slot(slot, &state, complete);
            w->reads++, w->complete += complete;
        }
    }
    for (uint64_t i = 0; i < own_count; i++) {
        verify_slot(i * workers_in_all() + w->index, &state, true);
        w->reads++, w->complete++;
    }
    return NULL;
}

static void fail(const char *what) {
    fprintf(stderr, "integrity: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void map_generations(void) {
    char path[4096];
    const char *dir = options.dir ? options.dir : getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    snprintf(path, sizeof path, "%s/integrity-XXXXXX", dir);
    int fd = mkstemp(path);
    if (fd < 0) fail(path);
    unlink(path);
    size_t bytes = slot_count * sizeof *generations;
    if (ftruncate(fd, (off_t)bytes)) fail("ftruncate");
    generations = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (generations == MAP_FAILED) fail("mmap of the generations file");
    close(fd);
}

/* The file that processes share their slots by, or -1. */
static int open_object(void) {
    int fd = -1;
    char name[64];
    snprintf(name, sizeof name, "/integrity-%d", (int)getpid());
    if (options.alloc == USE_MEMFD && (fd = memfd_create(name, 0)) < 0) fail("memfd_create");
    if (options.alloc == USE_SHM) {
        if ((fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600)) < 0) fail("shm_open");
        shm_unlink(name);
    }
    if (fd >= 0 && ftruncate(fd, (off_t)(slot_count * PAGE_BYTES))) fail("ftruncate");
    return fd;
}

static void allocate_slots(void) {
    slots = malloc(slot_count * sizeof *slots);
    if (!slots) fail("malloc");
    uint64_t state = mix(options.seed + 5) | 1;
    char *whole = NULL;
    if (options.alloc != USE_MALLOC) {
        static const int flags[] = {0, MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED | MAP_ANONYMOUS, MAP_SHARED, MAP_SHARED};
        int fd = open_object();
        whole = mmap(NULL, slot_count * PAGE_BYTES, PROT_READ | PROT_WRITE, flags[options.alloc], fd, 0);
        if (whole == MAP_FAILED) fail("mmap");
        if (fd >= 0) close(fd);
    }
    for (uint64_t slot = 0; slot < slot_count;) {
        uint64_t pages = whole ? slot_count : 1 + next(&state) % BLOCK_PAGES_MAX;
        if (pages > slot_count - slot) pages = slot_count - slot;
        char *block = whole ? whole : malloc(pages * PAGE_BYTES);
        if (!block) fail("malloc");
        for (uint64_t i = 0; i < pages; i++) slots[slot++] = (uint64_t *)(block + i * PAGE_BYTES);
    }
}

static const char *const synopsis =
    "usage: integrity [--mib N] [--threads T] [--seconds S | --ops N] [--writes PERCENT] [--seed X]\n"
    "                 [--alloc malloc|mmap|shared|memfd|shm] [--processes P] [--kill-every MS]\n"
    "                 [--pattern random|sequential|mixed] [--dir DIR]\n"
    "Checks that no page comes back wrong, torn, exchanged or old.";

static void parse(int argc, char **argv) {
    options.seed = (uint64_t)time(NULL) ^ ((uint64_t)getpid() << 32);
    const struct program_option table[] = {
        NUMBER("--mib", &options.mib),
        NUMBER("--processes", &options.processes),
        NUMBER("--threads", &options.threads),
        NUMBER("--seconds", &options.seconds),
        NUMBER("--ops", &options.ops),
        NUMBER("--writes", &options.write_percent),
        NUMBER("--kill-every", &options.kill_every),
        NUMBER("--seed", &options.seed),
        TEXT("--dir", &options.dir),
        CHOICE("--alloc", &options.alloc, "malloc", "mmap", "shared", "memfd", "shm"), /* as in the enums above */
        CHOICE("--pattern", &options.pattern, "random", "sequential", "mixed"),
        {0},
    };
    read_options(synopsis, table, argc, argv);
    bool shared = options.alloc >= USE_SHARED;
    if (!options.threads || !options.mib || !options.processes || options.processes > PROCESSES_MAX) usage(synopsis, 2);
    if (options.processes > 1 && !shared) usage(synopsis, 2);
    if (options.kill_every && (options.processes == 1 || options.ops)) usage(synopsis, 2);
}

static uint64_t now_ms(void) { return now_ns() / 1000000; }

static void sleep_ms(uint64_t ms) {
    struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * 1000000)};
    while (nanosleep(&pause, &pause) && errno == EINTR) {}
}

/* What the threads of one process do until `end`, in milliseconds. */
static void run_process(uint64_t process, bool resumes, uint64_t end) {
    struct worker *workers = calloc(options.threads, sizeof *workers);
    if (!workers) fail("calloc");
    for (uint64_t i = 0; i < options.threads; i++) {
        workers[i].index = process * options.threads + i, workers[i].resumes = resumes;
        if ((errno = pthread_create(&workers[i].thread, NULL, work, &workers[i]))) fail("pthread_create");
    }
    if (!options.ops) {
        uint64_t now = now_ms();
        if (now < end) sleep_ms(end - now);
        atomic_store(&stop, true);
    }
    uint64_t reads = 0, writes = 0, complete = 0;
    for (uint64_t i = 0; i < options.threads; i++) {
        pthread_join(workers[i].thread, NULL);
        reads += workers[i].reads, writes += workers[i].writes, complete += workers[i].complete;
    }
    printf("integrity: %" PRIu64 " reads (%" PRIu64 " of complete pages), %" PRIu64 " writes, 0 errors\n", reads,
           complete, writes);
    fflush(stdout);
}

static pid_t start_process(uint64_t process, bool resumes, uint64_t end) {
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        run_process(process, resumes, end);
        _exit(0);
    }
    return pid;
}

static void give_up(const pid_t *pids, const char *why) {
    printf("integrity: a process %s\n", why);
    fflush(stdout);
    for (uint64_t nth = 0; nth < options.processes; nth++) kill(pids[nth], SIGKILL);
    _exit(1);
}

/* Several processes; some are killed on the way. Returns how many. */
static uint64_t run_processes(uint64_t end) {
    pid_t pids[PROCESSES_MAX];
    uint64_t state = mix(options.seed + 9) | 1, killed = 0;
    for (uint64_t nth = 0; nth < options.processes; nth++) pids[nth] = start_process(nth, false, end);
    while (options.kill_every && now_ms() + options.kill_every < end) {
        sleep_ms(options.kill_every);
        uint64_t nth = next(&state) % options.processes;
        int status;
        siginfo_t ended = {0};
        if (now_ms() >= end) break;
        /* Whoever has ended was not killed by us. */
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid) give_up(pids, "has ended too early");
        kill(pids[nth], SIGKILL);
        if (waitpid(pids[nth], &status, 0) < 0) fail("waitpid");
        pids[nth] = start_process(nth, true, end), killed++;
    }
    for (int status; wait(&status) > 0;)
        if (status) give_up(pids, "has failed");
    return killed;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    slot_count = options.mib * (1024 * 1024 / PAGE_BYTES);
    printf("integrity: %" PRIu64 " MiB, %" PRIu64 " threads, %" PRIu64 " %% writes, seed %" PRIu64 "\n", options.mib,
           options.threads, options.write_percent, options.seed);
    fflush(stdout);
    map_generations();
    allocate_slots();
    uint64_t end = now_ms() + options.seconds * 1000;
    if (options.processes == 1) return run_process(0, false, end), 0;
    uint64_t killed = run_processes(end), checked = 0;
    for (uint64_t slot = 0; slot < slot_count; slot++) checked += verify_foreign(slot);
    printf("integrity: %" PRIu64 " processes killed; in the end %" PRIu64 " of %" PRIu64 " slots checked\n", killed,
           checked, slot_count);
    return checked != slot_count;
}
