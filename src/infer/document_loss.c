/* document_loss.c - see document_loss.h */
#include "infer/document_loss.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "io/json.h"

void cpl_document_losses_free(cpl_document_losses *l)
{
    for (int64_t i = 0; i < l->count; i++) {
        cpl_free(l->at[i].source);
        cpl_free(l->at[i].id);
    }
    cpl_free(l->at);
    memset(l, 0, sizeof *l);
}

static cpl_status make_room(cpl_document_losses *l, int64_t count)
{
    l->at = cpl_alloc((size_t)count * sizeof *l->at + 1);
    if (!l->at) return CPL_ERR_MEMORY;
    memset(l->at, 0, (size_t)count * sizeof *l->at);
    l->count = count;
    return CPL_OK;
}

/* Returns the name as UTF-8, which JSON requires. Paths may contain other bytes. */
static char *well_formed(const char *name)
{
    cpl_text whole = {0};
    cpl_utf8_repair(&whole, name, strlen(name));
    if (whole.failed) cpl_text_free(&whole);
    return whole.bytes;
}

static cpl_status set_names(cpl_document_loss *loss, const char *source, const char *id)
{
    loss->source = well_formed(source);
    loss->id     = well_formed(id);
    return loss->source && loss->id ? CPL_OK : CPL_ERR_MEMORY;
}

/* ---- measuring ---- */

/* The loss of one prediction. */
typedef struct loss {
    int32_t document;
    float nll;
} loss;

static cpl_status write_losses(void *ctx, const cpl_reader_batch *batch)
{
    (void)ctx;
    for (int64_t r = 0; r < batch->rows; r++)
        for (int64_t k = 0; k < batch->length; k++) {
            const loss one = {(int32_t)batch->document[r], batch->nll[r * batch->length + k]};
            cpl_text_append(batch->text, &one, sizeof one);
        }
    return CPL_OK;
}

static cpl_status add_losses(void *ctx, const char *text, int64_t length)
{
    cpl_document_losses *l = ctx;
    const loss *one        = (const loss *)(const void *)text;
    for (int64_t i = 0; i < length / (int64_t)sizeof *one; i++)
        l->at[one[i].document].nll += (double)one[i].nll;
    return CPL_OK;
}

static cpl_status begin(cpl_document_losses *l, const cpl_texts *texts)
{
    CPL_TRY(make_room(l, texts->n_documents));
    for (int64_t i = 0; i < l->count; i++) {
        const cpl_texts_document *d = &texts->documents[i];
        l->at[i].bytes              = d->bytes;
        l->at[i].tokens             = d->predictions;
        CPL_TRY(set_names(&l->at[i], texts->sources.at[d->source], d->id));
    }
    return CPL_OK;
}

static cpl_status check_finite(const cpl_document_losses *l)
{
    for (int64_t i = 0; i < l->count; i++)
        if (!isfinite(l->at[i].nll))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "the loss of document %s (%s) is not finite: the weights are bad",
                            l->at[i].id, l->at[i].source);
    return CPL_OK;
}

cpl_status cpl_document_losses_measure(cpl_document_losses *l, cpl_reader *reader,
                                       const cpl_texts *texts)
{
    cpl_reader_callbacks callbacks = {.scored = write_losses, .take = add_losses, .ctx = l};
    cpl_status status              = CPL_OK;
    memset(l, 0, sizeof *l);
    l->step      = reader->step;
    l->window    = reader->window;
    l->stride    = reader->stride;
    l->n_sources = texts->sources.count;
    CPL_TRY_DONE(cpl_gather_status(reader->group, begin(l, texts)));
    CPL_TRY_DONE(cpl_reader_read(reader, texts, &callbacks));
    status = check_finite(l);
done:
    if (status != CPL_OK) cpl_document_losses_free(l);
    return status;
}

cpl_status cpl_document_losses_of(cpl_document_losses *l, const char *model_dir,
                                  const char *const *inputs, int64_t n_inputs,
                                  const cpl_reader_options *reading, const cpl_texts_options *given,
                                  const cpl_log *log)
{
    cpl_reader reader;
    cpl_texts texts           = {0};
    cpl_texts_options options = *given;
    cpl_status status         = CPL_OK;
    memset(l, 0, sizeof *l);
    status = cpl_reader_open(&reader, model_dir, reading, log);
    CPL_TRY(cpl_gather_status(reading->group, status));
    options.eos = reader.eos;
    status      = cpl_texts_read(&texts, inputs, n_inputs, reader.tokenizer, &options, log);
    CPL_TRY_DONE(cpl_gather_status(reading->group, status));
    status = cpl_document_losses_measure(l, &reader, &texts);
done:
    cpl_texts_free(&texts);
    cpl_reader_close(&reader);
    return status;
}

/* ---- files ---- */

static json_t *one_json(const cpl_document_loss *d)
{
    return json_pack("{s:o, s:s, s:I, s:I, s:f}", "source", cpl_json_words(d->source), "id", d->id,
                     "bytes", (json_int_t)d->bytes, "tokens", (json_int_t)d->tokens, "nll", d->nll);
}

static json_t *all_json(const cpl_document_losses *l)
{
    json_t *documents = json_array();
    bool failed       = !documents;
    for (int64_t i = 0; i < l->count; i++)
        failed = json_array_append_new(documents, one_json(&l->at[i])) != 0 || failed;
    json_t *step = l->step < 0 ? json_null() : json_integer((json_int_t)l->step);
    json_t *all  = json_pack("{s:o, s:I, s:o}", "step", step, "window", (json_int_t)l->window,
                             "documents", documents);
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

cpl_status cpl_document_losses_write(const cpl_document_losses *l, const char *path)
{
    json_t *json = all_json(l);
    if (!json) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for %s", path);
    cpl_status status = cpl_json_write_atomic(path, json, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(json);
    return status;
}
