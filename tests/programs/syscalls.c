/* syscalls: the kernel reads and writes memory that is out, and finds and leaves there what the program would.
 *
 * Each step fills a buffer, presses it out of memory, and hands it to system calls.
 *
 *   syscalls [--press MIB] [--native] [--raw] [--dir DIR]      (DIR: a file system that knows O_DIRECT)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources. */
#define _GNU_SOURCE
#include "direct.h"
#include "options.h"
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { BUFFER_PAGES = 1024 };
static const size_t BYTES = (size_t)BUFFER_PAGES * PAGE_BYTES;
static const char *directory = "/var/tmp";
static uint64_t tag = 100;

/* A buffer whose pages hold what `tag` says, and are out of memory. */
static char *away(void) {
    char *at = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, BUFFER_PAGES, ++tag);
    send_away(at, BUFFER_PAGES);
    return at;
}

static void done(char *at) { unmap(at, BUFFER_PAGES); }

static int file(int flags) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd < 0) fail("O_TMPFILE");
    return fd;
}

static void all(ssize_t got, size_t wanted, const char *call) {
    if (got < 0) fail(call);
    demand((size_t)got == wanted, call);
}

static void reads_and_writes(void) {
    begin("write and read");
    int fd = file(0);
    char *from = away();
    all(pwrite(fd, from, BYTES, 0), BYTES, "pwrite");
    char *to = away();
    all(pread(fd, to, BYTES, 0), BYTES, "pread");
    check(to, 0, BUFFER_PAGES, tag - 1);
    check(from, 0, BUFFER_PAGES, tag - 1);
    done(from);

    begin("readv and writev, the vector away too");
    struct iovec *vector = (void *)map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    from = away();
    for (size_t page = 0; page < BUFFER_PAGES; page++) vector[page] = (struct iovec){from + page * PAGE_BYTES, PAGE_BYTES};
    send_away(vector, BUFFER_PAGES * sizeof *vector / PAGE_BYTES);
    all(pwritev(fd, vector, BUFFER_PAGES, 0), BYTES, "pwritev");
    for (size_t page = 0; page < BUFFER_PAGES; page++) vector[page].iov_base = to + page * PAGE_BYTES;
    send_away(to, BUFFER_PAGES);
    all(preadv(fd, vector, BUFFER_PAGES, 0), BYTES, "preadv");
    check(to, 0, BUFFER_PAGES, tag);
    done((void *)vector), done(from), done(to);
    close(fd);
}

struct pump {
    int fd;
    char *at;
};
static void *pump_out(void *argument) {
    struct pump *pump = argument;
    for (size_t sent = 0; sent < BYTES;) {
        ssize_t got = write(pump->fd, pump->at + sent, BYTES - sent);
        if (got <= 0) fail("write");
        sent += (size_t)got;
    }
    return NULL;
}

static void pipes_and_sockets(void) {
    begin("through a pipe");
    int ends[2];
    if (pipe(ends)) fail("pipe");
    char *from = away(), *to = away();
    pthread_t thread;
    struct pump pump = {ends[1], from};
    pthread_create(&thread, NULL, pump_out, &pump);
    for (size_t received = 0; received < BYTES;) {
        ssize_t got = read(ends[0], to + received, BYTES - received);
        if (got <= 0) fail("read");
        received += (size_t)got;
    }
    pthread_join(thread, NULL);
    check(to, 0, BUFFER_PAGES, tag - 1);
    close(ends[0]), close(ends[1]);

    begin("sendmsg and recvmsg, their arguments away too");
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) fail("socketpair");
    send_away(from, BUFFER_PAGES);
    struct arguments {
        struct msghdr header;
        struct iovec vector[2];
    } *sent = (void *)map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    for (size_t page = 0; page + 16 < BUFFER_PAGES; page += 61) {
        char *source = from + page * PAGE_BYTES, *target = to + page * PAGE_BYTES;
        memset(target, 0xee, 16 * PAGE_BYTES);
        sent->vector[0] = (struct iovec){source, 5 * PAGE_BYTES};
        sent->vector[1] = (struct iovec){source + 5 * PAGE_BYTES, 11 * PAGE_BYTES};
        sent->header = (struct msghdr){.msg_iov = sent->vector, .msg_iovlen = 2};
        if (page % 4 == 0) send_away(sent, 1);
        all(sendmsg(ends[0], &sent->header, 0), 16 * PAGE_BYTES, "sendmsg");
        sent->vector[0] = (struct iovec){target, 7 * PAGE_BYTES};
        sent->vector[1] = (struct iovec){target + 7 * PAGE_BYTES, 9 * PAGE_BYTES};
        all(recvmsg(ends[1], &sent->header, 0), 16 * PAGE_BYTES, "recvmsg");
        check(target, page, 16, tag - 1);
    }
    done((void *)sent), done(from), done(to);
    close(ends[0]), close(ends[1]);
}

