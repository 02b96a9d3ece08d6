/* reader.h - a model with its tokenizer that reads texts, window by window, several at once.
 *
 * Room:    infer. Changes no weight. A counter's callbacks get every layer of every batch, then its
 *          losses.
 * Ranks:   batches are dealt out in rounds, one for each rank. `layer` and `scored` run on the rank
 *          that reads the batch and append what counts to its text; `take` gets the texts of all
 *          batches, in their order, on every rank. So sums have the bits of one process.
 * Model:   anything cpl_hf_open opens.
 * Same:    the results of a prediction do not depend on the rest of its batch, but for rounding:
 *          sequences do not see each other, and padding is at the end. */
#ifndef CPL_INFER_READER_H
#define CPL_INFER_READER_H

#include "infer/texts.h"
#include "parallel/gather.h"
#include "store/hf.h"
#include "tensor/backend/backend.h"

typedef struct cpl_reader_options {
    const char *tokenizer;      /* a path; NULL: the tokenizer.json of the model's folder */
    const char *tokenizer_flag; /* with which the user may name it; NULL: none */
    int64_t window;       /* predictions of a window; 0: the length of the sequences of the run
                             around the model, else 1024, or the model's context if shorter */
    int64_t stride;       /* new predictions of a window after the first (texts.h); 0: all */
    int64_t batch_tokens; /* at once, a whole window at least; 0: 4096 */
    const char *device;   /* as compute.device (tensor/backend/backend.h); NULL: auto */
    cpl_dtype compute;    /* as of cpl_backend_open; CPL_F32 is 0 */
    int n_threads;        /* 0: one per processor */
    cpl_group *group;     /* of ranks that share the batches; NULL: one process */
} cpl_reader_options;

typedef struct cpl_reader {
    cpl_hf *hf;
    cpl_tokenizer *tokenizer;
    cpl_backend be;
    cpl_model model; /* has a pointer to `be`: a reader must not be moved */
    bool loaded;
    int64_t window, stride, batch_tokens;
    int64_t eos;  /* the model's, else the tokenizer's; -1: neither has one */
    int64_t step; /* of a checkpoint's folder step-NNNNNN; -1: another name */
    cpl_group *group;
} cpl_reader;

/* Reads configuration and tokenizer, no weights yet. CPL_ERR_INPUT: no tokenizer, one with ids
 * beyond the model's vocabulary, an end-of-text id beyond it, a window longer than the context, a
 * stride longer than the window. On failure it is closed. */
CPL_NODISCARD cpl_status cpl_reader_open(cpl_reader *reader, const char *model_dir,
                                         const cpl_reader_options *options, const cpl_log *log);

/* Loads the weights; does nothing if they are loaded. CPL_ERR_MEMORY also if they are predicted not
 * to fit. cpl_reader_read calls it. */
CPL_NODISCARD cpl_status cpl_reader_load(cpl_reader *reader);
void cpl_reader_unload(cpl_reader *reader); /* gives them back; it can be loaded again */
void cpl_reader_close(cpl_reader *reader);  /* all zero: nothing to do */

/* NNNNNN of a folder's path or name that ends in step-NNNNNN; -1 of another. */
int64_t cpl_reader_step(const char *folder);

/* One batch of windows. Position r * length + k is prediction k of row r. */
typedef struct cpl_reader_batch {
    int64_t rows, length;
    const int32_t *ids, *target; /* target -1 after the end of a shorter window, and if an
                                    earlier window has predicted it */
    const int64_t *place;        /* of the prediction in the texts; -1 there */
    const int64_t *document;     /* (rows) */
    const float *nll;            /* when it is scored; nats, 0 if the target is -1 */
    cpl_text *text; /* for `take`: empty at first, of a multiple of 8 bytes at the end */
} cpl_reader_batch;

/* Who listens; `layer` or `scored` may be NULL, and without `scored` no loss is computed. `layer`
 * is called by the model's watcher (model.h). `take`: the text of one batch, aligned to 8 bytes. A
 * failure they return ends the reading. */
typedef struct cpl_reader_callbacks {
    cpl_status (*layer)(void *ctx, const cpl_reader_batch *batch, int64_t layer,
                        const cpl_moe_kept *kept);
    cpl_status (*scored)(void *ctx, const cpl_reader_batch *batch);
    cpl_status (*take)(void *ctx, const char *text, int64_t length);
    void *ctx;
} cpl_reader_callbacks;

/* Takes all texts through the model once. With a group it is collective, a failure is one of all,
 * and CPL_ERR_INPUT if ranks have another model, texts or number of threads. */
CPL_NODISCARD cpl_status cpl_reader_read(cpl_reader *reader, const cpl_texts *texts,
                                         const cpl_reader_callbacks *callbacks);

#endif /* CPL_INFER_READER_H */
