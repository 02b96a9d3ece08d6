/* layers.c - see layers.h. */
#include "layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

void cover_ok(cpl_status status)
{
    if (status == CPL_OK) return;
    fprintf(stderr, "%s\n", cpl_last_error());
    exit(1);
}

void *cover_room(size_t bytes)
{
    void *memory = cpl_alloc(bytes);
    if (!memory) cover_ok(CPL_FAIL(CPL_ERR_MEMORY, "out of memory"));
    memset(memory, 0, bytes);
    return memory;
}

/* ---- a layer in memory ---- */

static cover_layer new_layer(int64_t n, int64_t d, int64_t D)
{
    return (cover_layer){.n        = n,
                         .d        = d,
                         .D        = D,
                         .squares  = cover_room((size_t)(n * (D + 1) * n) * sizeof(double)),
                         .norms    = cover_room((size_t)(n * (D + 1)) * sizeof(double)),
                         .row_norm = cover_room((size_t)n * sizeof(double)),
                         .R        = cover_room((size_t)(n * d) * sizeof(float)),
                         .turned   = cover_room((size_t)(n * d) * sizeof(float)),
                         .dots     = cover_room((size_t)n * sizeof(float))};
}

void cover_layer_free(cover_layer *l)
{
    cpl_free(l->squares);
    cpl_free(l->norms);
    cpl_free(l->row_norm);
    cpl_free(l->R);
    cpl_free(l->turned);
    cpl_free(l->dots);
}

/* What depends on R alone. */
static void finish_router(cover_layer *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        double sum = 0;
        for (int64_t a = 0; a < l->d; a++)
            sum += (double)l->R[i * l->d + a] * (double)l->R[i * l->d + a];
        l->row_norm[i] = sqrt(sum);
        for (int64_t a = 0; a < l->d; a++) l->turned[a * l->n + i] = l->R[i * l->d + a];
    }
}

/* Row c of expert j. */
static void add_row(cover_layer *l, int64_t j, int64_t c, const float *row)
{
    const double *before = l->squares + (j * (l->D + 1) + c) * l->n;
    double *after = l->squares + (j * (l->D + 1) + c + 1) * l->n, norm = 0;
    for (int64_t a = 0; a < l->d; a++) norm += (double)row[a] * (double)row[a];
    l->norms[j * (l->D + 1) + c + 1] = l->norms[j * (l->D + 1) + c] + norm;
    memset(l->dots, 0, (size_t)l->n * sizeof *l->dots);
    for (int64_t a = 0; a < l->d; a++)
        for (int64_t i = 0; i < l->n; i++) l->dots[i] += l->turned[a * l->n + i] * row[a];
    for (int64_t i = 0; i < l->n; i++)
        after[i] = before[i] + (double)l->dots[i] * (double)l->dots[i];
}

/* ---- what its figures are ---- */

cover_truth cover_truth_of(const cover_layer *l)
{
    const int64_t n  = l->n;
    const double one = 1;
    cover_truth t    = {.M = cover_room((size_t)(n * n) * sizeof(float))};
    double *norm     = cover_room((size_t)n * sizeof *norm);
    for (int64_t j = 0; j < n; j++) {
        norm[j] = sqrt(l->norms[j * (l->D + 1) + l->D]);
        t.norm += norm[j] / (double)n;
        for (int64_t i = 0; i < n; i++) {
            const double m = sqrt(l->squares[(j * (l->D + 1) + l->D) * n + i]);
            t.M[i * n + j] = (float)m;
            t.m[i != j] += i == j ? m / (double)n : m / (double)(n * (n - 1));
        }
    }
    cover_ok(cpl_null_model_of(&t.chance, NULL, t.M, l->row_norm, norm, n, &one, 1, 1, 0));
    cover_ok(cpl_null_model_ratios_of(&t.ratios, t.M, n));
    t.erc      = cpl_null_model_erc(t.M, n, 1);
    t.relative = t.erc / t.m[0];
    cpl_free(norm);
    return t;
}

/* ---- a sample of it ---- */

