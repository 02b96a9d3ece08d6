/* coupling.c - see coupling.h. The order of the paper's three steps; the loops over numbers are
 * operations of tensor/erc.h. */
#include "model/coupling.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

/* ---- erc.layers: "all", or "0-2, 5" ---- */

static const char *skip_spaces(const char *at)
{
    while (isspace((unsigned char)*at)) at++;
    return at;
}

/* Reads a number at *at and moves past it; -1 if there is none. */
static int64_t number_at(const char **at)
{
    char *end     = NULL;
    int64_t value = -1;
    if (isdigit((unsigned char)**at)) value = strtoll(*at, &end, 10);
    if (end) *at = skip_spaces(end);
    return value;
}

/* Reads the next "5" or "0-2" of the list; false at its end. Bad syntax: first is -1. */
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

static cpl_erc_weights weights_of(cpl_tensor w)
{
    const int64_t cols = w.shape[2];
    return (cpl_erc_weights){.data = w.data, .step = w.shape[1] * cols, .stride = cols};
}

static cpl_erc_grads grads_of(cpl_tensor dw)
{
    const int64_t cols = dw.shape[2];
    return (cpl_erc_grads){
        .data = dw.data ? cpl_f32(dw) : NULL, .step = dw.shape[1] * cols, .stride = cols};
}

/* This rank's rows and columns of M; without a mesh all of them. */
static void set_part(cpl_erc_job *job, const cpl_mesh *mesh)
{
    job->i1 = job->n;
    job->j1 = job->n;
    if (!mesh) return;
    const int64_t each = (job->n + mesh->replicas.size - 1) / mesh->replicas.size;
    const int64_t at   = mesh->replicas.rank * each;
    job->i0            = at < job->n ? at : job->n;
    job->i1            = at + each < job->n ? at + each : job->n;
    job->j0            = mesh->first_expert;
    job->j1            = mesh->first_expert + mesh->n_local;
}

/* erc.gradient: without the gradients of what the loss does not train. erc.proxy: with the
 * gradient of the centred rows in place of that of R. */
static cpl_coupling_outputs of_the_rows(cpl_backend *be, const cpl_coupling_outputs *out,
                                        const cpl_erc_settings *erc)
{
    const cpl_tensor none  = cpl_tensor_none();
    cpl_coupling_outputs o = *out;
    if (erc->gradient == CPL_ERC_TO_EXPERTS) o.dR = none;
    if (erc->gradient == CPL_ERC_TO_ROUTER) o.dw = (cpl_expert_weights){none, none, none};
    if (!o.dR.data || erc->proxy != CPL_PROXY_CENTRED) return o;
    be->ops->fill(be, out->drows, 0);
    o.dR = out->drows;
    return o;
}

/* The gradient of R from that of its centred rows: R_i - mean R is linear and symmetric in R. */
static void centre_gradient(cpl_backend *be, const cpl_coupling_outputs *out)
{
    be->ops->centre(be, out->drows, out->drows);
    be->ops->add(be, out->dR, out->drows, 1);
}

static cpl_erc_job job_of(const cpl_coupling_outputs *out, cpl_tensor R, cpl_expert_weights w,
                          const cpl_erc_settings *erc, const cpl_mesh *mesh)
{
    const cpl_tensor any = erc->activation == CPL_ERC_UP ? w.w_up : w.w_gate;
    cpl_erc_job job      = {.n = R.shape[0], .d = R.shape[1], .D = any.shape[1]};
    set_part(&job, mesh);
    CPL_ASSERT(any.data && any.shape[0] == job.j1 - job.j0 && any.shape[2] == job.d);
    job.activation = (cpl_erc_activation)erc->activation;
    job.dtype      = any.dtype;
    job.R          = cpl_f32(R);
    job.delta      = cpl_f32(out->delta);
    job.gate       = weights_of(w.w_gate);
    job.up         = weights_of(w.w_up);
    job.down       = weights_of(w.w_down);
    job.dR         = out->dR.data ? cpl_f32(out->dR) : NULL;
    job.dgate      = grads_of(out->dw.w_gate);
    job.dup        = grads_of(out->dw.w_up);
    job.ddown      = grads_of(out->dw.w_down);
    job.M          = out->M.data ? cpl_f32(out->M) : NULL;
    return job;
}

