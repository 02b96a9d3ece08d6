/* couplet_latent.c - latent experts in the public interface, see couplet.h: the rows V that latent
 * experts read, and the gradient through them. model/coupling.c has the same on tensors.
 *
 * Room:  model. */
#include "couplet.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "model/couplet_checks.h"
#include "tensor/backend/backend.h"
#include "tensor/product.h"

void cpl_erc_latent_init(cpl_erc_latent *latent)
{
    if (latent) memset(latent, 0, sizeof *latent);
}

/* ---- checks of the caller's arguments ---- */

static cpl_status check(const cpl_erc_latent *t)
{
    if (!t) return CPL_REFUSE("latent is NULL");
    CPL_TRY(cpl_erc_check_size("n_experts", t->n_experts, CPL_MOST_EXPERTS));
    CPL_TRY(cpl_erc_check_size("d_model", t->d_model, CPL_MOST_WIDTH));
    CPL_TRY(cpl_erc_check_size("d_latent", t->d_latent, CPL_MOST_WIDTH));
    if (t->norm && !(t->norm_eps > 0 && isfinite(t->norm_eps)))
        return CPL_REFUSE(
            "norm is given, but norm_eps is %g: set it to the eps of the norm, above 0",
            t->norm_eps);
    CPL_TRY(cpl_erc_check_floats("router", t->router, true));
    CPL_TRY(cpl_erc_check_floats("projection", t->projection, true));
    CPL_TRY(cpl_erc_check_floats("norm", t->norm, false));
    CPL_TRY(cpl_erc_check_floats("eps", t->eps, false));
    CPL_TRY(cpl_erc_check_floats("router_grad", t->router_grad, false));
    CPL_TRY(cpl_erc_check_floats("projection_grad", t->projection_grad, false));
    CPL_TRY(cpl_erc_check_floats("norm_grad", t->norm_grad, false));
    CPL_TRY(cpl_erc_check_threads(t->n_threads));
    return cpl_erc_check_noise(t->noise, t->step, t->layer, t->draw, t->delta, t->n_experts,
                               t->d_model);
}

/* ---- scratch ---- */

typedef struct work {
    cpl_matrix R, W; /* the caller's: [n,d], [l,d] */
    cpl_matrix x;    /* [n,d] proxies R~, later their gradient */
    cpl_matrix v;    /* [n,l] W_l R~, later its gradient */
    float *delta;    /* [n,d] the noise, also if the caller gives it; NULL for 1 */
    float *eps;      /* [n] */
    int n_threads;
    void *memory;
} work;

static cpl_matrix matrix(const float *at, int64_t rows, int64_t cols)
{
    return (cpl_matrix){(float *)(uintptr_t)at, rows, cols};
}

/* Multiplies x [count] by y [count], which may be NULL for 1. */
static void multiply(float *x, const float *y, int64_t count)
{
    for (int64_t i = 0; y && i < count; i++) x[i] *= y[i];
}

/* Makes the scratch, draws the noise, and sets the proxies and v = W_l R~. */
static cpl_status begin(work *w, const cpl_erc_latent *t)
{
    const int64_t n = t->n_experts, d = t->d_model, l = t->d_latent;
    const cpl_rng_key key   = {t->seed, t->step, t->layer, CPL_STREAM_NOISE};
    const cpl_host_ops *ops = cpl_cpu_on_host();
    float *at               = cpl_alloc((size_t)(n * (2 * d + l + 1)) * sizeof(float));
    *w = (work){.memory = at, .R = matrix(t->router, n, d), .W = matrix(t->projection, l, d)};
    if (!at) return CPL_ERR_MEMORY;
    w->n_threads = cpl_cpu_threads(t->n_threads);
    w->x         = matrix(at, n, d);
    w->v         = matrix(at + n * d, n, l);
    w->eps       = at + n * (d + l);
    w->delta     = t->noise == CPL_ERC_NOISE_NONE ? NULL : at + n * (d + l + 1);
    ops->erc_nearest(w->eps, w->R, w->n_threads);
    if (t->noise == CPL_ERC_NOISE_GIVEN)
        memcpy(w->delta, t->delta, (size_t)(n * d) * sizeof(float));
    if (t->noise == CPL_ERC_NOISE_DRAWN)
        ops->erc_noise(matrix(w->delta, n, d), w->eps, key, t->draw, w->n_threads);
    memcpy(w->x.at, t->router, (size_t)(n * d) * sizeof(float));
    multiply(w->x.at, w->delta, n * d);
    return cpl_product_matrices(w->v, CPL_AS_IS, w->x, CPL_TRANSPOSED, w->W, w->n_threads);
}

