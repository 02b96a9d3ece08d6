/* test_data.c - the data that a run reads: the sequences of each step, in every epoch and from any
 * step on, and data that are refused. Documents: test_data_documents.c.
 *
 * Oracles: the sequences carry their numbers, so that a batch shows where it is from. The order of
 *          an epoch is the shuffle of all numbers with the seed plus the epoch (test_shuffle.c has
 *          NumPy's). */
#include "data/loader/epoch.h"
#include "train/data_case.h"

/* Returns the number of the sequence in a row, and asserts that every token of it is there. */
static int sequence_in(const rows *r, int row)
{
    const int32_t *ids = r->ids + row * T, *targets = r->targets + row * T;
    for (int t = 1; t < T; t++) {
        assert_int_equal(ids[t], id_at(t));
        assert_int_equal(targets[t - 1], ids[t]);
    }
    assert_int_equal(targets[T - 1], -1);
    assert_in_range(ids[0], FIRST_ID, FIRST_ID + SEQUENCES - 1);
    return ids[0] - FIRST_ID;
}

static void plain_order(uint32_t order[SEQUENCES])
{
    for (uint32_t i = 0; i < SEQUENCES; i++) order[i] = i;
}

static void shuffled_order(uint32_t order[SEQUENCES], uint64_t seed)
{
    cpl_pcg64 random;
    plain_order(order);
    cpl_pcg64_init(&random, seed);
    cpl_pcg64_shuffle(&random, order, SEQUENCES);
}

/* Asserts that the steps of `epoch` are the beginning of `order`, BATCH sequences each. */
static void assert_epoch(cpl_train_data *data, int64_t epoch, const uint32_t *order)
{
    for (int64_t step = 0; step < STEPS; step++) {
        rows r = step_of(data, epoch * STEPS + step);
        assert_int_equal(r.n_targets, BATCH * (T - 1));
        for (int row = 0; row < BATCH; row++)
            assert_int_equal(sequence_in(&r, row), order[step * BATCH + row]);
    }
}

TEST(an_epoch_is_a_shuffle_of_all_sequences)
{
    static const int seeds[] = {6198, 7};
    uint32_t order[SEQUENCES];
    cpl_train_data data;
    for (int of_data = 0; of_data < 2; of_data++) { /* data.seed has precedence over train.seed */
        cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
        if (of_data) set(settings, "data.seed=7");
        assert_ok(open_data(&data, settings, NULL));
        assert_int_equal(data.train->steps_per_epoch, STEPS);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            shuffled_order(order, (uint64_t)(seeds[of_data] + epoch));
            assert_epoch(&data, epoch, order);
        }
        cpl_train_data_close(&data);
    }
}

/* Sequences come in the order of the files. Every epoch begins again with the first sequence, and
 * the end of the last file is left out. */
TEST(without_shuffle_an_epoch_begins_anew)
{
    uint32_t order[SEQUENCES];
    cpl_train_data data;
    cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
    set(settings, "data.shuffle=false");
    plain_order(order);
    assert_ok(open_data(&data, settings, NULL));
    for (int64_t epoch = 0; epoch < 2; epoch++) assert_epoch(&data, epoch, order);
    cpl_train_data_close(&data);
}

/* A run that goes on at `step` reads the data that a run from the beginning reads there. */
TEST(any_step_can_be_the_first)
{
    enum { LAST = 2 * STEPS + 3 };
    static rows through[LAST];
    cpl_train_data data;
    cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
    set(settings, "data.document_mask=true");
    assert_ok(open_data(&data, settings, NULL));
    for (int64_t step = 0; step < LAST; step++) through[step] = step_of(&data, step);
    for (int64_t step = LAST - 1; step >= 0; step -= 3) { /* backwards, over the ends of epochs */
        rows again = step_of(&data, step);
        assert_memory_equal(&again, &through[step], sizeof again);
    }
    cpl_train_data_close(&data);
    for (int64_t first = 0; first < LAST; first++) {
        assert_ok(open_data(&data, settings, NULL));
        for (int64_t step = first; step < first + 2 && step < LAST; step++) {
            rows again = step_of(&data, step);
            assert_memory_equal(&again, &through[step], sizeof again);
        }
        cpl_train_data_close(&data);
    }
}

/* With data.document_mask a document begins behind an end of text. */
TEST(documents_begin_behind_an_end_of_text)
{
    cpl_train_data data;
    for (int masked = 0; masked < 2; masked++) {
        cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
        set(settings, masked ? "data.document_mask=true" : "data.document_mask=false");
        assert_ok(open_data(&data, settings, NULL));
        rows r = step_of(&data, 0);
        for (int i = 0; i < BATCH * T; i++)
            assert_int_equal(r.doc_start[i], masked && i % T > EOS_AT ? EOS_AT + 1 : 0);
        cpl_train_data_close(&data);
    }
}

/* With data.filter_repeats a sequence that repeats one id has no targets, unless it is held out. */
TEST(repeats_are_filtered_in_training_alone)
{
    enum { LONG = BATCH * T }; /* the batch as one sequence: 32 repetitions */
    rows r;
    cpl_train_data data;
    uint16_t ids[LONG];
    for (int i = 0; i < LONG; i++) ids[i] = 5;
    write_bytes(in_folder(folder, "same.npy"), ids, sizeof ids);
    cpl_settings *settings = settings_of(in_folder(folder, "same.npy"));
    set_data(settings, "validation", in_folder(folder, "same.npy"));
    set(settings, "data.seq_len=32");
    for (int filtered = 0; filtered < 2; filtered++) {
        set(settings, filtered ? "data.filter_repeats=true" : "data.filter_repeats=false");
        assert_ok(open_data(&data, settings, NULL));
        assert_int_equal(step_of(&data, 0).n_targets, filtered ? 0 : LONG - 1);
        cpl_batch batch = into(&r);
        assert_ok(cpl_loader_eval_batch(data.held_out, 0, 0, 0, &batch));
        assert_int_equal(batch.n_targets, LONG - 1);
        cpl_train_data_close(&data);
    }
}

