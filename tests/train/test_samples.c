/* test_samples.c - figures of held-out tokens (step_samples.c) against the tokens of a forward pass,
 * kept here one by one, with responses in double. */
#include <math.h>

#include "check.h"
#include "support/run_settings.h"
#include "tensor/backend/backend.h"
#include "train/step.h"

enum { LENGTH = 16, BATCH = 4, TOKENS = BATCH * LENGTH, LAYERS = 2, CHOSEN = 2 };

static const char *const sizes[] =
    LIST("model.hidden_size=12", "model.intermediate_size=8", "model.num_hidden_layers=2",
         "model.num_experts=6", "model.num_experts_per_tok=2", "model.num_attention_heads=2",
         "model.vocab_size=64", "data.seq_len=16", "data.batch_tokens=64", "compute.dtype=f32");

typedef struct run {
    cpl_settings settings;
    cpl_backend be;
    cpl_model model;
    cpl_step step;
    cpl_metrics metrics;
    cpl_layer_metrics layers[LAYERS];
    cpl_tensor_arena arena; /* of a second pass */
    cpl_pass pass;
    cpl_pool pool;
    cpl_token_samples own[LAYERS]; /* of the second pass, without scores and answers */
    int32_t ids[TOKENS];
} run;

/* Keeps all tokens of a layer. */
static void keep_all(void *ctx, int64_t l, const cpl_moe_kept *kept)
{
    run *r                     = ctx;
    cpl_backend *be            = &r->be;
    const cpl_token_samples *s = &r->own[l];
    be->ops->get(be, s->x, kept->b);
    be->ops->get(be, s->chosen, kept->expert);
}

static void take_pass(run *r, cpl_tensor_arena *arena)
{
    cpl_pass_take(&r->pass, arena, &r->settings.model, BATCH, LENGTH, false, false);
}

static run *run_new(const char *const *extra)
{
    run *r                    = calloc(1, sizeof *r);
    cpl_tensor_arena measured = cpl_tensor_arena_measure();
    r->settings               = default_settings();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) set(&r->settings, sizes[i]);
    for (int i = 0; extra && extra[i]; i++) set(&r->settings, extra[i]);
    set_data(&r->settings, "validation", "held-out");
    cpl_model_settings *c = &r->settings.model;
    assert_ok(cpl_model_resolve(c));
    const cpl_work work = cpl_step_work(&r->settings, c, BATCH);
    assert_ok(cpl_backend_open(&r->be, "cpu", CPL_F32, 1));
    assert_ok(cpl_backend_reserve(&r->be, &work));
    assert_ok(cpl_model_init(&r->model, &r->be, c, LENGTH));
    cpl_model_randomize(&r->model, 3);
    assert_ok(cpl_step_init(&r->step, &r->be, &r->settings, c, BATCH, NULL));
    take_pass(r, &measured);
    assert_ok(cpl_tensor_arena_init(&r->arena, &r->be, &measured, "a pass"));
    take_pass(r, &r->arena);
    r->metrics = (cpl_metrics){.n_layers = LAYERS, .n_experts = c->n_experts, .layer = r->layers};
    for (int l = 0; l < LAYERS; l++)
        assert_ok(cpl_token_samples_init(&r->own[l], &r->pool, TOKENS, c->n_experts, c->d_model,
                                         c->top_k));
    for (int i = 0; i < TOKENS; i++) r->ids[i] = (i * i + 7 * i + 3) % 64;
    r->be.ops->put(&r->be, r->step.tokens.ids, r->ids);
    return r;
}

static void run_gone(run *r)
{
    cpl_pool_free(&r->pool);
    cpl_tensor_arena_free(&r->arena);
    cpl_step_free(&r->step);
    cpl_model_free(&r->model);
    cpl_backend_free(&r->be);
    drop(&r->settings);
    free(r);
}

/* Computes scores and answers of the tokens of layer l in double. */
static void respond(run *r, int64_t l)
{
    const cpl_model_settings *c = &r->settings.model;
    const cpl_layer_params *w   = &r->model.master.layer[l];
    const int64_t n = c->n_experts, d = c->d_model, D = c->d_expert;
    float *R = calloc((size_t)(n * d), sizeof *R), *W = calloc((size_t)(n * D * d), sizeof *W);
    cpl_token_samples *s = &r->own[l];
    r->be.ops->get(&r->be, R, w->router);
    r->be.ops->get(&r->be, W, w->w_gate);
    for (int64_t t = 0; t < s->count; t++)
        for (int64_t i = 0; i < n; i++) {
            const float *x = s->x + t * d;
            double score = 0, squares = 0;
            for (int64_t k = 0; k < d; k++) score += (double)R[i * d + k] * (double)x[k];
            for (int64_t row = 0; row < D; row++) {
                double sum = 0;
                for (int64_t k = 0; k < d; k++)
                    sum += (double)W[(i * D + row) * d + k] * (double)x[k];
                squares += sum * sum;
            }
            s->score[t * n + i]  = (float)score;
            s->answer[t * n + i] = (float)sqrt(squares);
        }
    free(R);
    free(W);
}

