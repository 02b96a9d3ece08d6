/* test_moe.c - the experts' half of a layer with every kind of router: outputs and gradients
 * against the equations of moe.h written out in double. Gradients are central differences in
 * double. */
#include "model/moe.h"

#include "model/aux_losses.h"
#include "store/model_case.h"
#include "support/mirror.h"
#include "tensor/poison/poison.h"

enum { T = 8, d = 8, D = 5, n = 4, K = 2, MOST_R = 4, MOST_S = 10 };

static const double balance_weight = 0.3, z_weight = 0.2;

typedef struct variant {
    const char *name;
    cpl_router router;
    bool bias, renormalise;
    int64_t shared, rank, latent;
} variant;

static const variant variants[] = {
    {"softmax", CPL_ROUTER_SOFTMAX, false, false, 0, 0, 0},
    {"softmax, renormalised, shared", CPL_ROUTER_SOFTMAX, false, true, 1, 0, 0},
    {"sigmoid", CPL_ROUTER_SIGMOID, false, false, 0, 0, 0},
    {"sigmoid, bias, renormalised, shared", CPL_ROUTER_SIGMOID, true, true, 2, 0, 0},
    {"aoe", CPL_ROUTER_AOE, false, false, 0, 3, 0},
    {"aoe, renormalised, shared", CPL_ROUTER_AOE, false, true, 2, 4, 0},
    {"softmax, latent", CPL_ROUTER_SOFTMAX, false, false, 0, 0, 3},
    {"sigmoid, renormalised, shared, latent", CPL_ROUTER_SIGMOID, false, true, 1, 0, 8},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

/* ---- the oracle ---- */

/* The layer's weights in double, one behind the other. Central differences change them. */
typedef struct numbers {
    double x[T * d], norm[d], router[n * d], gate[n * D * d], gate_a[n * MOST_R * d],
        gate_b[n * D * MOST_R], up[n * D * d], down[n * d * D], shared_gate[MOST_S * d],
        shared_up[MOST_S * d], shared_down[d * MOST_S], latent_down[d * d], latent_up[d * d];
    double bias[n], C[T * d]; /* not differentiated */
} numbers;

typedef struct outcome {
    double out[T * d], probs[T * n], total;
    int expert[T * K], counts[n];
    double closest; /* gap between the K-th number and the next in the order of choice */
} outcome;

static double silu(double v)
{
    return v / (1 + exp(-v));
}

/* Computes y [rows] = W [rows,cols] v. */
static void times(double *y, const double *W, const double *v, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        y[i] = 0;
        for (int64_t k = 0; k < cols; k++) y[i] += W[i * cols + k] * v[k];
    }
}

/* Adds to y [size] an expert's output for b [size], times weight. */
static void mlp(double *y, const double *gate, const double *up_matrix, const double *down,
                const double *b, double weight, int64_t width, int64_t size)
{
    double up[MOST_S], act[MOST_S], part[d];
    times(up, up_matrix, b, width, size);
    for (int64_t i = 0; i < width; i++) act[i] = silu(gate[i]) * up[i];
    times(part, down, act, size, width);
    for (int i = 0; i < size; i++) y[i] += weight * part[i];
}

/* Computes the gate of expert e for its input b [size], from b or from h. */
static void gate_of(double *gate, const numbers *w, const variant *v, const double *b,
                    const double *h, int e, int64_t size)
{
    if (v->router == CPL_ROUTER_AOE)
        times(gate, w->gate_b + e * D * v->rank, h + e * v->rank, D, v->rank);
    else
        times(gate, w->gate + e * D * size, b, D, size);
}

static void logits_of(double *logits, double *h, const numbers *w, const variant *v,
                      const double *b)
{
    if (v->router != CPL_ROUTER_AOE) {
        times(logits, w->router, b, n, d);
        return;
    }
    times(h, w->gate_a, b, n * v->rank, d);
    for (int e = 0; e < n; e++) {
        double squares = 0;
        for (int i = 0; i < v->rank; i++) squares += pow(h[e * v->rank + i], 2);
        logits[e] = sqrt(squares);
    }
}

