/* The allocator seam of csrc/core: no other file there calls malloc itself. */
#ifndef PRECOMP_PC_MEM_H
#define PRECOMP_PC_MEM_H

#include <stddef.h>

/* Return memory that pc_free releases, or NULL when there is none. A size of 0 gives
   a pointer that is not NULL. The array forms give NULL when the product overflows. */
void *pc_malloc(size_t size);
void *pc_calloc(size_t count, size_t size);
void *pc_realloc_array(void *memory, size_t count, size_t size);
char *pc_strdup(const char *text);

/* Accepts NULL. */
void pc_free(void *memory);

#endif
