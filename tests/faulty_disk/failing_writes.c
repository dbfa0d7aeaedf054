/*
 * A file system that takes nothing: stands between one program and the system (LD_PRELOAD) for everything below one folder.
 * The error is said by a control file that both sides see at the same moment: one 64-bit word, 0 while all is well. With EIO
 * reads fail too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic uint64_t *failure;
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    const char *words = getenv("FAILING_WRITES_CONTROL");
    folder = getenv("FAILING_WRITES_FOLDER");
    if (!words || !folder) return;
    int fd = syscall(SYS_openat, AT_FDCWD, words, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *failure, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) failure = map;
}

static int below(const char *path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int fails_at(const char *path) {
    int error = failure ? (int)atomic_load(failure) : 0;
    if (error && below(path)) {
        errno = error;
        return 1;
    }
    return 0;
}

static int fails(int fd) {
    if (!failure || !atomic_load(failure)) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails_at(path);
}

static int read_fails(int fd) { return failure && atomic_load(failure) == EIO && fails(fd); }

#define OF_FD(type, name, arguments, number, ...) \
    type name arguments { return fails(fd) ? -1 : syscall(number, fd, ##__VA_ARGS__); }

OF_FD(ssize_t, write, (int fd, const void *from, size_t count), SYS_write, from, count)
OF_FD(ssize_t, pwrite, (int fd, const void *from, size_t count, off_t at), SYS_pwrite64, from, count, at)
OF_FD(ssize_t, pwrite64, (int fd, const void *from, size_t count, off_t at), SYS_pwrite64, from, count, at)
OF_FD(int, fsync, (int fd), SYS_fsync)
OF_FD(int, fdatasync, (int fd), SYS_fdatasync)
OF_FD(int, ftruncate, (int fd, off_t length), SYS_ftruncate, length)
OF_FD(int, ftruncate64, (int fd, off_t length), SYS_ftruncate, length)

ssize_t pread(int fd, void *into, size_t count, off_t at) {
    return read_fails(fd) ? -1 : syscall(SYS_pread64, fd, into, count, at);
}

ssize_t pread64(int fd, void *into, size_t count, off_t at) { return pread(fd, into, count, at); }

ssize_t read(int fd, void *into, size_t count) { return read_fails(fd) ? -1 : syscall(SYS_read, fd, into, count); }

int rename(const char *from, const char *to) {
    return fails_at(to) ? -1 : syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* A full disk opens what is there; only a new file needs room. */
int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t permissions = va_arg(rest, mode_t);
    va_end(rest);
    if (flags & O_CREAT && access(path, F_OK) != 0 && fails_at(path)) return -1;
    return syscall(SYS_openat, AT_FDCWD, path, flags, permissions);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t permissions = va_arg(rest, mode_t);
    va_end(rest);
    return open64(path, flags, permissions);
}
