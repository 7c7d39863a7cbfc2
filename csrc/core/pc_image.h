/* A shared library that the dynamic loader has loaded, as its program headers and its
 * dynamic section describe it. Nothing is read from the file.
 */
#ifndef PRECOMP_PC_IMAGE_H
#define PRECOMP_PC_IMAGE_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uintptr_t base;              /* load address */
    const ElfW(Phdr) * segments; /* owned by the loader, as all pointers here */
    size_t segment_count;
    const ElfW(Rela) * relocations; /* of data */
    size_t relocation_count;
    const ElfW(Rela) * jumps; /* of calls into other libraries */
    size_t jump_count;
    const ElfW(Sym) * symbols;
    const char *names;
} pc_image;

/* Number of libraries loaded so far: it changes when one is loaded. */
unsigned long long pc_image_loads(void);

/* Finds the loaded library whose file is called *file_name* (no directory) and keeps it
   loaded for the life of the process. Returns whether there is one. */
bool pc_image_find(const char *file_name, pc_image *image);

/* Whether the *size* bytes at *address* lie in one segment of the file that has all of
   *flags* (PF_R, PF_W, PF_X). Memory that the loader makes read-only after relocation
   does not count as PF_W. */
bool pc_image_holds(const pc_image *image, uintptr_t address, size_t size,
                    ElfW(Word) flags);

#endif
