/* odd: moments in which a program does not expect to wait for a page, and deprives itself of what the engine needs.
 *
 * Each step is taken with a buffer that is out of memory, and looks at it afterwards. Steps that cannot be undone run
 * in a forked child. As root it also changes user and root directory.
 *
 *   odd [--press MIB] [--native] [--no-fsize]      (--no-fsize: RLIMIT_FSIZE keeps from swapping to a file)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "options.h"
#include "pages.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <pty.h>
#include <pwd.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { BUFFER_PAGES = 1024 };
static char *buffer;
static uint64_t tag = 500;
static int running, without_fsize;

/* ---- before main and after it --------------------------------------------------------------------------------- */

static char *early;
__attribute__((constructor)) static void before_main(void) {
    early = malloc(BUFFER_PAGES * PAGE_BYTES);
    if (!early) abort();
    early = (char *)(((uintptr_t)early + PAGE_BYTES - 1) & ~(uintptr_t)(PAGE_BYTES - 1));
    fill(early, 0, BUFFER_PAGES - 1, 77);
}
__attribute__((destructor)) static void after_main(void) {
    if (!running) return;
    step = "a destructor";
    press();
    check(early, 0, BUFFER_PAGES - 1, 77);
}

static void at_exit(void) {
    if (!running) return;
    step = "an exit handler";
    press();
    check(buffer, 0, BUFFER_PAGES, tag);
}

/* ---- helpers --------------------------------------------------------------------------------------------------- */

static void send_buffer_away(void) {
    fill(buffer, 0, BUFFER_PAGES, ++tag);
    send_away(buffer, BUFFER_PAGES);
}

/* Runs a step in a child, which may not come back from it; the buffer is out of memory when it begins. */
static void in_child(const char *name, void (*take)(void)) {
    begin(name);
    send_buffer_away();
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        running = 0;
        take();
        check(buffer, 0, BUFFER_PAGES, tag);
        press();
        check(buffer, 0, BUFFER_PAGES, tag);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) _exit(1);
    if (status) printf("%s: the child ended with status %#x\n", name, status), fflush(stdout), _exit(1);
    check(buffer, 0, BUFFER_PAGES, tag);
}

/* ---- signals and handlers -------------------------------------------------------------------------------------- */

static sigjmp_buf jump;
static volatile sig_atomic_t handled;
static void on_fault(int number) {
    (void)number;
    handled++;
    check(buffer, 0, BUFFER_PAGES, tag); /* brings pages in, in a handler of faults */
    siglongjmp(jump, 1);
}

static void handlers_of_its_own(void) {
    begin("handlers of SIGSEGV and SIGBUS that touch what is away");
    struct sigaction action = {.sa_handler = on_fault}, before[2];
    sigaction(SIGSEGV, &action, &before[0]), sigaction(SIGBUS, &action, &before[1]);
    char *closed = map(NULL, 64, PROT_NONE, 0);
    for (int round = 0; round < 5; round++) {
        send_buffer_away();
        if (!sigsetjmp(jump, 1)) *(volatile char *)closed = 1;
    }
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    char *beyond = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || beyond == MAP_FAILED) fail("mmap of a file");
    send_buffer_away();
    if (!sigsetjmp(jump, 1)) (void)*(volatile char *)beyond;
    demand(handled == 6, "each fault of the program's reached its handler");
    sigaction(SIGSEGV, &before[0], NULL), sigaction(SIGBUS, &before[1], NULL);
    munmap(beyond, PAGE_BYTES), unmap(closed, 64), close(file);
}

static void all_blocked(void) {
    begin("a fault with all signals blocked");
    sigset_t all, before;
    sigfillset(&all);
    send_buffer_away();
    pthread_sigmask(SIG_BLOCK, &all, &before);
    check(buffer, 0, BUFFER_PAGES, tag);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static volatile sig_atomic_t ticks;
static void on_tick(int number) {
    (void)number;


    ticks++;
    size_t page = (size_t)ticks % BUFFER_PAGES;
    volatile uint64_t *words = (void *)(buffer + page * PAGE_BYTES);
    if (words[0] != word_at(tag, page, 0)) wrong("in a handler", (const void *)words, word_at(tag, page, 0), words[0]);
}

static void interrupts(void) {
    begin("a timer whose handler faults, while objects come and go");
    send_buffer_away();
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART}, before;
    sigaction(SIGALRM, &action, &before);
    struct itimerval timer = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    char *objects[64] = {0};
    while (ticks < 400)
        for (size_t nth = 0; nth < 64; nth++) {
            free(objects[nth]);
            size_t bytes = (nth + 1) * 3000;
            objects[nth] = malloc(bytes);
            memset(objects[nth], (int)nth, bytes);
            char *mapped = map(NULL, 32, PROT_READ | PROT_WRITE, 0);
            mapped[nth * 100] = 1;
            unmap(mapped, 32);
        }
    setitimer(ITIMER_REAL, &off, NULL);
    sigaction(SIGALRM, &before, NULL);
    for (size_t nth = 0; nth < 64; nth++) free(objects[nth]);
    check(buffer, 0, BUFFER_PAGES, tag);
}

