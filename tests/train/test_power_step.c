/* test_power_step.c - a training step with model.router mpi against the same step of a model whose
 * softmax router has the rows R': losses are equal, and the gradients of R and W_g follow from those
 * of R' and W_g by the chain rule in double (docs/method.md 2.6). */
#include "train/one_step.h"

enum { WIDTH = 8, EXPERT = 3, LAYERS = 2, N = 4, B = 4, S = 6, ROWS = N * WIDTH };
enum { GATES = N * EXPERT * WIDTH };

static const double TOLERANCE = 2e-5; /* relative to the largest number of a tensor */

static void configure(cpl_settings *s, const char *router, const char *const *more)
{
    static const char *const base[] =
        LIST("model.vocab_size=10", "model.hidden_size=8", "model.intermediate_size=3",
             "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.num_experts=4",
             "model.num_experts_per_tok=2", "data.batch_tokens=24", "orth.weight=0.3",
             "z.weight=0.1", "balance.weight=0.2", "erc.weight=1", "erc.alpha=0.2");
    *s = default_settings();
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) set(s, base[i]);
    set_to(s, "model", "router", router);
    for (; *more; more++) set(s, *more);
    if (strcmp(router, "mpi") == 0) set(s, "model.router_scale=3");
    s->data.seq_len = S;
    assert_ok(cpl_model_resolve(&s->model));
    assert_ok(cpl_aux_resolve(&s->losses, &s->model));
}

static void begin(world *w, const char *router, const char *const *more, bool poisoned)
{
    memset(w, 0, sizeof *w);
    configure(&w->settings, router, more);
    begin_world(w, 2, poisoned);
}

/* Computes the gradient of two micro-batches. */
static void run_step(world *w, bool with_figures)
{
    int32_t ids[B * S], target[B * S];
    for (int i = 0; i < B * S; i++) ids[i] = (i * i + 3 * i + 1) % 10;
    for (int i = 0; i < B * S; i++) target[i] = i % S == S - 1 ? -1 : ids[i + 1];
    const cpl_step_batch batch = {ids, target, NULL, B, B * (S - 1)};
    compute_gradient(w, &batch, 1, with_figures);
}

/* Gives the twin the rows that score tokens, and all other weights. */
static void copy_rows(world *twin, world *w)
{
    for (int64_t l = 0; l < LAYERS; l++)
        twin->be->ops->put(twin->be, twin->model.master.layer[l].router,
                           seen(w->be, w->model.master.layer[l].router).storage);
}

/* ---- the chain rule ---- */

/* Sets h = W x and y = W^T h for W [D,d]. */
static void iterate(double y[WIDTH], double h[EXPERT], const float *W, const double x[WIDTH])
{
    for (int k = 0; k < WIDTH; k++) y[k] = 0;
    for (int i = 0; i < EXPERT; i++) {
        h[i] = 0;
        for (int k = 0; k < WIDTH; k++) h[i] += (double)W[i * WIDTH + k] * x[k];
        for (int k = 0; k < WIDTH; k++) y[k] += h[i] * (double)W[i * WIDTH + k];
    }
}

/* Sets dR [ROWS] and adds to dW [GATES] the gradients that follow from drows [ROWS]. */
static void chain(double *dR, double *dW, const float *drows, const float *R, const float *W)
{
    for (int e = 0; e < N; e++, R += WIDTH, W += EXPERT * WIDTH, drows += WIDTH, dR += WIDTH) {
        double x[WIDTH], h[EXPERT], G[WIDTH], dG[WIDTH], dh[EXPERT], square = 0, along = 0;
        for (int k = 0; k < WIDTH; k++) x[k] = (double)R[k];
        iterate(G, h, W, x);
        for (int k = 0; k < WIDTH; k++) square += G[k] * G[k];
        for (int k = 0; k < WIDTH; k++) along += G[k] * (double)drows[k] / square;
        for (int k = 0; k < WIDTH; k++)
            dG[k] = 3 / sqrt(N) / sqrt(square) * ((double)drows[k] - along * G[k]);
        iterate(dR, dh, W, dG);
        for (int i = 0; i < EXPERT * WIDTH; i++)
            dW[e * EXPERT * WIDTH + i] +=
                h[i / WIDTH] * dG[i % WIDTH] + dh[i / WIDTH] * x[i % WIDTH];
    }
}

