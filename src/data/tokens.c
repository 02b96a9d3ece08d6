/* tokens.c - see tokens.h */
#include "data/tokens.h"

#include <omp.h>
#include <pthread.h>
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
#include "parallel/gather.h"

enum {
    EDGE_BYTES      = 65536, /* bytes at each end of a file that the fingerprint covers */
    BATCH_DOCUMENTS = 256,
    BATCH_BYTES     = 4 << 20 /* bytes of text at which a batch is full */
};

/* One document of a batch. It owns its memory, which is reused for the next batch. */
typedef struct batched {
    cpl_text text, id, source;
    const char *path; /* borrowed from the list of files */
    int64_t line;
    cpl_ids ids; /* set by encode */
} batched;

/* Documents that are encoded together. */
typedef struct portion {
    batched *at; /* [BATCH_DOCUMENTS] */
    int64_t count;
    size_t bytes; /* bytes of their texts */
} portion;

typedef struct maker {
    const cpl_tokens_job *job;
    cpl_document_settings reading;
    cpl_shard_writer *writer;
    char hash[17]; /* hash of the tokenizer */
    cpl_tokens_made *made;
    cpl_encoder **encoder; /* [n_threads] */
    int n_threads;
    const char *path; /* path of the current file */
    portion *round;   /* [n_ranks] a batch for each rank, read by one thread, encoded by several */
    int n_ranks, rank;
    int now;     /* index of the batch being filled */
    bool agreed; /* true if a failure is known to all ranks */
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
    m->n_threads              = job->n_threads > 0 ? job->n_threads : omp_get_max_threads();
    CPL_TRY(cpl_memory_try(0, m->n_threads)); /* OpenMP ends the process without memory */
    m->encoder = zeroed((size_t)m->n_threads * sizeof *m->encoder);
    m->round   = zeroed((size_t)m->n_ranks * sizeof *m->round);
    if (!m->encoder || !m->round) return CPL_ERR_MEMORY;
    for (int r = 0; r < m->n_ranks; r++)
        if (!(m->round[r].at = zeroed(BATCH_DOCUMENTS * sizeof *m->round[r].at)))
            return CPL_ERR_MEMORY;
    for (int i = 0; i < m->n_threads; i++)
        CPL_TRY(cpl_encoder_init(&m->encoder[i], job->tokenizer, job->settings->special_as_text));
    return CPL_OK;
}

static void free_batch(portion *batch)
{
    for (batched *b = batch->at; b && b < batch->at + BATCH_DOCUMENTS; b++) {
        cpl_text_free(&b->text);
        cpl_text_free(&b->id);
        cpl_text_free(&b->source);
        cpl_ids_free(&b->ids);
    }
    cpl_free(batch->at);
}

