/* shared_count: children that all touch one object of shared memory, and have some memory of their own.
 *
 * shared_count KIND SHARED PRIVATE CHILDREN: KIND is anonymous, memfd, file (under /dev/shm) or sysv, the sizes are in
 * MiB. What is needed is SHARED + CHILDREN * PRIVATE. When all was touched it says "ready"; it ends when its standard
 * input does.
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static char *map(int fd, size_t size) {
    if (fd >= 0 && ftruncate(fd, (off_t)size)) exit(2);
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    if (at == MAP_FAILED) exit(2);
    if (fd >= 0) close(fd);
    return at;
}

static char *shared(const char *kind, size_t size) {
    if (!strcmp(kind, "anonymous")) return map(-1, size);
    if (!strcmp(kind, "memfd")) return map(memfd_create("shared_count", MFD_CLOEXEC), size);
    if (!strcmp(kind, "file")) {
        char name[64];
        snprintf(name, sizeof name, "/pagetide-shared_count-%d", getpid());
        int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0 || shm_unlink(name)) exit(2);
        return map(fd, size);
    }
    if (!strcmp(kind, "sysv")) {
        int id = shmget(IPC_PRIVATE, size, 0600);
        char *at = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
        if (id < 0 || shmctl(id, IPC_RMID, NULL) || at == (void *)-1) exit(2);
        return at;
    }
    exit(2);
}

static int child(const char *all, size_t size, size_t own_size, int seed, int ready) {
    char *own = malloc(own_size);
    if (!own) exit(2);
    for (size_t at = 0; at < own_size; at += 8) *(long *)(own + at) = seed * 7919L + (long)at;
    for (size_t at = 0; at < size; at += 4096)
        if (all[at] != (char)(at >> 12 | 1)) return 1;
    if (write(ready, "x", 1) != 1) return 2;
    while (read(0, &(char){0}, 1) > 0) {}
    for (size_t at = 0; at < own_size; at += 8)
        if (*(long *)(own + at) != seed * 7919L + (long)at) return 1;
    return 0;
}

int main(int count, char **words) {
    if (count != 5) return 2;
    size_t size = strtoul(words[2], NULL, 10) << 20, own_size = strtoul(words[3], NULL, 10) << 20;
    int children = atoi(words[4]), ready[2], worst = 0, status;
    char *all = shared(words[1], size);
    for (size_t at = 0; at < size; at += 4096) all[at] = (char)(at >> 12 | 1);
    if (pipe(ready)) return 2;
    for (int nth = 0; nth < children; nth++) {
        pid_t pid = fork();
        if (pid < 0) return 2;
        if (!pid) _exit(child(all, size, own_size, nth, ready[1]));
    }
    close(ready[1]);
    for (int nth = 0; nth < children; nth++)
        if (read(ready[0], &(char){0}, 1) != 1) return 2;
    puts("ready");
    fflush(stdout);
    while (wait(&status) > 0) {
        int this = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
        if (this > worst) worst = this;
    }
    return worst;
}
