/* plugin: a library to open with RTLD_DEEPBIND: what it calls is looked up in its own dependencies first. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *early;

/* The loader runs this before dlopen returns. */
__attribute__((constructor)) static void begin(void) {
    early = strdup("early");
    free(strdup("what the C library allocates"));
}

const char *whose(void) { return "the plugin's"; }
const char *asked(void) { return whose(); }
char *first(void) { return early; }
void drop(void *object) { free(object); }
void *make(size_t bytes) { return calloc(1, bytes); }
void *grow(void *object, size_t bytes) { return realloc(object, bytes); }
void *mapped(size_t bytes) { return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
int unmap(void *at, size_t bytes) { return munmap(at, bytes); }
void *move(void *at, size_t bytes, size_t more) { return mremap(at, bytes, more, MREMAP_MAYMOVE); }
int advise(void *at, size_t bytes, int advice) { return madvise(at, bytes, advice); }
int protect(void *at, size_t bytes, int access) { return mprotect(at, bytes, access); }
pid_t child(void) { return fork(); }
pid_t child_on(int (*run)(void *), void *stack, int flags) { return clone(run, stack, flags, 0); }