static void free_round(maker *m)
{
    for (int i = 0; m->encoder && i < m->n_threads; i++) cpl_encoder_free(m->encoder[i]);
    for (int r = 0; m->round && r < m->n_ranks; r++) free_batch(&m->round[r]);
    cpl_free(m->encoder);
    cpl_free(m->round);
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

/* Appends a copy of the document: the text on the rank that encodes it, id and source on rank 0. */
static cpl_status copy_document(maker *m, const cpl_document *document)
{
    portion *batch = &m->round[m->now];
    batched *b     = &batch->at[batch->count++];
    b->path        = m->path;
    b->line        = document->line;
    batch->bytes += document->length;
    if (m->now == m->rank) cpl_text_append(&b->text, document->text, document->length);
    if (m->rank == 0) {
        cpl_text_append(&b->id, document->id, strlen(document->id));
        cpl_text_append(&b->source, document->source, strlen(document->source));
    }
    CPL_TRY(cpl_text_status(&b->text));
    CPL_TRY(cpl_text_status(&b->id));
    return cpl_text_status(&b->source);
}

/* The first failure in a batch. Error messages are per thread, so the message is copied. */
typedef struct failure {
    pthread_mutex_t lock;
    cpl_status status;
    int64_t at;
    char sentence[1024];
} failure;

static void keep_first(failure *first, cpl_status status, int64_t at)
{
    pthread_mutex_lock(&first->lock);
    if (first->status == CPL_OK || at < first->at) {
        first->status = status;
        first->at     = at;
        strncpy(first->sentence, cpl_last_error(), sizeof first->sentence - 1);
    }
    pthread_mutex_unlock(&first->lock);
}

static const char *string_of(const cpl_text *text)
{
    return text->bytes ? text->bytes : "";
}

/* Sets the ids of all documents of this rank's batch. Ids do not depend on the number of threads.
 * If several documents fail, reports the failure of the first, with file and line. */
static cpl_status encode(maker *m)
{
    const portion *own = &m->round[m->rank];
    failure first      = {.lock = PTHREAD_MUTEX_INITIALIZER, .status = CPL_OK};
#pragma omp parallel for schedule(dynamic, 1) num_threads(m->n_threads)
    for (int64_t i = 0; i < own->count; i++) {
        batched *b        = &own->at[i];
        cpl_status status = cpl_encoder_append(m->encoder[omp_get_thread_num()], &b->ids,
                                               string_of(&b->text), b->text.length);
        if (status != CPL_OK) keep_first(&first, status, i);
    }
    if (first.status == CPL_OK) return CPL_OK;
    const batched *b = &own->at[first.at];
    return CPL_FAIL(first.status, "%s:%lld: %s", b->path, (long long)b->line, first.sentence);
}

static cpl_status write_document(maker *m, const batched *b, const int32_t *ids, int64_t n_ids)
{
    const cpl_document document = {
        .id = string_of(&b->id), .source = string_of(&b->source), .path = b->path, .line = b->line};
    return cpl_shard_writer_add(m->writer, &document, ids, n_ids);
}

static cpl_status write_batch(maker *m, const portion *batch)
{
    for (const batched *b = batch->at; b < batch->at + batch->count; b++)
        CPL_TRY(write_document(m, b, b->ids.at, b->ids.count));
    return CPL_OK;
}

/* ---- a round of several ranks ---- */

/* Records whether `status`, on which all ranks have agreed, is a failure. Returns `status`. */
static cpl_status agreed(maker *m, cpl_status status)
{
    m->agreed = status != CPL_OK;
    return status;
}

/* Packs this rank's batch for rank 0: for every document the number of ids, then the ids. */
static void pack(cpl_text *out, const portion *batch)
{
    for (const batched *b = batch->at; b < batch->at + batch->count; b++) {
        const int32_t count = (int32_t)b->ids.count;
        cpl_text_append(out, &count, sizeof count);
        if (count) cpl_text_append(out, b->ids.at, (size_t)count * sizeof *b->ids.at);
    }
}

static cpl_status write_packed(maker *m, const char *packed)
{
    const int32_t *at = (const int32_t *)(const void *)packed;
    for (const portion *batch = m->round; batch < m->round + m->n_ranks; batch++)
        for (const batched *b = batch->at; b < batch->at + batch->count; b++) {
            CPL_TRY(write_document(m, b, at + 1, *at));
            at += 1 + *at;
        }
    return CPL_OK;
}

/* Gathers the batches of all ranks on rank 0, which writes them. `status` is the status of this
 * rank so far. Collective. */
static cpl_status write_round(maker *m, cpl_status status)
{
    cpl_text own     = {0};
    cpl_gathered all = {0};
    if (status == CPL_OK) pack(&own, &m->round[m->rank]);
    status = agreed(m, cpl_gather_to_first(&all, m->job->group, status, &own));
    cpl_text_free(&own);
    CPL_TRY(status);
    if (m->rank == 0) status = write_packed(m, all.bytes);
    cpl_gathered_free(&all);
    return agreed(m, cpl_gather_status(m->job->group, status));
}

/* Encodes and writes the batches of the round. */
static cpl_status flush(maker *m)
{
    cpl_status status = encode(m);
    if (m->n_ranks > 1)
        status = write_round(m, status);
    else if (status == CPL_OK)
        status = write_batch(m, m->round);
    CPL_TRY(status);
    for (portion *batch = m->round; batch < m->round + m->n_ranks; batch++) {
        for (batched *b = batch->at; b < batch->at + batch->count; b++) empty(b);
        batch->count = 0;
        batch->bytes = 0;
    }
    m->now = 0;
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
                        "%s has no <|endoftext|>: set data.eos to the id that ends a document, for "
                        "example data.eos=0",
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
    CPL_TRY(copy_document(m, document));
    const portion *batch = &m->round[m->now];
    if (batch->count < BATCH_DOCUMENTS && batch->bytes < BATCH_BYTES) return CPL_OK;
    return ++m->now == m->n_ranks ? flush(m) : CPL_OK;
}

static cpl_status add_file(maker *m, const char *path)
{
    cpl_documents *documents = NULL;
    cpl_document document;
    bool more         = true;
    cpl_status status = CPL_OK;
    m->path           = path;
    CPL_TRY(cpl_documents_open(&documents, path, &m->reading, m->job->log));
    for (;;) {
        CPL_TRY_DONE(cpl_stop_check());
        CPL_TRY_DONE(cpl_documents_next(documents, &document, &more));
        if (!more) break;
        CPL_TRY_DONE(add_document(m, &document));
    }
    cpl_document_counts counts = cpl_documents_counts(documents);
    cpl_document_counts_add(&m->made->counts, &counts);
done:
    cpl_documents_close(documents);
    return status;
}

static cpl_status finish(maker *m, const cpl_strings *files)
{
    m->made->n_files = files->count;
    m->made->tokens  = cpl_shard_writer_tokens(m->writer);
    if (m->made->tokens == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "there is no text in the %lld file%s given: the corpus is "
                        "empty",
                        (long long)files->count, files->count == 1 ? "" : "s");
    return cpl_shard_writer_finish(m->writer, &m->made->counts);
}

static cpl_status add_files(maker *m, const cpl_strings *files)
{
    for (int64_t i = 0; i < files->count; i++) {
        CPL_TRY(add_file(m, files->at[i]));
        if (m->job->progress && m->rank == 0) m->job->progress(m->job->ctx, i + 1, files->count);
    }
    CPL_TRY(flush(m));
    return m->rank == 0 ? finish(m, files) : CPL_OK;
}

/* Checks that all ranks read the same inputs. Collective. */
static cpl_status check_ranks(maker *m)
{
    uint64_t hash = 0;
    char hex[17];
    if (m->n_ranks == 1) return CPL_OK;
    cpl_status status = cpl_tokens_fingerprint(&hash, m->job);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    return agreed(
        m, cpl_gather_equal(m->job->group, status,
                            json_pack("{s:s,s:s}", "the version of the program", COUPLET_VERSION,
                                      "the fingerprint of the inputs", hex)));
}

static cpl_status make(maker *m, cpl_strings *files)
{
    const cpl_strings *inputs = m->job->inputs;
    CPL_TRY(open_batch(m));
    CPL_TRY(cpl_documents_expand(files, (const char *const *)inputs->at, inputs->count));
    if (m->rank == 0) CPL_TRY(open_writer(m));
    CPL_TRY(check_ranks(m));
    return add_files(m, files);
}

cpl_status cpl_tokens_make(const cpl_tokens_job *job, cpl_tokens_made *made)
{
    maker m           = {.job     = job,
                         .reading = cpl_tokens_reading(job->settings),
                         .made    = made,
                         .n_ranks = job->group ? job->group->size : 1,
                         .rank    = job->group ? job->group->rank : 0};
    cpl_strings files = {0};
    memset(made, 0, sizeof *made);
    if (job->lone_surrogates_replaced) m.reading.lone_surrogate = CPL_SURROGATE_REPLACE;
    cpl_status status = make(&m, &files);
    if (!m.agreed) status = cpl_gather_status(job->group, status);
    cpl_shard_writer_close(m.writer);
    free_round(&m);
    cpl_paths_free(&files);
    return status;
}

/* ---- existing files ---- */

static bool is_token_file(const char *name)
{
    return cpl_path_ends_in(name, ".npy") || cpl_path_ends_in(name, ".bin") ||
           strcmp(name, "shards.json") == 0;
}

/* Returns whether the folder holds token files, at most `depth` folders deep. */
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
