/* Parses the input as a manifest. One that is accepted must come back from printing. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "pc_manifest.h"
#include "pc_mem.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pc_manifest first;
    pc_manifest second;
    pc_error error;
    char *printed = NULL;
    char *again = NULL;
    size_t printed_size = 0;
    size_t again_size = 0;
    char *text = malloc(size + 1); /* of this size, so that reading behind it is seen */
    FUZZ_CHECK(text != NULL);
    char *exact = realloc(text, size > 0 ? size : 1);
    FUZZ_CHECK(exact != NULL);
    memcpy(exact, data, size);
    if (pc_manifest_parse(exact, size, &first, &error) != PC_OK) {
        /* Not PC_NO_MEMORY: what pc_json accepts, cJSON must parse. */
        FUZZ_CHECK(error.status == PC_CORRUPT || error.status == PC_BAD_VERSION);
        free(exact);
        return 0;
    }
    FUZZ_CHECK(pc_manifest_print(&first, &printed, &printed_size, &error) == PC_OK);
    FUZZ_CHECK(pc_manifest_parse(printed, printed_size, &second, &error) == PC_OK);
    FUZZ_CHECK(pc_manifest_print(&second, &again, &again_size, &error) == PC_OK);
    FUZZ_CHECK(printed_size == again_size && memcmp(printed, again, again_size) == 0);
    FUZZ_CHECK(first.entry_count == second.entry_count);
    FUZZ_CHECK(first.blob_count == second.blob_count);
    FUZZ_CHECK(first.environment_count == second.environment_count);
    pc_free(printed);
    pc_free(again);
    pc_manifest_clear(&first);
    pc_manifest_clear(&second);
    free(exact);
    return 0;
}
