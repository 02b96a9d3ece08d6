/* test_coupling.c - the coupling loss against the reference values of PyTorch in float64, against
 * the paper's equation written plainly in double, and against what must hold for any input. */
#include "model/coupling.h"

#include "base/arena.h"
#include "erc_case.h"
#include "erc_oracle.h"
#include "tensor/backend.h"

/* Relative, per tensor: sums of at most some thousand f32 products, each rounded once. */
static const double F32_TOLERANCE  = 2e-6;
static const double BF16_GRADIENTS = 3e-2, BF16_FORWARD = 2e-2, BF16_KINK = 1.5e-3;

typedef struct outcome {
    float *M, *eps, *delta, *dR, *dw[3];
    cpl_coupling_result result;
} outcome;

static float *numbers(int64_t count, const float *from)
{
    float *x = calloc((size_t)count + 1, sizeof *x);
    assert_non_null(x);
    if (from) memcpy(x, from, (size_t)count * sizeof *x);
    return x;
}

static cpl_tensor cube(const float *x, int64_t a, int64_t b, int64_t c)
{
    return cpl_tensor_3d((void *)(uintptr_t)x, CPL_F32, a, b, c);
}

/* A poisoned backend: outputs and scratch hold NaN before every operation. */
static cpl_backend backend_for(const erc_case *c, cpl_backend *cpu, cpl_dtype compute,
                               int n_threads)
{
    cpl_backend be;
    cpl_backend_cpu(cpu, compute, n_threads);
    cpl_backend_poison(&be, cpu);
    cpl_work work = {.n_tokens   = 1,
                     .n_keys     = 1,
                     .batch      = 1,
                     .d_model    = c->d,
                     .d_expert   = c->D,
                     .n_experts  = c->n,
                     .top_k      = 1,
                     .n_heads    = 1,
                     .n_kv_heads = 1,
                     .vocab_size = 1,
                     .training   = true};
    assert_ok(cpl_backend_reserve(&be, &work));
    return be;
}

/* Runs the loss on a case; gradients are added to zeros. */
static outcome run(const erc_case *c, cpl_dtype compute, int n_threads, bool backward)
{
    const int64_t expert = c->n * c->D * c->d;
    outcome o            = {.M = numbers(c->n * c->n, NULL), .eps = numbers(c->n, NULL)};
    o.delta              = numbers(c->n * c->d, c->delta);
    o.dR                 = numbers(c->n * c->d, NULL);
    for (int k = 0; k < 3; k++) o.dw[k] = numbers(expert, NULL);

    cpl_backend cpu, be = backend_for(c, &cpu, compute, n_threads);
    cpl_erc_settings erc     = {.activation = c->activation, .draws = 1};
    erc.noise                = c->noise ? CPL_NOISE_BOUNDED : CPL_NOISE_NONE;
    cpl_coupling_noise noise = {.given = c->noise};
    cpl_expert_weights w     = {cube(c->w[0], c->n, c->D, c->d), cube(c->w[1], c->n, c->D, c->d),
                                cube(c->w[2], c->n, c->d, c->D)};
    cpl_coupling_outputs out = {.M     = cpl_tensor_2d(o.M, CPL_F32, c->n, c->n),
                                .eps   = cpl_tensor_1d(o.eps, CPL_F32, c->n),
                                .delta = cpl_tensor_2d(o.delta, CPL_F32, c->n, c->d)};
    if (backward) {
        out.dR = cpl_tensor_2d(o.dR, CPL_F32, c->n, c->d);
        out.dw =
            (cpl_expert_weights){cube(o.dw[0], c->n, c->D, c->d), cube(o.dw[1], c->n, c->D, c->d),
                                 cube(o.dw[2], c->n, c->d, c->D)};
    }
    int64_t allocations = cpl_alloc_count();
    cpl_coupling(&be, &o.result, &out, cpl_tensor_2d(c->R, CPL_F32, c->n, c->d), w, &erc, c->alpha,
                 c->weight, &noise);
    assert_int_equal(cpl_alloc_count(), allocations);
    cpl_backend_free(&be);
    return o;
}

