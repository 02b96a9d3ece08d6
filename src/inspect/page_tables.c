/* page_tables.c - tables and sentences of the page, see page_internal.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "inspect/page_internal.h"
#include "inspect/verdict.h"
#include "report/markup.h"
#include "report/page.h"

#define COUNT(names)   ((int)(sizeof names / sizeof *names))
#define COLUMNS(names) names, COUNT(names)

/* ---- cells ---- */

static void with_spread(cpl_text *out, double mean, double sd)
{
    char a[48], b[48], words[112];
    snprintf(words, sizeof words, "%s ± %s", cpl_markup_figure(a, mean, 3),
             cpl_markup_figure(b, sd, 2));
    cpl_page_cell(out, isfinite(mean) ? words : "–");
}

static void dashes(cpl_text *out, int count)
{
    for (int i = 0; i < count; i++) cpl_page_cell(out, "–");
}

/* ---- all checkpoints ---- */

/* Means over the layers with M; the range of some. */
typedef struct overall {
    int64_t n_with_M, n_skipped, n_faulty;
    double diagonal, off, erc, rows, columns, assignment, chance;
    double silhouette; /* of all layers with figures */
    cpl_chart_range z, n, d, D, K, alpha_min;
    bool infinite;
} overall;

static void add_layer(overall *o, const cpl_layer_report *layer, int alpha)
{
    const cpl_null_model *c = &layer->chance;
    o->n_with_M++;
    o->diagonal += c->kappa_diagonal;
    o->off += c->kappa_off_diagonal;
    o->erc += cpl_coupling_relative_erc(layer, layer->erc[alpha]);
    o->rows += c->kappa_row_top1;
    o->columns += c->kappa_column_top1;
    o->assignment += c->assignment_own;
    o->chance += 1.0 / (double)layer->at->n;
    o->infinite = o->infinite || isinf(layer->ratios.most);
    cpl_chart_range_add(&o->z, c->z);
    cpl_chart_range_add(&o->alpha_min, layer->ratios.most);
}

static overall overall_of(const cpl_coupling_report *r, int alpha)
{
    cpl_chart_range none = cpl_chart_range_none();
    overall o            = {.z = none, .n = none, .d = none, .D = none, .K = none};
    o.alpha_min          = none;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *layer = &r->layers[i];
        o.n_skipped += layer->fault && layer->skipped;
        o.n_faulty += layer->fault && !layer->skipped;
        if (layer->has_M) add_layer(&o, layer, alpha);
        if (layer->fault) continue;
        o.silhouette += layer->silhouette;
        cpl_chart_range_add(&o.n, (double)layer->at->n);
        cpl_chart_range_add(&o.d, (double)layer->at->d);
        cpl_chart_range_add(&o.D, (double)layer->at->D);
        if (layer->at->K) cpl_chart_range_add(&o.K, (double)layer->at->K);
    }
    double count = o.n_with_M ? (double)o.n_with_M : NAN;
    for (double *mean = &o.diagonal; mean <= &o.chance; mean++) *mean /= count;
    o.silhouette /= (double)r->n_measured;
    return o;
}

static const char *range_words(char out[112], cpl_chart_range range, int digits)
{
    char a[48], b[48];
    if (range.low > range.high) return strcpy(out, "–");
    cpl_markup_figure(a, range.low, digits);
    cpl_markup_figure(b, range.high, digits);
    if (strcmp(a, b) == 0)
        snprintf(out, 112, "%s", a);
    else
        snprintf(out, 112, "%s to %s", a, b);
    return out;
}

static void range_cell(cpl_text *out, cpl_chart_range range, int digits)
{
    char words[112];
    cpl_page_cell(out, range_words(words, range, digits));
}

static void whole_range_cell(cpl_text *out, cpl_chart_range range)
{
    char words[48];
    if (range.low > range.high)
        strcpy(words, "–");
    else if (range.low == range.high)
        snprintf(words, sizeof words, "%.0f", range.low);
    else
        snprintf(words, sizeof words, "%.0f to %.0f", range.low, range.high);
    cpl_page_cell(out, words);
}