static double log_sum(const double *logits)
{
    double sum = 0;
    for (int e = 0; e < n; e++) sum += exp(logits[e]);
    return log(sum);
}

/* Chooses the K largest of `by`, or `held` if it is not NULL. Returns the gap behind them. */
static double choose(int *expert, const double *by, const int *held)
{
    double least = INFINITY, next = -INFINITY;
    bool taken[n] = {false};
    for (int k = 0; k < K; k++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || by[e] > by[best])) best = e;
        expert[k]        = held ? held[k] : best;
        taken[expert[k]] = true;
        least            = fmin(least, by[expert[k]]);
    }
    for (int e = 0; e < n; e++)
        if (!taken[e]) next = fmax(next, by[e]);
    return least - next;
}

static void token(outcome *o, double *z, double P[n], const numbers *w, const variant *v, int t,
                  const int *held)
{
    double b[d], h[n * MOST_R] = {0}, logits[n], by[n], gate[MOST_S], mean = 0, sum = 0, all = 0;
    double *p = o->probs + t * n, *y = o->out + t * d;
    int *expert = o->expert + t * K;
    for (int i = 0; i < d; i++) mean += pow(w->x[t * d + i], 2) / d;
    for (int i = 0; i < d; i++) b[i] = w->norm[i] * w->x[t * d + i] / sqrt(mean + 1e-5);
    logits_of(logits, h, w, v, b);
    const double lse = log_sum(logits);
    for (int e = 0; e < n; e++) {
        p[e]  = v->router == CPL_ROUTER_SIGMOID ? 1 / (1 + exp(-logits[e])) : exp(logits[e] - lse);
        by[e] = p[e] + (v->bias ? w->bias[e] : 0);
        all += p[e];
    }
    o->closest = fmin(o->closest, choose(expert, by, held ? held + t * K : NULL));
    for (int k = 0; k < K; k++) sum += p[expert[k]], o->counts[expert[k]]++;
    for (int e = 0; e < n; e++) P[e] += p[e] / all / T;
    *z += lse * lse / T;
    const int64_t size = v->latent ? v->latent : d;
    double in[d] = {0}, mixed[d] = {0}, back[d];
    memcpy(in, b, sizeof in);
    if (v->latent) times(in, w->latent_down, b, size, d);
    for (int k = 0; k < K; k++) {
        int e = expert[k];
        gate_of(gate, w, v, in, h, e, size);
        mlp(mixed, gate, w->up + e * D * size, w->down + e * size * D, in,
            p[e] / (v->renormalise ? sum : 1), D, size);
    }
    memcpy(back, mixed, sizeof back);
    if (v->latent) times(back, w->latent_up, mixed, d, size);
    for (int i = 0; i < d; i++) y[i] = w->x[t * d + i] + back[i];
    times(gate, w->shared_gate, b, v->shared * D, d);
    mlp(y, gate, w->shared_up, w->shared_down, b, 1, v->shared * D, d);
}

/* Computes total = sum C out + balance + z. A router without the z-loss has no z. */
static outcome oracle(const numbers *w, const variant *v, const outcome *held)
{
    outcome o = {.closest = INFINITY};
    double z = 0, P[n] = {0};
    for (int t = 0; t < T; t++) token(&o, &z, P, w, v, t, held ? held->expert : NULL);
    const int *counts = held ? held->counts : o.counts;
    for (int e = 0; e < n; e++) o.total += balance_weight * n * counts[e] * P[e] / (T * K);
    if (v->router != CPL_ROUTER_SIGMOID) o.total += z_weight * z;
    for (int i = 0; i < T * d; i++) o.total += w->C[i] * o.out[i];
    return o;
}

/* ---- the layer ---- */

