/* group_case.h - every collective of a group on numbers that depend on rank and place, checked
 * against plain sums. test_group.c runs it on threads, group_ranks.c on MPI. */
#ifndef CPL_TESTS_GROUP_CASE_H
#define CPL_TESTS_GROUP_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "parallel/group.h"

/* Returns a number whose sums depend on their order. */
static float case_number(int rank, int64_t i)
{
    const uint64_t bits[2] = {(uint64_t)rank, (uint64_t)i};
    const uint64_t h       = XXH3_64bits(bits, sizeof bits);
    return (float)((double)(h >> 11) / 9007199254740992.0 - 0.5) * (float)(1 << (h & 15));
}

/* Returns how many numbers rank r has: odd, different, and 0 for one rank. */
static int64_t case_count(int r)
{
    return r == 1 ? 0 : 1000 * (r % 5) + 7 * r + 3;
}

/* The first fault, or "" without a fault. */
typedef struct case_result {
    char wrong[200];
    uint64_t hash; /* hash of all floating-point sums, equal on all ranks */
} case_result;

#define CASE_EXPECT(truth, ...)                                                                    \
    do {                                                                                           \
        if (!(truth) && !out->wrong[0]) snprintf(out->wrong, sizeof out->wrong, __VA_ARGS__);      \
    } while (0)

static void case_hash(case_result *out, const void *bytes, size_t count)
{
    out->hash = XXH3_64bits_withSeed(bytes, count, out->hash);
}

static void case_gather(cpl_group *g, case_result *out)
{
    int64_t *bytes = calloc((size_t)g->size, sizeof *bytes), whole = 0;
    for (int r = 0; r < g->size; r++) whole += bytes[r] = 4 * case_count(r);
    float *all = calloc((size_t)whole + 4, 1), *own = calloc((size_t)bytes[g->rank] + 4, 1);
    for (int64_t i = 0; i < case_count(g->rank); i++) own[i] = case_number(g->rank, i);
    cpl_group_all_gather(g, all, own, bytes);
    const float *at = all;
    for (int r = 0; r < g->size; r++)
        for (int64_t i = 0; i < case_count(r); i++, at++)
            CASE_EXPECT(*at == case_number(r, i), "gather: number %d of rank %d", (int)i, r);
    free(all);
    free(own);
    free(bytes);
}

/* Sends (a + 2 b) % 4 units of 12 bytes from rank a to rank b. */
static void case_exchange(cpl_group *g, case_result *out)
{
    const int n = g->size, me = g->rank;
    int64_t *to = calloc((size_t)(2 * n), sizeof *to), *from = to + n, sent = 0, received = 0;
    for (int r = 0; r < n; r++) {
        sent += to[r]       = (me + 2 * r) % 4;
        received += from[r] = (r + 2 * me) % 4;
    }
    int32_t *a = calloc((size_t)(3 * sent + 1), 4), *b = calloc((size_t)(3 * received + 1), 4);
    int64_t at = 0;
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < 3 * to[r]; i++) a[at++] = (int32_t)(100000 * me + 100 * r + i);
    cpl_group_all_to_all(g, b, from, a, to, 12);
    at = 0;
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < 3 * from[r]; i++, at++)
            CASE_EXPECT(b[at] == (int32_t)(100000 * r + 100 * me + i), "exchange from rank %d", r);
    free(a);
    free(b);
    free(to);
}

/* All ranks send five numbers to the last rank, which sends them back. Empty pieces lie where the
 * other buffer begins. */
