/* coupling.c - see coupling.h. This file has the order of the paper's three steps; the loops over
 * numbers are operations of tensor/erc.h. */
#include "model/coupling.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/tensors.h"

/* ---- erc.layers: "all", or "0-2, 5" ---- */

static const char *skip_spaces(const char *at)
{
    while (isspace((unsigned char)*at)) at++;
    return at;
}

/* Reads the number at *at and moves past it. Returns -1 if *at is not at a number. */
static int64_t number_at(const char **at)
{
    char *end     = NULL;
    int64_t value = -1;
    if (isdigit((unsigned char)**at)) value = strtoll(*at, &end, 10);
    if (end) *at = skip_spaces(end);
    return value;
}

/* Reads the next entry of the list, such as "5" or "0-2". Returns false at the end of the list.
 * Sets *first to -1 for bad syntax. */
static bool next_range(const char **at, int64_t *first, int64_t *last)
{
    if (**at == '\0') return false;
    *first = *last = number_at(at);
    if (**at == '-') {
        *at   = skip_spaces(*at + 1);
        *last = number_at(at);
    }
    bool more = **at == ',';
    if (more) *at = skip_spaces(*at + 1);
    bool good = *first >= 0 && *last >= *first && (more ? **at != '\0' : **at == '\0');
    if (!good) *first = -1;
    return good;
}

static bool is_all(const char *layers)
{
    return !layers || strcmp(layers, "all") == 0;
}

cpl_status cpl_erc_check_layers(const cpl_erc_settings *erc, int64_t n_layers)
{
    const char *layers = erc->layers;
    const char *at     = skip_spaces(is_all(layers) ? "" : layers);
    int64_t first = is_all(layers) ? 0 : -1, last = 0;
    while (next_range(&at, &first, &last))
        if (last >= n_layers)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "erc.layers %.100s names layer %lld, but model.num_hidden_layers is "
                            "%lld: layers are 0 to %lld",
                            layers, (long long)last, (long long)n_layers, (long long)n_layers - 1);
    if (first < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "erc.layers is \"%.100s\"; it must be all, or layers and ranges of them "
                        "such as 0-2, 5",
                        layers);
    return CPL_OK;
}

bool cpl_erc_layer_enabled(const cpl_erc_settings *erc, int64_t layer)
{
    const char *at = skip_spaces(is_all(erc->layers) ? "" : erc->layers);
    int64_t first, last;
    while (next_range(&at, &first, &last))
        if (layer >= first && layer <= last) return true;
    return is_all(erc->layers);
}

int64_t cpl_erc_n_layers(const cpl_erc_settings *erc, int64_t n_layers)
{
    int64_t count = 0;
    for (int64_t l = 0; l < n_layers; l++) count += cpl_erc_layer_enabled(erc, l);
    return count;
}

/* ---- one layer ---- */

void cpl_coupling_schedule(const cpl_erc_settings *erc, int64_t step, double *weight, double *alpha)
{
    const int64_t since = step - erc->start_step;
    *weight             = since > 0 ? erc->weight : 0;
    *alpha              = erc->alpha;
    if (since <= 0 || since >= erc->warmup_steps) return;
    const double progress = (double)since / (double)erc->warmup_steps;
    *weight *= progress;
    if (!isnan(erc->alpha_start))
        *alpha = erc->alpha_start + progress * (erc->alpha - erc->alpha_start);
}

/* Sets this rank's rows and columns of M. Without a mesh they are all rows and columns. */
static void set_part(cpl_erc_job *job, int64_t n, const cpl_mesh *mesh)
{
    job->i1 = n;
    job->j1 = n;
    if (!mesh) return;
    const int64_t each = (n + mesh->replicas.size - 1) / mesh->replicas.size;
    const int64_t at   = mesh->replicas.rank * each;
    job->i0            = at < n ? at : n;
    job->i1            = at + each < n ? at + each : n;
    job->j0            = mesh->first_expert;
    job->j1            = mesh->first_expert + mesh->n_local;
}

/* Returns the outputs of the loss in terms of its rows. Gradients that erc.gradient leaves out are
 * none. Unless erc.proxy is row, the gradient of the rows that replace R replaces that of R. */