static void alpha_min_range(cpl_text *out, const overall *o)
{
    char words[112], all[128];
    bool some = o->alpha_min.low <= o->alpha_min.high;
    if (!o->infinite)
        range_words(all, o->alpha_min, 3);
    else if (!some)
        strcpy(all, "∞");
    else
        snprintf(all, sizeof all, "%s, some ∞", range_words(words, o->alpha_min, 3));
    cpl_page_cell(out, all);
}

static void family_cell(cpl_text *out, const cpl_moe_map *map)
{
    char words[160];
    const char *title = map->title && *map->title ? map->title : map->family;
    snprintf(words, sizeof words, "%.100s%s", title && *title ? title : "unknown",
             map->guessed ? " (a guess)" : "");
    cpl_page_cell(out, words);
}

static void what_it_is(cpl_text *out, const cpl_coupling_report *const *reports, int64_t count)
{
    static const char *const columns[] = {
        "checkpoint", "family",  "layers with figures", "skipped",    "with a fault", "dense",
        "experts n",  "width d", "expert width D",      "per token K"};
    cpl_page_table_open(out, NULL, COLUMNS(columns));
    for (int64_t v = 0; v < count; v++) {
        const cpl_coupling_report *r = reports[v];
        overall o                    = overall_of(r, cpl_coupling_alpha(r));
        cpl_page_row_open(out, r->name);
        family_cell(out, &r->map);
        cpl_page_count(out, r->n_measured);
        cpl_page_count(out, o.n_skipped);
        cpl_page_count(out, o.n_faulty);
        cpl_page_count(out, r->map.n_dense);
        whole_range_cell(out, o.n);
        whole_range_cell(out, o.d);
        whole_range_cell(out, o.D);
        whole_range_cell(out, o.K);
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
}

static bool any_silhouette(const cpl_coupling_report *const *reports, int64_t count)
{
    for (int64_t v = 0; v < count; v++)
        if (reports[v]->options.silhouette) return true;
    return false;
}

static void scale_free(cpl_text *out, const cpl_coupling_report *const *reports, int64_t count)
{
    static const char *const columns[] = {
        "checkpoint", "κ of own expert", "κ of others", "rows with their own", "columns",
        "assignment", "chance 1/n",      "z-score",     "ERC / mean diagonal", "α_min",
        "silhouette"};
    const bool silhouettes = any_silhouette(reports, count);
    cpl_page_table_open(out,
                        count > 1
                            ? "Means over the layers; z-score and α_min as ranges. In the order in "
                              "which the checkpoints were given."
                            : "Means over the layers; z-score and α_min as ranges.",
                        columns, COUNT(columns) - !silhouettes);
    for (int64_t v = 0; v < count; v++) {
        overall o = overall_of(reports[v], cpl_coupling_alpha(reports[v]));
        cpl_page_row_open(out, reports[v]->name);
        cpl_page_figure(out, o.diagonal, 3);
        cpl_page_figure(out, o.off, 3);
        cpl_page_percent(out, o.rows);
        cpl_page_percent(out, o.columns);
        cpl_page_percent(out, o.assignment);
        cpl_page_percent(out, o.chance);
        range_cell(out, o.z, 3);
        cpl_page_figure(out, o.erc, 3);
        alpha_min_range(out, &o);
        if (silhouettes) cpl_page_figure(out, o.silhouette, 3);
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
}

void cpl_coupling_page_checkpoints(cpl_text *out, const cpl_coupling_report *const *reports,
                                   int64_t count)
{
    what_it_is(out, reports, count);
    scale_free(out, reports, count);
}

/* ---- words ---- */

static void closing_sentence(cpl_text *out, const cpl_coupling_report *r)
{
    cpl_text words = {0};
    cpl_coupling_verdict(&words, r);
    cpl_page_paragraph(out, words.bytes ? words.bytes : "");
    out->failed = out->failed || words.failed;
    cpl_text_free(&words);
}

/* A sentence of one layer: "layer 3: ...". Several layers with the same one are told once. */
static void layer_sentence(cpl_text *out, const cpl_coupling_report *r, int64_t first,
                           const char *(*of)(const cpl_layer_report *layer))
{
    const char *sentence = of(&r->layers[first]);
    cpl_text words       = {0};
    char label[48];
    int64_t count = 0;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const char *other = of(&r->layers[i]);
        if (!other || strcmp(other, sentence) != 0) continue;
        if (i < first) goto done; /* told there */
        cpl_text_printf(&words, "%s%s", count++ ? ", " : "",
                        cpl_coupling_layer_label(label, &r->layers[i]));
    }
    cpl_text_printf(&words, ": %s", sentence);
    if (words.failed)
        out->failed = true;
    else {
        cpl_text_printf(out, "<p class=\"small\">%s",
                        *r->layers[first].at->part ? ""
                        : count > 1                ? "Layers "
                                                   : "Layer ");
        cpl_markup_text(out, words.bytes);
        cpl_text_printf(out, "</p>\n");
    }
done:
    cpl_text_free(&words);
}

static void layer_sentences(cpl_text *out, const cpl_coupling_report *r,
                            const char *(*of)(const cpl_layer_report *layer))
{
    for (int64_t i = 0; i < r->n_layers; i++)
        if (of(&r->layers[i])) layer_sentence(out, r, i, of);
}

static const char *fault_of(const cpl_layer_report *layer)
{
    return layer->fault && !layer->skipped ? layer->fault : NULL;
}

static const char *skip_of(const cpl_layer_report *layer)
{
    return layer->fault && layer->skipped ? layer->fault : NULL;
}

static const char *note_of(const cpl_layer_report *layer)
{
    return layer->at->note && *layer->at->note ? layer->at->note : NULL;
}

static const char *incomparable(const cpl_layer_report *layer)
{
    return !layer->fault && !layer->has_M
               ? "router and experts read different vectors, so there is no M; norms, ε and router "
                 "cosine are shown."
               : NULL;
}

static const char *biases(const cpl_layer_report *layer)
{
    return !layer->fault && layer->at->biased ? "biases of the router or the gates are left out."
                                              : NULL;
}

static const char *infinite(const cpl_layer_report *layer)
{
    return layer->has_M && isinf(layer->ratios.most)
               ? "α_min is infinite (∞): a diagonal entry of M is 0 while another of its row or "
                 "column is not, so no α makes the loss zero."
               : NULL;
}

void cpl_coupling_page_words(cpl_text *out, const cpl_coupling_report *r)
{
    char words[96];
    closing_sentence(out, r);
    if (r->map.guessed)
        cpl_page_note(out, r->map.guess && *r->map.guess
                               ? r->map.guess
                               : "The family of this checkpoint is not known; its layers were "
                                 "found by names and shapes.");
    if (r->options.noisy) cpl_page_note(out, "M is that of noisy router rows, as in training.");
    for (int64_t i = 0; i < r->map.n_notes; i++) cpl_page_note(out, r->map.notes[i]);
    if (r->map.n_mtp) {
        snprintf(words, sizeof words, "Multi-token-prediction layers left out: %lld.",
                 (long long)r->map.n_mtp);
        cpl_page_small(out, words);
    }
    if (r->picture.fault) cpl_page_note(out, r->picture.fault);
    layer_sentences(out, r, fault_of);
    layer_sentences(out, r, skip_of);
    layer_sentences(out, r, incomparable);
    layer_sentences(out, r, infinite);
    layer_sentences(out, r, biases);
    layer_sentences(out, r, note_of);
}

/* ---- one report, layer by layer ---- */

static void row_of_fault(cpl_text *out, const cpl_layer_report *layer, int columns)
{
    char words[400];
    snprintf(words, sizeof words, "%s: %.360s", layer->skipped ? "skipped" : "no figures",
             layer->fault);
    cpl_page_cell_span(out, words, columns);
}

static void scale_free_cells(cpl_text *out, const cpl_layer_report *layer, int alpha)
{
    const cpl_null_model *c = &layer->chance;
    cpl_page_figure(out, c->kappa_diagonal, 3);
    if (layer->at->n > 1)
        cpl_page_figure(out, c->kappa_off_diagonal, 3);
    else
        dashes(out, 1);
    cpl_page_percent(out, c->kappa_row_top1);
    cpl_page_percent(out, c->kappa_column_top1);
    cpl_page_percent(out, c->assignment_own);
    cpl_page_percent(out, 1.0 / (double)layer->at->n);
    cpl_page_figure(out, c->z, 3);
    cpl_page_figure(out, cpl_coupling_relative_erc(layer, layer->erc[alpha]), 3);
    with_spread(out, cpl_coupling_relative_erc(layer, c->erc_mean[alpha]),
                cpl_coupling_relative_erc(layer, c->erc_sd[alpha]));
    cpl_page_figure(out, layer->ratios.q50, 3);
    cpl_page_figure(out, layer->ratios.q90, 3);
    cpl_page_figure(out, layer->ratios.q99, 3);
    cpl_page_figure(out, layer->ratios.most, 3);
    cpl_page_percent(out, layer->ratios.violated);
}

void cpl_coupling_page_layers(cpl_text *out, const cpl_coupling_report *r)
{
    static const char *const columns[] = {
        "layer",    "n",          "κ own", "κ others",       "rows own",        "columns own",
        "assigned", "chance 1/n", "z",     "ERC / diagonal", "random pairings", "ratio 50 %",
        "90 %",     "99 %",       "α_min", "violated",       "silhouette"};
    enum { WITH_M = 14 };
    const bool silhouettes = r->options.silhouette;
    cpl_page_table_open(out, NULL, columns, COUNT(columns) - !silhouettes);
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *layer = &r->layers[i];
        char label[48];
        cpl_page_row_open(out, cpl_coupling_layer_label(label, layer));
        if (layer->fault) {
            row_of_fault(out, layer, WITH_M + 1 + silhouettes);
        } else {
            cpl_page_count(out, layer->at->n);
            if (layer->has_M)
                scale_free_cells(out, layer, cpl_coupling_alpha(r));
            else
                dashes(out, WITH_M);
            if (silhouettes) cpl_page_figure(out, layer->silhouette, 3);
        }
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
}

static void raw_cells(cpl_text *out, const cpl_layer_report *layer, int n_alphas)
{
    const cpl_coupling_figures *f = &layer->figures;
    for (int k = 0; k < n_alphas; k++) cpl_page_figure(out, layer->has_M ? layer->erc[k] : NAN, 4);
    cpl_page_figure(out, layer->has_M ? f->m_diagonal : NAN, 4);
    cpl_page_figure(out, layer->has_M && layer->at->n > 1 ? f->m_off_diagonal : NAN, 4);
    with_spread(out, f->router_norm_mean, f->router_norm_std);
    with_spread(out, f->gate_norm_mean, f->gate_norm_std);
    cpl_page_figure(out, f->eps_mean, 3);
    cpl_page_figure(out, f->eps_min, 3);
    cpl_page_figure(out, f->eps_max, 3);
    cpl_page_figure(out, f->router_cos, 3);
}

void cpl_coupling_page_raw_layers(cpl_text *out, const cpl_coupling_report *r)
{
    const char *columns[CPL_CHANCE_MAX_ALPHAS + 9];
    char alphas[CPL_CHANCE_MAX_ALPHAS][40], label[48];
    static const char *const behind[] = {"M diagonal",
                                         "M others",
                                         "router rows, norm ± sd",
                                         "experts, norm ± sd",
                                         "ε mean",
                                         "ε min",
                                         "ε max",
                                         "mean |cos|"};
    int n                             = 0;
    columns[n++]                      = "layer";
    for (int k = 0; k < r->options.n_alphas; k++) {
        snprintf(alphas[k], sizeof alphas[k], "ERC, α = %g", r->options.alphas[k]);
        columns[n++] = alphas[k];
    }
    for (size_t i = 0; i < sizeof behind / sizeof *behind; i++) columns[n++] = behind[i];
    cpl_page_table_open(out, NULL, columns, n);
    for (int64_t i = 0; i < r->n_layers; i++) {
        cpl_page_row_open(out, cpl_coupling_layer_label(label, &r->layers[i]));
        if (r->layers[i].fault)
            row_of_fault(out, &r->layers[i], n - 1);
        else
            raw_cells(out, &r->layers[i], r->options.n_alphas);
        cpl_page_row_close(out);
    }
    cpl_page_table_close(out);
}
