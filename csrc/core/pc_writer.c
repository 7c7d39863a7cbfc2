/* Writer of artifacts (docs/format.md). */
#include "pc_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "pc_artifact.h"
#include "pc_mem.h"
#include "pc_pool.h"
#include "pc_sha256.h"

#define HASH_GRAIN ((size_t)1 << 20)  /* bytes that are worth a thread: hashing */
#define PACK_GRAIN ((size_t)64 << 10) /* and compressing */

/* One distinct content on its way into the file. */
typedef struct {
    const uint8_t *raw; /* borrowed */
    uint8_t *packed;    /* owned, or NULL when the raw bytes are stored */
} content;

/* All that the stages of a write share. */
typedef struct {
    const pc_item *items; /* borrowed */
    int level;
    pc_manifest manifest; /* arrays owned, texts borrowed */
    size_t *item_of;      /* owned: for each entry the index of its item */
    content *contents;    /* owned: one for each blob */
    pc_blob_tools tools[PC_MAX_WORKERS];
} write_job;

static pc_status
hash_task(void *context, size_t worker, size_t index, pc_error *error)
{
    write_job *job = context;
    const pc_item *item = &job->items[index];
    (void)worker, (void)error;
    pc_sha256_of(item->data, item->size, job->manifest.entries[index].digest);
    return PC_OK;
}

static pc_status
pack_task(void *context, size_t worker, size_t index, pc_error *error)
{
    write_job *job = context;
    content *what = &job->contents[index];
    pc_blob_info *blob = &job->manifest.blobs[index];
    size_t stored_size = 0;
    pc_status status =
        pc_blob_pack(&job->tools[worker], job->level, what->raw, (size_t)blob->raw_size,
                     &what->packed, &stored_size, &blob->codec, error);
    if (status != PC_OK) {
        return status;
    }
    blob->stored_size = stored_size;
    if (what->packed == NULL) {
        memcpy(blob->stored_sha256, blob->raw_sha256, PC_DIGEST_SIZE);
    }
    else {
        pc_sha256_of(what->packed, stored_size, blob->stored_sha256);
    }
    return PC_OK;
}

static pc_status
check_text(const char *what, const char *text, size_t limit, pc_error *error)
{
    size_t length = strlen(text);
    if (!pc_utf8_valid((const uint8_t *)text, length)) {
        return pc_fail(error, PC_BAD_ARGUMENT, "write_artifact: %s is not UTF-8", what);
    }
    if (length > limit) {
        return pc_fail(error, PC_BAD_ARGUMENT,
                       "write_artifact: %s \"%.60s...\" has %zu bytes, more than %zu",
                       what, text, length, limit);
    }
    return PC_OK;
}

static int
compare_pairs(const void *a, const void *b)
{
    return strcmp(((const pc_pair *)a)->key, ((const pc_pair *)b)->key);
}

static pc_status
check_arguments(const write_job *job, size_t count, pc_error *error)
{
    const pc_manifest *manifest = &job->manifest;
    pc_status status = PC_OK;
    if (job->level < 0 || job->level > pc_blob_max_level()) {
        return pc_fail(error, PC_BAD_ARGUMENT,
                       "write_artifact: level: expected 0..%d, got %d",
                       pc_blob_max_level(), job->level);
    }
    for (size_t i = 0; i < count && status == PC_OK; i++) {
        const pc_item *item = &job->items[i];
        if (!pc_kind_valid(item->kind, strlen(item->kind))) {
            return pc_fail(
                error, PC_BAD_ARGUMENT,
                "write_artifact: entry %zu: kind: expected a lower-case word "
                "of at most %d bytes",
                i, PC_MAX_KIND);
        }
        if ((uint64_t)item->size > PC_MAX_RAW) {
            return pc_fail(error, PC_BAD_ARGUMENT,
                           "write_artifact: entry %zu: %zu bytes, more than 4 GiB", i,
                           item->size);
        }
        status = check_text("a name", item->name, PC_MAX_NAME, error);
    }
    for (size_t i = 0; i < manifest->environment_count && status == PC_OK; i++) {
        const pc_pair *pair = &manifest->environment[i];
        status = check_text("a key of the environment", pair->key, 1 << 10, error);
        if (status == PC_OK) {
            status =
                check_text("a value of the environment", pair->value, 1 << 20, error);
        }
        if (status == PC_OK && i > 0 && strcmp(pair[-1].key, pair->key) == 0) {
            return pc_fail(error, PC_BAD_ARGUMENT,
                           "write_artifact: environment: duplicate key \"%.100s\"",
                           pair->key);
        }
    }
    return status;
}

