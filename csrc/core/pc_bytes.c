/* Little-endian integers, hexadecimal digests, UTF-8 and alignment. */
#include "pc_bytes.h"

uint16_t
pc_load_u16(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] | (uint16_t)bytes[1] << 8);
}

uint32_t
pc_load_u32(const uint8_t *bytes)
{
    return (uint32_t)pc_load_u16(bytes) | (uint32_t)pc_load_u16(bytes + 2) << 16;
}

uint64_t
pc_load_u64(const uint8_t *bytes)
{
    return (uint64_t)pc_load_u32(bytes) | (uint64_t)pc_load_u32(bytes + 4) << 32;
}

void
pc_store_u16(uint8_t *bytes, uint16_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

void
pc_store_u32(uint8_t *bytes, uint32_t value)
{
    pc_store_u16(bytes, (uint16_t)value);
    pc_store_u16(bytes + 2, (uint16_t)(value >> 16));
}

void
pc_store_u64(uint8_t *bytes, uint64_t value)
{
    pc_store_u32(bytes, (uint32_t)value);
    pc_store_u32(bytes + 4, (uint32_t)(value >> 32));
}

void
pc_hex(const uint8_t digest[PC_DIGEST_SIZE], char text[PC_HEX_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < PC_DIGEST_SIZE; i++) {
        text[2 * i] = digits[digest[i] >> 4];
        text[2 * i + 1] = digits[digest[i] & 15];
    }
    text[2 * PC_DIGEST_SIZE] = '\0';
}

static int
hex_value(char digit)
{
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    if (digit >= 'a' && digit <= 'f') {
        return digit - 'a' + 10;
    }
    return -1;
}

bool
pc_unhex(const char *text, size_t length, uint8_t digest[PC_DIGEST_SIZE])
{
    if (length != 2 * PC_DIGEST_SIZE) {
        return false;
    }
    for (size_t i = 0; i < PC_DIGEST_SIZE; i++) {
        int high = hex_value(text[2 * i]);
        int low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        digest[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* Length of the well-formed sequence that starts at *bytes, or 0. */
static size_t
utf8_sequence(const uint8_t *bytes, size_t left)
{
    uint8_t first = bytes[0];
    uint8_t low = 0x80;
    uint8_t high = 0xBF; /* bounds of the second byte */
    size_t length;
    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xC2 && first <= 0xDF) {
        length = 2;
    }
    else if (first >= 0xE0 && first <= 0xEF) {
        length = 3;
        low = first == 0xE0 ? 0xA0 : 0x80;  /* no overlong form */
        high = first == 0xED ? 0x9F : 0xBF; /* no surrogate */
    }
    else if (first >= 0xF0 && first <= 0xF4) {
        length = 4;
        low = first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xF4 ? 0x8F : 0xBF; /* nothing above U+10FFFF */
    }
    else {
        return 0;
    }
    if (left < length || bytes[1] < low || bytes[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((bytes[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return length;
}

bool
pc_utf8_valid(const uint8_t *bytes, size_t length)
{
    size_t at = 0;
    while (at < length) {
        size_t step = utf8_sequence(bytes + at, length - at);
        if (step == 0) {
            return false;
        }
        at += step;
    }
    return true;
}

bool
pc_all_zero(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

bool
pc_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b) {
        return false;
    }
    *out = a + b;
    return true;
}

bool
pc_align_u64(uint64_t value, uint64_t *out)
{
    if (value > UINT64_MAX - 63) {
        return false;
    }
    *out = (value + 63) & ~(uint64_t)63;
    return true;
}
