/* train_samples.h - a training run's own samples: the texts of eval.prompts, continued.
 *
 * Room:  app. */
#ifndef CPL_APP_TRAIN_SAMPLES_H
#define CPL_APP_TRAIN_SAMPLES_H

#include <jansson.h>

#include "infer/lm_batch.h"
#include "tokenizer/tokenizer.h"
#include "train/config/settings.h"

/* All zero: no prompts. */
typedef struct cpl_train_samples {
    const cpl_strings *texts; /* of the settings; borrowed */
    int64_t max_tokens;       /* after each */
    cpl_ids *ids;             /* [count] of the prompts, then of what follows */
    cpl_sequence *prompts;    /* [count] */
    int64_t window;           /* tokens of the longest, continued */
} cpl_train_samples;

/* Encodes eval.prompts; an empty one is the end-of-text token. CPL_ERR_INPUT: one is empty and the
 * tokenizer has no such token; one has no room in model.max_position_embeddings. */
CPL_NODISCARD cpl_status cpl_train_samples_open(cpl_train_samples *s, const cpl_settings *settings,
                                                const cpl_tokenizer *tokenizer);
void cpl_train_samples_close(cpl_train_samples *s);

/* Continues all of them greedily; sets [{"prompt", "text"}]. Of one rank; others that hold experts of
 * the model serve meanwhile (cpl_lm_batch_serve). */
CPL_NODISCARD cpl_status cpl_train_samples_run(const cpl_train_samples *s, cpl_lm_batch *batch,
                                               const cpl_tokenizer *tokenizer, json_t **samples);

#endif /* CPL_APP_TRAIN_SAMPLES_H */
