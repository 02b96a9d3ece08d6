/* epoch.h - the instances of an epoch and their order, by the rule in loader.h.
 *
 * Room:  data/loader, internal to loader.h. */
#ifndef CPL_DATA_LOADER_EPOCH_H
#define CPL_DATA_LOADER_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Instances 0 .. n-1 grouped by source. */
typedef struct cpl_epoch_sources {
    const uint32_t *members; /* [n] the instances of source 0, of source 1, ..., each ascending */
    const int64_t *first;    /* [n_sources + 1] index in members of the first instance of each
                                source */
    const double *weight;    /* [n_sources], finite and not negative */
    int64_t n_sources;
} cpl_epoch_sources;

/* Returns the number of instances in an epoch, or -1 from 2^32 - 1 on, the limit of the order. */
int64_t cpl_epoch_size(const cpl_epoch_sources *sources);

/* Sets `order[0 .. size)` to the order of epoch e, with `seed` the data's seed plus e. `copies` and
 * `scratch` hold a number for each instance. */
void cpl_epoch_order(uint32_t *order, const cpl_epoch_sources *sources, uint64_t seed, bool shuffle,
                     uint32_t *copies, uint32_t *scratch);

/* Returns whether a stretch of `ids` repeats with a period p, 1 <= p <= max_period, at least
 * `min_count` times. A stretch of n tokens in which each token after the first p equals the token p
 * before it repeats floor(n / p) times. Fewer than 3 repetitions never count. (OLMoE's instance
 * filter: periods 1 to 13, 32 repetitions.) */
bool cpl_epoch_finds_repeats(const int32_t *ids, int64_t n_ids, int64_t max_period,
                             int64_t min_count);

/* The random numbers of NumPy's Generator(PCG64(seed)) and its shuffle, bit for bit ---------------
 *
 * The order of the data uses only these numbers. The model's noise uses other numbers (base/rng.h),
 * so that data and noise do not affect each other. NumPy's SeedSequence of one integer gives 256
 * bits. PCG XSL-RR 128/64 (O'Neill 2014) draws. The shuffle is Fisher-Yates from the end with
 * masked rejection, like NumPy's `shuffle` for arrays of integers. */

/* A 128-bit number as two halves, high first. */
typedef struct cpl_pcg64 {
    uint64_t state[2], increment[2];
    uint32_t spare; /* the upper half of the number that the last cpl_pcg64_u32 drew */
    bool has_spare;
} cpl_pcg64;

/* Sets `words` to SeedSequence(seed).generate_state(4, uint64). */
void cpl_pcg64_seed_words(uint64_t seed, uint64_t words[4]);

/* Sets `random` to the state of PCG64(seed). */
void cpl_pcg64_init(cpl_pcg64 *random, uint64_t seed);

uint64_t cpl_pcg64_u64(cpl_pcg64 *random);
uint32_t cpl_pcg64_u32(cpl_pcg64 *random); /* low half of a 64-bit number, then its high half */

/* Returns a uniform number in [0, max]. */
uint64_t cpl_pcg64_interval(cpl_pcg64 *random, uint64_t max);

/* Shuffles `items` as Generator(random).shuffle(items) does. */
void cpl_pcg64_shuffle(cpl_pcg64 *random, uint32_t *items, int64_t count);

#endif /* CPL_DATA_LOADER_EPOCH_H */
