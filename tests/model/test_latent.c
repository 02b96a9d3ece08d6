/* test_latent.c - latent experts: cpl_coupling and the rows of couplet.h against the plain loops of
 * model/erc/reference.h, which take the rows V, and the chain rule in double around them; and
 * against the values of PyTorch in float64 (tests/golden/latent). */
#include "model/couplet_case.h"
#include "model/erc/reference.h"
#include "model/erc_run.h"

static const double TOLERANCE = 2e-5;

enum { N = 5, WIDTH = 7, LATENT = 4, EXPERT = 3 }; /* as in tests/golden/latent */

/* Inputs, and the expected results in double. Gates are [N,EXPERT,LATENT]. */
typedef struct latent_case {
    erc_inputs rows, experts; /* R and delta of `rows`, w of `experts` */
    bool centred;
    double *W, *g, eps;    /* W_l [l,d]; g [l] or NULL */
    double *R, *x, *v, *V; /* rows without their mean if centred, proxies, W_l R~, after the norm */
    double *dR, *dW, *dg, *dw[3], *M, loss;
} latent_case;

static double *randoms(int64_t count, uint64_t seed, double scale)
{
    const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TEST};
    double *x             = new_doubles(count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(scale * (double)cpl_rng_normal(&key, (uint64_t)i));
    return x;
}

static double inverse_size(const double *v, double eps)
{
    double sum = 0;
    for (int k = 0; k < LATENT; k++) sum += v[k] * v[k];
    return 1 / sqrt(sum / LATENT + eps);
}

static void forward_rows(latent_case *c)
{
    for (int k = 0; k < WIDTH; k++) {
        double mean = 0;
        for (int i = 0; c->centred && i < N; i++) mean += c->rows.R[i * WIDTH + k] / N;
        for (int i = 0; i < N; i++) {
            c->R[i * WIDTH + k] = c->rows.R[i * WIDTH + k] - mean;
            c->x[i * WIDTH + k] = c->R[i * WIDTH + k] * c->rows.delta[i * WIDTH + k];
        }
    }
    for (int i = 0; i < N; i++) {
        double *v = c->v + i * LATENT;
        for (int a = 0; a < LATENT; a++)
            for (int k = 0; k < WIDTH; k++) v[a] += c->W[a * WIDTH + k] * c->x[i * WIDTH + k];
        for (int a = 0; a < LATENT; a++)
            c->V[i * LATENT + a] = c->g ? c->g[a] * v[a] * inverse_size(v, c->eps) : v[a];
    }
}

/* Replaces dV by the gradient of W_l R~, and adds dg. */
static void backward_norm(latent_case *c, double *dV)
{
    for (int i = 0; c->g && i < N; i++) {
        const double *v = c->v + i * LATENT, s = inverse_size(v, c->eps);
        double *dy = dV + i * LATENT, along = 0;
        for (int a = 0; a < LATENT; a++) along += dy[a] * c->g[a] * v[a];
        for (int a = 0; a < LATENT; a++) {
            c->dg[a] += dy[a] * v[a] * s;
            dy[a] = s * c->g[a] * dy[a] - s * s * s / LATENT * along * v[a];
        }
    }
}

static void backward_rows(latent_case *c, double *dV)
{
    backward_norm(c, dV);
    for (int i = 0; i < N; i++)
        for (int a = 0; a < LATENT; a++)
            for (int k = 0; k < WIDTH; k++) {
                const double dv = dV[i * LATENT + a];
                c->dW[a * WIDTH + k] += dv * c->x[i * WIDTH + k];
                c->dR[i * WIDTH + k] += dv * c->W[a * WIDTH + k] * c->rows.delta[i * WIDTH + k];
            }
    for (int k = 0; c->centred && k < WIDTH; k++) {
        double mean = 0;
        for (int i = 0; i < N; i++) mean += c->dR[i * WIDTH + k] / N;
        for (int i = 0; i < N; i++) c->dR[i * WIDTH + k] -= mean;
    }
}

static double *zeros_of(int64_t count)
{
    double *x = new_doubles(count);
    for (int64_t i = 0; i < count; i++) x[i] = 0;
    return x;
}

static bool uses(int activation, int matrix)
{
    static const char *const matrices[] = {"g", "p", "g", "gp", "gpo", "gp"};
    return strchr(matrices[activation], "gpo"[matrix]) != NULL;
}