static void outcome_free(outcome *o)
{
    free(o->M);
    free(o->eps);
    free(o->delta);
    free(o->dR);
    for (int k = 0; k < 3; k++) free(o->dw[k]);
}

static void f32_case(const erc_case *c)
{
    static const char *const names[] = {"dWg", "dWp", "dWo"};
    const int64_t expert             = c->n * c->D * c->d;
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        outcome o = run(c, CPL_F32, n_threads, true);
        erc_assert_close(c->name, "eps", o.eps, c->eps, c->n, F32_TOLERANCE);
        erc_assert_close(c->name, "M", o.M, c->M, c->n * c->n, F32_TOLERANCE);
        assert_near(c->weight * o.result.loss, c->loss, 1e-5 * fabs(c->loss) + 1e-12);
        erc_assert_close(c->name, "dR", o.dR, c->dR, c->n * c->d, F32_TOLERANCE);
        for (int k = 0; k < 3; k++)
            erc_assert_close(c->name, names[k], o.dw[k], c->dw[k], expert, F32_TOLERANCE);
        outcome_free(&o);
        outcome forward = run(c, CPL_F32, n_threads, false);
        erc_assert_close(c->name, "M (forward)", forward.M, c->M, c->n * c->n, F32_TOLERANCE);
        assert_near(c->weight * forward.result.loss, c->loss, 1e-5 * fabs(c->loss) + 1e-12);
        outcome_free(&forward);
    }
}

static void golden_f32(void **state)
{
    (void)state;
    erc_for_all_cases(f32_case);
}

/* bf16 operands. All gradients count as one vector; where a hinge stands nearer to its kink than
 * such operands can tell, only the forward pass is compared. */
static void bf16_case(const erc_case *c)
{
    if (c->exact_ties > 0) return;
    const int64_t expert = c->n * c->D * c->d;
    outcome o            = run(c, CPL_BF16, 2, true);
    double off, norm, all_off, all_norm;
    erc_assert_close(c->name, "eps", o.eps, c->eps, c->n, F32_TOLERANCE);
    erc_assert_close(c->name, "M in bf16", o.M, c->M, c->n * c->n, BF16_FORWARD);
    erc_difference(&all_off, &all_norm, o.dR, c->dR, c->n * c->d);
    all_off *= all_off;
    all_norm *= all_norm;
    for (int k = 0; k < 3; k++) {
        erc_difference(&off, &norm, o.dw[k], c->dw[k], expert);
        all_off += off * off;
        all_norm += norm * norm;
    }
    if (sqrt(all_off) > BF16_GRADIENTS * sqrt(all_norm) + 1e-6 && c->nearest_kink > BF16_KINK)
        fail_msg("%s: gradients in bf16 are off by %.3g of %.3g", c->name, sqrt(all_off),
                 sqrt(all_norm));
    outcome_free(&o);
}

static void golden_bf16(void **state)
{
    (void)state;
    erc_for_all_cases(bf16_case);
}

/* ---- against the equation ---- */

/* A case made of the oracle's numbers; its references are not filled in. */
static erc_case case_of(const oracle *o, const char *name)
{
    erc_case c   = {.name = name, .n = o->n, .d = o->d, .D = o->D, .alpha = o->alpha, .weight = 1};
    c.activation = o->activation;
    c.noise      = true;
    c.R          = oracle_floats(o->R, o->n * o->d);
    c.delta      = oracle_floats(o->delta, o->n * o->d);
    for (int k = 0; k < 3; k++) c.w[k] = oracle_floats(o->w[k], o->n * o->d * o->D);
    return c;
}

/* Every number's derivative of one array, compared as a vector. */
static void check_slopes(oracle *o, double *x, const float *got, int count, int per_row,
                         int per_expert, const char *what)
{
    double off = 0, norm = 0;
    for (int i = 0; i < count; i++) {
        double want =
            oracle_slope(o, x + i, per_row ? i / per_row : -1, per_expert ? i / per_expert : -1);
        off += ((double)got[i] - want) * ((double)got[i] - want);
        norm += want * want;
    }
    if (sqrt(off) > 2e-5 * sqrt(norm) + 1e-9)
        fail_msg("activation %d, n %d, alpha %g: %s is off by %.3g of %.3g", o->activation, o->n,
                 o->alpha, what, sqrt(off), sqrt(norm));
}

