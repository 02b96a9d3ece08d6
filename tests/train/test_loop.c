/* test_loop.c - a run over token shards: the order of its actions, the contents of its files, and
 * resuming bit for bit. */
#include "train/loop.h"

#include <math.h>
#include <string.h>

#include "io/json.h"
#include "support/run_settings.h"
#include "tensor/cuda/counts.h"
#include "tensor/far/far.h"

enum { STEPS = 6, VOCABULARY = 64, TOKENS = 4096, BATCH_TOKENS = 64 };

static const char *const base[] =
    LIST("model.hidden_size=16", "model.intermediate_size=8", "model.num_hidden_layers=2",
         "model.num_experts=4", "model.num_experts_per_tok=2", "model.num_attention_heads=2",
         "model.vocab_size=64", "model.max_position_embeddings=64", "data.seq_len=16",
         "data.batch_tokens=64", "data.eos=0", "data.token_type=uint16", "train.steps=6",
         "train.lr=1e-2", "checkpoint.every=2", "eval.every=3", "log.every=1", "compute.dtype=f32",
         "compute.threads=2");

TESTS_DO(after_each, drop_all);

/* Returns the file of ids that all runs share. */
static const char *ids_file(void)
{
    static char path[512];
    if (!path[0]) snprintf(path, sizeof path, "%s", learnable_ids(TOKENS, VOCABULARY, -1));
    return path;
}

static cpl_settings *settings_of(const char *extra)
{
    cpl_settings *settings = new_settings();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) set(settings, base[i]);
    set_data(settings, "train", ids_file());
    if (extra) set(settings, extra);
    return settings;
}

/* ---- records of a run ---- */

typedef struct heard {
    int approved, began, stepped;
    int64_t first_step, last_step, saved[16];
    int n_saved;
    double loss[32];
    uint64_t evaluated; /* steps that were evaluated, a bit each */
    bool out_of_order;
    cpl_status verdict; /* the status that approve returns */
    int64_t waits;      /* most waits for the backend in a step after the first */
} heard;

static cpl_status approve(void *ctx, const cpl_settings *settings, cpl_backend *be)
{
    heard *h        = ctx;
    h->out_of_order = h->out_of_order || h->began || settings->model.n_kv_heads == CPL_UNSET;
    h->out_of_order = h->out_of_order || !be->ops;
    h->approved++;
    return h->verdict == CPL_OK ? CPL_OK : CPL_FAIL(h->verdict, "not approved");
}

static void began(void *ctx, const cpl_train_facts *facts)
{
    heard *h        = ctx;
    h->out_of_order = h->out_of_order || !h->approved || h->stepped;
    h->first_step   = facts->first_step;
    h->began++;
}

/* Returns the waits of an emulated GPU since the last call. */
static int64_t waits_of_gpu(void)
{
    static int64_t before;
    cpl_on_host_counts counts;
    cpl_on_host_counted(&counts);
    const int64_t waits = counts.waits - before;
    before              = counts.waits;
    return waits;
}

static void stepped(void *ctx, const cpl_metrics *metrics)
{
    heard *h               = ctx;
    h->out_of_order        = h->out_of_order || metrics->step != h->first_step + h->stepped;
    h->loss[metrics->step] = metrics->loss;
    if (metrics->has_eval) h->evaluated |= 1u << metrics->step;
    h->last_step        = metrics->step;
    const int64_t waits = cpl_far_waits(h->stepped == 1 ? stderr : NULL) + waits_of_gpu();
    if (h->stepped > 0 && !metrics->has_eval && waits > h->waits) h->waits = waits;
    h->stepped++;
}

static void saved(void *ctx, int64_t step)
{
    heard *h               = ctx;
    h->out_of_order        = h->out_of_order || step != h->last_step;
    h->saved[h->n_saved++] = step;
}

static cpl_status train(heard *h, const char *run, cpl_settings *settings,
                        const cpl_settings *written, cpl_train_outcome *outcome)
{
    const cpl_train_callbacks callbacks = {
        .ctx = h, .approve = approve, .began = began, .stepped = stepped, .saved = saved};
    const cpl_train_job job = LIST(.settings = settings, .run = run, .resume = written != NULL,
                                   .written = written, .callbacks = &callbacks);
    return cpl_train(&job, outcome);
}

