/* The allocator seam of csrc/core. */
#include "pc_mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *
pc_malloc(size_t size)
{
    return malloc(size == 0 ? 1 : size);
}

void *
pc_calloc(size_t count, size_t size)
{
    if (count == 0 || size == 0) {
        return calloc(1, 1);
    }
    return calloc(count, size);
}

void *
pc_realloc_array(void *memory, size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size) {
        return NULL;
    }
    size_t total = count * size;
    return realloc(memory, total == 0 ? 1 : total);
}

char *
pc_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = pc_malloc(size);
    if (copy != NULL) {
        memcpy(copy, text, size);
    }
    return copy;
}

void
pc_free(void *memory)
{
    free(memory);
}
