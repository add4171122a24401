/* SHA-256, for the extensions of this folder: by the processor's own instructions where it has them.

   Checked against another implementation by tests: the journal's links are what these give. */

#ifndef TOOLWRIGHT_SHA256_H
#define TOOLWRIGHT_SHA256_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { DIGEST_BYTES = 32, BLOCK_BYTES = 64 };

static const uint32_t ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

typedef void (*Blocks)(uint32_t state[8], const uint8_t *data, size_t blocks);

static uint32_t turned(uint32_t value, int by) { return value >> by | value << (32 - by); }

static uint32_t read_word(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void plain_blocks(uint32_t state[8], const uint8_t *data, size_t blocks) {
    for (; blocks > 0; blocks--, data += BLOCK_BYTES) {
        uint32_t words[64], now[8];
        for (int at = 0; at < 16; at++) words[at] = read_word(data + 4 * at);
        for (int at = 16; at < 64; at++) {
            uint32_t near = words[at - 2], far = words[at - 15];
            words[at] = words[at - 16] + words[at - 7] + (turned(near, 17) ^ turned(near, 19) ^ near >> 10) +
                        (turned(far, 7) ^ turned(far, 18) ^ far >> 3);
        }
        memcpy(now, state, sizeof now);
        for (int at = 0; at < 64; at++) {
            uint32_t e = now[4], a = now[0];
            uint32_t one = now[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) +
                           ((e & now[5]) ^ (~e & now[6])) + ROUNDS[at] + words[at];
            uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) +
                           ((a & now[1]) ^ (a & now[2]) ^ (now[1] & now[2]));
            memmove(now + 1, now, 7 * sizeof now[0]);
            now[4] += one;
            now[0] = one + two;
        }
        for (int at = 0; at < 8; at++) state[at] += now[at];
    }
}

#if defined(__x86_64__)
/* The processor's own instructions for it: two rounds each. State is kept as they want it, ABEF and CDGH. */
__attribute__((target("sha,sse4.1,ssse3"))) static void quick_blocks(uint32_t state[8], const uint8_t *data,
                                                                     size_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; blocks > 0; blocks--, data += BLOCK_BYTES) {
        __m128i words[4], abef_before = abef, cdgh_before = cdgh;
        for (int at = 0; at < 4; at++)
            words[at] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(data + 16 * at)), big_endian);
#pragma GCC unroll 16 /* so that the words stay in registers */
        for (int at = 0; at < 16; at++) {
            __m128i four = words[at & 3];
            __m128i sum = _mm_add_epi32(four, _mm_loadu_si128((const __m128i *)(const void *)(ROUNDS + 4 * at)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            if (at < 12) { /* the four words that take the place of these, sixteen rounds later */
                __m128i last = words[(at + 3) & 3];
                __m128i next = _mm_sha256msg1_epu32(four, words[(at + 1) & 3]);
                next = _mm_add_epi32(next, _mm_alignr_epi8(last, words[(at + 2) & 3], 4));
                words[at & 3] = _mm_sha256msg2_epu32(next, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1b);
    high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(high, low, 8));
}

static bool is_quick(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 9) || !(c & 1u << 19)) return false; /* SSSE3, SSE4.1 */
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29);                        /* SHA */
}
#endif

/* The quickest there is here. */
static Blocks choose_blocks(void) {
#if defined(__x86_64__)
    if (is_quick()) return quick_blocks;
#endif
    return plain_blocks;
}

typedef struct {
    uint32_t state[8];
    uint8_t left[BLOCK_BYTES];
    size_t left_bytes;
    uint64_t bytes;
    Blocks blocks;
} Hash;

static void hash_begin(Hash *hash, Blocks blocks) {
    static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, START, sizeof START);
    hash->left_bytes = 0;
    hash->bytes = 0;
    hash->blocks = blocks;
}

static void hash_add(Hash *hash, const uint8_t *data, size_t size) {
    hash->bytes += size;
    if (hash->left_bytes > 0) {
        size_t taken = BLOCK_BYTES - hash->left_bytes;
        if (taken > size) taken = size;
        memcpy(hash->left + hash->left_bytes, data, taken);
        hash->left_bytes += taken;
        data += taken;
        size -= taken;
        if (hash->left_bytes < BLOCK_BYTES) return;
        hash->blocks(hash->state, hash->left, 1);
        hash->left_bytes = 0;
    }
    hash->blocks(hash->state, data, size / BLOCK_BYTES);
    hash->left_bytes = size % BLOCK_BYTES;
    memcpy(hash->left, data + size - hash->left_bytes, hash->left_bytes);
}

static void hash_end(Hash *hash, uint8_t digest[DIGEST_BYTES]) {
    uint64_t bits = hash->bytes * 8;
    hash->left[hash->left_bytes++] = 0x80;
    if (hash->left_bytes > BLOCK_BYTES - 8) {
        memset(hash->left + hash->left_bytes, 0, BLOCK_BYTES - hash->left_bytes);
        hash->blocks(hash->state, hash->left, 1);
        hash->left_bytes = 0;
    }
    memset(hash->left + hash->left_bytes, 0, BLOCK_BYTES - 8 - hash->left_bytes);
    for (int at = 0; at < 8; at++) hash->left[BLOCK_BYTES - 1 - at] = (uint8_t)(bits >> 8 * at);
    hash->blocks(hash->state, hash->left, 1);
    for (int at = 0; at < DIGEST_BYTES; at++) digest[at] = (uint8_t)(hash->state[at / 4] >> (24 - at % 4 * 8));
}

#endif
