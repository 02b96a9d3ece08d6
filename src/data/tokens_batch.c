/* tokens_batch.c - see tokens_batch.h */
#include "data/tokens_batch.h"

#include <omp.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"

static void *zeroed(size_t bytes)
{
    void *memory = cpl_alloc(bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

cpl_status cpl_tokens_batch_init(cpl_tokens_batch *batch, const cpl_tokenizer *tokenizer,
                                 bool special_as_text, int n_threads)
{
    memset(batch, 0, sizeof *batch);
    batch->n_threads = n_threads > 0 ? n_threads : omp_get_num_procs();
    CPL_TRY(cpl_memory_try(0, batch->n_threads)); /* OpenMP ends the process where it gets none */
    batch->encoder = zeroed((size_t)batch->n_threads * sizeof *batch->encoder);
    batch->item    = zeroed(CPL_BATCH_DOCUMENTS * sizeof *batch->item);
    if (!batch->encoder || !batch->item) return CPL_ERR_MEMORY;
    for (int i = 0; i < batch->n_threads; i++)
        CPL_TRY(cpl_encoder_init(&batch->encoder[i], tokenizer, special_as_text));
    return CPL_OK;
}

static void free_item(cpl_batch_item *item)
{
    cpl_text_free(&item->text);
    cpl_text_free(&item->id);
    cpl_text_free(&item->source);
    cpl_text_free(&item->path);
    cpl_ids_free(&item->ids);
}

void cpl_tokens_batch_free(cpl_tokens_batch *batch)
{
    for (int i = 0; batch->encoder && i < batch->n_threads; i++)
        cpl_encoder_free(batch->encoder[i]);
    for (int i = 0; batch->item && i < CPL_BATCH_DOCUMENTS; i++) free_item(&batch->item[i]);
    cpl_free(batch->encoder);
    cpl_free(batch->item);
    memset(batch, 0, sizeof *batch);
}

/* What a document of unusual length took is given back, so that many of them in turn do not add
 * up. */
static void empty(cpl_batch_item *item)
{
    if (item->text.capacity > CPL_BATCH_BYTES / 64) {
        cpl_text_free(&item->text);
        cpl_ids_free(&item->ids);
    }
    cpl_text_clear(&item->text);
    cpl_text_clear(&item->id);
    cpl_text_clear(&item->source);
    cpl_text_clear(&item->path);
    item->ids.count = 0;
}

void cpl_tokens_batch_clear(cpl_tokens_batch *batch)
{
    for (int64_t i = 0; i < batch->count; i++) empty(&batch->item[i]);
    batch->count = 0;
    batch->bytes = 0;
}

bool cpl_tokens_batch_full(const cpl_tokens_batch *batch)
{
    return batch->count == CPL_BATCH_DOCUMENTS || batch->bytes >= CPL_BATCH_BYTES;
}

cpl_status cpl_tokens_batch_add(cpl_tokens_batch *batch, const cpl_document *document)
{
    CPL_ASSERT(!cpl_tokens_batch_full(batch));
    cpl_batch_item *item = &batch->item[batch->count++];
    cpl_text_append(&item->text, document->text, document->length);
    cpl_text_append(&item->id, document->id, strlen(document->id));
    cpl_text_append(&item->source, document->source, strlen(document->source));
    cpl_text_append(&item->path, document->path, strlen(document->path));
    item->line = document->line;
    batch->bytes += document->length;
    CPL_TRY(cpl_text_status(&item->text));
    CPL_TRY(cpl_text_status(&item->id));
    CPL_TRY(cpl_text_status(&item->source));
    return cpl_text_status(&item->path);
}

/* Of one batch; sentences are a thread's own, so the one to be told is carried over. */
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

cpl_status cpl_tokens_batch_encode(cpl_tokens_batch *batch)
{
    failure first = {.status = CPL_OK};
#pragma omp parallel for schedule(dynamic, 1) num_threads(batch->n_threads)
    for (int64_t i = 0; i < batch->count; i++) {
        cpl_batch_item *item = &batch->item[i];
        cpl_status status    = cpl_encoder_append(batch->encoder[omp_get_thread_num()], &item->ids,
                                                  item->text.bytes, item->text.length);
        if (status != CPL_OK) keep_first(&first, status, i);
    }
    if (first.status == CPL_OK) return CPL_OK;
    const cpl_batch_item *item = &batch->item[first.at];
    return CPL_FAIL(first.status, "%s:%lld: %s", item->path.bytes, (long long)item->line,
                    first.sentence);
}

static const char *string_of(const cpl_text *text)
{
    return text->bytes ? text->bytes : "";
}

cpl_document cpl_tokens_batch_document(const cpl_tokens_batch *batch, int64_t i)
{
    const cpl_batch_item *item = &batch->item[i];
    cpl_document document = {string_of(&item->text),   item->text.length,      string_of(&item->id),
                             string_of(&item->source), string_of(&item->path), item->line};
    return document;
}
