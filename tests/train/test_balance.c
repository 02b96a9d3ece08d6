/* test_balance.c - balance.scope: gradients of a tiny model against PyTorch in float64
 * (tests/golden/balance), scopes that must give equal bits, and the work of a step. */
#include "tensor/backend/backend.h"
#include "tensor/poison/poison.h"
#include "train/golden_model.h"

/* Sizes of the model, as in make_reference.py. */
enum { WIDTH = 8, LAYERS = 2, N = 4, K = 2, B = 4, S = 6, MICRO = 2 };

static const double limit = 1e-4; /* largest norm(got - ref) / norm(ref), see test_golden.c */

typedef struct variant {
    const char *router, *scope;
    const char *weight; /* the loss's weight */
    int64_t micro;
    bool poisoned;
} variant;

/* A model with one step. `end` releases all memory. */
typedef struct world {
    cpl_settings settings;
    cpl_backend cpu, poison, *be;
    cpl_model model;
    cpl_step step;
    cpl_tensor_arena arena;
    cpl_params grads;
    cpl_metrics metrics;
    int64_t layers_run; /* forward passes through a layer so far */
} world;

static void count_layer(void *ctx, int64_t layer, const cpl_moe_kept *kept)
{
    (void)layer, (void)kept;
    ((world *)ctx)->layers_run++;
}

static const cpl_safetensors *reference(void)
{
    static cpl_safetensors *file;
    if (!file) assert_ok(cpl_safetensors_open(&file, golden_path("balance/reference.safetensors")));
    return file;
}

static float *numbers(const char *name, int64_t *count)
{
    return golden_numbers(reference(), name, count);
}

static void configure(cpl_settings *s, const variant *v)
{
    static const char *const base[] =
        LIST("model.vocab_size=10", "model.hidden_size=8", "model.intermediate_size=2",
             "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.num_experts=4",
             "model.num_experts_per_tok=2", "erc.weight=0", "z.weight=0", "orth.weight=0");
    *s = default_settings();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) set(s, base[i]);
    set_to(s, "model", "router", v->router);
    set_to(s, "balance", "scope", v->scope);
    set_to(s, "balance", "weight", v->weight);
    s->data.seq_len = S;
    assert_ok(cpl_model_resolve(&s->model));
}

static void load_weights(cpl_model *model)
{
    int64_t count = 0, at = 0;
    float *all = numbers("weights", &count);
    for (int64_t i = 0; i < cpl_params_count(&model->config); i++) {
        cpl_param p  = cpl_params_at(&model->config, i);
        cpl_tensor t = *cpl_params_tensor(&model->master, &p);
        model->be->ops->put(model->be, t, all + at);
        at += cpl_tensor_count(t);
    }
    assert_int_equal(at, count);
    cpl_model_refresh(model);
    free(all);
}

static void run_step(world *w)
{
    int32_t ids[B * S], target[B * S];
    assert_ok(cpl_safetensors_read_raw(reference(), cpl_safetensors_find(reference(), "ids"), ids,
                                       0, sizeof ids));
    for (int i = 0; i < B * S; i++) target[i] = i % S == S - 1 ? -1 : ids[i + 1];
    const cpl_step_batch batch = {ids, target, NULL, B, B * (S - 1)};
    w->step.pass.on_layer      = count_layer;
    w->step.pass.ctx           = w;
    const int64_t before       = cpl_alloc_count();
    cpl_step_gradient(&w->step, &w->model, &w->grads, &w->settings, &batch, false, false,
                      &w->metrics);
    assert_int_equal(cpl_alloc_count(), before); /* nothing is allocated inside a step */
    assert_ok(w->be->ops->sync(w->be));
}

static void take(world *w)
{
    cpl_params_take(&w->grads, &w->arena, &w->settings.model, CPL_F32);
    cpl_metrics_take(&w->metrics, &w->arena.host, &w->settings.model, 0);
}

