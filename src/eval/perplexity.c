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

double cpl_perplexity_per_token(const cpl_perplexity_row *row)
{
    return row->nll / (double)row->tokens;
}

double cpl_perplexity_value(const cpl_perplexity_row *row)
{
    return exp(cpl_perplexity_per_token(row));
}

double cpl_perplexity_bits(const cpl_perplexity_row *row)
{
    return row->nll / log(2) / (double)row->bytes;
}

/* ---- measuring ---- */

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

/* Sources of the same name are one. */
static cpl_status add_up(cpl_perplexity *p, int64_t n_sources)
{
    cpl_perplexity_row all = {0};
    p->rows                = cpl_alloc((size_t)(n_sources + 1) * sizeof *p->rows);
    if (!p->rows) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < p->losses.count; i++) {
        add(row_of(p, p->losses.at[i].source), &p->losses.at[i]);
        add(&all, &p->losses.at[i]);
    }
    p->rows[p->n_rows++] = all;
    return CPL_OK;
}

static cpl_status conclude(cpl_perplexity *p)
{
    p->stride         = p->losses.stride;
    cpl_status status = add_up(p, p->losses.n_sources);
    if (status != CPL_OK) cpl_perplexity_free(p);
    return status;
}

cpl_status cpl_perplexity_measure(cpl_perplexity *p, cpl_reader *reader, const cpl_texts *texts)
{
    memset(p, 0, sizeof *p);
    CPL_TRY(cpl_document_losses_measure(&p->losses, reader, texts));
    return conclude(p);
}

cpl_status cpl_perplexity_of(cpl_perplexity *p, const char *model_dir, const char *const *inputs,
                             int64_t n_inputs, const cpl_reader_options *reading,
                             const cpl_texts_options *question_schemas, const cpl_log *log)
{
    memset(p, 0, sizeof *p);
    CPL_TRY(cpl_document_losses_of(&p->losses, model_dir, inputs, n_inputs, reading,
                                   question_schemas, log));
    return conclude(p);
}

/* ---- JSON ---- */

/* A perplexity beyond all numbers is null. */
static json_t *row_json(const cpl_perplexity_row *row)
{
    return json_pack("{s:o?, s:I, s:I, s:I, s:f, s:f, s:o, s:f}", "source",
                     row->source ? cpl_json_words(row->source) : json_null(), "documents",
                     (json_int_t)row->documents, "bytes", (json_int_t)row->bytes, "tokens",
                     (json_int_t)row->tokens, "nll", row->nll, "nll_per_token",
                     cpl_perplexity_per_token(row), "perplexity",
                     cpl_json_number(cpl_perplexity_value(row)), "bits_per_byte",
                     cpl_perplexity_bits(row));
}

json_t *cpl_perplexity_json(const cpl_perplexity *p)
{
    json_t *sources = json_array();
    bool failed     = !sources;
    for (int64_t i = 0; i < p->n_rows; i++) cpl_json_add(&failed, sources, row_json(&p->rows[i]));
    json_t *step = p->losses.step < 0 ? json_null() : json_integer((json_int_t)p->losses.step);
    json_t *all =
        json_pack("{s:o, s:I, s:I, s:o}", "step", step, "window", (json_int_t)p->losses.window,
                  "stride", (json_int_t)p->stride, "sources", sources);
    if (!failed) return all;
    json_decref(all);
    return NULL;
}
