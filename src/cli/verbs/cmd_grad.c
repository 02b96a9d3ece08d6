/* cmd_grad.c - couplet grad: every gradient of one batch, for research and for checking. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "checkpoint/stored.h"
#include "cli/arguments/configure.h"
#include "cli/arguments/flags.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/output.h"
#include "io/json.h"
#include "model/aux_losses.h"
#include "store/hf.h"
#include "store/named.h"
#include "tensor/backend/backend.h"
#include "train/loop.h"
#include "train/step.h"

/* ---- the tokens ---- */

typedef struct tokens {
    int32_t *ids, *target; /* [B,T], owned */
    int64_t rows, length;
} tokens;

static cpl_status read_row(const tokens *t, int64_t row, const json_t *ids, int64_t vocab_size,
                           const char *path)
{
    if (!json_is_array(ids) || (int64_t)json_array_size(ids) != t->length)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: row %lld of input_ids has %lld ids, the first row has %lld", path,
                        (long long)row, (long long)json_array_size(ids), (long long)t->length);
    for (int64_t i = 0; i < t->length; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= vocab_size)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: input_ids[%lld][%lld] is not an id of the model (0 to %lld)", path,
                            (long long)row, (long long)i, (long long)(vocab_size - 1));
        t->ids[row * t->length + i] = (int32_t)json_integer_value(id);
    }
    for (int64_t i = 0; i < t->length; i++) /* targets: the ids shifted by one */
        t->target[row * t->length + i] = i + 1 < t->length ? t->ids[row * t->length + i + 1] : -1;
    return CPL_OK;
}

static cpl_status read_tokens(tokens *t, const char *path, const cpl_model_settings *config)
{
    json_t *json = NULL, *rows = NULL;
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_json_load_given(&json, path));
    if (json_is_object(json)) rows = json_object_get(json, "input_ids");
    t->rows   = (int64_t)json_array_size(rows);
    t->length = (int64_t)json_array_size(json_array_get(rows, 0));
    if (t->rows < 1 || t->length < 2) {
        status = CPL_FAIL(
            CPL_ERR_INPUT,
            "%s: expected {\"input_ids\": [[...], ...]} with rows of at least two ids", path);
        goto done;
    }
    t->ids    = cpl_alloc((size_t)(t->rows * t->length) * sizeof *t->ids);
    t->target = cpl_alloc((size_t)(t->rows * t->length) * sizeof *t->target);
    if (!t->ids || !t->target) status = CPL_ERR_MEMORY;
    for (int64_t i = 0; status == CPL_OK && i < t->rows; i++)
        status = read_row(t, i, json_array_get(rows, (size_t)i), config->vocab_size, path);
done:
    json_decref(json);
    return status;
}

/* ---- the gradient ---- */

/* Holds the resources of the verb; empty if all zero. */
typedef struct work {
    cpl_hf *hf;
    tokens tokens;
    cpl_backend backend;
    cpl_model model;
    cpl_step step;
    cpl_tensor_arena arena; /* gradients, logits, metrics */
    cpl_params grads;
    cpl_tensor logits; /* [B T, V] */
    cpl_tensor losses; /* [2 + CPL_N_AUX_LOSSES] the losses that are written */
    cpl_tensor sum;    /* [1] F64 */
    cpl_metrics metrics;
} work;

static void take_results(work *w, cpl_tensor_arena *arena, const cpl_model_settings *config)
{
    cpl_params_take(&w->grads, arena, config, CPL_F32);
    w->logits = cpl_tensor_take_2d(arena, w->tokens.rows * w->tokens.length, config->vocab_size);
    w->losses = cpl_tensor_take_1d(arena, 2 + CPL_N_AUX_LOSSES);
    w->sum    = cpl_tensor_take_numbers(arena, 1);
    cpl_metrics_take(&w->metrics, &arena->host, config, 0);
}

