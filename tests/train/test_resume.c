/* test_resume.c - the settings that may differ when a run goes on, and the settings of a
 * checkpoint. */
#include <string.h>

#include "support/run_settings.h"
#include "support/warnings.h"
#include "train/trainer.h"

TESTS_DO(after_each, drop_all);

/* Returns the defaults with one change. */
static cpl_settings *with(const char *assignment)
{
    cpl_settings *settings = new_settings();
    if (assignment) set(settings, assignment);
    return settings;
}

static cpl_status resume(const char *assignment)
{
    cpl_settings *old = with(NULL), *fresh = with(assignment);
    n_warnings = 0;
    return cpl_train_may_resume(old, fresh, 1, &a_log);
}

TEST(what_changes_no_step_may_change)
{
    static const char *const free_ones[] = {"compute.threads=3",  "train.recompute=norms",
                                            "checkpoint.every=7", "checkpoint.keep=9",
                                            "eval.every=3",       "log.every=2"};
    for (size_t i = 0; i < sizeof free_ones / sizeof *free_ones; i++) {
        assert_ok(resume(free_ones[i]));
        assert_int_equal(n_warnings, 0);
    }
    assert_ok(resume("train.steps=77"));
    assert_int_equal(n_warnings, 1);
    char words[80];
    cpl_settings *defaults = with(NULL);
    snprintf(words, sizeof words, "train.steps was %lld and is now 77",
             (long long)defaults->train.steps);
    assert_non_null(strstr(warned, words));
}

/* A machine may need smaller micro-batches. A warning is given if load balancing counts them. */
TEST(micro_batches_may_change)
{
    static const char *const scopes[] = {"auto", "micro", "global", "sequence"};
    for (int i = 0; i < 4; i++) {
        char scope[40];
        cpl_settings *old = with("train.micro_batch=4"), *fresh = with("train.micro_batch=2");
        snprintf(scope, sizeof scope, "balance.scope=%s", scopes[i]);
        set(old, scope);
        set(fresh, scope);
        n_warnings = 0;
        assert_ok(cpl_train_may_resume(old, fresh, 1, &a_log));
        assert_int_equal(n_warnings, i < 2);
        if (i < 2)
            assert_non_null(strstr(warned, "train.micro_batch was 4 and is now 2 sequences"));
    }
}

TEST(what_changes_a_step_may_not)
{
    static const char *const fixed[][2] = {{"erc.alpha=0.5", "erc.alpha"},
                                           {"balance.weight=0.5", "balance.weight"},
                                           {"balance.scope=sequence", "balance.scope"},
                                           {"z.weight=0.5", "z.weight"},
                                           {"orth.weight=0.5", "orth.weight"},
                                           {"train.lr=0.5", "train.lr"},
                                           {"train.seed=5", "train.seed"},
                                           {"data.seq_len=64", "data.seq_len"},
                                           {"model.router=sigmoid", "model.router"},
                                           {"erc.gradient=router", "erc.gradient"}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        assert_fails(CPL_ERR_INPUT, fixed[i][1], resume(fixed[i][0]));
}

/* Resumes a run of `was` (NULL: the defaults) with `now`. `kept`: the run keeps its settings. */
static void resume_as(const char *was, const char *now, const char *refused, bool kept)
{
    cpl_settings *old = with(was), *fresh = with(was);
    void *mine, *its;
    char name[80];
    cpl_section sections[CPL_N_SECTIONS];
    set(fresh, now);
    n_warnings        = 0;
    cpl_status status = cpl_train_may_resume(old, fresh, 1, &a_log);
    if (refused) {
        assert_fails(CPL_ERR_INPUT, refused, status);
    } else {
        assert_ok(status);
        assert_int_equal(n_warnings, 0);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(now, "="), now);
        cpl_settings_sections(sections);
        const cpl_setting *s = cpl_settings_find(fresh, sections, CPL_N_SECTIONS, name, &mine);
        (void)cpl_settings_find(old, sections, CPL_N_SECTIONS, name, &its);
        assert_int_equal(cpl_setting_equal(s, mine, its), kept);
    }
}

