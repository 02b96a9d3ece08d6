/* test_plan.c - the planner against the reference counts, the paper, and the bytes that are really
 * allocated. The memory of the machine is read from the system's texts. */
#include "plan/plan.h"

#include <math.h>

#include "base/memory.h"
#include "check.h"
#include "model/model.h"
#include "tensor/backend/backend.h"
#include "train/step.h"

static const double ratio_tolerance = 1e-12;

static cpl_plan_input small_case(void)
{
    cpl_plan_input input =
        LIST(.batch_tokens = 64, .seq_len = 16, .micro_sequences = 2, .ranks = 1,
             .expert_parallel = 1, .compute = CPL_F32, .n_threads = 2, .keep = 2);
    assert_ok(cpl_settings_init(&input.model, &cpl_section_model, 1));
    assert_ok(cpl_settings_init(&input.erc, &cpl_section_erc, 1));
    cpl_free(input.erc.layers); /* NULL: all layers */
    input.erc.layers       = NULL;
    input.erc.weight       = 1;
    input.model.vocab_size = 96;
    input.model.d_model    = 24;
    input.model.d_expert   = 20;
    input.model.n_layers   = 3;
    input.model.n_heads    = 3;
    input.model.n_experts  = 6;
    input.model.top_k      = 2;
    assert_ok(cpl_model_resolve(&input.model));
    return input;
}

static int64_t integer(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("%s is no integer", key);
    return json_integer_value(value);
}

static cpl_plan_input case_of(const json_t *golden, const json_t *run)
{
    cpl_plan_input input   = small_case();
    input.model.n_layers   = integer(golden, "L");
    input.model.d_model    = integer(golden, "d");
    input.model.d_expert   = integer(golden, "D");
    input.model.n_heads    = integer(golden, "H");
    input.model.n_kv_heads = integer(golden, "Hkv");
    input.model.n_experts  = integer(golden, "n");
    input.model.top_k      = integer(golden, "K");
    input.model.vocab_size = integer(golden, "V");
    input.model.tied       = json_is_true(json_object_get(golden, "tied"));
    assert_ok(cpl_model_resolve(&input.model));
    if (!run) return input;
    input.batch_tokens    = integer(run, "T");
    input.ranks           = integer(run, "dp"); /* all ranks read data of their own */
    input.expert_parallel = integer(run, "ep");
    return input;
}

/* Returns our name of a key. The reference's dp are devices with own data: here all ranks are. */
static const char *ours_of(const char *key)
{
    static const char *const renamed[][2] = {
        {"dp", "ranks"},
        {"ep", "expert_parallel"},
        {"base_token_equivalents_per_device", "base_token_equivalents_per_rank"},
        {"erc_token_equivalents_per_device", "erc_token_equivalents_per_rank"},
    };
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(key, renamed[i][0]) == 0) return renamed[i][1];
    return key;
}

/* Every number of `want` must be in `got`: integers exactly, reals within the tolerance. */
static void compare(const json_t *want, const json_t *got)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)want, key, value)
    {
        json_t *ours = json_object_get(got, ours_of(key));
        if (json_is_object(value)) compare(value, ours);
        if (json_is_integer(value))
            assert_int_equal(integer(got, ours_of(key)), json_integer_value(value));
        if (!json_is_real(value)) continue;
        double wanted = json_real_value(value);
        assert_near(json_number_value(ours), wanted, ratio_tolerance * fabs(wanted));
    }
}

static void check_golden(const json_t *golden, const json_t *run)
{
    cpl_plan plan;
    cpl_plan_input input = case_of(golden, run);
    assert_ok(cpl_plan_make(&plan, &input));
    json_t *ours = cpl_plan_json(&plan);
    assert_non_null(ours);
    compare(run ? run : golden, ours);
    json_decref(ours);
}

