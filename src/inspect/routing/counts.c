/* counts.c - see counts.h */
#include "inspect/routing/counts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

void cpl_routing_count_load(cpl_routing_load *load, int64_t *assignments,
                            const cpl_routing_record *r, int64_t layer)
{
    const double all = (double)(r->n_tokens * r->top_k);
    int64_t most     = 0;
    memset(assignments, 0, (size_t)r->n_experts * sizeof *assignments);
    *load = (cpl_routing_load){0};
    for (int64_t t = 0; t < r->n_tokens; t++)
        for (int64_t k = 0; k < r->top_k; k++) assignments[cpl_routing_record_at(r, layer, t)[k]]++;
    for (int64_t e = 0; e < r->n_experts; e++) {
        double share = (double)assignments[e] / all;
        if (assignments[e] > most) most = assignments[e];
        if (assignments[e] == 0)
            load->dead++;
        else
            load->entropy -= share * log(share);
    }
    load->most_over_mean = (double)most * (double)r->n_experts / all;
}

/* ---- pairs ---- */

void cpl_routing_count_together(int64_t *together, const cpl_routing_record *r, int64_t layer)
{
    const int64_t n = r->n_experts;
    memset(together, 0, (size_t)(n * n) * sizeof *together);
    for (int64_t t = 0; t < r->n_tokens; t++) {
        const int32_t *e = cpl_routing_record_at(r, layer, t);
        for (int64_t a = 0; a < r->top_k; a++)
            for (int64_t b = 0; b < r->top_k; b++) together[e[a] * n + e[b]]++;
    }
}

double cpl_routing_factor(const int64_t *together, int64_t n)
{
    double pairs = 0, products = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) {
            pairs += (double)together[i * n + j];
            products += (double)together[i * n + i] * (double)together[j * n + j];
        }
    return products > 0 ? pairs / products : 0;
}

static double expected_of(const int64_t *together, int64_t n, int64_t i, int64_t j, double factor)
{
    return factor * (double)together[i * n + i] * (double)together[j * n + j];
}

int cpl_routing_frequent(cpl_routing_pair *pairs, int most, const int64_t *together, int64_t n)
{
    const double factor = cpl_routing_factor(together, n);
    int count           = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++) {
            int64_t tokens = together[i * n + j];
            int at         = count;
            if (tokens == 0) continue;
            while (at > 0 && pairs[at - 1].tokens < tokens) at--;
            if (at == most) continue;
            if (count < most) count++;
            memmove(pairs + at + 1, pairs + at, (size_t)(count - 1 - at) * sizeof *pairs);
            pairs[at] = (cpl_routing_pair){i, j, tokens, expected_of(together, n, i, j, factor)};
        }
    return count;
}

/* ---- domains ---- */

double cpl_routing_distance(const int64_t *a, const int64_t *b, int64_t n)
{
    double all_a = 0, all_b = 0, divergence = 0;
    for (int64_t e = 0; e < n; e++) {
        all_a += (double)a[e];
        all_b += (double)b[e];
    }
    if (all_a == 0 || all_b == 0) return (double)NAN;
    for (int64_t e = 0; e < n; e++) {
        double p = (double)a[e] / all_a, q = (double)b[e] / all_b, m = 0.5 * (p + q);
        if (p > 0) divergence += 0.5 * p * log2(p / m);
        if (q > 0) divergence += 0.5 * q * log2(q / m);
    }
    return sqrt(fmax(divergence, 0));
}

double cpl_routing_count_domains(int64_t *by_source, const cpl_routing_record *r, int64_t layer,
                                 const cpl_routing_tokens *tokens)
{
    const int64_t n = r->n_experts, sources = tokens->n_sources;
    double sum = 0, count = 0;
    memset(by_source, 0, (size_t)(sources * n) * sizeof *by_source);
    for (int64_t t = 0; t < r->n_tokens; t++)
        for (int64_t k = 0; k < r->top_k; k++)
            by_source[tokens->source[t] * n + cpl_routing_record_at(r, layer, t)[k]]++;
    for (int64_t s = 0; s < sources; s++)
        for (int64_t other = 0; other < s; other++) {
            const double d = cpl_routing_distance(by_source + s * n, by_source + other * n, n);
            if (isnan(d)) continue;
            sum += d;
            count++;
        }
    return sum / count; /* NaN without pairs of domains */
}