static latent_case latent_of(int activation, bool centred, bool norm, double alpha)
{
    latent_case c = {.centred = centred, .eps = 1e-3};
    c.rows        = erc_inputs_random(N, WIDTH, 1, 0, alpha, 0, 21);
    c.experts     = erc_inputs_random(N, LATENT, EXPERT, activation, alpha, 0, 22);
    c.W           = randoms(LATENT * WIDTH, 23, 0.5);
    c.g           = norm ? randoms(LATENT, 24, 1) : NULL;
    c.R           = zeros_of(N * WIDTH);
    c.x           = zeros_of(N * WIDTH);
    c.v           = zeros_of(N * LATENT);
    c.V           = zeros_of(N * LATENT);
    c.dR          = zeros_of(N * WIDTH);
    c.dW          = zeros_of(LATENT * WIDTH);
    c.dg          = zeros_of(LATENT);
    c.M           = zeros_of(N * N);
    for (int k = 0; k < 3; k++) {
        c.dw[k] = zeros_of(N * EXPERT * LATENT);
        if (!uses(activation, k)) c.experts.w[k] = NULL;
    }
    forward_rows(&c);
    double *dV = zeros_of(N * LATENT), *ones = zeros_of(N * LATENT);
    for (int i = 0; i < N * LATENT; i++) ones[i] = 1;
    const cpl_erc_reference plain = {.n_experts   = N,
                                     .d_model     = LATENT,
                                     .d_expert    = EXPERT,
                                     .activation  = (cpl_erc_activation)activation,
                                     .alpha       = alpha,
                                     .weight      = 1,
                                     .router      = c.V,
                                     .delta       = ones,
                                     .w_gate      = c.experts.w[0],
                                     .w_up        = c.experts.w[1],
                                     .w_down      = c.experts.w[2],
                                     .proxy       = zeros_of(N * LATENT),
                                     .M           = c.M,
                                     .grad_M      = zeros_of(N * N),
                                     .grad_router = dV,
                                     .grad_gate   = c.dw[0],
                                     .grad_up     = c.dw[1],
                                     .grad_down   = c.dw[2],
                                     .scratch     = zeros_of(4 * EXPERT + LATENT)};
    c.loss                        = cpl_erc_reference_forward(&plain);
    cpl_erc_reference_backward(&plain);
    backward_rows(&c, dV);
    return c;
}

/* Returns the tensor NAME.KEY of tests/golden/latent, or NULL if there is none. */
static double *golden_tensor(const cpl_safetensors *file, const char *name, const char *key,
                             int64_t count)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, key);
    const float *from = erc_read(file, path, count);
    double *x         = from ? new_doubles(count) : NULL;
    for (int64_t i = 0; from && i < count; i++) x[i] = (double)from[i];
    return x;
}

/* Returns a case of tests/golden/latent. */
static latent_case golden_latent(int activation, bool centred, bool norm)
{
    static const char *const words[]  = {"gate", "up", "silu", "swiglu", "output", "gate_up"};
    static const char *const inputs[] = {"Wg", "Wp", "Wo"}, *const grads[] = {"dWg", "dWp", "dWo"};
    latent_case c = {.centred = centred};
    char name[32];
    cpl_safetensors *file;
    snprintf(name, sizeof name, "%s%s%s", words[activation], norm ? "-norm" : "",
             centred ? "-centred" : "");
    assert_ok(cpl_safetensors_open(&file, golden_path("latent/reference.safetensors")));
    c.rows.R             = golden_tensor(file, name, "R", N * WIDTH);
    c.rows.delta         = golden_tensor(file, name, "delta", N * WIDTH);
    c.rows.alpha         = *golden_tensor(file, name, "alpha", 1);
    c.experts.activation = activation;
    c.W                  = golden_tensor(file, name, "latent", LATENT * WIDTH);
    c.g                  = golden_tensor(file, name, "latent_norm", LATENT);
    c.eps                = norm ? *golden_tensor(file, name, "latent_eps", 1) : 0;
    c.M                  = golden_tensor(file, name, "M", N * N);
    c.dR                 = golden_tensor(file, name, "dR", N * WIDTH);
    c.dW                 = golden_tensor(file, name, "dlatent", LATENT * WIDTH);
    c.dg                 = golden_tensor(file, name, "dlatent_norm", LATENT);
    c.loss               = *golden_tensor(file, name, "loss", 1);
    for (int k = 0; k < 3; k++) {
        c.experts.w[k] = golden_tensor(file, name, inputs[k], N * EXPERT * LATENT);
        c.dw[k]        = golden_tensor(file, name, grads[k], N * EXPERT * LATENT);
    }
    c.R = c.rows.R;
    cpl_safetensors_close(file);
    assert_true((c.g != NULL) == norm);
    return c;
}

static float *floats_or_null(const double *x, int64_t count)
{
    return x ? erc_floats(x, count) : NULL;
}

