/* page.c - the page in its reading order; see page.h */
#include "inspect/page.h"

#include <stdio.h>
#include <string.h>

#include "inspect/page_internal.h"
#include "report/markup.h"
#include "report/page.h"

static bool any_has(const cpl_coupling_charts *charts, cpl_coupling_kind kind)
{
    for (int64_t v = 0; v < charts->n_views; v++)
        if (cpl_coupling_charts_have(charts, v, kind)) return true;
    return false;
}

static void put_chart(cpl_text *out, const cpl_coupling_charts *charts, int64_t v,
                      cpl_coupling_kind kind, const char *caption)
{
    cpl_page_chart_open(out);
    cpl_coupling_charts_draw(out, charts, v, kind, true);
    cpl_page_chart_close(out, caption);
}

/* One report: its charts [first, last] in one grid. Several: a row of a kind, with one caption. */
static void put_charts(cpl_text *out, const cpl_coupling_charts *charts, cpl_coupling_kind first,
                       cpl_coupling_kind last)
{
    bool one = charts->n_views == 1;
    if (one) cpl_page_charts_open(out);
    for (cpl_coupling_kind kind = first; kind <= last; kind++) {
        const cpl_chart_spec *look = &cpl_chart_specs[kind];
        if (!any_has(charts, kind)) continue;
        if (one) {
            put_chart(out, charts, 0, kind, look->caption);
            continue;
        }
        cpl_page_subsection(out, look->title);
        cpl_page_small(out, look->caption);
        cpl_page_charts_open(out);
        for (int64_t v = 0; v < charts->n_views; v++)
            if (cpl_coupling_charts_have(charts, v, kind)) put_chart(out, charts, v, kind, NULL);
        cpl_page_charts_close(out);
    }
    if (one) cpl_page_charts_close(out);
}

static void put_tables(cpl_text *out, const cpl_coupling_charts *charts,
                       void (*table)(cpl_text *out, const cpl_coupling_view *view))
{
    for (int64_t v = 0; v < charts->n_views; v++) {
        if (charts->n_views > 1) cpl_page_subsection(out, charts->views[v].report->name);
        table(out, &charts->views[v]);
    }
}

static bool families_differ(const cpl_coupling_charts *charts)
{
    for (int64_t v = 1; v < charts->n_views; v++)
        if (strcmp(charts->views[v].report->map.family, charts->views[0].report->map.family) != 0)
            return true;
    return false;
}

/* ---- sections ---- */

static void put_summary(cpl_text *out, const cpl_coupling_charts *charts)
{
    cpl_coupling_page_checkpoints(out, charts);
    for (int64_t v = 0; v < charts->n_views; v++) {
        if (charts->n_views > 1) cpl_page_subsection(out, charts->views[v].report->name);
        cpl_coupling_page_words(out, charts->views[v].report);
    }
}

static void put_scale_free(cpl_text *out, const cpl_coupling_charts *charts)
{
    cpl_page_section(out, "Scale-free figures by layer");
    cpl_page_paragraph(out, "These figures stay the same when a router row or an expert is scaled, "
                            "or come beside what chance gives for the same weights. They are the "
                            "ones to compare models by.");
    put_charts(out, charts, CPL_COUPLING_KAPPA, CPL_COUPLING_SILHOUETTE);
    cpl_page_section(out, "All layers, scale-free");
    put_tables(out, charts, cpl_coupling_page_layers);
}

static void put_router(cpl_text *out, const cpl_coupling_charts *charts)
{
    cpl_page_section(out, "The router alone");
    cpl_page_paragraph(out, "ε is uninformative in a model that was not trained with the coupling "
                            "loss: it says how far router rows lie apart, not whether experts "
                            "answer to them.");
    put_charts(out, charts, CPL_COUPLING_COSINE, CPL_COUPLING_EPS);
}

static void put_raw(cpl_text *out, const cpl_coupling_charts *charts)
{
    cpl_page_section(out, "Figures that depend on the scale of the weights");
    cpl_page_note(out, families_differ(charts)
                           ? "The checkpoints are of different families: their raw ERC and their "
                             "norms must not be ranked against each other. The loss is of degree 1 "
                             "in router and experts, so smaller weights alone make it smaller."
                           : "Raw ERC is of degree 1 in router and experts: smaller weights alone "
                             "make it smaller. Models of different families must not be ranked by "
                             "it.");
    put_charts(out, charts, CPL_COUPLING_ERC, CPL_COUPLING_GATE_NORM);
    put_tables(out, charts, cpl_coupling_page_raw_layers);
}