/* ---- places by id ---- */

typedef struct place {
    int32_t id;
    int64_t at;
} place;

static int by_id(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

/* Keeps groups of CPL_ROUTING_SEEN places or more. */
static void keep_groups(cpl_routing_index *index, const place *places, int64_t count)
{
    int64_t kept = 0;
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && places[end].id == places[first].id;) end++;
        if (end - first < CPL_ROUTING_SEEN) continue;
        index->first[index->n_ids++] = kept;
        for (int64_t i = first; i < end; i++) index->order[kept++] = places[i].at;
    }
    index->first[index->n_ids] = kept;
}

/* Shuffles the places by Fisher and Yates. */
static void mix(int64_t *order, int64_t count, uint64_t seed)
{
    const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_IDS, .step = 1};
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t u = cpl_rng_u32(&key, (uint64_t)i);
        int64_t to = (int64_t)(u * (uint64_t)(i + 1) >> 32), moved = order[i];
        order[i]  = order[to];
        order[to] = moved;
    }
}

cpl_status cpl_routing_index_init(cpl_routing_index *index, cpl_pool *pool, const int32_t *ids,
                                  int64_t count, uint64_t seed)
{
    const size_t n = (size_t)count, groups = n / CPL_ROUTING_SEEN + 2;
    place *places = cpl_alloc(n * sizeof *places + 1);
    if (!places) return CPL_ERR_MEMORY;
    *index = (cpl_routing_index){.first = cpl_pool_take(pool, groups * sizeof *index->first),
                                 .order = cpl_pool_take(pool, n * sizeof *index->order),
                                 .mixed = cpl_pool_take(pool, n * sizeof *index->mixed)};
    for (int64_t i = 0; i < count; i++) places[i] = (place){ids[i], i};
    if (!pool->failed) {
        qsort(places, n, sizeof *places, by_id);
        keep_groups(index, places, count);
        memcpy(index->mixed, index->order,
               (size_t)index->first[index->n_ids] * sizeof *index->mixed);
        mix(index->mixed, index->first[index->n_ids], seed);
    }
    cpl_free(places);
    return cpl_pool_status(pool);
}

/* ---- shares ---- */

/* Returns the largest share of these places that have one expert. */
static double largest_share(int64_t *counts, const cpl_routing_record *r, int64_t layer,
                            const int64_t *places, int64_t count)
{
    int64_t most = 0;
    memset(counts, 0, (size_t)r->n_experts * sizeof *counts);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < r->top_k; k++)
            counts[cpl_routing_record_at(r, layer, places[i])[k]]++;
    for (int64_t e = 0; e < r->n_experts; e++) most = counts[e] > most ? counts[e] : most;
    return (double)most / (double)count;
}

cpl_status cpl_routing_vocabulary_of(cpl_routing_vocabulary *v, const cpl_routing_record *r,
                                     int64_t layer, const cpl_routing_index *index)
{
    int64_t *counts = cpl_alloc((size_t)r->n_experts * sizeof *counts);
    if (!counts) return CPL_ERR_MEMORY;
    memset(v, 0, sizeof *v);
    v->n_ids = index->n_ids;
    for (int64_t i = 0; i < index->n_ids; i++) {
        int64_t first = index->first[i], count = index->first[i + 1] - first;
        v->mean += largest_share(counts, r, layer, index->order + first, count);
        v->shuffled += largest_share(counts, r, layer, index->mixed + first, count);
    }
    v->mean     = v->n_ids ? v->mean / (double)v->n_ids : (double)NAN;
    v->shuffled = v->n_ids ? v->shuffled / (double)v->n_ids : (double)NAN;
    cpl_free(counts);
    return CPL_OK;
}
