/* perplexity.h - how well a model predicts text: perplexity and bits per byte, source by source.
 *
 * Room:    eval. Stands on document_loss.h for the losses and on texts.h for what a window is
 *          and what stands in front of a document.
 * Figures: over all predicted tokens of a source, long documents counting more than short ones. A
 *          shorter stride costs window / stride times as much and gives every token but a
 *          document's first ones at least window - stride tokens before it. */
#ifndef CPL_EVAL_PERPLEXITY_H
#define CPL_EVAL_PERPLEXITY_H

#include <jansson.h>

#include "infer/document_loss.h"

typedef struct cpl_perplexity_row {
    const char *source; /* of the losses; NULL: all sources together */
    int64_t documents;
    int64_t bytes;  /* of whole documents, whether they are cut or not */
    int64_t tokens; /* predicted */
    double nll;     /* nats, sum over them */
} cpl_perplexity_row;

typedef struct cpl_perplexity {
    int64_t stride;
    cpl_document_losses losses;
    cpl_perplexity_row
        *rows; /* (n_rows) in the order in which sources were met; last all of them */
    int64_t n_rows;
} cpl_perplexity;

/* With an open reader, whose window and stride are used. CPL_ERR_INPUT where a loss is not finite.
 * On failure it is empty. */
CPL_NODISCARD cpl_status cpl_perplexity_measure(cpl_perplexity *p, cpl_reader *reader,
                                                const cpl_texts *texts);

/* All in one, as cpl_document_losses_of. */
CPL_NODISCARD cpl_status cpl_perplexity_of(cpl_perplexity *p, const char *model_dir,
                                           const char *const *inputs, int64_t n_inputs,
                                           const cpl_reader_options *reader,
                                           const cpl_texts_options *texts, const cpl_log *log);
void cpl_perplexity_free(cpl_perplexity *p); /* all zero: nothing to do */

double cpl_perplexity_per_token(const cpl_perplexity_row *row); /* nll / tokens, nats */
double cpl_perplexity_value(const cpl_perplexity_row *row);     /* e to that */
double cpl_perplexity_bits(const cpl_perplexity_row *row);      /* nll / ln 2 / bytes */

/* What docs/formats.md has under "Perplexity of text"; NULL if there is no memory. */
json_t *cpl_perplexity_json(const cpl_perplexity *p);

#endif /* CPL_EVAL_PERPLEXITY_H */
