/* test_plan.c - the planner against the reference counts, against the paper, and against what is
 * really allocated; the memory there is, from the system's texts. */
#include "study/plan.h"

#include <math.h>

#include "check.h"
#include "model/model.h"
#include "base/memory.h"
#include "tensor/backend.h"

static const double ratio_tolerance = 1e-12;

static cpl_plan_case small_case(void)
{
    cpl_plan_case asked = {.batch_tokens    = 64,
                           .seq_len         = 16,
                           .micro_sequences = 2,
                           .dp              = 1,
                           .ep              = 1,
                           .compute         = CPL_F32,
                           .n_threads       = 2,
                           .keep            = 2};
    assert_ok(cpl_settings_init(&asked.model, &cpl_model_section, 1));
    assert_ok(cpl_settings_init(&asked.erc, &cpl_erc_section, 1));
    asked.model.vocab_size = 96;
    asked.model.d_model    = 24;
    asked.model.d_expert   = 20;
    asked.model.n_layers   = 3;
    asked.model.n_heads    = 3;
    asked.model.n_experts  = 6;
    asked.model.top_k      = 2;
    assert_ok(cpl_model_settle(&asked.model));
    return asked;
}

static int64_t integer(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("%s is no integer", key);
    return json_integer_value(value);
}

static cpl_plan_case case_of(const json_t *golden, const json_t *run)
{
    cpl_plan_case asked    = small_case();
    asked.model.n_layers   = integer(golden, "L");
    asked.model.d_model    = integer(golden, "d");
    asked.model.d_expert   = integer(golden, "D");
    asked.model.n_heads    = integer(golden, "H");
    asked.model.n_kv_heads = integer(golden, "Hkv");
    asked.model.n_experts  = integer(golden, "n");
    asked.model.top_k      = integer(golden, "K");
    asked.model.vocab_size = integer(golden, "V");
    asked.model.tied       = json_is_true(json_object_get(golden, "tied"));
    assert_ok(cpl_model_settle(&asked.model));
    if (!run) return asked;
    asked.batch_tokens = integer(run, "T");
    asked.dp           = integer(run, "dp");
    asked.ep           = integer(run, "ep");
    return asked;
}

/* Every number of `want` must be in `got`: integers exactly, reals within the tolerance. */
static void compare(const json_t *want, const json_t *got)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)want, key, value)
    {
        json_t *ours = json_object_get(got, key);
        if (json_is_object(value)) compare(value, ours);
        if (json_is_integer(value)) assert_int_equal(integer(got, key), json_integer_value(value));
        if (!json_is_real(value)) continue;
        double wanted = json_real_value(value);
        assert_near(json_number_value(ours), wanted, ratio_tolerance * fabs(wanted));
    }
}

static void check_golden(const json_t *golden, const json_t *run)
{
    cpl_plan plan;
    cpl_plan_case asked = case_of(golden, run);
    assert_ok(cpl_plan_make(&plan, &asked));
    json_t *ours = cpl_plan_json(&plan);
    assert_non_null(ours);
    compare(run ? run : golden, ours);
    json_decref(ours);
}

static void agrees_with_the_reference(void **unused)
{
    (void)unused;
    json_error_t error;
    json_t *all = json_load_file(golden_path("planner.json"), 0, &error), *golden, *run;
    size_t i, k;
    assert_non_null(all);
    assert_true(json_array_size(all) >= 3);
    json_array_foreach(all, i, golden)
    {
        check_golden(golden, NULL);
        json_array_foreach(json_object_get(golden, "runs"), k, run) check_golden(golden, run);
    }
    json_decref(all);
}

/* A tied head is counted once and works as a head: only "without both" leaves it out. */
static void counts_a_tied_head_once(void **unused)
{
    (void)unused;
    cpl_plan apart, tied;
    cpl_plan_case asked = small_case();
    int64_t table       = asked.model.vocab_size * asked.model.d_model;
    assert_ok(cpl_plan_make(&apart, &asked));
    asked.model.tied = 1;
    assert_ok(cpl_plan_make(&tied, &asked));
    assert_int_equal(apart.total_parameters - tied.total_parameters, table);
    assert_int_equal(tied.active_without_input_embedding, tied.active_parameters);
    assert_int_equal(apart.active_without_input_embedding, tied.active_without_input_embedding);
    assert_int_equal(apart.active_without_embedding_and_head,
                     tied.active_without_embedding_and_head);
}

/* The formula of the header, term by term, in its own words. */
static void counts_the_whole_step(void **unused)
{
    (void)unused;
    cpl_plan plan;
    cpl_plan_case asked         = small_case();
    asked.model.n_kv_heads      = 1;
    const cpl_model_settings *c = &asked.model;
    double kv = (double)(c->d_model / c->n_heads), d = (double)c->d_model, layer = 0;
    layer += 2 * d * (2 * d + 2 * kv);
    for (int64_t at = 0; at < asked.seq_len; at++)
        layer += 4 * d * (double)(at + 1) / (double)asked.seq_len;
    layer += 2 * d * (double)c->n_experts;
    layer += (double)c->top_k * 3 * 2 * d * (double)c->d_expert;
    double token = (double)c->n_layers * layer + 2 * d * (double)c->vocab_size;
    double erc   = 2.0 * 36 * 20 * 24;
    assert_ok(cpl_plan_make(&plan, &asked));
    assert_near(plan.token_forward_flops, token, ratio_tolerance * token);
    double step = 3 * 64 * token + 3 * 3 * erc;
    assert_near(plan.step_flops, step, ratio_tolerance * step);
    asked.erc.weight = 0;
    assert_ok(cpl_plan_make(&plan, &asked));
    assert_near(plan.step_flops, 3 * 64 * token, ratio_tolerance * step);
    asked.erc.weight = 1;
    asked.erc.draws  = 4;
    assert_ok(cpl_plan_make(&plan, &asked));
    assert_near(plan.erc_flops, 4 * erc, ratio_tolerance * erc);
    assert_near(plan.step_flops, 3 * 64 * token + 4 * 9 * erc, ratio_tolerance * step);
}

