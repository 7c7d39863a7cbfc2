/* Little-endian integers, hexadecimal digests, UTF-8 and alignment. */
#ifndef PRECOMP_PC_BYTES_H
#define PRECOMP_PC_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PC_DIGEST_SIZE 32 /* bytes of a sha256 */
#define PC_HEX_SIZE 65    /* its 64 lower-case hex digits and a NUL */

/* On-disk integers are read byte by byte: never by a cast, whatever the alignment. */
uint16_t pc_load_u16(const uint8_t *bytes);
uint32_t pc_load_u32(const uint8_t *bytes);
uint64_t pc_load_u64(const uint8_t *bytes);
void pc_store_u16(uint8_t *bytes, uint16_t value);
void pc_store_u32(uint8_t *bytes, uint32_t value);
void pc_store_u64(uint8_t *bytes, uint64_t value);

/* Writes 64 lower-case hex digits and a NUL. */
void pc_hex(const uint8_t digest[PC_DIGEST_SIZE], char text[PC_HEX_SIZE]);

/* Reads exactly 64 lower-case hex digits. Returns false for anything else. */
bool pc_unhex(const char *text, size_t length, uint8_t digest[PC_DIGEST_SIZE]);

/* Tells whether the bytes are well-formed UTF-8 (no surrogates, no overlong forms). */
bool pc_utf8_valid(const uint8_t *bytes, size_t length);

/* Tells whether all bytes are zero. */
bool pc_all_zero(const uint8_t *bytes, size_t length);

/* *out = a + b. Returns false, *out unchanged, when the sum does not fit. */
bool pc_add_u64(uint64_t a, uint64_t b, uint64_t *out);

/* *out = *value* rounded up to a multiple of 64. Returns false when it does not fit. */
bool pc_align_u64(uint64_t value, uint64_t *out);

#endif
