/* epoch.c - see epoch.h */
#include "data/loader/epoch.h"

#include <math.h>
#include <string.h>

#include "data/loader/shuffle.h"

static int64_t members_of(const cpl_epoch_sources *s, int64_t source)
{
    return s->first[source + 1] - s->first[source];
}

/* Instances that the fraction of the weight adds. */
static int64_t extra(const cpl_epoch_sources *s, int64_t source)
{
    double whole = floor(s->weight[source]);
    return (int64_t)llround((s->weight[source] - whole) * (double)members_of(s, source));
}

int64_t cpl_epoch_size(const cpl_epoch_sources *s)
{
    const double limit = 4294967295.0;
    double size        = 0;
    for (int64_t i = 0; i < s->n_sources; i++)
        size += floor(s->weight[i]) * (double)members_of(s, i) + (double)extra(s, i);
    return size < limit ? (int64_t)size : -1;
}

/* Sets how often the epoch holds each instance of one source. */
static void count_copies(uint32_t *copies, const cpl_epoch_sources *s, int64_t source,
                         uint64_t seed, uint32_t *scratch)
{
    const uint32_t *members = s->members + s->first[source];
    int64_t n = members_of(s, source), more = extra(s, source);
    for (int64_t i = 0; i < n; i++) copies[members[i]] = (uint32_t)floor(s->weight[source]);
    if (!more) return;
    cpl_pcg64 random;
    memcpy(scratch, members, (size_t)n * sizeof *scratch);
    cpl_pcg64_init(&random, seed);
    cpl_pcg64_shuffle(&random, scratch, n);
    for (int64_t i = 0; i < more; i++) copies[scratch[i]]++;
}

void cpl_epoch_order(uint32_t *order, const cpl_epoch_sources *s, uint64_t seed, bool shuffle,
                     uint32_t *copies, uint32_t *scratch)
{
    int64_t size = 0, n = s->first[s->n_sources];
    for (int64_t i = 0; i < s->n_sources; i++) count_copies(copies, s, i, seed, scratch);
    for (int64_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < copies[i]; k++) order[size++] = (uint32_t)i;
    if (!shuffle) return;
    cpl_pcg64 random;
    cpl_pcg64_init(&random, seed);
    cpl_pcg64_shuffle(&random, order, size);
}

int64_t cpl_epoch_total(int64_t size, int64_t n_ranks, bool drop_last)
{
    bool surplus   = size % n_ranks != 0;
    int64_t floors = size / n_ranks;
    return n_ranks * (surplus && !drop_last ? floors + 1 : floors);
}

/* ---- sequences that repeat themselves ---- */

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
