/* texts.c - see texts.h */
#include "infer/texts.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/paths.h"

cpl_texts_options cpl_texts_defaults(void)
{
    return (cpl_texts_options){.reading = cpl_document_defaults(), .eos = -1};
}

void cpl_texts_free(cpl_texts *t)
{
    for (int64_t i = 0; i < t->n_documents; i++) cpl_free(t->documents[i].id);
    cpl_free(t->documents);
    cpl_paths_free(&t->sources);
    cpl_ids_free(&t->ids);
    memset(t, 0, sizeof *t);
}

int32_t cpl_texts_target(const cpl_texts *t, int64_t document, int64_t k)
{
    return t->ids.at[t->documents[document].first_id + k + (t->eos < 0)];
}

int32_t cpl_texts_input(const cpl_texts *t, int64_t document, int64_t k)
{
    if (t->eos < 0) return t->ids.at[t->documents[document].first_id + k];
    return k == 0 ? (int32_t)t->eos : t->ids.at[t->documents[document].first_id + k - 1];
}

/* ---- reading ---- */

/* Documents and predictions of one source so far. */
typedef struct tally {
    int64_t documents, predictions;
} tally;

typedef struct work {
    cpl_texts *texts;
    const cpl_texts_options *options;
    cpl_encoder *encoder;
    tally *tallies; /* one per source; owned */
} work;

static cpl_status find_source(work *w, int64_t *index, const char *name)
{
    cpl_strings *sources = &w->texts->sources;
    for (int64_t i = 0; i < sources->count; i++)
        if (strcmp(sources->at[i], name) == 0) {
            *index = i;
            return CPL_OK;
        }
    tally *more = cpl_realloc(w->tallies, (size_t)(sources->count + 1) * sizeof *more);
    if (!more) return CPL_ERR_MEMORY;
    w->tallies                 = more;
    w->tallies[sources->count] = (tally){0};
    *index                     = sources->count;
    return cpl_paths_add(sources, name);
}

static cpl_status make_room(cpl_texts *t)
{
    if (t->n_documents < t->capacity) return CPL_OK;
    int64_t capacity         = t->capacity ? 2 * t->capacity : 64;
    cpl_texts_document *more = cpl_realloc(t->documents, (size_t)capacity * sizeof *more);
    if (!more) return CPL_ERR_MEMORY;
    t->documents = more;
    t->capacity  = capacity;
    return CPL_OK;
}

/* Returns whether a source has reached its limits. Other sources may follow. */
static bool is_full(const work *w, int64_t source)
{
    const cpl_texts_options *o = w->options;
    const tally *seen          = &w->tallies[source];
    return (o->max_documents && seen->documents >= o->max_documents) ||
           (o->max_tokens && seen->predictions >= o->max_tokens);
}

static cpl_status add_document(work *w, const cpl_document *document)
{
    cpl_texts *t              = w->texts;
    cpl_texts_document *added = NULL;
    int64_t source, first = t->ids.count;
    CPL_TRY(find_source(w, &source, document->source));
    if (is_full(w, source)) return CPL_OK;
    CPL_TRY(make_room(t));
    CPL_TRY(cpl_encoder_append(w->encoder, &t->ids, document->text, document->length));
    int64_t predictions = t->ids.count - first - (w->options->eos < 0);
    if (predictions < 1) {
        t->ids.count = first;
        return CPL_OK;
    }
    added  = &t->documents[t->n_documents];
    *added = (cpl_texts_document){.source      = source,
                                  .id          = cpl_text_copy(document->id),
                                  .bytes       = (int64_t)document->length,
                                  .first_id    = first,
                                  .predictions = predictions};
    if (!added->id) return CPL_ERR_MEMORY;
    t->n_documents++;
    w->tallies[source].documents++;
    w->tallies[source].predictions += predictions;
    return CPL_OK;
}

static bool is_among(const char *path, const char *const *inputs, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (strcmp(path, inputs[i]) == 0) return true;
    return false;
}

static cpl_status add_file(work *w, const char *path, bool by_file, const cpl_log *log)
{
    cpl_documents *documents      = NULL;
    cpl_document_settings reading = w->options->reading;
    cpl_document document;
    bool more         = true;
    cpl_status status = CPL_OK;
    if (by_file) reading.default_source = path;
    CPL_TRY(cpl_documents_open(&documents, path, &reading, log));
    for (;;) {
        CPL_TRY_DONE(cpl_documents_next(documents, &document, &more));
        if (!more) break;
        CPL_TRY_DONE(add_document(w, &document));
    }
    cpl_document_counts counts = cpl_documents_counts(documents);
    cpl_document_counts_add(&w->texts->counts, &counts);
    if (counts.repaired > 0)
        cpl_log_warn(
            log,
            "%s: %lld place%s not UTF-8 (or half a surrogate pair): read as U+FFFD, as in training",
            path, (long long)counts.repaired, counts.repaired == 1 ? " is" : "s are");
done:
    cpl_documents_close(documents);
    return status;
}

/* ---- an even share ---- */

/* Sets allowed [sources] to the predictions that each source may keep, at most `budget` in total. A
 * source with less than an even share leaves the rest to the other sources. */
