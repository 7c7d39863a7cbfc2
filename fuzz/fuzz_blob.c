/* Decompresses the input; its first two bytes say how large the result should be. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "pc_blob.h"
#include "pc_mem.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pc_blob_tools tools = {NULL, NULL};
    pc_error error;
    if (size < 2) {
        return 0;
    }
    size_t raw_size = (size_t)data[0] | (size_t)data[1] << 8;
    uint8_t *raw = malloc(raw_size > 0 ? raw_size : 1);
    FUZZ_CHECK(raw != NULL);
    if (pc_blob_unpack(&tools, data + 2, size - 2, raw, raw_size, &error) != PC_OK) {
        FUZZ_CHECK(error.status == PC_CORRUPT);
    }
    else {
        uint8_t *stored = NULL;
        size_t stored_size = 0;
        pc_codec codec = PC_CODEC_NONE;
        FUZZ_CHECK(pc_blob_pack(&tools, 3, raw, raw_size, &stored, &stored_size, &codec,
                                &error) == PC_OK);
        if (codec == PC_CODEC_ZSTD) {
            uint8_t *back = malloc(raw_size);
            FUZZ_CHECK(back != NULL);
            FUZZ_CHECK(pc_blob_unpack(&tools, stored, stored_size, back, raw_size,
                                      &error) == PC_OK);
            FUZZ_CHECK(memcmp(back, raw, raw_size) == 0);
            free(back);
        }
        pc_free(stored);
    }
    pc_blob_tools_clear(&tools);
    free(raw);
    return 0;
}
