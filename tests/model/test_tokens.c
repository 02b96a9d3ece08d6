/* test_tokens.c - proxies on the side of the tokens (erc.proxy tokens): plain loops in double,
 * cpl_coupling and the functions of couplet.h against PyTorch in float64 (tests/golden/tokens). */
#include "model/couplet_case.h"
#include "model/erc/reference.h"
#include "model/erc_run.h"
#include "tensor/golden.h"

static const double TOLERANCE = 1e-6, DOUBLE_TOLERANCE = 1e-12; /* relative, of norms */

static const char *const cases[] = {"gate",    "up",         "silu",        "swiglu",   "output",
                                    "gate_up", "gate-clean", "gate-latent", "gate-zero"};
enum { N_CASES = sizeof cases / sizeof *cases, N = 5, WIDTH = 7, EXPERT = 3 };

/* Returns the tensor CASE.KEY as doubles, or as floats, NULL if there is none. */
static double *f64_of(const cpl_safetensors *file, const char *name, const char *key)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, key);
    return golden_doubles(file, path);
}

static float *f32_of(const cpl_safetensors *file, const char *name, const char *key, int64_t count)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, key);
    return erc_read(file, path, count);
}

/* A case, and its results in double. */
typedef struct token_case {
    erc_case c;
    double loss, *P, *eps, *M, *dR, *dw[3];
    float *dlatent;
} token_case;

static token_case case_of(const char *name)
{
    static const char *const grads[] = {"dWg", "dWp", "dWo"};
    cpl_safetensors *file            = golden_open("tokens/reference.safetensors");
    token_case k = {.c = {.name = name, .n = N, .d = WIDTH, .D = EXPERT, .weight = 1}};
    char prefix[32], word[16] = {0};
    snprintf(prefix, sizeof prefix, "%s.", name);
    memcpy(word, name, strcspn(name, "-"));
    erc_case_read(&k.c, file, prefix);
    k.c.activation = erc_activation_of(word);
    k.c.noise      = k.c.delta != NULL;
    k.c.alpha      = (double)*f32_of(file, name, "alpha", 1);
    k.c.mean       = f32_of(file, name, "mean", WIDTH);
    k.c.scale      = *f64_of(file, name, "scale");
    k.c.latent     = f32_of(file, name, "latent", (int64_t)WIDTH * WIDTH);
    k.dlatent      = f32_of(file, name, "dlatent", (int64_t)WIDTH * WIDTH);
    k.loss         = *f64_of(file, name, "loss");
    k.P            = f64_of(file, name, "P");
    k.eps          = f64_of(file, name, "eps");
    k.M            = f64_of(file, name, "M");
    k.dR           = f64_of(file, name, "dR");
    for (int i = 0; i < 3; i++)
        if (k.c.w[i]) k.dw[i] = f64_of(file, name, grads[i]);
    cpl_safetensors_close(file);
    return k;
}

/* ---- plain loops in double ---- */

static double *widened(const float *x, int64_t count)
{
    double *to = x ? new_doubles(count) : NULL;
    for (int64_t i = 0; x && i < count; i++) to[i] = (double)x[i];
    return to;
}

static double dot(const double *x, const double *y)
{
    double sum = 0;
    for (int k = 0; k < WIDTH; k++) sum += x[k] * y[k];
    return sum;
}

static void centre(double *rows)
{
    for (int k = 0; k < WIDTH; k++) {
        double mean = 0;
        for (int i = 0; i < N; i++) mean += rows[i * WIDTH + k];
        for (int i = 0; i < N; i++) rows[i * WIDTH + k] -= mean / N;
    }
}

/* Replaces the gradient of P by the gradient of R. Q are the centred rows. */
static void backward(double *grad, const double *Q, double scale)
{
    for (int i = 0; i < N; i++) {
        const double square = dot(Q + i * WIDTH, Q + i * WIDTH);
        const double along  = dot(Q + i * WIDTH, grad + i * WIDTH);
        for (int k = i * WIDTH; k < (i + 1) * WIDTH; k++)
            grad[k] = square > 0 ? scale / sqrt(square) * (grad[k] - along / square * Q[k]) : 0;
    }
    centre(grad);
}