static void begin(world *w, const variant *v)
{
    memset(w, 0, sizeof *w);
    configure(&w->settings, v);
    const cpl_model_settings *config = &w->settings.model;
    const cpl_work work              = cpl_step_work(&w->settings, config, v->micro);
    assert_ok(cpl_backend_open(w->be = &w->cpu, "cpu", CPL_F32, 2));
    if (v->poisoned) cpl_backend_poison(w->be = &w->poison, &w->cpu);
    assert_ok(cpl_backend_reserve(w->be, &work));
    assert_ok(cpl_model_init(&w->model, w->be, config, S));
    load_weights(&w->model);
    assert_ok(cpl_step_init(&w->step, w->be, &w->settings, config, v->micro, NULL));
    w->arena = cpl_tensor_arena_measure();
    take(w);
    assert_ok(cpl_tensor_arena_init(&w->arena, w->be, &w->arena, "gradients and metrics"));
    take(w);
    run_step(w);
}

static void end(world *w)
{
    drop(&w->settings);
    cpl_tensor_arena_free(&w->arena);
    cpl_step_free(&w->step);
    cpl_model_free(&w->model);
    cpl_backend_free(w->be);
}

/* ---- golden ---- */

static void compare_gradients(world *w, const char *name)
{
    int64_t count = 0, at = 0;
    float *want = numbers(name, &count);
    for (int64_t i = 0; i < cpl_params_count(&w->model.config); i++) {
        cpl_param p  = cpl_params_at(&w->model.config, i);
        cpl_tensor t = seen(w->be, *cpl_params_tensor(&w->grads, &p));
        golden_near(name, cpl_f32(t), want + at, cpl_tensor_count(t), limit, NULL);
        at += cpl_tensor_count(t);
    }
    assert_int_equal(at, count);
    free(want);
}

static void compare_with_reference(const variant *v)
{
    world w;
    char name[64];
    int64_t count = 0;
    begin(&w, v);
    const bool weighs = strcmp(v->weight, "0") != 0;
    snprintf(name, sizeof name, "%s.%s", v->router, weighs ? v->scope : "none");
    compare_gradients(&w, name);
    snprintf(name, sizeof name, "%s.%s.balance", v->router, v->scope);
    float *loss = numbers(name, &count);
    assert_near(w.metrics.aux[CPL_AUX_BALANCE].value, (double)*loss, limit * (double)*loss);
    free(loss);
    end(&w);
}

TEST(is_the_reference)
{
    static const char *const routers[] = {"softmax", "sigmoid"};
    static const char *const scopes[]  = {"micro", "sequence", "global"};
    static const char *const weights[] = {"0.5", "0"};
    for (int i = 0; i < 24; i++) {
        const variant v = {routers[i % 2], scopes[i / 2 % 3], weights[i / 6 % 2], MICRO, i >= 12};
        compare_with_reference(&v);
    }
}

/* The loss of a sequence, and the loss of the whole batch, do not depend on the micro-batches. */
TEST(does_not_depend_on_micro_batches)
{
    for (int64_t micro = 1; micro <= B; micro *= 2) {
        compare_with_reference(&(variant){"softmax", "sequence", "0.5", micro, false});
        compare_with_reference(&(variant){"sigmoid", "global", "0.5", micro, true});
    }
}

/* ---- equal bits ---- */

static void same_bits(const variant *a, const variant *b)
{
    world x, y;
    begin(&x, a);
    begin(&y, b);
    for (int64_t i = 0; i < cpl_params_count(&x.model.config); i++) {
        cpl_param p        = cpl_params_at(&x.model.config, i);
        const cpl_tensor t = seen(x.be, *cpl_params_tensor(&x.grads, &p));
        const cpl_tensor u = seen(y.be, *cpl_params_tensor(&y.grads, &p));
        assert_memory_equal(t.storage, u.storage, cpl_tensor_bytes(t));
    }
    const cpl_aux_metrics *m = x.metrics.aux, *n = y.metrics.aux;
    assert_memory_equal(&m[CPL_AUX_BALANCE].value, &n[CPL_AUX_BALANCE].value, sizeof(double));
    assert_memory_equal(&x.metrics.loss_total, &y.metrics.loss_total, sizeof(double));
    assert_int_equal(x.layers_run, y.layers_run);
    end(&x);
    end(&y);
}

