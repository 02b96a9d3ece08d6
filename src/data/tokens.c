/* tokens.c - see tokens.h */
#include "data/tokens.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/stop.h"
#include "data/shard_writer.h"
#include "data/tokens_batch.h"
#include "io/file.h"
#include "io/paths.h"

enum { EDGE_BYTES = 65536 }; /* of each end of a file that the fingerprint sees */

/* ---- making ---- */

typedef struct maker {
    const cpl_tokens_job *job;
    cpl_document_settings reading;
    cpl_shard_writer *writer;
    cpl_tokens_batch batch;
    cpl_tokens_made *made;
} maker;

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
    char hash[17];
    int64_t eos = 0;
    CPL_TRY(eos_of(m->job, &eos));
    snprintf(hash, sizeof hash, "%016llx",
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
        .tokenizer_hash  = hash,
        .unicode_version = "16.0",
    };
    return cpl_shard_writer_open(&m->writer, &settings);
}

/* Encodes and writes what was gathered. */
static cpl_status flush(maker *m)
{
    CPL_TRY(cpl_tokens_batch_encode(&m->batch));
    for (int64_t i = 0; i < m->batch.count; i++) {
        cpl_document document = cpl_tokens_batch_document(&m->batch, i);
        const cpl_ids *ids    = &m->batch.item[i].ids;
        CPL_TRY(cpl_shard_writer_add(m->writer, &document, ids->at, ids->count));
    }
    cpl_tokens_batch_clear(&m->batch);
    return CPL_OK;
}

static cpl_status add_document(maker *m, const cpl_document *document)
{
    CPL_TRY(cpl_tokens_batch_add(&m->batch, document));
    return cpl_tokens_batch_full(&m->batch) ? flush(m) : CPL_OK;
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
    CPL_TRY_DONE(
        cpl_documents_expand(&files, (const char *const *)job->inputs->at, job->inputs->count));
    CPL_TRY_DONE(cpl_tokens_batch_init(&m.batch, job->tokenizer, job->settings->special_as_text,
                                       job->n_threads));
    CPL_TRY_DONE(open_writer(&m));
    CPL_TRY_DONE(add_files(&m, &files));
done:
    cpl_shard_writer_close(m.writer);
    cpl_tokens_batch_free(&m.batch);
    cpl_paths_free(&files);
    return status;
}

/* ---- what lies there already ---- */

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), e = strlen(end);
    return n >= e && strcmp(name + n - e, end) == 0;
}

static bool is_token_file(const char *name)
{
    return ends_in(name, ".npy") || ends_in(name, ".bin") || strcmp(name, "shards.json") == 0;
}

/* Looks `depth` folders deep. */
static bool holds_token_files(const char *folder, int depth)
{
    char **names  = NULL;
    int64_t count = 0;
    bool found    = false;
    if (cpl_folder_list(&names, &count, folder) != CPL_OK) return false;
    for (int64_t i = 0; !found && i < count; i++) {
        found = is_token_file(names[i]);
        if (found || depth == 0) continue;
        char *path = cpl_path_join(folder, names[i]);
        if (path && cpl_path_is_folder(path)) found = holds_token_files(path, depth - 1);
        cpl_free(path);
    }
    cpl_folder_list_free(names, count);
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

static void hash_settings(XXH3_state_t *state, const cpl_tokens_job *job)
{
    cpl_text text              = {0};
    const cpl_data_settings *s = job->settings;
    cpl_text_printf(&text, "%016llx %s %s %s %d %d %d %s %d %lld %lld %lld %d %d",
                    (unsigned long long)cpl_tokenizer_hash(job->tokenizer), s->text_field,
                    s->id_field, s->source_field, s->strip, s->bad, s->split, s->separator,
                    s->special_as_text, (long long)s->eos, (long long)s->max_line_bytes,
                    (long long)job->max_tokens, job->by_source, job->lone_surrogates_replaced);
    if (text.bytes) XXH3_64bits_update(state, text.bytes, text.length);
    cpl_text_free(&text);
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
    hash_settings(state, job);
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