/* ---- the norm: g * v / sqrt(mean(v^2) + eps) ---- */

/* Returns 1 / sqrt(mean(v^2) + eps) of v [l]. */
static double inverse_size(const float *v, int64_t l, double eps)
{
    double squares = 0;
    for (int64_t k = 0; k < l; k++) squares += (double)v[k] * (double)v[k];
    return 1 / sqrt(squares / (double)l + eps);
}

static void norm_row(float *v, const cpl_erc_latent *t)
{
    const double inverse = inverse_size(v, t->d_latent, t->norm_eps);
    for (int64_t k = 0; k < t->d_latent; k++)
        v[k] = (float)((double)t->norm[k] * (double)v[k] * inverse);
}

/* Replaces v by its gradient from the gradient dy of the norm's output. Adds the gradient of g. */
static void norm_row_backward(float *v, const float *dy, const cpl_erc_latent *t)
{
    const int64_t l      = t->d_latent;
    const double inverse = inverse_size(v, l, t->norm_eps);
    double along         = 0; /* sum of dy g v */
    for (int64_t k = 0; k < l; k++) along += (double)dy[k] * (double)t->norm[k] * (double)v[k];
    along *= inverse * inverse / (double)l;
    for (int64_t k = 0; k < l; k++) {
        const double own = (double)v[k];
        if (t->norm_grad) t->norm_grad[k] += (float)((double)dy[k] * own * inverse);
        v[k] = (float)(inverse * ((double)dy[k] * (double)t->norm[k] - along * own));
    }
}

/* ---- the functions of couplet.h ---- */

cpl_status cpl_erc_latent_rows(cpl_erc_latent *latent)
{
    cpl_status status = CPL_OK;
    work w;
    CPL_TRY(check(latent));
    CPL_TRY(cpl_erc_check_floats("rows", latent->rows, true));
    const int64_t n = latent->n_experts, l = latent->d_latent;
    CPL_TRY_DONE(begin(&w, latent));
    memcpy(latent->rows, w.v.at, (size_t)(n * l) * sizeof(float));
    for (int64_t i = 0; latent->norm && i < n; i++) norm_row(latent->rows + i * l, latent);
    if (latent->eps) memcpy(latent->eps, w.eps, (size_t)n * sizeof(float));
done:
    cpl_free(w.memory);
    return status;
}

/* Adds the gradients of W_l and R. w->v holds the gradient of W_l R~, and w->x the proxies. */
static cpl_status add_gradients(const work *w, const cpl_erc_latent *t)
{
    const int64_t n = t->n_experts, d = t->d_model, l = t->d_latent;
    const cpl_operand dv = {w->v.at, CPL_F32, CPL_AS_IS, l}, W = {w->W.at, CPL_F32, CPL_AS_IS, d};
    const cpl_operand turned = {w->v.at, CPL_F32, CPL_TRANSPOSED, l};
    const cpl_operand x      = {w->x.at, CPL_F32, CPL_AS_IS, d};
    if (t->projection_grad)
        CPL_TRY(cpl_product(t->projection_grad, d, turned, x, (cpl_product_shape){l, d, n}, 1,
                            w->n_threads));
    if (!t->router_grad) return CPL_OK;
    CPL_TRY(cpl_product(w->x.at, d, dv, W, (cpl_product_shape){n, d, l}, 0, w->n_threads));
    multiply(w->x.at, w->delta, n * d);
    for (int64_t i = 0; i < n * d; i++) t->router_grad[i] += w->x.at[i];
    return CPL_OK;
}

cpl_status cpl_erc_latent_gradients(const cpl_erc_latent *latent)
{
    cpl_status status = CPL_OK;
    work w;
    CPL_TRY(check(latent));
    CPL_TRY(cpl_erc_check_floats("rows_grad", latent->rows_grad, true));
    const int64_t n = latent->n_experts, l = latent->d_latent;
    CPL_TRY_DONE(begin(&w, latent));
    for (int64_t i = 0; latent->norm && i < n; i++)
        norm_row_backward(w.v.at + i * l, latent->rows_grad + i * l, latent);
    if (!latent->norm) memcpy(w.v.at, latent->rows_grad, (size_t)(n * l) * sizeof(float));
    CPL_TRY_DONE(add_gradients(&w, latent));
done:
    cpl_free(w.memory);
    return status;
}
