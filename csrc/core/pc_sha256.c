/* SHA-256 (FIPS 180-4): a portable form, and one for the SHA instructions of x86. */
#include "pc_sha256.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_NATIVE 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define HAVE_NATIVE 0
#endif

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
};

static uint32_t
rotate(uint32_t value, int bits)
{
    return value >> bits | value << (32 - bits);
}

static uint32_t
load_big(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 |
           (uint32_t)bytes[2] << 8 | (uint32_t)bytes[3];
}

void
pc_sha256_blocks_portable(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    uint32_t w[64];
    for (; count > 0; count--, blocks += 64) {
        for (int i = 0; i < 16; i++) {
            w[i] = load_big(blocks + 4 * i);
        }
        for (int i = 16; i < 64; i++) {
            uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
            uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int i = 0; i < 64; i++) {
            uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
            uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
            uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
            uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + t2;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#if HAVE_NATIVE
bool
pc_sha256_has_instructions(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) {
        return false;
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return false;
    }
    return (b >> 29 & 1) != 0;
}

/* The instructions keep the eight words as two registers, named from the highest lane
   down: (a, b, e, f) and (c, d, g, h). Each does two rounds. */
__attribute__((target("sha,ssse3,sse4.1"))) void
pc_sha256_blocks_native(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const void *)state), 0xB1);
    __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const void *)(state + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
    __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);
    for (; count > 0; count--, blocks += 64) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++) {
            __m128i raw = _mm_loadu_si128((const void *)(blocks + 16 * i));
            w[i] = _mm_shuffle_epi8(raw, swap);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i >= 4) {
                __m128i last = w[(i + 3) & 3];
                __m128i sum = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
                sum = _mm_add_epi32(sum, _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(sum, last);
            }
            const void *constants = round_constants + 4 * i;
            __m128i wk = _mm_add_epi32(w[i & 3], _mm_loadu_si128(constants));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i abef_up = _mm_shuffle_epi32(abef, 0x1B);
    __m128i ghcd = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((void *)state, _mm_blend_epi16(abef_up, ghcd, 0xF0));
    _mm_storeu_si128((void *)(state + 4), _mm_alignr_epi8(ghcd, abef_up, 8));
}
#else
bool
pc_sha256_has_instructions(void)
{
    return false;
}

void
pc_sha256_blocks_native(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    pc_sha256_blocks_portable(state, blocks, count);
}
#endif

static void
digest_blocks(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    /* 0: not asked yet, 1: portable, 2: native. Every thread finds the same answer. */
    static _Atomic int choice = 0;
    int chosen = atomic_load_explicit(&choice, memory_order_relaxed);
    if (chosen == 0) {
        chosen = pc_sha256_has_instructions() ? 2 : 1;
        atomic_store_explicit(&choice, chosen, memory_order_relaxed);
    }
    if (chosen == 2) {
        pc_sha256_blocks_native(state, blocks, count);
    }
    else {
        pc_sha256_blocks_portable(state, blocks, count);
    }
}

void
pc_sha256_init(pc_sha256 *hash)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(hash, 0, sizeof(*hash));
    memcpy(hash->state, start, sizeof(start));
}

void
pc_sha256_update(pc_sha256 *hash, const void *data, size_t length)
{
    const uint8_t *bytes = data;
    size_t used = (size_t)(hash->length % 64);
    if (length == 0) {
        return;
    }
    hash->length += length;
    if (used > 0) {
        size_t take = length < 64 - used ? length : 64 - used;
        memcpy(hash->tail + used, bytes, take);
        bytes += take;
        length -= take;
        if (used + take < 64) {
            return;
        }
        digest_blocks(hash->state, hash->tail, 1);
    }
    digest_blocks(hash->state, bytes, length / 64);
    memcpy(hash->tail, bytes + (length - length % 64), length % 64);
}

void
pc_sha256_final(pc_sha256 *hash, uint8_t digest[PC_DIGEST_SIZE])
{
    uint64_t bits = hash->length * 8;
    size_t used = (size_t)(hash->length % 64);
    hash->tail[used++] = 0x80;
    memset(hash->tail + used, 0, 64 - used);
    if (used > 56) {
        digest_blocks(hash->state, hash->tail, 1);
        memset(hash->tail, 0, 64);
    }
    for (int i = 0; i < 8; i++) {
        hash->tail[63 - i] = (uint8_t)(bits >> (8 * i));
    }
    digest_blocks(hash->state, hash->tail, 1);
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 4; j++) {
            digest[4 * i + j] = (uint8_t)(hash->state[i] >> (24 - 8 * j));
        }
    }
}

void
pc_sha256_of(const void *data, size_t length, uint8_t digest[PC_DIGEST_SIZE])
{
    pc_sha256 hash;
    pc_sha256_init(&hash);
    pc_sha256_update(&hash, data, length);
    pc_sha256_final(&hash, digest);
}
