/* page.c - see page.h */
#include "inspect/routing/page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "inspect/routing/charts.h"
#include "io/file.h"
#include "io/path_guard.h"
#include "report/markup.h"
#include "report/page.h"
#include "report/svg_file.h"

#define COLUMNS(names) names, sizeof names / sizeof *names

enum { MOST_CELLS = 100000 }; /* of the maps of one kind in a page: about a megabyte */

/* ---- cells ---- */

static void row_of_layer(cpl_text *out, int64_t layer)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)layer);
    cpl_page_row_open(out, name);
}

/* ---- charts ---- */

/* The kinds from `first` to `last` that show anything. */
static void put_charts(cpl_text *out, const cpl_routing_charts *charts, cpl_routing_kind first,
                       cpl_routing_kind last)
{
    cpl_page_charts_open(out);
    for (cpl_routing_kind kind = first; kind <= last; kind++) {
        if (!cpl_routing_charts_have(charts, kind)) continue;
        cpl_page_chart_open(out);
        cpl_routing_charts_draw(out, charts, kind, true);
        cpl_page_chart_close(out, cpl_routing_looks[kind].caption);
    }
    cpl_page_charts_close(out);
}

/* All of a kind, or where they are too large the first, the middle and the last. */
static void put_maps(cpl_text *out, const cpl_routing_charts *charts, cpl_routing_map map)
{
    const int64_t count = cpl_routing_charts_maps(charts, map), n = charts->report->n_experts;
    const int64_t rows = map == CPL_ROUTING_BY_DOMAIN ? charts->report->n_layers : n;
    const bool all     = count * rows * n <= MOST_CELLS;
    if (count == 0) return;
    cpl_page_charts_open(out);
    for (int64_t i = 0; i < count; i++) {
        if (!all && i != 0 && i != count / 2 && i != count - 1) continue;
        cpl_page_chart_open(out);
        cpl_routing_charts_map(out, charts, map, i, true);
        cpl_page_chart_close(out, NULL);
    }
    cpl_page_charts_close(out);
    if (!all) cpl_page_small(out, "The first, the middle and the last; --svg writes them all.");
}

/* ---- sections ---- */