static void random_bytes(void) {
    begin("getrandom");
    char *at = away();
    for (size_t got = 0; got < BYTES;) {
        ssize_t more = getrandom(at + got, BYTES - got, 0);
        if (more <= 0) fail("getrandom");
        got += (size_t)more;
    }
    for (size_t page = 0; page < BUFFER_PAGES; page++)
        demand(memcmp(at + page * PAGE_BYTES, at + (page + 1) % BUFFER_PAGES * PAGE_BYTES, PAGE_BYTES) != 0, "random pages differ");
    done(at);
}

static uint32_t *word;
static int waits;
static void *wait_on_word(void *argument) {
    (void)argument;
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == 7) {
        __atomic_store_n(&waits, 1, __ATOMIC_SEQ_CST);
        if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 7, NULL, NULL, 0) && errno != EAGAIN && errno != EINTR) fail("FUTEX_WAIT");
    }
    return NULL;
}

static void futexes(void) {
    begin("a futex whose word leaves while somebody waits");
    char *at = away();
    for (size_t page = 0; page < BUFFER_PAGES; page += 101) {
        word = (uint32_t *)(void *)(at + page * PAGE_BYTES);
        *word = 7, waits = 0;
        pthread_t thread;
        pthread_create(&thread, NULL, wait_on_word, NULL);
        while (!__atomic_load_n(&waits, __ATOMIC_SEQ_CST)) usleep(100);
        send_away(word, 1);
        demand(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 8, NULL, NULL, 0) == -1 && errno == EAGAIN, "the kernel reads the word");
        send_away(word, 1);
        __atomic_store_n(word, 9, __ATOMIC_SEQ_CST);
        send_away(word, 1);
        if (syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) < 0) fail("FUTEX_WAKE");
        pthread_join(thread, NULL);
    }
    done(at);
}

static void events(void) {
    begin("epoll_wait and poll write to memory that is away");
    int epoll = epoll_create1(EPOLL_CLOEXEC), ends[2];
    if (epoll < 0 || pipe(ends)) fail("epoll_create1");
    char *at = away();
    struct epoll_event *event = (void *)at;
    event->events = EPOLLIN, event->data.u64 = 0x1234567890abcdef;
    send_away(at, 1);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], event)) fail("epoll_ctl");
    if (write(ends[1], "x", 1) != 1) fail("write");
    event = (void *)(at + 40 * PAGE_BYTES);
    send_away(event, 1);
    demand(epoll_wait(epoll, event, 8, 1000) == 1 && event->data.u64 == 0x1234567890abcdef, "the event");
    struct pollfd *polled = (void *)(at + 80 * PAGE_BYTES);
    *polled = (struct pollfd){.fd = ends[0], .events = POLLIN};
    send_away(polled, 1);
    demand(poll(polled, 1, 1000) == 1 && polled->revents == POLLIN, "poll");
    done(at), close(epoll), close(ends[0]), close(ends[1]);
}

