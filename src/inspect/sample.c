/* sample.c - with --sample: the choice of the rows of every gate that are read, their sums, and
 * means from the sums; see sample.h and internal.h. */
#include "inspect/sample.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "inspect/internal.h"

/* ---- blocks ---- */

/* Returns the largest divisor of `group` that is at most `rows`. */
static int64_t divisor_below(int64_t group, int64_t rows)
{
    int64_t best = 1;
    for (int64_t k = 2; k <= rows && k <= group; k++)
        if (group % k == 0) best = k;
    return best;
}

/* Fewer rows give standard errors that are too small. */
enum { LEAST_ROWS = 16 };

/* From a larger share on all rows are read. */
static const double nearly_all = 0.9;

/* Plans the blocks. A block is one or several whole groups, or an equal part of a group that is
 * larger than a block. */
cpl_row_plan cpl_row_plan_of(int64_t rows, int64_t aligned, double share)
{
    const double wanted   = fmin(fmax(share * (double)rows, LEAST_ROWS), (double)rows);
    const int64_t a_block = (int64_t)(wanted / CPL_ROW_BLOCKS);
    cpl_row_plan plan     = {.rows = rows, .unit = 1, .n_read = CPL_ROW_BLOCKS};
    if (aligned > 1 && a_block > 1)
        plan.unit = a_block >= aligned ? aligned : divisor_below(aligned, a_block);
    const double units = ceil((double)rows / (double)plan.unit);
    const double size  = fmax(1, round(wanted / (double)(plan.unit * plan.n_read))); /* in units */
    plan.n_blocks =
        plan.unit > 1 && plan.unit < aligned ? (int64_t)units : (int64_t)round(units / size);
    plan.whole = plan.n_blocks <= plan.n_read || wanted >= nearly_all * (double)rows;
    if (plan.whole) plan.n_blocks = plan.n_read = 1;
    return plan;
}

static int64_t boundary(const cpl_row_plan *plan, int64_t block)
{
    const int64_t units = (plan->rows + plan->unit - 1) / plan->unit;
    const int64_t row   = block * units / plan->n_blocks * plan->unit;
    return row < plan->rows ? row : plan->rows;
}

int64_t cpl_row_plan_block(const cpl_row_plan *plan, int64_t block, int64_t *rows)
{
    const int64_t first = boundary(plan, block);
    *rows               = boundary(plan, block + 1) - first;
    return first;
}

/* ---- choice of blocks ---- */

/* Returns the key of an expert, without the upper bits of numbers that only a damaged file has. */
static cpl_rng_key key_of(uint64_t seed, int part, int64_t layer, int64_t expert)
{
    return (cpl_rng_key){.seed   = seed,
                         .step   = (uint64_t)part << 32 | ((uint64_t)expert & 0xffffffffu),
                         .layer  = (uint32_t)((uint64_t)layer & 0xffffu),
                         .stream = CPL_STREAM_ROWS};
}

/* Draws b of G numbers by Floyd's algorithm (J. Bentley, R. Floyd, "A sample of brilliance",
 * 1987) and sorts them. The multiplication prefers some numbers to others by less than G / 2^32. */
void cpl_row_plan_choose(int64_t chosen[CPL_ROW_BLOCKS], const cpl_row_plan *plan, uint64_t seed,
                         int part, int64_t layer, int64_t expert)
{
    const cpl_rng_key key = key_of(seed, part, layer, expert);
    for (int64_t k = 0; k < plan->n_read; k++) {
        const int64_t last    = plan->n_blocks - plan->n_read + k;
        const uint64_t random = cpl_rng_u32(&key, (uint64_t)k);
        int64_t block = (int64_t)(random * (uint64_t)(last + 1) >> 32), at = k;
        for (int64_t l = 0; l < k; l++)
            if (chosen[l] == block) block = last;
        for (; at > 0 && chosen[at - 1] > block; at--) chosen[at] = chosen[at - 1];
        chosen[at] = block;
    }
}

/* ---- means ---- */

/* Sets `out` to sums over row i of the figures of expert j, from all of its blocks but `left_out`.
 * With `left_out` n_read no block is left out. */
