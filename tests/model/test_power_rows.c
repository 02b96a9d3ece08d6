/* test_power_rows.c - router rows by Manifold Power Iteration (model.router mpi): plain loops in
 * double and the model's functions against PyTorch in float64 (tests/golden/power), and models with such a
 * router. */
#include "store/model_case.h"
#include "support/mirror.h"
#include "tensor/golden.h"
#include "tensor/poison/poison.h"

static const double TOLERANCE = 1e-6, DOUBLE_TOLERANCE = 1e-12; /* relative, of norms */

static const char *const cases[] = {"plain", "scale", "wide", "zero"};
enum { N_CASES = sizeof cases / sizeof *cases };

typedef struct power_case {
    const char *name;
    int64_t n, d, D;
    double scale, *R, *gate, *drows, *rows, *dR, *dgate;
} power_case;

static double *widened(const cpl_safetensors *file, const char *path)
{
    const cpl_tensor x = golden_tensor(file, path);
    double *to         = new_doubles(cpl_tensor_count(x));
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) to[i] = (double)cpl_f32(x)[i];
    return to;
}

static power_case case_of(const char *name)
{
    power_case c          = {.name = name};
    cpl_safetensors *file = golden_open("power/reference.safetensors");
    const struct {
        const char *key;
        double **to;
        bool single;
    } all[] = {{"R", &c.R, true},        {"Wg", &c.gate, true}, {"drows", &c.drows, true},
               {"rows", &c.rows, false}, {"dR", &c.dR, false},  {"dWg", &c.dgate, false}};
    char path[64];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(path, sizeof path, "%s.%s", name, all[i].key);
        *all[i].to = all[i].single ? widened(file, path) : golden_doubles(file, path);
    }
    snprintf(path, sizeof path, "%s.scale", name);
    c.scale = *golden_doubles(file, path);
    snprintf(path, sizeof path, "%s.Wg", name);
    const uint64_t *shape = golden_entry(file, path)->shape;
    c.n = (int64_t)shape[0], c.D = (int64_t)shape[1], c.d = (int64_t)shape[2];
    cpl_safetensors_close(file);
    return c;
}

static void assert_tight(const power_case *c, const char *what, const double *got,
                         const double *want, int64_t count, double tolerance)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    if (!(sqrt(off) <= tolerance * sqrt(size)))
        fail_msg("%s: %s is off by %.3g of %.3g", c->name, what, sqrt(off), sqrt(size));
}

/* ---- plain loops in double ---- */

static double dot(const double *x, const double *y, int64_t count)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++) sum += x[k] * y[k];
    return sum;
}

/* Sets h [D] = W x and y [d] = W^T h for W [D,d]. */
static void iterate(double *y, double *h, const double *W, const double *x, int64_t D, int64_t d)
{
    for (int64_t k = 0; k < d; k++) y[k] = 0;
    for (int64_t i = 0; i < D; i++) {
        h[i] = dot(W + i * d, x, d);
        for (int64_t k = 0; k < d; k++) y[k] += h[i] * W[i * d + k];
    }
}

/* The rows of a case and the gradients of R and W_g. */
typedef struct outcome {
    double *rows, *dR, *dgate;
} outcome;

static void expert(const outcome *o, const power_case *c, int64_t e)
{
    const int64_t d = c->d, D = c->D;
    const double *R = c->R + e * d, *W = c->gate + e * D * d, *g = c->drows + e * d;
    double *h = new_doubles(D), *dh = new_doubles(D), *G = new_doubles(d), *dG = new_doubles(d);
    iterate(G, h, W, R, D, d);
    const double size  = sqrt(dot(G, G, d)),
                 by    = size > 0 ? c->scale / sqrt((double)c->n) / size : 0;
    const double along = size > 0 ? dot(g, G, d) / (size * size) : 0;
    for (int64_t k = 0; k < d; k++) o->rows[e * d + k] = by * G[k];
    for (int64_t k = 0; k < d; k++) dG[k] = by * (g[k] - along * G[k]);
    iterate(o->dR + e * d, dh, W, dG, D, d);
    for (int64_t i = 0; i < D; i++)
        for (int64_t k = 0; k < d; k++) o->dgate[(e * D + i) * d + k] = h[i] * dG[k] + dh[i] * R[k];
}

static outcome by_loops(const power_case *c)
{
    const outcome o = {new_doubles(c->n * c->d), new_doubles(c->n * c->d),
                       new_doubles(c->n * c->D * c->d)};
    for (int64_t e = 0; e < c->n; e++) expert(&o, c, e);
    return o;
}

