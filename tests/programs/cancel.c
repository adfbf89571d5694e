/* cancel: a thread can be cancelled where the C library says so, also where a preloaded library stands in between.
 *
 * Exit status: 0 all well, 1 a thread was not cancelled, 2 resources. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/var/tmp/cancel-XXXXXX";
static int cleaned;

static void clean(void *argument) { (void)argument, cleaned++; }

static void *opens(void *path) {
    pthread_cleanup_push(clean, NULL);
    open(path, O_RDONLY); /* a pipe that nobody writes */
    pthread_cleanup_pop(0);
    return NULL;
}

static void *locks(void *path) {
    struct flock lock = {.l_type = F_WRLCK};
    int fd = open(path, O_RDWR);
    pthread_cleanup_push(clean, NULL);
    fcntl(fd, F_OFD_SETLKW, &lock); /* somebody else has the lock */
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancel(void *(*body)(void *), char *path, const char *what) {
    pthread_t thread;
    void *result;
    int before = cleaned;
    if (pthread_create(&thread, NULL, body, path)) exit(2);
    /* Cancelled before it waits or while it waits: the result is the same. */
    usleep(20000);
    if (pthread_cancel(thread) || pthread_join(thread, &result)) exit(2);
    if (result == PTHREAD_CANCELED && cleaned <= before + 1) return;
    printf("%s: not cancelled\n", what);
    exit(1);
}

int main(void) {
    char pipe[64], file[64];
    if (!mkdtemp(directory)) return perror("mkdtemp"), 2;
    snprintf(pipe, sizeof pipe, "%s/pipe", directory);
    snprintf(file, sizeof file, "%s/file", directory);
    int fd = open(file, O_RDWR | O_CREAT, 0600);
    struct flock lock = {.l_type = F_WRLCK};
    if (fd < 0 || mkfifo(pipe, 0600) || fcntl(fd, F_OFD_SETLK, &lock)) return perror(directory), 2;
    for (int round = 0; round < 5; round++) {
        cancel(opens, pipe, "open");
        cancel(locks, file, "fcntl");
    }
    unlink(pipe), unlink(file), rmdir(directory);
    if (cleaned == 0) return puts("no cleanup handler ran"), 1;
    puts("ok");
    return 0;
}