cpl_row_sums cover_layer_draw(const cover_layer *l, const cpl_row_plan *plan, uint64_t seed)
{
    const int64_t n = l->n, b = plan->n_read;
    cpl_row_sums s = {n, b, plan->n_blocks, cover_room((size_t)(n * b * n) * sizeof(double)),
                      cover_room((size_t)(n * b) * sizeof(double))};
    for (int64_t j = 0; j < n; j++) {
        int64_t chosen[CPL_ROW_BLOCKS], rows;
        cpl_row_plan_choose(chosen, plan, seed, 0, 0, j);
        for (int64_t k = 0; k < b; k++) {
            const int64_t first = cpl_row_plan_block(plan, chosen[k], &rows) + j * (l->D + 1);
            s.norms[j * b + k]  = l->norms[first + rows] - l->norms[first];
            for (int64_t i = 0; i < n; i++)
                s.squares[(j * b + k) * n + i] =
                    l->squares[(first + rows) * n + i] - l->squares[first * n + i];
        }
    }
    return s;
}

/* ---- random layers ---- */

/* Standard normal numbers, by Box and Muller: both of every pair, and two pairs of every block, which
 * is what takes the time here. */
typedef struct normals {
    cpl_rng_key key;
    uint64_t block;
    int left;
    float four[4];
} normals;

static float normal(normals *g)
{
    uint32_t random[4];
    if (g->left) return g->four[--g->left];
    cpl_rng_block(&g->key, g->block++, random);
    for (int k = 0; k < 4; k += 2) {
        const float radius = sqrtf(-2 * logf(((float)(random[k] >> 8) + 1) * 0x1p-24F));
        const float angle  = 6.28318531F * (float)(random[k + 1] >> 8) * 0x1p-24F;
        g->four[k]         = radius * cosf(angle);
        g->four[k + 1]     = radius * sinf(angle);
    }
    g->left = 3;
    return g->four[3];
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

cover_layer cover_layer_random(const cover_kind *k, uint64_t seed)
{
    normals g     = {.key = {.seed = seed, .stream = CPL_STREAM_TEST}};
    cover_layer l = new_layer(k->n, k->d, k->D);
    float *row    = cover_room((size_t)k->d * sizeof *row);
    float *common = cover_room((size_t)k->d * sizeof *common);
    double *scale = cover_room((size_t)k->D * sizeof *scale);
    for (int64_t a = 0; a < k->d; a++) common[a] = (float)k->common * normal(&g);
    for (int64_t i = 0; i < k->n * k->d; i++) l.R[i] = normal(&g) + common[i % k->d];
    finish_router(&l);
    for (int64_t j = 0; j < k->n; j++) {
        for (int64_t c = 0; c < k->D; c++) scale[c] = exp(k->tail * (double)normal(&g));
        if (k->sorted) qsort(scale, (size_t)k->D, sizeof *scale, falling);
        for (int64_t c = 0; c < k->D; c++) {
            const float own = (float)(k->own / l.row_norm[j]) * normal(&g);
            for (int64_t a = 0; a < k->d; a++)
                row[a] = (float)scale[c] * (normal(&g) + own * l.R[j * k->d + a]);
            add_row(&l, j, c, row);
        }
    }
    cpl_free(row);
    cpl_free(common);
    cpl_free(scale);
    return l;
}

/* ---- layers of checkpoints ---- */

cover_layer cover_layer_read(const cpl_moe_layer *at)
{
    cover_layer l = new_layer(at->n, at->d, at->D);
    float *row    = cover_room((size_t)at->d * sizeof *row);
    cpl_gate gate = {0};
    cover_ok(cpl_router_read((cpl_matrix){l.R, at->n, at->d}, at));
    finish_router(&l);
    for (int64_t j = 0; j < at->n; j++) {
        cover_ok(cpl_gate_load(&gate, at, j));
        for (int64_t c = 0; c < at->D; c++) {
            cpl_gate_rows((cpl_matrix){row, 1, at->d}, &gate, c);
            add_row(&l, j, c, row);
        }
    }
    cpl_gate_free(&gate);
    cpl_free(row);
    return l;
}