static void take_figures(double out[CPL_SAMPLE_FIGURES], const cpl_row_sums *s,
                         const double *row_norm, int64_t j, int64_t left_out)
{
    const int64_t n = s->n, b = s->n_read;
    const double scale = (double)s->n_blocks / (double)(left_out < b ? b - 1 : b);
    double norm        = 0;
    memset(out, 0, CPL_SAMPLE_FIGURES * sizeof *out);
    for (int64_t k = 0; k < b; k++) norm += k == left_out ? 0 : s->norms[j * b + k];
    out[CPL_SAMPLE_GATE_NORM] = sqrt(scale * norm);
    for (int64_t i = 0; i < n; i++) {
        double square = 0;
        for (int64_t k = 0; k < b; k++)
            square += k == left_out ? 0 : s->squares[(j * b + k) * n + i];
        out[i == j ? CPL_SAMPLE_M_OWN : CPL_SAMPLE_M_OTHERS] += sqrt(scale * square);
        if (norm > 0 && row_norm[i] > 0)
            out[i == j ? CPL_SAMPLE_KAPPA_OWN : CPL_SAMPLE_KAPPA_OTHERS] +=
                sqrt(square / norm) / row_norm[i];
    }
}

/* Adds the jackknife's estimate and variance of a sum. `all` is the sum from b of G blocks, part[k]
 * the sum without block k. The bias of `all` is proportional to 1/b - 1/G. */
static void add_jackknife(double *sum, double *variance, const cpl_row_sums *s, double all,
                          const double part[CPL_ROW_BLOCKS])
{
    const double b = (double)s->n_read, G = (double)s->n_blocks;
    double mean = 0, squares = 0;
    for (int64_t k = 0; k < s->n_read; k++) mean += part[k] / b;
    for (int64_t k = 0; k < s->n_read; k++) squares += (part[k] - mean) * (part[k] - mean);
    *sum += b * (1 - (b - 1) / G) * all - (b - 1) * (1 - b / G) * mean;
    *variance += (1 - b / G) * (b - 1) / b * squares;
}

void cpl_sample_estimate(cpl_estimate out[CPL_SAMPLE_FIGURES], const cpl_row_sums *s,
                         const double *row_norm)
{
    const int64_t n = s->n, b = s->n_read;
    double sum[CPL_SAMPLE_FIGURES] = {0}, variance[CPL_SAMPLE_FIGURES] = {0};
    CPL_ASSERT(n >= 1 && b == CPL_ROW_BLOCKS && b <= s->n_blocks);
    for (int64_t j = 0; j < n; j++) {
        double all[CPL_ROW_BLOCKS + 1][CPL_SAMPLE_FIGURES], part[CPL_ROW_BLOCKS];
        for (int64_t k = 0; k <= b; k++) take_figures(all[k], s, row_norm, j, k);
        for (int f = 0; f < CPL_SAMPLE_FIGURES; f++) {
            for (int64_t k = 0; k < b; k++) part[k] = all[k][f];
            add_jackknife(&sum[f], &variance[f], s, all[b][f], part);
        }
    }
    for (int f = 0; f < CPL_SAMPLE_FIGURES; f++) {
        const bool pairs   = f == CPL_SAMPLE_KAPPA_OTHERS || f == CPL_SAMPLE_M_OTHERS;
        const double count = (double)(pairs && n > 1 ? n * (n - 1) : n);
        out[f]             = (cpl_estimate){sum[f] / count, sqrt(variance[f]) / count};
    }
}

/* ---- a layer ---- */

/* Returns the number of rows of a gate that share a row of factors, or 1 if the plan does not need
 * it. */
static int64_t rows_of_factors(const cpl_moe_layer *at)
{
    const cpl_stored_matrix *m = &at->matrices[0];
    if (!m->scale || m->scale->n_elements == 1 || m->block_rows >= at->D) return 1;
    const int64_t apart = at->interleaved ? 2 : 1;
    return m->block_rows % apart == 0 ? m->block_rows / apart : 1;
}

static cpl_status refuse_columns(const cpl_coupling_report *r, const cpl_moe_layer *at)
{
    const cpl_stored *tensor = at->matrices[0].weight;
    return CPL_FAIL(
        CPL_ERR_INPUT,
        "%s: tensor %s: the gates of layer %lld are stored by columns, so that a sample "
        "of their rows would read nearly all of %s; inspect it without --sample",
        tensor->path, tensor->name, (long long)at->layer, r->name);
}

cpl_status cpl_sample_open(cpl_coupling_report *r)
{
    if (!(r->options.sample > 0)) return CPL_OK;
    for (int64_t k = 0; k < r->n_layers; k++) {
        cpl_layer_report *l     = &r->layers[k];
        const cpl_moe_layer *at = l->at;
        if (l->fault) continue;
        l->sample = cpl_alloc(sizeof *l->sample);
        if (!l->sample) return CPL_ERR_MEMORY;
        *l->sample               = (cpl_sample_report){0};
        const cpl_row_plan *plan = &l->sample->plan;
        l->sample->plan          = cpl_row_plan_of(at->D, rows_of_factors(at), r->options.sample);
        if (at->layout == CPL_GATE_COLUMNS && !plan->whole) return refuse_columns(r, at);
        for (int64_t b = 0, rows; b < plan->n_blocks; b++) {
            cpl_row_plan_block(plan, b, &rows);
            if (rows * plan->n_read > l->sample->rows) l->sample->rows = rows * plan->n_read;
        }
    }
    return CPL_OK;
}

