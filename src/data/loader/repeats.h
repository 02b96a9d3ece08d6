/* repeats.h - finding token sequences that repeat themselves.
 *
 * Room:  data/loader.
 * Source: OLMoE's instance filter (periods 1 to 13, 32 repetitions). */
#ifndef CPL_DATA_LOADER_REPEATS_H
#define CPL_DATA_LOADER_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

/* True if some stretch of `ids` repeats with a period p, 1 <= p <= max_period, at least `min_count`
 * times: a stretch of which each token equals the one p before, n tokens long with the first p,
 * repeats floor(n / p) times. Fewer than 3 repetitions never count. */
bool cpl_repeats_found(const int32_t *ids, int64_t n_ids, int64_t max_period, int64_t min_count);

#endif /* CPL_DATA_LOADER_REPEATS_H */