typedef struct layer {
    cpl_model_settings config;
    cpl_backend cpu, be;
    cpl_tensor_arena arena;
    cpl_params w, dw;
    cpl_moe_kept kept;
    cpl_moe_scratch scratch;
    cpl_tensor x, dx, out;
} layer;

static cpl_model_settings config_of(const variant *v)
{
    cpl_model_settings c = small_config();
    c.d_model = d, c.d_expert = D, c.n_experts = n, c.top_k = K, c.n_layers = 1, c.n_heads = 2;
    c.router = (int)v->router, c.router_bias = v->bias, c.norm_topk = v->renormalise;
    c.n_shared = v->shared, c.d_latent = v->latent;
    if (v->rank) c.aoe_rank = v->rank;
    assert_ok(cpl_model_resolve(&c));
    return c;
}

static void take(layer *l, cpl_tensor_arena *arena)
{
    cpl_params_take(&l->w, arena, &l->config, CPL_F32);
    cpl_params_take(&l->dw, arena, &l->config, CPL_F32);
    cpl_moe_take(&l->kept, arena, &l->config, T, true, NULL);
    cpl_moe_scratch_take(&l->scratch, arena, &l->config, T, true);
    l->scratch.db = cpl_tensor_take_2d(arena, T, l->config.d_model);
    l->x          = cpl_tensor_take_2d(arena, T, d);
    l->dx         = cpl_tensor_take_2d(arena, T, d);
    l->out        = cpl_tensor_take_2d(arena, T, d);
}

static layer *layer_of(const variant *v)
{
    layer *l      = calloc(1, sizeof *l);
    l->config     = config_of(v);
    cpl_work work = cpl_pass_work(&l->config, T, true);
    assert_ok(cpl_backend_open(&l->cpu, "cpu", CPL_F32, 2));
    cpl_backend_poison(&l->be, &l->cpu);
    assert_ok(cpl_backend_reserve(&l->be, &work));
    l->arena = cpl_tensor_arena_measure();
    take(l, &l->arena);
    assert_ok(cpl_tensor_arena_init(&l->arena, &l->be, &l->arena, "a layer"));
    take(l, &l->arena);
    return l;
}

static void layer_gone(layer *l)
{
    cpl_tensor_arena_free(&l->arena);
    cpl_backend_free(&l->be);
    free(l);
}

/* ---- the layer and the oracle compared ---- */

/* A tensor of the layer and its numbers in the oracle. */
typedef struct pair {
    const char *name;
    cpl_tensor *w, *dw;
    double *at;
} pair;

enum { N_PAIRS = 12 };

static void pairs_of(pair p[N_PAIRS], layer *l, numbers *w)
{
    cpl_layer_params *a = l->w.layer, *b = l->dw.layer;
    const pair all[N_PAIRS] = {
        {"norm", &a->post_norm, &b->post_norm, w->norm},
        {"router", &a->router, &b->router, w->router},
        {"gate", &a->w_gate, &b->w_gate, w->gate},
        {"gate_a", &a->w_gate_a, &b->w_gate_a, w->gate_a},
        {"gate_b", &a->w_gate_b, &b->w_gate_b, w->gate_b},
        {"up", &a->w_up, &b->w_up, w->up},
        {"down", &a->w_down, &b->w_down, w->down},
        {"shared_gate", &a->shared_gate, &b->shared_gate, w->shared_gate},
        {"shared_up", &a->shared_up, &b->shared_up, w->shared_up},
        {"shared_down", &a->shared_down, &b->shared_down, w->shared_down},
        {"latent_down", &a->latent_down, &b->latent_down, w->latent_down},
        {"latent_up", &a->latent_up, &b->latent_up, w->latent_up},
    };
    memcpy(p, all, sizeof all);
}

static double drawn(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 33) / 0x1p31 * 2 - 1;
}

static int64_t numbers_in(cpl_tensor t)
{
    return t.storage ? cpl_tensor_count(t) : 0;
}

