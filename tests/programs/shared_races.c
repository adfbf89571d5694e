/* Calls on shared memory by several threads and processes at once, in memory that is too small for it: what one of them
 * wrote stays, however the calls of the others fall.
 *
 *   shared_races [ROUNDS [RACE]]
 *
 * Exit status: 0 all well; 2 usage or resources; killed by SIGABRT for wrong contents. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basics.h"

enum { MIB = 1 << 20, PAGE = 4096, WORDS = PAGE / 8 };

extern char **environ;
static int rounds = 20;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "WRONG, line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            abort(); \
        } \
    } while (0)

static void fill(char *start, size_t first, size_t end, uint64_t salt) {
    for (size_t page = first; page < end; page++)
        for (size_t word = 0; word < WORDS; word++) ((uint64_t *)(void *)(start + page * PAGE))[word] = mix(page * WORDS + word + salt) >> (page % 3 * 20);
}

static int holds(const char *start, size_t first, size_t end, uint64_t salt) {
    for (size_t page = first; page < end; page++)
        for (size_t word = 0; word < WORDS; word++)
            if (((const uint64_t *)(const void *)(start + page * PAGE))[word] != mix(page * WORDS + word + salt) >> (page % 3 * 20)) return 0;
    return 1;
}

static char *map(int file, size_t length) {
    char *start = mmap(NULL, length, PROT_READ | PROT_WRITE, file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    CHECK(start != MAP_FAILED);
    return start;
}

/* More than the cap is written elsewhere. */
static void push_out(void) {
    static char *filler;
    static uint64_t round;
    if (!filler) filler = map(-1, 40 * MIB);
    fill(filler, 0, 40 * MIB / PAGE, ++round);
}

static void await(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static pthread_t run(void *(*what)(void *), void *with) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, what, with) == 0);
    return thread;
}

/* --- Two threads set memory of one memfd aside, each a page further, and write there --- */

enum { RECORDS = 600 };
static int grown;
static char *grown_at;
static atomic_int next_record;

static void *grow(void *unused) {
    (void)unused;
    for (int record; (record = next_record++) < RECORDS;) {
        CHECK(fallocate(grown, 0, (off_t)record * PAGE, PAGE) == 0);
        fill(grown_at, record, record + 1, 11);
    }
    return NULL;
}

static void two_threads_set_aside(void) {
    for (int round = 0; round < rounds; round++) {
        grown = memfd_create("grown", 0);
        CHECK(grown >= 0);
        grown_at = map(grown, RECORDS * PAGE);
        next_record = 0;
        pthread_t other = run(grow, NULL);
        grow(NULL);
        pthread_join(other, NULL);
        if (round % 4 == 0) push_out();
        struct stat status;
        CHECK(fstat(grown, &status) == 0 && status.st_size == RECORDS * PAGE);
        CHECK(holds(grown_at, 0, RECORDS, 11));
        munmap(grown_at, RECORDS * PAGE), close(grown);
    }
}

/* --- Holes are punched beside forks, programs that start, and writes to the pages next to them --- */

enum { PUNCHED = 2048 };
static int punched;
static char *punched_at;
static atomic_int stop;

static void *punch(void *unused) {
    (void)unused;
    for (uint64_t random = 1; !stop;) {
        /* Pages of odd sixteens. */
        size_t first = next_random(&random) % (PUNCHED / 32) * 32 + 16;
        CHECK(fallocate(punched, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first * PAGE, 16 * PAGE) == 0);
        for (size_t page = first; page < first + 16; page++) CHECK(*(volatile uint64_t *)(void *)(punched_at + page * PAGE) == 0);
    }
    return NULL;
}

static void *write_beside(void *unused) {
    (void)unused;
    for (uint64_t random = 7; !stop;) {
        size_t first = next_random(&random) % (PUNCHED / 32) * 32;
        CHECK(holds(punched_at, first, first + 16, 21));
        fill(punched_at, first, first + 16, 21);
    }
    return NULL;
}

static void punches_beside_forks(void) {
    punched = memfd_create("punched", MFD_CLOEXEC);
    CHECK(punched >= 0 && ftruncate(punched, PUNCHED * PAGE) == 0);
    punched_at = map(punched, PUNCHED * PAGE);
    for (size_t first = 0; first < PUNCHED; first += 32) fill(punched_at, first, first + 16, 21);
    stop = 0;
    pthread_t threads[] = {run(punch, NULL), run(write_beside, NULL)};
    for (int round = 0; round < 3 * rounds; round++) {
        pid_t child;
        if (round % 3 == 2) {
            char *program[] = {"/bin/true", NULL};
            CHECK(posix_spawn(&child, program[0], NULL, NULL, program, environ) == 0);
        } else if ((child = fork()) == 0) {
            for (size_t first = round % 2 * 32; first < PUNCHED; first += 64) CHECK(holds(punched_at, first, first + 16, 21));
            _exit(0);
        }
        await(child);
        if (round % 16 == 0) push_out();
    }
    stop = 1;
    pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
    for (size_t first = 0; first < PUNCHED; first += 32) CHECK(holds(punched_at, first, first + 16, 21));
    munmap(punched_at, PUNCHED * PAGE), close(punched);
}

