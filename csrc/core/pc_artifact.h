/* Reader of artifacts (docs/format.md).
 *
 * A file below PC_MEMORY_LIMIT is read into memory when it is opened; a larger one is
 * kept open and its blobs are read when they are asked for. Nothing is mapped: a file
 * that is cut short or removed under a reader gives an error, never SIGBUS.
 */
#ifndef PRECOMP_PC_ARTIFACT_H
#define PRECOMP_PC_ARTIFACT_H

#include "pc_blob.h"
#include "pc_manifest.h"

#define PC_FORMAT_VERSION 1
#define PC_HEADER_SIZE 128
#define PC_MAGIC_SIZE 8
#define PC_HEADER_CHECKED 72 /* bytes of the header that its sha256 covers */
#define PC_HEADER_USED (PC_HEADER_CHECKED + PC_DIGEST_SIZE) /* zeros follow */
#define PC_MEMORY_LIMIT ((uint64_t)64 << 20)

extern const uint8_t pc_magic[PC_MAGIC_SIZE];

typedef struct {
    char *path; /* owned, as given */
    uint64_t size;
    uint8_t *data; /* owned: the whole file, or NULL */
    int fd;        /* owned, -1 when data is set */
    pc_manifest manifest;
    size_t *by_digest; /* owned: indices of blobs, sorted by raw digest */
} pc_artifact;

/* Opens *path* and checks header, manifest, layout and padding, but not the blobs.
   On success the caller owns *artifact* and gives it to pc_artifact_close. */
pc_status pc_artifact_open(const char *path, pc_artifact **artifact, pc_error *error);

/* The same for *size* bytes of memory, which are copied. *path* is for messages. */
pc_status pc_artifact_open_memory(const uint8_t *data, size_t size, const char *path,
                                  pc_artifact **artifact, pc_error *error);

/* Accepts NULL. */
void pc_artifact_close(pc_artifact *artifact);

/* Index of the blob with this raw digest, or blob_count. */
size_t pc_artifact_find(const pc_artifact *artifact,
                        const uint8_t digest[PC_DIGEST_SIZE]);

/* Reads blob *index* into *raw*, which holds its raw_size bytes: checks the stored
   digest and what zstd checks. Safe from several threads, each with its own *tools*. */
pc_status pc_artifact_read(const pc_artifact *artifact, size_t index,
                           pc_blob_tools *tools, uint8_t *raw, pc_error *error);

/* Reads *count* blobs into *raws* with up to *threads* threads (0: one for each
   processor, fewer for little work). */
pc_status pc_artifact_read_many(const pc_artifact *artifact, const size_t *indices,
                                uint8_t *const *raws, size_t count, size_t threads,
                                pc_error *error);

/* Checks every stored and raw digest, in parallel. */
pc_status pc_artifact_verify(const pc_artifact *artifact, size_t threads,
                             pc_error *error);

/* sha256 of the whole file. */
pc_status pc_artifact_digest(const pc_artifact *artifact,
                             uint8_t digest[PC_DIGEST_SIZE], pc_error *error);

#endif
