/* resolve.h - settings that one another, the data and the model to begin with decide.
 *
 * Room:   train. */
#ifndef CPL_TRAIN_RESOLVE_H
#define CPL_TRAIN_RESOLVE_H

#include "store/hf.h"
#include "train/config/settings.h"
#include "train/run.h"

/* Completes the settings as far as that needs no data: those of section model that are not `given`
 * come from the model to begin with (NULL: none), as does the tokenizer where data.tokenizer is
 * unset. CPL_ERR_INPUT where a given one differs from that model's (with both values), and where
 * batch, sequence, micro-batch or schedule do not fit each other. */
CPL_NODISCARD cpl_status cpl_train_resolve(cpl_settings *settings, const cpl_hf *from,
                                           const bool *given);

/* Fits model.vocab_size to the `ids` that the data knows (0: none known), rounding up where it is
 * unset, and resolves section model. CPL_ERR_INPUT where it is too small for them or for the id that
 * ends documents (-1: none). */
CPL_NODISCARD cpl_status cpl_train_resolve_vocabulary(cpl_settings *settings, int64_t ids,
                                                      int64_t eos);

/* Where data.tokenizer is the one of the model to begin with, copies it to RUN/tokenizer.json and
 * names that: checkpoints come and go. */
CPL_NODISCARD cpl_status cpl_train_keep_tokenizer(cpl_settings *settings, const cpl_hf *from,
                                                  const cpl_run *run);

#endif /* CPL_TRAIN_RESOLVE_H */
