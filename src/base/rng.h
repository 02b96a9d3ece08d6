/* rng.h - counter-based random numbers: (seed, stream, step, layer, index) -> number.
 *
 * Room:     base.
 * Method:   Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
 * Promise:  the same five numbers give the same result on every device, thread count and rank, and
 *           in every release of a major version. Numbers have no state, so that resuming is
 *           exact. */
#ifndef CPL_BASE_RNG_H
#define CPL_BASE_RNG_H

#include <stdint.h>

/* Uses of numbers. Two uses never share numbers. The values are part of the promise. */
typedef enum cpl_rng_stream {
    CPL_STREAM_INIT =
        1, /* initial weights: layer + 1 (0: outside of layers), step = line of params.def */
    CPL_STREAM_NOISE   = 2, /* delta of the coupling loss: step, layer, index = draw, i, k */
    CPL_STREAM_SAMPLE  = 3, /* generation: step = position */
    CPL_STREAM_TEST    = 4,
    CPL_STREAM_MIXTURE = 5, /* choice of instances for a fractional mixing weight */
    CPL_STREAM_PAIRING = 6, /* random pairings of rows and experts: layer, step = pairing */
    CPL_STREAM_BOOTSTRAP =
        8, /* couplet.compare, documents of a resample: step = resample, layer = source, index =
              draw */
    CPL_STREAM_LANCZOS = 9, /* start vector for the largest singular value: index = row */
    CPL_STREAM_ROWS =
        10, /* choice of blocks of a gate's rows: layer, step = expert, index = choice */

    CPL_STREAM_IDS = 16, /* ids dealt anew in the routing report: step = 1, index = place */
    CPL_STREAM_LABELS =
        17, /* permuted experts of the routing report: layer, step = permutation, index = place */
} cpl_rng_stream;

typedef struct cpl_rng_key {
    uint64_t seed;
    uint64_t step;         /* below 2^40 */
    uint32_t layer;        /* below 2^16 */
    cpl_rng_stream stream; /* below 2^8 */
} cpl_rng_key;

/* Sets the four 32-bit numbers with indices 4 block ... 4 block + 3. */
void cpl_rng_block(const cpl_rng_key *key, uint64_t block, uint32_t out[4]);

uint32_t cpl_rng_u32(const cpl_rng_key *key, uint64_t index);

/* Returns a uniform number in [0,1), from the upper 24 bits, so that a float holds it exactly. */
float cpl_rng_uniform(const cpl_rng_key *key, uint64_t index);

/* Returns a standard normal number, |x| < 5.8, by Box-Muller from indices 2 index, 2 index + 1. */
float cpl_rng_normal(const cpl_rng_key *key, uint64_t index);

/* Sets order [n] to a Fisher-Yates shuffle of 0 .. n-1: for i = n-1 .. 1 places i and
 * floor(u (i+1) / 2^32) change, u = cpl_rng_u32 of key and index i. Some places are preferred to
 * others by less than n / 2^32. */
void cpl_rng_shuffle(int32_t *order, int64_t n, const cpl_rng_key *key);

#endif /* CPL_BASE_RNG_H */
