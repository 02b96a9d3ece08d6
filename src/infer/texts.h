/* texts.h - reads documents as token ids and divides them into windows for a model.
 *
 * Room:    infer. Uses the document reader of room data (the formats of data.train) and the
 *          tokenizer.
 * Names:   a *prediction* is one token whose log-probability is requested. The first token of a
 *          document is predicted from <eos>, as in training, where documents are joined by <eos>.
 *          Without an <eos> the first token is input only. The <eos> after a document is not
 *          predicted. A *window* is a run of predictions of one document that is computed together.
 *          By default windows do not overlap, so that the first prediction of a window depends on
 *          one token. With a *stride* below the window's length, each window starts a stride after
 *          the previous window, and the overlapping tokens are input only.
 * Place:   every prediction has a unique number, in the order of the documents. */
#ifndef CPL_INFER_TEXTS_H
#define CPL_INFER_TEXTS_H

#include "data/documents.h"
#include "tokenizer/tokenizer.h"

typedef struct cpl_texts_options {
    cpl_document_settings reading;
    bool special_as_text; /* a literal <|endoftext|> in a document is plain text */
    bool by_file; /* a document without a source gets the name of its file as given, if the file
                     itself is an input; otherwise the name of the folder */
    int64_t eos;  /* -1 without an <eos> */
    int64_t max_documents; /* limit per source, the first documents of it; 0 means all */
    int64_t max_tokens;    /* limit of predictions in total, divided evenly over the sources; the
                              last document of a source may be cut; 0 means all */
} cpl_texts_options;

/* Returns the defaults of data/documents.h, with all documents and no <eos>. */
cpl_texts_options cpl_texts_defaults(void);

typedef struct cpl_texts_document {
    int64_t source;      /* index in cpl_texts.sources */
    char *id;            /* owned */
    int64_t bytes;       /* bytes of the whole text as UTF-8, before a cut */
    int64_t first_id;    /* position of the first id in cpl_texts.ids */
    int64_t predictions; /* number of predictions, after a cut */
    int64_t place;       /* number of the first prediction */
} cpl_texts_document;

typedef struct cpl_texts {
    cpl_strings sources; /* in the order of first occurrence */
    cpl_texts_document *documents;
    int64_t n_documents, capacity;
    cpl_ids ids;
    int64_t eos;
    int64_t n_predictions;
    cpl_document_counts counts; /* counts of all documents read */
} cpl_texts;

/* Reads the `inputs` (files, folders, patterns). Documents without a prediction are dropped.
 * Returns CPL_ERR_INPUT if no document remains. On failure `texts` is empty. */
CPL_NODISCARD cpl_status cpl_texts_read(cpl_texts *texts, const char *const *inputs,
                                        int64_t n_inputs, const cpl_tokenizer *tokenizer,
                                        const cpl_texts_options *options, const cpl_log *log);
void cpl_texts_free(cpl_texts *texts); /* does nothing if all zero */

/* Return the input id of prediction k of a document, and the id to predict. */
int32_t cpl_texts_input(const cpl_texts *texts, int64_t document, int64_t k);
int32_t cpl_texts_target(const cpl_texts *texts, int64_t document, int64_t k);

typedef struct cpl_window {
    int64_t document, first, length; /* predictions first ... first + length - 1 */
    int64_t overlap;                 /* number of first predictions that are input only */
} cpl_window;

/* Sets windows of at most `length` predictions, longest first, equal lengths in the order of the
 * text. The caller owns the windows (cpl_free). If `stride` (1 <= stride <= length) is below the
 * length, each window of a document after the first has `length` predictions, `stride` of them new.
 * The last window has the rest. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_texts_windows(cpl_window **windows, int64_t *count,
                                           const cpl_texts *texts, int64_t length, int64_t stride);

#endif /* CPL_INFER_TEXTS_H */
