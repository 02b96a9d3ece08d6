/* repeats.c - see repeats.h */
#include "data/loader/repeats.h"

/* The most repetitions with period `p`; 0 if no token equals the one p before. */
static int64_t most_repetitions(const int32_t *ids, int64_t n_ids, int64_t p)
{
    int64_t run = 0, longest = 0;
    for (int64_t i = p; i < n_ids; i++) {
        run = ids[i] == ids[i - p] ? run + 1 : 0;
        if (run > longest) longest = run;
    }
    return longest ? (longest + p) / p : 0;
}

bool cpl_repeats_found(const int32_t *ids, int64_t n_ids, int64_t max_period, int64_t min_count)
{
    enum { LEAST = 3 };
    if (min_count < LEAST) min_count = LEAST;
    for (int64_t p = 1; p <= max_period && p < n_ids; p++)
        if (most_repetitions(ids, n_ids, p) >= min_count) return true;
    return false;
}
