/* test_couplet_refusals.c - the public interface of the coupling loss (couplet.h): wrong arguments,
 * numbers that are not finite, memory. */
#include "model/couplet_case.h"

/* ---- refusals ---- */

static const erc_case small = {.name = "small", .n = 3, .d = 2, .D = 2, .alpha = 1, .weight = 1};

#define REFUSES(part, change)                                                                      \
    do {                                                                                           \
        cpl_erc bad = good;                                                                        \
        change;                                                                                    \
        assert_fails(CPL_ERR_INPUT, part, cpl_erc_run(&bad));                                      \
    } while (0)

TEST(bad_arguments)
{
    float R[6] = {1, 2, 3, 4, 5, 6}, w[12] = {1}, delta[6] = {1, 1, NAN, 1, 1, 1};
    char room[64];
    erc_case c          = small;
    c.R                 = R;
    c.w[0]              = w;
    trainer t           = trainer_of(&c);
    cpl_erc good        = erc_of(&t, 0);
    const void *hole[3] = {w, NULL, w}, *odd[3] = {w, w, (char *)w + 1};
    float *grad_hole[3] = {t.dR, t.dR, NULL};
    assert_ok(cpl_erc_run(&good));
    REFUSES("n_experts is 0", bad.n_experts = 0);
    REFUSES("n_experts is 65536", bad.n_experts = 65536);
    REFUSES("d_model is -1", bad.d_model = -1);
    REFUSES("d_expert is 0", bad.d_expert = 0);
    REFUSES("experts [2, 2)", bad.first_expert = bad.end_expert = 2);
    REFUSES("experts [0, 4)", bad.end_expert = 4);
    REFUSES("needs every expert", bad.end_expert = 2);
    REFUSES("rows [-1, 2)", (bad.first_row = -1, bad.end_row = 2));
    REFUSES("router is NULL", bad.router = NULL);
    REFUSES("router_grad is not aligned", bad.router_grad = (float *)(void *)(room + 1));
    REFUSES("alpha is nan", bad.alpha = NAN);
    REFUSES("alpha is -0.5", bad.alpha = -0.5);
    REFUSES("weight is inf", bad.weight = INFINITY);
    REFUSES("not a cpl_erc_activation", bad.activation = (cpl_erc_activation)7);
    REFUSES("not a cpl_erc_noise_kind", bad.noise = (cpl_erc_noise_kind)9);
    REFUSES("dtype and compute", bad.compute = (cpl_erc_dtype)2);
    REFUSES("needs the matrices gate", bad.gate.at = NULL);
    REFUSES("needs the matrices up", bad.activation = CPL_ERC_SWIGLU);
    REFUSES("gate has stride 1", bad.gate.stride = 1);
    REFUSES("gate_grad has stride 0", bad.gate_grad.stride = 0);
    REFUSES("gate of expert 1 is NULL", bad.gate.at = hole);
    REFUSES("gate of expert 2 is not aligned", bad.gate.at = odd);
    REFUSES("gate_grad of expert 2 is NULL", bad.gate_grad.at = grad_hole);
    REFUSES("delta is NULL", (bad.noise = CPL_ERC_NOISE_GIVEN, bad.delta = NULL));
    REFUSES("delta[1,0] is not finite", (bad.noise = CPL_ERC_NOISE_GIVEN, bad.delta = delta));
    REFUSES("step must be below", bad.step = (uint64_t)1 << 40);
    REFUSES("n_threads is -1", bad.n_threads = -1);
    REFUSES("scratch has 64 bytes", (bad.scratch = room, bad.scratch_bytes = 64));
    assert_fails(CPL_ERR_INPUT, "NULL", cpl_erc_run(NULL));
    assert_fails(CPL_ERR_INPUT, "NULL", cpl_erc_scratch(&good, NULL));
}

TEST(phases_in_order)
{
    float R[6] = {1, 2, 3, 4, 5, 6}, w[12] = {1};
    erc_case c = small;
    c.R        = R;
    c.w[0]     = w;
    trainer t  = trainer_of(&c);
    part p     = part_of(&t, 0, 3, 0, 3);
    assert_fails(CPL_ERR_INPUT, "out of order", cpl_erc_sweep(&p.erc));
    assert_fails(CPL_ERR_INPUT, "out of order", cpl_erc_finish(&p.erc));
    assert_ok(cpl_erc_diagonals(&p.erc));
    assert_fails(CPL_ERR_INPUT, "out of order", cpl_erc_finish(&p.erc));
    assert_ok(cpl_erc_sweep(&p.erc));
    assert_ok(cpl_erc_finish(&p.erc));
    p.erc.diagonal = NULL;
    assert_fails(CPL_ERR_INPUT, "must be given", cpl_erc_diagonals(&p.erc));
    p.erc.scratch = NULL;
    assert_fails(CPL_ERR_INPUT, "scratch is NULL", cpl_erc_diagonals(&p.erc));
}

