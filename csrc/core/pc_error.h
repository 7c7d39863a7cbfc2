/* Status codes and the error record that every core function fills once, at the
 * point of failure. Core code neither prints nor aborts and does not know Python.
 */
#ifndef PRECOMP_PC_ERROR_H
#define PRECOMP_PC_ERROR_H

typedef enum {
    PC_OK = 0,
    PC_NO_MEMORY,    /* an allocation failed */
    PC_IO,           /* a system call failed: sys_errno and path are set */
    PC_CORRUPT,      /* the bytes break the format */
    PC_BAD_VERSION,  /* well formed, but of a version or feature we do not know */
    PC_BAD_ARGUMENT, /* the caller broke the contract */
    PC_CUDA,         /* the CUDA driver is missing, or a call of it failed */
} pc_status;

typedef struct {
    pc_status status;
    int sys_errno;      /* for PC_CUDA the result of the call, if one was made */
    char path[1024];    /* for PC_IO; may be empty */
    char message[1024]; /* operation: what, where, expected, found, what to do */
} pc_error;

/* Fills *error* (printf style) and returns *status*. *error* may not be NULL. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
pc_status pc_fail(pc_error *error, pc_status status, const char *format, ...);

/* Fills *error* for a failed system call on *path* with errno *sys_errno*. */
pc_status pc_fail_io(pc_error *error, int sys_errno, const char *path);

#endif
