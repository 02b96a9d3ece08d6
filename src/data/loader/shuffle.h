/* shuffle.h - the random numbers of NumPy's Generator(PCG64(seed)) and its shuffle, bit for bit.
 *
 * Room:    data/loader. The order of the data comes from here and from nowhere else; the model's noise has
 *          its own numbers (base/rng.h), so that neither disturbs the other.
 * Method:  NumPy's SeedSequence of one integer gives 256 bits; PCG XSL-RR 128/64 (O'Neill 2014)
 *          draws; the shuffle is Fisher-Yates from the end with masked rejection, as NumPy's
 *          `shuffle` does it for arrays of integers. */
#ifndef CPL_DATA_LOADER_SHUFFLE_H
#define CPL_DATA_LOADER_SHUFFLE_H

#include <stdbool.h>
#include <stdint.h>

/* A 128-bit number as two halves, high first. */
typedef struct cpl_pcg64 {
    uint64_t state[2], increment[2];
    uint32_t spare; /* the upper half of the number that the last cpl_pcg64_u32 drew */
    bool has_spare;
} cpl_pcg64;

/* SeedSequence(seed).generate_state(4, uint64). */
void cpl_seed_words(uint64_t seed, uint64_t words[4]);

/* PCG64(seed). */
void cpl_pcg64_init(cpl_pcg64 *random, uint64_t seed);

uint64_t cpl_pcg64_u64(cpl_pcg64 *random);
uint32_t cpl_pcg64_u32(cpl_pcg64 *random); /* low half of a 64-bit number, then its high half */

/* Evenly in [0, max]. */
uint64_t cpl_pcg64_interval(cpl_pcg64 *random, uint64_t max);

/* Generator(random).shuffle(items). */
void cpl_pcg64_shuffle(cpl_pcg64 *random, uint32_t *items, int64_t count);

#endif /* CPL_DATA_LOADER_SHUFFLE_H */