static cpl_coupling_outputs outputs_of_rows(cpl_backend *be, const cpl_coupling_outputs *out,
                                            const cpl_erc_settings *erc)
{
    const cpl_tensor none  = cpl_tensor_none();
    cpl_coupling_outputs o = *out;
    if (erc->gradient == CPL_ERC_TO_EXPERTS) o.dR = none;
    if (erc->gradient == CPL_ERC_TO_ROUTER) o.dw = (cpl_expert_weights){none, none, none};
    if (erc->gradient == CPL_ERC_TO_ROUTER) o.latent.dw = none;
    if (!cpl_tensor_is_there(o.dR) || erc->proxy == CPL_PROXY_ROW) return o;
    be->ops->fill(be, out->drows, 0);
    o.dR = out->drows;
    return o;
}

/* Returns the rows of the loss: R, or the rows of erc.proxy, set in out->rows. */
static cpl_tensor set_rows(cpl_backend *be, const cpl_coupling_outputs *out, cpl_tensor R,
                           const cpl_erc_settings *erc)
{
    const cpl_coupling_tokens *t = &out->tokens;
    if (erc->proxy == CPL_PROXY_ROW) return R;
    be->ops->centre(be, out->rows, R);
    if (erc->proxy == CPL_PROXY_TOKENS)
        be->ops->unit_rows(be, out->rows, out->rows, t->mean, t->scale);
    return out->rows;
}

/* Adds the gradient of R, computed from the gradient of the rows of erc.proxy. Centring is linear
 * and symmetric, so the gradient is centred too. The centred rows, whose lengths the gradient
 * needs, take the place of out->rows for a moment. */
static void rows_backward(cpl_backend *be, const cpl_coupling_outputs *out, cpl_tensor R,
                          const cpl_erc_settings *erc)
{
    if (erc->proxy == CPL_PROXY_TOKENS) {
        be->ops->centre(be, out->rows, R);
        be->ops->unit_rows_backward(be, out->drows, out->drows, out->rows, out->tokens.scale);
        (void)set_rows(be, out, R, erc);
    }
    be->ops->centre(be, out->drows, out->drows);
    be->ops->add(be, out->dR, out->drows, 1);
}

/* ---- latent experts: the loss of other rows ---- */

static bool is_latent(const cpl_coupling_outputs *out)
{
    return cpl_tensor_is_there(out->latent.w);
}

/* Returns whether the gradient of V is needed: for R or for W_l. */
static bool needs_dv(const cpl_coupling_outputs *out)
{
    return cpl_tensor_is_there(out->dR) || cpl_tensor_is_there(out->latent.dw);
}

/* Sets V = (rows * delta) W_l^T, which takes the place of the proxies, and zeroes its gradient. */
static void project_rows(cpl_backend *be, const cpl_coupling_outputs *out, cpl_tensor rows)
{
    const cpl_coupling_latent *t = &out->latent;
    be->ops->fill(be, t->x, 0);
    be->ops->add_product(be, t->x, rows, out->delta);
    be->ops->gemm_f32(be, t->v, CPL_AS_IS, t->x, CPL_TRANSPOSED, t->w, 0);
    if (needs_dv(out)) be->ops->fill(be, t->dv, 0);
}

/* Adds the gradients of W_l and of the rows, computed from the gradient of V. */
static void project_rows_backward(cpl_backend *be, const cpl_coupling_outputs *out)
{
    const cpl_coupling_latent *t = &out->latent;
    if (cpl_tensor_is_there(t->dw))
        be->ops->gemm_f32(be, t->dw, CPL_TRANSPOSED, t->dv, CPL_AS_IS, t->x, 1);
    if (!cpl_tensor_is_there(out->dR)) return;
    be->ops->gemm_f32(be, t->dx, CPL_AS_IS, t->dv, CPL_AS_IS, t->w, 0);
    be->ops->add_product(be, out->dR, t->dx, out->delta);
}

/* ---- one draw ---- */

