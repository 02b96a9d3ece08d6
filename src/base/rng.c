/* rng.c - see rng.h */
#include "base/rng.h"

#include <math.h>

#include "base/status.h"

static void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
    uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c[3] = (uint32_t)p0;
}

void cpl_rng_block(const cpl_rng_key *key, uint64_t block, uint32_t out[4])
{
    CPL_ASSERT(key->step < (uint64_t)1 << 40 && key->layer < 1u << 16);
    out[0]      = (uint32_t)block;
    out[1]      = (uint32_t)(block >> 32);
    out[2]      = (uint32_t)key->step;
    out[3]      = (uint32_t)key->stream | key->layer << 8 | (uint32_t)(key->step >> 32) << 24;
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int round = 0; round < 10; round++) {
        philox_round(out, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

uint32_t cpl_rng_u32(const cpl_rng_key *key, uint64_t index)
{
    uint32_t four[4];
    cpl_rng_block(key, index / 4, four);
    return four[index % 4];
}

float cpl_rng_uniform(const cpl_rng_key *key, uint64_t index)
{
    return (float)(cpl_rng_u32(key, index) >> 8) * 0x1p-24f;
}

float cpl_rng_normal(const cpl_rng_key *key, uint64_t index)
{
    uint32_t four[4];
    cpl_rng_block(key, index / 2, four);
    int half      = (int)(index % 2) * 2;
    double radius = sqrt(-2.0 * log(((double)(four[half] >> 8) + 1.0) * 0x1p-24));
    double angle  = 6.283185307179586 * (double)(four[half + 1] >> 8) * 0x1p-24;
    return (float)(radius * cos(angle));
}

void cpl_rng_shuffle(int32_t *order, int64_t n, const cpl_rng_key *key)
{
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t random = cpl_rng_u32(key, (uint64_t)i);
        int64_t j       = (int64_t)(random * (uint64_t)(i + 1) >> 32);
        int32_t moved   = order[i];
        order[i]        = order[j];
        order[j]        = moved;
    }
}