static void put_rounded(cpl_backend *be, cpl_tensor to, const double *from)
{
    float rounded[n * D * d];
    for (int64_t k = 0; k < numbers_in(to); k++) rounded[k] = (float)from[k];
    if (to.storage) be->ops->put(be, to, rounded);
}

/* Draws the same numbers, which F32 holds exactly, for the layer and the oracle. */
static void draw(layer *l, numbers *w, uint64_t seed)
{
    pair p[N_PAIRS];
    pairs_of(p, l, w);
    memset(w, 0, sizeof *w);
    for (int i = 0; i < N_PAIRS; i++) {
        for (int64_t k = 0; k < numbers_in(*p[i].w); k++)
            p[i].at[k] = (float)((i == 0) + 0.7 * drawn(&seed));
        put_rounded(&l->be, *p[i].w, p[i].at);
    }
    for (int i = 0; i < T * d; i++) {
        w->x[i] = (float)drawn(&seed);
        w->C[i] = (float)drawn(&seed);
    }
    put_rounded(&l->be, l->x, w->x);
    put_rounded(&l->be, l->dx, w->C);
    if (!l->config.router_bias) return;
    for (int e = 0; e < n; e++) w->bias[e] = (float)(0.8 * drawn(&seed));
    put_rounded(&l->be, l->w.layer->router_bias, w->bias);
}

static void forward(layer *l)
{
    cpl_moe_forward(&l->be, l->out, &l->kept, l->x, l->w.layer, &l->config, &l->scratch);
    assert_ok(l->be.ops->sync(&l->be));
}

/* Draws numbers that are far enough from a change of choice for every difference. */
static outcome draw_safely(layer *l, numbers *w, const variant *v)
{
    for (uint64_t seed = 1;; seed++) {
        assert_true(seed < 1000);
        draw(l, w, seed);
        outcome o = oracle(w, v, NULL);
        if (o.closest > 5e-3) return o;
    }
}

TEST(outputs_are_the_equations)
{
    for (int i = 0; i < N_VARIANTS; i++) {
        const variant *v = &variants[i];
        layer *l         = layer_of(v);
        numbers w;
        outcome want = draw_safely(l, &w, v);
        forward(l);
        const cpl_tensor out = seen(&l->be, l->out), probs = seen(&l->be, l->kept.probs);
        const cpl_tensor expert = seen(&l->be, l->kept.expert);
        const cpl_tensor counts = seen(&l->be, l->kept.counts);
        for (int k = 0; k < T * d; k++) assert_near((double)cpl_f32(out)[k], want.out[k], 1e-5);
        for (int k = 0; k < T * n; k++) assert_near((double)cpl_f32(probs)[k], want.probs[k], 1e-6);
        for (int k = 0; k < T * K; k++) assert_int_equal(cpl_i32(expert)[k], want.expert[k]);
        for (int e = 0; e < n; e++) assert_near((double)cpl_f32(counts)[e], want.counts[e], 0);
        layer_gone(l);
    }
}

static double slope(numbers *w, double *at, const variant *v, const outcome *held)
{
    const double h = 1e-5, was = *at;
    *at         = was + h;
    double up   = oracle(w, v, held).total;
    *at         = was - h;
    double down = oracle(w, v, held).total;
    *at         = was;
    return (up - down) / (2 * h);
}

TEST(gradients_are_differences)
{
    for (int i = 0; i < N_VARIANTS; i++) {
        const variant *v = &variants[i];
        layer *l         = layer_of(v);
        numbers w;
        pair p[N_PAIRS];
        outcome held               = draw_safely(l, &w, v);
        cpl_aux_grad_scales scales = {
            .balance_scale = cpl_aux_balance_scale(balance_weight, n, T, K),
            .z_scale       = v->router == CPL_ROUTER_SIGMOID ? 0 : (float)(z_weight / T)};
        forward(l);
        cpl_moe_backward(&l->be, l->dx, l->dw.layer, &l->kept, l->x, l->w.layer, &l->config, scales,
                         &l->scratch);
        assert_ok(l->be.ops->sync(&l->be));
        const cpl_tensor dx = seen(&l->be, l->dx);
        for (int k = 0; k < T * d; k++)
            assert_near((double)cpl_f32(dx)[k], slope(&w, &w.x[k], v, &held), 2e-5);
        pairs_of(p, l, &w);
        for (int t = 0; t < N_PAIRS; t++) {
            if (!p[t].w->storage) continue;
            const cpl_tensor dw = seen(&l->be, *p[t].dw);
            for (int64_t k = 0; k < numbers_in(dw); k++)
                assert_near((double)cpl_f32(dw)[k], slope(&w, &p[t].at[k], v, &held), 2e-5);
        }
        layer_gone(l);
    }
}

