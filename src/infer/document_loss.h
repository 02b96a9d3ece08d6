/* document_loss.h - the loss of every document of a text under a model, for paired comparisons of
 * runs.
 *
 * Room:    infer.
 * Figures: nll is the sum over a document's predictions (texts.h) of -ln p, in nats; bits per byte
 *          are nll / ln 2 / bytes. */
#ifndef CPL_INFER_DOCUMENT_LOSS_H
#define CPL_INFER_DOCUMENT_LOSS_H

#include "infer/reader.h"

typedef struct cpl_document_loss {
    char *source, *id; /* owned */
    int64_t bytes;     /* bytes of the text */
    int64_t tokens;    /* number of predictions */
    double nll;
} cpl_document_loss;

typedef struct cpl_document_losses {
    int64_t step;              /* step of the checkpoint; -1 for another model */
    int64_t window;            /* predictions of a window */
    int64_t stride, n_sources; /* stride of the reader, number of sources of the texts */
    cpl_document_loss *at;
    int64_t count;
} cpl_document_losses;

/* Scores every document of `texts`, in their order, with an open reader. Returns CPL_ERR_INPUT if a
 * loss is not finite, naming the document. On failure `losses` is empty. */
CPL_NODISCARD cpl_status cpl_document_losses_measure(cpl_document_losses *losses,
                                                     cpl_reader *reader, const cpl_texts *texts);

/* Opens the model, reads the inputs with its tokenizer and <eos> (texts->eos is ignored), and
 * scores them. */
CPL_NODISCARD cpl_status cpl_document_losses_of(cpl_document_losses *losses, const char *model_dir,
                                                const char *const *inputs, int64_t n_inputs,
                                                const cpl_reader_options *reader,
                                                const cpl_texts_options *texts, const cpl_log *log);
void cpl_document_losses_free(cpl_document_losses *losses); /* does nothing if all zero */

/* Writes {"step": N, "window": S, "documents": [...]}, docs/formats.md, to `path`, atomically. */
CPL_NODISCARD cpl_status cpl_document_losses_write(const cpl_document_losses *losses,
                                                   const char *path);

#endif /* CPL_INFER_DOCUMENT_LOSS_H */