static void executes(void) {
    begin("execve with arguments that are away");
    char *at = away();
    char **arguments = (char **)(void *)at;
    arguments[0] = strcpy(at + 3 * PAGE_BYTES, "cat");
    arguments[1] = strcpy(at + 5 * PAGE_BYTES, "-");
    arguments[2] = NULL;
    char *path = strcpy(at + 900 * PAGE_BYTES, "/bin/cat");
    int in[2], out[2];
    if (pipe(in) || pipe(out)) fail("pipe");
    send_away(at, BUFFER_PAGES);
    pid_t child = vfork();
    if (!child) {
        dup2(in[0], 0), dup2(out[1], 1);
        close(in[1]), close(out[0]);
        execv(path, arguments);
        _exit(127);
    }
    close(in[0]), close(out[1]);
    if (write(in[1], "through", 7) != 7) fail("write");
    close(in[1]);
    char *said = at + 70 * PAGE_BYTES;
    send_away(said, 1);
    demand(read(out[0], said, 100) == 7 && !memcmp(said, "through", 7), "what the command says");
    int status;
    demand(waitpid(child, &status, 0) == child && status == 0, "its status");
    close(out[0]), done(at);
}

/* The kernel does not wait for a page when it looks through /proc/PID/mem or ptrace: what is out gives EIO. */
static int seen(ssize_t got, size_t wanted, const char *way) {
    if (got < 0 && errno == EIO && !native) return 0;
    all(got, wanted, way);
    return 1;
}

static void from_outside(void) {
    begin("another process looks: process_vm_readv, process_vm_writev, /proc/PID/mem, ptrace");
    char *at = away();
    pid_t parent = getpid();
    pid_t child = fork();
    if (!child) {
        size_t half = BUFFER_PAGES / 2;
        /* The child's own copy of the buffer is left alone: what it reads is the parent's. */
        char *copy = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
        struct iovec to = {copy, half * PAGE_BYTES}, from = {at, half * PAGE_BYTES};
        all(process_vm_readv(parent, &to, 1, &from, 1, 0), half * PAGE_BYTES, "process_vm_readv");
        check(copy, 0, half, tag);
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", (int)parent);
        int memory = open(path, O_RDONLY | O_CLOEXEC);
        if (memory < 0) fail(path);
        for (size_t page = half; page < BUFFER_PAGES; page++)
            if (seen(pread(memory, copy + page * PAGE_BYTES, PAGE_BYTES, (off_t)(uintptr_t)(at + page * PAGE_BYTES)), PAGE_BYTES, path))
                check(copy + page * PAGE_BYTES, page, 1, tag);
        fill(copy, 0, half, tag + 1);
        all(process_vm_writev(parent, &to, 1, &from, 1, 0), half * PAGE_BYTES, "process_vm_writev");
        _exit(0);
    }
    int status;
    demand(waitpid(child, &status, 0) == child && status == 0, "the child saw our pages");
    check(at, 0, BUFFER_PAGES / 2, tag + 1);
    check(at + BUFFER_PAGES / 2 * PAGE_BYTES, BUFFER_PAGES / 2, BUFFER_PAGES / 2, tag);
    fill(at, 0, BUFFER_PAGES, ++tag);
    /* Once the child runs: while its engine starts, pages that are out read as zeroes from outside. */
    int ready[2];
    char byte = 1;
    if (pipe(ready)) fail("pipe");
    child = fork();
    if (!child) {
        if (write(ready[1], &byte, 1) != 1) _exit(2);
        for (;;) pause();
    }
    if (read(ready[0], &byte, 1) != 1) fail("read");
    close(ready[0]), close(ready[1]);
    if (ptrace(PTRACE_SEIZE, child, 0, 0) || ptrace(PTRACE_INTERRUPT, child, 0, 0)) fail("ptrace");
    if (waitpid(child, &status, __WALL) != child) fail("waitpid");
    for (size_t page = 0; page < BUFFER_PAGES; page += 7) {
        errno = 0;
        uint64_t found = (uint64_t)ptrace(PTRACE_PEEKDATA, child, at + page * PAGE_BYTES, 0);
        if (seen(errno ? -1 : 8, 8, "PTRACE_PEEKDATA")) demand(found == word_at(tag, page, 0), "what ptrace peeks");
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);

    begin("/proc/self/mem");
    send_away(at, BUFFER_PAGES);
    int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    char *copy = away();
    for (size_t page = 0; page < BUFFER_PAGES; page++)
        if (seen(pread(memory, copy + page * PAGE_BYTES, PAGE_BYTES, (off_t)(uintptr_t)(at + page * PAGE_BYTES)), PAGE_BYTES, "/proc/self/mem"))
            check(copy + page * PAGE_BYTES, page, 1, tag - 1);
    send_away(at, BUFFER_PAGES);
    if (seen(pwrite(memory, "written", 8, (off_t)(uintptr_t)(at + 9 * PAGE_BYTES)), 8, "writing /proc/self/mem"))
        demand(!strcmp(at + 9 * PAGE_BYTES, "written"), "what was written");
    else
        check(at, 0, BUFFER_PAGES, tag - 1);
    close(memory), done(copy), done(at);
}

