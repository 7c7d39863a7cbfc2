/* Writer of artifacts (docs/format.md). */
#ifndef PRECOMP_PC_WRITER_H
#define PRECOMP_PC_WRITER_H

#include "pc_manifest.h"

typedef struct {
    const char *kind;    /* borrowed, UTF-8 without NUL */
    const char *name;    /* borrowed, UTF-8 without NUL */
    const uint8_t *data; /* borrowed */
    size_t size;
} pc_item;

/* Writes an artifact to *path*: into a file with a unique name in the same directory,
   which is synced and then renamed, so readers see the old file or the new one, whole.
   The bytes depend on the set of items, the environment and *level* (0..max, 0 stores
   without compression) and on nothing else; equal items are written once. When it
   fails it leaves nothing behind, except that when only the last step fails, syncing
   the directory, the new file is there, whole. All compressed blobs are in memory until
   they are written. *digest* is the sha256 of the file. */
pc_status pc_writer_write(const char *path, const pc_pair *environment,
                          size_t environment_count, const pc_item *items, size_t count,
                          int level, uint8_t digest[PC_DIGEST_SIZE], pc_error *error);

#endif
