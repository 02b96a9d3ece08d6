/* reading.c - what an inspection reads, in the order in which measure.c and tsne_plot.c read it, for
 * an origin that asks ahead; see internal.h */
#include "inspect/internal.h"

/* Rows [first, first + rows) of the gate of expert j. */
static cpl_status add_rows(cpl_source_pieces *pieces, cpl_inspect_cost *cost,
                           const cpl_moe_layer *at, int64_t j, int64_t first, int64_t rows)
{
    cost->shared_bytes += (double)cpl_gate_rows_shared_bytes(at, j, first, rows);
    return cpl_gate_rows_pieces(pieces, at, j, first, rows);
}

static cpl_status add_sample(cpl_source_pieces *pieces, cpl_inspect_cost *cost,
                             const cpl_coupling_report *r, const cpl_layer_report *l, int64_t j)
{
    int64_t chosen[CPL_ROW_BLOCKS], rows;
    cpl_sampled_choose(chosen, r, l, j);
    for (int64_t k = 0; k < l->sample->plan.n_read; k++) {
        const int64_t first = cpl_row_plan_block(&l->sample->plan, chosen[k], &rows);
        CPL_TRY(add_rows(pieces, cost, l->at, j, first, rows));
    }
    return CPL_OK;
}

static cpl_status add_layer(cpl_source_pieces *pieces, cpl_inspect_cost *cost,
                            const cpl_coupling_report *r, const cpl_layer_report *l)
{
    const int times = cpl_inspect_reads_twice(r, l->at) ? 2 : 1;
    CPL_TRY(cpl_router_pieces(pieces, l->at));
    for (int time = 0; time < times; time++)
        for (int64_t j = 0; j < l->at->n; j++)
            CPL_TRY(cpl_sampled_applies(l) ? add_sample(pieces, cost, r, l, j)
                                           : add_rows(pieces, cost, l->at, j, 0, l->at->D));
    return CPL_OK;
}

static double file_bytes(const cpl_coupling_report *r)
{
    double sum = 0;
    for (int64_t i = 0; i < r->files->n_parts; i++) {
        const cpl_stored_part *part = &r->files->parts[i];
        if (part->gguf) sum += (double)part->gguf->source->length;
        if (part->safetensors) sum += (double)part->safetensors->source->length;
    }
    return sum;
}

cpl_status cpl_inspect_reading_plan(cpl_inspect_cost *cost, const cpl_coupling_report *r)
{
    cpl_source_pieces pieces = {0};
    cpl_status status        = CPL_OK;
    cost->files_bytes        = file_bytes(r);
    if (!r->options.origin) return CPL_OK;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (!r->layers[l].fault) CPL_TRY_DONE(add_layer(&pieces, cost, r, &r->layers[l]));
    CPL_TRY_DONE(cpl_tsne_plot_pieces(&pieces, r));
    status = cpl_origin_plan_set(r->options.origin, &cost->reading, &pieces);
done:
    cpl_source_pieces_free(&pieces);
    return status;
}
