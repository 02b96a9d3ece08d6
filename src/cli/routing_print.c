/* routing_print.c - see routing_print.h */
#include "cli/routing_print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/terminal/output.h"

/* ---- before ---- */

cpl_status cpl_routing_options_of(bool *wanted, cpl_routing_options *o, const char **inputs,
                                  const cpl_arguments *args, const cpl_inspect_options *inspect)
{
    static const double usual[]       = {0.5, 1, 2, 3};
    static const char *const behind[] = {"--window", "--text-tokens", "--response-tokens"};
    *wanted                           = cpl_flag_given(args, "--text");
    for (size_t i = 0; !*wanted && i < sizeof behind / sizeof *behind; i++)
        if (cpl_flag_given(args, behind[i]))
            return CPL_FAIL(CPL_ERR_USAGE, "%s says how --text is read: give --text too",
                            behind[i]);
    if (!*wanted) return CPL_OK;
    if (args->n_words != 1)
        return CPL_FAIL(CPL_ERR_USAGE, "--text takes one checkpoint, not %d", args->n_words);
    memset(o, 0, sizeof *o);
    inputs[0]           = cpl_flag_text(args, "--text");
    o->inputs           = inputs;
    o->n_inputs         = 1;
    o->texts            = cpl_texts_defaults();
    o->texts.max_tokens = cpl_flag_int(args, "--text-tokens");
    o->response_tokens  = cpl_flag_int(args, "--response-tokens");
    o->reader.n_threads = inspect->n_threads;
    o->reader.window    = cpl_flag_given(args, "--window") ? cpl_flag_int(args, "--window") : 0;
    o->seed             = inspect->seed;
    o->n_alphas         = (int)(sizeof usual / sizeof *usual);
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
            ": %lld tokens of %lld documents in windows of %lld, read with %lld checkpoint%s; "
            "%.3g FLOPs\n",
            (long long)cost->tokens, (long long)r->texts.n_documents, (long long)r->reader.window,
            (long long)cost->checkpoints, cost->checkpoints == 1 ? "" : "s", cost->flops);
}

/* ---- cells ---- */

static void cell(double value, int width, int digits)
{
    if (isfinite(value))
        printf("%*.*f", width, digits, value);
    else
        printf("%*s", width, isinf(value) ? "inf" : "-");
}

static int width_of(const char *column)
{
    int length = (int)strlen(column);
    return length > 5 ? length + 3 : 8;
}

static void head(const char *title, const char *const *columns, int n)
{
    printf("\n%s\n%-6s", title, "layer");
    for (int i = 0; i < n; i++) printf("%*s", width_of(columns[i]), columns[i]);
    putchar('\n');
}

#define HEAD(title, columns) head(title, columns, (int)(sizeof columns / sizeof *columns))

static void put(double value, const char *column, int digits)
{
    cell(value, width_of(column), digits);
}

/* ---- tables ---- */

static void print_load(const cpl_routing_report *r)
{
    static const char *const c[] = {"max/mean",       "dead",    "load entropy",
                                    "router entropy", "domains", "halves"};
    char title[240];
    snprintf(
        title, sizeof title,
        "Load of %lld experts, %lld a token (entropies in nats, at most %.3f; distance between "
        "domains, 0 to 1)",
        (long long)r->n_experts, (long long)r->top_k, log((double)r->n_experts));
    HEAD(title, c);
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_layer *l = &r->layers[i];
        printf("%-6lld", (long long)i);
        put(l->load.most_over_mean, c[0], 2);
        put((double)l->load.dead, c[1], 0);
        put(l->load.entropy, c[2], 3);
        put(l->router_entropy, c[3], 3);
        put(l->domains.distance, c[4], 3);
        put(l->domains.halves, c[5], 3);
        putchar('\n');
    }
}

static void print_agreement(const cpl_routing_report *r)
{
    static const char *const c[] = {"rank correlation", "sd",        "top-1 %",
                                    "chance",           "overlap %", "chance"};
    char title[160];
    snprintf(title, sizeof title,
             "The router's choice beside the experts' answers |x W_g|, %lld tokens",
             (long long)r->n_sampled);
    HEAD(title, c);
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_layer *l = &r->layers[i];
        printf("%-6lld", (long long)i);
        put(l->rho_mean, c[0], 3);
        put(l->rho_sd, c[1], 2);
        put(100 * l->top1, c[2], 1);
        put(100 / (double)r->n_experts, c[3], 1);
        put(100 * l->overlap, c[4], 1);
        put(100 * (double)r->top_k / (double)r->n_experts, c[5], 1);
        putchar('\n');
    }
}