/* ---- an AoE layer equals a vanilla layer whose router gives the same norms ---- */

/* Solves b R^T = norms for R [n,d] and all T = d tokens by Gaussian elimination. */
static void solve_router(float *R, const float *b, const float *norms)
{
    double A[d][d + n];
    for (int t = 0; t < d; t++) {
        for (int i = 0; i < d; i++) A[t][i] = (double)b[t * d + i];
        for (int e = 0; e < n; e++) A[t][d + e] = (double)norms[t * n + e];
    }
    for (int c = 0; c < d; c++) {
        int best = c;
        for (int t = c; t < d; t++)
            if (fabs(A[t][c]) > fabs(A[best][c])) best = t;
        for (int k = 0; k < d + n; k++) {
            double other = A[c][k];
            A[c][k] = A[best][k], A[best][k] = other;
        }
        for (int t = 0; t < d; t++) {
            const double factor = t == c ? 0 : A[t][c] / A[c][c];
            for (int k = c; k < d + n; k++) A[t][k] -= factor * A[c][k];
        }
    }
    for (int e = 0; e < n; e++)
        for (int c = 0; c < d; c++) R[e * d + c] = (float)(A[c][d + e] / A[c][c]);
}

TEST(aoe_is_vanilla_with_those_scores)
{
    const variant *v = &variants[4], *vanilla = &variants[0];
    assert_int_equal((int)T, (int)d);
    layer *aoe = layer_of(v), *plain = layer_of(vanilla);
    numbers w;
    (void)draw_safely(aoe, &w, v);
    forward(aoe);
    put_rounded(&plain->be, plain->x, w.x);
    put_rounded(&plain->be, plain->w.layer->post_norm, w.norm);
    put_rounded(&plain->be, plain->w.layer->w_up, w.up);
    put_rounded(&plain->be, plain->w.layer->w_down, w.down);
    for (int e = 0; e < n; e++)
        for (int i = 0; i < D; i++)
            for (int k = 0; k < d; k++) {
                double sum = 0;
                for (int64_t c = 0; c < v->rank; c++)
                    sum +=
                        w.gate_b[(e * D + i) * v->rank + c] * w.gate_a[(e * v->rank + c) * d + k];
                w.gate[(e * D + i) * d + k] = sum;
            }
    put_rounded(&plain->be, plain->w.layer->w_gate, w.gate);
    float router[n * d];
    solve_router(router, cpl_f32(seen(&aoe->be, aoe->kept.b)),
                 cpl_f32(seen(&aoe->be, aoe->kept.norm)));
    plain->be.ops->put(&plain->be, plain->w.layer->router, router);
    forward(plain);
    const cpl_tensor expert     = seen(&plain->be, plain->kept.expert),
                     out        = seen(&plain->be, plain->out);
    const cpl_tensor its_expert = seen(&aoe->be, aoe->kept.expert),
                     its_out    = seen(&aoe->be, aoe->out);
    for (int k = 0; k < T * K; k++) assert_int_equal(cpl_i32(expert)[k], cpl_i32(its_expert)[k]);
    for (int k = 0; k < T * d; k++)
        assert_near((double)cpl_f32(out)[k], (double)cpl_f32(its_out)[k], 1e-4);
    layer_gone(aoe);
    layer_gone(plain);
}