TEST(agrees_with_the_reference)
{
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
TEST(counts_a_tied_head_once)
{
    cpl_plan apart, tied;
    cpl_plan_input input = small_case();
    int64_t table        = input.model.vocab_size * input.model.d_model;
    assert_ok(cpl_plan_make(&apart, &input));
    input.model.tied = 1;
    assert_ok(cpl_plan_make(&tied, &input));
    assert_int_equal(apart.total_parameters - tied.total_parameters, table);
    assert_int_equal(tied.active_without_input_embedding, tied.active_parameters);
    assert_int_equal(apart.active_without_input_embedding, tied.active_without_input_embedding);
    assert_int_equal(apart.active_without_embedding_and_head,
                     tied.active_without_embedding_and_head);
}

/* Checks the formula of the header, term by term. */
TEST(counts_the_whole_step)
{
    cpl_plan plan;
    cpl_plan_input input        = small_case();
    input.model.n_kv_heads      = 1;
    const cpl_model_settings *c = &input.model;
    double kv = (double)(c->d_model / c->n_heads), d = (double)c->d_model, layer = 0;
    layer += 2 * d * (2 * d + 2 * kv);
    for (int64_t at = 0; at < input.seq_len; at++)
        layer += 4 * d * (double)(at + 1) / (double)input.seq_len;
    layer += 2 * d * (double)c->n_experts;
    layer += (double)c->top_k * 3 * 2 * d * (double)c->d_expert;
    double token = (double)c->n_layers * layer + 2 * d * (double)c->vocab_size;
    double erc   = 2.0 * 36 * 20 * 24;
    assert_ok(cpl_plan_make(&plan, &input));
    assert_near(plan.token_forward_flops, token, ratio_tolerance * token);
    double step = 3 * 64 * token + 3 * 3 * erc;
    assert_near(plan.step_flops, step, ratio_tolerance * step);
    input.erc.weight = 0;
    assert_ok(cpl_plan_make(&plan, &input));
    assert_near(plan.step_flops, 3 * 64 * token, ratio_tolerance * step);
    input.erc.weight = 1;
    input.erc.draws  = 4;
    assert_ok(cpl_plan_make(&plan, &input));
    assert_near(plan.erc_flops, 4 * erc, ratio_tolerance * erc);
    assert_near(plan.step_flops, 3 * 64 * token + 4 * 9 * erc, ratio_tolerance * step);
}

/* ---- variants ---- */

typedef struct shape {
    int64_t d, D, n, K, layers, tokens, r;
} shape;

/* Sizes of the cases. r: dD/(d+D) rounded by hand, or a rank that does not keep the parameters. */
static const shape shapes[] = {
    {24, 20, 6, 2, 3, 64, 11}, /* 10.9 */
    {48, 24, 8, 8, 1, 32, 16}, /* 16, and every expert chosen */
    {24, 36, 5, 1, 2, 48, 14}, /* 14.4 */
    {24, 20, 6, 2, 3, 64, 4},
};

static cpl_plan_input case_of_shape(const shape *s)
{
    cpl_plan_input input   = small_case();
    input.batch_tokens     = s->tokens;
    input.model.d_model    = s->d;
    input.model.d_expert   = s->D;
    input.model.n_experts  = s->n;
    input.model.top_k      = s->K;
    input.model.n_layers   = s->layers;
    input.model.aoe_rank   = CPL_UNSET;
    input.model.n_kv_heads = CPL_UNSET;
    input.erc.weight       = 0;
    return input;
}

static cpl_plan_input aoe_of_shape(const shape *s)
{
    cpl_plan_input input = case_of_shape(s);
    input.model.router   = CPL_ROUTER_AOE;
    input.model.aoe_rank = s->r;
    assert_ok(cpl_model_resolve(&input.model));
    return input;
}

/* docs/method.md 4.2 has W_down [d,r] of all experts, W_up [r,D], W_p, W_o of K, and no router. */
TEST(counts_what_autonomy_of_experts_adds)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s       = &shapes[i];
        cpl_plan_input input = aoe_of_shape(s), plain = case_of_shape(s);
        cpl_plan aoe, vanilla;
        assert_ok(cpl_model_resolve(&plain.model));
        assert_ok(cpl_plan_make(&aoe, &input));
        assert_ok(cpl_plan_make(&vanilla, &plain));
        int64_t expert = s->r * s->D + 2 * s->d * s->D, first = s->d * s->r;
        int64_t rest = 2 * 96 * s->d + s->d + s->layers * (4 * s->d * s->d + 4 * s->d);
        assert_int_equal(aoe.total_parameters, rest + s->layers * s->n * (first + expert));
        assert_int_equal(aoe.active_parameters, rest + s->layers * (s->n * first + s->K * expert));
        assert_int_equal(vanilla.active_parameters,
                         rest + s->layers * (s->n * s->d + s->K * 3 * s->d * s->D));
        double extra = 2.0 * s->tokens * (s->n - s->K) * s->d * s->r;
        double gates = 2.0 * s->tokens * s->K * (s->d * s->r + s->r * s->D - s->d * s->D);
        assert_near(aoe.aoe_extra_flops, extra + gates, ratio_tolerance * extra);
        double router = 2.0 * s->tokens * s->n * s->d;
        double step   = vanilla.step_flops + 3 * s->layers * (extra + gates - router);
        assert_near(aoe.step_flops, step, ratio_tolerance * step);
        assert_near(aoe.base_flops, 6.0 * s->tokens * s->K * s->D * s->d, 0);
        assert_int_equal(aoe.aoe_rank, s->r);
        assert_near(aoe.erc_flops + aoe.erc_overhead, 0, 0);
    }
}

