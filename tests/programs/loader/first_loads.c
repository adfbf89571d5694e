/* first_loads: threads load their first libraries at the same moment, or one forks while another does.
 *
 *   first_loads SEED LIBRARY [fork]
 *
 * LIBRARY is loaded with RTLD_DEEPBIND, so that its names are those of the C library, and frees what the program has
 * allocated. With `fork` a child loads it. Exit status: 0 all well, 1 a child did not end well, 2 usage or resources. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t together;
static const char *library;
static int forks, failed;

static void pause_for(long turns) {
    pthread_barrier_wait(&together);
    for (volatile long turn = 0; turn < turns; turn++) {}
}

static void *load_another(void *turns) {
    pause_for((long)turns);
    dlopen("libz.so.1", RTLD_NOW);
    return NULL;
}

static void use(void) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_DEEPBIND);
    void (*release)(void *) = handle ? (void (*)(void *))dlsym(handle, "drop") : NULL;
    void *(*allocate)(size_t) = handle ? (void *(*)(size_t))dlsym(handle, "make") : NULL;
    if (!release || !allocate) exit(2);
    for (size_t nth = 0; nth < 50; nth++) {
        char *object = malloc(100 + nth * 1000);
        memset(object, 1, 100);
        release(object);
        object = allocate(50 + nth * 500);
        memset(object, 1, 50);
        free(object);
    }
}

static void *use_it(void *turns) {
    pause_for((long)turns);
    if (!forks) {
        use();
        return NULL;
    }
    pid_t child = fork();
    if (child == 0) {
        use();
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) failed = 1;
    return NULL;
}

int main(int count, char **words) {
    if (count < 3) return fprintf(stderr, "usage: first_loads SEED LIBRARY [fork]\n"), 2;
    srand((unsigned)atoi(words[1]));
    library = words[2];
    forks = count > 3;
    pthread_t threads[3];
    pthread_barrier_init(&together, NULL, 3);
    static const long most[3] = {30000, 100000, 600000};
    for (int nth = 0; nth < 3; nth++)
        if (pthread_create(&threads[nth], NULL, nth ? use_it : load_another, (void *)(rand() % most[nth]))) return 2;
    for (int nth = 0; nth < 3; nth++) pthread_join(threads[nth], NULL);
    return failed;
}