TEST(one_run)
{
    const char *run        = fresh_run();
    heard h                = {0};
    cpl_settings *settings = settings_of(NULL);
    cpl_train_outcome outcome;
    json_t *start = NULL;
    assert_ok(train(&h, run, settings, NULL, &outcome));
    assert_int_equal(outcome.step, STEPS);
    assert_false(outcome.stopped || h.out_of_order);
    assert_int_equal(h.approved, 1);
    assert_int_equal(h.began, 1);
    assert_int_equal(h.first_step, 1);
    assert_int_equal(h.stepped, STEPS);
    assert_int_equal(h.n_saved, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(h.saved[i], 2 * (i + 1));
    assert_int_equal(h.evaluated, 1u << 3 | 1u << 6);
    assert_near(h.loss[1], log(VOCABULARY), 0.1);
    assert_true(h.loss[STEPS] < h.loss[1] - 0.01);
    assert_ok(cpl_json_load(&start, in_folder(run, "start.json")));
    assert_true(json_is_object(json_object_get(start, "settings")));
    assert_int_equal(json_array_size(json_object_get(start, "erc_clean")), 2);
    json_decref(start);
    assert_int_equal(access(in_folder(run, "last/model.safetensors"), F_OK), 0);
}

/* A run of six steps that was cut after four has the losses of a whole run, bit for bit. */
TEST(a_run_goes_on)
{
    const char *run = fresh_run();
    heard whole = {0}, first = {0}, second = {0};
    cpl_settings *all = settings_of(NULL), *part = settings_of("train.steps=6");
    cpl_settings *more = settings_of(NULL);
    cpl_train_outcome outcome;
    assert_ok(train(&whole, run, all, NULL, &outcome));
    run = fresh_run();
    assert_ok(train(&first, run, part, NULL, &outcome));
    /* Goes back to step 4, as a run that was killed after step 4. */
    char command[600];
    snprintf(command, sizeof command, "cd '%s' && rm -r step-000006 && ln -sfn step-000004 last",
             run);
    assert_int_equal(system(command), 0);
    assert_ok(train(&second, run, more, part, &outcome));
    assert_int_equal(second.first_step, 5);
    assert_int_equal(second.stepped, 2);
    for (int step = 5; step <= STEPS; step++)
        assert_memory_equal(&second.loss[step], &whole.loss[step], sizeof(double));
}

TEST(what_is_not_approved_leaves_nothing)
{
    const char *run        = fresh_run();
    heard h                = {.verdict = CPL_ERR_MEMORY};
    cpl_settings *settings = settings_of(NULL);
    cpl_train_outcome outcome;
    assert_fails(CPL_ERR_MEMORY, "not approved", train(&h, run, settings, NULL, &outcome));
    assert_int_not_equal(access(run, F_OK), 0);
    assert_int_equal(h.began + h.stepped + h.n_saved, 0);
}

/* A file of ids does not name its vocabulary: the model's vocabulary is the bound. */
TEST(ids_beyond_the_model_are_refused)
{
    const char *run        = fresh_run();
    heard h                = {0};
    cpl_settings *settings = settings_of("model.vocab_size=32");
    cpl_train_outcome outcome;
    assert_fails(CPL_ERR_INPUT, "ids.npy", train(&h, run, settings, NULL, &outcome));
    assert_int_equal(h.stepped, 0);
}

/* Step n reads batch n - 1. The batch with an id outside of the vocabulary ends the run. */
TEST(a_step_reads_its_batch)
{
    cpl_train_outcome outcome;
    for (int step = 1; step <= STEPS; step++) {
        const char *run        = fresh_run();
        heard h                = {0};
        cpl_settings *settings = settings_of("data.shuffle=false");
        set_data(settings, "train",
                 learnable_ids(TOKENS, VOCABULARY, (step - 1) * BATCH_TOKENS + 7));
        assert_fails(CPL_ERR_INPUT, "ids.npy", train(&h, run, settings, NULL, &outcome));
        assert_int_equal(h.stepped, step - 1);
        assert_int_equal(outcome.step, step - 1);
    }
}

/* A step whose gradient is not finite changes no weight and is not saved. The run ends after
 * train.max_skipped of these steps in a row. */
TEST(steps_that_are_not_finite_are_skipped)
{
    const char *run = fresh_run();
    char line[4096];
    heard h                = {0};
    cpl_settings *settings = settings_of("z.weight=1e300");
    cpl_train_outcome outcome;
    set(settings, "train.max_skipped=3");
    set(settings, "checkpoint.every=1");
    assert_fails(CPL_ERR_INPUT, "3 steps in a row", train(&h, run, settings, NULL, &outcome));
    assert_non_null(strstr(cpl_last_error(), "no checkpoint was saved yet"));
    assert_int_equal(h.stepped, 3);
    assert_int_equal(h.n_saved, 0);
    FILE *file = fopen(in_folder(run, "metrics.jsonl"), "r");
    assert_non_null(file);
    for (int skipped = 1; skipped <= 3; skipped++) {
        assert_non_null(fgets(line, sizeof line, file));
        json_t *metrics = json_loads(line, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(metrics, "skipped")), skipped);
        json_decref(metrics);
    }
    fclose(file);
}

/* Work of the next step is given while the backend still has work of this step. The last step also
 * waits for its figures and for held-out loss. */
TEST(a_step_waits_once)
{
    const char *run        = fresh_run();
    heard h                = {0};
    cpl_settings *settings = settings_of("log.every=100");
    cpl_train_outcome outcome;
    set(settings, "eval.every=0");
    set(settings, "checkpoint.every=0");
    set(settings, "train.micro_batch=2");
    const bool is_given = getenv("COUPLET_TEST_BACKEND") != NULL;
    setenv("COUPLET_TEST_BACKEND", "late", 0);
    assert_ok(train(&h, run, settings, NULL, &outcome));
    if (!is_given) unsetenv("COUPLET_TEST_BACKEND");
    assert_int_equal(h.waits, 1);
}