/* A run from before the setting goes on with its old behaviour. */
TEST(activations_follow_products)
{
    static const struct {
        const char *dtype;
        bool resumed;
        cpl_dtype_choice want;
    } cases[] = {{"compute.dtype=f32", false, CPL_DTYPE_F32},
                 {"compute.dtype=f32", true, CPL_DTYPE_F32},
                 {"compute.dtype=bf16", false, CPL_DTYPE_BF16},
                 {"compute.dtype=bf16", true, CPL_DTYPE_F32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cpl_settings *s = with(cases[i].dtype);
        assert_ok(cpl_train_resolve_machine(s, NULL, 1, cases[i].resumed));
        assert_int_equal(s->compute.activations, cases[i].want);
        assert_ok(
            cpl_train_resolve_machine(s, NULL, 1, !cases[i].resumed)); /* a named value stays */
        assert_int_equal(s->compute.activations, cases[i].want);
    }
    cpl_settings *s = with("compute.dtype=f32");
    set(s, "compute.activations=bf16");
    assert_fails(CPL_ERR_USAGE, "compute.activations is bf16, but compute.dtype is f32:",
                 cpl_train_resolve_machine(s, NULL, 1, false));
}

/* Naming the value that an automatic setting became is no change, and neither is leaving it out.
 * The run keeps its own value, to the bit. */
TEST(what_a_value_became_is_no_change)
{
    resume_as("train.lr=3e-4", "train.lr_min=3e-5", NULL, true);
    resume_as("train.lr=3e-4", "train.lr_min=3.1e-5", "train.lr_min", true);
    resume_as("train.seed=7", "data.seed=7", NULL, true);
    resume_as("train.seed=7", "data.seed=8", "data.seed", true);
    resume_as("erc.alpha=0.5", "erc.alpha_start=0.5", NULL, true);
    resume_as(NULL, "balance.scope=micro", NULL, true);
    resume_as("balance.scope=micro", "balance.scope=auto", NULL, true);
    resume_as("data.batch_tokens=4096", "train.micro_batch=16", NULL, true);
    resume_as("model.num_attention_heads=4", "model.num_key_value_heads=4", NULL, true);
    resume_as("model.num_attention_heads=4", "model.num_key_value_heads=2",
              "model.num_key_value_heads", true);
    resume_as("compute.dtype=bf16", "compute.dtype=auto", NULL, true);
    resume_as("compute.dtype=bf16", "compute.dtype=f32", "compute.dtype is bf16", true);
    resume_as("compute.activations=bf16", "compute.activations=auto", NULL, true);
    resume_as("compute.dtype=bf16", "compute.activations=f32", NULL, true);
    resume_as("compute.dtype=bf16", "compute.activations=bf16", "compute.activations is f32", true);
    /* Older versions did not record this value. The other settings are compared with the data. */
    resume_as("compute.dtype=auto", "compute.dtype=bf16", NULL, false);
    resume_as(NULL, "data.eos=7", NULL, false);
    resume_as(NULL, "data.token_type=uint16", NULL, false);
    resume_as("data.eos=7", "data.eos=8", "data.eos", true);
}

/* One warning names all settings that differ, with both values, and no other setting. */
TEST(what_a_run_was_made_with)
{
    cpl_backend be;
    n_warnings = 0;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 3));
    json_t *now = cpl_resume_made_with(&be, 2), *was = json_deep_copy(now);
    static const char *const names[] = {"couplet", "onednn",  "kernels",
                                        "dtype",   "threads", "ranks"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(json_object_get(now, names[i]));
    assert_ok(cpl_resume_compare(was, "state.json", now, &a_log));
    assert_int_equal(n_warnings, 0);
    json_object_set_new(was, "threads", json_integer(8));
    json_object_set_new(was, "kernels", json_string("v9"));
    json_object_del(was, "ranks");
    assert_ok(cpl_resume_compare(was, "state.json", now, &a_log));
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warned, "threads 8 (now 3)"));
    assert_non_null(strstr(warned, "kernels v9 (now "));
    assert_null(strstr(warned, "ranks"));
    json_decref(was);
    json_decref(now);
    cpl_backend_free(&be);
}

/* Checks an object of a checkpoint without `gone`, and with `name` set to `value`, against the
 * defaults with one change. */
static cpl_status check(const char *gone, const char *name, const char *value, const char *change)
{
    cpl_settings *made = with(NULL), *config = with(change);
    json_t *object = NULL;
    n_warnings     = 0;
    assert_ok(cpl_resume_settings(&object, made));
    if (gone) assert_int_equal(json_object_del(object, gone), 0);
    if (name) json_object_set_new(object, name, json_string(value));
    cpl_status status = cpl_resume_check(object, "state.json", config, 1, &a_log);
    json_decref(object);
    return status;
}

TEST(a_checkpoint_knows_its_settings)
{
    assert_ok(check(NULL, NULL, NULL, NULL));
    assert_ok(check("orth.weight", NULL, NULL, NULL)); /* an absent setting has its default */
    assert_ok(check("balance.scope", NULL, NULL, NULL));
    assert_ok(check(NULL, "erc.alpha", "0.25", "erc.alpha=0.25"));
    assert_int_equal(n_warnings, 0);
    assert_fails(CPL_ERR_INPUT, "erc.alpha", check(NULL, NULL, NULL, "erc.alpha=0.25"));
    assert_fails(CPL_ERR_INPUT, "z.weight", check("z.weight", NULL, NULL, "z.weight=3"));
    assert_fails(CPL_ERR_INPUT, "balance.scope",
                 check("balance.scope", NULL, NULL, "balance.scope=global"));
    assert_fails(CPL_ERR_INPUT, "no.such", check(NULL, "no.such", "1", NULL));
    assert_ok(check(NULL, "data.tokenizer", "elsewhere.json", NULL)); /* a path may move */
    assert_int_equal(n_warnings, 1);
}
