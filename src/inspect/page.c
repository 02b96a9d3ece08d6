/* page.c - the page in its reading order; see show.h */
#include "inspect/show.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/markup.h"
#include "report/page.h"

/* ---- one report in words ---- */

static void closing_sentence(cpl_text *out, const cpl_coupling_report *r)
{
    cpl_text words = {0};
    cpl_coupling_verdict(&words, r);
    cpl_page_paragraph(out, words.bytes ? words.bytes : "");
    out->failed = out->failed || words.failed;
    cpl_text_free(&words);
}

/* What is said of layers, in this order. */
enum { FAULT, SKIP, NO_MATRIX, INFINITE, BIASES, NOTE, SENTENCES };

/* NULL: nothing of this kind. */
static const char *sentence_of(const cpl_layer_report *l, int kind)
{
    if (kind == NOTE) return l->at->note && *l->at->note ? l->at->note : NULL;
    if (l->fault) return kind == (l->skipped ? SKIP : FAULT) ? l->fault : NULL;
    if (kind == NO_MATRIX && !l->has_M)
        return "router and experts read different vectors, so there is no M; norms, ε and router "
               "cosine are shown.";
    if (kind == INFINITE && l->has_M && isinf(l->ratios.most))
        return "α_min is infinite (∞): a diagonal entry of M is 0 while another of its row or "
               "column is not, so no α makes the loss zero.";
    if (kind == BIASES && l->at->biased) return "biases of the router or the gates are left out.";
    return NULL;
}

static bool says(const cpl_layer_report *l, int kind, const char *sentence)
{
    const char *own = sentence_of(l, kind);
    return own && strcmp(own, sentence) == 0;
}

/* "layer 3: ...". A sentence of several layers is given once, with the first, and names all of
 * them. */
static void layer_sentence(cpl_text *out, const cpl_coupling_report *r, int64_t first, int kind)
{
    const char *sentence = sentence_of(&r->layers[first], kind);
    cpl_text words       = {0};
    char label[48];
    int64_t count = 0;
    if (!sentence) return;
    for (int64_t i = 0; i < first; i++)
        if (says(&r->layers[i], kind, sentence)) return;
    for (int64_t i = first; i < r->n_layers; i++)
        if (says(&r->layers[i], kind, sentence))
            cpl_text_printf(&words, "%s%s", count++ ? ", " : "",
                            cpl_coupling_layer_label(label, &r->layers[i]));
    cpl_text_printf(&words, ": %s", sentence);
    out->failed = out->failed || words.failed;
    cpl_text_printf(out, "<p class=\"small\">%s",
                    *r->layers[first].at->part ? ""
                    : count > 1                ? "Layers "
                                               : "Layer ");
    cpl_markup_text(out, words.bytes ? words.bytes : "");
    cpl_text_printf(out, "</p>\n");
    cpl_text_free(&words);
}

static void put_words(cpl_text *out, const cpl_coupling_report *r)
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
    for (int kind = 0; kind < SENTENCES; kind++)
        for (int64_t i = 0; i < r->n_layers; i++) layer_sentence(out, r, i, kind);
}

/* ---- every quantity of the page in two sentences ---- */

static const struct {
    const char *name, *words;
} terms[] = {
    {"R, W_g, M",
     "Rᵢ is row i of the router and W_g of expert j the matrix whose output enters the "
     "activation function, both as stored: no noise, no bias, no norm folded in. M "
     "holds how strongly expert j answers to router row i, Mᵢⱼ = |Rᵢ · W_gʲ|."},
    {"κ", "κᵢⱼ = Mᵢⱼ / (|Rᵢ| |W_gʲ|), with the Frobenius norm of W_g, is the weighted root mean "
          "square cosine between Rᵢ and the rows of W_gʲ. It does not change when a router row or "
          "an expert is scaled."},
    {"λ", "Mᵢᵢ over the most that expert i could answer to a row of the norm of Rᵢ, |Rᵢ| times the "
          "largest "
          "singular value of W_gⁱ; mean over experts. 1 where every row is the top right singular "
          "vector of "
          "its gate. Random: the root mean square of λ over all directions of the row."},
    {"own share", "The share of rows (router rows) and of columns (experts) of κ whose greatest "
                  "entry lies on the diagonal. Without any coupling it is 1/n on average."},
    {"assignment", "The one-to-one pairing of router rows and experts with the greatest sum of κ. "
                   "What is shown is the share of pairs in it that are also pairs in the model; "
                   "random pairing gives 1/n on average."},
    {"z-score", "The mean diagonal of κ less its mean over all n! pairings of router rows and "
                "experts, over its standard deviation over them; both are exact. By chance it lies "
                "between −2 and 2 in about 95 of 100 layers."},
    {"ERC",
     "The coupling loss, (1/n²) Σᵢ Σ_{j≠i} max(Mᵢⱼ − α Mᵢᵢ, 0) + max(Mⱼᵢ − α Mᵢᵢ, 0), on the "
     "clean router rows. It shrinks when the weights shrink, so it is divided by the mean "
     "diagonal of M where it is to be compared."},
    {"random pairings", "ERC of M after each router row was given another expert at random, 100 "
                        "times from a fixed seed, as mean and standard deviation. A coupled layer "
                        "lies far below it."},
    {"ratios, α_min", "Quantiles over all pairs i ≠ j of max(Mᵢⱼ/Mᵢᵢ, Mᵢⱼ/Mⱼⱼ); the greatest is "
                      "α_min, the smallest α for which ERC is zero. One pair can set α_min, and it "
                      "is infinite (∞) where a diagonal entry of M is 0 and another in its row or "
                      "column is not."},
    {"centred rows",
     "Rᵢ less the mean of all router rows. Softmax and the choice of the K largest do not change "
     "when one vector is added to all rows, and neither do these figures, while M and what follows "
     "from it do. What no such change can make or hide is seen here. No routing, raw or centred, "
     "is "
     "seen in the sign: M is the same for Rᵢ and −Rᵢ."},
    {"condition, effective rank",
     "Of R, from its singular values: the greatest over the smallest, and the exponential of the "
     "entropy of their shares in their sum, which is n if they are equal and 1 if all rows point "
     "one "
     "way."},
    {"violated", "The share of pairs i ≠ j whose ratio is above 1. Each of them adds to ERC at "
                 "α = 1."},
    {"ε",
     "εᵢ is the distance from router row i to the nearest other row over twice the norm of row "
     "i: the noise that training with the coupling loss allows. In a model trained without "
     "that loss it says nothing about coupling."},
    {"norms",
     "|Rᵢ| is the Euclidean norm of a router row, |W_gʲ| the Frobenius norm of an expert's "
     "gate. They say how large weights are, not whether router and experts agree."},
    {"router cosine",
     "|cos| of the angle between two different router rows, over all pairs. Near 0 "
     "the rows point in unrelated directions."},
    {"silhouette",
     "Of a row of W_g: (b − a) / max(a, b), with a its mean distance 1 − cos to the other rows of "
     "its "
     "expert and b the least mean distance to the rows of another one. 1 means that the rows of an "
     "expert point one way and apart from all others, 0 that another expert is as near, below 0 "
     "that "
     "one is nearer; random rows of many dimensions lie just below 0."},
};

