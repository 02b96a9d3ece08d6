/* latent.c - see latent.h, and couplet.h for the functions of the public interface: the rows V that
 * latent experts read, and the gradient through them. */
#include "model/latent.h"

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

/* ---- the norm: g * v / sqrt(mean(v^2) + eps) ---- */

/* Returns 1 / sqrt(mean(v^2) + eps) of v [l]. */
static double inverse_size(const float *v, int64_t l, double eps)
{
    double squares = 0;
    for (int64_t k = 0; k < l; k++) squares += (double)v[k] * (double)v[k];
    return 1 / sqrt(squares / (double)l + eps);
}

static void norm_row(float *v, const float *g, int64_t l, double eps)
{
    const double inverse = inverse_size(v, l, eps);
    for (int64_t k = 0; k < l; k++) v[k] = (float)((double)g[k] * (double)v[k] * inverse);
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

cpl_status cpl_latent_project(cpl_matrix V, cpl_matrix X, cpl_matrix W, const float *g, double eps,
                              int n_threads)
{
    CPL_TRY(cpl_product_matrices(V, CPL_AS_IS, X, CPL_TRANSPOSED, W, n_threads));
    for (int64_t i = 0; g && i < V.rows; i++) norm_row(V.at + i * V.cols, g, V.cols, eps);
    return CPL_OK;
}

/* ---- the proxies ---- */

/* The proxies of a call. The noise is drawn again in every call. */
typedef struct proxies {
    cpl_matrix W, x; /* the caller's [l,d]; [n,d] R~ */
    float *delta;    /* [n,d] the noise, also if the caller gives it; NULL for 1 */
    float *eps;      /* [n] */
    float *room;     /* [n,l] free to use */
    int n_threads;
    void *memory;
} proxies;

static cpl_matrix matrix(const float *at, int64_t rows, int64_t cols)
{
    return (cpl_matrix){(float *)(uintptr_t)at, rows, cols};
}

/* Multiplies x [count] by y [count], which may be NULL for 1. */
static void multiply(float *x, const float *y, int64_t count)
{
    for (int64_t i = 0; y && i < count; i++) x[i] *= y[i];
}

/* Allocates the memory of the proxies, draws the noise, and sets the proxies. */
static cpl_status make_proxies(proxies *p, const cpl_erc_latent *t)
{
    const int64_t n = t->n_experts, d = t->d_model, l = t->d_latent;
    const cpl_rng_key key   = {t->seed, t->step, t->layer, CPL_STREAM_NOISE};
    const cpl_host_ops *ops = cpl_cpu_on_host();
    float *at               = cpl_alloc((size_t)(n * (2 * d + l + 1)) * sizeof(float));
    *p                      = (proxies){.memory = at, .W = matrix(t->projection, l, d)};
    if (!at) return CPL_ERR_MEMORY;
    p->n_threads = cpl_cpu_threads(t->n_threads);
    p->x         = matrix(at, n, d);
    p->room      = at + n * d;
    p->eps       = at + n * (d + l);
    p->delta     = t->noise == CPL_ERC_NOISE_NONE ? NULL : at + n * (d + l + 1);
    ops->erc_nearest(p->eps, matrix(t->router, n, d), p->n_threads);
    if (t->noise == CPL_ERC_NOISE_GIVEN)
        memcpy(p->delta, t->delta, (size_t)(n * d) * sizeof(float));
    if (t->noise == CPL_ERC_NOISE_DRAWN)
        ops->erc_noise(matrix(p->delta, n, d), p->eps, key, t->draw, p->n_threads);
    memcpy(p->x.at, t->router, (size_t)(n * d) * sizeof(float));
    multiply(p->x.at, p->delta, n * d);
    return CPL_OK;
}

/* ---- the functions of couplet.h ---- */

cpl_status cpl_erc_latent_rows(cpl_erc_latent *latent)
{
    cpl_status status = CPL_OK;
    proxies p;
    CPL_TRY(check(latent));
    CPL_TRY(cpl_erc_check_floats("rows", latent->rows, true));
    const int64_t n = latent->n_experts, l = latent->d_latent;
    CPL_TRY_DONE(make_proxies(&p, latent));
    CPL_TRY_DONE(cpl_latent_project(matrix(latent->rows, n, l), p.x, p.W, latent->norm,
                                    latent->norm_eps, p.n_threads));
    if (latent->eps) memcpy(latent->eps, p.eps, (size_t)n * sizeof(float));
done:
    cpl_free(p.memory);
    return status;
}

/* Sets dv [n,l], the gradient of W_l R~, from the gradient of V. Adds the gradient of g. */
static cpl_status backward_through_norm(cpl_matrix dv, const proxies *p, const cpl_erc_latent *t)
{
    const int64_t l = t->d_latent;
    if (!t->norm) {
        memcpy(dv.at, t->rows_grad, (size_t)(dv.rows * l) * sizeof(float));
        return CPL_OK;
    }
    CPL_TRY(cpl_latent_project(dv, p->x, p->W, NULL, 0, p->n_threads));
    for (int64_t i = 0; i < dv.rows; i++) norm_row_backward(dv.at + i * l, t->rows_grad + i * l, t);
    return CPL_OK;
}

/* Adds the gradients of W_l and R from the gradient dv [n,l] of W_l R~. Overwrites the proxies. */
static cpl_status add_gradients(cpl_matrix dv, const proxies *p, const cpl_erc_latent *t)
{
    const int64_t n = dv.rows, l = dv.cols, d = t->d_model;
    const cpl_operand turned = {dv.at, CPL_F32, CPL_TRANSPOSED, l};
    const cpl_operand x      = {p->x.at, CPL_F32, CPL_AS_IS, d};
    if (t->projection_grad)
        CPL_TRY(cpl_product(t->projection_grad, d, turned, x, (cpl_product_shape){l, d, n}, 1,
                            p->n_threads));
    if (!t->router_grad) return CPL_OK;
    CPL_TRY(cpl_product_matrices(p->x, CPL_AS_IS, dv, CPL_AS_IS, p->W, p->n_threads));
    multiply(p->x.at, p->delta, n * d);
    for (int64_t i = 0; i < n * d; i++) t->router_grad[i] += p->x.at[i];
    return CPL_OK;
}

cpl_status cpl_erc_latent_gradients(const cpl_erc_latent *latent)
{
    cpl_status status = CPL_OK;
    proxies p;
    CPL_TRY(check(latent));
    CPL_TRY(cpl_erc_check_floats("rows_grad", latent->rows_grad, true));
    CPL_TRY_DONE(make_proxies(&p, latent));
    const cpl_matrix dv = matrix(p.room, latent->n_experts, latent->d_latent);
    CPL_TRY_DONE(backward_through_norm(dv, &p, latent));
    CPL_TRY_DONE(add_gradients(dv, &p, latent));
done:
    cpl_free(p.memory);
    return status;
}
