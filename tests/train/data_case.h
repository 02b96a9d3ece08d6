/* data_case.h - small corpora for a run: token shards whose sequences carry their numbers, and the
 * batches read from them. */
#ifndef CPL_TESTS_TRAIN_DATA_CASE_H
#define CPL_TESTS_TRAIN_DATA_CASE_H

#include "support/files.h"
#include "support/run_settings.h"
#include "train/data.h"

enum {
    T         = 8,  /* tokens a sequence */
    BATCH     = 4,  /* sequences a step */
    SEQUENCES = 43, /* sequences in the corpus: ten steps an epoch, three sequences left out */
    STEPS     = SEQUENCES / BATCH,
    HELD_OUT  = 7,
    EOS_AT    = 2,  /* token of a sequence that is the end of text (0) */
    FIRST_ID  = 100 /* sequence k begins with the id FIRST_ID + k */
};

/* The folder of the test that runs. */
static const char *folder;

static inline int fresh_folder(void **state)
{
    (void)state;
    folder = scratch_folder();
    return 0;
}

TESTS_DO(before_each, fresh_folder);
TESTS_DO(after_each, drop_all);

/* Returns token t of every sequence but the first. */
static inline int id_at(int t)
{
    return t == EOS_AT ? 0 : 10 + t;
}

/* Writes a token shard with sequences of T tokens and returns its path. */
static inline const char *shard(const char *name, int n_sequences)
{
    uint16_t ids[SEQUENCES * T];
    const char *path = in_folder(folder, name);
    for (int i = 0; i < n_sequences * T; i++)
        ids[i] = (uint16_t)(i % T == 0 ? FIRST_ID + i / T : id_at(i % T));
    write_bytes(path, ids, (size_t)(n_sequences * T) * sizeof *ids);
    return path;
}

/* Returns settings of a run over `train`, or over no data if `train` is NULL. */
static inline cpl_settings *settings_of(const char *train)
{
    cpl_settings *settings = new_settings();
    set(settings, "data.seq_len=8");
    set(settings, "data.batch_tokens=32");
    set(settings, "data.token_type=uint16");
    set(settings, "data.eos=0");
    set(settings, "train.seed=6198");
    if (train) set_data(settings, "train", train);
    return settings;
}

static inline cpl_status open_data(cpl_train_data *data, const cpl_settings *settings,
                                   const cpl_log *log)
{
    char home[200];
    snprintf(home, sizeof home, "%s/run", folder);
    const cpl_run run = {.folder = home};
    cpl_status status = cpl_train_data_begin(data, settings);
    if (status == CPL_OK) return cpl_train_data_open(data, settings, &run, NULL, log);
    cpl_train_data_close(data);
    return status;
}

typedef struct rows {
    int32_t ids[BATCH * T], targets[BATCH * T], doc_start[BATCH * T];
    int64_t n_targets;
} rows;

static inline cpl_batch into(rows *r)
{
    memset(r, 0xA5, sizeof *r);
    return (cpl_batch){.ids = r->ids, .targets = r->targets, .doc_start = r->doc_start};
}

static inline rows step_of(cpl_train_data *data, int64_t step)
{
    rows r;
    cpl_batch batch = into(&r);
    assert_ok(cpl_loader_batch(data->train, step, &batch));
    r.n_targets = batch.n_targets;
    return r;
}

static inline void refused(const char *sentence, const cpl_settings *settings)
{
    cpl_train_data data;
    assert_fails(CPL_ERR_INPUT, sentence, open_data(&data, settings, NULL));
    assert_true(!data.tokenizer && !data.train_shards && !data.held_out_shards);
    assert_true(!data.train && !data.held_out);
}

#endif /* CPL_TESTS_TRAIN_DATA_CASE_H */
