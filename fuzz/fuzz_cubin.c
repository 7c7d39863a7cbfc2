/* Checks and strips the input as a cubin. What is stripped must be accepted again and stay
   as it is. */
#include "fuzz.h"

#include <string.h>

#include "pc_cubin.h"
#include "pc_mem.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *stripped = NULL;
    uint8_t *again = NULL;
    size_t stripped_size = 0;
    size_t again_size = 0;
    size_t cursor = 0;
    const char *name = NULL;
    pc_cubin_info info;
    pc_error error;
    if (pc_cubin_check(data, size, &info, &error) != PC_OK) {
        FUZZ_CHECK(error.status == PC_CORRUPT || error.status == PC_BAD_VERSION);
        return 0;
    }
    while ((name = pc_cubin_kernel(data, &cursor)) != NULL) {
        FUZZ_CHECK(strlen(name) < size);
    }
    if (pc_cubin_strip(data, size, &stripped, &stripped_size, &error) == PC_OK) {
        FUZZ_CHECK(pc_cubin_check(stripped, stripped_size, &info, &error) == PC_OK);
        FUZZ_CHECK(pc_cubin_strip(stripped, stripped_size, &again, &again_size,
                                  &error) == PC_OK);
        FUZZ_CHECK(again_size == stripped_size &&
                   memcmp(again, stripped, again_size) == 0);
    }
    pc_free(stripped);
    pc_free(again);
    return 0;
}