static int forked;
static void in_atfork_handler(void) {
    if (forked) check(buffer, 0, BUFFER_PAGES, tag);
}
static void does_nothing(void) {}

/* ---- what it takes from itself --------------------------------------------------------------------------------- */

static void closes_everything(void) {
    if (close_range(3, ~0u, 0)) fail("close_range");
    check(buffer, 0, BUFFER_PAGES, tag);
    closefrom(0);
}
static void forbids_files(void) {
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_NOFILE, &none)) fail("setrlimit");
}
static void forbids_file_sizes(void) {
    struct rlimit none = {0, 0};
    signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, &none)) fail("setrlimit");
}
static void forbids_threads(void) {
    struct rlimit none = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &none)) fail("setrlimit");
}
static void forbids_memory(void) {
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    if (setrlimit(RLIMIT_AS, &limit)) fail("setrlimit");
}
static void changes_user(void) {
    if (geteuid()) return;
    if (setgid(65534) || setuid(65534)) fail("setuid");
}
static void changes_root(void) {
    if (geteuid()) return;
    char path[] = "/tmp/odd.XXXXXX";
    if (!mkdtemp(path) || chroot(path) || chdir("/")) fail("chroot");
}
static void unshares(void) {
    if (geteuid()) return;
    if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_FS | CLONE_FILES)) fail("unshare");
}
static void is_not_dumpable(void) {
    if (prctl(PR_SET_DUMPABLE, 0)) fail("PR_SET_DUMPABLE");
}
static void is_sandboxed(void) {
    /* Strict but for memory, signals, and the end: what a decoder might leave itself. */
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
        ALLOW(read), ALLOW(write), ALLOW(exit_group), ALLOW(exit), ALLOW(mmap), ALLOW(munmap), ALLOW(mprotect), ALLOW(mremap), ALLOW(madvise),
        ALLOW(rt_sigreturn), ALLOW(rt_sigprocmask), ALLOW(futex), ALLOW(brk), ALLOW(sched_yield),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
    check(buffer, 0, BUFFER_PAGES, tag);
    char *at = map(NULL, 1024, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, 1024, 9);
    for (size_t round = 0; round < 3; round++) {
        char *more = map(NULL, 8192, PROT_READ | PROT_WRITE, 0);
        memset(more, (int)round + 1, 8192 * PAGE_BYTES);
        unmap(more, 8192);
    }
    check(at, 0, 1024, 9);
    char *object = malloc(8 << 20);
    memset(object, 7, 8 << 20);
    free(object);
    check(buffer, 0, BUFFER_PAGES, tag);
    _exit(0);
}
static void is_idle(void) {
    struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_IDLE, &none)) fail("sched_setscheduler");
}

/* ---- threads, libraries, programs ------------------------------------------------------------------------------ */

static void *touches(void *argument) {
    size_t page = (size_t)argument % BUFFER_PAGES;
    check(buffer + page * PAGE_BYTES, page, 1, tag);
    return NULL;
}
static void many_threads(void) {
    begin("thousands of short threads");
    send_buffer_away();
    for (size_t round = 0; round < 250; round++) {
        pthread_t threads[8];
        for (size_t nth = 0; nth < 8; nth++)
            if (pthread_create(&threads[nth], NULL, touches, (void *)(round * 8 + nth))) fail("pthread_create");
        for (size_t nth = 0; nth < 8; nth++) pthread_join(threads[nth], NULL);
        if (round % 50 == 0) press();
    }
}

static void libraries(void) {
    begin("libraries come and go");
    static const char *const names[] = {"libm.so.6", "libresolv.so.2", "libutil.so.1", "libanl.so.1"};
    for (int round = 0; round < 40; round++) {
        void *handles[4];
        for (size_t nth = 0; nth < 4; nth++)
            if (!(handles[nth] = dlopen(names[nth], RTLD_NOW | RTLD_LOCAL))) fail(names[nth]);
        if (round % 10 == 0) press();
        for (size_t nth = 0; nth < 4; nth++) dlclose(handles[nth]);
    }
}

static int vm_child(void *argument) {
    (void)argument;
    check(buffer, 0, BUFFER_PAGES / 2, tag);
    return 0;
}

static void await(pid_t child, const char *what) {
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (status) printf("%s: %s: status %#x\n", step, what, status), fflush(stdout), _exit(1);
}

