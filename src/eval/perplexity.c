/* perplexity.c - see perplexity.h */
#include "eval/perplexity.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "io/json.h"

void cpl_perplexity_free(cpl_perplexity *p)
{
    cpl_document_losses_free(&p->losses);
    cpl_free(p->rows);
    memset(p, 0, sizeof *p);
}

static cpl_perplexity_row *row_of(cpl_perplexity *p, const char *source)
{
    for (int64_t i = 0; i < p->n_rows; i++)
        if (strcmp(p->rows[i].source, source) == 0) return &p->rows[i];
    p->rows[p->n_rows] = (cpl_perplexity_row){.source = source};
    return &p->rows[p->n_rows++];
}

static void add(cpl_perplexity_row *row, const cpl_document_loss *loss)
{
    row->documents++;
    row->bytes += loss->bytes;
    row->tokens += loss->tokens;
    row->nll += loss->nll;
}

/* Adds up the losses of each source. Sources of the same name share a row. */
cpl_status cpl_perplexity_add_up(cpl_perplexity *p)
{
    cpl_perplexity_row all = {0};
    p->rows                = cpl_alloc((size_t)(p->losses.n_sources + 1) * sizeof *p->rows);
    if (!p->rows) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < p->losses.count; i++) {
        add(row_of(p, p->losses.at[i].source), &p->losses.at[i]);
        add(&all, &p->losses.at[i]);
    }
    p->rows[p->n_rows++] = all;
    for (int64_t i = 0; i < p->n_rows; i++) {
        cpl_perplexity_row *row = &p->rows[i];
        row->per_token          = row->nll / (double)row->tokens;
        row->value              = exp(row->per_token);
        row->bits               = row->nll / log(2) / (double)row->bytes;
    }
    return CPL_OK;
}

/* ---- JSON ---- */

/* Returns a row as JSON. A perplexity that is not finite becomes null. */
static json_t *row_json(const cpl_perplexity_row *row)
{
    return json_pack("{s:o?, s:I, s:I, s:I, s:f, s:f, s:o, s:f}", "source",
                     row->source ? cpl_json_words(row->source) : json_null(), "documents",
                     (json_int_t)row->documents, "bytes", (json_int_t)row->bytes, "tokens",
                     (json_int_t)row->tokens, "nll", row->nll, "nll_per_token", row->per_token,
                     "perplexity", cpl_json_number(row->value), "bits_per_byte", row->bits);
}

json_t *cpl_perplexity_json(const cpl_perplexity *p)
{
    json_t *sources = json_array();
    bool failed     = !sources;
    for (int64_t i = 0; i < p->n_rows; i++) cpl_json_add(&failed, sources, row_json(&p->rows[i]));
    json_t *step = p->losses.step < 0 ? json_null() : json_integer((json_int_t)p->losses.step);
    json_t *all =
        json_pack("{s:o, s:I, s:I, s:o}", "step", step, "window", (json_int_t)p->losses.window,
                  "stride", (json_int_t)p->losses.stride, "sources", sources);
    if (!failed) return all;
    json_decref(all);
    return NULL;
}
