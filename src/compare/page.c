/* page.c - the page of a comparison in its reading order; see compare.h */
#include <stdio.h>
#include <string.h>

#include "compare/internal.h"
#include "report/page.h"

static void put_title(cpl_text *out, const cpl_compare *c)
{
    cpl_text title = {0}, lead = {0};
    char words[CPL_POINT_WORDS];
    cpl_text_printf(&title, "Runs side by side: ");
    for (int64_t g = 0; g < c->n_groups && g < 6; g++)
        cpl_text_printf(&title, "%s%s", g ? ", " : "", c->groups[g].name);
    if (c->n_groups > 6) cpl_text_printf(&title, " and %lld more", (long long)c->n_groups - 6);
    cpl_text_printf(&lead, "Figures %s. Made by couplet compare.",
                    cpl_compare_point_words(words, c));
    out->failed = out->failed || title.failed || lead.failed;
    if (!out->failed) cpl_page_open(out, title.bytes, lead.bytes);
    cpl_text_free(&title);
    cpl_text_free(&lead);
}

static void put_warnings(cpl_text *out, const cpl_compare *c)
{
    char words[1100];
    for (int64_t i = 0; i < c->warnings.count; i++) {
        snprintf(words, sizeof words, "Warning: %s", c->warnings.at[i]);
        cpl_page_note(out, words);
    }
}

/* ---- tables ---- */

static cpl_status put_table(cpl_text *out, const cpl_compare *c, const cpl_compare_table *of)
{
    cpl_pool pool = {0};
    cpl_grid g;
    cpl_status status = of->make(&g, &pool, c);
    if (status == CPL_OK && g.n_rows) {
        cpl_page_section(out, of->heading ? of->heading : g.title);
        if (of->words && (c->grouped || !of->of_groups)) cpl_page_small(out, of->words);
        cpl_grid_page(out, &g);
    }
    cpl_pool_free(&pool);
    return status;
}

/* ---- charts ---- */

static void put_charts(cpl_text *out, const cpl_compare *c, const json_t *data)
{
    if (cpl_page_has_charts(data, "end")) {
        char words[200];
        snprintf(words, sizeof words, "At the end, against %.120s", c->options.group_by);
        cpl_page_section(out, words);
        cpl_page_small(out, "A point a run; the line goes through the means of the groups.");
        cpl_page_charts(out, data, "end");
    }
    if (!cpl_page_has_charts(data, "curves")) return;
    cpl_page_section(out, "Against tokens");
    cpl_page_small(out, c->grouped
                            ? "The mean over the runs of a group, with a band of one standard "
                              "deviation to both sides. Losses begin at a twentieth of the "
                              "way."
                            : "A line a run. Losses begin at a twentieth of the way.");
    cpl_page_charts(out, data, "curves");
}

/* ---- the page ---- */

static void put_terms(cpl_text *out, const cpl_compare *c)
{
    cpl_page_section(out, "What the words mean");
    cpl_page_terms_open(out);
    for (int64_t i = 0; i < c->n_figures; i++) {
        const cpl_compared_figure *f = &c->figures[i];
        if (!f->source) cpl_page_term(out, f->is->label, f->is->help);
    }
    cpl_page_terms_close(out);
}

cpl_status cpl_compare_page(cpl_text *out, const cpl_compare *c, const json_t *data)
{
    put_title(out, c);
    put_warnings(out, c);
    put_charts(out, c, data);
    for (int i = 0; i < CPL_COMPARE_TABLES; i++) CPL_TRY(put_table(out, c, &cpl_compare_tables[i]));
    put_terms(out, c);
    cpl_page_close(out, data);
    return cpl_text_status(out);
}
