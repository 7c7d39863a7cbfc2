/* Tests of csrc/core that need C: every allocation made to fail in turn (those of zstd
 * and cJSON too), and both forms of SHA-256. Prints nothing when all is well.
 *
 * Usage: core_test DIRECTORY. With PLAIN_MALLOC defined no allocation fails. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pc_artifact.h"
#include "pc_mem.h"
#include "pc_pool.h"
#include "pc_sha256.h"
#include "pc_writer.h"

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, context); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static const char *context = "";

static _Atomic long left = -1; /* allocations until one fails */
static _Atomic long live = 0;  /* allocations that were not freed */

#ifdef PLAIN_MALLOC /* under a sanitizer, which has an allocator of its own */
static const bool can_fail = false;
#define real_malloc malloc
#else
/* The allocator of the whole process: fails the allocation when *left* gets to 0. */
static const bool can_fail = true;
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void __libc_free(void *memory);
#define real_malloc unfailing_malloc

static bool
refuse(void)
{
    return atomic_load(&left) >= 0 && atomic_fetch_sub(&left, 1) == 0;
}

static void *
counted(void *memory)
{
    atomic_fetch_add(&live, memory != NULL);
    return memory;
}

static void *
unfailing_malloc(size_t size)
{
    return counted(__libc_malloc(size));
}

void *
malloc(size_t size)
{
    return refuse() ? NULL : counted(__libc_malloc(size));
}

void *
calloc(size_t count, size_t size)
{
    return refuse() ? NULL : counted(__libc_calloc(count, size));
}

void *
realloc(void *memory, size_t size)
{
    if (refuse()) {
        return NULL;
    }
    void *moved = __libc_realloc(memory, size);
    return memory == NULL ? counted(moved) : moved;
}

void
free(void *memory)
{
    atomic_fetch_sub(&live, memory != NULL);
    __libc_free(memory);
}
#endif

static char path[4096];
static char big[300000];

static pc_status
write_some(pc_error *error)
{
    static const pc_pair environment[] = {{"torch", "2.13.0"}, {"python", "3.11"}};
    uint8_t digest[PC_DIGEST_SIZE];
    pc_item items[12];
    for (size_t i = 0; i < 12; i++) {
        items[i] = (pc_item){i < 4 ? "frame" : "kernel", "name", (const uint8_t *)big,
                             i * 20000};
    }
    return pc_writer_write(path, environment, 2, items, 12, 3, digest, error);
}

static pc_status
read_some(pc_error *error)
{
    pc_artifact *artifact = NULL;
    uint8_t digest[PC_DIGEST_SIZE];
    uint8_t *raws[12] = {NULL};
    size_t indices[12];
    pc_status status = pc_artifact_open(path, &artifact, error);
    if (status != PC_OK) {
        return status;
    }
    size_t count = artifact->manifest.blob_count;
    CHECK(count == 12);
    for (size_t i = 0; i < count; i++) {
        indices[i] = i;
        raws[i] = real_malloc(artifact->manifest.blobs[i].raw_size + 1);
    }
    if ((status = pc_artifact_read_many(artifact, indices, raws, count, 3, error)) ==
            PC_OK &&
        (status = pc_artifact_verify(artifact, 3, error)) == PC_OK) {
        status = pc_artifact_digest(artifact, digest, error);
    }
    for (size_t i = 0; i < count; i++) {
        if (status == PC_OK) {
            CHECK(memcmp(raws[i], big, artifact->manifest.blobs[i].raw_size) == 0);
        }
        free(raws[i]);
    }
    pc_artifact_close(artifact);
    return status;
}

/* Runs *act* with the n-th allocation failing, for every n until none fails. */
static void
fail_at_each(const char *name, pc_status (*act)(pc_error *), int least)
{
    int failures = 0;
    context = name;
    for (long n = 0;; n++) {
        pc_error error;
        memset(&error, 0, sizeof(error));
        atomic_store(&left, n);
        pc_status status = act(&error);
        bool reached = atomic_load(&left) < 0;
        atomic_store(&left, -1);
        if (!reached) {
            CHECK(status == PC_OK);
            break;
        }
        if (status != PC_OK) { /* some allocations can be done without */
            CHECK(status == PC_NO_MEMORY && error.status == PC_NO_MEMORY);
            CHECK(error.message[0] != '\0');
            failures++;
        }
    }
    CHECK(failures >= least || !can_fail);
}

static void
compare_sha256(void)
{
    context = "sha256";
    if (!pc_sha256_has_instructions()) {
        return;
    }
    for (size_t i = 0; i < sizeof(big); i++) {
        big[i] = (char)(i * i >> 7 ^ i);
    }
    for (size_t count = 0; count < 40; count++) {
        uint32_t a[8];
        uint32_t b[8];
        for (uint32_t i = 0; i < 8; i++) {
            a[i] = b[i] = 0x9e3779b9u * (i + (uint32_t)count);
        }
        const uint8_t *blocks = (const uint8_t *)big + count * 3; /* not aligned */
        pc_sha256_blocks_portable(a, blocks, count);
        pc_sha256_blocks_native(b, blocks, count);
        CHECK(memcmp(a, b, sizeof(a)) == 0);
    }
}

static pc_status
odd_task(void *seen, size_t worker, size_t index, pc_error *error)
{
    CHECK(worker < 4);
    atomic_fetch_add((_Atomic int *)seen + index, 1);
    return index % 10 == 7 ? pc_fail(error, PC_CORRUPT, "task %zu", index) : PC_OK;
}

static void
run_pool(void)
{
    context = "pool";
    for (int round = 0; round < 200; round++) {
        static _Atomic int seen[100];
        pc_error error;
        memset(seen, 0, sizeof(seen));
        CHECK(pc_pool_run(4, 100, odd_task, seen, &error) == PC_CORRUPT);
        CHECK(strcmp(error.message, "task 7") == 0);
        for (int i = 0; i < 100; i++) {
            CHECK(seen[i] <= 1 && (i > 7 || seen[i] == 1));
        }
        CHECK(pc_pool_run(4, 7, odd_task, seen, &error) == PC_OK);
    }
    CHECK(pc_pool_workers(0, 0, 0, 1) == 1);
    CHECK(pc_pool_workers(1000, 1000, 1 << 20, 1) == PC_MAX_WORKERS);
    CHECK(pc_pool_workers(8, 3, 1 << 20, 1) == 3);
    CHECK(pc_pool_workers(8, 8, 10, 100) == 1);
}

int
main(int argc, char **argv)
{
    CHECK(argc == 2);
    compare_sha256();
    run_pool();
    (void)snprintf(path, sizeof(path), "%s/core_test.precomp", argv[1]);
    long before = 0;
    for (int round = 0; round < 3; round++) {
        before = atomic_load(&live);
        fail_at_each("write", write_some, 20);
        fail_at_each("read", read_some, 20);
    }
    CHECK(atomic_load(&live) == before);
    CHECK(pc_realloc_array(NULL, (size_t)-1, 2) == NULL);
    return unlink(path);
}
