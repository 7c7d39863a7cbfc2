/* Filling of error records. */
#include "pc_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

pc_status
pc_fail(pc_error *error, pc_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
    error->status = status;
    error->sys_errno = 0;
    error->path[0] = '\0';
    return status;
}

pc_status
pc_fail_io(pc_error *error, int sys_errno, const char *path)
{
    error->status = PC_IO;
    error->sys_errno = sys_errno;
    (void)snprintf(error->path, sizeof(error->path), "%s", path);
    (void)snprintf(error->message, sizeof(error->message), "%s: %s", path,
                   strerror(sys_errno));
    return PC_IO;
}