/* The exchanged numbers and the job's own scratch share be->scratch. */
static void take_scratch(cpl_backend *be, cpl_erc_job *job)
{
    const size_t room =
        ((size_t)(3 * job->n) * 4 + CPL_ALIGNMENT - 1) / CPL_ALIGNMENT * CPL_ALIGNMENT;
    CPL_ASSERT(be->scratch_bytes >= room + be->ops->erc.job_bytes(be, job));
    job->diagonal      = be->scratch;
    job->violations    = (int32_t *)(void *)(job->diagonal + job->n);
    job->scratch       = (char *)be->scratch + room;
    job->scratch_bytes = be->scratch_bytes - room;
}

static void draw_noise(cpl_backend *be, const cpl_coupling_outputs *out,
                       const cpl_erc_settings *erc, const cpl_coupling_noise *noise, int64_t draw)
{
    const cpl_rng_key key = {noise->seed, noise->step, noise->layer, CPL_STREAM_NOISE};
    if (noise->given) return;
    if (erc->noise == CPL_NOISE_NONE)
        be->ops->fill(be, out->delta, 1.0f);
    else
        be->ops->erc.noise(be, out->delta, out->eps, &key, (uint64_t)draw);
}

static void count_active(cpl_coupling_result *result, const cpl_erc_job *job, int64_t draws)
{
    const double pairs = (double)job->n * (double)(job->n - 1) * (double)draws;
    if (job->n == 1) return;
    for (int64_t i = 0; i < job->n; i++) {
        result->active_rows += (double)job->violations[i] / pairs;
        result->active_columns += (double)job->violations[job->n + i] / pairs;
    }
}

/* The phases of couplet.h with the exchange between them. The gradient of a diagonal is linear in
 * the hinges against it, so that each replica adds that of the hinges of its own rows. A rank whose
 * rows are none, since there are more replicas than rows, only takes part in the exchange. */
static void run_over(cpl_backend *be, cpl_erc_job *job, cpl_mesh *mesh)
{
    const cpl_erc_ops *ops = &be->ops->erc;
    const bool works       = job->i1 > job->i0;
    const size_t n         = (size_t)job->n;
    memset(job->diagonal, 0, n * sizeof *job->diagonal);
    memset(job->violations, 0, 2 * n * sizeof *job->violations);
    if (job->M) memset(job->M, 0, n * n * sizeof *job->M);
    job->loss = 0;
    if (works) ops->diagonals(be, job);
    cpl_group_sum_f32(&mesh->experts, job->diagonal, job->n);
    if (works) ops->sweep(be, job);
    cpl_group_sum_i32(&mesh->experts, job->violations, 2 * job->n);
    if (works) ops->add_diagonal(be, job);
    cpl_group_sum_i32(&mesh->replicas, job->violations, 2 * job->n); /* for the result */
    cpl_group_sum_f64(&mesh->world, &job->loss, 1);
}

void cpl_coupling(cpl_backend *be, cpl_coupling_result *result, const cpl_coupling_outputs *out,
                  cpl_tensor R, cpl_expert_weights w, const cpl_erc_settings *erc, double alpha,
                  double weight, const cpl_coupling_noise *noise, cpl_mesh *mesh)
{
    const cpl_erc_ops *ops         = &be->ops->erc;
    const bool fixed               = noise->given || erc->noise == CPL_NOISE_NONE;
    const int64_t draws            = fixed ? 1 : erc->draws;
    const bool centred             = erc->proxy == CPL_PROXY_CENTRED;
    const cpl_tensor rows          = centred ? out->rows : R;
    const cpl_coupling_outputs own = of_the_rows(be, out, erc);
    if (centred) be->ops->centre(be, rows, R);
    cpl_erc_job job = job_of(&own, rows, w, erc, mesh);
    job.alpha       = alpha;
    job.weight      = weight / (double)draws;
    take_scratch(be, &job);
    memset(result, 0, sizeof *result);

    ops->nearest(be, out->eps, rows);
    for (int64_t draw = 0; draw < draws; draw++) {
        draw_noise(be, out, erc, noise, draw);
        if (mesh)
            run_over(be, &job, mesh);
        else
            ops->run_local(be, &job);
        result->loss += job.loss / (double)draws;
        count_active(result, &job, draws);
    }
    if (centred && own.dR.data) centre_gradient(be, out);
}
