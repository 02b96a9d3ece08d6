/* epoch.h - which instances an epoch holds and in which order; loader.h says how that is decided.
 *
 * Room:  data/loader, behind loader.h. */
#ifndef CPL_DATA_LOADER_EPOCH_H
#define CPL_DATA_LOADER_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Instances 0 .. n-1 grouped by source. */
typedef struct cpl_epoch_sources {
    const uint32_t *members; /* [n] the instances of source 0, of source 1, ...; each ascending */
    const int64_t *first;    /* [n_sources + 1] where those of a source begin */
    const double *weight;    /* [n_sources], finite and not negative */
    int64_t n_sources;
} cpl_epoch_sources;

/* Instances in an epoch; -1 if that reaches 2^32 - 1, the limit of the order. */
int64_t cpl_epoch_size(const cpl_epoch_sources *sources);

/* Sets `order[0 .. size)` to the order of epoch e, with `seed` the data's seed plus e. `copies` and
 * `scratch` hold a number for each instance. */
void cpl_epoch_order(uint32_t *order, const cpl_epoch_sources *sources, uint64_t seed, bool shuffle,
                     uint32_t *copies, uint32_t *scratch);

/* How many places of an order of `size` W ranks share out: each rank the same number, the surplus
 * dropped, or the last ones filled up by beginning anew. */
int64_t cpl_epoch_total(int64_t size, int64_t n_ranks, bool drop_last);

/* True if some stretch of `ids` repeats with a period p, 1 <= p <= max_period, at least `min_count`
 * times: a stretch of which each token equals the one p before, n tokens long with the first p,
 * repeats floor(n / p) times. Fewer than 3 repetitions never count. (OLMoE's instance
 * filter: periods 1 to 13, 32 repetitions.) */
bool cpl_repeats_found(const int32_t *ids, int64_t n_ids, int64_t max_period, int64_t min_count);

#endif /* CPL_DATA_LOADER_EPOCH_H */