static void assert_like(const char *what, const float *got, const double *want, int64_t count)
{
    erc_assert_close("latent", what, got, erc_floats(want, count), count, TOLERANCE);
}

/* ---- cpl_coupling ---- */

/* The arrays of a run. */
typedef struct run {
    float *M, *eps, *delta, *dR, *dW, *dw[3];
    double loss;
} run;

static cpl_tensor plane(cpl_backend *be, float *x, int64_t a, int64_t b)
{
    return mirrored(be, cpl_tensor_2d(x, CPL_F32, a, b));
}

static cpl_expert_weights matrices_of(cpl_backend *be, float *const w[3])
{
    const cpl_expert_weights all = {erc_cube(w[0], N, EXPERT, LATENT),
                                    erc_cube(w[1], N, EXPERT, LATENT),
                                    erc_cube(w[2], N, LATENT, EXPERT)};
    return erc_mirrored(be, all);
}

static run run_coupling(const latent_case *c, cpl_erc_gradient gradient, int n_threads)
{
    run r                          = {.M = zeros(N * N), .eps = zeros(N), .dR = zeros(N * WIDTH)};
    r.dW                           = zeros(LATENT * WIDTH);
    r.delta                        = erc_floats(c->rows.delta, N * WIDTH);
    const cpl_erc_settings erc     = {.activation = c->experts.activation,
                                      .draws      = 1,
                                      .proxy      = c->centred ? CPL_PROXY_CENTRED : CPL_PROXY_ROW,
                                      .gradient   = gradient};
    const cpl_coupling_noise given = {.given = true};
    float *w[3];
    for (int k = 0; k < 3; k++) {
        w[k]    = floats_or_null(c->experts.w[k], N * EXPERT * LATENT);
        r.dw[k] = zeros(N * EXPERT * LATENT);
    }
    const erc_case sizes = {.n = N, .d = WIDTH, .D = EXPERT};
    cpl_backend cpu, be = erc_backend(&sizes, &cpu, CPL_F32, n_threads);
    cpl_coupling_outputs out = {.M     = plane(&be, r.M, N, N),
                                .eps   = mirrored(&be, cpl_tensor_1d(r.eps, CPL_F32, N)),
                                .delta = plane(&be, r.delta, N, WIDTH),
                                .rows  = plane(&be, zeros(N * WIDTH), N, WIDTH),
                                .drows = plane(&be, zeros(N * WIDTH), N, WIDTH),
                                .dR    = plane(&be, r.dR, N, WIDTH),
                                .dw    = matrices_of(&be, r.dw)};
    erc_phases_into(&out, &r.loss, zeros(3 * N), N);
    out.loss       = mirrored(&be, out.loss);
    out.diagonal   = mirrored(&be, out.diagonal);
    out.violations = mirrored(&be, out.violations);
    out.latent =
        (cpl_coupling_latent){.w  = plane(&be, erc_floats(c->W, LATENT * WIDTH), LATENT, WIDTH),
                              .dw = plane(&be, r.dW, LATENT, WIDTH),
                              .x  = plane(&be, zeros(N * WIDTH), N, WIDTH),
                              .v  = plane(&be, zeros(N * LATENT), N, LATENT),
                              .dx = plane(&be, zeros(N * WIDTH), N, WIDTH),
                              .dv = plane(&be, zeros(N * LATENT), N, LATENT)};
    cpl_coupling(&be, &out, plane(&be, erc_floats(c->rows.R, N * WIDTH), N, WIDTH),
                 matrices_of(&be, w), &erc, c->rows.alpha, 1, CPL_F32, &given, NULL);
    mirrors_end(&be);
    cpl_backend_free(&be);
    return r;
}

static void check_coupling(const latent_case *c)
{
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        run r = run_coupling(c, CPL_ERC_TO_BOTH, n_threads);
        assert_near(r.loss, c->loss, TOLERANCE * c->loss);
        assert_like("M", r.M, c->M, N * N);
        assert_like("dR", r.dR, c->dR, N * WIDTH);
        assert_like("dW_l", r.dW, c->dW, LATENT * WIDTH);
        for (int k = 0; k < 3; k++)
            if (c->experts.w[k]) assert_like("dw", r.dw[k], c->dw[k], N * EXPERT * LATENT);
    }
}

TEST(every_activation)
{
    for (int activation = CPL_ERC_GATE; activation <= CPL_ERC_GATE_UP; activation++)
        for (int centred = 0; centred < 2; centred++) {
            latent_case c     = latent_of(activation, centred == 1, false, 0.9);
            latent_case known = golden_latent(activation, centred == 1, false);
            assert_true(c.loss > 0 && known.loss > 0);
            check_coupling(&c);
            check_coupling(&known);
            release_all(state);
        }
}