static void check_against_equation(int n, int d, int D, int activation, double alpha, double tilt)
{
    static const char *const names[] = {"dW_gate", "dW_up", "dW_down"};
    oracle o    = oracle_random(n, d, D, activation, alpha, tilt, (uint64_t)(n * 100 + activation));
    erc_case c  = case_of(&o, "random");
    outcome got = run(&c, CPL_F32, 2, true);
    double loss = oracle_loss(&o, -1, -1);
    assert_true(o.nearest_kink > 1e-4 || n == 1);
    assert_near(got.result.loss, loss, 1e-5 * loss + 1e-12);
    for (int i = 0; i < n * n; i++) assert_near(got.M[i], o.M[i], 1e-5 * o.M[i]);
    check_slopes(&o, o.R, got.dR, n * d, d, 0, "dR");
    for (int k = 0; k < 3; k++) check_slopes(&o, o.w[k], got.dw[k], n * d * D, 0, d * D, names[k]);
    outcome_free(&got);
    oracle_free(&o);
    erc_case_free(&c);
}

static void equation(void **state)
{
    (void)state;
    for (int activation = 0; activation < 5; activation++) {
        check_against_equation(3, 5, 4, activation, 1.0, 0.0);
        check_against_equation(4, 7, 6, activation, 0.5, 0.3);
        check_against_equation(5, 17, 3, activation, 1.7, 0.0);
        check_against_equation(2, 1, 1, activation, 0.25, 0.0);
        check_against_equation(1, 4, 3, activation, 1.0, 0.0);
        check_against_equation(18, 3, 2, activation, 0.9, 0.1);
    }
}

/* ---- what must hold for any input ---- */

static oracle ordinary(double alpha)
{
    return oracle_random(9, 20, 12, 0, alpha, 0.05, 7);
}

/* Expert and router row p(i) in the place of i: M[i,j] becomes M[p(i),p(j)], bit for bit. */
static void permuting_experts_permutes_M(void **state)
{
    (void)state;
    oracle o = ordinary(1.0), q = ordinary(1.0);
    const int n = o.n, d = o.d, size = o.d * o.D;
    for (int i = 0; i < n; i++) {
        const int p = (i * 4 + 2) % n;
        memcpy(q.R + i * d, o.R + p * d, sizeof(double) * (size_t)d);
        memcpy(q.delta + i * d, o.delta + p * d, sizeof(double) * (size_t)d);
        memcpy(q.w[0] + i * size, o.w[0] + p * size, sizeof(double) * (size_t)size);
    }
    erc_case a = case_of(&o, "plain"), b = case_of(&q, "permuted");
    outcome x = run(&a, CPL_F32, 1, true), y = run(&b, CPL_F32, 2, true);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            assert_true(y.M[i * n + j] == x.M[(i * 4 + 2) % n * n + (j * 4 + 2) % n]);
    assert_near(x.result.loss, y.result.loss, 1e-12);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < d; k++)
            assert_near(y.dR[i * d + k], x.dR[(i * 4 + 2) % n * d + k], 1e-6);
    outcome_free(&x);
    outcome_free(&y);
    oracle_free(&o);
    oracle_free(&q);
    erc_case_free(&a);
    erc_case_free(&b);
}

/* Powers of two: exact, so M and loss scale exactly, and over a range that squares would leave. */
static void scaling_R_scales_M(void **state)
{
    (void)state;
    oracle o   = ordinary(0.8);
    erc_case a = case_of(&o, "plain"), b = case_of(&o, "scaled");
    const float factors[] = {0x1p-100f, 0x1p-7f, 0x1p90f};
    outcome x             = run(&a, CPL_F32, 2, true);
    for (int f = 0; f < 3; f++) {
        for (int i = 0; i < o.n * o.d; i++) b.R[i] = a.R[i] * factors[f];
        outcome y = run(&b, CPL_F32, 2, true);
        for (int i = 0; i < o.n * o.n; i++) assert_true(y.M[i] == x.M[i] * factors[f]);
        for (int i = 0; i < o.n; i++) assert_near(y.eps[i], x.eps[i], 1e-6);
        assert_near(y.result.loss / (double)factors[f], x.result.loss, 1e-12);
        for (int i = 0; i < o.n * o.d; i++) assert_near(y.dR[i], x.dR[i], 1e-6);
        outcome_free(&y);
    }
    outcome_free(&x);
    oracle_free(&o);
    erc_case_free(&a);
    erc_case_free(&b);
}