static cpl_status allocate(work *w, const cpl_settings *settings, const cpl_log *log)
{
    cpl_model_settings own           = *cpl_hf_config(w->hf);
    const cpl_model_settings *config = &own;
    cpl_work shapes                  = cpl_step_work(settings, config, w->tokens.rows);
    cpl_tensor_arena measured        = cpl_tensor_arena_measure();
    take_results(w, &measured, config);
    cpl_train_set_activations(&own, settings);
    CPL_TRY(cpl_backend_open(&w->backend, settings->compute.device,
                             cpl_dtype_chosen(settings->compute.dtype),
                             (int)settings->compute.threads));
    cpl_backend_tell(&w->backend, log);
    CPL_TRY(cpl_tensor_arena_init(&w->arena, &w->backend, &measured, "gradients and logits"));
    take_results(w, &w->arena, config);
    CPL_TRY(cpl_backend_reserve(&w->backend, &shapes));
    CPL_TRY(cpl_model_init(&w->model, &w->backend, config, w->tokens.length));
    CPL_TRY(cpl_hf_load(w->hf, &w->model));
    return cpl_step_init(&w->step, &w->backend, settings, config, w->tokens.rows, NULL);
}

/* Fails with CPL_ERR_INPUT and the name of the first such tensor if tensors of the weights have NaN
 * or infinity: gradients of such a model are meaningless. The sum of finite F32 numbers in double
 * is finite. */
static cpl_status check_finite(work *w)
{
    const cpl_model_settings *config = &w->model.config;
    cpl_params params                = w->model.master;
    cpl_backend *be                  = &w->backend;
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        const cpl_param p   = cpl_params_at(config, i);
        const cpl_tensor t  = *cpl_params_tensor(&params, &p);
        const int64_t parts = p.per_expert ? config->n_experts : 1;
        const int64_t each  = cpl_tensor_count(t) / parts;
        for (int64_t e = 0; e < parts; e++) {
            char name[128];
            be->ops->fill(be, w->sum, 0);
            be->ops->sum(be, w->sum, cpl_tensor_numbers(t, e * each, each));
            if (isfinite(cpl_tensor_number(be, w->sum))) continue;
            cpl_param_name(name, &p, e);
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: tensor %s has values that are NaN or infinite; no gradient was "
                            "computed",
                            cpl_hf_folder(w->hf), name);
        }
    }
    return CPL_OK;
}

static cpl_status read_delta(work *w, const char *path)
{
    cpl_stored_files *file = NULL;
    cpl_named_list list    = {.be = &w->backend};
    cpl_status status      = CPL_OK;
    if (!cpl_router_of(&w->model.config)->has_rows)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "--delta %s: this model has no router rows (model.router is %s), so no noise", path,
            cpl_router_of(&w->model.config)->name);
    CPL_TRY(cpl_stored_open_strict(&file, path, NULL));
    for (int64_t l = 0; l < w->model.config.n_layers; l++) {
        char name[40];
        snprintf(name, sizeof name, "delta.%lld", (long long)l);
        CPL_TRY_DONE(cpl_named_add(&list, name, w->step.delta[l]));
    }
    CPL_TRY_DONE(cpl_named_read(&list, file));
    w->step.has_delta = true;
done:
    cpl_named_free(&list);
    cpl_stored_close(file);
    return status;
}

/* ---- written tensors ---- */

/* Holds the values of the tensors loss.*: cross-entropy, auxiliary losses, total. */
typedef struct losses {
    float ce, aux[CPL_N_AUX_LOSSES], total;
} losses;

/* Adds the coupling tensors to the list, unless the model has no router. */
static cpl_status name_coupling(cpl_named_list *list, const work *w)
{
    if (!w->metrics.aux[CPL_AUX_ERC].computed) return CPL_OK;
    for (int64_t l = 0; l < w->model.config.n_layers; l++) {
        char name[40];
        snprintf(name, sizeof name, "erc.%lld.M", (long long)l);
        CPL_TRY(cpl_named_add(list, name, w->step.M[l]));
        snprintf(name, sizeof name, "erc.%lld.eps", (long long)l);
        CPL_TRY(cpl_named_add(list, name, w->step.eps[l]));
    }
    return CPL_OK;
}

