/* Reader of artifacts (docs/format.md). */
#include "pc_artifact.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pc_mem.h"
#include "pc_pool.h"
#include "pc_sha256.h"

#define WORK_GRAIN ((size_t)1 << 20) /* raw bytes that are worth a thread */

const uint8_t pc_magic[PC_MAGIC_SIZE] = {0x89, 'P', 'C', 'M', '\r', '\n', 0x1A, '\n'};

/* Puts "path: part: " before the message of *error*. Returns its status. */
static pc_status
locate(const char *path, const char *part, pc_error *error)
{
    char message[sizeof(error->message)];
    if (error->status == PC_IO || error->status == PC_NO_MEMORY) {
        return error->status;
    }
    memcpy(message, error->message, sizeof(message));
    return pc_fail(error, error->status, "%.300s: %s: %.600s", path, part, message);
}

/* Copies *length* bytes at *offset* of the file, which has them unless it shrank. */
static pc_status
read_at(const pc_artifact *artifact, uint64_t offset, uint64_t length, uint8_t *out,
        pc_error *error)
{
    if (artifact->data != NULL) {
        memcpy(out, artifact->data + offset, (size_t)length);
        return PC_OK;
    }
    while (length > 0) {
        size_t want = length < 1u << 30 ? (size_t)length : 1u << 30;
        ssize_t got = pread(artifact->fd, out, want, (off_t)offset);
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            return pc_fail_io(error, errno, artifact->path);
        }
        if (got == 0) {
            return pc_fail(error, PC_CORRUPT,
                           "%.300s: ends at byte %llu of %llu: the file was cut short",
                           artifact->path, (unsigned long long)offset,
                           (unsigned long long)artifact->size);
        }
        out += got;
        offset += (uint64_t)got;
        length -= (uint64_t)got;
    }
    return PC_OK;
}

/* Checks what every version of the format has in the same place: the magic, of which a
   short file has a part, and the sha256 of the header. Reads the header. */
static pc_status
read_header(const pc_artifact *artifact, uint8_t header[PC_HEADER_SIZE],
            pc_error *error)
{
    uint8_t digest[PC_DIGEST_SIZE];
    size_t size =
        artifact->size < PC_HEADER_SIZE ? (size_t)artifact->size : PC_HEADER_SIZE;
    pc_status status = read_at(artifact, 0, size, header, error);
    if (status != PC_OK) {
        return status;
    }
    if (memcmp(header, pc_magic, size < PC_MAGIC_SIZE ? size : PC_MAGIC_SIZE) != 0) {
        return pc_fail(error, PC_CORRUPT,
                       "%.300s: header: wrong magic: not a precomp artifact, or one "
                       "that was changed as if it were text",
                       artifact->path);
    }
    if (size < PC_HEADER_SIZE) {
        return pc_fail(error, PC_CORRUPT,
                       "%.300s: header: the file has %zu bytes, expected at least %d",
                       artifact->path, size, PC_HEADER_SIZE);
    }
    pc_sha256_of(header, PC_HEADER_CHECKED, digest);
    if (memcmp(digest, header + PC_HEADER_CHECKED, PC_DIGEST_SIZE) != 0) {
        return pc_fail(error, PC_CORRUPT,
                       "%.300s: header: its sha256 differs from the one at byte %d",
                       artifact->path, PC_HEADER_CHECKED);
    }
    return PC_OK;
}