static void put_load(cpl_text *out, const cpl_routing_charts *charts)
{
    static const char *const columns[] = {"layer",        "max / mean",     "dead",
                                          "load entropy", "router entropy", "most frequent pairs"};
    const cpl_routing_report *r        = charts->report;
    cpl_page_subsection(out, "Load");
    put_charts(out, charts, CPL_ROUTING_LOAD, CPL_ROUTING_ENTROPY);
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

static void put_agreement(cpl_text *out, const cpl_routing_charts *charts)
{
    static const char *const columns[] = {"layer",       "rank correlation",
                                          "± sd",        "first choice",
                                          "top K",       "experts",
                                          "own largest", "α_min",
                                          "r",           "rho",
                                          "r, rows",     "rho, rows"};
    const cpl_routing_report *r        = charts->report;
    char words[360];
    cpl_page_subsection(out, "Choice and answers");
    snprintf(
        words, sizeof words,
        "An expert answers a token x with |x W_g|. %lld tokens were shown to all %lld experts. "
        "M_tok[i,j] is the mean answer of expert j to the tokens routed to i: what M[i,j] = "
        "|R_i W_g^j| stands for in the coupling loss.",
        (long long)r->n_sampled, (long long)r->n_experts);
    cpl_page_paragraph(out, words);
    put_charts(out, charts, CPL_ROUTING_RANKS, CPL_ROUTING_ERC);
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
    cpl_page_small(out,
                   "M_tok with every row over its mean. A column that is light everywhere is an "
                   "expert that answers everything.");
    put_maps(out, charts, CPL_ROUTING_ANSWERS);
}

static void put_domains(cpl_text *out, const cpl_routing_charts *charts)
{
    cpl_page_subsection(out, "Domains");
    put_charts(out, charts, CPL_ROUTING_DOMAINS, CPL_ROUTING_DOMAINS);
    if (cpl_routing_charts_maps(charts, CPL_ROUTING_BY_DOMAIN))
        cpl_page_small(out, "Below: an expert's share of a domain's tokens over the mean of its "
                            "shares of all domains; 1 is no preference.");
    put_maps(out, charts, CPL_ROUTING_BY_DOMAIN);
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

static void put_vocabulary(cpl_text *out, const cpl_routing_charts *charts)
{
    static const char *const columns[] = {"layer",    "ids read", "share", "dealt",   "examples",
                                          "next ids", "share",    "dealt", "examples"};
    const cpl_routing_report *r        = charts->report;
    cpl_page_subsection(out, "Vocabulary and time");
    put_charts(out, charts, CPL_ROUTING_VOCABULARY, CPL_ROUTING_SATURATION);
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

void cpl_routing_page_sections(cpl_text *out, const cpl_routing_report *r)
{
    cpl_routing_charts charts;
    if (cpl_routing_charts_open(&charts, r) != CPL_OK) {
        out->failed = true;
        return;
    }
    cpl_page_section(out, "What the router does over text");
    put_lead(out, r);
    put_agreement(out, &charts);
    put_load(out, &charts);
    if (cpl_routing_charts_maps(&charts, CPL_ROUTING_TOGETHER))
        cpl_page_small(out,
                       "Experts that go together: tokens of both over what independence gives; "
                       "blank where there is nothing to compare.");
    put_maps(out, &charts, CPL_ROUTING_TOGETHER);
    put_domains(out, &charts);
    put_vocabulary(out, &charts);
    cpl_routing_charts_close(&charts);
}

cpl_status cpl_routing_page(cpl_text *out, const cpl_routing_report *r)
{
    cpl_text title = {0};
    cpl_text_printf(&title, "Routing: %s", r->path);
    CPL_TRY(cpl_text_status(&title));
    cpl_page_open(out, title.bytes, "What the router does with text, by couplet inspect.", NULL);
    cpl_text_free(&title);
    cpl_routing_page_sections(out, r);
    cpl_page_close(out, NULL);
    return cpl_text_status(out);
}

/* ---- files ---- */

static cpl_status write_kinds(int64_t *n_written, const char *folder, const char *name,
                              const cpl_routing_charts *charts)
{
    cpl_status status = CPL_OK;
    cpl_text svg      = {0};
    for (cpl_routing_kind kind = 0; kind < CPL_ROUTING_KINDS; kind++) {
        if (!cpl_routing_charts_have(charts, kind)) continue;
        cpl_routing_charts_draw(&svg, charts, kind, false);
        CPL_TRY_DONE(cpl_svg_write(n_written, folder, &svg, "%s-routing-%s.svg", name,
                                   cpl_routing_looks[kind].file));
    }
done:
    cpl_text_free(&svg);
    return status;
}

static cpl_status write_maps(int64_t *n_written, const char *folder, const char *name,
                             const cpl_routing_charts *charts, cpl_routing_map map)
{
    cpl_status status = CPL_OK;
    cpl_text svg      = {0};
    for (int64_t i = 0; i < cpl_routing_charts_maps(charts, map); i++) {
        cpl_routing_charts_map(&svg, charts, map, i, false);
        CPL_TRY_DONE(cpl_svg_write(n_written, folder, &svg, "%s-routing-%s-%03lld.svg", name,
                                   cpl_routing_map_looks[map].file, (long long)i));
    }
done:
    cpl_text_free(&svg);
    return status;
}

cpl_status cpl_routing_svgs(int64_t *n_written, const char *folder, const cpl_routing_report *r)
{
    cpl_status status = CPL_OK;
    cpl_routing_charts charts;
    char name[CPL_SVG_NAME_BYTES];
    int64_t written = 0;
    CPL_TRY(cpl_path_guard_check(folder, r->path));
    CPL_TRY(cpl_routing_charts_open(&charts, r));
    cpl_svg_name(name, charts.name, "routing");
    CPL_TRY_DONE(cpl_folder_make(folder));
    CPL_TRY_DONE(write_kinds(&written, folder, name, &charts));
    for (cpl_routing_map map = 0; map < CPL_ROUTING_MAPS; map++)
        CPL_TRY_DONE(write_maps(&written, folder, name, &charts, map));
done:
    if (n_written) *n_written = written;
    cpl_routing_charts_close(&charts);
    return status;
}
