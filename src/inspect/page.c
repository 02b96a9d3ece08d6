/* page.c - the page in its reading order; see page.h */
#include "inspect/page.h"

#include <string.h>

#include "inspect/page_internal.h"
#include "report/page.h"

typedef struct maker {
    cpl_text *out;
    const cpl_coupling_report *const *reports;
    int64_t count;
    const json_t *data;
} maker;

static void put_tables(const maker *m,
                       void (*table)(cpl_text *out, const cpl_coupling_report *report))
{
    for (int64_t v = 0; v < m->count; v++) {
        if (m->count > 1) cpl_page_subsection(m->out, m->reports[v]->name);
        table(m->out, m->reports[v]);
    }
}

static bool families_differ(const maker *m)
{
    for (int64_t v = 1; v < m->count; v++)
        if (strcmp(m->reports[v]->map.family, m->reports[0]->map.family) != 0) return true;
    return false;
}

/* ---- sections ---- */

static void put_summary(const maker *m)
{
    cpl_coupling_page_checkpoints(m->out, m->reports, m->count);
    put_tables(m, cpl_coupling_page_words);
}

static void put_scale_free(const maker *m)
{
    cpl_page_section(m->out, "Scale-free figures by layer");
    cpl_page_paragraph(m->out,
                       "These figures stay the same when a router row or an expert is scaled, "
                       "or come beside what chance gives for the same weights. They are the "
                       "ones to compare models by.");
    cpl_page_charts(m->out, m->data, "coupling");
}

static void put_maps(const maker *m)
{
    if (!cpl_page_has_charts(m->data, "maps")) return;
    cpl_page_section(m->out, "Coupling matrices");
    cpl_page_small(m->out,
                   "Choose a small map to enlarge it. Point, tap or use the arrow keys on the "
                   "large one for single values. All maps share one scale of colours; what "
                   "lies beyond it has the colour of the end.");
    cpl_page_charts(m->out, m->data, "maps");
}

static void put_router(const maker *m)
{
    cpl_page_section(m->out, "The router alone");
    cpl_page_paragraph(m->out,
                       "ε is uninformative in a model that was not trained with the coupling "
                       "loss: it says how far router rows lie apart, not whether experts "
                       "answer to them.");
    cpl_page_charts(m->out, m->data, "router");
}

static void put_raw(const maker *m)
{
    cpl_page_section(m->out, "Figures that depend on the scale of the weights");
    cpl_page_note(m->out,
                  families_differ(m)
                      ? "The checkpoints are of different families: their raw ERC and their "
                        "norms must not be ranked against each other. The loss is of degree 1 "
                        "in router and experts, so smaller weights alone make it smaller."
                      : "Raw ERC is of degree 1 in router and experts: smaller weights alone "
                        "make it smaller. Models of different families must not be ranked by "
                        "it.");
    cpl_page_charts(m->out, m->data, "raw");
    put_tables(m, cpl_coupling_page_raw_layers);
}

static void put_tsne(const maker *m)
{
    if (!cpl_page_has_charts(m->data, "tsne")) return;
    cpl_page_fold_open(m->out, "Experts as points (t-SNE)");
    cpl_page_small(m->out,
                   "t-SNE of the rows of W_g, coloured by expert. Distances between groups and "
                   "the sizes of groups mean little; what counts is whether the rows of an "
                   "expert keep together.");
    cpl_page_charts(m->out, m->data, "tsne");
    cpl_page_fold_close(m->out);
}

static void put_title(const maker *m)
{
    cpl_text title = {0};
    cpl_text_printf(&title, "Router and experts: ");
    for (int64_t r = 0; r < m->count; r++)
        cpl_text_printf(&title, "%s%s", r ? ", " : "", m->reports[r]->name);
    if (title.failed)
        m->out->failed = true;
    else
        cpl_page_open(
            m->out, title.bytes,
            "How well each router row is aligned with its own expert, measured from the "
            "stored weights alone. What the router does with text: couplet inspect --text.");
    cpl_text_free(&title);
}

cpl_status cpl_coupling_page(cpl_text *out, const cpl_coupling_report *const *reports,
                             int64_t count, const json_t *data,
                             void (*more)(cpl_text *out, const void *ctx, const json_t *data),
                             const void *ctx)
{
    const maker m = {out, reports, count, data};
    CPL_ASSERT(count > 0);
    put_title(&m);
    put_summary(&m);
    put_scale_free(&m);
    put_maps(&m);
    cpl_page_section(out, "All layers, scale-free");
    put_tables(&m, cpl_coupling_page_layers);
    put_router(&m);
    put_raw(&m);
    if (more) more(out, ctx, data);
    put_tsne(&m);
    cpl_page_section(out, "What the words mean");
    cpl_coupling_page_definitions(out);
    cpl_page_close(out, data);
    return cpl_text_status(out);
}