static void assert_outcome(const power_case *c, const outcome *got, const outcome *want,
                           double tolerance)
{
    assert_tight(c, "R'", got->rows, want->rows, c->n * c->d, tolerance);
    assert_tight(c, "dR", got->dR, want->dR, c->n * c->d, tolerance);
    assert_tight(c, "dW_g", got->dgate, want->dgate, c->n * c->D * c->d, tolerance);
}

TEST(the_plain_loops_are_those_of_pytorch)
{
    for (int i = 0; i < N_CASES; i++) {
        const power_case c = case_of(cases[i]);
        const outcome o = by_loops(&c), want = {c.rows, c.dR, c.dgate};
        assert_outcome(&c, &o, &want, DOUBLE_TOLERANCE);
    }
}

/* ---- cpl_model_set_rows and cpl_model_rows_backward ---- */

/* A model of one layer whose router is that of a case. `end` releases all memory. */
typedef struct world {
    cpl_backend cpu, be;
    cpl_model model;
    cpl_tensor_arena arena;
    cpl_params grads;
} world;

static void put_doubles(cpl_backend *be, cpl_tensor to, const double *from)
{
    const cpl_tensor x = new_1d(CPL_F32, cpl_tensor_count(to));
    for (int64_t i = 0; i < cpl_tensor_count(to); i++) cpl_f32(x)[i] = (float)from[i];
    be->ops->put(be, to, x.storage);
}

static void begin(world *w, const power_case *c, cpl_dtype compute, int n_threads)
{
    cpl_model_settings config = small_config();
    config.n_layers = 1, config.n_heads = 1, config.n_kv_heads = 1, config.top_k = 1;
    config.d_model = c->d, config.d_expert = c->D, config.n_experts = c->n;
    config.router = CPL_ROUTER_MPI, config.router_scale = c->scale;
    const cpl_work work = cpl_pass_work(&config, 1, true);
    memset(w, 0, sizeof *w);
    assert_ok(cpl_backend_open(&w->cpu, "cpu", compute, n_threads));
    cpl_backend_poison(&w->be, &w->cpu);
    assert_ok(cpl_backend_reserve(&w->be, &work));
    assert_ok(cpl_model_init(&w->model, &w->be, &config, 1));
    w->arena = cpl_tensor_arena_measure();
    cpl_params_take(&w->grads, &w->arena, &config, CPL_F32);
    assert_ok(cpl_tensor_arena_init(&w->arena, &w->be, &w->arena, "gradients"));
    cpl_params_take(&w->grads, &w->arena, &config, CPL_F32);
    put_doubles(&w->be, w->model.master.layer->router_original, c->R);
    put_doubles(&w->be, w->model.master.layer->w_gate, c->gate);
    cpl_model_refresh(&w->model);
    cpl_model_set_rows(&w->model);
}

static void end(world *w)
{
    cpl_tensor_arena_free(&w->arena);
    cpl_model_free(&w->model);
    cpl_backend_free(&w->be);
}

/* Returns the numbers divided by `divisor`. */
static double *shares_of(cpl_backend *be, cpl_tensor t, double divisor)
{
    const cpl_tensor x = seen(be, t);
    double *to         = new_doubles(cpl_tensor_count(t));
    for (int64_t i = 0; i < cpl_tensor_count(t); i++) to[i] = (double)cpl_f32(x)[i] / divisor;
    return to;
}

/* Runs backward `times`, which adds. The last run leaves the gates out if `alone`. */
static outcome run(world *w, const power_case *c, int times, bool alone)
{
    cpl_layer_params *grads = w->grads.layer;
    for (int i = 0; i < times; i++) {
        const bool skips = alone && i + 1 == times;
        put_doubles(&w->be, grads->router, c->drows);
        cpl_model_rows_backward(&w->model, grads->router, grads->router_original,
                                skips ? cpl_tensor_none() : grads->w_gate, 0);
    }
    assert_ok(w->be.ops->sync(&w->be));
    const cpl_tensor left = seen(&w->be, grads->router);
    for (int64_t k = 0; k < c->n * c->d; k++) assert_true(cpl_f32(left)[k] == 0);
    return (outcome){shares_of(&w->be, w->model.master.layer->router, 1),
                     shares_of(&w->be, grads->router_original, times),
                     shares_of(&w->be, grads->w_gate, alone ? times - 1 : times)};
}

TEST(the_rows_and_their_gradients_are_those_of_pytorch)
{
    for (int i = 0; i < N_CASES; i++)
        for (int times = 1; times <= 3; times++, release_all(state)) {
            const power_case c = case_of(cases[i]);
            const outcome want = {c.rows, c.dR, c.dgate};
            world w;
            begin(&w, &c, CPL_F32, times);
            const outcome got = run(&w, &c, times, times == 2);
            assert_outcome(&c, &got, &want, TOLERANCE);
            end(&w);
        }
}

