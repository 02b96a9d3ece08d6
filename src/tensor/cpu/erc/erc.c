/* erc.c - noise bound, noise, proxies and scratch of the coupling loss.
 *
 * Room:  tensor/cpu/erc. model/erc/reference.c has the plain loops: `nearest` corresponds to
 *        cpl_erc_reference_epsilon, `prepare_row` to the line R~ = R delta of
 *        cpl_erc_reference_forward. */
#include <float.h>
#include <math.h>

#include "tensor/cpu/erc/scratch.h"
#include "tensor/cpu/share.h"
#include "tensor/numbers.h"

/* Returns the sum of squared differences: exactly 0 for equal rows, without cancellation. */
static double squared_distance(const float *a, const float *b, int64_t d)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < d; k++) {
        double difference = (double)a[k] - (double)b[k];
        sum += difference * difference;
    }
    return sum;
}

static double squared_norm(const float *a, int64_t d)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < d; k++) sum += (double)a[k] * (double)a[k];
    return sum;
}

/* Returns the threads to use if `work` numbers are read or written, by the rule of cpl_threads. */
static int threads_for(int64_t work, int n_threads)
{
    return work < CPL_SHARE_LEAST ? 1 : n_threads;
}

void CPL_ISA_NAME(cpl_cpu_host_erc_nearest)(float *eps, cpl_matrix R, int n_threads)
{
    const int64_t n = R.rows, d = R.cols;
    const float *rows = R.at;
#pragma omp parallel for num_threads(threads_for(n *n *d, n_threads)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        double norm = sqrt(squared_norm(rows + i * d, d)), least = INFINITY;
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            double distance = squared_distance(rows + i * d, rows + j * d, d);
            if (distance < least || isnan(distance)) least = distance; /* keeps NaN */
        }
        double bound = n == 1 || norm == 0 ? 0 : sqrt(least) / (2 * norm);
        eps[i]       = (float)(bound > FLT_MAX ? FLT_MAX : bound);
    }
}

static void noise_row(float *delta, int64_t d, float eps, const cpl_rng_key *key, uint64_t first)
{
    uint32_t four[4] = {0};
    for (int64_t k = 0; k < d; k++) {
        uint64_t index = first + (uint64_t)k;
        if (k == 0 || index % 4 == 0) cpl_rng_block(key, index / 4, four);
        float uniform = (float)(four[index % 4] >> 8) * 0x1p-24f;
        delta[k]      = 1.0f + eps * (2.0f * uniform - 1.0f);
    }
}

void CPL_ISA_NAME(cpl_cpu_host_erc_noise)(cpl_matrix delta, const float *eps, cpl_rng_key key,
                                          uint64_t draw, int n_threads)
{
    const int64_t n = delta.rows, d = delta.cols;
#pragma omp parallel for num_threads(threads_for(16 * n * d, n_threads)) schedule(static)
    for (int64_t i = 0; i < n; i++)
        noise_row(delta.at + i * d, d, eps[i], &key,
                  (draw * (uint64_t)n + (uint64_t)i) * (uint64_t)d);
}

static void prepare_row(const cpl_erc_workspace *s, int64_t i)
{
    const cpl_erc_host_job *job = s->job;
    const float *R = job->R + i * job->d, *delta = job->delta ? job->delta + i * job->d : NULL;
    float *row = s->rows + i * s->d_pad;
    for (int64_t k = 0; k < job->d; k++) row[k] = delta ? R[k] * delta[k] : R[k];
    for (int64_t k = job->d; k < s->d_pad; k++) row[k] = 0;
    if (s->rounded)
        for (int64_t k = 0; k < job->d; k++) row[k] = cpl_bf16_to_f32(cpl_bf16_from_f32(row[k]));
    for (int64_t k = 0; s->pairs && k < s->d_pad; k++)
        s->rows_bf16[i * s->d_pad + k] = cpl_bf16_from_f32(row[k]);
}

/* Sets p->wide, panels [count, d_pad], to the rows `which` (NULL: the first `count` rows). */
static void as_rows(const cpl_proxies *p, const float *rows, const int32_t *which, int64_t d_pad)
{
    for (int64_t l = 0; l < d_pad; l += PANEL) {
        const int64_t width = cpl_panel_width(d_pad, l);
        for (int64_t i = 0; i < p->count; i++)
            memcpy(p->wide + l * p->count + i * width, rows + (which ? which[i] : i) * d_pad + l,
                   (size_t)width * sizeof(float));
    }
}