static void loss_is_convex_and_falls_in_alpha(void **state)
{
    (void)state;
    oracle o   = ordinary(0);
    erc_case c = case_of(&o, "alphas");
    double loss[30];
    for (int k = 0; k < 30; k++) {
        c.alpha   = 0.1 * k;
        outcome x = run(&c, CPL_F32, 1, false);
        loss[k]   = x.result.loss;
        outcome_free(&x);
        if (k > 0) assert_true(loss[k] <= loss[k - 1] + 1e-12);
        if (k > 1) assert_true(loss[k] + loss[k - 2] >= 2 * loss[k - 1] - 1e-7);
    }
    oracle_free(&o);
    erc_case_free(&c);
}

/* Two equal experts: M[i,j] ties with M[i,i] in numbers that round, and the gradient passes. */
static void ties_survive_rounding(void **state)
{
    (void)state;
    oracle o       = oracle_random(33, 50, 41, 0, 1.0, 0.5, 3);
    const int size = o.d * o.D;
    memcpy(o.w[0] + 20 * size, o.w[0] + 5 * size, sizeof(double) * (size_t)size);
    erc_case c = case_of(&o, "equal experts");
    outcome x  = run(&c, CPL_F32, 2, true);
    assert_true(x.M[5 * 33 + 20] == x.M[5 * 33 + 5] && x.M[20 * 33 + 5] == x.M[20 * 33 + 20]);
    double norm = 0;
    for (int i = 0; i < size; i++) norm += fabs((double)x.dw[0][20 * size + i]);
    assert_true(norm > 0);
    assert_true(x.result.active_rows >= 2.0 / (33 * 32));
    outcome_free(&x);
    oracle_free(&o);
    erc_case_free(&c);
}

static void same_call_same_bits(void **state)
{
    (void)state;
    oracle o   = oracle_random(40, 70, 33, 3, 0.7, 0.2, 5);
    erc_case c = case_of(&o, "again");
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        outcome x = run(&c, CPL_F32, n_threads, true), y = run(&c, CPL_F32, n_threads, true);
        assert_memory_equal(x.dR, y.dR, sizeof(float) * (size_t)(o.n * o.d));
        for (int k = 0; k < 2; k++)
            assert_memory_equal(x.dw[k], y.dw[k], sizeof(float) * (size_t)(o.n * o.d * o.D));
        assert_memory_equal(x.M, y.M, sizeof(float) * (size_t)(o.n * o.n));
        assert_true(x.result.loss == y.result.loss);
        outcome_free(&x);
        outcome_free(&y);
    }
    oracle_free(&o);
    erc_case_free(&c);
}

/* ---- drawn noise, draws, schedule ---- */

/* The loss with noise drawn for `step`; M, eps and delta come back in `o`. */
static void run_drawn(outcome *o, const erc_case *c, int64_t draws, uint64_t step)
{
    cpl_backend cpu, be = backend_for(c, &cpu, CPL_F32, 2);
    cpl_erc_settings erc     = {.activation = c->activation, .draws = draws};
    cpl_coupling_noise noise = {.seed = 1, .step = step, .layer = 2};
    cpl_expert_weights w     = {cube(c->w[0], c->n, c->D, c->d), cube(c->w[1], c->n, c->D, c->d),
                                cube(c->w[2], c->n, c->d, c->D)};
    memset(o, 0, sizeof *o);
    o->M                     = numbers(c->n * c->n, NULL);
    o->eps                   = numbers(c->n, NULL);
    o->delta                 = numbers(c->n * c->d, NULL);
    o->dR                    = numbers(c->n * c->d, NULL);
    cpl_coupling_outputs out = {.M     = cpl_tensor_2d(o->M, CPL_F32, c->n, c->n),
                                .eps   = cpl_tensor_1d(o->eps, CPL_F32, c->n),
                                .delta = cpl_tensor_2d(o->delta, CPL_F32, c->n, c->d),
                                .dR    = cpl_tensor_2d(o->dR, CPL_F32, c->n, c->d)};
    cpl_coupling(&be, &o->result, &out, cpl_tensor_2d(c->R, CPL_F32, c->n, c->d), w, &erc, c->alpha,
                 c->weight, &noise);
    cpl_backend_free(&be);
}