/* The gradient of W_l belongs to the experts. */
TEST(each_side_gets_its_own_gradient)
{
    latent_case c = latent_of(CPL_ERC_GATE, false, false, 0.9);
    run router    = run_coupling(&c, CPL_ERC_TO_ROUTER, 1);
    run experts   = run_coupling(&c, CPL_ERC_TO_EXPERTS, 1);
    assert_like("dR", router.dR, c.dR, N * WIDTH);
    assert_like("dW_l", experts.dW, c.dW, LATENT * WIDTH);
    assert_like("dw", experts.dw[0], c.dw[0], N * EXPERT * LATENT);
    for (int i = 0; i < N * WIDTH; i++) assert_true(experts.dR[i] == 0);
    for (int i = 0; i < LATENT * WIDTH; i++) assert_true(router.dW[i] == 0);
    for (int i = 0; i < N * EXPERT * LATENT; i++) assert_true(router.dw[0][i] == 0);
}

/* ---- couplet.h ---- */

/* A trainer whose experts are latent. `rows` is a case of rows V. */
typedef struct door {
    erc_case rows;
    trainer t;
    cpl_erc_latent latent;
    float *dV;
} door;

static door door_of(const latent_case *c)
{
    door o            = {.rows = {.name = "latent", .n = N, .d = LATENT, .D = EXPERT, .weight = 1}};
    o.rows.alpha      = c->rows.alpha;
    o.rows.R          = zeros(N * LATENT);
    o.dV              = zeros(N * LATENT);
    o.rows.activation = c->experts.activation;
    for (int k = 0; k < 3; k++) o.rows.w[k] = floats_or_null(c->experts.w[k], N * EXPERT * LATENT);
    cpl_erc_latent_init(&o.latent);
    o.latent.n_experts       = N;
    o.latent.d_model         = WIDTH;
    o.latent.d_latent        = LATENT;
    o.latent.router          = erc_floats(c->R, N * WIDTH);
    o.latent.projection      = erc_floats(c->W, LATENT * WIDTH);
    o.latent.norm            = floats_or_null(c->g, LATENT);
    o.latent.norm_eps        = c->g ? c->eps : 0;
    o.latent.noise           = CPL_ERC_NOISE_GIVEN;
    o.latent.delta           = erc_floats(c->rows.delta, N * WIDTH);
    o.latent.rows            = o.rows.R;
    o.latent.rows_grad       = o.dV;
    o.latent.eps             = zeros(N);
    o.latent.router_grad     = zeros(N * WIDTH);
    o.latent.projection_grad = zeros(LATENT * WIDTH);
    o.latent.norm_grad       = zeros(LATENT);
    return o;
}

static void check_door(const latent_case *c, const door *o, double loss)
{
    assert_near(loss, c->loss, TOLERANCE * c->loss);
    assert_like("M", o->t.M, c->M, N * N);
    assert_like("dR", o->latent.router_grad, c->dR, N * WIDTH);
    assert_like("dW_l", o->latent.projection_grad, c->dW, LATENT * WIDTH);
    if (c->g) assert_like("dg", o->latent.norm_grad, c->dg, LATENT);
    for (int k = 0; k < 3; k++)
        if (c->experts.w[k]) assert_like("dw", o->t.grad[k], c->dw[k], N * EXPERT * LATENT);
}

static void one_call(const latent_case *c)
{
    door o = door_of(c);
    assert_ok(cpl_erc_latent_rows(&o.latent));
    o.t             = trainer_of(&o.rows);
    cpl_erc erc     = erc_of(&o.t, 0);
    erc.router_grad = o.dV;
    assert_ok(cpl_erc_run(&erc));
    assert_ok(cpl_erc_latent_gradients(&o.latent));
    check_door(c, &o, erc.loss);
}

TEST(one_call_around_the_rows)
{
    for (int activation = CPL_ERC_GATE; activation <= CPL_ERC_GATE_UP; activation++)
        for (int norm = 0; norm < 2; norm++) {
            const latent_case c     = latent_of(activation, false, norm == 1, 0.9);
            const latent_case known = golden_latent(activation, false, norm == 1);
            one_call(&c);
            one_call(&known);
            release_all(state);
        }
}