/* An entry with the index of its item, to be sorted. */
typedef struct {
    pc_entry entry;
    size_t item;
} sortable;

static int
compare_sortables(const void *a, const void *b)
{
    return pc_entry_compare(&((const sortable *)a)->entry,
                            &((const sortable *)b)->entry);
}

/* Sorts the entries and drops those that are equal. */
static pc_status
sort_entries(write_job *job, pc_error *error)
{
    pc_manifest *manifest = &job->manifest;
    size_t count = manifest->entry_count;
    size_t kept = 0;
    sortable *all = pc_calloc(count, sizeof(*all)); /* owned */
    if (all == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %zu entries", count);
    }
    for (size_t i = 0; i < count; i++) {
        all[i] = (sortable){manifest->entries[i], i};
    }
    qsort(all, count, sizeof(*all), compare_sortables);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && compare_sortables(&all[i - 1], &all[i]) == 0) {
            continue;
        }
        manifest->entries[kept] = all[i].entry;
        job->item_of[kept++] = all[i].item;
    }
    manifest->entry_count = kept;
    pc_free(all);
    return PC_OK;
}

/* An entry's place among all entries, to be sorted by digest. */
typedef struct {
    const uint8_t *digest; /* borrowed */
    size_t entry;
} digest_place;

static int
compare_places(const void *a, const void *b)
{
    const digest_place *left = a;
    const digest_place *right = b;
    int order = memcmp(left->digest, right->digest, PC_DIGEST_SIZE);
    if (order == 0) {
        order = left->entry < right->entry ? -1 : left->entry > right->entry;
    }
    return order;
}

/* Gives each distinct content a blob, numbered in the order in which the sorted
   entries first name them. */
static pc_status
assign_blobs(write_job *job, pc_error *error)
{
    pc_manifest *manifest = &job->manifest;
    size_t count = manifest->entry_count;
    digest_place *places = pc_calloc(count, sizeof(*places)); /* owned */
    size_t *first = pc_calloc(count, sizeof(*first));         /* owned */
    pc_status status = PC_OK;
    manifest->blobs = pc_calloc(count, sizeof(*manifest->blobs));
    job->contents = pc_calloc(count, sizeof(*job->contents));
    if (places == NULL || first == NULL || manifest->blobs == NULL ||
        job->contents == NULL) {
        status = pc_fail(error, PC_NO_MEMORY, "no memory for %zu entries", count);
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        places[i] = (digest_place){manifest->entries[i].digest, i};
    }
    qsort(places, count, sizeof(*places), compare_places);
    for (size_t i = 0; i < count; i++) {
        bool same = i > 0 &&
                    memcmp(places[i - 1].digest, places[i].digest, PC_DIGEST_SIZE) == 0;
        first[places[i].entry] = same ? first[places[i - 1].entry] : places[i].entry;
    }
    for (size_t i = 0; i < count; i++) {
        pc_entry *entry = &manifest->entries[i];
        if (first[i] != i) {
            entry->blob = manifest->entries[first[i]].blob;
            continue;
        }
        const pc_item *item = &job->items[job->item_of[i]];
        size_t blob = manifest->blob_count++;
        entry->blob = blob;
        job->contents[blob].raw = item->data;
        manifest->blobs[blob].raw_size = item->size;
        memcpy(manifest->blobs[blob].raw_sha256, entry->digest, PC_DIGEST_SIZE);
    }
done:
    pc_free(places);
    pc_free(first);
    return status;
}

/* Sets the offsets of all blobs; *manifest_offset is where the manifest goes. */
static pc_status
lay_out(pc_manifest *manifest, uint64_t *manifest_offset, pc_error *error)
{
    uint64_t at = PC_HEADER_SIZE;
    for (size_t i = 0; i < manifest->blob_count; i++) {
        uint64_t end = 0;
        manifest->blobs[i].offset = at;
        if (!pc_add_u64(at, manifest->blobs[i].stored_size, &end) ||
            !pc_align_u64(end, &at) || at > (uint64_t)1 << 53) {
            return pc_fail(error, PC_BAD_ARGUMENT,
                           "write_artifact: more than 2^53 bytes");
        }
    }
    *manifest_offset = at;
    return PC_OK;
}

/* The file being written. */
typedef struct {
    const char *path; /* borrowed: the final path, for messages */
    int fd;           /* owned */
    uint64_t size;
    pc_sha256 hash;
} sink;