static void assert_gradient(world *w, cpl_tensor got, const double *want)
{
    const cpl_tensor x = seen(w->be, got);
    double most        = 0;
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) most = fmax(most, fabs(want[i]));
    assert_true(most > 0);
    for (int64_t i = 0; i < cpl_tensor_count(x); i++)
        assert_near((double)cpl_f32(x)[i], want[i], TOLERANCE * most);
}

/* Compares layer l. `constant` is the twin without the gradients for which the gates in R' are
 * constants. */
static void compare_layer(world *w, world *twin, world *constant, int64_t l)
{
    const cpl_layer_params *at = &w->model.master.layer[l], *dw = &w->grads.layer[l];
    const cpl_tensor R = seen(w->be, at->router_original), W = seen(w->be, at->w_gate);
    const cpl_tensor d = seen(twin->be, twin->grads.layer[l].router);
    const cpl_tensor c = seen(constant->be, constant->grads.layer[l].router);
    const cpl_tensor g = seen(twin->be, twin->grads.layer[l].w_gate);
    double dR[ROWS], dW[GATES], unused[GATES] = {0}, none[ROWS];
    for (int i = 0; i < GATES; i++) dW[i] = (double)cpl_f32(g)[i];
    chain(dR, unused, cpl_f32(d), cpl_f32(R), cpl_f32(W));
    chain(none, dW, cpl_f32(c), cpl_f32(R), cpl_f32(W));
    assert_gradient(w, dw->router_original, dR);
    assert_gradient(w, dw->w_gate, dW);
    const cpl_tensor left = seen(w->be, dw->router);
    for (int i = 0; i < ROWS; i++) assert_true(cpl_f32(left)[i] == 0);
    const cpl_tensor up = seen(w->be, dw->w_up), same = seen(twin->be, twin->grads.layer[l].w_up);
    assert_memory_equal(up.storage, same.storage, cpl_tensor_bytes(up));
}

static void check(const char *const *more, bool alone, bool with_figures, bool poisoned)
{
    const char *silent[8] = {NULL};
    int n                 = 0;
    for (; more[n]; n++) silent[n] = more[n];
    if (alone) silent[n] = "erc.weight=0";
    world w, twin, constant;
    begin(&w, "mpi", more, poisoned);
    begin(&twin, "softmax", more, poisoned);
    begin(&constant, "softmax", silent, poisoned);
    copy_rows(&twin, &w);
    copy_rows(&constant, &w);
    run_step(&w, with_figures);
    run_step(&twin, with_figures);
    run_step(&constant, false);
    assert_true(w.metrics.loss_total == twin.metrics.loss_total);
    assert_true(w.metrics.aux[CPL_AUX_ERC].value > 0 || !w.metrics.aux[CPL_AUX_ERC].computed);
    for (int i = 0; i < CPL_N_AUX_LOSSES; i++)
        assert_true(w.metrics.aux[i].value == twin.metrics.aux[i].value);
    for (int64_t l = 0; l < LAYERS; l++) compare_layer(&w, &twin, &constant, l);
    end(&w);
    end(&twin);
    end(&constant);
}

TEST(all_losses_reach_the_rows_and_the_gates)
{
    const char *const plain[] = {NULL}, *const tokenless[] = {"erc.weight=0", NULL};
    for (int i = 0; i < 4; i++) check(plain, false, i % 2, i / 2);
    check(tokenless, false, false, false);
}

TEST(proxies_of_the_rows)
{
    const char *const centred[] = {"erc.proxy=centred", "erc.activation=swiglu", NULL};
    for (int i = 0; i < 2; i++) check(centred, false, i, true);
}

/* With erc.gradient router the gates are constants, in R' too. With experts R' is a constant. */
TEST(one_side)
{
    const char *const router[]  = {"erc.gradient=router", NULL};
    const char *const experts[] = {"erc.gradient=experts", NULL};
    for (int i = 0; i < 2; i++) check(router, true, i, false);
    for (int i = 0; i < 2; i++) check(experts, false, i, false);
}

/* Figures compare the coupling gradient of the trained rows with that of all other losses. */
TEST(figures)
{
    const char *const plain[] = {NULL};
    world w;
    begin(&w, "mpi", plain, false);
    run_step(&w, true);
    for (int l = 0; l < LAYERS; l++) {
        assert_true(w.metrics.layer[l].router_ratio > 0 && w.metrics.layer[l].gate_ratio > 0);
        assert_true(fabs(w.metrics.layer[l].router_cos) <= 1);
    }
    end(&w);
}