static cpl_erc_job job_of(const cpl_coupling_outputs *out, cpl_tensor R, cpl_expert_weights w,
                          const cpl_erc_settings *erc, const cpl_mesh *mesh)
{
    cpl_erc_job job = {.activation = (cpl_erc_activation)erc->activation,
                       .R          = R,
                       .delta      = out->delta,
                       .gate       = w.w_gate,
                       .up         = w.w_up,
                       .down       = w.w_down,
                       .dR         = out->dR,
                       .dgate      = out->dw.w_gate,
                       .dup        = out->dw.w_up,
                       .ddown      = out->dw.w_down,
                       .M          = out->M,
                       .loss       = out->loss,
                       .diagonal   = out->diagonal,
                       .violations = out->violations};
    if (is_latent(out)) {
        job.R     = out->latent.v;
        job.delta = cpl_tensor_none();
        job.dR    = needs_dv(out) ? out->latent.dv : cpl_tensor_none();
    }
    set_part(&job, R.shape[0], mesh);
    return job;
}

static void draw_noise(cpl_backend *be, const cpl_coupling_outputs *out,
                       const cpl_erc_settings *erc, const cpl_coupling_noise *noise, int64_t draw)
{
    const cpl_rng_key key = {noise->seed, noise->step, noise->layer, CPL_STREAM_NOISE};
    if (noise->given) return;
    if (erc->noise == CPL_NOISE_NONE)
        be->ops->fill(be, out->delta, 1.0f);
    else
        be->ops->erc.noise(be, out->delta, out->eps, key, (uint64_t)draw);
}

/* Runs the phases of couplet.h with the exchange between them. The gradient of a diagonal is linear
 * in the hinges that it bounds, so each replica adds the part of the hinges of its own rows. With
 * more replicas than rows, a rank without rows only takes part in the exchange. */
static void run_over(cpl_backend *be, const cpl_erc_job *job, cpl_mesh *mesh)
{
    const cpl_erc_ops *ops = &be->ops->erc;
    const bool works       = job->i1 > job->i0;
    be->ops->fill(be, job->diagonal, 0);
    be->ops->fill(be, job->violations, 0);
    if (cpl_tensor_is_there(job->M)) be->ops->fill(be, job->M, 0);
    if (works) ops->diagonals(be, *job);
    cpl_group_sum_tensor(&mesh->experts, be, job->diagonal);
    if (works) ops->sweep(be, *job);
    cpl_group_sum_tensor(&mesh->experts, be, job->violations);
    if (works) ops->add_diagonal(be, *job);
}

int64_t cpl_coupling_draws(const cpl_erc_settings *erc, const cpl_coupling_noise *noise)
{
    return noise->given || erc->noise == CPL_NOISE_NONE ? 1 : erc->draws;
}

void cpl_coupling(cpl_backend *be, const cpl_coupling_outputs *out, cpl_tensor R,
                  cpl_expert_weights w, const cpl_erc_settings *erc, double alpha, double weight,
                  cpl_dtype compute, const cpl_coupling_noise *noise, cpl_mesh *mesh)
{
    const int64_t draws            = cpl_coupling_draws(erc, noise);
    const cpl_tensor rows          = set_rows(be, out, R, erc);
    const cpl_coupling_outputs own = outputs_of_rows(be, out, erc);
    cpl_erc_job job                = job_of(&own, rows, w, erc, mesh);
    job.compute                    = compute;
    job.alpha                      = alpha;
    job.weight                     = weight / (double)draws;
    be->ops->fill(be, out->loss, 0);
    be->ops->erc.nearest(be, out->eps, rows);
    for (int64_t draw = 0; draw < draws; draw++) {
        draw_noise(be, out, erc, noise, draw);
        if (is_latent(out)) project_rows(be, &own, rows);
        if (mesh)
            run_over(be, &job, mesh);
        else
            be->ops->erc.run_local(be, job);
        if (is_latent(out)) project_rows_backward(be, &own);
    }
    if (mesh) cpl_group_sum_tensor(&mesh->world, be, out->loss);
    if (erc->proxy != CPL_PROXY_ROW && cpl_tensor_is_there(own.dR)) rows_backward(be, out, R, erc);
}