/* Sets p->deep_pairs to p->deep as pairs of bf16: numbers 2k and 2k + 1 of a proxy side by side. */
static void as_pairs(const cpl_proxies *p, int64_t d)
{
    for (int64_t l = 0; l < p->pad; l += PANEL) {
        const int64_t width = cpl_panel_width(p->pad, l);
        const float *from   = p->deep + l * d;
        cpl_panel_pair *to  = p->deep_pairs + l * (d / 2);
        for (int64_t k = 0; k < d / 2; k++)
            for (int64_t i = 0; i < width; i++)
                to[k * width + i] =
                    (cpl_panel_pair){cpl_bf16_from_f32(from[2 * k * width + i]),
                                     cpl_bf16_from_f32(from[(2 * k + 1) * width + i])};
    }
}

void cpl_erc_prepare(const cpl_erc_workspace *s)
{
    const float *first = s->rows + s->job->i0 * s->d_pad;
#pragma omp parallel for num_threads(s->n_threads) schedule(static)
    for (int64_t i = 0; i < s->job->n; i++) prepare_row(s, i);
    cpl_panel_columns(s->part.deep, first, NULL, s->part.count, s->part.pad, s->job->d, s->d_pad);
    as_rows(&s->part, first, NULL, s->d_pad);
    if (s->pairs) as_pairs(&s->part, s->job->d);
}

cpl_proxies cpl_erc_single(const cpl_erc_workspace *s, int64_t i)
{
    float *row = s->rows + i * s->d_pad;
    cpl_panel_pair *pairs =
        s->pairs ? (cpl_panel_pair *)(void *)(s->rows_bf16 + i * s->d_pad) : NULL;
    return (cpl_proxies){1, 1, row, row, pairs};
}

cpl_proxies cpl_erc_chosen(const cpl_erc_workspace *s, cpl_erc_thread *t, int64_t count)
{
    const float *first = s->rows + s->job->i0 * s->d_pad;
    cpl_proxies p      = {count, vector_round_up(count), t->deep, t->wide, t->deep_pairs};
    if (count == 1) {
        p = cpl_erc_single(s, t->row[0]);
    } else {
        cpl_panel_columns(p.deep, first, t->active, count, p.pad, s->job->d, s->d_pad);
        as_rows(&p, first, t->active, s->d_pad);
        if (s->pairs) as_pairs(&p, s->job->d);
    }
    for (int64_t a = 0; a < count; a++) t->active[a] = (int32_t)a;
    return p;
}

/* Takes a b words of four bytes, for floats or pairs of bf16, or returns NULL if not wanted. */
static void *take_words(cpl_arena *arena, int64_t a, int64_t b, bool wanted)
{
    return wanted ? cpl_arena_take(arena, (size_t)(a * b) * sizeof(float)) : NULL;
}

static void take_proxies(cpl_proxies *p, cpl_arena *arena, int64_t count, int64_t d, int64_t d_pad,
                         bool as_bf16)
{
    p->count      = count;
    p->pad        = vector_round_up(count);
    p->deep       = take_words(arena, d, p->pad, true);
    p->wide       = take_words(arena, count, d_pad, true);
    p->deep_pairs = take_words(arena, d / 2, p->pad, as_bf16);
}

static void take_acts(cpl_erc_acts *acts, cpl_arena *arena, const cpl_erc_host_job *job,
                      int64_t pad)
{
    const cpl_erc_activation a = job->activation;
    acts->z                    = take_words(arena, job->D, pad, cpl_erc_has_gate(a));
    acts->u                    = take_words(arena, job->D, pad, cpl_erc_has_up(a));
    acts->h                    = take_words(arena, job->D, pad, cpl_erc_has_hidden(a));
    acts->o                    = take_words(arena, job->d, pad, a == CPL_ERC_OUTPUT);
    acts->squares              = cpl_arena_take(arena, (size_t)pad * sizeof(double));
}

static void take_pairs(cpl_erc_thread *t, cpl_arena *arena, const cpl_erc_workspace *s)
{
    const int64_t d = s->job->d, D = s->job->D, pad = s->part.pad, most = d > D ? d : D;
    const bool back = s->pairs && s->backward;
    t->deep_pairs   = take_words(arena, d / 2, pad, back);
    t->wide_pairs   = take_words(arena, pad / 2, s->d_pad, back);
    t->x_pairs      = take_words(arena, D / 2, pad, back);
    t->x_bf16       = take_words(arena, D, pad / 2, back);
    t->block_pairs  = take_words(arena, PROXY_BLOCK, most / 2, s->pairs);
    t->pack_pairs   = take_words(arena, PROXY_BLOCK / 2, PANEL, back);
}

