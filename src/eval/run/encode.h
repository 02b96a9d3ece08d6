/* encode.h - texts of a question as the ids that a model is fed.
 *
 * Room:   eval/run. Knows a tokenizer and no model.
 * Empty:  a context without a token is the end-of-text id.
 * Source: docs/tasks.md, "Tokens and windows": what lm-eval 0.4.13 (api/model.py,
 *         models/huggingface.py) does, and the in-loop code where the two texts are encoded each by
 *         itself. */
#ifndef CPL_EVAL_RUN_ENCODE_H
#define CPL_EVAL_RUN_ENCODE_H

#include "eval/tasks/request_spec.h"
#include "tokenizer/tokenizer.h"

/* Ids of one text behind those of others. */
typedef struct cpl_encoded {
    int64_t first, length; /* of what is left of it, among all ids */
    int64_t context;       /* tokens of the context, those that are cut off included */
    int64_t scored;        /* tokens of the continuation, the last ones; 0 of a prompt */
    int64_t cut;           /* tokens left out at the beginning */
} cpl_encoded;

/* How they are encoded; all but the encoder may be zero. */
typedef struct cpl_encoding {
    cpl_encoder *encoder; /* borrowed */
    int64_t eos;          /* -1: none */
    cpl_text joined;      /* memory to work in; the user frees it */
} cpl_encoding;

/* Appends context and continuation, the last `window` + 1 tokens of them: the last of all is
 * predicted and not fed. Joint: white space at the context's end (Python's) is the continuation's,
 * both are encoded as one text, and what is scored are its tokens behind as many as the context by
 * itself has; before them stand the context's own. CPL_ERR_INPUT: no token is left to be scored
 * (an empty continuation, or one that the tokenizer has drawn into the context's last token), more
 * than the window holds, an empty context without an end-of-text id. */
CPL_NODISCARD cpl_status cpl_encode_pair(cpl_encoding *e, cpl_ids *ids, cpl_encoded *out,
                                         const char *context, const char *continuation,
                                         cpl_joining joining, int64_t window);

/* Appends the last `room` >= 1 tokens of a prompt. CPL_ERR_INPUT: as above of an empty one. */
CPL_NODISCARD cpl_status cpl_encode_prompt(cpl_encoding *e, cpl_ids *ids, cpl_encoded *out,
                                           const char *prompt, int64_t room);

#endif /* CPL_EVAL_RUN_ENCODE_H */