/* Adds `value` as scalar number `*number` of w->losses, and counts it. */
static cpl_status name_loss(cpl_named_list *list, const work *w, int64_t *number, const char *name,
                            float value)
{
    cpl_tensor scalar = cpl_tensor_numbers(w->losses, (*number)++, 1);
    scalar.rank       = 0;
    list->be->ops->put(list->be, scalar, &value);
    return cpl_named_add(list, name, scalar);
}

static cpl_status write_results(work *w, const losses *l, const char *path)
{
    cpl_named_list list = {.be = &w->backend};
    int64_t n           = 0;
    cpl_status status   = CPL_OK;
    CPL_TRY_DONE(cpl_named_add(
        &list, "logits",
        cpl_tensor_as_3d(w->logits, w->tokens.rows, w->tokens.length, w->model.config.vocab_size)));
    CPL_TRY_DONE(name_loss(&list, w, &n, "loss.ce", l->ce));
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
        char name[64];
        snprintf(name, sizeof name, "loss.%s", cpl_aux_losses[i].name);
        if (w->metrics.aux[i].computed) CPL_TRY_DONE(name_loss(&list, w, &n, name, l->aux[i]));
    }
    CPL_TRY_DONE(name_loss(&list, w, &n, "loss.total", l->total));
    CPL_TRY_DONE(name_coupling(&list, w));
    CPL_TRY_DONE(cpl_named_params(&list, &w->grads, &w->model.config, "grad."));
    CPL_TRY_DONE(cpl_named_write(&list, path));
done:
    cpl_named_free(&list);
    return status;
}

/* Prints each computed term of the total. */
static void print_losses(const cpl_settings *settings, const cpl_metrics *m, const losses *l)
{
    const bool mean = settings->losses.erc.reduce == CPL_ERC_MEAN;
    printf("cross-entropy %.6f", (double)l->ce);
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) {
        if (!m->aux[i].computed) continue;
        printf("  %s %.6f", cpl_aux_losses[i].label, (double)l->aux[i]);
        if (i == CPL_AUX_ERC) printf(" (%s over layers)", mean ? "mean" : "sum");
    }
    printf("  total %.6f\n", (double)l->total);
}

static cpl_status compute_and_write(work *w, cpl_settings *settings, const cpl_arguments *args,
                                    const cpl_log *log)
{
    const char *delta = cpl_flag_text(args, "--delta");
    CPL_TRY(read_tokens(&w->tokens, cpl_flag_text(args, "--tokens"), cpl_hf_config(w->hf)));
    settings->data.seq_len = w->tokens.length;
    CPL_TRY(allocate(w, settings, log));
    CPL_TRY(check_finite(w));
    if (delta) CPL_TRY(read_delta(w, delta));
    cpl_step_batch batch = {w->tokens.ids, w->tokens.target, NULL, w->tokens.rows,
                            w->tokens.rows * (w->tokens.length - 1)};
    cpl_step_gradient(&w->step, &w->model, &w->grads, settings, &batch, false, true, &w->metrics);
    /* Repeats the forward pass: the backward pass has overwritten the inputs of the logits. */
    cpl_model_forward(&w->model, &w->step.pass, w->step.tokens.ids, cpl_tensor_none(), NULL);
    cpl_model_logits(&w->model, &w->step.pass, w->logits, 0);
    CPL_TRY(w->backend.ops->sync(&w->backend));
    const cpl_metrics *m = &w->metrics;
    losses l             = {.ce = (float)m->loss, .total = (float)m->loss_total};
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++) l.aux[i] = (float)m->aux[i].value;
    CPL_TRY(write_results(w, &l, cpl_flag_text(args, "--out")));
    print_losses(settings, m, &l);
    if (!isfinite(l.total)) cpl_log_warn(log, "the loss is not finite: %g", (double)l.total);
    return CPL_OK;
}

