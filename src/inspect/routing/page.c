/* page.c - see page.h */
#include "inspect/routing/page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/page.h"

#define COLUMNS(names) names, sizeof names / sizeof *names

/* ---- cells ---- */

static void row_of_layer(cpl_text *out, int64_t layer)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)layer);
    cpl_page_row_open(out, name);
}

/* ---- sections ---- */

static void put_load(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    static const char *const columns[] = {"layer",        "max / mean",     "dead",
                                          "load entropy", "router entropy", "most frequent pairs"};
    cpl_page_subsection(out, "Load");
    cpl_page_charts(out, data, "load");
    cpl_page_table_open(out,
                        "Entropies in nats. Pairs: tokens that go to both experts, and how many "
                        "times what independence gives.",
                        COLUMNS(columns));
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_layer *l = &r->layers[i];
        char pairs[200]            = "–";
        int length                 = 0;
        for (int k = 0; k < l->n_pairs && k < 3; k++)
            length += snprintf(pairs + length, sizeof pairs - (size_t)length,
                               "%s%lld + %lld: %.3g %% (%.2g)", k ? ", " : "",
                               (long long)l->pairs[k].i, (long long)l->pairs[k].j,
                               100 * (double)l->pairs[k].tokens / (double)r->texts.n_predictions,
                               (double)l->pairs[k].tokens / l->pairs[k].expected);
        row_of_layer(out, i);
        cpl_page_figure(out, l->load.most_over_mean, 3);
        cpl_page_count(out, l->load.dead);
        cpl_page_figure(out, l->load.entropy, 3);
        cpl_page_figure(out, l->router_entropy, 3);
        cpl_page_cell(out, pairs);
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
}

static void put_agreement(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    static const char *const columns[] = {"layer",       "rank correlation",
                                          "± sd",        "first choice",
                                          "top K",       "experts",
                                          "own largest", "α_min",
                                          "r",           "rho",
                                          "r, rows",     "rho, rows"};
    char words[360];
    cpl_page_subsection(out, "Choice and answers");
    snprintf(
        words, sizeof words,
        "An expert answers a token x with |x W_g|. %lld tokens were shown to all %lld experts. "
        "M_tok[i,j] is the mean answer of expert j to the tokens routed to i: what M[i,j] = "
        "|R_i W_g^j| stands for in the coupling loss.",
        (long long)r->n_sampled, (long long)r->n_experts);
    cpl_page_paragraph(out, words);
    cpl_page_charts(out, data, "agreement");
    cpl_page_table_open(
        out,
        "Own largest and α_min are of M_tok, among experts with 8 sampled tokens or "
        "more; r and rho compare it with M off the diagonal.",
        COLUMNS(columns));
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_layer *l = &r->layers[i];
        const cpl_routing_stand *s = &l->stand;
        row_of_layer(out, i);
        cpl_page_figure(out, l->rho_mean, 3);
        cpl_page_figure(out, l->rho_sd, 2);
        cpl_page_percent(out, l->top1);
        cpl_page_percent(out, l->overlap);
        cpl_page_count(out, s->n_kept);
        cpl_page_percent(out, s->rows_own);
        cpl_page_figure(out, s->alpha_min, 3);
        cpl_page_figure(out, s->off.pearson, 2);
        cpl_page_figure(out, s->off.spearman, 2);
        cpl_page_figure(out, s->off_rows.pearson, 2);
        cpl_page_figure(out, s->off_rows.spearman, 2);
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
    cpl_page_charts(out, data, "answers");
}

static void put_domains(cpl_text *out, const json_t *data)
{
    cpl_page_subsection(out, "Domains");
    cpl_page_charts(out, data, "domains");
    cpl_page_charts(out, data, "by-domain");
}

static void put_examples(cpl_text *out, const cpl_routing_vocabulary *v)
{
    cpl_text words = {0};
    for (int i = 0; i < v->n_examples && i < 2; i++) {
        const cpl_routing_example *x = &v->example[i];
        cpl_text_printf(&words, "%s“", i ? ", " : "");
        for (const char *c = x->text ? x->text : ""; *c; c++)
            if (*c == '\n')
                cpl_text_printf(&words, "\\n");
            else if (*c == '\t')
                cpl_text_printf(&words, "\\t");
            else
                cpl_text_char(&words, *c);
        cpl_text_printf(&words, "” → %d (%.3g %%)", x->expert, 100 * x->share);
    }
    out->failed = out->failed || words.failed;
    cpl_page_cell(out, words.bytes ? words.bytes : "–");
    cpl_text_free(&words);
}

static void put_vocabulary(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    static const char *const columns[] = {"layer",    "ids read", "share", "dealt",   "examples",
                                          "next ids", "share",    "dealt", "examples"};
    cpl_page_subsection(out, "Vocabulary and time");
    cpl_page_charts(out, data, "vocabulary");
    cpl_page_table_open(out,
                        "Ids that occur 8 times or more, as they are read and as they come next.",
                        COLUMNS(columns));
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_routing_vocabulary *v[] = {&r->layers[i].input, &r->layers[i].next};
        row_of_layer(out, i);
        for (int k = 0; k < 2; k++) {
            cpl_page_count(out, v[k]->n_ids);
            cpl_page_percent(out, v[k]->mean);
            cpl_page_percent(out, v[k]->shuffled);
            put_examples(out, v[k]);
        }
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
}

static void put_lead(cpl_text *out, const cpl_routing_report *r)
{
    cpl_text words = {0};
    cpl_text_printf(&words, "%lld tokens of %lld documents, in windows of at most %lld: ",
                    (long long)r->texts.n_predictions, (long long)r->texts.n_documents,
                    (long long)r->reader.window);
    for (int64_t s = 0; s < r->texts.sources.count; s++)
        cpl_text_printf(&words, "%s%s %lld", s ? ", " : "", r->texts.sources.at[s],
                        (long long)r->source_tokens[s]);
    cpl_text_printf(&words, ". %lld experts, %lld a token.", (long long)r->n_experts,
                    (long long)r->top_k);
    out->failed = out->failed || words.failed;
    cpl_page_paragraph(out, words.bytes ? words.bytes : "");
    cpl_text_free(&words);
}

void cpl_routing_page_sections(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    cpl_page_section(out, "What the router does over text");
    put_lead(out, r);
    put_agreement(out, r, data);
    put_load(out, r, data);
    cpl_page_charts(out, data, "together");
    put_domains(out, data);
    put_vocabulary(out, r, data);
}

cpl_status cpl_routing_page(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    cpl_text title = {0};
    cpl_text_printf(&title, "Routing: %s", r->path);
    CPL_TRY(cpl_text_status(&title));
    cpl_page_open(out, title.bytes, "What the router does with text, by couplet inspect.");
    cpl_text_free(&title);
    cpl_routing_page_sections(out, r, data);
    cpl_page_close(out, data);
    return cpl_text_status(out);
}
