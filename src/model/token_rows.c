/* token_rows.c - the functions of couplet.h for proxies on the side of the tokens (docs/method.md
 * 3.15). coupling.c does the same on tensors of a backend. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "model/couplet_checks.h"
#include "tensor/backend/backend.h"

static cpl_status check(const float *router, double scale, int64_t n, int64_t d)
{
    CPL_TRY(cpl_erc_check_size("n_experts", n, CPL_MOST_EXPERTS));
    CPL_TRY(cpl_erc_check_size("d_model", d, CPL_MOST_WIDTH));
    CPL_TRY(cpl_erc_check_floats("router", router, true));
    if (!(scale >= 0 && isfinite(scale)))
        return CPL_REFUSE("scale is %g: it must be a finite number of 0 or more", scale);
    return CPL_OK;
}

/* Sets Q [n,d] to the rows of R less their mean. */
static cpl_matrix centred(float *Q, const float *R, int64_t n, int64_t d)
{
    const cpl_matrix rows = {Q, n, d};
    memmove(Q, R, (size_t)(n * d) * sizeof(float));
    cpl_cpu_on_host()->centre(rows);
    return rows;
}

cpl_status cpl_erc_token_rows(float *rows, const float *router, const float *mean, double scale,
                              int64_t n, int64_t d)
{
    CPL_TRY(check(router, scale, n, d));
    CPL_TRY(cpl_erc_check_floats("rows", rows, true));
    CPL_TRY(cpl_erc_check_floats("mean", mean, true));
    cpl_cpu_on_host()->unit_rows(centred(rows, router, n, d), mean, scale);
    return CPL_OK;
}

cpl_status cpl_erc_token_gradients(float *router_grad, const float *rows_grad, const float *router,
                                   double scale, int64_t n, int64_t d)
{
    CPL_TRY(check(router, scale, n, d));
    CPL_TRY(cpl_erc_check_floats("router_grad", router_grad, true));
    CPL_TRY(cpl_erc_check_floats("rows_grad", rows_grad, true));
    float *room = cpl_alloc((size_t)(2 * n * d) * sizeof(float));
    if (!room) return CPL_ERR_MEMORY;
    const cpl_matrix Q = centred(room, router, n, d), dQ = {room + n * d, n, d};
    memcpy(dQ.at, rows_grad, (size_t)(n * d) * sizeof(float));
    cpl_cpu_on_host()->unit_rows_backward(dQ, Q, scale);
    cpl_cpu_on_host()->centre(dQ);
    for (int64_t i = 0; i < n * d; i++) router_grad[i] += dQ.at[i];
    cpl_free(room);
    return CPL_OK;
}