static void case_one_way(cpl_group *g, case_result *out)
{
    enum { EACH = 5 };
    const int n = g->size, last = n - 1, me = g->rank;
    int64_t *to = calloc((size_t)(2 * n), sizeof *to), *from = to + n;
    int32_t *own = calloc(EACH, sizeof *own), *all = calloc((size_t)(EACH * n), sizeof *all);
    for (int i = 0; i < EACH; i++) own[i] = 10 * me + i;
    to[last] = EACH;
    for (int r = 0; r < n; r++) from[r] = me == last ? EACH : 0;
    cpl_group_all_to_all(g, me == last ? all : own, from, own, to, (int64_t)sizeof *own);
    for (int i = 0; me == last && i < EACH * n; i++)
        CASE_EXPECT(all[i] == 10 * (i / EACH) + i % EACH, "one way: number %d", i);
    memset(own, 0, EACH * sizeof *own);
    cpl_group_all_to_all(g, own, to, me == last ? all : own, from, (int64_t)sizeof *own);
    for (int i = 0; i < EACH; i++) CASE_EXPECT(own[i] == 10 * me + i, "the way back: number %d", i);
    free(own);
    free(all);
    free(to);
}

/* Starts three sums at once and finishes them in another order. */
static void case_sum_parts(cpl_group *g, case_result *out)
{
    enum { AT_ONCE = 3 };
    const int n    = g->size;
    int64_t *count = calloc((size_t)n, sizeof *count), whole = 0, begin = 0;
    for (int r = 0; r < n; r++) {
        if (r == g->rank) begin = whole;
        whole += count[r] = case_count(r);
    }
    const int64_t own = count[g->rank];
    cpl_pending p[AT_ONCE];
    float *in[AT_ONCE], *parts[AT_ONCE];
    for (int k = 0; k < AT_ONCE; k++) {
        in[k]    = calloc((size_t)whole + 1, 4);
        parts[k] = calloc((size_t)(n * own) + 1, 4);
        for (int64_t i = 0; i < whole; i++) in[k][i] = case_number(g->rank + 1000 * k, i);
        cpl_group_start_sum_parts(&p[k], g, in[k] + begin, in[k], count, parts[k]);
    }
    static const int order[AT_ONCE] = {1, 2, 0};
    for (int i = 0; i < AT_ONCE; i++) cpl_group_finish(&p[order[i]]);
    cpl_group_finish(&p[0]); /* a second finish has no effect */
    for (int k = 0; k < AT_ONCE; k++) {
        for (int64_t i = begin; i < begin + own; i++) {
            volatile float sum = case_number(1000 * k, i);
            for (int r = 1; r < n; r++) sum += case_number(r + 1000 * k, i);
            CASE_EXPECT(in[k][i] == sum, "sum of parts: number %d", (int)i);
        }
        case_hash(out, in[k] + begin, (size_t)own * 4);
        free(in[k]);
        free(parts[k]);
    }
    free(count);
}

static void case_sums(cpl_group *g, case_result *out)
{
    static const int64_t sizes[] = {0, 1, 5, 100, 5000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        double *x       = calloc((size_t)n + 1, 8);
        float *y        = calloc((size_t)n + 1, 4);
        int64_t *z      = calloc((size_t)n + 1, 8);
        int32_t *k      = calloc((size_t)n + 1, 4);
        for (int64_t i = 0; i < n; i++) {
            x[i] = (double)case_number(g->rank, i) / 3;
            y[i] = case_number(g->rank, i);
            z[i] = (g->rank + 1) * (i - 7);
            k[i] = (int32_t)z[i];
        }
        cpl_group_sum_f64(g, x, n);
        cpl_group_sum_f32(g, y, n);
        cpl_group_sum_i64(g, z, n);
        cpl_group_sum_i32(g, k, n);
        for (int64_t i = 0; i < n; i++) {
            volatile double sum = (double)case_number(0, i) / 3;
            volatile float sum4 = case_number(0, i);
            for (int r = 1; r < g->size; r++) {
                sum += (double)case_number(r, i) / 3;
                sum4 += case_number(r, i);
            }
            CASE_EXPECT(x[i] == sum, "sum of doubles %d of %d", (int)i, (int)n);
            CASE_EXPECT(y[i] == sum4, "sum of floats %d of %d", (int)i, (int)n);
            CASE_EXPECT(z[i] == (int64_t)g->size * (g->size + 1) / 2 * (i - 7), "sum of integers");
            CASE_EXPECT(k[i] == (int32_t)z[i], "sum of small integers");
        }
        case_hash(out, x, (size_t)n * 8);
        case_hash(out, y, (size_t)n * 4);
        free(x);
        free(y);
        free(z);
        free(k);
    }
}