bool cpl_sample_applies(const cpl_layer_report *l)
{
    return l->sample && !l->sample->plan.whole;
}

/* Chooses the blocks of an expert. A decoder's layer has other blocks than an encoder's layer of
 * this number. */
int64_t cpl_sample_block(const cpl_coupling_report *r, const cpl_layer_report *l, int64_t j,
                         int64_t k, int64_t *rows)
{
    int64_t chosen[CPL_ROW_BLOCKS];
    cpl_row_plan_choose(chosen, &l->sample->plan, r->options.seed,
                        strcmp(l->at->part, "decoder") == 0, l->at->layer, j);
    return cpl_row_plan_block(&l->sample->plan, chosen[k], rows);
}

double cpl_sample_bytes(const cpl_coupling_report *r, const cpl_layer_report *l)
{
    int64_t bytes = cpl_router_bytes(l->at), rows;
    for (int64_t j = 0; j < l->at->n; j++)
        for (int64_t k = 0; k < l->sample->plan.n_read; k++) {
            const int64_t first = cpl_sample_block(r, l, j, k, &rows);
            bytes += cpl_gate_rows_bytes(l->at, j, first, rows);
        }
    return (double)bytes;
}

size_t cpl_sample_memory(const cpl_coupling_report *r, const cpl_layer_report *l)
{
    const size_t n = (size_t)l->at->n, norms = n * (size_t)l->sample->plan.n_read;
    return ((r->options.noisy ? 1 : 2) * n + 1) * norms * sizeof(double);
}

/* ---- sums of a layer ---- */

cpl_status cpl_sample_sums_init(cpl_sample_sums *s, const cpl_coupling_report *r,
                                const cpl_layer_report *l)
{
    const int64_t n = l->at->n, b = l->sample->plan.n_read;
    double *memory = cpl_alloc(cpl_sample_memory(r, l));
    if (!memory) return CPL_ERR_MEMORY;
    memset(memory, 0, cpl_sample_memory(r, l));
    s->raw = s->centred = (cpl_row_sums){n, b, l->sample->plan.n_blocks, memory + n * b, memory};
    s->centred.squares  = r->options.noisy ? NULL : s->raw.squares + n * n * b;
    return CPL_OK;
}

void cpl_sample_sums_free(cpl_sample_sums *s)
{
    cpl_free(s->raw.norms); /* one piece of memory holds all sums */
    *s = (cpl_sample_sums){0};
}

/* ---- figures of a layer ---- */

void cpl_sample_report_estimate(cpl_layer_report *l, const cpl_sample_sums *s,
                                const double *centred_norm)
{
    l->figures.gate_norm_mean = l->figures.gate_norm_std = (double)NAN;
    l->sample->has_M                                     = l->at->comparable;
    l->sample->has_centred                               = l->at->comparable && s->centred.squares;
    cpl_sample_estimate(l->sample->stored, &s->raw, l->input_norm);
    if (s->centred.squares) cpl_sample_estimate(l->sample->centred, &s->centred, centred_norm);
}

static void set_exactly(cpl_estimate out[CPL_SAMPLE_FIGURES], const cpl_null_model *chance,
                        const cpl_coupling_figures *figures, double gate_norm)
{
    const double exact[] = {[CPL_SAMPLE_KAPPA_OWN]    = chance->kappa_diagonal,
                            [CPL_SAMPLE_KAPPA_OTHERS] = chance->kappa_off_diagonal,
                            [CPL_SAMPLE_M_OWN]        = figures->m_diagonal,
                            [CPL_SAMPLE_M_OTHERS]     = figures->m_off_diagonal,
                            [CPL_SAMPLE_GATE_NORM]    = gate_norm};
    for (int f = 0; f < CPL_SAMPLE_FIGURES; f++) out[f] = (cpl_estimate){exact[f], 0};
}

void cpl_sample_report_copy(cpl_layer_report *l)
{
    const double norm      = l->figures.gate_norm_mean;
    l->sample->has_M       = l->has_M;
    l->sample->has_centred = l->centred.has_M;
    set_exactly(l->sample->stored, &l->chance, &l->figures, norm);
    set_exactly(l->sample->centred, &l->centred.chance, &l->centred.figures, norm);
}
