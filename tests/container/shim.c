/* Preloaded into a test process: makes the n-th call of one system call fail, be short,
 * or wait for a byte on a pipe. Armed from Python through ctypes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static char armed[32];   /* name of the function, or empty */
static _Atomic int left; /* calls until it happens */
static int failure;      /* errno; 0: a short count; -1: wait */
static int wait_fd = -1; /* read before the call goes on */
static int tell_fd = -1; /* written when the call was reached */
static _Atomic int hits;

void shim_arm(const char *name, int nth, int how);
void shim_arm_wait(const char *name, int wait, int tell);
int shim_disarm(void);

void
shim_arm(const char *name, int nth, int how)
{
    atomic_store(&hits, 0);
    atomic_store(&left, nth);
    failure = how;
    (void)snprintf(armed, sizeof(armed), "%s", name);
}

void
shim_arm_wait(const char *name, int wait, int tell)
{
    wait_fd = wait;
    tell_fd = tell;
    shim_arm(name, 1, -1);
}

/* Returns how often it happened. */
int
shim_disarm(void)
{
    armed[0] = '\0';
    return atomic_load(&hits);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* 1 when this call is the one. */
static int
strike(const char *name)
{
    if (strcmp(name, armed) != 0 || atomic_fetch_sub(&left, 1) != 1) {
        return 0;
    }
    atomic_fetch_add(&hits, 1);
    if (failure == -1) {
        char byte = 'x';
        (void)!REAL(write)(tell_fd, &byte, 1);
        (void)!REAL(read)(wait_fd, &byte, 1);
        return 0;
    }
    errno = failure;
    return 1;
}

ssize_t
write(int fd, const void *data, size_t size)
{
    if (strike("write")) {
        if (failure != 0) {
            return -1;
        }
        size = size > 1 ? size / 2 : size;
    }
    return REAL(write)(fd, data, size);
}

ssize_t
pread(int fd, void *data, size_t size, off_t offset)
{
    if (strike("pread")) {
        if (failure != 0) {
            return -1;
        }
        size = size > 1 ? size / 2 : size;
    }
    return REAL(pread)(fd, data, size, offset);
}

int
open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    return strike("open") ? -1 : REAL(open)(path, flags, mode);
}

int
fsync(int fd)
{
    return strike("fsync") ? -1 : REAL(fsync)(fd);
}

int
close(int fd)
{
    int result = REAL(close)(fd);
    return strike("close") ? -1 : result;
}

int
rename(const char *from, const char *to)
{
    return strike("rename") ? -1 : REAL(rename)(from, to);
}

ssize_t
getrandom(void *data, size_t size, unsigned flags)
{
    return strike("getrandom") ? -1 : REAL(getrandom)(data, size, flags);
}