/* Returns the sum of number i over `size` ranks in f32, from the last rank to the first. The three
 * functions below add in other ways: from rank `from` around, by neighbouring pairs, and in f64
 * with rounding at the end. */
static float case_backward(int size, int64_t i)
{
    volatile float sum = case_number(size - 1, i);
    for (int r = size - 2; r >= 0; r--) sum += case_number(r, i);
    return sum;
}

static float case_around(int size, int from, int64_t i)
{
    volatile float sum = case_number(from, i);
    for (int r = 1; r < size; r++) sum += case_number((from + r) % size, i);
    return sum;
}

static float case_in_pairs(int first, int size, int64_t i)
{
    if (size == 1) return case_number(first, i);
    const int half     = (size + 1) / 2;
    volatile float sum = case_in_pairs(first, half, i);
    sum += case_in_pairs(first + half, size - half, i);
    return sum;
}

static float case_in_double(int size, int64_t i)
{
    double sum = 0;
    for (int r = 0; r < size; r++) sum += (double)case_number(r, i);
    return (float)sum;
}

/* Asserts that every other order changes a sum of these numbers. */
static void case_orders_differ(int size, int64_t count, case_result *out)
{
    int backward = 0, pairs = 0, rounded = 0;
    for (int64_t i = 0; i < count; i++) {
        const float right = case_around(size, 0, i);
        backward += case_backward(size, i) != right;
        pairs += case_in_pairs(0, size, i) != right;
        rounded += case_in_double(size, i) != right;
    }
    CASE_EXPECT(size < 3 || (backward && rounded), "the order does not show");
    CASE_EXPECT(size < 4 || pairs, "an order in pairs does not show");
    for (int from = 2; from < size; from++) {
        int differ = 0;
        for (int64_t i = 0; i < count; i++)
            differ += case_around(size, from, i) != case_around(size, 0, i);
        CASE_EXPECT(differ, "an order that begins at rank %d does not show", from);
    }
}

/* Asserts that all reductions of f32 have the bits of the order of ranks. */
static void case_order(cpl_group *g, case_result *out)
{
    enum { EACH = 16, AT_ONCE = EACH };
    const int n         = g->size;
    const int64_t count = (int64_t)EACH * n;
    cpl_pending p;
    float *x = calloc((size_t)count, 4), *parts = calloc((size_t)count, 4), own[EACH],
          at_once[AT_ONCE];
    int64_t *counts = calloc((size_t)n, sizeof *counts);
    for (int64_t i = 0; i < count; i++) x[i] = case_number(g->rank, i);
    memcpy(at_once, x, sizeof at_once);
    for (int r = 0; r < n; r++) counts[r] = EACH;
    cpl_group_start_sum_parts(&p, g, own, x, counts, parts);
    cpl_group_finish(&p);
    cpl_group_sum_f32(g, x, count);
    cpl_group_sum_f32(g, at_once, AT_ONCE);
    for (int64_t i = 0; i < count; i++) {
        const float right = case_around(n, 0, i);
        CASE_EXPECT(x[i] == right, "order of a sum: number %d", (int)i);
        CASE_EXPECT(i >= AT_ONCE || at_once[i] == right, "order of a short sum: number %d", (int)i);
        CASE_EXPECT(i / EACH != g->rank || own[i % EACH] == right, "order of a sum of parts");
    }
    if (g->rank == 0) case_orders_differ(n, EACH, out);
    free(x);
    free(parts);
    free(counts);
}

