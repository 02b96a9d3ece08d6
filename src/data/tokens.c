/* tokens.c - see tokens.h */
#include "data/tokens.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/memory.h"
#include "base/stop.h"
#include "data/shard_writer.h"
#include "io/file.h"
#include "io/paths.h"

enum {
    EDGE_BYTES      = 65536, /* of each end of a file that the fingerprint sees */
    BATCH_DOCUMENTS = 256,
    BATCH_BYTES     = 4 << 20 /* of text, at which a batch counts as full */
};

/* One document of a batch. It owns its memory, which is kept from batch to batch. */
typedef struct batched {
    cpl_text text, id, source;
    const char *path; /* of the reader: a batch holds documents of one file */
    int64_t line;
    cpl_ids ids; /* set by encode */
} batched;

typedef struct maker {
    const cpl_tokens_job *job;
    cpl_document_settings reading;
    cpl_shard_writer *writer;
    char hash[17]; /* of the tokenizer */
    cpl_tokens_made *made;
    cpl_encoder **encoder; /* [n_threads] */
    int n_threads;
    batched *batch; /* [BATCH_DOCUMENTS]: gathered by one thread, encoded by several */
    int64_t n_batched;
    size_t bytes; /* of their texts */
} maker;

/* ---- a batch of documents ---- */