static pc_status
check_header(const pc_artifact *artifact, const uint8_t *header,
             uint64_t *manifest_offset, uint64_t *manifest_length, pc_error *error)
{
    uint32_t version = pc_load_u32(header + 8);
    uint32_t flags = pc_load_u32(header + 12);
    uint64_t offset = pc_load_u64(header + 16);
    uint64_t length = pc_load_u64(header + 24);
    uint64_t size = pc_load_u64(header + 32);
    if (version != PC_FORMAT_VERSION) {
        return pc_fail(
            error, PC_BAD_VERSION,
            "format version %u, this precomp reads version %d; capture again "
            "or use the precomp that wrote it",
            version, PC_FORMAT_VERSION);
    }
    if (flags != 0) {
        return pc_fail(error, PC_BAD_VERSION, "flags 0x%x, this precomp knows none",
                       flags);
    }
    if (size != artifact->size) {
        return pc_fail(error, PC_CORRUPT, "the file has %llu bytes, expected %llu",
                       (unsigned long long)artifact->size, (unsigned long long)size);
    }
    if (length > PC_MAX_MANIFEST) {
        return pc_fail(error, PC_CORRUPT, "a manifest of %llu bytes, more than 16 MiB",
                       (unsigned long long)length);
    }
    if (offset < PC_HEADER_SIZE || offset > size || length != size - offset) {
        return pc_fail(error, PC_CORRUPT,
                       "a manifest of %llu bytes at %llu does not end the file",
                       (unsigned long long)length, (unsigned long long)offset);
    }
    if (!pc_all_zero(header + PC_HEADER_USED, PC_HEADER_SIZE - PC_HEADER_USED)) {
        return pc_fail(error, PC_CORRUPT, "bytes %d..%d are not zero", PC_HEADER_USED,
                       PC_HEADER_SIZE - 1);
    }
    *manifest_offset = offset;
    *manifest_length = length;
    return PC_OK;
}

/* Checks that [from, to), fewer than 64 bytes, is zero. */
static pc_status
check_padding(const pc_artifact *artifact, uint64_t from, uint64_t to, pc_error *error)
{
    uint8_t padding[64];
    pc_status status = read_at(artifact, from, to - from, padding, error);
    if (status == PC_OK && !pc_all_zero(padding, (size_t)(to - from))) {
        status = pc_fail(
            error, PC_CORRUPT, "%.300s: padding: bytes %llu..%llu are not zero",
            artifact->path, (unsigned long long)from, (unsigned long long)to - 1);
    }
    return status;
}

/* Checks that blobs and manifest lie one after the other, each at the next multiple
   of 64, with zeros between. */
static pc_status
check_layout(const pc_artifact *artifact, uint64_t manifest_offset, pc_error *error)
{
    const pc_manifest *manifest = &artifact->manifest;
    uint64_t end = PC_HEADER_SIZE;
    for (size_t i = 0; i <= manifest->blob_count; i++) {
        bool last = i == manifest->blob_count;
        uint64_t found = last ? manifest_offset : manifest->blobs[i].offset;
        uint64_t expected = 0;
        if (!pc_align_u64(end, &expected) || found != expected) {
            char what[32] = "manifest";
            if (!last) {
                (void)snprintf(what, sizeof(what), "blob %zu", i);
            }
            return pc_fail(error, PC_CORRUPT,
                           "%.300s: layout: %s at %llu, expected %llu", artifact->path,
                           what, (unsigned long long)found,
                           (unsigned long long)expected);
        }
        uint64_t size = last ? 0 : manifest->blobs[i].stored_size;
        if (found > artifact->size || size > artifact->size - found) {
            return pc_fail(error, PC_CORRUPT,
                           "%.300s: layout: blob %zu of %llu bytes at %llu, the file "
                           "has %llu",
                           artifact->path, i, (unsigned long long)size,
                           (unsigned long long)found,
                           (unsigned long long)artifact->size);
        }
        pc_status status = check_padding(artifact, end, found, error);
        if (status != PC_OK) {
            return status;
        }
        end = found + size;
    }
    return PC_OK;
}

/* qsort has no context argument in C11, so the index is sorted with its keys. */
typedef struct {
    const uint8_t *digest; /* borrowed */
    size_t index;
} digest_key;

static int
compare_keys(const void *a, const void *b)
{
    return memcmp(((const digest_key *)a)->digest, ((const digest_key *)b)->digest,
                  PC_DIGEST_SIZE);
}

static pc_status
make_index(pc_artifact *artifact, pc_error *error)
{
    size_t count = artifact->manifest.blob_count;
    digest_key *keys = pc_calloc(count, sizeof(*keys)); /* owned */
    artifact->by_digest = pc_calloc(count, sizeof(*artifact->by_digest));
    if (keys == NULL || artifact->by_digest == NULL) {
        pc_free(keys);
        return pc_fail(error, PC_NO_MEMORY, "no memory for %zu blobs", count);
    }
    for (size_t i = 0; i < count; i++) {
        keys[i] = (digest_key){artifact->manifest.blobs[i].raw_sha256, i};
    }
    qsort(keys, count, sizeof(*keys), compare_keys);
    for (size_t i = 0; i < count; i++) {
        artifact->by_digest[i] = keys[i].index;
    }
    pc_free(keys);
    return PC_OK;
}

