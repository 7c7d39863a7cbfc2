/* SHA-256 (FIPS 180-4). Uses the SHA instructions of x86 processors that have them. */
#ifndef PRECOMP_PC_SHA256_H
#define PRECOMP_PC_SHA256_H

#include "pc_bytes.h"

typedef struct {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t tail[64];
} pc_sha256;

void pc_sha256_init(pc_sha256 *hash);
void pc_sha256_update(pc_sha256 *hash, const void *data, size_t length);
void pc_sha256_final(pc_sha256 *hash, uint8_t digest[PC_DIGEST_SIZE]);

/* The digest of one piece of memory. */
void pc_sha256_of(const void *data, size_t length, uint8_t digest[PC_DIGEST_SIZE]);

/* The two ways to digest *count* blocks of 64 bytes; tests compare them. The second
   may be called only if pc_sha256_has_instructions() says so. */
void pc_sha256_blocks_portable(uint32_t state[8], const uint8_t *blocks, size_t count);
void pc_sha256_blocks_native(uint32_t state[8], const uint8_t *blocks, size_t count);
bool pc_sha256_has_instructions(void);

#endif