static void picture_experts(char out[80], const cpl_tsne_plot *p)
{
    if (p->n_experts == 1)
        strcpy(out, "expert 0 alone");
    else
        snprintf(out, 80, "experts i with i mod %lld = 0 (%lld of them)", (long long)p->stride,
                 (long long)p->n_experts);
}

static void picture_caption(cpl_text *out, const cpl_coupling_report *r)
{
    const cpl_tsne_plot *p = &r->picture;
    char words[500], experts[80], thinned[80] = "all rows", kl[48];
    picture_experts(experts, p);
    if (p->every > 1) snprintf(thinned, sizeof thinned, "one row in %lld", (long long)p->every);
    snprintf(words, sizeof words,
             "Layer %lld; %s; %s of %s gate, %lld "
             "points; perplexity %g, %lld iteration%s, Kullback-Leibler divergence %s.",
             (long long)p->layer, experts, thinned, p->n_experts == 1 ? "its" : "each",
             (long long)p->n_points, p->perplexity, (long long)p->iterations,
             p->iterations == 1 ? "" : "s", cpl_markup_figure(kl, p->kl, 4));
    cpl_page_chart_close(out, words);
}

static void put_pictures(cpl_text *out, const cpl_coupling_charts *charts)
{
    if (!any_has(charts, CPL_COUPLING_PICTURE)) return;
    cpl_page_section(out, "Experts as points");
    cpl_page_small(out,
                   "t-SNE of the rows of W_g, coloured by expert. Distances between groups and "
                   "the sizes of groups mean little; what counts is whether the rows of an "
                   "expert keep together.");
    cpl_page_charts_open(out);
    for (int64_t v = 0; v < charts->n_views; v++) {
        if (!cpl_coupling_charts_have(charts, v, CPL_COUPLING_PICTURE)) continue;
        cpl_page_chart_open(out);
        cpl_coupling_charts_draw(out, charts, v, CPL_COUPLING_PICTURE, true);
        picture_caption(out, charts->views[v].report);
    }
    cpl_page_charts_close(out);
}

static void put_title(cpl_text *out, const cpl_coupling_report *const *reports, int64_t count)
{
    cpl_text title = {0};
    cpl_text_printf(&title, "Router and experts: ");
    for (int64_t r = 0; r < count; r++)
        cpl_text_printf(&title, "%s%s", r ? ", " : "", reports[r]->name);
    if (title.failed)
        out->failed = true;
    else
        cpl_page_open(
            out, title.bytes,
            "Does the router know its experts? Measured from the stored weights alone, by "
            "couplet inspect.",
            cpl_coupling_page_heat_style);
    cpl_text_free(&title);
}

static void put_close(cpl_text *out, const cpl_coupling_charts *charts)
{
    cpl_text script = {0};
    cpl_coupling_page_heat_script(&script, charts);
    if (script.failed)
        out->failed = true;
    else
        cpl_page_close(out, script.bytes);
    cpl_text_free(&script);
}

cpl_status cpl_coupling_page(cpl_text *out, const cpl_coupling_report *const *reports,
                             int64_t count)
{
    return cpl_coupling_page_with(out, reports, count, NULL, NULL);
}

cpl_status cpl_coupling_page_with(cpl_text *out, const cpl_coupling_report *const *reports,
                                  int64_t count, void (*more)(cpl_text *out, const void *ctx),
                                  const void *ctx)
{
    cpl_coupling_charts charts;
    CPL_ASSERT(count > 0);
    CPL_TRY(cpl_coupling_charts_open(&charts, reports, count));
    put_title(out, reports, count);
    put_summary(out, &charts);
    put_scale_free(out, &charts);
    cpl_coupling_page_heats(out, &charts);
    put_router(out, &charts);
    put_raw(out, &charts);
    put_pictures(out, &charts);
    if (more) more(out, ctx);
    cpl_page_section(out, "What the words mean");
    cpl_coupling_page_definitions(out);
    put_close(out, &charts);
    cpl_coupling_charts_close(&charts);
    return cpl_text_status(out);
}
