// Starts itself by every call that starts a program, with an environment that lacks what Pagetide needs, from children
// of fork and of vfork. What is started says whether it belongs to the run, and got its arguments and its environment.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *self;

static int in_run(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int found = 0;
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "memfd:pagetide-group") != NULL;
    fclose(maps);
    return found;
}

// Ends with 0 if it belongs to the run, with 1 if not, with 2 if anything else is wrong.
static int child(int argc, char **argv) {
    static const char *expected[] = {"child", "b", "c", "", "e e", "f", "g", "h"};
    if (argc != 9 || !getenv("MARK") || strcmp(getenv("MARK"), "=1"))
        return 2;
    for (int i = 0; i < 8; i++)
        if (strcmp(argv[i + 1], expected[i]))
            return 2;
    // Variables that were there are there once, and in their places.
    const char *others = getenv("OTHERS");
    const char *preload = getenv("LD_PRELOAD");
    if (others && (!preload || strncmp(preload, others, strlen(others))))
        return 2;
    int many = getenv("MANY") ? atoi(getenv("MANY")) : 0;
    for (int i = 0; i < many; i++) {
        char entry[32];
        sprintf(entry, "V%d=%d", i, i);
        if (strcmp(environ[i], entry))
            return 2;
    }
    return !in_run();
}

enum { EXECVE, EXECV, EXECVP, EXECVPE, EXECL, EXECLP, EXECLE, EXECVEAT, FEXECVE, BY_NUMBER, AT_BY_NUMBER, WAYS };
static const char *names[] = {"execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle", "execveat",
    "fexecve", "SYS_execve", "SYS_execveat"};

#define LIST self, "child", "b", "c", "", "e e", "f", "g", "h", (char *)NULL

static void start(int way, char **env) {
    char *argv[] = {LIST};
    int fd = open(self, O_RDONLY | O_CLOEXEC);
    if (way == EXECV || way == EXECVP || way == EXECL || way == EXECLP)
        environ = env;
    switch (way) {
    case EXECVE: execve(self, argv, env); break;
    case EXECV: execv(self, argv); break;
    case EXECVP: execvp(self, argv); break;
    case EXECVPE: execvpe(self, argv, env); break;
    case EXECL: execl(self, LIST); break;
    case EXECLP: execlp(self, LIST); break;
    case EXECLE: execle(self, LIST, env); break;
    case EXECVEAT: execveat(AT_FDCWD, self, argv, env, 0); break;
    case FEXECVE: fexecve(fd, argv, env); break;
    case BY_NUMBER: syscall(SYS_execve, self, argv, env); break;
    case AT_BY_NUMBER: syscall(SYS_execveat, fd, "", argv, env, AT_EMPTY_PATH); break;
    }
}

static int wait_for(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + status;
}

static int bad;
static void check(const char *what, int status, int expected) {
    if (status != expected) {
        printf("%s: %d in place of %d\n", what, status, expected);
        bad = 1;
    }
}

static void all(const char *what, char **env, int expected) {
    char name[200];
    for (int way = 0; way < WAYS; way++)
        for (int vforks = 0; vforks < 2; vforks++) {
            static char **saved;
            saved = environ;
            pid_t pid = vforks ? vfork() : fork();
            if (!pid) {
                start(way, env);
                _exit(50);
            }
            environ = saved;
            snprintf(name, sizeof name, "%s, %s after %s", what, names[way], vforks ? "vfork" : "fork");
            check(name, wait_for(pid), expected);
        }
    char *argv[] = {LIST};
    pid_t pid = 0;
    check("posix_spawn", posix_spawn(&pid, self, NULL, NULL, argv, env), 0);
    check(what, wait_for(pid), expected);
    check("posix_spawnp", posix_spawnp(&pid, self, NULL, NULL, argv, env), 0);
    check(what, wait_for(pid), expected);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child"))
        return child(argc, argv);
    self = argv[0];
    int kept = argc > 1 && !strcmp(argv[1], "kept");
    char *nothing[] = {"MARK==1", NULL};
    all("an empty environment", nothing, kept);
    // By a name that is looked for, and by a script without a first line: the C library starts the shell for it.
    check("no such program", (execvp("no-such-program", argv), errno), ENOENT);
    check("a program that cannot run", (execl("/etc/passwd", "x", (char *)NULL), errno), EACCES);
    check("execvp of nothing", (execlp("", "x", (char *)NULL), errno), ENOENT);
    if (!kept) {
        char *let_alone[] = {"PAGETIDE_KEEP=0", "MARK==1", NULL};
        all("let alone", let_alone, 1);
        // An empty list, another library (which need not exist), our own behind it once, another run.
        char *empty[] = {"LD_PRELOAD=", "MARK==1", NULL};
        all("an empty list", empty, 0);
        char *others[] = {"A=1", "LD_PRELOAD=libm.so.6 libpthread.so.0", "MARK==1",
            "OTHERS=libm.so.6 libpthread.so.0:/", NULL};
        all("another library", others, 0);
        char *other_run[] = {"PAGETIDE_GROUP=/proc/1/fd/999", "MARK==1", NULL};
        all("another run", other_run, 1);
        // More than the stack is used for.
        for (int count = 150; count < 3000; count *= 4) {
            char **many = calloc(count + 3, sizeof *many);
            for (int i = 0; i < count; i++)
                asprintf(&many[i], "V%d=%d", i, i);
            asprintf(&many[count], "MANY=%d", count);
            many[count + 1] = "MARK==1";
            all("many variables", many, 0);
        }
    }
    if (!bad)
        puts("good");
    return bad;
}
