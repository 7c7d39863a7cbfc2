/* Opens the input as an artifact and reads all of it: as it is; with the sha256 of its
 * header put right, so that mutations reach the fields of the header; and with a header
 * that fits, so that they reach the manifest, the layout and the blobs. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "pc_artifact.h"
#include "pc_sha256.h"

static void
use(const uint8_t *data, size_t size)
{
    pc_artifact *artifact = NULL;
    pc_blob_tools tools = {NULL, NULL};
    pc_error error;
    uint8_t digest[PC_DIGEST_SIZE];
    if (pc_artifact_open_memory(data, size, "input", &artifact, &error) != PC_OK) {
        FUZZ_CHECK(error.status == PC_CORRUPT || error.status == PC_BAD_VERSION);
        return;
    }
    for (size_t i = 0; i < artifact->manifest.blob_count; i++) {
        const pc_blob_info *blob = &artifact->manifest.blobs[i];
        FUZZ_CHECK(pc_artifact_find(artifact, blob->raw_sha256) == i);
        if (blob->raw_size > 1 << 24) {
            continue; /* allowed, but too slow here */
        }
        uint8_t *raw = malloc((size_t)blob->raw_size + 1);
        FUZZ_CHECK(raw != NULL);
        (void)pc_artifact_read(artifact, i, &tools, raw, &error);
        free(raw);
    }
    FUZZ_CHECK(pc_artifact_digest(artifact, digest, &error) == PC_OK);
    pc_blob_tools_clear(&tools);
    pc_artifact_close(artifact);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    use(data, size);
    if (size < PC_HEADER_SIZE) {
        return 0;
    }
    uint8_t *copy = malloc(size);
    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data, size);
    pc_sha256_of(copy, PC_HEADER_CHECKED, copy + PC_HEADER_CHECKED);
    use(copy, size);
    uint64_t offset = pc_load_u64(copy + 16);
    if (offset >= PC_HEADER_SIZE && offset <= size) {
        memcpy(copy, pc_magic, PC_MAGIC_SIZE);
        pc_store_u32(copy + 8, PC_FORMAT_VERSION);
        pc_store_u32(copy + 12, 0);
        pc_store_u64(copy + 24, size - offset);
        pc_store_u64(copy + 32, size);
        pc_sha256_of(copy + offset, size - offset, copy + 40);
        pc_sha256_of(copy, PC_HEADER_CHECKED, copy + PC_HEADER_CHECKED);
        memset(copy + PC_HEADER_USED, 0, PC_HEADER_SIZE - PC_HEADER_USED);
        use(copy, size);
    }
    free(copy);
    return 0;
}
