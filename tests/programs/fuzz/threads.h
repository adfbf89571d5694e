/* Steps with signal handlers, threads and programs. */
#pragma once
#include "contents.h"
#include "ranges.h"
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>

static __thread volatile int handled;
static void on_signal(int number) {
    (void)number;
    int error = errno;
    /* On the alternate stack, which may be out of memory, as may be what is looked at. */
    char local[8 * PAGE_BYTES];
    for (size_t byte = 0; byte < sizeof local; byte += 512) ((volatile char *)local)[byte] = (char)byte;
    size_t page;
    if (find_run(is_readable, 1, 0, &page)) check_page(here, page);
    handled = 1;
    errno = error;
}

static void step_signal(void) {
    handled = 0;
    pthread_kill(pthread_self(), SIGUSR1);
    while (!handled) sched_yield();
}

struct errand {
    struct territory *where;
    size_t first, count;
};
static void *run_errand(void *argument) {
    struct errand *errand = argument;
    char local[10 * PAGE_BYTES];
    for (size_t byte = 0; byte < sizeof local; byte++) ((volatile char *)local)[byte] = (char)(byte * 7);
    step_name = "thread";
    here = errand->where;
    for (size_t page = errand->first; page < errand->first + errand->count; page++) check_page(here, page);
    for (size_t byte = 0; byte < sizeof local; byte++)
        if (((volatile char *)local)[byte] != (char)(byte * 7)) wrong_step("a thread's stack, byte %zu", byte);
    return NULL;
}

static void step_thread(void) {
    struct errand errand = {.where = here};
    errand.count = find_run(is_certain, wanted_pages(), 0, &errand.first);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    size_t bytes = 256 << 10;
    char *stack = one_in(2) ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
    if (stack == MAP_FAILED) fail("mmap");
    if (stack) pthread_attr_setstack(&attributes, stack, bytes);
    if (pthread_create(&thread, &attributes, run_errand, &errand)) fail("pthread_create");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    if (stack) munmap(stack, bytes);
}

static void await(pid_t child, int killed) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) _exit(1); /* it has said why */
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    if (!WIFEXITED(status) || WEXITSTATUS(status)) wrong_step("child %d ended with status %#x", child, status);
}

static void step_program(void) {
    extern char **environ;
    pid_t child;
    char *arguments[] = {"true", NULL};
    if (one_in(2)) {
        if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ)) fail("posix_spawn");
    } else {
        child = vfork();
        if (child < 0) fail("vfork");
        if (!child) {
            execve("/bin/true", arguments, environ);
            _exit(3);
        }
    }
    await(child, 0);
}