static void case_agree(cpl_group *g, case_result *out)
{
    char sentence[64];
    cpl_status all = cpl_group_agree(g, CPL_OK);
    CASE_EXPECT(all == CPL_OK, "agreement");
    const bool fails = g->size > 1 && g->rank > 0; /* if several ranks fail, the lowest is named */
    all = cpl_group_agree(g, fails ? CPL_FAIL(CPL_ERR_INPUT, "a fault of %d", g->rank) : CPL_OK);
    snprintf(sentence, sizeof sentence, "%sa fault of 1", g->rank == 1 ? "" : "rank 1: ");
    CASE_EXPECT(all == (g->size > 1 ? CPL_ERR_INPUT : CPL_OK), "agreement on a failure");
    CASE_EXPECT(g->size == 1 || strcmp(cpl_last_error(), sentence) == 0, "sentence: %s",
                cpl_last_error());
    CASE_EXPECT(cpl_group_status(g) == CPL_OK, "a failure that is agreed is none of the ranks");
}

/* Asserts the bytes that group.h states. */
static void case_traffic(cpl_group *g, case_result *out)
{
    const int64_t others = g->size - 1;
    if (g->size == 1) return;
    int64_t *bytes = calloc((size_t)g->size, sizeof *bytes);
    double sum[3]  = {1, 2, 3};
    char *all      = calloc((size_t)g->size, 10);
    for (int r = 0; r < g->size; r++) bytes[r] = 10;
    memset(g->ranks->traffic, 0, sizeof g->ranks->traffic);
    cpl_group_all_gather(g, all, "123456789", bytes);
    cpl_group_sum_f64(g, sum, 3);
    cpl_group_broadcast(g, sum, sizeof sum, g->size - 1);
    const cpl_traffic *t = g->ranks->traffic;
    CASE_EXPECT(t[CPL_ALL_GATHER].bytes == 10 * others && t[CPL_ALL_GATHER].calls == 1, "traffic");
    CASE_EXPECT(t[CPL_SUM].bytes == 24 * others, "traffic of a sum of three");
    for (int64_t n = 1; n < 3000; n = 3 * n + 1) { /* the formula of a sum, short and long arrays */
        float *x             = calloc((size_t)n, sizeof *x);
        const int64_t before = t[CPL_SUM].bytes;
        cpl_group_sum_f32(g, x, n);
        CASE_EXPECT(t[CPL_SUM].bytes - before == cpl_group_sum_bytes(g->size, g->rank, n, 4),
                    "traffic of a sum of %d", (int)n);
        free(x);
    }
    CASE_EXPECT(t[CPL_BROADCAST].bytes == (g->rank == others ? 24 * others : 0), "of a broadcast");
    CASE_EXPECT(strcmp(all + 10 * (g->size - 1), "123456789") == 0, "gathered text");
    free(all);
    free(bytes);
}

static void case_all(cpl_group *g, case_result *out)
{
    case_gather(g, out);
    case_exchange(g, out);
    case_one_way(g, out);
    case_sum_parts(g, out);
    case_sums(g, out);
    case_order(g, out);
    case_agree(g, out);
    case_traffic(g, out);
}

/* Runs all cases in the whole group, then in two groups of it at once with a third across them. */
static void case_run(cpl_group *g, case_result *out)
{
    cpl_group half = {0}, every_third = {0};
    case_all(g, out);
    CASE_EXPECT(cpl_group_split(&half, g, g->rank < g->size / 2) == CPL_OK, "split");
    CASE_EXPECT(cpl_group_split(&every_third, g, g->rank % 3) == CPL_OK, "split");
    if (!out->wrong[0]) {
        case_all(&half, out);
        case_all(&every_third, out);
    }
    cpl_group_close(&every_third);
    cpl_group_close(&half);
    double hash = (double)(out->hash >> 16); /* the hashes of all ranks, in one number */
    cpl_group_sum_f64(g, &hash, 1);
    memcpy(&out->hash, &hash, sizeof hash);
}

#endif
