/* test_tokens.c - the moving means of erc.proxy tokens over steps of a tiny model, and the loss that
 * uses them. */
#include "couplet.h"
#include "train/one_step.h"

enum { WIDTH = 8, LAYERS = 2, N = 4, B = 4, S = 6, STEPS = 4, ROW = WIDTH + 1 };

static const double TOLERANCE = 1e-6; /* some roundings to F32 of numbers of size 1 */

typedef struct variant {
    const char *proxy, *scope;
    int64_t micro;
    bool poisoned;
} variant;

static void configure(cpl_settings *s, const variant *v)
{
    static const char *const base[] = LIST(
        "model.vocab_size=10", "model.hidden_size=8", "model.intermediate_size=2",
        "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.num_experts=4",
        "model.num_experts_per_tok=2", "erc.weight=1", "erc.noise=none", "data.batch_tokens=24");
    *s = default_settings();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) set(s, base[i]);
    set_to(s, "erc", "proxy", v->proxy);
    set_to(s, "balance", "scope", v->scope);
    s->data.seq_len = S;
    assert_ok(cpl_model_resolve(&s->model));
    assert_ok(cpl_aux_resolve(&s->losses, &s->model));
}

static void begin(world *w, const variant *v)
{
    memset(w, 0, sizeof *w);
    configure(&w->settings, v);
    begin_world(w, v->micro, v->poisoned);
}

/* Computes the gradient of step number `number`, whose tokens depend on it. */
static void run_step(world *w, int number)
{
    int32_t ids[B * S], target[B * S];
    for (int i = 0; i < B * S; i++) ids[i] = (i * i + 3 * i * number + number) % 10;
    for (int i = 0; i < B * S; i++) target[i] = i % S == S - 1 ? -1 : ids[i + 1];
    const cpl_step_batch batch = {ids, target, NULL, B, B * (S - 1)};
    compute_gradient(w, &batch, number, false);
}

/* Sets out [ROW] to the means of x and |x|^2 over the tokens of the last pass. */
static void moments_of(world *w, double *out, int64_t l)
{
    const cpl_tensor b = seen(w->be, w->step.pass.moe[l].b);
    for (int k = 0; k < ROW; k++) out[k] = 0;
    for (int64_t i = 0; i < B * S * WIDTH; i++) {
        const double x = (double)cpl_f32(b)[i];
        out[i % WIDTH] += x / (B * S);
        out[WIDTH] += x * x / (B * S);
    }
}

static const float *means_of(world *w)
{
    return cpl_f32(seen(w->be, w->step.token_means));
}

/* The means are those of the textbook: decay 0.99, divided by 1 - 0.99^t. */
static void check_means(bool poisoned)
{
    world w;
    double average[LAYERS][ROW] = {{0}}, moments[ROW], left = 1;
    begin(&w, &(variant){"tokens", "micro", B, poisoned});
    for (int t = 1; t <= STEPS; t++) {
        run_step(&w, t);
        cpl_step_move_means(&w.step, &w.settings);
        left *= 0.99;
        for (int l = 0; l < LAYERS; l++) {
            moments_of(&w, moments, l);
            assert_near(moments[WIDTH], WIDTH, 0.05 * WIDTH); /* the weights of the norm are 1 */
            for (int k = 0; k < ROW; k++) {
                average[l][k] = 0.99 * average[l][k] + 0.01 * moments[k];
                assert_near((double)means_of(&w)[l * ROW + k], average[l][k] / (1 - left),
                            TOLERANCE * WIDTH);
            }
        }
    }
    end(&w);
}

TEST(the_means_are_moving_averages)
{
    check_means(false);
    check_means(true);
}

/* Global counting runs each micro-batch twice, and its tokens count once. */
TEST(the_means_do_not_depend_on_micro_batches)
{
    static const char *const scopes[] = {"micro", "global"};
    float want[LAYERS * ROW];
    for (int i = 0; i < 6; i++) {
        world w;
        begin(&w, &(variant){"tokens", scopes[i % 2], 1 << i / 2, false});
        run_step(&w, 1);
        cpl_step_move_means(&w.step, &w.settings);
        assert_int_equal(cpl_tensor_arena_bytes(&w.step.arena),
                         cpl_step_bytes(&w.settings, &w.settings.model, 1 << i / 2));
        if (i == 0) memcpy(want, means_of(&w), sizeof want);
        for (int k = 0; k < LAYERS * ROW; k++)
            assert_near((double)means_of(&w)[k], (double)want[k], TOLERANCE * WIDTH);
        end(&w);
    }
}

