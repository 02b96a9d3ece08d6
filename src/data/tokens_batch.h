/* tokens_batch.h - a batch of documents: gathered by one thread, encoded by several.
 *
 * Room:  data, behind tokens.h. */
#ifndef CPL_DATA_TOKENS_BATCH_H
#define CPL_DATA_TOKENS_BATCH_H

#include "base/text.h"
#include "data/documents.h"
#include "tokenizer/tokenizer.h"

enum {
    CPL_BATCH_DOCUMENTS = 256,
    CPL_BATCH_BYTES     = 4 << 20 /* of text, at which a batch counts as full */
};

/* One document with memory of its own, kept from batch to batch. */
typedef struct cpl_batch_item {
    cpl_text text, id, source, path;
    int64_t line;
    cpl_ids ids; /* set by cpl_tokens_batch_encode */
} cpl_batch_item;

typedef struct cpl_tokens_batch {
    cpl_encoder **encoder; /* [n_threads] */
    int n_threads;
    cpl_batch_item *item; /* [CPL_BATCH_DOCUMENTS] */
    int64_t count;
    size_t bytes; /* of their texts */
} cpl_tokens_batch;

/* n_threads 0: one per processor. After a failure free gives back what there is. */
CPL_NODISCARD cpl_status cpl_tokens_batch_init(cpl_tokens_batch *batch,
                                               const cpl_tokenizer *tokenizer, bool special_as_text,
                                               int n_threads);
void cpl_tokens_batch_free(cpl_tokens_batch *batch); /* all zero is allowed */

bool cpl_tokens_batch_full(const cpl_tokens_batch *batch);

/* Appends a copy of the document; the batch is not full. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_tokens_batch_add(cpl_tokens_batch *batch,
                                              const cpl_document *document);

/* Sets the ids of all items. They do not depend on the number of threads, and of several failures
 * the one of the first document is told, with its file and line. */
CPL_NODISCARD cpl_status cpl_tokens_batch_encode(cpl_tokens_batch *batch);

/* The item as a document again; its strings belong to the batch. */
cpl_document cpl_tokens_batch_document(const cpl_tokens_batch *batch, int64_t i);

/* No items; keeps the memory of those of ordinary length. */
void cpl_tokens_batch_clear(cpl_tokens_batch *batch);

#endif /* CPL_DATA_TOKENS_BATCH_H */
