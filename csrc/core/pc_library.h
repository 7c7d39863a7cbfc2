/* Loads shared objects from memory. Nothing stays in the file system and no file
 * descriptor stays open; the libraries stay loaded for the life of the process.
 */
#ifndef PRECOMP_PC_LIBRARY_H
#define PRECOMP_PC_LIBRARY_H

#include <stddef.h>

#include "pc_error.h"

/* Refuses (PC_CORRUPT) what is not a whole shared object for this machine whose
   tables are inside it. Damaged code or data cannot be seen here: bytes that come from
   outside are to be compared with their digest first. */
pc_status pc_library_check(const void *data, size_t size, pc_error *error);

/* Checks and opens the shared object in *data* (*size* bytes, needed only during the
   call) with RTLD_NOW | RTLD_LOCAL and sets *handle* for dlsym. Every call opens a
   fresh copy, whatever its contents. Never to be closed. May be called from any thread.
   On failure *error* has the text of the linker or says what to do. */
pc_status pc_library_open(const void *data, size_t size, void **handle,
                          pc_error *error);

#endif