/* ---- direct I/O: pages are the victim while a device reads or writes them ------------------------------------ */

static volatile int pressing;
static void *press_on(void *argument) {
    (void)argument;
    while (pressing) press();
    return NULL;
}

static int direct_file(void) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
    if (fd < 0) fprintf(stderr, "%s: no O_DIRECT there: left out\n", directory);
    return fd;
}

enum { ROUNDS = 12 };

static void in_chunks(int fd, char *at, int writes) {
    for (size_t from = 0; from < BYTES; from += CHUNK_BYTES)
        all(writes ? pwrite(fd, at + from, CHUNK_BYTES, (off_t)from) : pread(fd, at + from, CHUNK_BYTES, (off_t)from), CHUNK_BYTES, "direct I/O");
}

static void direct(void) {
    int fd = direct_file();
    if (fd < 0) return;
    char *from = away(), *to = away();
    struct ring ring = {0};
    int has_ring = open_ring(&ring);
    if (!has_ring) fprintf(stderr, "io_uring is not to be had: left out\n");
    pthread_t presser;
    pressing = 1;
    pthread_create(&presser, NULL, press_on, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        static const char *const names[] = {"direct I/O by threads", "direct I/O by kernel AIO", "direct I/O by io_uring", "direct I/O by io_uring, fixed buffers"};
        int way = round % 4;
        if (way >= 2 && !has_ring) continue;
        begin(names[way]);
        fill(from, 0, BUFFER_PAGES, ++tag);
        memset(to, 0x55, BYTES);
        struct iovec both[2] = {{from, BYTES}, {to, BYTES}};
        if (way == 3 && syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, both, 2)) {
            fprintf(stderr, "IORING_REGISTER_BUFFERS: %s: left out\n", strerror(errno));
            continue;
        }
        for (int writes = 1; writes >= 0; writes--) {
            char *at = writes ? from : to;
            if (way == 0) in_chunks(fd, at, writes);
            else if (way == 1) all(by_aio(fd, at, BYTES, 0, writes), BYTES, "kernel AIO");
            else all(by_ring(&ring, fd, at, BYTES, 0, writes, way == 3 ? !writes : -1), BYTES, "io_uring");
        }
        check(to, 0, BUFFER_PAGES, tag);
        check(from, 0, BUFFER_PAGES, tag);
        if (way == 3) syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
    }
    pressing = 0;
    pthread_join(presser, NULL);
    close(fd), done(from), done(to);
    if (has_ring) close_ring(&ring);
}

/* ---- stacks -------------------------------------------------------------------------------------------------- */

static volatile uint64_t handled;
static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    handled += (uint64_t)(signal == SIGUSR1 && info->si_signo == SIGUSR1);
}