/* The plan of a model with a router has what Autonomy-of-Experts would add, at its rank. */
TEST(predicts_it_for_a_router)
{
    for (size_t i = 0; i < 3; i++) {
        cpl_plan_input input = aoe_of_shape(&shapes[i]), plain = case_of_shape(&shapes[i]);
        cpl_plan aoe, vanilla;
        assert_ok(cpl_model_resolve(&plain.model));
        assert_ok(cpl_plan_make(&aoe, &input));
        assert_ok(cpl_plan_make(&vanilla, &plain));
        assert_int_equal(vanilla.aoe_rank, shapes[i].r);
        assert_near(vanilla.aoe_extra_flops, aoe.aoe_extra_flops, 0);
        assert_int_equal(vanilla.aoe.total_bytes, 0);
    }
}

static size_t what_a_step_takes(const cpl_plan_input *input, const cpl_model_settings *model)
{
    cpl_settings s;
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    assert_ok(cpl_settings_init(&s, sections, CPL_N_SECTIONS));
    s.data.seq_len = input->seq_len;
    size_t bytes   = cpl_step_bytes(&s, model, input->micro_sequences);
    cpl_settings_free(&s, sections, CPL_N_SECTIONS);
    return bytes;
}

/* One more layer takes h_e of every expert and their norms while a step runs. */
TEST(holds_it_against_its_twin)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        cpl_plan_input input = aoe_of_shape(&shapes[i]), plain = case_of_shape(&shapes[i]);
        cpl_plan aoe, vanilla;
        assert_ok(cpl_model_resolve(&plain.model));
        cpl_model_settings twin = cpl_plan_twin(&input.model);
        assert_memory_equal(&twin, &plain.model, sizeof twin);
        plain.counted.step = input.twin.step = what_a_step_takes(&plain, &plain.model);
        input.counted.step                   = what_a_step_takes(&input, &input.model);
        assert_ok(cpl_plan_make(&aoe, &input));
        assert_ok(cpl_plan_make(&vanilla, &plain));
        const cpl_plan_bytes *a = &aoe.bytes, *v = &vanilla.bytes;
        assert_int_equal(aoe.aoe.parameters, aoe.total_parameters - vanilla.total_parameters);
        assert_int_equal(a->activations + a->coupling, input.counted.step);
        assert_int_equal(aoe.aoe.model_bytes, (int64_t)a->weights - (int64_t)v->weights);
        assert_int_equal(aoe.aoe.run_bytes, (int64_t)(a->gradients + a->moments) -
                                                (int64_t)(v->gradients + v->moments));
        assert_int_equal(aoe.aoe.step_bytes, (int64_t)(input.counted.step + a->scratch) -
                                                 (int64_t)(plain.counted.step + v->scratch));
        assert_int_equal(aoe.aoe.total_bytes, (int64_t)a->total - (int64_t)v->total);
        assert_near(aoe.aoe.share_of_bytes, (double)a->total / v->total - 1, ratio_tolerance);
        assert_near(aoe.aoe.step_flops, aoe.step_flops - vanilla.step_flops, 0);
        assert_near(aoe.aoe.share_of_step, aoe.step_flops / vanilla.step_flops - 1,
                    ratio_tolerance);
    }
}

