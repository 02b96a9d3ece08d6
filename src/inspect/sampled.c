/* sampled.c - with --sample: which rows of every gate are read, and what that takes. The choice itself
 * is that of row_sample.h. */
#include <string.h>

#include "base/arena.h"
#include "inspect/internal.h"

/* ---- which rows ---- */

/* Rows of a gate that share a row of factors; 1 where it does not matter. */
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

cpl_status cpl_sampled_open(cpl_coupling_report *r)
{
    if (!(r->options.sample > 0)) return CPL_OK;
    for (int64_t k = 0; k < r->n_layers; k++) {
        cpl_layer_report *l     = &r->layers[k];
        const cpl_moe_layer *at = l->at;
        if (l->fault) continue;
        l->sample = cpl_alloc(sizeof *l->sample);
        if (!l->sample) return CPL_ERR_MEMORY;
        *l->sample      = (cpl_sample_report){0};
        l->sample->plan = cpl_row_plan_of(at->D, rows_of_factors(at), r->options.sample);
        if (at->layout == CPL_GATE_COLUMNS && !l->sample->plan.whole) return refuse_columns(r, at);
        for (int64_t b = 0, rows; b < l->sample->plan.n_blocks; b++) {
            cpl_row_plan_block(&l->sample->plan, b, &rows);
            const int64_t read = rows * l->sample->plan.n_read;
            l->sample->rows    = read > l->sample->rows ? read : l->sample->rows;
        }
    }
    return CPL_OK;
}

bool cpl_sampled_applies(const cpl_layer_report *l)
{
    return l->sample && !l->sample->plan.whole;
}

double cpl_sampled_share(const cpl_layer_report *l)
{
    return (double)l->sample->plan.n_read / (double)l->sample->plan.n_blocks;
}

/* The decoder is told apart from an encoder's layer of the same number. */
void cpl_sampled_choose(int64_t chosen[CPL_ROW_BLOCKS], const cpl_coupling_report *r,
                        const cpl_layer_report *l, int64_t j)
{
    cpl_row_plan_choose(chosen, &l->sample->plan, r->options.seed,
                        strcmp(l->at->part, "decoder") == 0, l->at->layer, j);
}

double cpl_sampled_bytes(const cpl_coupling_report *r, const cpl_layer_report *l)
{
    int64_t bytes = cpl_router_bytes(l->at), chosen[CPL_ROW_BLOCKS], rows;
    for (int64_t j = 0; j < l->at->n; j++) {
        cpl_sampled_choose(chosen, r, l, j);
        for (int64_t k = 0; k < l->sample->plan.n_read; k++) {
            const int64_t first = cpl_row_plan_block(&l->sample->plan, chosen[k], &rows);
            bytes += cpl_gate_rows_bytes(l->at, j, first, rows);
        }
    }
    return (double)bytes;
}

/* Squares [n,n_read,n] of the rows and of the centred rows, norms [n,n_read]. */
size_t cpl_sampled_memory(const cpl_coupling_report *r, const cpl_layer_report *l)
{
    const size_t n = (size_t)l->at->n, norms = n * (size_t)l->sample->plan.n_read;
    return ((r->options.noisy ? 1 : 2) * n + 1) * norms * sizeof(double);
}

/* ---- reading them ---- */

void cpl_sampled_prefetch(const cpl_coupling_report *r, const cpl_layer_report *l, int64_t j)
{
    int64_t chosen[CPL_ROW_BLOCKS], rows;
    cpl_sampled_choose(chosen, r, l, j);
    for (int64_t k = 0; k < l->sample->plan.n_read; k++) {
        const int64_t first = cpl_row_plan_block(&l->sample->plan, chosen[k], &rows);
        cpl_gate_prefetch_rows(l->at, j, first, rows);
    }
}

cpl_status cpl_sampled_load(const cpl_coupling_report *r, const cpl_layer_report *l,
                            cpl_inspect_worker *h, int64_t j)
{
    int64_t chosen[CPL_ROW_BLOCKS], rows;
    cpl_sampled_choose(chosen, r, l, j);
    for (int64_t k = 0; k < l->sample->plan.n_read; k++) {
        const int64_t first = cpl_row_plan_block(&l->sample->plan, chosen[k], &rows);
        CPL_TRY(cpl_gate_load_rows(&h->gate, l->at, j, first, rows));
    }
    return CPL_OK;
}
