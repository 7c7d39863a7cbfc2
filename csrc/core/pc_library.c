/* Shared objects from memory: by an anonymous file, or by one that is gone at once. */
#include "pc_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

/* glibc knows a loaded library by the name that it was opened with, and file
   descriptor numbers are used again. So every load needs a name of its own. */
static atomic_ullong load_counter;

/* Returns 0, or the errno of write(2). */
static int
write_all(int fd, const unsigned char *data, size_t size)
{
    while (size > 0) {
        ssize_t count = write(fd, data, size);
        if (count < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        data += count;
        size -= (size_t)count;
    }
    return 0;
}

/* Writes a spelling of /proc/self/fd/<fd> that no other load uses: the counter,
   as a row of "/." (1) and "/" (0). */
static void
unique_fd_path(int fd, char *path, size_t size)
{
    unsigned long long counter = atomic_fetch_add(&load_counter, 1);
    char row[2 * 64 + 1];
    size_t length = 0;
    for (; counter != 0; counter >>= 1) {
        row[length++] = '/';
        if (counter & 1) {
            row[length++] = '.';
        }
    }
    row[length] = '\0';
    (void)snprintf(path, size, "/proc/self%s/fd/%d", row, fd);
}

/* Opens *path* as a library; on failure keeps the text of the linker. */
static pc_status
open_path(const char *path, void **handle, pc_error *error)
{
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*handle == NULL) {
        const char *reason = dlerror();
        size_t length = strlen(path);
        if (reason == NULL) {
            reason = "dlopen failed";
        }
        else if (strncmp(reason, path, length) == 0 &&
                 strncmp(reason + length, ": ", 2) == 0) {
            reason += length + 2; /* the path says nothing */
        }
        return pc_fail(error, PC_CORRUPT, "%s", reason);
    }
    return PC_OK;
}

/* Opens by an anonymous file. *retry* says that this way is closed on this machine. */
static pc_status
open_anonymous(const void *data, size_t size, void **handle, bool *retry,
               pc_error *error)
{
    char path[256];
    pc_status status = PC_OK;
    int fd = memfd_create("precomp", MFD_CLOEXEC | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) { /* kernels before 6.3 */
        fd = memfd_create("precomp", MFD_CLOEXEC);
    }
    if (fd < 0) {
        *retry = true;
        return pc_fail(error, PC_CORRUPT, "memfd_create: %s", strerror(errno));
    }
    int failed = write_all(fd, data, size);
    if (failed != 0) {
        *retry = true;
        status = pc_fail(error, PC_CORRUPT, "memfd: write: %s", strerror(failed));
        goto done;
    }
    unique_fd_path(fd, path, sizeof(path));
    if (access(path, R_OK) != 0) {
        *retry = true;
        status = pc_fail(error, PC_CORRUPT, "/proc/self/fd: %s", strerror(errno));
        goto done;
    }
    status = open_path(path, handle, error);
    /* A mount or a security module may forbid executable anonymous files. */
    *retry = status != PC_OK && strstr(error->message, "failed to map segment") != NULL;
done:
    (void)close(fd);
    return status;
}

/* Opens by a file in $TMPDIR that is removed before this returns. *error* says why
   the first way was closed. */
static pc_status
open_temporary(const void *data, size_t size, void **handle, pc_error *error)
{
    char why[256];
    char reason[256];
    char path[512];
    (void)snprintf(why, sizeof(why), "%.255s", error->message);
    const char *directory = getenv("TMPDIR");
    if (directory == NULL || directory[0] == '\0') {
        directory = "/tmp";
    }
    int length = snprintf(path, sizeof(path), "%s/precomp-%ld-%llu-XXXXXX", directory,
                          (long)getpid(), atomic_fetch_add(&load_counter, 1));
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return pc_fail(error, PC_CORRUPT, "%s, and the path in TMPDIR is too long",
                       why);
    }
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        return pc_fail(error, PC_CORRUPT,
                       "anonymous files are not available (%s), and neither is a file "
                       "in %s (%s): set TMPDIR to a writable directory",
                       why, directory, strerror(errno));
    }
    pc_status status = PC_OK;
    int failed = write_all(fd, data, size);
    (void)close(fd);
    if (failed != 0) {
        status = pc_fail(error, PC_CORRUPT,
                         "%s: write: %s: set TMPDIR to a directory with space", path,
                         strerror(failed));
    }
    else if (open_path(path, handle, error) != PC_OK) {
        (void)snprintf(reason, sizeof(reason), "%.255s", error->message);
        status = pc_fail(error, PC_CORRUPT,
                         "%s (anonymous files are not available: %s; set TMPDIR to a "
                         "directory whose files may be executed)",
                         reason, why);
    }
    (void)unlink(path);
    return status;
}

pc_status
pc_library_open(const void *data, size_t size, void **handle, pc_error *error)
{
    bool retry = false;
    *handle = NULL;
    pc_status status = pc_library_check(data, size, error);
    if (status == PC_OK) {
        status = open_anonymous(data, size, handle, &retry, error);
        if (status != PC_OK && retry) {
            status = open_temporary(data, size, handle, error);
        }
    }
    return status;
}