/* Fills the manifest of an artifact whose path, size and data or fd are set. */
static pc_status
load(pc_artifact *artifact, pc_error *error)
{
    uint8_t header[PC_HEADER_SIZE];
    uint8_t digest[PC_DIGEST_SIZE];
    uint8_t *text = NULL; /* owned */
    uint64_t offset = 0;
    uint64_t length = 0;
    pc_status status;

    status = read_header(artifact, header, error);
    if (status != PC_OK) {
        goto done;
    }
    status = check_header(artifact, header, &offset, &length, error);
    if (status != PC_OK) {
        status = locate(artifact->path, "header", error);
        goto done;
    }
    text = pc_malloc((size_t)length);
    if (text == NULL) {
        status = pc_fail(error, PC_NO_MEMORY, "no memory for a manifest of %llu bytes",
                         (unsigned long long)length);
        goto done;
    }
    status = read_at(artifact, offset, length, text, error);
    if (status != PC_OK) {
        goto done;
    }
    pc_sha256_of(text, (size_t)length, digest);
    if (memcmp(digest, header + 40, PC_DIGEST_SIZE) != 0) {
        status = pc_fail(error, PC_CORRUPT,
                         "%.300s: manifest: its sha256 differs from the header's",
                         artifact->path);
        goto done;
    }
    status = pc_manifest_parse((const char *)text, (size_t)length, &artifact->manifest,
                               error);
    if (status != PC_OK) {
        status = locate(artifact->path, "manifest", error);
        goto done;
    }
    status = check_layout(artifact, offset, error);
    if (status != PC_OK) {
        goto done;
    }
    status = make_index(artifact, error);
done:
    pc_free(text);
    return status;
}

/* A new artifact without data. */
static pc_artifact *
new_artifact(const char *path, uint64_t size, pc_error *error)
{
    pc_artifact *artifact = pc_calloc(1, sizeof(*artifact));
    if (artifact != NULL) {
        artifact->fd = -1;
        artifact->size = size;
        artifact->path = pc_strdup(path);
    }
    if (artifact == NULL || artifact->path == NULL) {
        pc_artifact_close(artifact);
        pc_fail(error, PC_NO_MEMORY, "no memory for an artifact");
        return NULL;
    }
    return artifact;
}

