/* texts.h - documents of files as token ids, and the windows in which a model reads them.
 *
 * Room:    infer. Uses the documents of room data (the same forms as data.train) and tokenizer.
 * Names:   a *prediction* is one token whose log-probability is requested. The first token of a
 *          document is predicted from <eos>, as in training, where documents are joined by it;
 *          without an <eos> the first token is only read. The <eos> after a document is not
 *          predicted. A *window* is a run of predictions of one document that is read at once.
 *          Windows do not overlap, so that the first prediction of one sees one token alone, or
 *          each starts a shorter *stride* after the one before: repeated tokens are read and not
 *          predicted again.
 * Place:   every prediction has a unique number, in the order of the documents. */
#ifndef CPL_INFER_TEXTS_H
#define CPL_INFER_TEXTS_H

#include "data/documents.h"
#include "tokenizer/tokenizer.h"

typedef struct cpl_texts_options {
    cpl_document_settings reading;
    bool special_as_text; /* a literal <|endoftext|> in a document is plain text */
    bool by_file; /* the source of a document that names none is its file, under the name given, if
                     that file is an input itself; otherwise the folder, as without this */
    int64_t eos;  /* -1: none */
    int64_t max_documents; /* of each source, the first ones; 0: all */
    int64_t max_tokens;    /* predictions in all, shared evenly by the sources as far as they have
                              them; the last document of a source may be cut; 0: all */
} cpl_texts_options;

/* The defaults of data/documents.h, all documents, no <eos>. */
cpl_texts_options cpl_texts_defaults(void);

typedef struct cpl_texts_document {
    int64_t source;      /* its index among the sources */
    char *id;            /* owned */
    int64_t bytes;       /* of the text as UTF-8, whether it is cut or not */
    int64_t first_id;    /* position of its first id */
    int64_t predictions; /* after a cut */
    int64_t place;       /* of the first of them */
} cpl_texts_document;

typedef struct cpl_texts {
    cpl_strings sources; /* in the order of first occurrence */
    cpl_texts_document *documents;
    int64_t n_documents, capacity;
    cpl_ids ids;
    int64_t eos;
    int64_t n_predictions;
    cpl_document_counts counts; /* of all that was read */
} cpl_texts;

/* Reads the `inputs` (files, folders, patterns). Documents without a prediction are left out.
 * CPL_ERR_INPUT if no document is left. On failure `texts` is empty. */
CPL_NODISCARD cpl_status cpl_texts_read(cpl_texts *texts, const char *const *inputs,
                                        int64_t n_inputs, const cpl_tokenizer *tokenizer,
                                        const cpl_texts_options *options, const cpl_log *log);
void cpl_texts_free(cpl_texts *texts); /* all zero: nothing to do */

/* The id that is read for prediction k of a document, and the one that is predicted. */
int32_t cpl_texts_input(const cpl_texts *texts, int64_t document, int64_t k);
int32_t cpl_texts_target(const cpl_texts *texts, int64_t document, int64_t k);

typedef struct cpl_window {
    int64_t document, first, length; /* predictions first ... first + length - 1 */
    int64_t overlap;                 /* so many of them, at the beginning, are only read */
} cpl_window;

/* Sets windows of at most `length` predictions, longest first, equal ones in the order of the text;
 * owned by the caller (cpl_free). With a `stride` (1 <= stride <= length) below the length all
 * windows of a document after its first have `length` predictions and make `stride` new ones; the
 * last one the rest. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_texts_windows(cpl_window **windows, int64_t *count,
                                           const cpl_texts *texts, int64_t length, int64_t stride);

#endif /* CPL_INFER_TEXTS_H */
