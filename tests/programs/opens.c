/* opens: opens a file past the page cache (O_DIRECT) in one of many ways, closes it at once, and then uses memory.
 *
 *   opens WAY DIR MIB      (WAY: a number; without a further way the status is 3. DIR: a file system that knows O_DIRECT)
 *
 * Exit status: 0 all well, 1 wrong contents, 2 usage or resources, 3 no such way. */
#define _GNU_SOURCE
#include "pages.h"
#include <linux/openat2.h>

int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);

static char path[4096];

static struct file_handle *handle(void) {
    static union {
        struct file_handle handle;
        char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } held;
    int mount;
    held.handle.handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(AT_FDCWD, path, &held.handle, &mount, 0)) fail("name_to_handle_at");
    return &held.handle;
}

static int plain(void) {
    int file = open(path, O_RDWR);
    if (file < 0) fail("open");
    return file;
}

static int by_fcntl(int by_number) {
    int file = plain();
    int done = by_number ? (int)syscall(SYS_fcntl, file, F_SETFL, O_DIRECT) : fcntl(file, F_SETFL, O_DIRECT);
    if (done) fail("fcntl");
    return file;
}

/* As programs call it that are built with offsets of 64 bits. */
static int by_fcntl64(void) {
    int file = plain();
    if (fcntl64(file, F_SETFL, O_DIRECT)) fail("fcntl64");
    return file;
}

static int open_by(int way) {
    const int flags = O_RDWR | O_DIRECT;
    struct open_how how = {.flags = O_RDWR | O_DIRECT};
    switch (way) {
    case 0: return plain();
    case 1: return open(path, flags);
    case 2: return __open_2(path, flags);
    case 3: return __open64_2(path, flags);
    case 4: return __openat_2(AT_FDCWD, path, flags);
    case 5: return __openat64_2(AT_FDCWD, path, flags);
    case 6: return open_by_handle_at(plain(), handle(), flags);
    case 7: return by_fcntl(0);
    case 8: return by_fcntl(1);
    case 9: return (int)syscall(SYS_open, path, flags);
    case 10: return (int)syscall(SYS_openat, AT_FDCWD, path, flags);
    case 11: return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    case 12: return (int)syscall(SYS_open_by_handle_at, plain(), handle(), flags);
    case 13: return by_fcntl64();
    default: exit(3);
    }
}

/* Also where a way to open it is none here. */
static void leave(void) { unlink(path); }

int main(int count, char **arguments) {
    if (count != 4) return fputs("usage: opens WAY DIR MIB\n", stderr), 2;
    snprintf(path, sizeof path, "%s/opens.XXXXXX", arguments[2]);
    int made = mkstemp(path);
    if (made < 0) fail("mkstemp");
    atexit(leave);
    int file = open_by(atoi(arguments[1]));
    if (file < 0) fail("a file opened with O_DIRECT");
    leave();
    /* Nobody who looks later sees it. */
    close(file);
    size_t pages = (size_t)atol(arguments[3]) * 256;
    char *at = map(NULL, pages, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, pages, 1);
    check(at, 0, pages, 1);
    puts("ok");
    return 0;
}
