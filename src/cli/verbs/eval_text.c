/* eval_text.c - `couplet eval --text`: a model's prediction of a text; see internal.h */
#include "cli/verbs/internal.h"

#include <stdio.h>
#include <string.h>

#include "app/plan_run.h"
#include "base/arena.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/output.h"
#include "data/tokens.h"
#include "eval/perplexity.h"
#include "io/json.h"
#include "io/paths.h"
#include "report/grid.h"

enum { DOCUMENTS, TOKENS, BYTES, NATS, PERPLEXITY, BITS, N_COLUMNS };

static const char *const columns[N_COLUMNS] = {"documents",  "tokens",     "bytes",
                                               "nats/token", "perplexity", "bits/byte"};

static cpl_status fill(cpl_grid *g, cpl_pool *pool, const cpl_perplexity *p)
{
    const int64_t rows = p->n_rows == 2 ? 1 : p->n_rows; /* a single source is the total */
    CPL_TRY(cpl_grid_open(g, pool, rows, N_COLUMNS));
    g->corner = "source";
    for (int k = 0; k < N_COLUMNS; k++) g->columns[k] = columns[k];
    for (int64_t i = 0; i < rows; i++) {
        const cpl_perplexity_row *r = &p->rows[i];
        g->rows[i]                  = r->source ? r->source : "all";
        cpl_grid_set(g, i, DOCUMENTS, cpl_pool_printf(pool, "%lld", (long long)r->documents));
        cpl_grid_set(g, i, TOKENS, cpl_pool_printf(pool, "%lld", (long long)r->tokens));
        cpl_grid_set(g, i, BYTES, cpl_pool_printf(pool, "%lld", (long long)r->bytes));
        cpl_grid_set(g, i, NATS, cpl_pool_printf(pool, "%.4f", r->per_token));
        cpl_grid_set(g, i, PERPLEXITY, cpl_pool_printf(pool, "%.4g", r->value));
        cpl_grid_set(g, i, BITS, cpl_pool_printf(pool, "%.4f", r->bits));
    }
    return cpl_pool_status(pool);
}

static cpl_status print_table(const cpl_perplexity *p)
{
    cpl_pool pool = {0};
    cpl_grid g;
    CPL_TRY(cpl_output_grid(fill(&g, &pool, p), &g, &pool));
    printf("windows of %lld tokens", (long long)p->losses.window);
    if (p->losses.stride < p->losses.window)
        printf(", %lld new ones each", (long long)p->losses.stride);
    printf("\n");
    return CPL_OK;
}

/* ---- JSON ---- */

static json_t *as_json(const cpl_perplexity *p, const char *model)
{
    json_t *object = cpl_perplexity_json(p);
    if (object && json_object_set_new(object, "model", cpl_json_words(model)) == 0) return object;
    json_decref(object);
    return NULL;
}

static cpl_status show(const cpl_perplexity *p, const cpl_arguments *args)
{
    const char *json = cpl_flag_text(args, "--json");
    if (!json || strcmp(json, "-") != 0) CPL_TRY(print_table(p));
    if (!json) return CPL_OK;
    CPL_TRY(cpl_output_json(as_json(p, args->words[0]), "the perplexity", json,
                            JSON_REAL_PRECISION(9)));
    cpl_output_paths_describe(args);
    return CPL_OK;
}

/* Refuses a result whose file is one of the texts. */
static cpl_status check_outputs(const cpl_arguments *args, const char *const *inputs)
{
    cpl_strings files = {0};
    CPL_TRY(cpl_output_paths_keep(args, cpl_flag_text(args, "--tokenizer")));
    CPL_TRY(cpl_output_paths_check(args, "results sources"));
    cpl_status status = cpl_documents_expand(&files, inputs, args->n_words);
    for (int64_t i = 0; status == CPL_OK && i < files.count; i++)
        status = cpl_output_paths_keep(args, files.at[i]);
    cpl_paths_free(&files);
    return status;
}

cpl_status cpl_eval_text(const cpl_arguments *args, const cpl_configuration *c, cpl_group *world,
                         const cpl_log *log)
{
    const cpl_settings *s     = &c->settings;
    const bool chosen         = cpl_configuration_gives(c, "compute.dtype");
    cpl_perplexity p          = {0};
    cpl_texts_options texts   = cpl_texts_defaults();
    cpl_reader_options reader = {.tokenizer      = cpl_flag_text(args, "--tokenizer"),
                                 .tokenizer_flag = "--tokenizer",
                                 .window         = cpl_flag_int_or(args, "--window", 0),
                                 .stride         = cpl_flag_int_or(args, "--stride", 0),
                                 .device         = s->compute.device,
                                 .compute   = chosen ? cpl_dtype_chosen(s->compute.dtype) : CPL_F32,
                                 .n_threads = (int)s->compute.threads,
                                 .group     = world};
    texts.reading             = cpl_tokens_reading(&s->data);
    texts.special_as_text     = s->data.special_as_text;
    texts.by_file             = true;
    const char **inputs       = cpl_alloc((size_t)args->n_words * sizeof *inputs);
    if (!inputs) return CPL_ERR_MEMORY;
    inputs[0] = cpl_flag_text(args, "--text");
    for (int i = 1; i < args->n_words; i++) inputs[i] = args->words[i];
    const bool first  = cpl_gather_is_first(world);
    cpl_status status = cpl_gather_status(world, first ? check_outputs(args, inputs) : CPL_OK);
    if (status == CPL_OK)
        status = cpl_document_losses_of(&p.losses, args->words[0], inputs, args->n_words, &reader,
                                        &texts, log);
    if (status == CPL_OK) status = cpl_perplexity_add_up(&p);
    if (status == CPL_OK) status = cpl_gather_status(world, first ? show(&p, args) : CPL_OK);
    cpl_perplexity_free(&p);
    cpl_free(inputs);
    return status;
}