static pc_status
sink_write(sink *out, const void *data, size_t length, pc_error *error)
{
    const uint8_t *bytes = data;
    pc_sha256_update(&out->hash, data, length);
    out->size += length;
    while (length > 0) {
        ssize_t done = write(out->fd, bytes, length < 1u << 30 ? length : 1u << 30);
        if (done < 0) {
            if (errno == EINTR) {
                continue;
            }
            return pc_fail_io(error, errno, out->path);
        }
        bytes += done;
        length -= (size_t)done;
    }
    return PC_OK;
}

static pc_status
sink_pad(sink *out, pc_error *error)
{
    static const uint8_t zeros[64];
    return sink_write(out, zeros, (size_t)(-out->size & 63), error);
}

static pc_status
write_content(const write_job *job, sink *out, uint64_t manifest_offset,
              pc_error *error)
{
    uint8_t header[PC_HEADER_SIZE] = {0};
    char *text = NULL; /* owned */
    size_t length = 0;
    pc_status status = pc_manifest_print(&job->manifest, &text, &length, error);
    if (status != PC_OK) {
        return status;
    }
    memcpy(header, pc_magic, PC_MAGIC_SIZE);
    pc_store_u32(header + 8, PC_FORMAT_VERSION);
    pc_store_u64(header + 16, manifest_offset);
    pc_store_u64(header + 24, length);
    pc_store_u64(header + 32, manifest_offset + length);
    pc_sha256_of(text, length, header + 40);
    pc_sha256_of(header, PC_HEADER_CHECKED, header + PC_HEADER_CHECKED);
    status = sink_write(out, header, sizeof(header), error);
    for (size_t i = 0; i < job->manifest.blob_count && status == PC_OK; i++) {
        const content *what = &job->contents[i];
        const uint8_t *stored = what->packed != NULL ? what->packed : what->raw;
        status =
            sink_write(out, stored, (size_t)job->manifest.blobs[i].stored_size, error);
        if (status == PC_OK) {
            status = sink_pad(out, error);
        }
    }
    if (status == PC_OK) {
        status = sink_write(out, text, length, error);
    }
    pc_free(text);
    return status;
}

/* The directory of *path*: "." or its part up to the last slash. The caller owns it. */
static char *
directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *directory = pc_strdup(slash == NULL ? "." : path);
    if (directory != NULL && slash != NULL) {
        directory[slash - path + 1] = '\0';
    }
    return directory;
}

/* Creates a file with a unique name in *directory*, sets *fd* and *name*, which the
   caller owns. */
static pc_status
create_temporary(const char *directory, const char *path, int *fd, char **name,
                 pc_error *error)
{
    size_t room = strlen(directory) + 48;
    char *text = pc_malloc(room); /* owned */
    pc_status status = PC_OK;
    if (text == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for a file name");
    }
    for (;;) {
        uint64_t number = 0;
        if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
            if (errno == EINTR) {
                continue;
            }
            status = pc_fail_io(error, errno, path);
            break;
        }
        (void)snprintf(text, room, "%s/.precomp-%016llx.tmp", directory,
                       (unsigned long long)number);
        *fd = open(text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (*fd >= 0) {
            *name = text;
            return PC_OK;
        }
        if (errno != EEXIST && errno != EINTR) {
            status = pc_fail_io(error, errno, path);
            break;
        }
    }
    pc_free(text);
    return status;
}

/* Opens the directory, to be synced after the rename. Sets *fd* to -1 for one that may
   be written but not read. */