static void *zeroed(size_t bytes)
{
    void *memory = cpl_alloc(bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static cpl_status open_batch(maker *m)
{
    const cpl_tokens_job *job = m->job;
    m->n_threads              = job->n_threads > 0 ? job->n_threads : omp_get_num_procs();
    CPL_TRY(cpl_memory_try(0, m->n_threads)); /* OpenMP ends the process if it gets none */
    m->encoder = zeroed((size_t)m->n_threads * sizeof *m->encoder);
    m->batch   = zeroed(BATCH_DOCUMENTS * sizeof *m->batch);
    if (!m->encoder || !m->batch) return CPL_ERR_MEMORY;
    for (int i = 0; i < m->n_threads; i++)
        CPL_TRY(cpl_encoder_init(&m->encoder[i], job->tokenizer, job->settings->special_as_text));
    return CPL_OK;
}

static void free_batch(maker *m)
{
    for (int i = 0; m->encoder && i < m->n_threads; i++) cpl_encoder_free(m->encoder[i]);
    for (batched *b = m->batch; b && b < m->batch + BATCH_DOCUMENTS; b++) {
        cpl_text_free(&b->text);
        cpl_text_free(&b->id);
        cpl_text_free(&b->source);
        cpl_ids_free(&b->ids);
    }
    cpl_free(m->encoder);
    cpl_free(m->batch);
}

/* Frees the memory of an unusually long document, so that many of them do not add up. */
static void empty(batched *b)
{
    if (b->text.capacity > BATCH_BYTES / 64) {
        cpl_text_free(&b->text);
        cpl_ids_free(&b->ids);
    }
    cpl_text_clear(&b->text);
    cpl_text_clear(&b->id);
    cpl_text_clear(&b->source);
    b->ids.count = 0;
}

/* Appends a copy of the document. */
static cpl_status gather(maker *m, const cpl_document *document)
{
    batched *b = &m->batch[m->n_batched++];
    cpl_text_append(&b->text, document->text, document->length);
    cpl_text_append(&b->id, document->id, strlen(document->id));
    cpl_text_append(&b->source, document->source, strlen(document->source));
    b->path = document->path;
    b->line = document->line;
    m->bytes += document->length;
    CPL_TRY(cpl_text_status(&b->text));
    CPL_TRY(cpl_text_status(&b->id));
    return cpl_text_status(&b->source);
}

/* Of one batch; error messages are per thread, so the one to be reported is copied. */
typedef struct failure {
    cpl_status status;
    int64_t at;
    char sentence[1024];
} failure;

static void keep_first(failure *first, cpl_status status, int64_t at)
{
#pragma omp critical(cpl_tokens_failure)
    if (first->status == CPL_OK || at < first->at) {
        first->status = status;
        first->at     = at;
        strncpy(first->sentence, cpl_last_error(), sizeof first->sentence - 1);
    }
}

/* Sets the ids of all documents. They do not depend on the number of threads, and of several
 * failures the one of the first document is reported, with its file and line. */
static cpl_status encode(maker *m)
{
    failure first = {.status = CPL_OK};
#pragma omp parallel for schedule(dynamic, 1) num_threads(m->n_threads)
    for (int64_t i = 0; i < m->n_batched; i++) {
        batched *b        = &m->batch[i];
        cpl_status status = cpl_encoder_append(m->encoder[omp_get_thread_num()], &b->ids,
                                               b->text.bytes, b->text.length);
        if (status != CPL_OK) keep_first(&first, status, i);
    }
    if (first.status == CPL_OK) return CPL_OK;
    const batched *b = &m->batch[first.at];
    return CPL_FAIL(first.status, "%s:%lld: %s", b->path, (long long)b->line, first.sentence);
}

static const char *string_of(const cpl_text *text)
{
    return text->bytes ? text->bytes : "";
}

/* Encodes and writes what was gathered. */
static cpl_status flush(maker *m)
{
    CPL_TRY(encode(m));
    for (batched *b = m->batch; b < m->batch + m->n_batched; b++) {
        cpl_document document = {string_of(&b->text),   b->text.length, string_of(&b->id),
                                 string_of(&b->source), b->path,        b->line};
        CPL_TRY(cpl_shard_writer_add(m->writer, &document, b->ids.at, b->ids.count));
        empty(b);
    }
    m->n_batched = 0;
    m->bytes     = 0;
    return CPL_OK;
}

/* ---- making ---- */

cpl_document_settings cpl_tokens_reading(const cpl_data_settings *s)
{
    cpl_document_settings r = cpl_document_defaults();
    r.text_field            = s->text_field;
    r.id_field              = s->id_field;
    r.source_field          = s->source_field;
    r.strip                 = s->strip;
    r.bad                   = (cpl_bad_choice)s->bad;
    r.split                 = (cpl_split_choice)s->split;
    r.separator             = s->separator;
    r.max_line_bytes        = (size_t)s->max_line_bytes;
    r.zstd_window_log       = (int)s->zstd_window_log;
    return r;
}

static cpl_status eos_of(const cpl_tokens_job *job, int64_t *eos)
{
    *eos = job->settings->eos != CPL_UNSET ? job->settings->eos : cpl_tokenizer_eos(job->tokenizer);
    if (*eos < 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s has no <|endoftext|>; say with data.eos which id ends a document",
                        job->tokenizer_path);
    return CPL_OK;
}

static cpl_status open_writer(maker *m)
{
    int64_t eos = 0;
    CPL_TRY(eos_of(m->job, &eos));
    snprintf(m->hash, sizeof m->hash, "%016llx",
             (unsigned long long)cpl_tokenizer_hash(m->job->tokenizer));
    cpl_shard_writer_settings settings = {
        .folder          = m->job->folder,
        .replace         = m->job->replace,
        .by_source       = m->job->by_source,
        .max_tokens      = m->job->max_tokens,
        .vocab_size      = cpl_tokenizer_vocab_size(m->job->tokenizer),
        .eos             = eos,
        .source_root     = m->job->source_root,
        .tokenizer_path  = m->job->tokenizer_path,
        .tokenizer_hash  = m->hash,
        .unicode_version = "16.0",
    };
    return cpl_shard_writer_open(&m->writer, &settings);
}

static cpl_status add_document(maker *m, const cpl_document *document)
{
    CPL_TRY(gather(m, document));
    return m->n_batched == BATCH_DOCUMENTS || m->bytes >= BATCH_BYTES ? flush(m) : CPL_OK;
}

static cpl_status add_file(maker *m, const char *path)
{
    cpl_documents *documents = NULL;
    cpl_document document;
    bool more         = true;
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_documents_open(&documents, path, &m->reading, m->job->log));
    for (;;) {
        CPL_TRY_DONE(cpl_stop_check());
        CPL_TRY_DONE(cpl_documents_next(documents, &document, &more));
        if (!more) break;
        CPL_TRY_DONE(add_document(m, &document));
    }
    CPL_TRY_DONE(flush(m));
    cpl_document_counts counts = cpl_documents_counts(documents);
    cpl_document_counts_add(&m->made->counts, &counts);
done:
    cpl_documents_close(documents);
    return status;
}

static cpl_status add_files(maker *m, const cpl_strings *files)
{
    for (int64_t i = 0; i < files->count; i++) {
        CPL_TRY(add_file(m, files->at[i]));
        m->made->tokens = cpl_shard_writer_tokens(m->writer);
        if (m->job->progress) m->job->progress(m->job->ctx, i + 1, files->count, m->made->tokens);
    }
    m->made->n_files = files->count;
    if (m->made->tokens == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "there is no text in the %lld file%s given: the corpus is "
                        "empty",
                        (long long)files->count, files->count == 1 ? "" : "s");
    return cpl_shard_writer_finish(m->writer, &m->made->counts);
}

cpl_status cpl_tokens_make(const cpl_tokens_job *job, cpl_tokens_made *made)
{
    maker m           = {.job = job, .reading = cpl_tokens_reading(job->settings), .made = made};
    cpl_strings files = {0};
    cpl_status status = CPL_OK;
    memset(made, 0, sizeof *made);
    if (job->lone_surrogates_replaced) m.reading.lone_surrogate = CPL_SURROGATE_REPLACE;
    CPL_TRY_DONE(open_batch(&m));
    CPL_TRY_DONE(
        cpl_documents_expand(&files, (const char *const *)job->inputs->at, job->inputs->count));
    CPL_TRY_DONE(open_writer(&m));
    CPL_TRY_DONE(add_files(&m, &files));
done:
    cpl_shard_writer_close(m.writer);
    free_batch(&m);
    cpl_paths_free(&files);
    return status;
}

/* ---- existing files ---- */

static bool is_token_file(const char *name)
{
    return cpl_path_ends_in(name, ".npy") || cpl_path_ends_in(name, ".bin") ||
           strcmp(name, "shards.json") == 0;
}

/* Looks `depth` folders deep. */
static bool holds_token_files(const char *folder, int depth)
{
    cpl_strings names = {0};
    bool found        = false;
    if (cpl_folder_list(&names, folder) != CPL_OK) return false;
    for (int64_t i = 0; !found && i < names.count; i++) {
        found = is_token_file(names.at[i]);
        if (found || depth == 0) continue;
        char *path = cpl_path_join(folder, names.at[i]);
        if (path && cpl_path_is_folder(path)) found = holds_token_files(path, depth - 1);
        cpl_free(path);
    }
    cpl_paths_free(&names);
    return found;
}

bool cpl_tokens_are_shards(const char *path)
{
    return cpl_path_is_folder(path) ? holds_token_files(path, 2) : is_token_file(path);
}

/* ---- the fingerprint ---- */

static cpl_status hash_file(XXH3_state_t *state, const char *path)
{
    unsigned char edge[EDGE_BYTES];
    uint64_t length   = 0;
    int descriptor    = -1;
    cpl_status status = cpl_file_open(&descriptor, &length, path);
    if (status != CPL_OK) return status;
    size_t n = length < EDGE_BYTES ? (size_t)length : EDGE_BYTES;
    XXH3_64bits_update(state, path, strlen(path) + 1);
    XXH3_64bits_update(state, &length, sizeof length);
    CPL_TRY_DONE(cpl_file_read_at(descriptor, edge, n, 0, path));
    XXH3_64bits_update(state, edge, n);
    CPL_TRY_DONE(cpl_file_read_at(descriptor, edge, n, length - n, path));
    XXH3_64bits_update(state, edge, n);
done:
    close(descriptor);
    return status;
}

static cpl_status hash_settings(XXH3_state_t *state, const cpl_tokens_job *job)
{
    cpl_text text              = {0};
    const cpl_data_settings *s = job->settings;
    cpl_text_printf(&text, "%016llx %s %s %s %d %d %d %s %d %lld %lld %lld %d %d",
                    (unsigned long long)cpl_tokenizer_hash(job->tokenizer), s->text_field,
                    s->id_field, s->source_field, s->strip, s->bad, s->split, s->separator,
                    s->special_as_text, (long long)s->eos, (long long)s->max_line_bytes,
                    (long long)job->max_tokens, job->by_source, job->lone_surrogates_replaced);
    cpl_status status = cpl_text_status(&text);
    if (status == CPL_OK) XXH3_64bits_update(state, text.bytes, text.length);
    cpl_text_free(&text);
    return status;
}

cpl_status cpl_tokens_fingerprint(uint64_t *hash, const cpl_tokens_job *job)
{
    cpl_strings files   = {0};
    cpl_status status   = CPL_OK;
    XXH3_state_t *state = XXH3_createState();
    if (!state) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a hash");
    XXH3_64bits_reset(state);
    CPL_TRY_DONE(
        cpl_documents_expand(&files, (const char *const *)job->inputs->at, job->inputs->count));
    CPL_TRY_DONE(hash_settings(state, job));
    for (int64_t i = 0; i < files.count; i++) {
        CPL_TRY_DONE(cpl_stop_check());
        CPL_TRY_DONE(hash_file(state, files.at[i]));
    }
    *hash = XXH3_64bits_digest(state);
done:
    XXH3_freeState(state);
    cpl_paths_free(&files);
    return status;
}
