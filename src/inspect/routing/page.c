/* page.c - see show.h */
#include "inspect/routing/show.h"

#include <stdio.h>

#include "report/page.h"

static void put_load(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    cpl_page_subsection(out, "Load");
    cpl_page_charts(out, data, "load");
    cpl_routing_page_layers(out, r, CPL_ROUTING_LOAD);
}

static void put_agreement(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    char words[360];
    cpl_page_subsection(out, "Choices and responses");
    snprintf(
        words, sizeof words,
        "The response of an expert to a token x is |x W_g|. %lld tokens were given to all %lld "
        "experts. M_tok[i,j] is the mean response of expert j to the tokens routed to i; in the "
        "coupling loss M[i,j] = |R_i W_g^j| takes its place.",
        (long long)r->n_sampled, (long long)r->n_experts);
    cpl_page_paragraph(out, words);
    cpl_page_charts(out, data, "agreement");
    cpl_routing_page_layers(out, r, CPL_ROUTING_AGREEMENT);
    cpl_page_charts(out, data, "answers");
    if (!r->layers[0].M) return;
    cpl_page_subsection(out, "The sign of scores");
    cpl_page_paragraph(
        out,
        "M is the same for R_i and for -R_i. So coupling of the weights lets an expert respond to "
        "tokens that its row scores far below 0 as much as to those that it scores high. Then the "
        "rank correlation of scores with responses is above 0 among scores above 0, and below 0 "
        "among those below.");
    cpl_page_charts(out, data, "signs");
    cpl_routing_page_layers(out, r, CPL_ROUTING_SIGNS);
}

static void put_domains(cpl_text *out, const json_t *data)
{
    cpl_page_subsection(out, "Domains");
    cpl_page_charts(out, data, "domains");
    cpl_page_charts(out, data, "by-domain");
}

static void put_vocabulary(cpl_text *out, const cpl_routing_report *r, const json_t *data)
{
    cpl_page_subsection(out, "Vocabulary and time");
    cpl_page_charts(out, data, "vocabulary");
    cpl_routing_page_layers(out, r, CPL_ROUTING_VOCABULARY);
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
    cpl_text_printf(&words, ". %lld experts, %lld per token.", (long long)r->n_experts,
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
    cpl_text title = {0}, verdict = {0};
    cpl_text_printf(&title, "Routing: %s", r->path);
    cpl_routing_verdict(&verdict, r);
    if (title.failed || verdict.failed) out->failed = true;
    if (!out->failed) {
        cpl_page_open(out, title.bytes, "What the router does with text, by couplet inspect.");
        cpl_page_paragraph(out, verdict.bytes);
    }
    cpl_text_free(&title);
    cpl_text_free(&verdict);
    cpl_routing_page_sections(out, r, data);
    cpl_page_close(out, data);
    return cpl_text_status(out);
}
