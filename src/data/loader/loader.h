/* loader.h - batches of token sequences, in OLMo's order. A batch is a pure function of the step.
 *
 * Room:      data/loader. Uses shards.h (the data) and epoch.h (the order).
 * Instances: file f gives floor(tokens / T) instances of T tokens. The last tokens of each file,
 *            fewer than T, are not used. Instances are numbered in the order of the files.
 * Weights:   an epoch holds every instance of a source with weight w floor(w) times, and
 *            round(frac(w) N) of its N instances once more: the first of its list (in ascending
 *            order) shuffled by PCG64(seed + epoch). The epoch's list is in ascending order, copies
 *            side by side. With all weights 1 it is 0, 1, ..., N - 1.
 * Order:     the epoch's list is shuffled by PCG64(seed + epoch), as in OLMo. Step s of an epoch
 *            takes places sB to (s+1)B. The last places of an epoch, fewer than B, are dropped. No
 *            other state exists, so that resuming is exact.
 * Labels:    an instance belongs to the source with most of its tokens.
 * Threads:   one loader serves one thread at a time. Nothing is allocated after cpl_loader_init. */
#ifndef CPL_DATA_LOADER_LOADER_H
#define CPL_DATA_LOADER_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "data/shards.h"
#include "settings/settings.h"

typedef struct cpl_loader_settings {
    int64_t seq_len;           /* T, at least 2 */
    int64_t batch_instances;   /* B, at least 1 */
    int64_t first_row, n_rows; /* the part of a batch that this rank reads; all B if n_rows is 0 */
    uint64_t seed;             /* seed of the order; seed + epoch is taken modulo 2^64 */
    bool shuffle;
    bool evaluation;     /* for cpl_loader_eval_batch only; needs only one instance */
    bool document_mask;  /* fill doc_start; needs eos */
    bool filter_repeats; /* no targets for instances that repeat a period of up to 13 tokens 32
                             times or more, as in OLMoE */
    int64_t eos;         /* id that ends documents; -1 for the eos of the shards */
    const cpl_weight_list *weights; /* weights by source, else 1 (may be NULL); read by init only */
} cpl_loader_settings;

/* A batch in memory of the caller. Pointers other than ids and targets may be NULL. */
typedef struct cpl_batch {
    int32_t *ids;       /* [B,T], with B = n_rows for a part of a batch */
    int32_t *targets;   /* [B,T] the next id, or -1 without a target (the last place of an instance,
                           label mask 0, a filtered or an empty instance) */
    int32_t *doc_start; /* [B,T] position in its row of the first token of its document; all 0
                           without document_mask. An EOS belongs to the document that it ends */
    int64_t *instances; /* [B] number of the instance; -1 if empty, with ids 0 */
    int32_t *labels;    /* [B] number of the source, as in the labels of the shards; -1 if empty */
    int64_t n_targets;  /* number of targets that are not -1 */
    int64_t n_filtered; /* number of instances without targets because of filter_repeats */
} cpl_batch;

/* A loader, read-only for callers. */
typedef struct cpl_loader {
    const cpl_shards *shards;
    cpl_loader_settings settings;
    int64_t n_instances; /* instances in the files */
    int64_t epoch_size;  /* instances in an epoch, by the weights */
    int64_t steps_per_epoch;
    int64_t epoch;              /* the epoch of `order`, -1 before the first */
    int64_t *file_first;        /* [n_files + 1] number of the first instance of each file */
    int32_t *label;             /* [n_instances] */
    uint32_t *members;          /* [n_instances] grouped by label */
    int64_t *first;             /* [n_labels + 1] index in members of each label's first instance */
    double *weight;             /* [n_labels] */
    uint32_t *order;            /* [epoch_size] */
    uint32_t *copies, *scratch; /* [n_instances] */
    uint8_t *mask;              /* [T] label mask of the current instance */
} cpl_loader;

/* Makes a loader, which `shards` must outlive. Returns CPL_ERR_INPUT for settings out of bounds, a
 * weight for an unknown source (with the nearest name), and fewer instances than a batch needs. */
CPL_NODISCARD cpl_status cpl_loader_init(cpl_loader **loader, const cpl_shards *shards,
                                         const cpl_loader_settings *settings, const cpl_log *log);
void cpl_loader_free(cpl_loader *loader); /* NULL is allowed */

/* Sets the batch of `step`, counted from 0 over all epochs. An id outside the vocabulary gives
 * CPL_ERR_INPUT, with file and position. */
CPL_NODISCARD cpl_status cpl_loader_batch(cpl_loader *loader, int64_t step, cpl_batch *batch);

int64_t cpl_loader_label_instances(const cpl_loader *loader, int64_t label);

/* For evaluation, batches have a fixed order. cpl_loader_eval_batches returns their number.
 * cpl_loader_eval_batch sets batch `index` of the first `limit` (0 for all) instances of a label,
 * in the order of the files. The last batch is completed with empty instances. */
int64_t cpl_loader_eval_batches(const cpl_loader *loader, int64_t label, int64_t limit);
CPL_NODISCARD cpl_status cpl_loader_eval_batch(cpl_loader *loader, int64_t label, int64_t limit,
                                               int64_t index, cpl_batch *batch);

/* Sets the hash of the data, the EOS id and T (see cpl_shards_fingerprint). */
CPL_NODISCARD cpl_status cpl_loader_fingerprint(uint64_t *hash, const cpl_loader *loader);

#endif /* CPL_DATA_LOADER_LOADER_H */
