/* routing_print.c - see internal.h */
#include "cli/verbs/internal.h"

#include <stdio.h>
#include <string.h>

#include "cli/terminal/output.h"
#include "inspect/show/show.h"

/* ---- the expected cost ---- */

cpl_status cpl_routing_options_of(bool *wanted, cpl_routing_options *o, const char **inputs,
                                  const cpl_arguments *args, const cpl_inspect_options *inspect)
{
    static const double usual[]        = {0.5, 1, 2, 3};
    static const char *const of_text[] = {"--window", "--text-tokens", "--response-tokens",
                                          "--tokenizer"};
    *wanted                            = cpl_flag_given(args, "--text");
    for (size_t i = 0; !*wanted && i < sizeof of_text / sizeof *of_text; i++)
        if (cpl_flag_given(args, of_text[i]))
            return CPL_FAIL(CPL_ERR_USAGE, "%s is a flag of --text: give --text too", of_text[i]);
    if (!*wanted) return CPL_OK;
    if (args->n_words != 1)
        return CPL_FAIL(CPL_ERR_USAGE, "--text takes one checkpoint, not %d", args->n_words);
    memset(o, 0, sizeof *o);
    inputs[0]                = cpl_flag_text(args, "--text");
    o->inputs                = inputs;
    o->n_inputs              = 1;
    o->texts                 = cpl_texts_defaults();
    o->texts.max_tokens      = cpl_flag_int(args, "--text-tokens");
    o->response_tokens       = cpl_flag_int(args, "--response-tokens");
    o->reader.n_threads      = inspect->n_threads;
    o->reader.tokenizer      = cpl_flag_text(args, "--tokenizer");
    o->reader.tokenizer_flag = "--tokenizer";
    o->reader.window         = cpl_flag_int_or(args, "--window", 0);
    o->seed                  = inspect->seed;
    o->n_alphas              = (int)(sizeof usual / sizeof *usual);
    memcpy(o->alphas, usual, sizeof usual);
    if (!cpl_flag_given(args, "--alpha")) return CPL_OK;
    o->n_alphas = inspect->n_alphas;
    memcpy(o->alphas, inspect->alphas, sizeof o->alphas);
    return CPL_OK;
}

void cpl_routing_print_cost(const cpl_routing_report *r, const cpl_routing_cost *cost)
{
    cpl_output_words(stderr, r->path);
    fprintf(stderr,
            ": %lld tokens of %lld documents in windows of %lld, for %lld checkpoint%s: "
            "%.3g FLOPs\n",
            (long long)cost->tokens, (long long)r->texts.n_documents, (long long)r->reader.window,
            (long long)cost->checkpoints, cost->checkpoints == 1 ? "" : "s", cost->flops);
}

/* ---- tables ---- */

static void print_pairs(const cpl_routing_report *r)
{
    if (r->top_k < 2) return;
    printf("\nExperts that go together most: share of tokens (times what independence gives)\n");
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_layer *l = &r->layers[i];
        printf("%-6lld", (long long)i);
        for (int k = 0; k < l->n_pairs && k < 5; k++) {
            const cpl_routing_pair *p = &l->pairs[k];
            printf("  %lld+%lld %.1f %% (%.1fx)", (long long)p->i, (long long)p->j,
                   100 * (double)p->tokens / (double)r->texts.n_predictions,
                   (double)p->tokens / p->expected);
        }
        putchar('\n');
    }
}

static void print_saturation(const cpl_routing_report *r)
{
    if (r->n_steps == 0) return;
    printf("\nRouter saturation: %% of a token's experts that step %lld chooses too, by layer "
           "(first choices)\n%-10s",
           (long long)r->reader.step, "step");
    for (int64_t l = 0; l < r->n_layers; l++) printf("%12lld", (long long)l);
    putchar('\n');
    for (int64_t s = 0; s < r->n_steps; s++) {
        printf("%-10lld", (long long)r->steps[s].step);
        for (int64_t l = 0; l < r->n_layers; l++)
            printf("%5.1f (%4.1f)", 100 * r->steps[s].topk[l], 100 * r->steps[s].top1[l]);
        putchar('\n');
    }
}

static void print_sources(const cpl_routing_report *r)
{
    printf("Routing over %lld tokens of %lld documents, windows of %lld, to %lld experts, %lld per "
           "token:",
           (long long)r->texts.n_predictions, (long long)r->texts.n_documents,
           (long long)r->reader.window, (long long)r->n_experts, (long long)r->top_k);
    for (int64_t s = 0; s < r->texts.sources.count; s++) {
        fputs(s ? ", " : " ", stdout);
        cpl_output_words(stdout, r->texts.sources.at[s]);
        printf(" %lld", (long long)r->source_tokens[s]);
    }
    putchar('\n');
}

static cpl_status print_table(const cpl_routing_report *r, cpl_inspect_table table)
{
    cpl_pool pool = {0};
    cpl_grid grid = {0};
    return cpl_output_grid(cpl_routing_grid(&grid, &pool, r, table), &grid, &pool);
}

cpl_status cpl_routing_print(const cpl_routing_report *r)
{
    cpl_text verdict = {0};
    print_sources(r);
    for (int table = CPL_TABLE_LOAD; table <= CPL_TABLE_VOCABULARY; table++)
        CPL_TRY(print_table(r, (cpl_inspect_table)table));
    print_pairs(r);
    print_saturation(r);
    cpl_routing_verdict(&verdict, r);
    putchar('\n');
    return cpl_output_verdict(&verdict);
}