/* Two processes share the experts, and dV is summed over them. */
TEST(three_phases_around_the_rows)
{
    latent_case c = latent_of(CPL_ERC_SWIGLU, false, true, 0.9);
    door o        = door_of(&c);
    part parts[2];
    assert_ok(cpl_erc_latent_rows(&o.latent));
    o.t = trainer_of(&o.rows);
    for (int a = 0; a < 2; a++) {
        parts[a]                 = part_of(&o.t, a * 3, a ? N : 3, 0, N);
        parts[a].erc.router_grad = o.dV;
        assert_ok(cpl_erc_diagonals(&parts[a].erc));
    }
    for (int j = 0; j < N; j++) parts[j < 3].diagonal[j] = parts[j >= 3].diagonal[j];
    double loss = 0;
    for (int a = 0; a < 2; a++) {
        assert_ok(cpl_erc_sweep(&parts[a].erc));
        loss += parts[a].erc.loss;
    }
    for (int i = 0; i < 2 * N; i++)
        parts[0].violations[i] = parts[1].violations[i] += parts[0].violations[i];
    for (int a = 0; a < 2; a++) assert_ok(cpl_erc_finish(&parts[a].erc));
    assert_ok(cpl_erc_latent_gradients(&o.latent));
    check_door(&c, &o, loss);
}

/* The noise and its bound are of R, in d: equal keys give the noise of cpl_erc. */
TEST(noise_is_drawn_in_the_width_of_the_model)
{
    float eye[WIDTH * WIDTH] = {0}, V[N * WIDTH], eps[N];
    latent_case c            = latent_of(CPL_ERC_GATE, false, false, 0.9);
    erc_case plain = {.name = "plain", .n = N, .d = WIDTH, .D = EXPERT, .alpha = 0.9, .weight = 1};
    plain.R        = erc_floats(c.rows.R, N * WIDTH);
    plain.w[0]     = erc_floats(randoms(N * EXPERT * WIDTH, 31, 1), N * EXPERT * WIDTH);
    trainer t = trainer_of(&plain), u = trainer_of(&plain);
    cpl_erc drawn = erc_of(&t, 0), of_rows = erc_of(&u, 0);
    cpl_erc_latent latent;
    cpl_erc_latent_init(&latent);
    for (int k = 0; k < WIDTH; k++) eye[k * WIDTH + k] = 1;
    latent.n_experts = N;
    latent.d_model = latent.d_latent = WIDTH;
    latent.router                    = plain.R;
    latent.projection                = eye;
    latent.seed = drawn.seed = 5;
    latent.step = drawn.step = 9;
    latent.layer = drawn.layer = 2;
    latent.draw = drawn.draw = 1;
    latent.rows              = V;
    latent.eps               = eps;
    drawn.noise              = CPL_ERC_NOISE_DRAWN;
    assert_ok(cpl_erc_run(&drawn));
    assert_ok(cpl_erc_latent_rows(&latent));
    of_rows.router = V;
    assert_ok(cpl_erc_run(&of_rows));
    assert_memory_equal(eps, t.eps, sizeof eps);
    assert_near(of_rows.loss, drawn.loss, 1e-6 * drawn.loss);
    erc_assert_close("identity", "M", u.M, t.M, N * N, 1e-6);
}

#define REFUSES(words, change)                                                                     \
    do {                                                                                           \
        cpl_erc_latent bad = o.latent;                                                             \
        change;                                                                                    \
        assert_fails(CPL_ERR_INPUT, words, cpl_erc_latent_rows(&bad));                             \
    } while (0)

TEST(fields_that_are_refused)
{
    latent_case c = latent_of(CPL_ERC_GATE, false, true, 0.9);
    door o        = door_of(&c);
    assert_fails(CPL_ERR_INPUT, "latent is NULL", cpl_erc_latent_rows(NULL));
    REFUSES("d_latent is 0", bad.d_latent = 0);
    REFUSES("n_experts is 70000", bad.n_experts = 70000);
    REFUSES("projection is NULL", bad.projection = NULL);
    REFUSES("router is NULL", bad.router = NULL);
    REFUSES("rows is NULL", bad.rows = NULL);
    REFUSES("norm is given, but norm_eps is 0", bad.norm_eps = 0);
    REFUSES("norm is given, but norm_eps is nan", bad.norm_eps = (double)NAN);
    REFUSES("delta is NULL", bad.delta = NULL);
    REFUSES("noise is 7", bad.noise = (cpl_erc_noise_kind)7);
    REFUSES("step must be below 2^40", bad.step = (uint64_t)1 << 40);
    REFUSES("n_threads is -1", bad.n_threads = -1);
    o.latent.rows_grad = NULL;
    assert_fails(CPL_ERR_INPUT, "rows_grad is NULL", cpl_erc_latent_gradients(&o.latent));
}
