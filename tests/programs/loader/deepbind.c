/* deepbind: opens a library with RTLD_DEEPBIND, which frees, maps, moves, unmaps and forks by the C library's own
 * functions; asks the C library itself for functions; and opens a library by a name that only the caller's RUNPATH finds.
 *
 *   deepbind PLUGIN [NAME]      (DEEPBIND_NATIVE=1 where there is no cap)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "../pages.h"
#include <dlfcn.h>
#include <sched.h>
#include <sys/wait.h>

enum { PAGES = 64 * 256, OBJECT_BYTES = 300000 };

const char *whose(void) { return "the program's"; }

static char *ours;
static char stack[1 << 16] __attribute__((aligned(64)));

static int look(void *unused) {
    (void)unused;
    check(ours, 0, PAGES, 1);
    return 5;
}

static void await(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("a child");
    demand(WIFEXITED(status) && WEXITSTATUS(status) == 5, "its status");
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail(name);
    return found;
}
#define FUNCTION(result, name, ...) result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))symbol(library, #name)

static void objects(void *library) {
    FUNCTION(char *, first, void);
    FUNCTION(void, drop, void *);
    FUNCTION(char *, make, size_t);
    FUNCTION(char *, grow, void *, size_t);
    begin("objects that one allocates and the other frees");
    demand(!strcmp(first(), "early"), "what its constructor made");
    free(first());
    drop(malloc(100));
    free(make(100));
    char *object = malloc(OBJECT_BYTES);
    memset(object, 3, OBJECT_BYTES);
    object = grow(object, 9 * OBJECT_BYTES);
    object = realloc(object, OBJECT_BYTES);
    for (int at = 0; at < OBJECT_BYTES; at++) demand(object[at] == 3, "an object that both have grown");
    drop(object);
}

static void mappings(void *library) {
    FUNCTION(char *, mapped, size_t);
    FUNCTION(int, unmap, void *, size_t);
    FUNCTION(char *, move, void *, size_t, size_t);
    FUNCTION(int, advise, void *, size_t, int);
    FUNCTION(int, protect, void *, size_t, int);
    size_t bytes = (size_t)PAGES * PAGE_BYTES;
    begin("mappings that one makes and the other changes");
    ours = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(ours, 0, PAGES, 1);
    char *its = mapped(bytes);
    fill(its, 0, PAGES, 2);
    send_away(its, PAGES);
    check(ours, 0, PAGES, 1);
    check(its, 0, PAGES, 2);
    demand(!protect(its, bytes, PROT_READ), "mprotect");
    demand(!protect(its, bytes, PROT_READ | PROT_WRITE), "mprotect");
    its = move(its, bytes, 2 * bytes);
    check(its, 0, PAGES, 2);
    demand(!advise(its, bytes / 2, MADV_DONTNEED), "madvise");
    check_zero(its, PAGES / 2);
    check(its + bytes / 2, PAGES / 2, PAGES / 2, 2);
    send_away(its, 2 * PAGES);
    demand(!unmap(its, 2 * bytes), "munmap");
    char *next = map(its, PAGES, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE);
    check_zero(next, PAGES);
    unmap(next, PAGES);
}

static void forks(void *library) {
    FUNCTION(pid_t, child, void);
    FUNCTION(pid_t, child_on, int (*)(void *), void *, int);
    begin("a child that it forks");
    send_away(ours, PAGES);
    pid_t forked = child();
    if (!forked) _exit(look(NULL));
    await(forked);
    begin("a child that it clones");
    send_away(ours, PAGES);
    await(child_on(look, stack + sizeof stack, SIGCHLD));
}

static void names(void *library) {
    FUNCTION(const char *, asked, void);
    begin("which of two functions of a name it gets");
    demand(!strcmp(asked(), "the plugin's"), "its own comes first");
}

static void the_c_library(void) {
    begin("functions that the C library itself is asked for");
    void *library = dlopen("libc.so.6", RTLD_NOW);
    if (!library) fail("libc.so.6");
    FUNCTION(void, free, void *);
    FUNCTION(int, munmap, void *, size_t);
    free(malloc(1000));
    char *mapped = map(NULL, PAGES, PROT_READ | PROT_WRITE, 0);
    fill(mapped, 0, PAGES, 4);
    send_away(mapped, PAGES);
    demand(!munmap(mapped, (size_t)PAGES * PAGE_BYTES), "munmap");
    char *next = map(mapped, PAGES, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE);
    check_zero(next, PAGES);
    unmap(next, PAGES);
}

static void namespaces(const char *path) {
    begin("a namespace of its own");
    void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    const char *error = library ? NULL : dlerror();
    fprintf(stderr, "%s\n", error ? error : "opened");
    demand(native ? !!library : error && strstr(error, "Pagetide"), "what it says");
    demand(!!dlmopen(LM_ID_BASE, path, RTLD_NOW), "the program's own is allowed");
}

int main(int count, char **words) {
    if (count < 2) return 2;
    native = !!getenv("DEEPBIND_NATIVE");
    press_pages = 72 * 256;
    void *library = dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    objects(library);
    mappings(library);
    forks(library);
    names(library);
    the_c_library();
    namespaces(words[1]);
    if (count > 2) {
        begin("a name that only this program's RUNPATH finds");
        demand(!!dlopen(words[2], RTLD_LAZY), dlerror() ?: "it is found");
    }
    return 0;
}
