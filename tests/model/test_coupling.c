/* test_coupling.c - the coupling loss against the reference values of PyTorch in float64 and
 * against properties for any input. erc/test_reference.c compares it with the plain loops. */
#include "model/coupling.h"

#include "model/erc_run.h"

static const double BF16_GRADIENTS = 3e-2, BF16_FORWARD = 2e-2, BF16_KINK = 1.5e-3;

static void f32_case(const erc_case *c)
{
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        erc_outcome o = erc_run(c, CPL_F32, n_threads, true);
        erc_assert_reference(c, o.eps, o.M, o.loss, o.dR, o.dw);
        erc_outcome forward = erc_run(c, CPL_F32, n_threads, false);
        erc_assert_close(c->name, "M (forward)", forward.M, c->M, c->n * c->n, ERC_F32_TOLERANCE);
        assert_near(c->weight * forward.loss, c->loss, 1e-5 * fabs(c->loss) + 1e-12);
    }
}

TEST(golden_f32)
{
    erc_for_all_cases(f32_case);
}

/* Checks bf16 operands. All gradients count as one vector. If a hinge is nearer to its kink than
 * bf16 operands can resolve, only the forward pass is compared. */
static void bf16_case(const erc_case *c)
{
    const int64_t expert = c->n * c->D * c->d;
    erc_outcome o        = erc_run(c, CPL_BF16, 2, true);
    double off, norm, all_off, all_norm;
    erc_assert_close(c->name, "eps", o.eps, c->eps, c->n, ERC_F32_TOLERANCE);
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
}

TEST(golden_bf16)
{
    erc_for_all_cases(bf16_case);
}

/* ---- properties for any input ---- */

static erc_inputs ordinary(double alpha)
{
    return erc_inputs_random(9, 20, 12, 0, alpha, 0.05, 7);
}

/* Expert and router row p(i) take the place of i: M[i,j] becomes M[p(i),p(j)], bit for bit. */
TEST(permuting_experts_permutes_M)
{
    erc_inputs o = ordinary(1.0), q = ordinary(1.0);
    const int n = o.n, d = o.d, size = o.d * o.D;
    for (int i = 0; i < n; i++) {
        const int p = (i * 4 + 2) % n;
        memcpy(q.R + i * d, o.R + p * d, sizeof(double) * (size_t)d);
        memcpy(q.delta + i * d, o.delta + p * d, sizeof(double) * (size_t)d);
        memcpy(q.w[0] + i * size, o.w[0] + p * size, sizeof(double) * (size_t)size);
    }
    erc_case a = erc_case_of(&o, "plain"), b = erc_case_of(&q, "permuted");
    erc_outcome x = erc_run(&a, CPL_F32, 1, true), y = erc_run(&b, CPL_F32, 2, true);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            assert_true(y.M[i * n + j] == x.M[(i * 4 + 2) % n * n + (j * 4 + 2) % n]);
    assert_near(x.loss, y.loss, 1e-12);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < d; k++)
            assert_near(y.dR[i * d + k], x.dR[(i * 4 + 2) % n * d + k], 1e-6);
}

/* Powers of two scale M and the loss exactly, over a range that squares would leave. */
TEST(scaling_R_scales_M)
{
    erc_inputs o = ordinary(0.8);
    erc_case a = erc_case_of(&o, "plain"), b = erc_case_of(&o, "scaled");
    const float factors[] = {0x1p-100f, 0x1p-7f, 0x1p90f};
    erc_outcome x         = erc_run(&a, CPL_F32, 2, true);
    for (int f = 0; f < 3; f++) {
        for (int i = 0; i < o.n * o.d; i++) b.R[i] = a.R[i] * factors[f];
        erc_outcome y = erc_run(&b, CPL_F32, 2, true);
        for (int i = 0; i < o.n * o.n; i++) assert_true(y.M[i] == x.M[i] * factors[f]);
        for (int i = 0; i < o.n; i++) assert_near(y.eps[i], x.eps[i], 1e-6);
        assert_near(y.loss / (double)factors[f], x.loss, 1e-12);
        for (int i = 0; i < o.n * o.d; i++) assert_near(y.dR[i], x.dR[i], 1e-6);
    }
}

TEST(loss_is_convex_and_falls_in_alpha)
{
    erc_inputs o = ordinary(0);
    erc_case c   = erc_case_of(&o, "alphas");
    double loss[30];
    for (int k = 0; k < 30; k++) {
        c.alpha       = 0.1 * k;
        erc_outcome x = erc_run(&c, CPL_F32, 1, false);
        loss[k]       = x.loss;
        if (k > 0) assert_true(loss[k] <= loss[k - 1] + 1e-12);
        if (k > 1) assert_true(loss[k] + loss[k - 2] >= 2 * loss[k - 1] - 1e-7);
    }
}

TEST(same_call_same_bits)
{
    erc_inputs o = erc_inputs_random(40, 70, 33, 3, 0.7, 0.2, 5);
    erc_case c   = erc_case_of(&o, "again");
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        erc_outcome x = erc_run(&c, CPL_F32, n_threads, true),
                    y = erc_run(&c, CPL_F32, n_threads, true);
        assert_memory_equal(x.dR, y.dR, sizeof(float) * (size_t)(o.n * o.d));
        for (int k = 0; k < 2; k++)
            assert_memory_equal(x.dw[k], y.dw[k], sizeof(float) * (size_t)(o.n * o.d * o.D));
        assert_memory_equal(x.M, y.M, sizeof(float) * (size_t)(o.n * o.n));
        assert_true(x.loss == y.loss);
    }
}

/* ---- drawn noise, draws, schedule ---- */

/* Within its bound the noise leaves every proxy nearest to its own row. */
TEST(drawn_noise_keeps_the_nearest_centre)
{
    erc_inputs o = ordinary(1.0);
    erc_case c   = erc_case_of(&o, "drawn");
    for (uint64_t step = 0; step < 20; step++) {
        erc_outcome x = erc_run_drawn(&c, 1, step);
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
    }
}

/* The loss of two draws is the mean of two losses. The first of them is the loss of one draw. */
TEST(draws_are_averaged)
{
    erc_inputs o    = ordinary(0.9);
    erc_case c      = erc_case_of(&o, "draws");
    erc_outcome one = erc_run_drawn(&c, 1, 4), two = erc_run_drawn(&c, 2, 4);
    c.delta           = two.delta;
    erc_outcome other = erc_run(&c, CPL_F32, 2, true);
    assert_memory_not_equal(one.delta, two.delta, sizeof(float) * (size_t)(o.n * o.d));
    assert_near(two.loss, 0.5 * (one.loss + other.loss), 1e-12);
    for (int i = 0; i < o.n * o.d; i++)
        assert_near(two.dR[i], 0.5 * ((double)one.dR[i] + (double)other.dR[i]), 1e-6);
}

TEST(schedule)
{
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
