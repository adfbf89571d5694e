// Forks in a handler of a timer's signal, whatever the thread is doing just then: it maps, allocates, writes and gives back.
// Every other time it leaves the handler by siglongjmp in place of a return.
//
//     fork_handler [--mib N] [--forks N]
//
// The memory of N MiB (default 4) has each of its pages written anew in each turn and checked in each child. Ends after N forks
// (default 300) with 0, or with 1 and a message.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t forks;
static volatile sig_atomic_t may_jump;
static sigjmp_buf turn;
static volatile unsigned char *kept;
static size_t pages;

static void fail(const char *what) {
    perror(what);
    _exit(1);
}

static void set_timer(void) {
    struct itimerval soon = {{0, 0}, {0, 1000}};
    if (setitimer(ITIMER_REAL, &soon, NULL)) fail("setitimer");
}

static void on_timer(int signal) {
    (void)signal;
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        for (size_t page = 0; page < pages; page++)
            if (kept[page * 4096 + 1] != (unsigned char)(page * 7 + 1)) _exit(2);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        ;
    if (status != 0) {
        static const char text[] = "a child has seen other bytes, or was killed\n";
        if (write(2, text, sizeof text - 1) < 0) _exit(3);
        _exit(1);
    }
    forks++;
    set_timer();
    if (may_jump && forks % 2) siglongjmp(turn, 1);
}

int main(int count, char **arguments) {
    long mib = 4;
    static long most = 300;
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(arguments[i], "--mib")) mib = atol(arguments[i + 1]);
        if (!strcmp(arguments[i], "--forks")) most = atol(arguments[i + 1]);
    }
    pages = (size_t)mib << 8;
    kept = malloc(pages * 4096);
    if (!kept) fail("malloc");
    for (size_t page = 0; page < pages; page++) kept[page * 4096 + 1] = (unsigned char)(page * 7 + 1);
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    if (sigaction(SIGALRM, &action, NULL)) fail("sigaction");
    set_timer();
    static volatile size_t page;
    while (forks < most) {
        // malloc must not be left amid a call; mapping calls and memory may be.
        void *block = malloc(300000 + forks);
        free(block);
        if (sigsetjmp(turn, 1) == 0) {
            may_jump = 1;
            for (int nth = 0; nth < 20; nth++) {
                char *mapped = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (mapped == MAP_FAILED) fail("mmap");
                mapped[nth << 12] = 1;
                munmap(mapped, 4 << 20);
                page = (page + 61) % pages;
                kept[page * 4096] = (unsigned char)nth;
            }
        }
        may_jump = 0;
    }
    puts("forked");
    // Ends without the timer.
    _exit(fflush(stdout) != 0);
}