static void print_stand(const cpl_routing_report *r)
{
    static const char *const c[] = {"experts", "own %",   "alpha_min", "r",
                                    "rho",     "r, rows", "rho, rows"};
    const cpl_routing_options *o = &r->options;
    HEAD("Does R_i stand for its tokens? M_tok, and its correlation with M off the diagonal", c);
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_stand *s = &r->layers[i].stand;
        printf("%-6lld", (long long)i);
        put((double)s->n_kept, c[0], 0);
        put(100 * s->rows_own, c[1], 1);
        put(s->alpha_min, c[2], 3);
        put(s->off.pearson, c[3], 2);
        put(s->off.spearman, c[4], 2);
        put(s->off_rows.pearson, c[5], 2);
        put(s->off_rows.spearman, c[6], 2);
        putchar('\n');
    }
    printf("\nERC of M_tok over its mean diagonal\n%-6s", "layer");
    for (int a = 0; a < o->n_alphas; a++) printf("  a = %-5.4g", o->alphas[a]);
    putchar('\n');
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_stand *s = &r->layers[i].stand;
        printf("%-6lld", (long long)i);
        for (int a = 0; a < o->n_alphas; a++) cell(s->erc[a] / s->diagonal, 11, 4);
        putchar('\n');
    }
}

/* What can be shown of an id's text on one line. */
static void print_text(const char *text)
{
    putchar('"');
    for (const char *c = text ? text : ""; *c; c++) {
        if (*c == '\n')
            fputs("\\n", stdout);
        else if ((unsigned char)*c < 32 || *c == 127)
            printf("\\x%02x", (unsigned)(unsigned char)*c);
        else
            putchar(*c);
    }
    putchar('"');
}

static void print_examples(const char *what, int64_t layer, const cpl_routing_vocabulary *v)
{
    if (v->n_examples == 0) return;
    printf("layer %lld, %s:", (long long)layer, what);
    for (int i = 0; i < v->n_examples; i++) {
        const cpl_routing_example *x = &v->example[i];
        fputs(i ? ", " : " ", stdout);
        print_text(x->text);
        printf(" to %d (%.0f %% of %lld)", x->expert, 100 * x->share, (long long)x->count);
    }
    putchar('\n');
}

static void print_vocabulary(const cpl_routing_report *r)
{
    static const char *const c[] = {"read: ids", "mean", "shuffled",
                                    "next: ids", "mean", "shuffled"};
    HEAD("Vocabulary: the largest share of one expert in the occurrences of an id", c);
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_vocabulary *v[] = {&r->layers[i].input, &r->layers[i].next};
        printf("%-6lld", (long long)i);
        for (int k = 0; k < 2; k++) {
            put((double)v[k]->n_ids, c[3 * k], 0);
            put(v[k]->mean, c[3 * k + 1], 3);
            put(v[k]->shuffled, c[3 * k + 2], 3);
        }
        putchar('\n');
    }
    for (int64_t i = 0; i < r->n_layers; i++) {
        print_examples("read", i, &r->layers[i].input);
        print_examples("next", i, &r->layers[i].next);
    }
}

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
    printf("Routing over %lld tokens of %lld documents, windows of %lld:",
           (long long)r->texts.n_predictions, (long long)r->texts.n_documents,
           (long long)r->reader.window);
    for (int64_t s = 0; s < r->texts.sources.count; s++) {
        fputs(s ? ", " : " ", stdout);
        cpl_output_words(stdout, r->texts.sources.at[s]);
        printf(" %lld", (long long)r->source_tokens[s]);
    }
    putchar('\n');
}

void cpl_routing_print(const cpl_routing_report *r)
{
    print_sources(r);
    print_load(r);
    print_agreement(r);
    print_stand(r);
    print_pairs(r);
    print_vocabulary(r);
    print_saturation(r);
}