static void assert_not_a_number(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) assert_true(isnan(x[i]));
}

/* A NaN in the router makes every expert's gradient and the gradient of its row NaN, so that a
 * check of the gradients finds it. */
TEST(a_broken_router_shows_in_every_gradient)
{
    erc_inputs o = erc_inputs_random(5, 8, 6, 0, 1, 0, 4);
    erc_case c   = {.name = "broken", .n = 5, .d = 8, .D = 6, .weight = 1};
    c.R          = erc_floats(o.R, 40);
    c.w[0]       = erc_floats(o.w[0], 240);
    c.R[17]      = NAN;
    for (int k = 0; k < 8; k++) {
        c.alpha     = k & 1;
        trainer t   = trainer_of(&c);
        cpl_erc erc = erc_of(&t, 0);
        erc.noise   = k & 2 ? CPL_ERC_NOISE_NONE : CPL_ERC_NOISE_DRAWN;
        erc.compute = k & 4 ? CPL_ERC_BF16 : CPL_ERC_F32;
        assert_ok(cpl_erc_run(&erc));
        assert_not_a_number(t.grad[0], 240);
        assert_not_a_number(t.dR + 16, 8);
    }
}

/* Numbers that are not finite neither crash the call nor stay unseen. */
TEST(broken_numbers_show)
{
    erc_inputs o         = erc_inputs_random(5, 8, 6, 0, 1, 0, 4);
    erc_case c           = {.name = "broken", .n = 5, .d = 8, .D = 6, .alpha = 1, .weight = 1};
    const float broken[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 6; k++) {
        c.R                                = erc_floats(o.R, 40);
        c.w[0]                             = erc_floats(o.w[0], 240);
        *(k < 3 ? &c.R[17] : &c.w[0][100]) = broken[k % 3];
        trainer t                          = trainer_of(&c);
        cpl_erc erc                        = erc_of(&t, 0);
        for (int noise = 0; noise < 2; noise++) {
            erc.noise = noise ? CPL_ERC_NOISE_NONE : CPL_ERC_NOISE_DRAWN;
            assert_ok(cpl_erc_run(&erc));
            assert_false(isfinite(erc.loss));
        }
    }
}

/* ---- memory ---- */

TEST(memory)
{
    const int64_t n = 64, d = 1536, D = 768;
    const void *at[64];
    float *grad[64], some[1] = {0};
    for (int e = 0; e < n; e++) at[e] = grad[e] = some;
    for (int threads = 1; threads <= 4; threads++) {
        size_t bytes;
        cpl_erc erc;
        cpl_erc_init(&erc);
        erc.n_experts   = n;
        erc.d_model     = d;
        erc.d_expert    = D;
        erc.router      = some;
        erc.router_grad = some;
        erc.gate        = (cpl_erc_matrices){at, d};
        erc.gate_grad   = (cpl_erc_gradients){grad, d};
        erc.n_threads   = threads;
        assert_ok(cpl_erc_scratch(&erc, &bytes));
        /* A thread holds activations and their gradient, active proxies twice, their gradient, the
         * sum, and a packed strip. All threads share three arrays of proxies, delta, M and the own
         * activations. */
        const int64_t fixed = 96 * 256 + 4096, each = 2 * n * D + 4 * n * d + fixed;
        assert_true(bytes <= sizeof(float) * (size_t)(threads * each + 4 * n * d + 4 * n * n +
                                                      n * (D + 64) + fixed));
        assert_true(bytes < sizeof(float) * (size_t)(n * n * D));
    }
}

TEST(out_of_memory)
{
    float R[6] = {1, 2, 3, 4, 5, 6}, w[12] = {1};
    erc_case c  = small;
    c.R         = R;
    c.w[0]      = w;
    trainer t   = trainer_of(&c);
    cpl_erc erc = erc_of(&t, 0);
    cpl_alloc_fail_at(1);
    assert_fails(CPL_ERR_MEMORY, "out of memory", cpl_erc_run(&erc));
    cpl_alloc_fail_at(0);
    for (int i = 0; i < 6; i++) assert_true(t.dR[i] == 0);
    int64_t before = cpl_alloc_count();
    assert_ok(cpl_erc_scratch(&erc, &erc.scratch_bytes));
    erc.scratch = take(erc.scratch_bytes);
    assert_ok(cpl_erc_run(&erc));
    assert_int_equal(cpl_alloc_count(), before);
}
