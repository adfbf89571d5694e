/* streams: a thread of a forked child opens a stream, for which the C library takes a lock that the forking thread may have
 * had.
 *
 * usage: streams THREADS MIB - how many threads the parent has had, and how much memory it holds
 *
 * Exit status: 0 all well, 2 usage or resources; SIGALRM if the child waits. */
#define _GNU_SOURCE
#include "pages.h"
#include <pthread.h>
#include <sys/wait.h>

static void *open_stream(void *unused) {
    FILE *stream = fopen("/dev/null", "r");
    if (!stream) fail("/dev/null");
    fclose(stream);
    return unused;
}

static void with_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, open_stream, NULL)) fail("pthread_create");
    pthread_join(thread, NULL);
}

static void fork_and_open(int depth, int raws) {
    raw = raws;
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        alarm(120);
        open_stream(NULL), with_thread();
        if (depth) fork_and_open(depth - 1, raws);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (status) {
        printf("a child ended with %x\n", (unsigned)status);
        fflush(stdout);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t pages = strtoul(argv[2], NULL, 10) * 256;
    char *mapped = pages ? map(NULL, pages, PROT_READ | PROT_WRITE, 0) : NULL;
    fill(mapped, 0, pages, 1);
    for (unsigned long thread = strtoul(argv[1], NULL, 10); thread; thread--) with_thread();
    fork_and_open(1, 0), fork_and_open(1, 1);
    check(mapped, 0, pages, 1);
    return 0;
}
