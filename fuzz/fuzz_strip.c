/* Strips the input. What is stripped must be accepted again and stay as it is. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "pc_elf.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t kept = 0;
    size_t again = 0;
    pc_error error;
    if (pc_elf_measure(data, size, &kept, &error) != PC_OK) {
        FUZZ_CHECK(error.status == PC_CORRUPT);
        return 0;
    }
    FUZZ_CHECK(kept >= 64 && kept <= size);
    uint8_t *image = malloc(kept);
    uint8_t *copy = malloc(kept);
    FUZZ_CHECK(image != NULL && copy != NULL);
    memcpy(image, data, kept);
    if (pc_elf_strip(image, kept, &error) == PC_OK) {
        FUZZ_CHECK(pc_elf_measure(image, kept, &again, &error) == PC_OK);
        FUZZ_CHECK(again == kept);
        memcpy(copy, image, kept);
        FUZZ_CHECK(pc_elf_strip(copy, kept, &error) == PC_OK);
        FUZZ_CHECK(memcmp(copy, image, kept) == 0);
    }
    free(image);
    free(copy);
    return 0;
}
