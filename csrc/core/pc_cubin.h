/* Checks, describes and strips cubins: ELF files with the machine code of CUDA kernels.
 *
 * The driver takes an image without its length and reads beyond a truncated one, so
 * nothing reaches it that was not checked here. Code and data are not looked at: bytes
 * that come from outside are to be compared with their digest first.
 */
#ifndef PRECOMP_PC_CUBIN_H
#define PRECOMP_PC_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pc_error.h"

typedef struct {
    unsigned arch; /* 90 for compute capability 9.0 */
    bool exact;    /* runs on no other capability: code for sm_90a, say */
    unsigned
        toolkit; /* CUDA version that built it, 128 for 12.8; 0 if it does not say */
} pc_cubin_info;

/* PC_CORRUPT when *image* is not a whole cubin, PC_BAD_VERSION when it is of a kind that
   is not known. */
pc_status pc_cubin_check(const uint8_t *image, size_t size, pc_cubin_info *info,
                         pc_error *error);

/* The name of a kernel of a checked image, or NULL when there are no more. *cursor* is 0
   at first. The text lies in the image. */
const char *pc_cubin_kernel(const uint8_t *image, size_t *cursor);

/* Whether code for *info* runs on a device of compute capability *major*.*minor*. */
bool pc_cubin_runs_on(const pc_cubin_info *info, int major, int minor);

/* Copies an image without embedded PTX, line tables and debug data: their sections stay
   in place with size 0, so that no index changes. *stripped* belongs to the caller
   (pc_free). Stripping twice changes nothing more. */
pc_status pc_cubin_strip(const uint8_t *image, size_t size, uint8_t **stripped,
                         size_t *stripped_size, pc_error *error);

#endif