static void signal_stack(void) {
    begin("a signal's frame on a stack that is away");
    char *at = away();
    stack_t stack = {.ss_sp = at, .ss_size = BYTES}, old;
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK}, before;
    if (sigaltstack(&stack, &old) || sigaction(SIGUSR1, &action, &before)) fail("sigaltstack");
    for (uint64_t nth = 1; nth <= 20; nth++) {
        send_away(at + BYTES - 16 * PAGE_BYTES, 16);
        raise(SIGUSR1);
        demand(handled == nth, "the handler ran");
    }
    sigaltstack(&old, NULL), sigaction(SIGUSR1, &before, NULL);
    /* What lies below the frames is what it was. */
    check(at, 0, BUFFER_PAGES - 16, tag);
    done(at);
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int whose;
static void pass_to(int next) {
    pthread_mutex_lock(&turn);
    whose = next;
    pthread_cond_broadcast(&turned);
    while (whose == next) pthread_cond_wait(&turned, &turn);
    pthread_mutex_unlock(&turn);
}

static __attribute__((noinline)) uint64_t descend(int depth) {
    volatile char frame[3 * PAGE_BYTES];
    memset((char *)frame, depth, sizeof frame);
    uint64_t below;
    if (depth == 0) {
        pass_to(0); /* our stack leaves meanwhile */
        below = 0;
    } else {
        below = descend(depth - 1);
    }
    for (size_t offset = 0; offset < sizeof frame; offset += 509) demand(frame[offset] == (char)depth, "the frame");
    return below + 1;
}

static void *on_stack(void *argument) {
    (void)argument;
    return (void *)(uintptr_t)descend(200);
}

static void thread_stack(void) {
    begin("a thread whose stack leaves");
    char *at = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, at, BYTES)) fail("pthread_attr_setstack");
    pthread_t thread;
    whose = 1;
    if (pthread_create(&thread, &attributes, on_stack, NULL)) fail("pthread_create");
    pthread_mutex_lock(&turn);
    while (whose) pthread_cond_wait(&turned, &turn);
    pthread_mutex_unlock(&turn);
    send_away(at + BYTES - 512 * PAGE_BYTES, 512);
    /* Where the kernel says that the thread has ended: it would not wait for the page. */
    demand(!absent(at + BYTES - PAGE_BYTES, 1), "the thread's control block stays");
    pthread_mutex_lock(&turn);
    whose = 1;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&turn);
    void *depth;
    pthread_join(thread, &depth);
    demand((uintptr_t)depth == 201, "all frames");
    done(at);
}

static void *locks_and_ends(void *mutex) {
    pthread_mutex_lock(mutex);
    pass_to(0); /* everything leaves meanwhile that may */
    syscall(SYS_exit, 0);
    return NULL;
}

static void robust_mutex(int kind) {
    begin(kind == MAP_SHARED ? "a robust mutex in shared memory" : "a robust mutex whose owner ends while memory leaves");
    char *at = mmap(NULL, BUFFER_PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    pthread_mutex_t *mutex = (void *)(at + 300 * PAGE_BYTES + 128);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    if (pthread_mutex_init(mutex, &attributes)) fail("pthread_mutex_init");
    fill(at, 0, 300, ++tag), fill(at + 301 * PAGE_BYTES, 301, BUFFER_PAGES - 301, tag);
    pthread_t thread;
    whose = 1;
    if (pthread_create(&thread, NULL, locks_and_ends, mutex)) fail("pthread_create");
    pthread_mutex_lock(&turn);
    while (whose) pthread_cond_wait(&turned, &turn);
    pthread_mutex_unlock(&turn);
    send_away(at, BUFFER_PAGES);
    demand(!absent(mutex, 1), "its page stays");
    pthread_mutex_lock(&turn);
    whose = 1;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&turn);
    pthread_join(thread, NULL);
    demand(pthread_mutex_lock(mutex) == EOWNERDEAD, "the next owner is told");
    /* Else this thread's list of such mutexes would go on leading there. */
    pthread_mutex_consistent(mutex);
    pthread_mutex_unlock(mutex);
    check(at, 0, 300, tag), check(at + 301 * PAGE_BYTES, 301, BUFFER_PAGES - 301, tag);
    done(at);
}

