/* silhouette.c - whether the rows of an expert's gate keep together: the experts of a layer
 * as clusters of the rows of their W_g. What measure.c does with a gate for it. */
#include <math.h>
#include <string.h>

#include "inspect/internal.h"

/* A single expert has no others to be apart from. */
bool cpl_silhouette_reads(const cpl_coupling_report *r, const cpl_moe_layer *at)
{
    return r->options.silhouette && at->n > 1;
}

void cpl_silhouette_add(cpl_inspect_worker *h, cpl_tensor W)
{
    h->be.ops->unit_rows(&h->be, W, W);
    h->be.ops->add_rows(&h->be, h->sum, W);
}

void cpl_silhouette_mean(float *mean, const cpl_inspect_worker *h, const cpl_moe_layer *at)
{
    for (int64_t k = 0; k < at->d; k++) mean[k] = (float)(h->sum[k] / (double)at->D);
}

cpl_status cpl_silhouette_expert(cpl_layer_report *l, cpl_inspect_worker *h, const void *packed,
                                 int64_t j)
{
    const cpl_moe_layer *at = l->at;
    const int64_t block     = cpl_inspect_worker_rows(&h->be, at);
    double sum              = 0;
    CPL_TRY(cpl_gate_load(&h->be, &h->gate, at, j));
    for (int64_t c = 0; c < at->D; c += block) {
        const int64_t rows = at->D - c < block ? at->D - c : block;
        cpl_tensor W       = cpl_tensor_2d(h->rows, CPL_F32, rows, at->d);
        cpl_gate_rows(&h->be, W, &h->gate, c);
        h->be.ops->unit_rows(&h->be, W, W);
        h->be.ops->silhouettes(&h->be, &sum, packed, at->n, j, at->D, W);
    }
    l->silhouettes[j] = sum / (double)at->D;
    return CPL_OK;
}

void cpl_silhouette_finish(cpl_layer_report *l)
{
    const int64_t n = l->at->n;
    l->silhouette   = NAN;
    if (!l->silhouettes) return;
    if (n == 1) l->silhouettes[0] = NAN;
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += l->silhouettes[j];
    l->silhouette = sum / (double)n;
}
