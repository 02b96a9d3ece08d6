/* data.h - the data of a run: tokenizer, token shards (encoded from documents if necessary),
 * loaders.
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
    cpl_loader *train, *held_out; /* held_out is NULL without data.validation */
    int64_t vocab_size;           /* upper bound of the ids */
    int64_t eos;                  /* id that ends documents; -1 if not known */
    uint64_t fingerprint;         /* fingerprint of the training data, compared when a run is
                                     resumed */
} cpl_train_data;

/* Opens only the tokenizer. Sets vocab_size and eos as far as the tokenizer and the settings
 * determine them. Writes nothing. Returns CPL_ERR_INPUT if data.train is not set. */
CPL_NODISCARD cpl_status cpl_train_data_begin(cpl_train_data *data, const cpl_settings *settings);

/* Returns the seed of the order of the data. */
int64_t cpl_train_data_seed(const cpl_settings *settings);

/* Opens the data that settings->data names, after cpl_train_data_begin. With several ranks each
 * rank reads its own rows of each batch (world NULL: one process). Documents are first encoded into
 * data.cache or RUN/tokens, unless shards made from the same documents by the same tokenizer exist
 * there. All ranks encode, rank 0 writes. Collective: all ranks get one status. Returns
 * CPL_ERR_INPUT for a corpus that is empty or shorter than a batch, or ids beyond the
 * vocabulary. */
CPL_NODISCARD cpl_status cpl_train_data_open(cpl_train_data *data, const cpl_settings *settings,
                                             const cpl_run *run, cpl_group *world,
                                             const cpl_log *log);

/* Rejects ids of `vocab_size` or more in shards that do not name their vocabulary. Call it after
 * cpl_train_data_open. */
void cpl_train_data_bound_ids(cpl_train_data *data, int64_t vocab_size);

/* Checks values that the user gives with a resumed run. Returns CPL_ERR_INPUT if the data does not
 * end documents with the id `eos` (CPL_UNSET: any), or does not have the token type (a
 * cpl_token_type_choice; AUTO: any). */
CPL_NODISCARD cpl_status cpl_train_data_agrees(const cpl_train_data *data, int64_t eos,
                                               int token_type);
void cpl_train_data_close(cpl_train_data *data);

/* Sets three members of `object`, 16 hexadecimal digits each or null: `data`, the fingerprint of
 * the training data; `held_out`, the hash of the held-out tokens; `tokenizer`, the hash of its
 * file. Runs with equal members read the same data. Returns CPL_ERR_MEMORY or CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_train_data_identify(json_t *object, const cpl_train_data *data,
                                                 const cpl_settings *settings);

#endif /* CPL_TRAIN_DATA_H */