/* Products are in F32 for gates in bf16 too: the results are those of the rounded gates. */
TEST(gates_in_bf16)
{
    for (int i = 0; i < N_CASES; i++, release_all(state)) {
        power_case c = case_of(cases[i]);
        for (int64_t k = 0; k < c.n * c.D * c.d; k++)
            c.gate[k] = (double)cpl_bf16_to_f32(cpl_bf16_from_f32((float)c.gate[k]));
        const outcome want = by_loops(&c);
        world w;
        begin(&w, &c, CPL_BF16, 2);
        const outcome got = run(&w, &c, 1, false);
        assert_outcome(&c, &got, &want, TOLERANCE);
        end(&w);
    }
}

/* A row of zeros, and an expert whose gate is zero, have rows of zeros and no gradient. */
TEST(rows_without_a_direction)
{
    const power_case c = case_of("zero");
    world w;
    begin(&w, &c, CPL_F32, 2);
    const outcome o = run(&w, &c, 1, false);
    for (int e = 1; e <= 3; e += 2) {
        for (int64_t k = e * c.d; k < (e + 1) * c.d; k++) assert_true(o.rows[k] == 0);
        for (int64_t k = e * c.d; k < (e + 1) * c.d; k++) assert_true(o.dR[k] == 0);
        for (int64_t k = e * c.D * c.d; k < (e + 1) * c.D * c.d; k++) assert_true(o.dgate[k] == 0);
    }
    end(&w);
}

/* ---- models ---- */

static cpl_model_settings power_config(void)
{
    cpl_model_settings c = small_config();
    c.router = CPL_ROUTER_MPI, c.router_scale = 3;
    assert_ok(cpl_model_resolve(&c));
    return c;
}

/* The trained rows are drawn as the rows of a softmax router are, and the rows that score tokens
 * have one length. */
TEST(initial_rows)
{
    const cpl_model_settings c = power_config(), plain = small_config();
    model_case *m = model_drawn(&c, 5), *p = model_drawn(&plain, 5);
    for (int64_t l = 0; l < c.n_layers; l++) {
        const cpl_tensor R   = seen(&m->be, m->model.master.layer[l].router_original);
        const cpl_tensor own = seen(&m->be, m->model.compute.layer[l].router);
        const cpl_tensor old = seen(&p->be, p->model.master.layer[l].router);
        assert_memory_equal(R.storage, old.storage, cpl_tensor_bytes(old));
        for (int64_t e = 0; e < c.n_experts; e++) {
            double square = 0;
            for (int64_t k = e * c.d_model; k < (e + 1) * c.d_model; k++)
                square += pow((double)cpl_f32(own)[k], 2);
            assert_near(square, 9.0 / (double)c.n_experts, 1e-6);
        }
    }
    model_gone(m);
    model_gone(p);
}

/* The list has both rows. The rows that score tokens are not trained, and neither has a copy. */
TEST(parameters)
{
    const cpl_model_settings c = power_config(), plain = small_config();
    int found = 0;
    assert_int_equal(cpl_params_count(&c), cpl_params_count(&plain) + c.n_layers);
    for (int64_t i = 0; i < cpl_params_count(&c); i++) {
        const cpl_param p = cpl_params_at(&c, i);
        if (!cpl_param_is_router(&p)) continue;
        const bool derived = strcmp(p.hub, "mlp.gate.weight") == 0;
        if (!derived) assert_string_equal(p.hub, "mlp.gate.parametrizations.weight.original");
        assert_int_equal(cpl_param_trains(&p), !derived);
        assert_false(cpl_param_has_copy(&p));
        found++;
    }
    assert_int_equal(found, 2 * c.n_layers);
    assert_false(cpl_model_is_olmoe(&c));
}

TEST(settings_that_are_refused)
{
    cpl_model_settings c = power_config();
    c.d_latent           = 7;
    assert_fails(CPL_ERR_INPUT, "model.latent_dim is 7, but model.router is mpi",
                 cpl_model_resolve(&c));
    c = small_config(), c.router_scale = 3;
    assert_fails(CPL_ERR_INPUT, "model.router_scale is 3, but model.router is softmax",
                 cpl_model_resolve(&c));
    c = power_config(), c.router_bias = 1;
    assert_fails(CPL_ERR_INPUT, "model.router_bias is true, but model.router is mpi",
                 cpl_model_resolve(&c));
}