/* What is foretold is what the allocating functions take. */
static void foretells_what_is_allocated(void **unused)
{
    (void)unused;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cpl_plan plan;
        cpl_plan_case asked = small_case();
        cpl_backend be;
        cpl_model model;
        asked.compute = bf16 ? CPL_BF16 : CPL_F32;
        assert_ok(cpl_plan_make(&plan, &asked));
        cpl_backend_cpu(&be, asked.compute, asked.n_threads);
        assert_ok(cpl_model_init(&model, &be, &asked.model, asked.seq_len));
        assert_int_equal(model.arena.used, plan.bytes.weights + plan.bytes.compute_copies);
        assert_int_equal(plan.bytes.compute_copies > 0, bf16);
        cpl_work work = cpl_pass_work(&asked.model, 2, 16, 16, true);
        assert_ok(cpl_backend_reserve(&be, &work));
        assert_int_equal(be.scratch_bytes, plan.bytes.scratch);
        assert_true(plan.bytes.gradients >= (size_t)plan.total_parameters * sizeof(float));
        assert_int_equal(plan.bytes.moments, 2 * plan.bytes.gradients);
        assert_true(plan.bytes.total > plan.bytes.activations);
        cpl_model_free(&model);
        cpl_backend_free(&be);
    }
}

static void refuses_what_no_machine_holds(void **unused)
{
    (void)unused;
    cpl_plan plan;
    cpl_plan_case asked   = small_case();
    asked.model.n_experts = 65535;
    asked.model.n_layers  = 65535;
    asked.model.d_model = asked.model.d_expert = 1048572;
    assert_fails(CPL_ERR_MEMORY, "out of memory foretold", cpl_plan_make(&plan, &asked));
    asked    = small_case();
    asked.ep = 4;
    assert_fails(CPL_ERR_USAGE, "does not divide", cpl_plan_make(&plan, &asked));
    asked                 = small_case();
    asked.model.n_experts = 60000;
    asked.model.d_expert  = 60000;
    asked.model.d_model   = 6000;
    asked.micro_sequences = 1;
    assert_ok(cpl_plan_make(&plan, &asked));
    assert_fails(CPL_ERR_MEMORY, "out of memory foretold", cpl_plan_check_memory(&plan));
}

static void says_it_in_words(void **unused)
{
    (void)unused;
    cpl_plan plan;
    cpl_text out         = {0};
    cpl_plan_case asked  = small_case();
    asked.model.n_layers = 1000;
    assert_ok(cpl_plan_make(&plan, &asked));
    cpl_plan_text(&out, &plan);
    assert_ok(cpl_text_status(&out));
    /* 2 * 96 * 24 + 24 + 1000 (2 * 24 + 2 * 24 + 4 * 576 + 144 + 6 * 3 * 480) */
    assert_non_null(strstr(out.bytes, "11,188,632"));
    assert_non_null(strstr(out.bytes, "1000 layers"));
    cpl_text_free(&out);
}

static void reads_what_the_system_says(void **unused)
{
    (void)unused;
    char path[512];
    const char *info = "MemTotal:       100 kB\nMemAvailable:    70 kB\n", *stat = "file 5\nx 7";
    assert_near(cpl_memory_field(info, "MemAvailable"), 70 * 1024.0, 0);
    assert_near(cpl_memory_field(info, "Mem"), -1, 0);
    assert_near(cpl_memory_field(stat, "x"), 7, 0);
    assert_near(cpl_memory_field("", "x"), -1, 0);
    assert_near(cpl_memory_field("x", "x"), -1, 0);
    const char *groups = "9:cpu,memory:/a/b\n4:memory_x:/no\n0::/c\n";
    cpl_memory_group(path, groups, "memory");
    assert_string_equal(path, "/a/b");
    cpl_memory_group(path, groups, NULL);
    assert_string_equal(path, "/c");
    cpl_memory_group(path, groups, "pids");
    assert_string_equal(path, "");
    cpl_memory_group(path, "nonsense\n\n:", NULL);
    assert_string_equal(path, "");
    assert_true(cpl_memory_available() > 0);
    assert_ok(cpl_memory_compare(1, 1, "this"));
    assert_fails(CPL_ERR_MEMORY, "out of memory foretold: this needs 2.0 GiB, there are 1.0 GiB",
                 cpl_memory_compare(2147483648.0, 1073741824.0, "this"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference),
        cmocka_unit_test(counts_a_tied_head_once),
        cmocka_unit_test(counts_the_whole_step),
        cmocka_unit_test(foretells_what_is_allocated),
        cmocka_unit_test(refuses_what_no_machine_holds),
        cmocka_unit_test(says_it_in_words),
        cmocka_unit_test(reads_what_the_system_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