/* --- Several processes map one file of /dev/shm for the first time, at once --- */

enum { MAPPERS = 4, SHARED_PAGES = 1024 };

static void first_mappings_at_once(void) {
    char name[64];
    snprintf(name, sizeof name, "/pagetide-races-%d", getpid());
    struct gate {
        atomic_int ready, go;
    } *gate = (void *)map(-1, MIB);
    for (int round = 0; round < rounds; round++) {
        gate->ready = gate->go = 0;
        int file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        CHECK(file >= 0 && ftruncate(file, SHARED_PAGES * PAGE) == 0);
        close(file);
        pid_t children[MAPPERS];
        for (int nth = 0; nth < MAPPERS; nth++) {
            if ((children[nth] = fork())) continue;
            gate->ready++;
            while (!gate->go) {}
            file = shm_open(name, O_RDWR, 0);
            CHECK(file >= 0);
            char *start = map(file, SHARED_PAGES * PAGE);
            size_t part = SHARED_PAGES / MAPPERS;
            fill(start, nth * part, (nth + 1) * part, 31);
            /* The last has the others' pages, too. */
            if (++gate->ready == 2 * MAPPERS) CHECK(holds(start, 0, SHARED_PAGES, 31));
            _exit(0);
        }
        while (gate->ready < MAPPERS) {}
        gate->go = 1;
        for (int nth = 0; nth < MAPPERS; nth++) await(children[nth]);
        if (round % 4 == 0) push_out();
        file = shm_open(name, O_RDWR, 0);
        char *start = map(file, SHARED_PAGES * PAGE);
        CHECK(holds(start, 0, SHARED_PAGES, 31));
        munmap(start, SHARED_PAGES * PAGE), close(file);
        CHECK(shm_unlink(name) == 0);
    }
}

/* --- A descriptor comes to stand for another memfd while it is being mapped --- */

enum { SWAPPED_PAGES = 512 };
static int files[2], target;

static void *exchange(void *unused) {
    (void)unused;
    for (unsigned nth = 0; !stop; nth++) CHECK(dup2(files[nth % 2], target) == target);
    return NULL;
}

static void descriptors_that_change(void) {
    for (int nth = 0; nth < 2; nth++) {
        files[nth] = memfd_create("exchanged", 0);
        CHECK(files[nth] >= 0 && ftruncate(files[nth], SWAPPED_PAGES * PAGE) == 0);
        char *start = map(files[nth], SWAPPED_PAGES * PAGE);
        fill(start, 0, SWAPPED_PAGES, 41 + nth);
        munmap(start, SWAPPED_PAGES * PAGE);
    }
    target = dup(files[0]);
    stop = 0;
    pthread_t thread = run(exchange, NULL);
    int seen[2] = {0, 0};
    for (int round = 0; round < 10 * rounds; round++) {
        char *start = map(target, SWAPPED_PAGES * PAGE);
        int nth = holds(start, 0, 1, 41) ? 0 : 1;
        CHECK(holds(start, 0, SWAPPED_PAGES, 41 + nth));
        seen[nth]++;
        munmap(start, SWAPPED_PAGES * PAGE);
        if (round % 50 == 0) push_out();
    }
    stop = 1;
    pthread_join(thread, NULL);
    close(files[0]), close(files[1]), close(target);
}

/* --- Forks while another thread maps over managed memory, and gives it up --- */

static char *place;

static void *map_over(void *unused) {
    (void)unused;
    while (!stop) {
        CHECK(mmap(place, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place);
        fill(place, 0, 8, 51);
        CHECK(mmap(place, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place);
        CHECK(*(volatile uint64_t *)(void *)place == 0);
        fill(place, 0, 8, 52);
    }
    return NULL;
}

static void forks_beside_mappings(void) {
    place = map(-1, 2 * MIB);
    char *beside = place + MIB;
    fill(beside, 0, MIB / PAGE, 53);
    stop = 0;
    pthread_t thread = run(map_over, NULL);
    for (int round = 0; round < 3 * rounds; round++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(holds(beside, 0, MIB / PAGE, 53));
            fill(beside, round % 256, round % 256 + 1, 53);
            _exit(0);
        }
        await(child);
        if (round % 16 == 0) push_out();
    }
    stop = 1;
    pthread_join(thread, NULL);
    CHECK(holds(beside, 0, MIB / PAGE, 53));
}

static const struct {
    void (*run)(void);
    const char *name;
} races[] = {
    {two_threads_set_aside, "two threads set aside"},
    {punches_beside_forks, "punches beside forks"},
    {first_mappings_at_once, "first mappings at once"},
    {descriptors_that_change, "descriptors that change"},
    {forks_beside_mappings, "forks beside mappings"},
};

int main(int count, char **arguments) {
    if (count > 3 || (count > 1 && (rounds = atoi(arguments[1])) <= 0)) {
        fprintf(stderr, "usage: %s [ROUNDS [RACE]]\n", arguments[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    push_out();
    for (size_t nth = 0; nth < sizeof races / sizeof *races; nth++) {
        if (count > 2 && nth != strtoul(arguments[2], NULL, 10)) continue;
        races[nth].run();
        puts(races[nth].name);
    }
    return 0;
}