static int ends(void *nothing) { return (void)nothing, 0; }

static void cleared_word(void) {
    begin("the word that the kernel clears when a clone in the same memory ends");
    char *at = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0), *stack = map(NULL, 16, PROT_READ | PROT_WRITE, 0);
    volatile pid_t *word = (void *)(at + 200 * PAGE_BYTES);
    fill(at, 0, BUFFER_PAGES, ++tag);
    *word = 1;
    send_away(at, BUFFER_PAGES);
    pid_t clear = clone(ends, stack + 16 * PAGE_BYTES, CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, NULL, NULL, NULL, (pid_t *)word);
    if (clear < 0 || waitpid(clear, NULL, 0) != clear) fail("clone");
    demand(*word == 0, "it is cleared");
    unmap(stack, 16), done(at);
}

/* ---- references that nothing shows ------------------------------------------------------------------------------ */

static void spliced(void) {
    begin("a pipe that vmsplice filled keeps its bytes while the pages leave");
    int ends[2];
    if (pipe(ends)) fail("pipe");
    char *from = away(), *to = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    enum { SPLICED = 12 };
    for (size_t page = 0; page + SPLICED < BUFFER_PAGES; page += 97) {
        struct iovec vector = {from + page * PAGE_BYTES, SPLICED * PAGE_BYTES};
        all(vmsplice(ends[1], &vector, 1, 0), vector.iov_len, "vmsplice");
        send_away(from + page * PAGE_BYTES, SPLICED);
        all(read(ends[0], to, vector.iov_len), vector.iov_len, "read");
        check(to, page, SPLICED, tag);
    }
    done(from), done(to), close(ends[0]), close(ends[1]);
}

static void zerocopy(void) {
    begin("a socket keeps what MSG_ZEROCOPY sent while the pages leave");
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, (void *)&address, size) || listen(listener, 1) || getsockname(listener, (void *)&address, &size)) fail("listening");
    int sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sender < 0 || connect(sender, (void *)&address, size)) fail("connecting");
    int receiver = accept(listener, NULL, NULL);
    if (receiver < 0) fail("accept");
    /* A reference to a page that nobody can see would be in the way: there is no such option, as on other kernels. */
    int refused = setsockopt(sender, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one);
    demand(native || (refused && errno == EOPNOTSUPP), "SO_ZEROCOPY is refused");
    char *from = away(), *to = map(NULL, BUFFER_PAGES, PROT_READ | PROT_WRITE, 0);
    enum { SENT = 12 };
    for (size_t page = 0; page + SENT < BUFFER_PAGES; page += 97) {
        size_t bytes = SENT * PAGE_BYTES;
        all(send(sender, from + page * PAGE_BYTES, bytes, MSG_ZEROCOPY), bytes, "send");
        send_away(from + page * PAGE_BYTES, SENT);
        all(recv(receiver, to, bytes, MSG_WAITALL), bytes, "recv");
        check(to, page, SENT, tag);
    }
    done(from), done(to), close(listener), close(sender), close(receiver);
}

int main(int count, char **arguments) {
    const struct program_option table[] = {MIB("--press", &press_pages), SWITCH("--native", &native), SWITCH("--raw", &raw), TEXT("--dir", &directory), {0}};
    read_options("usage: syscalls [--press MIB] [--native] [--raw] [--dir DIR]", table, count, arguments);
    reads_and_writes();
    pipes_and_sockets();
    random_bytes();
    futexes();
    events();
    executes();
    from_outside();
    /* Of a process that has opened what pins memory, none that is shared leaves. */
    robust_mutex(MAP_SHARED);
    direct();
    signal_stack();
    thread_stack();
    robust_mutex(MAP_PRIVATE);
    cleared_word();
    spliced();
    zerocopy();
    puts("ok");
    return 0;
}