static void programs(void) {
    begin("vfork, posix_spawn, clone(CLONE_VM), system, popen, forkpty, daemon");
    extern char **environ;
    send_buffer_away();
    pid_t child = vfork();
    if (!child) execl("/bin/true", "true", NULL), _exit(3);
    await(child, "vfork");
    check(buffer, 0, BUFFER_PAGES, tag);

    send_buffer_away();
    char *arguments[] = {"true", NULL};
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ)) fail("posix_spawn");
    await(child, "posix_spawn");
    check(buffer, 0, BUFFER_PAGES, tag);

    send_buffer_away();
    char *stack = map(NULL, 64, PROT_READ | PROT_WRITE, 0);
    child = clone(vm_child, stack + 64 * PAGE_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    if (child < 0) fail("clone");
    await(child, "clone");
    check(buffer, 0, BUFFER_PAGES, tag);
    unmap(stack, 64);

    send_buffer_away();
    demand(system("exit 7") == 7 << 8, "system");
    FILE *pipe = popen("echo word; exit 5", "r");
    char line[16] = "";
    demand(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "word\n"), "popen");
    demand(pclose(pipe) == 5 << 8, "pclose");
    check(buffer, 0, BUFFER_PAGES, tag);

    send_buffer_away();
    int terminal;
    child = forkpty(&terminal, NULL, NULL, NULL);
    if (child < 0) fail("forkpty");
    if (!child) {
        running = 0;
        check(buffer, 0, BUFFER_PAGES, tag);
        _exit(0);
    }
    await(child, "forkpty");
    close(terminal);

    int ends[2];
    if (pipe2(ends, 0)) fail("pipe");
    send_buffer_away();
    child = fork();
    if (!child) {
        running = 0;
        if (daemon(1, 1)) fail("daemon"); /* the parent of the daemon ends with 0 */
        check(buffer, 0, BUFFER_PAGES, tag);
        press();
        check(buffer, 0, BUFFER_PAGES, tag);
        (void)!write(ends[1], "d", 1);
        _exit(0);
    }
    await(child, "daemon");
    close(ends[1]);
    char letter;
    demand(read(ends[0], &letter, 1) == 1 && letter == 'd', "the daemon has seen what it inherited");
    close(ends[0]);
}

static void names(void) {
    begin("a fork when the C library's configuration of names is out");
    demand(getpwuid(0) != NULL, "a name");
    for (int round = 0; round < 8; round++) {
        send_buffer_away();
        press();
        pid_t child = fork(); /* which reads it when all handlers have run */
        if (!child) {
            running = 0;
            demand(getpwuid(0) != NULL, "a name in the child");
            _exit(0);
        }
        await(child, "names");
    }
}

static void *forks_and_returns(void *argument) {
    pid_t *child = argument;
    *child = fork();
    return NULL; /* in the child its last thread ends here */
}
static void last_thread(void) {
    begin("the last thread ends the process");
    send_buffer_away();
    for (int round = 0; round < 3; round++) {
        pid_t child = -1;
        pthread_t thread;
        running = 0; /* for the child, which runs its exit handlers */
        if (pthread_create(&thread, NULL, forks_and_returns, &child)) fail("pthread_create");
        pthread_join(thread, NULL);
        running = 1;
        if (child < 0) fail("fork");
        await(child, "a child of a thread");
    }
}

static void stopped(void) {
    begin("a stopped child under pressure");
    send_buffer_away();
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        running = 0;
        for (int round = 0; round < 20; round++) check(buffer, 0, BUFFER_PAGES, tag), press();
        _exit(0);
    }
    for (int round = 0; round < 10; round++) {
        usleep(10000);
        kill(child, SIGSTOP);
        press();
        check(buffer, 0, BUFFER_PAGES, tag);
        kill(child, SIGCONT);
    }
    await(child, "stopped");
}

int main(int count, char **options) {
    const struct program_option table[] = {MIB("--press", &press_pages), SWITCH("--native", &native), SWITCH("--no-fsize", &without_fsize), {0}};
    read_options("usage: odd [--press MIB] [--native] [--no-fsize]", table, count, options);
    running = 1;
    buffer = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    fill(buffer, 0, BUFFER_PAGES, tag);
    atexit(at_exit);
    handlers_of_its_own();
    all_blocked();
    interrupts();
    many_threads();
    libraries();
    forked = 1;
    pthread_atfork(in_atfork_handler, in_atfork_handler, in_atfork_handler);
    in_child("handlers of forks that touch what is away", does_nothing);
    forked = 0;
    in_child("close_range and closefrom", closes_everything);
    in_child("RLIMIT_NOFILE 0", forbids_files);
    if (!without_fsize) in_child("RLIMIT_FSIZE 0", forbids_file_sizes);
    in_child("RLIMIT_NPROC 1", forbids_threads);
    in_child("RLIMIT_AS", forbids_memory);
    in_child("setuid", changes_user);
    in_child("chroot", changes_root);
    in_child("unshare", unshares);
    in_child("PR_SET_DUMPABLE 0", is_not_dumpable);
    in_child("SCHED_IDLE", is_idle);
    in_child("seccomp", is_sandboxed);
    programs();
    names();
    last_thread();
    stopped();
    send_buffer_away();
    return 0;
}