static void take_thread(cpl_erc_thread *t, cpl_arena *arena, const cpl_erc_workspace *s)
{
    const cpl_erc_host_job *job = s->job;
    const cpl_erc_activation a  = job->activation;
    const int64_t m = s->m, pad = s->part.pad, d = job->d, D = job->D;
    const bool gate = cpl_erc_has_gate(a), up = cpl_erc_has_up(a), output = a == CPL_ERC_OUTPUT;
    const bool back = s->backward;
    take_acts(&t->acts, arena, job, pad);
    take_acts(&t->single_acts, arena, job, 1);
    t->grad_M = cpl_arena_take(arena, (size_t)pad * sizeof(double));
    t->scale  = take_words(arena, pad, 1, back);
    t->active = cpl_arena_take(arena, (size_t)pad * sizeof(int32_t));
    t->row    = cpl_arena_take(arena, (size_t)pad * sizeof(int32_t));
    t->dz     = take_words(arena, D, pad, back && gate);
    t->du     = take_words(arena, D, pad, back && up);
    t->dout   = take_words(arena, d, pad, back && output);
    t->dh     = take_words(arena, m, s->D_pad, back && output);
    t->wide   = take_words(arena, m, s->d_pad, back);
    t->h_wide = take_words(arena, m, s->D_pad, back && output);
    t->deep   = take_words(arena, d, pad, back);
    t->drows  = take_words(arena, m, s->d_pad, back);
    t->block  = take_words(arena, PROXY_BLOCK, d > D ? d : D, s->rounded || job->dtype != CPL_F32);
    t->pack   = take_words(arena, PROXY_BLOCK, PROXY_STRIP, true);
    t->dproxy = take_words(arena, job->n, s->d_pad, back);
    t->row_count = cpl_arena_take(arena, (size_t)job->n * sizeof(int32_t));
    take_pairs(t, arena, s);
}

cpl_erc_workspace cpl_erc_workspace_of(const cpl_erc_host_job *job)
{
    cpl_arena arena = cpl_arena_over(job->scratch, job->scratch ? job->scratch_bytes : SIZE_MAX);
    cpl_erc_workspace s = {.job = job};
    s.n_threads         = threads_for(job->n * job->d * job->D, job->n_threads);
    s.m                 = job->i1 - job->i0;
    s.d_pad             = vector_round_up(job->d);
    s.D_pad             = vector_round_up(job->D);
    s.rounded           = job->compute == CPL_BF16;
    s.pairs             = s.rounded && job->d % 2 == 0 && job->D % 2 == 0 && cpl_panel_has_pairs();
    s.backward = job->dR || job->dgate.data || job->dgate.at || job->dup.data || job->dup.at ||
                 job->ddown.data || job->ddown.at;
    s.rows      = take_words(&arena, job->n, s.d_pad, true);
    s.rows_bf16 = take_words(&arena, job->n, s.d_pad / 2, s.pairs);
    s.column    = take_words(&arena, job->j1 - job->j0, s.m, true);
    s.diag_acts = cpl_arena_take(&arena, (size_t)(job->j1 - job->j0) * sizeof *s.diag_acts);
    for (int64_t j = 0; s.backward && j < job->j1 - job->j0; j++) {
        cpl_erc_acts measured;
        take_acts(job->scratch ? &s.diag_acts[j] : &measured, &arena, job, 1);
    }
    s.deferred = cpl_arena_take(&arena, (size_t)(job->j1 - job->j0) * sizeof(bool));
    s.diag_hinges_added =
        cpl_arena_take(&arena, (size_t)(job->j1 - job->j0) * sizeof *s.diag_hinges_added);
    s.losses = cpl_arena_take(&arena, (size_t)(job->j1 - job->j0) * sizeof(double));
    s.thread = cpl_arena_take(&arena, (size_t)s.n_threads * sizeof *s.thread);
    take_proxies(&s.part, &arena, s.m, job->d, s.d_pad, s.pairs);
    for (int t = 0; t < s.n_threads; t++) {
        cpl_erc_thread measured;
        take_thread(job->scratch ? &s.thread[t] : &measured, &arena, &s);
    }
    s.bytes = arena.used;
    return s;
}

size_t CPL_ISA_NAME(cpl_cpu_host_erc_job_bytes)(const cpl_erc_host_job *job)
{
    cpl_erc_host_job measured = *job;
    measured.scratch          = NULL;
    return cpl_erc_workspace_of(&measured).bytes;
}

/* Returns the bytes for the phases on tensors, with the activation that needs the most memory. */
size_t CPL_ISA_NAME(cpl_cpu_erc_scratch)(const cpl_backend *be, const cpl_work *work)
{
    const int64_t n      = work->n_experts;
    cpl_erc_host_job job = {.n = n, .d = work->d_model, .D = work->d_expert, .i1 = n, .j1 = n};
    job.activation       = CPL_ERC_OUTPUT;
    job.dtype            = CPL_BF16;
    job.compute          = be->compute;
    job.n_threads        = be->n_threads;
    job.dR               = work->training ? (float *)(void *)&job : NULL; /* never read */
    return CPL_ISA_NAME(cpl_cpu_host_erc_job_bytes)(&job);
}
