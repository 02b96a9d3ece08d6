/* perplexity.h - perplexity and bits per byte of a model on text, source by source.
 *
 * Room:    eval. Uses document_loss.h for the losses, and texts.h for the windows and the tokens
 *          before a document.
 * Figures: sums over all predicted tokens of a source, so that long documents count more than short
 *          documents. A shorter stride costs window / stride times as much, and gives every token
 *          after a document's first window at least window - stride tokens before it. */
#ifndef CPL_EVAL_PERPLEXITY_H
#define CPL_EVAL_PERPLEXITY_H

#include <jansson.h>

#include "infer/document_loss.h"

typedef struct cpl_perplexity_row {
    const char *source; /* name of the source; NULL: all sources together */
    int64_t documents;
    int64_t bytes;    /* bytes of whole documents, also of documents that are cut */
    int64_t tokens;   /* number of predicted tokens */
    double nll;       /* sum of the tokens' losses, in nats */
    double per_token; /* nll / tokens */
    double value;     /* the perplexity, exp(per_token) */
    double bits;      /* bits per byte, nll / ln 2 / bytes */
} cpl_perplexity_row;

typedef struct cpl_perplexity {
    cpl_document_losses losses;
    cpl_perplexity_row *rows; /* (n_rows) sources as they first appear; last row: all */
    int64_t n_rows;
} cpl_perplexity;

/* Sets the rows from `losses`. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_perplexity_add_up(cpl_perplexity *p);
void cpl_perplexity_free(cpl_perplexity *p); /* frees the losses too; all zero is allowed */

/* Returns the JSON of docs/formats.md, "Perplexity of text", or NULL without memory. */
json_t *cpl_perplexity_json(const cpl_perplexity *p);

#endif /* CPL_EVAL_PERPLEXITY_H */