static cpl_status refuse_tokens(const cpl_erc_settings *erc)
{
    if (erc->proxy != CPL_PROXY_TOKENS) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "erc.proxy is tokens, but the moving means of the tokens are known in training "
                    "alone: give --set erc.proxy=row or --set erc.proxy=centred");
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_configuration c;
    work w            = {0};
    cpl_status status = CPL_OK;
    cpl_log log       = cpl_output_log(stderr);
    CPL_TRY(cpl_configure(&c, NULL, args));
    CPL_TRY_DONE(refuse_tokens(&c.settings.losses.erc));
    c.settings.compute.dtype =
        c.settings.compute.dtype == CPL_DTYPE_BF16 ? CPL_DTYPE_BF16 : CPL_DTYPE_F32;
    CPL_TRY_DONE(cpl_train_resolve_machine(&c.settings, NULL, 1, false));
    CPL_TRY_DONE(cpl_output_paths_keep(args, cpl_flag_text(args, "--tokens")));
    CPL_TRY_DONE(cpl_output_paths_keep(args, cpl_flag_text(args, "--delta")));
    CPL_TRY_DONE(cpl_output_paths_outside(args));
    CPL_TRY_DONE(cpl_output_paths_check(args, "loss.total"));
    CPL_TRY_DONE(cpl_hf_open(&w.hf, args->words[0], &log));
    CPL_TRY_DONE(cpl_aux_resolve(&c.settings.losses, cpl_hf_config(w.hf)));
    CPL_TRY_DONE(compute_and_write(&w, &c.settings, args, &log));
done:
    cpl_step_free(&w.step);
    cpl_model_free(&w.model);
    cpl_tensor_arena_free(&w.arena);
    cpl_backend_free(&w.backend);
    cpl_free(w.tokens.ids);
    cpl_free(w.tokens.target);
    cpl_hf_close(w.hf);
    cpl_configuration_free(&c);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--tokens", FILE, "TOKENS.json",
             "The sequences to compute: {\"input_ids\": [[...], ...]}, all of equal length.",
             .required = true),
    CPL_FLAG("--out", FILE, "GRADS.safetensors", "The file to write.", .required = true),
    CPL_FLAG_ROW_OVERWRITE,
    CPL_FLAG(
        "--delta", FILE, "DELTA.safetensors",
        "The noise of the coupling loss, delta.{l} [n,d], instead of that of train.seed at step "
        "0."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_grad = {
    .name    = "grad",
    .summary = "write every gradient of one batch to a file",
    .usage   = "MODEL_DIR --tokens TOKENS.json --out GRADS.safetensors [--delta DELTA.safetensors] "
               "[--set erc.alpha=0.5 ...]",
    .about =
        "Runs one forward and backward pass over the rows and changes nothing. MODEL_DIR is a "
        "Hugging Face OLMoE directory, a checkpoint, or a run.\n"
        "Labels are the ids shifted by one; the cross-entropy is the mean over the B(T-1) "
        "predicted "
        "tokens. It computes in f32; --set compute.dtype=bf16 changes that.\n"
        "The file has logits [B,T,V]; loss.ce, loss.NAME for every auxiliary loss that is computed "
        "(loss.erc after erc.reduce, the others means over layers; loss.orth where orth.weight is "
        "above 0), and loss.total; per layer "
        "erc.{l}.M [n,n] and erc.{l}.eps [n]; and "
        "grad.NAME of the total loss for every tensor under its Hugging Face name, F32.",
    .least = 1,
    .most  = 1,
    CPL_VERB_FLAGS(flags),
    .settings =
#define CPL_LOSS(id, name, ...) #name " "
#include "model/aux_losses.def"
        "-erc.start_step -erc.warmup_steps -erc.alpha_start -balance.bias_rate "
        "compute.device compute.dtype compute.activations train.seed",
    .run = run,
};
