/* Reduces an ELF shared object to what the dynamic loader needs. */
#ifndef PRECOMP_PC_ELF_H
#define PRECOMP_PC_ELF_H

#include <stddef.h>
#include <stdint.h>

#include "pc_error.h"

/* Checks that *image* is a 64-bit little-endian shared object and sets *kept* to the
   number of its first bytes that the loader needs: ELF header, program headers and all
   segments. */
pc_status pc_elf_measure(const uint8_t *image, size_t size, size_t *kept,
                         pc_error *error);

/* Strips *image* in place. It holds the first *kept* bytes, as measured: forgets the
   section headers and zeroes the build id, so what is left depends neither on debug
   information nor on where it was built. Stripping twice changes nothing more. */
pc_status pc_elf_strip(uint8_t *image, size_t kept, pc_error *error);

#endif
