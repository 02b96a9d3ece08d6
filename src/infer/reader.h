/* reader.h - runs a model over texts, in batches of windows.
 *
 * Room:    infer. Does not change weights. The callbacks are called with every layer of every
 *          batch, then with the batch's losses.
 * Ranks:   batches are divided in rounds, one batch per rank. `layer` and `scored` run on the rank
 *          that reads the batch and append their results to its text. `take` gets the texts of all
 *          batches, in order, on every rank, so that sums have the bits of one process.
 * Model:   any model that cpl_hf_open opens.
 * Results: a prediction depends on the rest of its batch only by rounding: sequences do not attend
 *          to each other, and padding is at the end. */
#ifndef CPL_INFER_READER_H
#define CPL_INFER_READER_H

#include "infer/texts.h"
#include "parallel/gather.h"
#include "store/hf.h"
#include "tensor/backend/backend.h"

typedef struct cpl_reader_options {
    const char *tokenizer;      /* a path; NULL means the tokenizer.json of the model's folder */
    const char *tokenizer_flag; /* flag that names a tokenizer, for error messages; may be NULL */
    int64_t window;       /* predictions of a window; 0 means data.seq_len of the run that contains
                             the model, otherwise 1024 or the model's context if shorter */
    int64_t stride;       /* new predictions of a window after the first (texts.h); 0 means all */
    int64_t batch_tokens; /* tokens of a batch, at least one window; 0 means 4096 */
    const char *device;   /* a value of compute.device (tensor/backend/backend.h); NULL is auto */
    cpl_dtype compute;    /* type of products, as for cpl_backend_open; CPL_F32 is 0 */
    int n_threads;        /* 0 means one thread per processor */
    cpl_group *group;     /* ranks that divide the batches; NULL for one process */
} cpl_reader_options;

typedef struct cpl_reader {
    cpl_hf *hf;
    cpl_tokenizer *tokenizer;
    cpl_backend be;
    cpl_model model; /* points to `be`, so a reader must not be moved in memory */
    bool loaded;
    int64_t window, stride, batch_tokens;
    int64_t eos;  /* eos of the model, otherwise of the tokenizer; -1 if neither has it */
    int64_t step; /* number of a folder step-NNNNNN; -1 for another name */
    cpl_group *group;
} cpl_reader;

/* Reads configuration and tokenizer, but no weights. Returns CPL_ERR_INPUT for a missing tokenizer,
 * a tokenizer or an end-of-text id with ids beyond the model's vocabulary, a window longer than the
 * context, a stride longer than the window. On failure the reader is closed. */
CPL_NODISCARD cpl_status cpl_reader_open(cpl_reader *reader, const char *model_dir,
                                         const cpl_reader_options *options, const cpl_log *log);

/* Loads the weights. Does nothing if they are loaded. Returns CPL_ERR_MEMORY also if the prediction
 * exceeds the memory. cpl_reader_read calls it. */
CPL_NODISCARD cpl_status cpl_reader_load(cpl_reader *reader);
void cpl_reader_unload(cpl_reader *reader); /* frees the weights, which can be loaded again */
void cpl_reader_close(cpl_reader *reader);  /* does nothing if all zero */

/* Returns the number NNNNNN of a folder's path that ends in step-NNNNNN, or -1 for another path. */
int64_t cpl_reader_step(const char *folder);

/* One batch of windows. Position r * length + k is prediction k of row r. */
typedef struct cpl_reader_batch {
    int64_t rows, length;
    const int32_t *ids, *target; /* target -1 after the end of a shorter window, and if an
                                    earlier window has predicted it */
    const int64_t *place;        /* number of the prediction in the texts; -1 if target is -1 */
    const int64_t *document;     /* (rows) */
    const float *nll;            /* set when `scored` is called; nats, 0 if the target is -1 */
    cpl_text *text; /* the argument of `take`, initially empty; multiple of 8 bytes at the end */
} cpl_reader_batch;

/* The callbacks of a reading. `layer` and `scored` may be NULL. Without `scored` no loss is
 * computed. `layer` is called from cpl_pass.on_layer (model.h). `take` gets the text of one batch,
 * aligned to 8 bytes. A failure of a callback ends the reading. */
typedef struct cpl_reader_callbacks {
    cpl_status (*layer)(void *ctx, const cpl_reader_batch *batch, int64_t layer,
                        const cpl_moe_kept *kept);
    cpl_status (*scored)(void *ctx, const cpl_reader_batch *batch);
    cpl_status (*take)(void *ctx, const char *text, int64_t length);
    void *ctx;
} cpl_reader_callbacks;

/* Runs the model over all texts once. With a group it is collective: a failure of one rank is a
 * failure of all. Returns CPL_ERR_INPUT if model, texts or threads differ between ranks. */
CPL_NODISCARD cpl_status cpl_reader_read(cpl_reader *reader, const cpl_texts *texts,
                                         const cpl_reader_callbacks *callbacks);

#endif /* CPL_INFER_READER_H */