/* A layer takes [T,n,r] and [T,n], and the model [T K, r] once, up to the alignment of each. */
TEST(predicts_the_hidden_vectors)
{
    const shape *s       = &shapes[0];
    cpl_plan_input input = aoe_of_shape(s), plain = case_of_shape(s);
    cpl_plan aoe, vanilla;
    assert_ok(cpl_model_resolve(&plain.model));
    assert_ok(cpl_plan_make(&aoe, &input));
    assert_ok(cpl_plan_make(&vanilla, &plain));
    int64_t t     = input.micro_sequences * input.seq_len;
    double hidden = 4.0 * (s->layers * (t * s->n * s->r + t * s->n) + t * s->K * s->r);
    assert_near((double)aoe.bytes.activations - (double)vanilla.bytes.activations, hidden,
                64.0 * (2 * s->layers + 1));
}

/* Experts [D,l] and [l,D], and two projections, per layer. */
TEST(counts_latent_experts)
{
    cpl_plan with, without;
    cpl_plan_input input = small_case();
    assert_ok(cpl_plan_make(&without, &input));
    input.model.d_latent = 8;
    assert_ok(cpl_plan_make(&with, &input));
    const cpl_model_settings *c = &input.model;
    const int64_t saved = 3 * c->d_expert * (c->d_model - 8), added = 2 * 8 * c->d_model;
    assert_int_equal(without.total_parameters - with.total_parameters,
                     c->n_layers * (c->n_experts * saved - added));
    assert_near(without.token_forward_flops - with.token_forward_flops,
                2.0 * (double)(c->n_layers * (c->top_k * saved - added)), 1);
    assert_true(with.bytes.total < without.bytes.total);
    assert_true(with.erc_flops < without.erc_flops);
}

TEST(counts_shared_experts)
{
    cpl_plan with, without;
    cpl_plan_input input = small_case();
    assert_ok(cpl_plan_make(&without, &input));
    input.model.router      = CPL_ROUTER_SIGMOID;
    input.model.router_bias = 1;
    input.model.n_shared    = 2;
    assert_ok(cpl_model_resolve(&input.model));
    assert_ok(cpl_plan_make(&with, &input));
    int64_t shared = 3 * 3 * 40 * 24, biases = 3 * 6; /* layers, matrices, width, d; layers, n */
    assert_int_equal(with.total_parameters - without.total_parameters, shared + biases);
    assert_int_equal(with.active_parameters - without.active_parameters, shared + biases);
    assert_near(with.token_forward_flops - without.token_forward_flops, 2.0 * shared,
                ratio_tolerance * with.token_forward_flops);
    assert_near(with.erc_overhead, without.erc_overhead, 0);
    assert_true(with.bytes.activations >=
                without.bytes.activations + (size_t)(3 * 2 * 32 * 40) * sizeof(float));
}

