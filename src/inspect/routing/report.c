/* report.c - see report.h */
#include "inspect/routing/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/paths.h"
#include "model/cost.h"

/* ---- the run around the checkpoint ---- */

static cpl_status add_step(cpl_routing_report *r, int64_t step)
{
    cpl_routing_step *more = cpl_realloc(r->steps, (size_t)(r->n_steps + 1) * sizeof *more);
    if (!more) return CPL_ERR_MEMORY;
    r->steps               = more;
    r->steps[r->n_steps++] = (cpl_routing_step){.step = step};
    return CPL_OK;
}

static int by_step(const void *a, const void *b)
{
    const cpl_routing_step *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

/* Finds the other checkpoints, if the user named the folder of a run. */
static cpl_status find_steps(cpl_routing_report *r)
{
    cpl_strings names = {0};
    cpl_status status = CPL_OK;
    if (r->reader.step < 0 || strcmp(cpl_hf_folder(r->reader.hf), r->path) == 0) return CPL_OK;
    CPL_TRY(cpl_folder_list(&names, r->path));
    for (int64_t i = 0; status == CPL_OK && i < names.count; i++) {
        int64_t step = cpl_reader_step(names.at[i]);
        if (step >= 0 && step != r->reader.step) status = add_step(r, step);
    }
    cpl_paths_free(&names);
    if (r->n_steps) qsort(r->steps, (size_t)r->n_steps, sizeof *r->steps, by_step);
    return status;
}

/* Sends the checkpoints that rank 0 has found to all ranks, because an older one may be removed at
 * any time. It is collective. `status` is the result of this rank so far. */
static cpl_status share_steps(cpl_routing_report *r, cpl_group *group, cpl_status status)
{
    cpl_text own     = {0};
    cpl_gathered all = {0};
    if (cpl_gather_is_alone(group)) return status;
    for (int64_t i = 0; i < r->n_steps; i++)
        cpl_text_append(&own, &r->steps[i].step, sizeof r->steps[i].step);
    status = cpl_gather_texts(&all, group, status, &own);
    cpl_text_free(&own);
    CPL_TRY(status);
    r->n_steps = 0;
    for (int64_t i = 0; i < all.length[0] / (int64_t)sizeof *all.length && status == CPL_OK; i++)
        status = add_step(r, ((const int64_t *)(const void *)all.bytes)[i]);
    cpl_gathered_free(&all);
    return cpl_gather_status(group, status);
}

/* ---- memory ---- */

static cpl_status take_layers(cpl_routing_report *r)
{
    const size_t n = (size_t)r->n_experts, sources = (size_t)r->texts.sources.count;
    const size_t d   = (size_t)cpl_hf_config(r->reader.hf)->d_model;
    r->layers        = cpl_pool_take(&r->pool, (size_t)r->n_layers * sizeof *r->layers);
    r->source_tokens = cpl_pool_take(&r->pool, sources * sizeof *r->source_tokens);
    for (int64_t i = 0; r->layers && i < r->n_layers; i++) {
        cpl_routing_layer *l = &r->layers[i];
        l->assignments       = cpl_pool_take(&r->pool, n * sizeof *l->assignments);
        l->mean_weight       = cpl_pool_take(&r->pool, n * sizeof *l->mean_weight);
        l->together          = cpl_pool_take(&r->pool, n * n * sizeof *l->together);
        l->by_source         = cpl_pool_take(&r->pool, sources * n * sizeof *l->by_source);
        l->M_tok             = cpl_pool_take(&r->pool, n * n * sizeof *l->M_tok);
        l->token_mean        = cpl_pool_take(&r->pool, d * sizeof *l->token_mean);
        l->curve             = cpl_pool_take(&r->pool, n * sizeof *l->curve);
        l->routed            = cpl_pool_take(&r->pool, n * sizeof *l->routed);
    }
    return cpl_pool_status(&r->pool);
}

void cpl_routing_close(cpl_routing_report *r)
{
    cpl_pool_free(&r->pool);
    cpl_free(r->steps);
    cpl_texts_free(&r->texts);
    cpl_reader_close(&r->reader);
    memset(r, 0, sizeof *r);
}

/* ---- opening ---- */

static cpl_routing_cost cost_of(const cpl_routing_report *r)
{
    const cpl_model_settings *c = cpl_hf_config(r->reader.hf);
    double readings = (double)(1 + r->n_steps), tokens = (double)r->texts.n_predictions;
    double products = 2 * (double)(c->n_layers * c->n_experts) * (double)(c->d_expert * c->d_model);
    return (cpl_routing_cost){.tokens      = r->texts.n_predictions,
                              .checkpoints = 1 + r->n_steps,
                              .flops =
                                  readings * tokens * cpl_cost_token(c, (double)r->reader.window) +
                                  (double)(2 * r->n_sampled + c->n_experts) * products};
}

static cpl_status open_own(cpl_routing_report *r, const char *model_dir,
                           const cpl_routing_options *options, const cpl_log *log)
{
    cpl_texts_options texts = options->texts;
    r->options              = *options;
    r->path                 = cpl_pool_copy(&r->pool, model_dir, strlen(model_dir));
    CPL_TRY(cpl_pool_status(&r->pool));
    CPL_TRY(cpl_reader_open(&r->reader, model_dir, &options->reader, log));
    if (cpl_hf_config(r->reader.hf)->d_latent > 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s has latent experts, whose responses to text cannot be measured yet: "
                        "leave --text out to measure its weights",
                        model_dir);
    texts.eos = r->reader.eos;
    CPL_TRY(cpl_texts_read(&r->texts, options->inputs, options->n_inputs, r->reader.tokenizer,
                           &texts, log));
    const cpl_model_settings *config = cpl_hf_config(r->reader.hf);
    int64_t all = r->texts.n_predictions, limit = options->response_tokens;
    r->n_layers  = config->n_layers;
    r->n_experts = config->n_experts;
    r->top_k     = config->top_k;
    r->d_model   = config->d_model;
    r->n_sampled = limit < all ? limit : all;
    CPL_TRY(find_steps(r));
    return take_layers(r);
}

cpl_status cpl_routing_open(cpl_routing_report *r, cpl_routing_cost *cost, const char *model_dir,
                            const cpl_routing_options *options, const cpl_log *log)
{
    memset(r, 0, sizeof *r);
    cpl_status status = open_own(r, model_dir, options, log);
    status            = share_steps(r, options->reader.group, status);
    if (status == CPL_OK) *cost = cost_of(r);
    if (status != CPL_OK) cpl_routing_close(r);
    return status;
}

/* ---- one reading ---- */

/* Results of the reading with the last checkpoint. */
typedef struct work {
    cpl_routing_report *report;
    cpl_routing_record record;
    cpl_routing_agreement *agreement; /* [L] */
    cpl_routing_tokens tokens;
    cpl_routing_index input;
    cpl_pool pool; /* memory of these fields */
} work;

static cpl_status begin(work *w)
{
    cpl_routing_report *r            = w->report;
    const cpl_model_settings *config = cpl_hf_config(r->reader.hf);
    const int64_t room               = cpl_router_of(config)->has_rows ? r->n_sampled : 0;
    w->agreement = cpl_pool_take(&w->pool, (size_t)r->n_layers * sizeof *w->agreement);
    if (!w->agreement) return cpl_pool_status(&w->pool);
    for (int64_t l = 0; l < r->n_layers; l++)
        CPL_TRY(cpl_routing_agreement_init(&w->agreement[l], &w->pool, r->n_experts, r->top_k,
                                           config->d_model, room));
    CPL_TRY(cpl_routing_tokens_init(&w->tokens, &w->pool, &r->texts));
    for (int64_t t = 0; t < w->tokens.count; t++) r->source_tokens[w->tokens.source[t]]++;
    return cpl_routing_index_init(&w->input, &w->pool, w->tokens.input, w->tokens.count,
                                  r->options.seed);
}

static void set_agreement(cpl_routing_layer *l, const cpl_routing_agreement *a)
{
    const double tokens = (double)a->n_tokens, ranked = (double)a->n_ranked;
    l->rho_mean = a->rho / ranked; /* NaN without ranked tokens */
    l->rho_sd   = sqrt(fmax(a->rho_2 / ranked - l->rho_mean * l->rho_mean, 0));
    if (a->n_ranked == 0) l->rho_sd = (double)NAN;
    l->top1    = (double)a->top1 / tokens;
    l->overlap = (double)a->shared / (tokens * (double)a->top_k);
    memcpy(l->routed, a->routed, (size_t)a->n * sizeof *l->routed);
}

static cpl_status set_stand(work *w, int64_t layer)
{
    cpl_routing_report *r = w->report;
    cpl_routing_layer *l  = &r->layers[layer];
    const size_t cells    = (size_t)(r->n_experts * r->n_experts);
    if (cpl_routing_has_router(&r->reader.model.master.layer[layer])) {
        l->M         = cpl_pool_take(&r->pool, cells * sizeof *l->M);
        l->M_centred = cpl_pool_take(&r->pool, cells * sizeof *l->M_centred);
        CPL_TRY(cpl_pool_status(&r->pool));
        CPL_TRY(cpl_routing_clean(l->M, l->M_centred, &r->reader, layer));
    }
    return cpl_routing_m_tok_of(&l->m_tok, l->M_tok, &w->agreement[layer], l->M, l->M_centred,
                                r->options.alphas, r->options.n_alphas);
}

static cpl_status set_signs(work *w, int64_t layer)
{
    cpl_routing_layer *l           = &w->report->layers[layer];
    const cpl_routing_agreement *a = &w->agreement[layer];
    const int64_t cells            = a->samples.count * a->n;
    double squares = 0, sum = 0;
    for (int64_t k = 0; k < a->d; k++) {
        l->token_mean[k] = a->row[k] / (double)a->n_tokens;
        squares += l->token_mean[k] * l->token_mean[k];
    }
    for (int64_t i = 0; i < cells; i++) sum += (double)a->samples.score[i];
    l->token_mean_norm = sqrt(squares);
    l->mean_score      = sum / (double)cells;
    CPL_TRY(cpl_routing_signs_of(&l->signs, &a->samples, w->tokens.input, false));
    return cpl_routing_signs_of(&l->centred_signs, &a->samples, w->tokens.input, true);
}

static cpl_status set_mean_token(work *w, int64_t layer)
{
    enum { MOST_ROOM = 512 };
    cpl_routing_report *r       = w->report;
    cpl_routing_layer *l        = &r->layers[layer];
    cpl_backend *be             = &r->reader.be;
    const cpl_token_samples *s  = &w->agreement[layer].samples;
    const int64_t room          = s->count < MOST_ROOM ? s->count : MOST_ROOM;
    cpl_tensor_arena arena      = cpl_tensor_arena_measure();
    const cpl_rng_key key       = {r->options.seed, 0, (uint32_t)layer, CPL_STREAM_LABELS};
    const cpl_layer_params *own = &r->reader.model.master.layer[layer];
    cpl_token_scratch scratch;
    if (!l->M) return CPL_OK;
    cpl_token_scratch_take(&scratch, &arena, &r->reader.model.config, room, NULL);
    CPL_TRY(cpl_tensor_arena_init(&arena, be, &arena, "answers without the mean token"));
    cpl_token_scratch_take(&scratch, &arena, &r->reader.model.config, room, NULL);
    cpl_status status = cpl_mean_token_of(&l->mean_token, l->curve, be, own, s, &scratch, &key);
    cpl_tensor_arena_free(&arena);
    return status;
}

static cpl_status set_layer(work *w, int64_t layer)
{
    cpl_routing_report *r           = w->report;
    const cpl_routing_record *chose = &w->record;
    cpl_routing_layer *l            = &r->layers[layer];
    cpl_routing_count_load(&l->load, l->assignments, chose, layer);
    for (int64_t e = 0; e < r->n_experts; e++) /* NaN without assignments */
        l->mean_weight[e] = chose->weight[layer * r->n_experts + e] / (double)l->assignments[e];
    l->router_entropy = chose->entropy[layer] / (double)chose->n_tokens;
    cpl_routing_count_together(l->together, chose, layer);
    l->n_pairs = cpl_routing_frequent(l->pairs, CPL_ROUTING_PAIRS, l->together, r->n_experts);
    l->domain_distance = cpl_routing_count_domains(l->by_source, chose, layer, &w->tokens);
    set_agreement(l, &w->agreement[layer]);
    CPL_TRY(set_stand(w, layer));
    CPL_TRY(set_signs(w, layer));
    CPL_TRY(set_mean_token(w, layer));
    return cpl_routing_vocabulary_of(&l->input, chose, layer, &w->input);
}

/* ---- the run ---- */

static bool same_shape(const cpl_model_settings *a, const cpl_model_settings *b)
{
    return a->n_layers == b->n_layers && a->n_experts == b->n_experts && a->top_k == b->top_k &&
           a->vocab_size == b->vocab_size;
}

/* Reads the ids of the text again with an older checkpoint. */
static cpl_status read_step(work *w, cpl_routing_step *s, const cpl_log *log)
{
    cpl_routing_report *r     = w->report;
    cpl_routing_record record = {0};
    cpl_reader reader         = {0};
    cpl_pool pool             = {0};
    char name[40];
    cpl_status status = CPL_OK;
    snprintf(name, sizeof name, "step-%06lld", (long long)s->step);
    char *folder = cpl_path_join(r->path, name);
    if (!folder) return CPL_ERR_MEMORY;
    cpl_reader_options options = r->options.reader;
    options.window             = r->reader.window;
    status                     = cpl_reader_open(&reader, folder, &options, log);
    if (status == CPL_OK && !same_shape(cpl_hf_config(reader.hf), cpl_hf_config(r->reader.hf)))
        status = CPL_FAIL(CPL_ERR_INPUT, "%s is a model of another shape", folder);
    s->topk = cpl_pool_take(&r->pool, (size_t)r->n_layers * sizeof *s->topk);
    s->top1 = cpl_pool_take(&r->pool, (size_t)r->n_layers * sizeof *s->top1);
    if (status == CPL_OK) status = cpl_pool_status(&r->pool);
    CPL_TRY_DONE(cpl_gather_status(r->reader.group, status));
    CPL_TRY_DONE(cpl_routing_measure(&record, &pool, NULL, 0, &reader, &r->texts));
    for (int64_t l = 0; l < r->n_layers; l++)
        cpl_routing_saturation(&s->topk[l], &s->top1[l], &record, &w->record, l);
done:
    cpl_pool_free(&pool);
    cpl_reader_close(&reader);
    cpl_free(folder);
    return status;
}

static cpl_status read_steps(work *w, const cpl_log *log)
{
    cpl_routing_report *r = w->report;
    int64_t kept          = 0;
    for (int64_t s = 0; s < r->n_steps; s++) {
        cpl_log_info(log, "reading the text with step %lld", (long long)r->steps[s].step);
        cpl_status status = read_step(w, &r->steps[s], log);
        if (status == CPL_ERR_MEMORY) return status;
        if (r->reader.group) CPL_TRY(cpl_group_status(r->reader.group));
        if (status == CPL_OK) {
            r->steps[kept++] = r->steps[s];
            continue;
        }
        cpl_log_warn(log, "step %lld is left out of router saturation: %s",
                     (long long)r->steps[s].step, cpl_last_error());
        r->n_lost++;
    }
    r->n_steps = kept;
    return CPL_OK;
}

cpl_status cpl_routing_run(cpl_routing_report *r, const cpl_log *log)
{
    work w            = {.report = r};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(begin(&w));
    cpl_log_info(log, "reading %lld tokens of text", (long long)r->texts.n_predictions);
    CPL_TRY_DONE(
        cpl_routing_measure(&w.record, &w.pool, w.agreement, r->n_sampled, &r->reader, &r->texts));
    for (int64_t l = 0; l < r->n_layers; l++) CPL_TRY_DONE(set_layer(&w, l));
    cpl_reader_unload(&r->reader);
    status = read_steps(&w, log);
done:
    cpl_pool_free(&w.pool);
    return status;
}
