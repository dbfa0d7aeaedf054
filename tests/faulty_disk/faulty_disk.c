/*
 * A disk that fails when it is told to: stands between one program and the system (LD_PRELOAD) for positioned reads of
 * one file. What it does is said by a control file that both sides see at the same moment, in 64-bit words.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum mode { WORKS = 0, FAILS = 1, HANGS = 2, READS_SHORT = 3 };

struct control {
    _Atomic uint64_t mode;
    /* Reads that begin here or behind it meet the mode. */
    _Atomic uint64_t from;
    /* How many of them do. */
    _Atomic uint64_t times;
    /* How many did. */
    _Atomic uint64_t met;
};

static struct control *control;
static struct stat file;
static int without_direct_reads;

__attribute__((constructor)) static void begin(void) {
    const char *words = getenv("FAULTY_DISK_CONTROL"), *path = getenv("FAULTY_DISK_FILE");
    without_direct_reads = getenv("FAULTY_DISK_NO_DIRECT") != NULL;
    if (!words || !path || stat(path, &file) != 0) return;
    int fd = syscall(SYS_openat, AT_FDCWD, words, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) control = map;
}

static int is_the_file(int fd) {
    struct stat about;
    return control && fstat(fd, &about) == 0 && about.st_dev == file.st_dev && about.st_ino == file.st_ino;
}

/* Whether this read is one of those that meet the mode. */
static int meets(off_t at) {
    if ((uint64_t)at < atomic_load(&control->from)) return 0;
    uint64_t left = atomic_load(&control->times);
    while (left > 0 && !atomic_compare_exchange_weak(&control->times, &left, left - 1)) {}
    if (left > 0) atomic_fetch_add(&control->met, 1);
    return left > 0;
}

static ssize_t read_at(int fd, void *into, size_t count, off_t at) {
    uint64_t mode = is_the_file(fd) ? atomic_load(&control->mode) : WORKS;
    if (mode == WORKS || !meets(at)) return syscall(SYS_pread64, fd, into, count, at);
    if (mode == FAILS) {
        errno = EIO;
        return -1;
    }
    while (mode == HANGS && atomic_load(&control->mode) == HANGS) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    ssize_t got = syscall(SYS_pread64, fd, into, count, at);
    /* A direct read ends early on a whole sector only, and one that is small enough never does. */
    return mode == READS_SHORT && got > 65536 ? (got / 2 + 511) / 512 * 512 : got;
}

ssize_t pread(int fd, void *into, size_t count, off_t at) { return read_at(fd, into, count, at); }

ssize_t pread64(int fd, void *into, size_t count, off_t at) { return read_at(fd, into, count, at); }

/* File systems that have no direct reads refuse them when a file is opened. */
int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t permissions = va_arg(rest, mode_t);
    va_end(rest);
    if (without_direct_reads && flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_openat, AT_FDCWD, path, flags, permissions);
}