static void put_definitions(cpl_text *out)
{
    cpl_page_terms_open(out);
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        cpl_page_term(out, terms[i].name, terms[i].words);
    cpl_page_terms_close(out);
}

/* ---- sections ---- */

typedef struct maker {
    cpl_text *out;
    const cpl_coupling_report *const *reports;
    int64_t count;
    const json_t *data;
    const char *of_text; /* NULL: none */
} maker;

static void put_each(const maker *m,
                     void (*table)(cpl_text *out, const cpl_coupling_report *report))
{
    for (int64_t v = 0; v < m->count; v++) {
        if (m->count > 1) cpl_page_subsection(m->out, m->reports[v]->name);
        table(m->out, m->reports[v]);
    }
}

static void put_agreement(cpl_text *out, const cpl_coupling_report *r)
{
    cpl_inspect_page_layers(out, r, CPL_TABLE_AGREEMENT);
}

static void put_centred(cpl_text *out, const cpl_coupling_report *r)
{
    cpl_inspect_page_layers(out, r, CPL_TABLE_CENTRED);
}

static void put_raw_layers(cpl_text *out, const cpl_coupling_report *r)
{
    cpl_inspect_page_layers(out, r, CPL_TABLE_RAW);
}

static bool families_differ(const maker *m)
{
    for (int64_t v = 1; v < m->count; v++)
        if (strcmp(m->reports[v]->map.family, m->reports[0]->map.family) != 0) return true;
    return false;
}

static void put_checkpoints(const maker *m)
{
    cpl_page_section(m->out, m->count > 1 ? "Checkpoints" : "Checkpoint");
    cpl_inspect_page_checkpoints(m->out, m->reports, m->count);
}

static void put_scale_free(const maker *m)
{
    cpl_page_section(m->out, "Scale-free figures by layer");
    cpl_page_paragraph(m->out,
                       "These figures stay the same when a router row or an expert is scaled, "
                       "or are shown with what chance gives for the same weights. Compare "
                       "models by them.");
    cpl_page_charts(m->out, m->data, "coupling");
}

static void put_centred_rows(const maker *m)
{
    cpl_page_subsection(m->out, "The same of centred router rows");
    cpl_page_paragraph(m->out,
                       "Of the rows less their mean: no change of the router that leaves softmax "
                       "routing as it is changes these figures.");
    cpl_page_charts(m->out, m->data, "centred");
    put_each(m, put_centred);
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
                       "loss: it measures how far router rows are apart, not whether experts "
                       "respond to them.");
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
    put_each(m, put_raw_layers);
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
        cpl_page_open(m->out, title.bytes,
                      m->of_text ? "How well each router row is aligned with its own expert in the "
                                   "stored weights, and what the router does with text."
                                 : "How well each router row is aligned with its own expert, "
                                   "measured from the stored weights alone. What the router does "
                                   "with text: couplet inspect --text.");
    cpl_text_free(&title);
}

cpl_status cpl_coupling_page(cpl_text *out, const cpl_coupling_report *const *reports,
                             int64_t count, const json_t *data, const char *of_text,
                             void (*more)(cpl_text *out, const void *ctx, const json_t *data),
                             const void *ctx)
{
    const maker m = {out, reports, count, data, of_text};
    CPL_ASSERT(count > 0);
    put_title(&m);
    put_each(&m, put_words); /* the verdict, then pictures, then tables */
    if (of_text) cpl_page_paragraph(out, of_text);
    put_scale_free(&m);
    put_maps(&m);
    put_checkpoints(&m);
    cpl_page_section(out, "All layers, scale-free");
    put_each(&m, put_agreement);
    if (!m.reports[0]->options.noisy) put_centred_rows(&m);
    put_router(&m);
    put_raw(&m);
    if (more) more(out, ctx, data);
    cpl_page_section(out, "What the words mean");
    put_definitions(out);
    cpl_page_close(out, data);
    return cpl_text_status(out);
}
