/* credentials: a program that changes its user and groups while its memory is out. Every thread of the process, whoever
 * started it, has the same afterwards: none keeps a right that was given up.
 *
 * usage: credentials [threads] - run by root; "threads": with one of its own that waits meanwhile
 *
 * Exit status: 0 all well, 1 wrong contents or a thread that differs, 2 usage or resources. */
#define _GNU_SOURCE
#include "pages.h"
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sys/wait.h>

enum { PAGES = 40 * 256 };

/* The lines on users and groups in a thread's status. None for the kernel's own workers, which run no code of the process
 * and take what they act with from each request. */
static void read_ids(const char *thread, char *ids, size_t room) {
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    *ids = 0;
    FILE *status = fopen(path, "r");
    if (!status && errno == ENOENT) return; /* It has ended. */
    if (!status) fail(path);
    while (fgets(line, sizeof line, status) && strncmp(line, "Name:\tiou-", 10))
        if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) || !strncmp(line, "Groups:", 7))
            strncat(ids, line, room - strlen(ids) - 1);
    fclose(status);
}

static void compare(int least) {
    char own[8192], others[8192], name[16];
    snprintf(name, sizeof name, "%d", (int)gettid());
    read_ids(name, own, sizeof own);
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) fail("/proc/self/task");
    int seen = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        if (*task->d_name == '.') continue;
        read_ids(task->d_name, others, sizeof others), seen++;
        /* A worker of the kernel's has its creator's name until it first runs. Threads of ours never change later on. */
        for (int looks = 0; *others && strcmp(own, others) && looks < 500; looks++)
            usleep(1000), read_ids(task->d_name, others, sizeof others);
        if (*others && strcmp(own, others)) {
            printf("%s: thread %s has\n%sand the one that changed it\n%s", step, task->d_name, others, own);
            fflush(stdout);
            _exit(1);
        }
    }
    closedir(tasks);
    demand(native || seen >= least, "an engine runs");
}

static void *wait_here(void *unused) { return pause(), unused; }

static void change(char *mapped) {
    gid_t groups[] = {1234, 2345, 3456};
    step = "setgroups", demand(!setgroups(3, groups), step), compare(3);
    step = "setegid", demand(!setegid(500), step), compare(3);
    step = "seteuid", demand(!seteuid(600), step), compare(3);
    step = "seteuid, back", demand(!seteuid(0), step), compare(3);
    step = "setresgid", demand(!setresgid(7, 8, 9), step), compare(3);
    step = "setregid", demand(!setregid(10, 11), step), compare(3);
    step = "setgid", demand(!setgid(12), step), compare(3);
    step = "initgroups", demand(!initgroups("nobody", 13), step), compare(3);
    step = "setreuid", demand(!setreuid(0, 0), step), compare(3);
    step = "setresuid", demand(!setresuid(0, 601, 0), step), compare(3);
    step = "setuid, refused", demand(setuid(77) == -1 && errno == EPERM, step), compare(3);
    step = "setresuid, back", demand(!setresuid(0, 0, 0), step), compare(3);
    step = "setuid", demand(!setuid(65534), step), compare(3);
    check(mapped, 0, PAGES, 1);
    step = "setuid, refused again", demand(setuid(0) == -1, step), compare(3);
}

int main(int argc, char **argv) {
    native = argc > 1 && !strcmp(argv[argc - 1], "--native");
    char *mapped = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(mapped, 0, PAGES, 1);
    pthread_t thread;
    if (argc > 1 && !strcmp(argv[1], "threads") && pthread_create(&thread, NULL, wait_here, NULL)) fail("pthread_create");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        check(mapped, 0, PAGES, 1);
        change(mapped);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    demand(!status, "its status");
    change(mapped);
    check(mapped, 0, PAGES, 1);
    puts("ok");
    return 0;
}
