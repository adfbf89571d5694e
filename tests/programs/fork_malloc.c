/* fork_malloc: forks from a program whose other threads allocate, begin and end meanwhile.
 *
 * --threads threads allocate objects of up to 1 MiB and free them, each until it has made some thousands; then another
 * takes its place. The main thread forks --forks children, one after another, the first ones while the heap still grows.
 * A child allocates as much, starts a thread that does so too, and ends: a lock of the allocator that a thread of its
 * parent held would be held in it for ever.
 *
 * With --collect one more thread stops the others again and again, as a collector of garbage does: by a signal, whose
 * handler waits.
 *
 *   fork_malloc --threads 4 --forks 3 --collect
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { OBJECTS = 512, ROUNDS = 4000, THREADS_MAX = 16 };

static uint64_t threads = 4, forks = 3;
static int collect;
static _Atomic int stop;

/* Threads that the collector stops, by what it knows that they have stopped, and the round, at whose end they go on. */
static pthread_t stopped[THREADS_MAX + 1];
static sem_t has_stopped;
static _Atomic unsigned collection;

static void on_stop(int signal) {
    (void)signal;
    int error = errno;
    unsigned now = collection;
    sem_post(&has_stopped);
    while (collection == now) usleep(20);
    errno = error;
}

static void *collector(void *count) {
    while (!stop) {
        uintptr_t sent = 0;
        for (uintptr_t nth = 0; nth < (uintptr_t)count; nth++) sent += !pthread_kill(stopped[nth], SIGUSR1);
        for (uintptr_t nth = 0; nth < sent; nth++)
            while (sem_wait(&has_stopped)) {}
        collection++;
        usleep(200);
    }
    return NULL;
}

static void work(unsigned seed) {
    unsigned char *objects[OBJECTS] = {0};
    size_t sizes[OBJECTS] = {0};
    for (int round = 0; round < ROUNDS && !stop; round++) {
        int at = rand_r(&seed) % OBJECTS;
        unsigned char *object = objects[at], mark = (unsigned char)at;
        if (object && (object[0] != mark || object[sizes[at] - 1] != mark)) {
            printf("object %d has changed\n", at);
            fflush(stdout);
            _exit(1);
        }
        free(object);
        size_t size = 1 + rand_r(&seed) % (rand_r(&seed) % 8 ? 4096 : 1 << 20);
        objects[at] = malloc(size);
        if (!objects[at]) fail("malloc");
        objects[at][0] = objects[at][size - 1] = mark;
        sizes[at] = size;
    }
    for (int at = 0; at < OBJECTS; at++) free(objects[at]);
}

static void *worker(void *seed) {
    work((unsigned)(uintptr_t)seed);
    return NULL;
}

static void *keeper(void *seed) {
    for (uintptr_t nth = (uintptr_t)seed; !stop; nth += THREADS_MAX) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)nth)) fail("pthread_create");
        pthread_join(thread, NULL);
    }
    return NULL;
}

static void child(unsigned nth) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, (void *)(uintptr_t)(1000 + nth))) fail("pthread_create");
    work(2000 + nth);
    pthread_join(thread, NULL);
    _exit(0);
}

int main(int argc, char **argv) {
    const struct program_option table[] = {NUMBER("--threads", &threads), NUMBER("--forks", &forks), SWITCH("--collect", &collect), {0}};
    read_options("usage: fork_malloc [--threads T] [--forks N] [--collect]", table, argc, argv);
    if (threads > THREADS_MAX) errno = EINVAL, fail("--threads");
    pthread_t keepers[THREADS_MAX];
    for (uintptr_t nth = 0; nth < threads; nth++)
        if (pthread_create(&keepers[nth], NULL, keeper, (void *)nth)) fail("pthread_create");
    pthread_t collects;
    stopped[threads] = pthread_self();
    memcpy(stopped, keepers, threads * sizeof *keepers);
    if (sem_init(&has_stopped, 0, 0)) fail("sem_init");
    struct sigaction on = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &on, NULL);
    if (collect && pthread_create(&collects, NULL, collector, (void *)(uintptr_t)(threads + 1))) fail("pthread_create");
    for (unsigned nth = 0; nth < forks; nth++) {
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) child(nth);
        int status;
        while (waitpid(pid, &status, 0) < 0)
            if (errno != EINTR) fail("waitpid");
        if (status) {
            printf("child %u: status %#x\n", nth, (unsigned)status);
            return 1;
        }
    }
    stop = 1;
    if (collect) pthread_join(collects, NULL);
    for (uint64_t nth = 0; nth < threads; nth++) pthread_join(keepers[nth], NULL);
    printf("fork_malloc: %" PRIu64 " forks beside %" PRIu64 " threads, 0 errors\n", forks, threads);
    return 0;
}