/* With erc.layers, half of the layers have half of the work. Shares of the hinges are checked. */
TEST(couples_some_layers)
{
    static char half[] = "0-1", all[] = "all";
    cpl_plan some, whole, none;
    cpl_plan_input input = small_case();
    input.model.n_layers = 4;
    input.erc.weight     = 0;
    assert_ok(cpl_plan_make(&none, &input));
    input.erc.weight = 0.5;
    input.erc.layers = all;
    assert_ok(cpl_plan_make(&whole, &input));
    input.erc.layers = half;
    assert_ok(cpl_plan_make(&some, &input));
    const double product = 2.0 * 36 * 20 * 24;
    assert_int_equal(whole.coupled_layers, 4);
    assert_int_equal(some.coupled_layers, 2);
    assert_int_equal(none.coupled_layers, 0);
    assert_near(whole.step_flops - none.step_flops, 4 * 3 * product,
                ratio_tolerance * none.step_flops);
    assert_near(some.step_flops - none.step_flops, 2 * 3 * product,
                ratio_tolerance * none.step_flops);
    assert_near(some.erc_share_all_active, 6 * product / (none.step_flops + 6 * product),
                ratio_tolerance);
    assert_near(some.erc_share_none_active, 2 * product / (none.step_flops + 2 * product),
                ratio_tolerance);
    assert_near(none.erc_share_all_active + none.erc_share_none_active, 0, 0);
    input.erc.activation = CPL_ERC_SWIGLU;
    input.erc.draws      = 5;
    assert_ok(cpl_plan_make(&whole, &input));
    assert_near(whole.erc_flops, 10 * product, ratio_tolerance * 10 * product);
    assert_near(whole.erc_token_equivalents, 10 * 6 * 6 / 3.0, ratio_tolerance * 120);
}

/* The prediction equals what the allocating functions take. */
TEST(predicts_what_is_allocated)
{
    for (int variant = 0; variant < 4; variant++) {
        const bool bf16 = variant % 2 == 1;
        cpl_plan plan;
        cpl_plan_input input = variant < 2 ? small_case() : aoe_of_shape(&shapes[0]);
        cpl_backend be;
        cpl_model model;
        cpl_pass pass;
        input.compute = input.model.activations = bf16 ? CPL_BF16 : CPL_F32;
        assert_ok(cpl_plan_make(&plan, &input));
        cpl_backend_cpu(&be, input.compute, input.n_threads);
        assert_ok(cpl_model_init(&model, &be, &input.model, input.seq_len));
        assert_int_equal(cpl_tensor_arena_bytes(&model.arena),
                         plan.bytes.weights + plan.bytes.compute_copies);
        assert_int_equal(plan.bytes.compute_copies > 0, bf16);
        cpl_work work = cpl_pass_work(&input.model, 2 * 16, true);
        assert_ok(cpl_backend_reserve(&be, &work));
        assert_int_equal(be.scratch_bytes, plan.bytes.scratch);
        cpl_tensor_arena arena = cpl_tensor_arena_measure();
        cpl_pass_take(&pass, &arena, &input.model, 2, 16, true, false);
        assert_ok(cpl_tensor_arena_init(&arena, &be, &arena, "a pass"));
        cpl_pass_take(&pass, &arena, &input.model, 2, 16, true, false);
        assert_int_equal(pass.attention[0].q.dtype, input.compute);
        assert_int_equal(cpl_tensor_arena_bytes(&arena), plan.bytes.activations);
        cpl_tensor_arena_free(&arena);
        assert_true(plan.bytes.gradients >= (size_t)plan.total_parameters * sizeof(float));
        assert_int_equal(plan.bytes.moments, 2 * plan.bytes.gradients);
        assert_true(plan.bytes.total > plan.bytes.activations);
        cpl_model_free(&model);
        cpl_backend_free(&be);
    }
}