static void share_evenly(int64_t *allowed, const tally *tallies, int64_t n, int64_t budget)
{
    int64_t left = budget, open = n;
    bool changed = true;
    for (int64_t s = 0; s < n; s++) allowed[s] = -1;
    while (changed && open > 0) {
        int64_t even = left / open;
        changed      = false;
        for (int64_t s = 0; s < n; s++) {
            if (allowed[s] >= 0 || tallies[s].predictions > even) continue;
            allowed[s] = tallies[s].predictions;
            left -= allowed[s];
            open--;
            changed = true;
        }
    }
    for (int64_t s = 0; s < n; s++) {
        if (allowed[s] >= 0) continue;
        allowed[s] = left / open; /* later sources get the remainder */
        left -= allowed[s];
        open--;
    }
}

/* Cuts the document that reaches its source's limit, and drops later documents of the source. */
static cpl_status cut(work *w)
{
    cpl_texts *t     = w->texts;
    int64_t kept     = 0;
    int64_t *allowed = cpl_alloc((size_t)t->sources.count * sizeof *allowed + 1);
    if (!allowed) return CPL_ERR_MEMORY;
    share_evenly(allowed, w->tallies, t->sources.count, w->options->max_tokens);
    for (int64_t i = 0; i < t->n_documents; i++) {
        cpl_texts_document d = t->documents[i];
        if (d.predictions > allowed[d.source]) d.predictions = allowed[d.source];
        allowed[d.source] -= d.predictions;
        if (d.predictions > 0)
            t->documents[kept++] = d;
        else
            cpl_free(d.id);
    }
    t->n_documents = kept;
    cpl_free(allowed);
    return CPL_OK;
}

static cpl_status number(cpl_texts *t, int64_t n_files)
{
    for (int64_t i = 0; i < t->n_documents; i++) {
        t->documents[i].place = t->n_predictions;
        t->n_predictions += t->documents[i].predictions;
    }
    if (t->n_predictions > 0) return CPL_OK;
    if (t->counts.documents == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "there is no text in the %lld file%s given",
                        (long long)n_files, n_files == 1 ? "" : "s");
    return CPL_FAIL(CPL_ERR_INPUT,
                    "the text given is too short: no document has a token to predict");
}

cpl_status cpl_texts_read(cpl_texts *texts, const char *const *inputs, int64_t n_inputs,
                          const cpl_tokenizer *tokenizer, const cpl_texts_options *options,
                          const cpl_log *log)
{
    work w            = {.texts = texts, .options = options};
    cpl_strings files = {0};
    cpl_status status = CPL_OK;
    memset(texts, 0, sizeof *texts);
    texts->eos = options->eos;
    cpl_tokenizer_warn(tokenizer, log);
    CPL_TRY_DONE(cpl_documents_expand(&files, inputs, n_inputs));
    CPL_TRY_DONE(cpl_encoder_init(&w.encoder, tokenizer, options->special_as_text));
    for (int64_t i = 0; i < files.count; i++) {
        const bool named = options->by_file && is_among(files.at[i], inputs, n_inputs);
        CPL_TRY_DONE(add_file(&w, files.at[i], named, log));
    }
    if (options->max_tokens) CPL_TRY_DONE(cut(&w));
    status = number(texts, files.count);
done:
    cpl_encoder_free(w.encoder);
    cpl_free(w.tallies);
    cpl_paths_free(&files);
    if (status != CPL_OK) cpl_texts_free(texts);
    return status;
}

/* ---- windows ---- */

static int by_length(const void *a, const void *b)
{
    const cpl_window *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? 1 : -1;
    if (x->document != y->document) return x->document < y->document ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* Returns the window whose new predictions begin at `at` in a document with `all` predictions. */
static cpl_window window_at(int64_t document, int64_t at, int64_t all, int64_t length,
                            int64_t stride)
{
    const bool apart    = at == 0 || stride == length;
    const int64_t most  = apart ? length : stride;
    const int64_t end   = all - at < most ? all : at + most;
    const int64_t first = apart ? at : end - length;
    return (cpl_window){document, first, end - first, at - first};
}

static int64_t count_windows(int64_t all, int64_t length, int64_t stride)
{
    return all <= length ? 1 : 1 + (all - length + stride - 1) / stride;
}

cpl_status cpl_texts_windows(cpl_window **windows, int64_t *count, const cpl_texts *texts,
                             int64_t length, int64_t stride)
{
    int64_t n = 0, k = 0;
    CPL_ASSERT(stride > 0 && stride <= length);
    for (int64_t i = 0; i < texts->n_documents; i++)
        n += count_windows(texts->documents[i].predictions, length, stride);
    cpl_window *made = cpl_alloc((size_t)n * sizeof *made + 1);
    if (!made) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < texts->n_documents; i++)
        for (int64_t at = 0, all = texts->documents[i].predictions; at < all;) {
            made[k] = window_at(i, at, all, length, stride);
            at      = made[k].first + made[k].length;
            k++;
        }
    CPL_ASSERT(k == n);
    qsort(made, (size_t)n, sizeof *made, by_length);
    *windows = made;
    *count   = n;
    return CPL_OK;
}
