/* sha256.h - SHA-256 (FIPS 180-4) for comparing long streams of ids with recorded sums. */
#ifndef CPL_TESTS_SUPPORT_SHA256_H
#define CPL_TESTS_SUPPORT_SHA256_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct sha256 {
    uint32_t state[8];
    uint8_t block[64];
    size_t filled;
    uint64_t bytes;
} sha256;

static inline void sha256_init(sha256 *h)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(h, 0, sizeof *h);
    memcpy(h->state, start, sizeof start);
}

static inline uint32_t sha256_rotate(uint32_t x, int by)
{
    return x >> by | x << (32 - by);
}

static inline void sha256_block(sha256 *h)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)h->block[4 * i] << 24 | (uint32_t)h->block[4 * i + 1] << 16 |
               (uint32_t)h->block[4 * i + 2] << 8 | h->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (sha256_rotate(a, 7) ^ sha256_rotate(a, 18) ^ a >> 3) +
               (sha256_rotate(b, 17) ^ sha256_rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = sha256_rotate(v[4], 6) ^ sha256_rotate(v[4], 11) ^ sha256_rotate(v[4], 25);
        uint32_t s0 = sha256_rotate(v[0], 2) ^ sha256_rotate(v[0], 13) ^ sha256_rotate(v[0], 22);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h->state[i] += v[i];
}

static inline void sha256_add(sha256 *h, const void *data, size_t length)
{
    const uint8_t *s = data;
    h->bytes += length;
    for (size_t i = 0; i < length; i++) {
        h->block[h->filled++] = s[i];
        if (h->filled < sizeof h->block) continue;
        sha256_block(h);
        h->filled = 0;
    }
}

/* Writes the sum in hexadecimal digits. */
static inline void sha256_finish(sha256 *h, char hex[65])
{
    uint64_t bits = h->bytes * 8;
    uint8_t byte  = 0x80;
    do {
        sha256_add(h, &byte, 1);
        byte = 0;
    } while (h->filled != 56);
    for (int i = 0; i < 8; i++) {
        byte = (uint8_t)(bits >> (56 - 8 * i));
        sha256_add(h, &byte, 1);
    }
    for (int i = 0; i < 8; i++) sprintf(hex + 8 * i, "%08x", h->state[i]);
}

/* Writes the sum of all bytes in one call. */
static inline void sha256_of(char hex[65], const void *bytes, size_t length)
{
    sha256 h;
    sha256_init(&h);
    sha256_add(&h, bytes, length);
    sha256_finish(&h, hex);
}

#endif /* CPL_TESTS_SUPPORT_SHA256_H */