TEST(refuses_what_no_machine_holds)
{
    cpl_plan plan;
    cpl_plan_input input  = small_case();
    input.model.n_experts = 65535;
    input.model.n_layers  = 65535;
    input.model.d_model = input.model.d_expert = 1048572;
    assert_fails(CPL_ERR_MEMORY, "not enough memory", cpl_plan_make(&plan, &input));
    input                 = aoe_of_shape(&shapes[0]); /* it has hidden vectors */
    input.model.n_experts = 65535;
    input.model.aoe_rank  = 1048576;
    input.micro_sequences = 1048576;
    assert_fails(CPL_ERR_MEMORY, "not enough memory", cpl_plan_check_size(&input));
    input                 = small_case();
    input.model.n_shared  = 65535;
    input.model.d_expert  = 1048576;
    input.model.n_experts = input.model.top_k = 1;
    input.micro_sequences                     = 1048576;
    assert_fails(CPL_ERR_MEMORY, "not enough memory", cpl_plan_check_size(&input));
    input       = small_case();
    input.ranks = input.expert_parallel = 4;
    assert_fails(CPL_ERR_INPUT, "must divide the number of ranks, 4, and model.num_experts, 6",
                 cpl_plan_make(&plan, &input));
    input                 = small_case();
    input.model.n_experts = 60000;
    input.model.d_expert  = 60000;
    input.model.d_model   = 6000;
    input.micro_sequences = 1;
    assert_ok(cpl_plan_make(&plan, &input));
    assert_fails(CPL_ERR_MEMORY, "not enough memory", cpl_plan_check_memory(&plan, 1));
    input = small_case(); /* it takes some hundred KB */
    assert_ok(cpl_plan_make(&plan, &input));
    assert_ok(cpl_plan_check_memory(&plan, 2));
    assert_fails(CPL_ERR_MEMORY,
                 "training with these settings on the 2000000000 ranks of this machine needs",
                 cpl_plan_check_memory(&plan, 2000000000));
}

TEST(says_how_a_variant_differs)
{
    cpl_plan plan;
    cpl_text out         = {0};
    cpl_plan_input input = aoe_of_shape(&shapes[0]);
    assert_ok(cpl_plan_make(&plan, &input));
    cpl_plan_text(&out, &plan);
    assert_ok(cpl_text_status(&out));
    assert_non_null(strstr(out.bytes, "Autonomy-of-Experts of rank 11"));
    char share[64];
    snprintf(share, sizeof share, "adds %.1f %% to the step's work", 100 * plan.aoe.share_of_step);
    assert_non_null(strstr(out.bytes, share));
    assert_null(strstr(out.bytes, "coupling loss, predicted"));
    cpl_text_free(&out);
    json_t *object = cpl_plan_json(&plan);
    json_t *beside = json_object_get(object, "aoe_beside_softmax");
    assert_int_equal(integer(beside, "extra_total_bytes"), plan.aoe.total_bytes);
    assert_int_equal(integer(beside, "extra_parameters"), plan.aoe.parameters);
    assert_string_equal(json_string_value(json_object_get(object, "router")), "aoe");
    json_decref(object);
}

TEST(says_it_in_words)
{
    cpl_plan plan;
    cpl_text out         = {0};
    cpl_plan_input input = small_case();
    input.model.n_layers = 1000;
    assert_ok(cpl_plan_make(&plan, &input));
    cpl_plan_text(&out, &plan);
    assert_ok(cpl_text_status(&out));
    /* 2 * 96 * 24 + 24 + 1000 (2 * 24 + 2 * 24 + 4 * 576 + 144 + 6 * 3 * 480) */
    assert_non_null(strstr(out.bytes, "11,188,632"));
    assert_non_null(strstr(out.bytes, "1000 layers"));
    cpl_text_free(&out);
}

TEST(reads_what_the_system_says)
{
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
    assert_fails(CPL_ERR_MEMORY, "not enough memory: this needs 2.0 GiB, and 1.0 GiB are free",
                 cpl_memory_compare(2147483648.0, 1073741824.0, "this"));
}