static pc_status
open_directory(const char *directory, const char *path, int *fd, pc_error *error)
{
    do {
        *fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (*fd < 0 && errno == EINTR);
    return *fd >= 0 || errno == EACCES ? PC_OK : pc_fail_io(error, errno, path);
}

static int
sync_fd(int fd)
{
    int result;
    do {
        result = fsync(fd);
    } while (result < 0 && errno == EINTR);
    return result;
}

/* Writes the file under a temporary name, syncs and renames it. */
static pc_status
write_file(const write_job *job, const char *path, uint64_t manifest_offset,
           uint8_t digest[PC_DIGEST_SIZE], pc_error *error)
{
    sink out = {.path = path, .fd = -1};
    char *directory = directory_of(path); /* owned */
    char *temporary = NULL;               /* owned; the file exists while it is set */
    int directory_fd = -1;                /* owned */
    pc_status status;

    pc_sha256_init(&out.hash);
    if (directory == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for a file name");
    }
    status = open_directory(directory, path, &directory_fd, error);
    if (status != PC_OK) {
        goto done;
    }
    status = create_temporary(directory, path, &out.fd, &temporary, error);
    if (status != PC_OK) {
        goto done;
    }
    status = write_content(job, &out, manifest_offset, error);
    if (status != PC_OK) {
        goto done;
    }
    if (sync_fd(out.fd) < 0) {
        status = pc_fail_io(error, errno, path);
        goto done;
    }
    int fd = out.fd;
    out.fd = -1;
    /* Some file systems report a failed write here. */
    if (close(fd) < 0 && errno != EINTR) {
        status = pc_fail_io(error, errno, path);
        goto done;
    }
    if (rename(temporary, path) < 0) {
        status = pc_fail_io(error, errno, path);
        goto done;
    }
    pc_free(temporary);
    temporary = NULL;
    pc_sha256_final(&out.hash, digest);
    /* The file is whole now; this makes its name last. Some file systems cannot. */
    if (directory_fd >= 0 && sync_fd(directory_fd) < 0 && errno != EINVAL &&
        errno != EROFS && errno != ENOTSUP) {
        status = pc_fail_io(error, errno, path);
    }
done:
    if (directory_fd >= 0) {
        close(directory_fd);
    }
    if (out.fd >= 0) {
        close(out.fd);
    }
    if (temporary != NULL) {
        (void)unlink(temporary);
    }
    pc_free(temporary);
    pc_free(directory);
    return status;
}

/* Copies the arguments into the tables of *job*. */
static pc_status
start_job(write_job *job, const pc_pair *environment, size_t environment_count,
          size_t count, pc_error *error)
{
    pc_manifest *manifest = &job->manifest;
    manifest->environment = pc_calloc(environment_count, sizeof(*environment));
    manifest->entries = pc_calloc(count, sizeof(*manifest->entries));
    job->item_of = pc_calloc(count, sizeof(*job->item_of));
    if (manifest->environment == NULL || manifest->entries == NULL ||
        job->item_of == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "no memory for %zu entries", count);
    }
    if (environment_count > 0) {
        memcpy(manifest->environment, environment,
               environment_count * sizeof(*environment));
        qsort(manifest->environment, environment_count, sizeof(*environment),
              compare_pairs);
    }
    manifest->environment_count = environment_count;
    for (size_t i = 0; i < count; i++) {
        manifest->entries[i].kind = job->items[i].kind;
        manifest->entries[i].name = job->items[i].name;
    }
    manifest->entry_count = count;
    return PC_OK;
}

pc_status
pc_writer_write(const char *path, const pc_pair *environment, size_t environment_count,
                const pc_item *items, size_t count, int level,
                uint8_t digest[PC_DIGEST_SIZE], pc_error *error)
{
    write_job job = {.items = items, .level = level};
    uint64_t manifest_offset = 0;
    size_t work = 0;
    pc_status status;

    for (size_t i = 0; i < count; i++) {
        work += items[i].size;
    }
    if ((status = start_job(&job, environment, environment_count, count, error)) !=
            PC_OK ||
        (status = check_arguments(&job, count, error)) != PC_OK ||
        (status = pc_pool_run(pc_pool_workers(0, count, work, HASH_GRAIN), count,
                              hash_task, &job, error)) != PC_OK ||
        (status = sort_entries(&job, error)) != PC_OK ||
        (status = assign_blobs(&job, error)) != PC_OK ||
        (status =
             pc_manifest_fingerprint(job.manifest.entries, job.manifest.entry_count,
                                     job.manifest.fingerprint, error)) != PC_OK ||
        (status =
             pc_pool_run(pc_pool_workers(0, job.manifest.blob_count, work, PACK_GRAIN),
                         job.manifest.blob_count, pack_task, &job, error)) != PC_OK ||
        (status = lay_out(&job.manifest, &manifest_offset, error)) != PC_OK) {
        goto done;
    }
    status = write_file(&job, path, manifest_offset, digest, error);
done:
    for (size_t i = 0; i < PC_MAX_WORKERS; i++) {
        pc_blob_tools_clear(&job.tools[i]);
    }
    for (size_t i = 0; job.contents != NULL && i < job.manifest.blob_count; i++) {
        pc_free(job.contents[i].packed);
    }
    pc_free(job.contents);
    pc_free(job.item_of);
    pc_manifest_clear(&job.manifest);
    return status;
}
