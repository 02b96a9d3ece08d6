/* data.h - what a run reads: tokenizer, token shards (made of documents if need be), loaders.
 *
 * Room:   train. */
#ifndef CPL_TRAIN_DATA_H
#define CPL_TRAIN_DATA_H

#include "data/loader/loader.h"
#include "data/shards.h"
#include "parallel/group.h"
#include "tokenizer/tokenizer.h"
#include "train/config/settings.h"
#include "train/run.h"

typedef struct cpl_train_data {
    cpl_tokenizer *tokenizer; /* NULL if data.tokenizer is unset (token shards only) */
    cpl_shards *train_shards, *held_out_shards;
    cpl_loader *train, *held_out; /* held_out: NULL without data.validation */
    int64_t vocab_size;           /* ids are below it */
    int64_t eos;                  /* -1: none known */
    uint64_t fingerprint;         /* of the training data, for resuming */
} cpl_train_data;

/* Sets `data` to only the tokenizer, with vocab_size and eos as far as it and the settings
 * determine them; writes nothing. CPL_ERR_INPUT if data.train is not set. */
CPL_NODISCARD cpl_status cpl_train_data_begin(cpl_train_data *data, const cpl_settings *settings);

/* The seed of the order of the data. */
int64_t cpl_train_data_seed(const cpl_settings *settings);

/* After cpl_train_data_begin: opens everything settings->data names, for one rank of several the
 * rows of its own of each batch (world NULL: one process). Documents are encoded into
 * data.cache or RUN/tokens first, unless the shards there were made from the same documents by the
 * same tokenizer; all ranks encode, rank 0 writes. Collective: all ranks get the same status.
 * Errors: an empty corpus, one shorter than a batch, ids beyond the vocabulary, ... with their
 * sentences. */
CPL_NODISCARD cpl_status cpl_train_data_open(cpl_train_data *data, const cpl_settings *settings,
                                             const cpl_run *run, cpl_group *world,
                                             const cpl_log *log);

/* After cpl_train_data_open: ids of shards that do not name their vocabulary are errors from then
 * on if they are `vocab_size` or more. */
void cpl_train_data_bound_ids(cpl_train_data *data, int64_t vocab_size);

/* CPL_ERR_INPUT if the data does not end documents with the id `eos` (CPL_UNSET: any), or is not of
 * the token type (a cpl_token_type_choice; AUTO: any), which the user gives with a resumed run. */
CPL_NODISCARD cpl_status cpl_train_data_agrees(const cpl_train_data *data, int64_t eos,
                                               int token_type);
void cpl_train_data_close(cpl_train_data *data);

/* Sets three members of `object`, 16 hexadecimal digits each or null: `data`, the fingerprint of
 * the training data; `held_out`, the hash of the held-out tokens; `tokenizer`, that of the file.
 * They are equal if two runs read the same data. CPL_ERR_MEMORY, CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_train_data_identify(json_t *object, const cpl_train_data *data,
                                                 const cpl_settings *settings);

#endif /* CPL_TRAIN_DATA_H */