static void assert_tight(const char *what, const double *got, const double *want, int64_t count)
{
    double off = 0, size = 0;
    for (int64_t i = 0; want && i < count; i++) {
        off += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    if (!(sqrt(off) <= DOUBLE_TOLERANCE * sqrt(size)))
        fail_msg("%s is off by %.3g of %.3g", what, sqrt(off), sqrt(size));
}

static double *blank(int64_t count)
{
    double *x = new_doubles(count);
    for (int64_t i = 0; i < count; i++) x[i] = 0;
    return x;
}

static void check_reference(const token_case *k)
{
    enum { ROWS = N * WIDTH, MATRIX = N * EXPERT * WIDTH };
    const erc_case *c = &k->c;
    double *Q = widened(c->R, ROWS), *P = new_doubles(ROWS), *dP = blank(ROWS), eps[N];
    double *ones = blank(ROWS);
    for (int i = 0; i < ROWS; i++) ones[i] = 1;
    centre(Q);
    for (int i = 0; i < ROWS; i++) {
        const double square = dot(Q + i / WIDTH * WIDTH, Q + i / WIDTH * WIDTH);
        P[i] = (double)c->mean[i % WIDTH] + (square > 0 ? c->scale * Q[i] / sqrt(square) : 0);
    }
    cpl_erc_reference r = {.n_experts   = N,
                           .d_model     = WIDTH,
                           .d_expert    = EXPERT,
                           .activation  = (cpl_erc_activation)c->activation,
                           .alpha       = c->alpha,
                           .weight      = 1,
                           .router      = P,
                           .delta       = c->delta ? widened(c->delta, ROWS) : ones,
                           .w_gate      = widened(c->w[0], MATRIX),
                           .w_up        = widened(c->w[1], MATRIX),
                           .w_down      = widened(c->w[2], MATRIX),
                           .proxy       = new_doubles(ROWS),
                           .M           = new_doubles(N * N),
                           .grad_M      = new_doubles(N * N),
                           .grad_router = dP,
                           .grad_gate   = blank(MATRIX),
                           .grad_up     = blank(MATRIX),
                           .grad_down   = blank(MATRIX),
                           .scratch     = new_doubles(4 * EXPERT + WIDTH)};
    assert_near(cpl_erc_reference_forward(&r), k->loss, DOUBLE_TOLERANCE * k->loss);
    cpl_erc_reference_epsilon(eps, P, N, WIDTH);
    cpl_erc_reference_backward(&r);
    backward(dP, Q, c->scale);
    assert_tight("P", P, k->P, ROWS);
    assert_tight("eps", eps, k->eps, N);
    assert_tight("M", r.M, k->M, N * N);
    assert_tight("dR", dP, k->dR, ROWS);
    assert_tight("dW_g", r.grad_gate, k->dw[0], MATRIX);
    assert_tight("dW_p", r.grad_up, k->dw[1], MATRIX);
    assert_tight("dW_o", r.grad_down, k->dw[2], MATRIX);
}

TEST(the_plain_loops_are_those_of_pytorch)
{
    for (int i = 0; i < N_CASES; i++, release_all(state)) {
        const token_case k = case_of(cases[i]);
        if (!k.c.latent) check_reference(&k);
    }
}

/* ---- cpl_coupling ---- */

static void assert_results(const token_case *k, const float *M, double loss, const float *dR,
                           float *const dw[3])
{
    const erc_case *c = &k->c;
    assert_near(loss, k->loss, TOLERANCE * k->loss);
    erc_assert_close(c->name, "M", M, c->M, N * N, TOLERANCE);
    erc_assert_close(c->name, "dR", dR, c->dR, N * WIDTH, TOLERANCE);
    for (int i = 0; i < 3; i++)
        if (c->w[i])
            erc_assert_close(c->name, "dw", dw[i], c->dw[i], N * EXPERT * WIDTH, TOLERANCE);
}

/* Afterwards the rows are P, for the figures of the step. */
TEST(the_loss_is_that_of_pytorch)
{
    for (int i = 0; i < N_CASES; i++)
        for (int n_threads = 1; n_threads <= 3; n_threads++, release_all(state)) {
            const token_case k = case_of(cases[i]);
            const erc_outcome o =
                erc_run_as(&k.c, CPL_PROXY_TOKENS, CPL_ERC_TO_BOTH, CPL_F32, n_threads, true);
            assert_results(&k, o.M, o.loss, o.dR, o.dw);
            erc_assert_close(k.c.name, "eps", o.eps, k.c.eps, N, TOLERANCE);
            erc_assert_close(k.c.name, "P", o.rows, erc_floats(k.P, N * WIDTH), N * WIDTH, 1e-6);
            if (k.c.latent)
                erc_assert_close(k.c.name, "dW_l", o.dlatent, k.dlatent, WIDTH * WIDTH, TOLERANCE);
        }
}

TEST(each_side_gets_its_own_gradient)
{
    const token_case k   = case_of("gate");
    const erc_outcome to = erc_run_as(&k.c, CPL_PROXY_TOKENS, CPL_ERC_TO_ROUTER, CPL_F32, 1, true);
    const erc_outcome from =
        erc_run_as(&k.c, CPL_PROXY_TOKENS, CPL_ERC_TO_EXPERTS, CPL_F32, 1, true);
    erc_assert_close("router", "dR", to.dR, k.c.dR, N * WIDTH, TOLERANCE);
    erc_assert_close("experts", "dw", from.dw[0], k.c.dw[0], N * EXPERT * WIDTH, TOLERANCE);
    for (int i = 0; i < N * WIDTH; i++) assert_true(from.dR[i] == 0);
    for (int i = 0; i < N * EXPERT * WIDTH; i++) assert_true(to.dw[0][i] == 0);
}

/* In bf16 the products alone are rounded. */
TEST(bf16_is_near)
{
    for (int i = 0; i < N_CASES; i++, release_all(state)) {
        const token_case k = case_of(cases[i]);
        const erc_outcome o =
            erc_run_as(&k.c, CPL_PROXY_TOKENS, CPL_ERC_TO_BOTH, CPL_BF16, 2, true);
        erc_assert_close(k.c.name, "P", o.rows, erc_floats(k.P, N * WIDTH), N * WIDTH, 1e-6);
        erc_assert_close(k.c.name, "M", o.M, k.c.M, N * N, 0x1p-7);
    }
}

/* All rows of one expert, and equal rows, have no direction: P is the mean, and R has no gradient
 * although the hinges are active. */
TEST(rows_without_a_direction)
{
    for (int n = 1; n <= 4; n += 3, release_all(state)) {
        erc_inputs in = erc_inputs_random(n, WIDTH, EXPERT, 0, 0.5, 0, 3);
        erc_case c    = erc_case_of(&in, "equal rows");
        c.mean        = zeros(WIDTH);
        c.scale       = 2;
        for (int k = 0; k < WIDTH; k++) c.mean[k] = 1 + (float)k;
        for (int i = 0; i < n * WIDTH; i++) c.R[i] = (float)(i % WIDTH) / 4;
        const erc_outcome o = erc_run_as(&c, CPL_PROXY_TOKENS, CPL_ERC_TO_BOTH, CPL_F32, 2, true);
        assert_true(n == 1 ? o.loss == 0 : o.loss > 0);
        for (int i = 0; i < n * WIDTH; i++) {
            assert_true(o.rows[i] == c.mean[i % WIDTH]);
            assert_true(o.dR[i] == 0);
        }
    }
}

/* ---- couplet.h ---- */

static void check_door(const token_case *k)
{
    erc_case rows = k->c;
    float *dP = zeros(N * WIDTH), *dR = zeros(N * WIDTH);
    rows.R = zeros(N * WIDTH);
    assert_ok(cpl_erc_token_rows(rows.R, k->c.R, k->c.mean, k->c.scale, N, WIDTH));
    trainer t       = trainer_of(&rows);
    cpl_erc erc     = erc_of(&t, 0);
    erc.router_grad = dP;
    assert_ok(cpl_erc_run(&erc));
    assert_ok(cpl_erc_token_gradients(dR, dP, k->c.R, k->c.scale, N, WIDTH));
    assert_results(k, t.M, erc.loss, dR, t.grad);
    erc_assert_close(rows.name, "eps", t.eps, k->c.eps, N, TOLERANCE);
    assert_ok(cpl_erc_token_gradients(dR, dP, k->c.R, k->c.scale, N, WIDTH));
    for (int i = 0; i < N * WIDTH; i++) dR[i] /= 2; /* the call adds */
    erc_assert_close(rows.name, "dR", dR, k->c.dR, N * WIDTH, TOLERANCE);
}

TEST(the_library_has_the_same_rows_and_gradients)
{
    for (int i = 0; i < N_CASES; i++, release_all(state)) {
        const token_case k = case_of(cases[i]);
        if (!k.c.latent) check_door(&k);
    }
}

TEST(arguments_that_are_refused)
{
    float R[6] = {1, 2, 3, 4, 5, 6}, m[3] = {0}, P[6];
    char bytes[32];
    float *odd = (float *)(void *)(bytes + 1 + (4 - (uintptr_t)bytes % 4) % 4);
    assert_ok(cpl_erc_token_rows(P, R, m, 0, 2, 3));
    assert_fails(CPL_ERR_INPUT, "router is NULL", cpl_erc_token_rows(P, NULL, m, 1, 2, 3));
    assert_fails(CPL_ERR_INPUT, "rows is NULL", cpl_erc_token_rows(NULL, R, m, 1, 2, 3));
    assert_fails(CPL_ERR_INPUT, "mean is NULL", cpl_erc_token_rows(P, R, NULL, 1, 2, 3));
    assert_fails(CPL_ERR_INPUT, "mean is not aligned", cpl_erc_token_rows(P, R, odd, 1, 2, 3));
    assert_fails(CPL_ERR_INPUT, "scale is -1", cpl_erc_token_rows(P, R, m, -1, 2, 3));
    assert_fails(CPL_ERR_INPUT, "scale is nan", cpl_erc_token_rows(P, R, m, (double)NAN, 2, 3));
    assert_fails(CPL_ERR_INPUT, "n_experts is 0", cpl_erc_token_rows(P, R, m, 1, 0, 3));
    assert_fails(CPL_ERR_INPUT, "d_model is 0", cpl_erc_token_rows(P, R, m, 1, 2, 0));
    assert_fails(CPL_ERR_INPUT, "rows_grad is NULL", cpl_erc_token_gradients(P, NULL, R, 1, 2, 3));
    assert_fails(CPL_ERR_INPUT, "router_grad is NULL",
                 cpl_erc_token_gradients(NULL, P, R, 1, 2, 3));
}
