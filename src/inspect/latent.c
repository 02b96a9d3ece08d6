/* latent.c - see internal.h */
#include <string.h>

#include "base/arena.h"
#include "inspect/internal.h"
#include "model/latent.h"
#include "tensor/product.h"

cpl_status cpl_latent_rows(cpl_matrix V, const cpl_latent *latent, cpl_matrix X)
{
    const cpl_matrix W = {latent->W, V.cols, X.cols};
    return cpl_latent_project(V, X, W, latent->g, latent->eps, 1);
}

static cpl_status take_memory(cpl_latent *latent, const cpl_moe_layer *at, bool centred)
{
    const size_t l = (size_t)at->l, rows = (size_t)at->n * l, norm = at->latent_norm.weight ? 1 : 0;
    const size_t packed = cpl_cpu_on_host()->response.packed_bytes(at->n, at->l);
    bool failed         = false;
    latent->W           = cpl_inspect_piece(&failed, l * (size_t)at->d * sizeof(float));
    latent->V           = cpl_inspect_piece(&failed, rows * sizeof(float));
    latent->g           = cpl_inspect_piece(&failed, norm * l * sizeof(float));
    latent->centred_V   = cpl_inspect_piece(&failed, norm * centred * rows * sizeof(float));
    latent->centred     = cpl_inspect_piece(&failed, norm * centred * packed);
    latent->eps         = at->latent_eps;
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}

/* Sets the rows that the gates read of the centred rows of R, where they are not the centred V. */
static cpl_status set_centred(cpl_latent *latent, cpl_matrix R, int64_t l)
{
    const size_t bytes = (size_t)(R.rows * R.cols) * sizeof(float);
    const cpl_matrix X = {cpl_alloc(bytes), R.rows, R.cols}, V = {latent->centred_V, R.rows, l};
    if (!X.at) return CPL_ERR_MEMORY;
    memcpy(X.at, R.at, bytes);
    cpl_cpu_on_host()->centre(X);
    const cpl_status status = cpl_latent_rows(V, latent, X);
    cpl_cpu_on_host()->response.pack(latent->centred, V);
    cpl_free(X.at);
    return status;
}

cpl_status cpl_latent_open(cpl_latent *latent, const cpl_moe_layer *at, cpl_matrix R, bool centred)
{
    CPL_TRY(take_memory(latent, at, centred));
    CPL_TRY(cpl_router_read_projection((cpl_matrix){latent->W, at->l, at->d}, latent->g, at));
    CPL_TRY(cpl_latent_rows((cpl_matrix){latent->V, at->n, at->l}, latent, R));
    return latent->centred ? set_centred(latent, R, at->l) : CPL_OK;
}

void cpl_latent_close(cpl_latent *latent)
{
    cpl_free(latent->W);
    cpl_free(latent->V);
    cpl_free(latent->g);
    cpl_free(latent->centred_V);
    cpl_free(latent->centred);
    *latent = (cpl_latent){0};
}

cpl_status cpl_latent_as_router(cpl_matrix *W, float *wide, const cpl_latent *latent, int64_t d)
{
    const cpl_matrix out = {wide, W->rows, d};
    if (!latent->W) return CPL_OK;
    for (int64_t i = 0; latent->g && i < W->rows * W->cols; i++) W->at[i] *= latent->g[i % W->cols];
    CPL_TRY(cpl_product_matrices(out, CPL_AS_IS, *W, CPL_AS_IS, (cpl_matrix){latent->W, W->cols, d},
                                 1));
    *W = out;
    return CPL_OK;
}