/* Evaluates the batch, whose first `counted` tokens are held-out text. */
static void evaluate(run *r, int64_t counted)
{
    cpl_step_samples_begin(&r->step, LAYERS, counted);
    cpl_step_samples_watch(&r->step, 0, counted);
    cpl_model_forward(&r->model, &r->step.pass, r->step.tokens.ids, cpl_tensor_none(), NULL);
    assert_ok(cpl_step_samples_measure(&r->step, &r->model, &r->metrics));
}

TEST(figures_are_those_of_the_tokens_that_layers_read)
{
    run *r = run_new(NULL);
    for (int64_t counted = TOKENS; counted > 0; counted -= 3 * LENGTH) {
        evaluate(r, counted);
        assert_true(r->metrics.has_tokens);
        r->pass.on_layer = keep_all;
        r->pass.ctx      = r;
        cpl_model_forward(&r->model, &r->pass, r->step.tokens.ids, cpl_tensor_none(), NULL);
        for (int64_t l = 0; l < LAYERS; l++) {
            cpl_mean_token want;
            r->own[l].count = counted;
            respond(r, l);
            assert_ok(cpl_mean_token_of(&want, NULL, &r->be, &r->model.master.layer[l], &r->own[l],
                                        &r->step.answers, NULL));
            for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++) {
                assert_true(isfinite(want.value[f]) == isfinite(r->layers[l].tokens[f]));
                if (isfinite(want.value[f]))
                    assert_near(r->layers[l].tokens[f], want.value[f], 1e-5);
            }
            assert_true(isfinite(r->layers[l].tokens[CPL_MEAN_TOKEN_AGREEMENT_MU_OFF]));
        }
    }
    run_gone(r);
}

/* Of 2,048 tokens every second one is kept, with its choices. 32 passes read the same 64 tokens. */
TEST(a_part_of_many_tokens_is_evenly_spread)
{
    enum { ALL = 2048, KEPT = 1024 };
    run *r           = run_new(NULL);
    const int64_t d  = r->settings.model.d_model;
    r->pass.on_layer = keep_all;
    r->pass.ctx      = r;
    cpl_model_forward(&r->model, &r->pass, r->step.tokens.ids, cpl_tensor_none(), NULL);
    cpl_step_samples_begin(&r->step, LAYERS, ALL);
    for (int64_t place = 0; place < ALL; place += TOKENS) {
        cpl_step_samples_watch(&r->step, place, TOKENS);
        cpl_model_forward(&r->model, &r->step.pass, r->step.tokens.ids, cpl_tensor_none(), NULL);
    }
    for (int64_t l = 0; l < LAYERS; l++) {
        const cpl_token_samples *s = &r->step.samples[l], *own = &r->own[l];
        assert_int_equal(s->count, KEPT);
        for (int64_t i = 0; i < KEPT; i++) {
            const int64_t t = (2 * i + 1) % TOKENS;
            for (int64_t k = 0; k < d; k++) assert_near(s->x[i * d + k], own->x[t * d + k], 1e-6);
            assert_memory_equal(s->chosen + i * CHOSEN, own->chosen + t * CHOSEN,
                                CHOSEN * sizeof *s->chosen);
        }
    }
    run_gone(r);
}

/* The experts of a latent model read W_l x. With W_l that drops nothing the figures are those of
 * gates W W_l. */
TEST(latent_experts_have_figures)
{
    static const char *const latent[] = {"model.latent_dim=12", NULL};
    run *r                            = run_new(latent);
    float identity[12 * 12]           = {0};
    for (int i = 0; i < 12; i++) identity[13 * i] = 1;
    evaluate(r, TOKENS);
    for (int64_t l = 0; l < LAYERS; l++) {
        cpl_token_samples *s = &r->step.samples[l];
        cpl_layer_params w = r->model.master.layer[l], plain = w;
        cpl_mean_token found, want;
        r->be.ops->put(&r->be, w.latent_down, identity);
        plain.latent_down = cpl_tensor_none();
        cpl_token_samples_measure(s, &r->be, &w, &r->step.answers);
        assert_ok(cpl_mean_token_of(&found, NULL, &r->be, &w, s, &r->step.answers, NULL));
        cpl_token_samples_measure(s, &r->be, &plain, &r->step.answers);
        assert_ok(cpl_mean_token_of(&want, NULL, &r->be, &plain, s, &r->step.answers, NULL));
        for (int f = 0; f < CPL_MEAN_TOKEN_FIGURES; f++)
            assert_near(found.value[f], want.value[f], 1e-6);
    }
    run_gone(r);
}

/* A run that cannot have figures has none, and costs no memory. */
TEST(a_run_without_router_rows_has_no_figures)
{
    static const char *const aoe[] = {"model.router=aoe", "erc.weight=0", "model.aoe_rank=4", NULL};
    run *r                         = run_new(aoe);
    evaluate(r, TOKENS);
    assert_true(!r->metrics.has_tokens && !r->step.samples);
    run_gone(r);
}
