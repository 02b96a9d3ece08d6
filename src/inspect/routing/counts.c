/* counts.c - see counts.h */
#include "inspect/routing/counts.h"

#include <math.h>
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

/* Mean of the distances that there are. */
typedef struct mean {
    double sum;
    int64_t count;
} mean;

static void add(mean *m, double value)
{
    if (isnan(value)) return;
    m->sum += value;
    m->count++;
}

static double mean_of(mean m)
{
    return m.count ? m.sum / (double)m.count : (double)NAN;
}

/* Sets halves [sources,2,n]. */
static void count_halves(int64_t *halves, const cpl_routing_record *r, int64_t layer,
                         const cpl_routing_tokens *tokens, uint64_t seed)
{
    const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_HALVES};
    const int64_t n       = r->n_experts;
    memset(halves, 0, (size_t)(2 * tokens->n_sources * n) * sizeof *halves);
    for (int64_t t = 0; t < r->n_tokens; t++) {
        int64_t half  = cpl_rng_u32(&key, (uint64_t)t) >> 31;
        int64_t *mine = halves + (2 * tokens->source[t] + half) * n;
        for (int64_t k = 0; k < r->top_k; k++) mine[cpl_routing_record_at(r, layer, t)[k]]++;
    }
}

cpl_status cpl_routing_count_domains(cpl_routing_domains *domains, int64_t *by_source,
                                     const cpl_routing_record *r, int64_t layer,
                                     const cpl_routing_tokens *tokens, uint64_t seed)
{
    const int64_t n = r->n_experts, sources = tokens->n_sources;
    mean between = {0}, within = {0};
    int64_t *halves = cpl_alloc((size_t)(2 * sources * n) * sizeof *halves);
    if (!halves) return CPL_ERR_MEMORY;
    count_halves(halves, r, layer, tokens, seed);
    for (int64_t s = 0; s < sources; s++) {
        const int64_t *a = halves + 2 * s * n, *b = a + n;
        for (int64_t e = 0; e < n; e++) by_source[s * n + e] = a[e] + b[e];
        add(&within, cpl_routing_distance(a, b, n));
        for (int64_t other = 0; other < s; other++)
            add(&between, cpl_routing_distance(by_source + s * n, by_source + other * n, n));
    }
    cpl_free(halves);
    *domains = (cpl_routing_domains){mean_of(between), mean_of(within)};
    return CPL_OK;
}