/* ---- the loss ---- */

static void assert_same_gradients(world *x, world *y, bool same)
{
    const cpl_tensor a = seen(x->be, x->grads.layer[0].router);
    const cpl_tensor b = seen(y->be, y->grads.layer[0].router);
    assert_true(!memcmp(a.storage, b.storage, cpl_tensor_bytes(a)) == same);
}

/* Returns the loss of layer l for the rows P, by the functions of couplet.h. */
static double loss_of(world *w, int64_t l)
{
    const float *mean  = means_of(w) + l * ROW;
    const cpl_tensor R = seen(w->be, w->model.master.layer[l].router);
    const cpl_tensor W = seen(w->be, w->model.master.layer[l].w_gate);
    const void *at[N];
    float P[N * WIDTH];
    double square = (double)mean[WIDTH];
    for (int k = 0; k < WIDTH; k++) square -= (double)mean[k] * (double)mean[k];
    assert_true(square > 0);
    assert_ok(cpl_erc_token_rows(P, cpl_f32(R), mean, sqrt(square), N, WIDTH));
    for (int e = 0; e < N; e++) at[e] = cpl_f32(W) + e * 2 * WIDTH;
    cpl_erc erc;
    cpl_erc_init(&erc);
    erc.n_experts = N, erc.d_model = WIDTH, erc.d_expert = 2;
    erc.router = P, erc.gate = (cpl_erc_matrices){at, WIDTH}, erc.noise = CPL_ERC_NOISE_NONE;
    assert_ok(cpl_erc_run(&erc));
    return erc.loss;
}

/* The first step is one without the loss. The next step uses the means of the first. */
TEST(the_loss_begins_with_the_second_step)
{
    world w, without;
    begin(&w, &(variant){"tokens", "micro", B, false});
    begin(&without, &(variant){"row", "micro", B, false});
    without.settings.losses.erc.weight = 0;
    run_step(&w, 1);
    run_step(&without, 1);
    assert_true(!w.metrics.aux[CPL_AUX_ERC].computed && w.metrics.aux[CPL_AUX_ERC].weight == 0);
    assert_same_gradients(&w, &without, true);
    cpl_step_move_means(&w.step, &w.settings);
    run_step(&w, 2);
    run_step(&without, 2);
    assert_same_gradients(&w, &without, false);
    for (int l = 0; l < LAYERS; l++) {
        const double want = loss_of(&w, l);
        assert_true(want > 0);
        assert_near(w.metrics.layer[l].aux[CPL_AUX_ERC], want, 1e-5 * want);
    }
    end(&w);
    end(&without);
}

/* Means of a checkpoint are taken over as they are, and refused if they are none. */
TEST(means_of_a_checkpoint)
{
    world w;
    float means[LAYERS * ROW];
    for (int i = 0; i < LAYERS * ROW; i++) means[i] = (float)i;
    begin(&w, &(variant){"tokens", "micro", B, false});
    w.be->ops->put(w.be, w.step.token_means, means);
    assert_ok(cpl_step_use_means(&w.step, 0, "FOLDER"));
    assert_true(cpl_step_waits_for_tokens(&w.step, &w.settings.losses.erc));
    assert_ok(cpl_step_use_means(&w.step, 7, "FOLDER"));
    assert_true(!cpl_step_waits_for_tokens(&w.step, &w.settings.losses.erc));
    assert_memory_equal(w.step.host_means, means, sizeof means);
    means[ROW] = NAN;
    w.be->ops->put(w.be, w.step.token_means, means);
    assert_fails(CPL_ERR_INPUT, "FOLDER: number 9 of erc.token_means is nan",
                 cpl_step_use_means(&w.step, 7, "FOLDER"));
    means[ROW]     = 0;
    means[ROW - 1] = -1;
    w.be->ops->put(w.be, w.step.token_means, means);
    assert_fails(CPL_ERR_INPUT, "number 8 of erc.token_means is -1",
                 cpl_step_use_means(&w.step, 7, "FOLDER"));
    end(&w);
}