/* Within its bound the noise leaves every proxy nearest to its own row. */
static void drawn_noise_keeps_the_nearest_centre(void **state)
{
    (void)state;
    oracle o   = ordinary(1.0);
    erc_case c = case_of(&o, "drawn");
    for (uint64_t step = 0; step < 20; step++) {
        outcome x;
        run_drawn(&x, &c, 1, step);
        for (int i = 0; i < o.n; i++) {
            double own = 0;
            for (int k = 0; k < o.d; k++) {
                double r = c.R[i * o.d + k], delta = x.delta[i * o.d + k];
                assert_true(fabs(delta - 1) <= (double)x.eps[i] + 1e-6);
                own += r * r * (delta - 1) * (delta - 1);
            }
            for (int j = 0; j < o.n; j++) {
                double other = 0;
                for (int k = 0; k < o.d; k++) {
                    double by = (double)c.R[i * o.d + k] * x.delta[i * o.d + k] - c.R[j * o.d + k];
                    other += by * by;
                }
                assert_true(i == j || own <= other * (1 + 1e-6));
            }
        }
        outcome_free(&x);
    }
    oracle_free(&o);
    erc_case_free(&c);
}

/* Two draws are the mean of two losses with different noise, the first being that of one draw. */
static void draws_are_averaged(void **state)
{
    (void)state;
    oracle o   = ordinary(0.9);
    erc_case c = case_of(&o, "draws");
    outcome one, two, other;
    run_drawn(&one, &c, 1, 4);
    run_drawn(&two, &c, 2, 4);
    free(c.delta);
    c.delta = numbers(o.n * o.d, two.delta);
    other   = run(&c, CPL_F32, 2, true);
    assert_memory_not_equal(one.delta, two.delta, sizeof(float) * (size_t)(o.n * o.d));
    assert_near(two.result.loss, 0.5 * (one.result.loss + other.result.loss), 1e-12);
    for (int i = 0; i < o.n * o.d; i++)
        assert_near(two.dR[i], 0.5 * ((double)one.dR[i] + (double)other.dR[i]), 1e-6);
    outcome_free(&one);
    outcome_free(&two);
    outcome_free(&other);
    oracle_free(&o);
    erc_case_free(&c);
}

static void schedule(void **state)
{
    (void)state;
    double weight, alpha;
    cpl_erc_settings erc = {.weight = 2, .alpha = 1, .alpha_start = NAN};
    cpl_coupling_schedule(&erc, 1, &weight, &alpha);
    assert_true(weight == 2 && alpha == 1);
    erc.start_step   = 10;
    erc.warmup_steps = 4;
    erc.alpha_start  = 3;
    cpl_coupling_schedule(&erc, 10, &weight, &alpha);
    assert_true(weight == 0);
    cpl_coupling_schedule(&erc, 11, &weight, &alpha);
    assert_true(weight == 0.5 && alpha == 2.5);
    cpl_coupling_schedule(&erc, 13, &weight, &alpha);
    assert_true(weight == 1.5 && alpha == 1.5);
    cpl_coupling_schedule(&erc, 14, &weight, &alpha);
    assert_true(weight == 2 && alpha == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_f32),
        cmocka_unit_test(golden_bf16),
        cmocka_unit_test(equation),
        cmocka_unit_test(permuting_experts_permutes_M),
        cmocka_unit_test(scaling_R_scales_M),
        cmocka_unit_test(loss_is_convex_and_falls_in_alpha),
        cmocka_unit_test(ties_survive_rounding),
        cmocka_unit_test(same_call_same_bits),
        cmocka_unit_test(drawn_noise_keeps_the_nearest_centre),
        cmocka_unit_test(draws_are_averaged),
        cmocka_unit_test(schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