static int
open_file(const char *path)
{
    int fd;
    do {
        /* Not blocking: a pipe in the place of the file must not hang us. */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

pc_status
pc_artifact_open(const char *path, pc_artifact **artifact, pc_error *error)
{
    pc_artifact *opened = NULL; /* owned */
    uint8_t *data = NULL;       /* owned */
    struct stat info;
    pc_status status;
    int fd = open_file(path); /* owned */

    if (fd < 0) {
        return pc_fail_io(error, errno, path);
    }
    if (fstat(fd, &info) < 0) {
        status = pc_fail_io(error, errno, path);
        goto done;
    }
    if (S_ISDIR(info.st_mode)) {
        status = pc_fail_io(error, EISDIR, path);
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        status = pc_fail(error, PC_CORRUPT, "%.300s: not a regular file", path);
        goto done;
    }
    opened = new_artifact(path, (uint64_t)info.st_size, error);
    if (opened == NULL) {
        status = error->status;
        goto done;
    }
    opened->fd = fd;
    fd = -1;
    if (opened->size < PC_MEMORY_LIMIT) {
        data = pc_malloc((size_t)opened->size);
        if (data == NULL) {
            status = pc_fail(error, PC_NO_MEMORY, "no memory for %llu bytes",
                             (unsigned long long)opened->size);
            goto done;
        }
        status = read_at(opened, 0, opened->size, data, error);
        if (status != PC_OK) {
            goto done;
        }
        close(opened->fd);
        opened->fd = -1;
        opened->data = data;
        data = NULL;
    }
    status = load(opened, error);
    if (status == PC_OK) {
        *artifact = opened;
        opened = NULL;
    }
done:
    if (fd >= 0) {
        close(fd);
    }
    pc_free(data);
    pc_artifact_close(opened);
    return status;
}

pc_status
pc_artifact_open_memory(const uint8_t *data, size_t size, const char *path,
                        pc_artifact **artifact, pc_error *error)
{
    pc_artifact *opened = new_artifact(path, size, error); /* owned */
    pc_status status;
    if (opened == NULL) {
        return error->status;
    }
    opened->data = pc_malloc(size);
    if (opened->data == NULL) {
        status = pc_fail(error, PC_NO_MEMORY, "no memory for %zu bytes", size);
        goto done;
    }
    if (size > 0) {
        memcpy(opened->data, data, size);
    }
    status = load(opened, error);
    if (status == PC_OK) {
        *artifact = opened;
        opened = NULL;
    }
done:
    pc_artifact_close(opened);
    return status;
}

void
pc_artifact_close(pc_artifact *artifact)
{
    if (artifact == NULL) {
        return;
    }
    pc_manifest_clear(&artifact->manifest);
    if (artifact->fd >= 0) {
        close(artifact->fd);
    }
    pc_free(artifact->by_digest);
    pc_free(artifact->data);
    pc_free(artifact->path);
    pc_free(artifact);
}

size_t
pc_artifact_find(const pc_artifact *artifact, const uint8_t digest[PC_DIGEST_SIZE])
{
    size_t low = 0;
    size_t high = artifact->manifest.blob_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        size_t index = artifact->by_digest[middle];
        int order =
            memcmp(digest, artifact->manifest.blobs[index].raw_sha256, PC_DIGEST_SIZE);
        if (order == 0) {
            return index;
        }
        if (order < 0) {
            high = middle;
        }
        else {
            low = middle + 1;
        }
    }
    return artifact->manifest.blob_count;
}

/* Puts the first entry of blob *index* before the message. Returns the status. */
static pc_status
locate_blob(const pc_artifact *artifact, size_t index, pc_error *error)
{
    const pc_manifest *manifest = &artifact->manifest;
    char digest[PC_HEX_SIZE];
    pc_error part;
    size_t i = 0;
    while (i + 1 < manifest->entry_count && manifest->entries[i].blob != index) {
        i++;
    }
    pc_hex(manifest->blobs[index].raw_sha256, digest);
    (void)pc_fail(&part, PC_OK, "entry %s \"%.200s\" (sha256 %s)",
                  manifest->entries[i].kind, manifest->entries[i].name, digest);
    return locate(artifact->path, part.message, error);
}

pc_status
pc_artifact_read(const pc_artifact *artifact, size_t index, pc_blob_tools *tools,
                 uint8_t *raw, pc_error *error)
{
    const pc_blob_info *blob = &artifact->manifest.blobs[index];
    uint8_t digest[PC_DIGEST_SIZE];
    uint8_t *buffer = NULL;       /* owned */
    const uint8_t *stored = NULL; /* borrowed */
    pc_status status = PC_OK;

    if (artifact->data != NULL) {
        stored = artifact->data + blob->offset;
    }
    else {
        stored = raw;
        if (blob->codec != PC_CODEC_NONE) {
            stored = buffer = pc_malloc((size_t)blob->stored_size);
            if (buffer == NULL) {
                status = pc_fail(error, PC_NO_MEMORY, "no memory for %llu bytes",
                                 (unsigned long long)blob->stored_size);
                goto done;
            }
        }
        status = read_at(artifact, blob->offset, blob->stored_size,
                         buffer != NULL ? buffer : raw, error);
        if (status != PC_OK) {
            goto done;
        }
    }
    pc_sha256_of(stored, (size_t)blob->stored_size, digest);
    if (memcmp(digest, blob->stored_sha256, PC_DIGEST_SIZE) != 0) {
        (void)pc_fail(
            error, PC_CORRUPT,
            "the stored bytes do not match their digest; the file was changed "
            "or damaged");
        status = locate_blob(artifact, index, error);
        goto done;
    }
    if (blob->codec == PC_CODEC_NONE) {
        if (stored != raw && blob->raw_size > 0) {
            memcpy(raw, stored, (size_t)blob->raw_size);
        }
        goto done;
    }
    status = pc_blob_unpack(tools, stored, (size_t)blob->stored_size, raw,
                            (size_t)blob->raw_size, error);
    if (status != PC_OK) {
        status = locate_blob(artifact, index, error);
    }
done:
    pc_free(buffer);
    return status;
}

typedef struct {
    const pc_artifact *artifact; /* borrowed */
    const size_t *indices;       /* borrowed */
    uint8_t *const *raws;        /* borrowed */
    pc_blob_tools tools[PC_MAX_WORKERS];
} read_job;

static pc_status
read_task(void *context, size_t worker, size_t index, pc_error *error)
{
    read_job *job = context;
    return pc_artifact_read(job->artifact, job->indices[index], &job->tools[worker],
                            job->raws[index], error);
}

/* Reads one blob into memory of its own and checks its raw digest too. */
static pc_status
verify_task(void *context, size_t worker, size_t index, pc_error *error)
{
    read_job *job = context;
    const pc_blob_info *blob = &job->artifact->manifest.blobs[index];
    uint8_t digest[PC_DIGEST_SIZE];
    uint8_t *raw = pc_malloc((size_t)blob->raw_size); /* owned */
    pc_status status;
    if (raw == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %llu bytes",
                       (unsigned long long)blob->raw_size);
    }
    status = pc_artifact_read(job->artifact, index, &job->tools[worker], raw, error);
    if (status == PC_OK) {
        pc_sha256_of(raw, (size_t)blob->raw_size, digest);
        if (memcmp(digest, blob->raw_sha256, PC_DIGEST_SIZE) != 0) {
            (void)pc_fail(error, PC_CORRUPT, "the raw bytes do not match their digest");
            status = locate_blob(job->artifact, index, error);
        }
    }
    pc_free(raw);
    return status;
}