TEST(weights_change_how_often_a_source_is_read)
{
    int seen[SEQUENCES] = {0};
    cpl_train_data data;
    char paths[400];
    assert_int_equal(mkdir(in_folder(folder, "twice"), 0700), 0);
    assert_int_equal(mkdir(in_folder(folder, "once"), 0700), 0);
    snprintf(paths, sizeof paths, "[%s, %s]", shard("twice/a.npy", 8), shard("once/a.npy", 16));
    cpl_settings *settings = settings_of(paths);
    set(settings, "data.weights={twice: 2}");
    assert_ok(open_data(&data, settings, NULL));
    assert_int_equal(data.train->steps_per_epoch, (2 * 8 + 16) / BATCH);
    for (int64_t step = 0; step < (2 * 8 + 16) / BATCH; step++) {
        rows r = step_of(&data, step);
        for (int row = 0; row < BATCH; row++) seen[sequence_in(&r, row)]++;
    }
    for (int k = 0; k < 16; k++) assert_int_equal(seen[k], k < 8 ? 3 : 1);
    cpl_train_data_close(&data);
}

/* ---- held-out data ---- */

/* Held-out data come in the order of the file, train.micro_batch sequences at a time, whatever
 * data.shuffle is. They have neither mask nor filter, so that runs that differ in them have the
 * same validation loss. */
TEST(held_out_data_is_read_in_its_order)
{
    enum { MICRO = 3, BATCHES = (HELD_OUT + MICRO - 1) / MICRO };
    rows r;
    cpl_train_data data;
    cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
    set_data(settings, "validation", shard("held.npy", HELD_OUT));
    set(settings, "data.document_mask=true");
    set(settings, "train.micro_batch=3");
    assert_ok(open_data(&data, settings, NULL));
    assert_int_equal(cpl_loader_eval_batches(data.held_out, 0, 0), BATCHES);
    for (int64_t index = 0; index < BATCHES; index++) {
        cpl_batch batch = into(&r);
        assert_ok(cpl_loader_eval_batch(data.held_out, 0, 0, index, &batch));
        for (int row = 0; row < MICRO; row++) {
            int sequence = (int)index * MICRO + row;
            if (sequence < HELD_OUT) assert_int_equal(sequence_in(&r, row), sequence);
            for (int t = 0; t < T; t++) {
                assert_int_equal(r.doc_start[row * T + t], 0);
                if (sequence >= HELD_OUT) assert_int_equal(r.targets[row * T + t], -1);
            }
        }
    }
    cpl_train_data_close(&data);
}

TEST(without_validation_there_is_none)
{
    cpl_train_data data;
    cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
    assert_ok(open_data(&data, settings, NULL));
    assert_true(!data.held_out && !data.held_out_shards && !data.tokenizer);
    assert_int_equal(data.eos, 0);
    assert_int_equal(data.vocab_size, 0); /* flat files do not name a vocabulary */
    cpl_train_data_close(&data);
    assert_null(data.train);
}

/* ---- data that are refused ---- */

TEST(too_little_data_is_refused)
{
    cpl_train_data data;
    cpl_settings *batch = settings_of(shard("batch.npy", BATCH));
    cpl_settings *less  = settings_of(shard("less.npy", BATCH - 1));
    cpl_settings *none  = settings_of(shard("none.npy", 0));
    cpl_settings *unset = settings_of(NULL);
    assert_ok(open_data(&data, batch, NULL)); /* just enough: every step is an epoch */
    assert_int_equal(data.train->steps_per_epoch, 1);
    cpl_train_data_close(&data);
    refused("the training data is too short for one batch: its 24 tokens give 3 sequences of 8 "
            "per epoch, a batch needs 4 (32 tokens)",
            less);
    refused("none.npy: 0 tokens in 1 files give no sequence of 8 tokens", none);
    refused("data.train is not set", unset);
    set_data(batch, "validation", in_folder(folder, "none.npy"));
    refused("none.npy: 0 tokens", batch);
}

/* If the shards do not name a vocabulary, the model's vocabulary is the bound of ids. */
TEST(ids_are_bounded_by_the_model)
{
    rows r;
    cpl_train_data data;
    cpl_settings *settings = settings_of(shard("a.npy", SEQUENCES));
    set(settings, "data.shuffle=false");
    set_data(settings, "validation", shard("held.npy", HELD_OUT));
    assert_ok(open_data(&data, settings, NULL));
    cpl_train_data_bound_ids(&data, FIRST_ID + BATCH);
    step_of(&data, 0);
    cpl_batch batch = into(&r);
    assert_fails(CPL_ERR_INPUT, "a.npy", cpl_loader_batch(data.train, 1, &batch));
    assert_fails(CPL_ERR_INPUT, "held.npy",
                 cpl_loader_eval_batch(data.held_out, 0, 0, HELD_OUT / BATCH, &batch));
    cpl_train_data_bound_ids(&data, FIRST_ID + SEQUENCES); /* too late: the bound is set */
    assert_fails(CPL_ERR_INPUT, "a.npy", cpl_loader_batch(data.train, 1, &batch));
    cpl_train_data_close(&data);
}
