/* vocabulary.c - see vocabulary.h */
#include "inspect/routing/vocabulary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

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

/* Keeps the groups that are large enough. */
static void gather(cpl_routing_index *index, const place *places, int64_t count)
{
    int64_t kept = 0;
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && places[end].id == places[first].id;) end++;
        if (end - first < CPL_ROUTING_SEEN) continue;
        index->id[index->n_ids]      = places[first].id;
        index->first[index->n_ids++] = kept;
        for (int64_t i = first; i < end; i++) index->order[kept++] = places[i].at;
    }
    index->first[index->n_ids] = kept;
}

/* Fisher-Yates. */
static void mix(int64_t *order, int64_t count, uint64_t seed)
{
    const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_HALVES, .step = 1};
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
    *index = (cpl_routing_index){.id    = cpl_pool_take(pool, groups * sizeof *index->id),
                                 .first = cpl_pool_take(pool, groups * sizeof *index->first),
                                 .order = cpl_pool_take(pool, n * sizeof *index->order),
                                 .mixed = cpl_pool_take(pool, n * sizeof *index->mixed)};
    for (int64_t i = 0; i < count; i++) places[i] = (place){ids[i], i};
    if (!pool->failed) {
        qsort(places, n, sizeof *places, by_id);
        gather(index, places, count);
        memcpy(index->mixed, index->order,
               (size_t)index->first[index->n_ids] * sizeof *index->mixed);
        mix(index->mixed, index->first[index->n_ids], seed);
    }
    cpl_free(places);
    return cpl_pool_status(pool);
}

/* ---- shares ---- */

/* The expert that most of these places have, and for how many. */
static int64_t favourite(int32_t *expert, int64_t *counts, const cpl_routing_record *r,
                         int64_t layer, const int64_t *places, int64_t count)
{
    memset(counts, 0, (size_t)r->n_experts * sizeof *counts);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < r->top_k; k++)
            counts[cpl_routing_record_at(r, layer, places[i])[k]]++;
    *expert = 0;
    for (int64_t e = 1; e < r->n_experts; e++)
        if (counts[e] > counts[*expert]) *expert = (int32_t)e;
    return counts[*expert];
}

static bool goes_before(const cpl_routing_example *a, const cpl_routing_example *b)
{
    if (a->share != b->share) return a->share > b->share;
    return a->count > b->count;
}

static void keep_example(cpl_routing_vocabulary *v, cpl_routing_example example)
{
    int at = v->n_examples;
    while (at > 0 && goes_before(&example, &v->example[at - 1])) at--;
    if (at == CPL_ROUTING_EXAMPLES) return;
    if (v->n_examples < CPL_ROUTING_EXAMPLES) v->n_examples++;
    memmove(v->example + at + 1, v->example + at,
            (size_t)(v->n_examples - 1 - at) * sizeof *v->example);
    v->example[at] = example;
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
        cpl_routing_example x = {.id = index->id[i], .count = count};
        int32_t any;
        x.share = (double)favourite(&x.expert, counts, r, layer, index->order + first, count) /
                  (double)count;
        v->mean += x.share;
        v->shuffled +=
            (double)favourite(&any, counts, r, layer, index->mixed + first, count) / (double)count;
        keep_example(v, x);
    }
    v->mean     = v->n_ids ? v->mean / (double)v->n_ids : (double)NAN;
    v->shuffled = v->n_ids ? v->shuffled / (double)v->n_ids : (double)NAN;
    cpl_free(counts);
    return CPL_OK;
}