static pc_status
run_job(read_job *job, pc_task task, size_t count, uint64_t work, size_t threads,
        pc_error *error)
{
    size_t bounded = work < SIZE_MAX ? (size_t)work : SIZE_MAX;
    size_t workers = pc_pool_workers(threads, count, bounded, WORK_GRAIN);
    pc_status status = pc_pool_run(workers, count, task, job, error);
    for (size_t i = 0; i < PC_MAX_WORKERS; i++) {
        pc_blob_tools_clear(&job->tools[i]);
    }
    return status;
}

pc_status
pc_artifact_read_many(const pc_artifact *artifact, const size_t *indices,
                      uint8_t *const *raws, size_t count, size_t threads,
                      pc_error *error)
{
    read_job job = {.artifact = artifact, .indices = indices, .raws = raws};
    uint64_t work = 0;
    for (size_t i = 0; i < count; i++) {
        work += artifact->manifest.blobs[indices[i]].raw_size;
    }
    return run_job(&job, read_task, count, work, threads, error);
}

pc_status
pc_artifact_verify(const pc_artifact *artifact, size_t threads, pc_error *error)
{
    read_job job = {.artifact = artifact};
    uint64_t work = 0;
    for (size_t i = 0; i < artifact->manifest.blob_count; i++) {
        work += artifact->manifest.blobs[i].raw_size;
    }
    return run_job(&job, verify_task, artifact->manifest.blob_count, work, threads,
                   error);
}

pc_status
pc_artifact_digest(const pc_artifact *artifact, uint8_t digest[PC_DIGEST_SIZE],
                   pc_error *error)
{
    enum { PIECE = 1 << 20 };
    pc_sha256 hash;
    uint8_t *piece = NULL; /* owned */
    pc_status status = PC_OK;
    if (artifact->data != NULL) {
        pc_sha256_of(artifact->data, (size_t)artifact->size, digest);
        return PC_OK;
    }
    piece = pc_malloc(PIECE);
    if (piece == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %d bytes", PIECE);
    }
    pc_sha256_init(&hash);
    for (uint64_t at = 0; at < artifact->size;) {
        uint64_t left = artifact->size - at;
        uint64_t take = left < PIECE ? left : PIECE;
        status = read_at(artifact, at, take, piece, error);
        if (status != PC_OK) {
            goto done;
        }
        pc_sha256_update(&hash, piece, (size_t)take);
        at += take;
    }
    pc_sha256_final(&hash, digest);
done:
    pc_free(piece);
    return status;
}