TEST(a_span_of_one_pass_is_micro)
{
    static const char *const routers[] = {"softmax", "sigmoid"};
    for (int i = 0; i < 2; i++) {
        const char *r = routers[i];
        same_bits(&(variant){r, "global", "0.5", B, false},
                  &(variant){r, "micro", "0.5", B, false});
        same_bits(&(variant){r, "sequence", "0.5", 1, false},
                  &(variant){r, "micro", "0.5", 1, false});
        same_bits(&(variant){r, "auto", "0.5", MICRO, false},
                  &(variant){r, "micro", "0.5", MICRO, false});
    }
}

/* ---- the work of a step ---- */

/* Only the scope of the whole batch is counted ahead: with several micro-batches, for all but
 * micro-batch 0, and only for a gradient. */
TEST(counts_ahead_only_where_needed)
{
    static const struct {
        variant v;
        int64_t passes;
    } cases[] = {{{"softmax", "micro", "0.5", 1, false}, 4},
                 {{"softmax", "sequence", "0.5", 1, false}, 4},
                 {{"softmax", "global", "0.5", 1, false}, 7},
                 {{"softmax", "global", "0.5", MICRO, false}, 3},
                 {{"softmax", "global", "0.5", B, false}, 1},
                 {{"softmax", "global", "0", 1, false}, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        begin(&w, &cases[i].v);
        assert_int_equal(w.layers_run, cases[i].passes * LAYERS);
        for (int l = 0; l < LAYERS; l++) { /* each assignment is counted once */
            double all = 0;
            for (int e = 0; e < N; e++) all += w.metrics.counts[l * N + e];
            assert_near(all, B * S * K, 0);
        }
        end(&w);
    }
}

/* No state of a step stays in the next. Scope global without weight sums in the main loop. */
TEST(repeats_a_step)
{
    static const variant cases[] = {{"softmax", "micro", "0.5", MICRO, false},
                                    {"sigmoid", "sequence", "0.5", MICRO, false},
                                    {"softmax", "global", "0.5", MICRO, false},
                                    {"softmax", "global", "0", MICRO, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        begin(&w, &cases[i]);
        const double loss       = w.metrics.aux[CPL_AUX_BALANCE].value;
        const cpl_tensor router = w.grads.layer[0].router;
        float first[N * WIDTH];
        assert_int_equal(cpl_tensor_bytes(router), sizeof first);
        w.be->ops->get(w.be, first, router);
        w.be->ops->fill(w.be, router, 0);
        run_step(&w);
        assert_memory_equal(&w.metrics.aux[CPL_AUX_BALANCE].value, &loss, sizeof loss);
        assert_memory_equal(seen(w.be, router).storage, first, sizeof first);
        end(&w);
    }
}

TEST(takes_what_is_predicted)
{
    static const char *const scopes[] = {"micro", "global", "sequence"};
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        world w;
        const variant v = {"softmax", scopes[i], "0.5", MICRO, false};
        begin(&w, &v);
        bytes[i] = cpl_step_bytes(&w.settings, &w.settings.model, MICRO);
        assert_int_equal(cpl_tensor_arena_bytes(&w.step.arena), bytes[i]);
        end(&w);
    }
    assert_true(bytes[0] < bytes[1] && bytes[1] <= bytes[2]);
}

static int close_reference(void **state)
{
    (void)state;
    cpl_safetensors_close((cpl_safetensors *)(uintptr_t)reference());
    return 0;
}

TESTS_DO(after_all, close_reference);
