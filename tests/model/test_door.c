/* test_door.c - the public door of the coupling loss (couplet.h): reference values, parts of M and
 * the exchanges between them, matrices as trainers hold them, threads, refusals, memory. */
#include "couplet.h"

#include <omp.h>

#include "base/arena.h"
#include "model/erc_case.h"
#include "model/erc_inputs.h"
#include "tensor/numbers.h"

static const double F32_TOLERANCE = 2e-6;

/* Pointers to the matrices of a case, and gradients. */
typedef struct trainer {
    const erc_case *c;
    const void *at[3][64];
    float *grad_at[3][64];
    float *grad[3], *dR, *M, *eps;
} trainer;

static float *zeros(int64_t count)
{
    float *x = calloc((size_t)count, sizeof *x);
    assert_non_null(x);
    return x;
}

static trainer trainer_of(const erc_case *c)
{
    trainer t          = {.c = c};
    const int64_t size = c->d * c->D;
    assert_true(c->n <= 64);
    for (int k = 0; k < 3; k++) {
        t.grad[k] = zeros(c->n * size);
        for (int64_t e = 0; e < c->n; e++) {
            t.at[k][e]      = c->w[k] ? c->w[k] + e * size : NULL;
            t.grad_at[k][e] = t.grad[k] + e * size;
        }
    }
    t.dR  = zeros(c->n * c->d);
    t.M   = zeros(c->n * c->n);
    t.eps = zeros(c->n);
    return t;
}

static void trainer_free(trainer *t)
{
    for (int k = 0; k < 3; k++) free(t->grad[k]);
    free(t->dR);
    free(t->M);
    free(t->eps);
}

/* Everything wanted, for the experts from `first` on. */
static cpl_erc erc_of(trainer *t, int64_t first)
{
    const erc_case *c = t->c;
    cpl_erc erc;
    cpl_erc_init(&erc);
    erc.n_experts   = c->n;
    erc.d_model     = c->d;
    erc.d_expert    = c->D;
    erc.router      = c->R;
    erc.gate        = (cpl_erc_matrices){t->at[0] + first, c->d};
    erc.up          = (cpl_erc_matrices){c->w[1] ? t->at[1] + first : NULL, c->d};
    erc.down        = (cpl_erc_matrices){c->w[2] ? t->at[2] + first : NULL, c->D};
    erc.activation  = (cpl_erc_activation)c->activation;
    erc.alpha       = c->alpha;
    erc.weight      = c->weight;
    erc.noise       = c->noise ? CPL_ERC_NOISE_GIVEN : CPL_ERC_NOISE_NONE;
    erc.delta       = c->delta;
    erc.n_threads   = 2;
    erc.router_grad = t->dR;
    erc.gate_grad   = (cpl_erc_gradients){t->grad_at[0] + first, c->d};
    erc.up_grad     = (cpl_erc_gradients){t->grad_at[1] + first, c->d};
    erc.down_grad   = (cpl_erc_gradients){t->grad_at[2] + first, c->D};
    erc.M           = t->M;
    erc.eps         = t->eps;
    return erc;
}

static void assert_as_reference(const trainer *t, double loss)
{
    static const char *const names[] = {"dWg", "dWp", "dWo"};
    const erc_case *c                = t->c;
    erc_assert_close(c->name, "eps", t->eps, c->eps, c->n, F32_TOLERANCE);
    erc_assert_close(c->name, "M", t->M, c->M, c->n * c->n, F32_TOLERANCE);
    assert_near(c->weight * loss, c->loss, 1e-5 * fabs(c->loss) + 1e-12);
    erc_assert_close(c->name, "dR", t->dR, c->dR, c->n * c->d, F32_TOLERANCE);
    for (int k = 0; k < 3; k++)
        erc_assert_close(c->name, names[k], t->grad[k], c->dw[k], c->n * c->d * c->D,
                         F32_TOLERANCE);
}

static void one_call(const erc_case *c)
{
    trainer t   = trainer_of(c);
    cpl_erc erc = erc_of(&t, 0);
    assert_ok(cpl_erc_run(&erc));
    assert_as_reference(&t, erc.loss);
    trainer_free(&t);
}

static void golden(void **state)
{
    (void)state;
    erc_for_all_cases(one_call);
}

/* ---- parts ---- */

enum { MOST_PARTS = 6 };

typedef struct part {
    cpl_erc erc;
    float *diagonal;
    int32_t *violations;
} part;

static part part_of(trainer *t, int64_t j0, int64_t j1, int64_t i0, int64_t i1)
{
    part p             = {.erc = erc_of(t, j0)};
    const size_t n     = (size_t)t->c->n;
    p.diagonal         = calloc(n, sizeof(float));
    p.violations       = calloc(2 * n, sizeof(int32_t));
    p.erc.first_expert = j0;
    p.erc.end_expert   = j1;
    p.erc.first_row    = i0;
    p.erc.end_row      = i1;
    p.erc.diagonal     = p.diagonal;
    p.erc.violations   = p.violations;
    assert_ok(cpl_erc_scratch(&p.erc, &p.erc.scratch_bytes));
    p.erc.scratch = malloc(p.erc.scratch_bytes + 1);
    return p;
}

/* What an all-gather and an all-reduce would do. */
static void exchange_diagonals(part *parts, int count)
{
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++)
            for (int64_t j = parts[b].erc.first_expert; j < parts[b].erc.end_expert; j++)
                parts[a].diagonal[j] = parts[b].diagonal[j];
}

static void exchange_violations(part *parts, int count, int64_t n)
{
    for (int64_t i = 0; i < 2 * n; i++) {
        int32_t sum = 0;
        for (int a = 0; a < count; a++) sum += parts[a].violations[i];
        for (int a = 0; a < count; a++) parts[a].violations[i] = sum;
    }
}

/* Experts cut at these places (expert parallelism); all gradients go to the same arrays. */
static void in_parts(const erc_case *c, const int64_t *cuts, int count)
{
    trainer t = trainer_of(c);
    part parts[MOST_PARTS];
    double loss = 0;
    for (int a = 0; a < count; a++) parts[a] = part_of(&t, cuts[a], cuts[a + 1], 0, c->n);
    for (int a = 0; a < count; a++) assert_ok(cpl_erc_diagonals(&parts[a].erc));
    exchange_diagonals(parts, count);
    for (int a = 0; a < count; a++) {
        assert_ok(cpl_erc_sweep(&parts[a].erc));
        loss += parts[a].erc.loss;
    }
    exchange_violations(parts, count, c->n);
    for (int a = 0; a < count; a++) {
        assert_ok(cpl_erc_finish(&parts[a].erc));
        free(parts[a].diagonal);
        free(parts[a].violations);
        free(parts[a].erc.scratch);
    }
    assert_as_reference(&t, loss);
    trainer_free(&t);
}

static void parts_of_a_case(const erc_case *c)
{
    const int64_t n = c->n;
    in_parts(c, (int64_t[]){0, n}, 1);
    if (n > 1) in_parts(c, (int64_t[]){0, n / 2, n}, 2);
    if (n > 2) in_parts(c, (int64_t[]){0, 1, n - 1, n}, 3);
}

static void expert_parallel(void **state)
{
    (void)state;
    erc_for_all_cases(parts_of_a_case);
}

/* Rows split over replicas that hold every expert: one call each, losses and gradients summed. */
static void rows_of_a_case(const erc_case *c)
{
    if (c->n < 3) return;
    trainer t            = trainer_of(c);
    const int64_t cuts[] = {0, 1, c->n / 2 + 1, c->n};
    double loss          = 0;
    for (int a = 0; a < 3; a++) {
        cpl_erc erc   = erc_of(&t, 0);
        erc.first_row = cuts[a];
        erc.end_row   = cuts[a + 1];
        assert_ok(cpl_erc_run(&erc));
        loss += erc.loss;
    }
    assert_as_reference(&t, loss);
    trainer_free(&t);
}

static void rows_over_replicas(void **state)
{
    (void)state;
    erc_for_all_cases(rows_of_a_case);
}

/* ---- matrices as trainers hold them ---- */

/* Gate and up interleaved in one [2 D, d + 3] tensor an expert, and so their gradients. */
static void fused_case(const erc_case *c)
{
    if (!c->w[1] || c->activation == CPL_ERC_OUTPUT || c->n > 16) return;
    trainer t            = trainer_of(c);
    const int64_t stride = c->d + 3, size = 2 * c->D * stride;
    float *w = zeros(c->n * size), *dw = zeros(c->n * size);
    cpl_erc erc = erc_of(&t, 0);
    for (int64_t e = 0; e < c->n; e++)
        for (int k = 0; k < 2; k++) {
            float *at       = w + e * size + k * c->D * stride;
            t.at[k][e]      = at;
            t.grad_at[k][e] = dw + e * size + k * c->D * stride;
            for (int64_t r = 0; r < c->D; r++)
                memcpy(at + r * stride, c->w[k] + (e * c->D + r) * c->d,
                       sizeof(float) * (size_t)c->d);
        }
    erc.gate.stride = erc.up.stride = erc.gate_grad.stride = erc.up_grad.stride = stride;
    assert_ok(cpl_erc_run(&erc));
    for (int64_t e = 0; e < c->n; e++)
        for (int k = 0; k < 2; k++)
            for (int64_t r = 0; r < c->D; r++) {
                const float *from = t.grad_at[k][e] + r * stride;
                memcpy(t.grad[k] + (e * c->D + r) * c->d, from, sizeof(float) * (size_t)c->d);
                assert_true(from[c->d] == 0 && from[c->d + 2] == 0);
            }
    assert_as_reference(&t, erc.loss);
    free(w);
    free(dw);
    trainer_free(&t);
}

static void fused_gate_and_up(void **state)
{
    (void)state;
    erc_for_all_cases(fused_case);
}

/* bf16 matrices are what they are: the same as the same numbers in F32. */
static void bf16_case(const erc_case *c)
{
    if (c->n > 16) return;
    const int64_t count = c->n * c->d * c->D, size = c->d * c->D;
    trainer wide = trainer_of(c), narrow = trainer_of(c);
    float *rounded[3] = {NULL, NULL, NULL};
    uint16_t *bits[3] = {NULL, NULL, NULL};
    for (int k = 0; k < 3; k++) {
        rounded[k] = zeros(count);
        bits[k]    = calloc((size_t)count, sizeof(uint16_t));
        for (int64_t i = 0; c->w[k] && i < count; i++) {
            bits[k][i]    = cpl_bf16_from_f32(c->w[k][i]);
            rounded[k][i] = cpl_bf16_to_f32(bits[k][i]);
        }
        for (int64_t e = 0; e < c->n; e++) {
            wide.at[k][e]   = rounded[k] + e * size;
            narrow.at[k][e] = bits[k] + e * size;
        }
    }
    cpl_erc a = erc_of(&wide, 0), b = erc_of(&narrow, 0);
    b.dtype = CPL_ERC_BF16;
    assert_ok(cpl_erc_run(&a));
    assert_ok(cpl_erc_run(&b));
    assert_true(a.loss == b.loss && a.row_violations == b.row_violations);
    assert_memory_equal(wide.M, narrow.M, sizeof(float) * (size_t)(c->n * c->n));
    assert_memory_equal(wide.dR, narrow.dR, sizeof(float) * (size_t)(c->n * c->d));
    for (int k = 0; k < 3; k++)
        assert_memory_equal(wide.grad[k], narrow.grad[k], sizeof(float) * (size_t)count);

    b.compute = CPL_ERC_BF16; /* proxies rounded too */
    assert_ok(cpl_erc_run(&b));
    erc_assert_close(c->name, "M in bf16", narrow.M, wide.M, c->n * c->n, 1e-2);
    for (int k = 0; k < 3; k++) {
        free(rounded[k]);
        free(bits[k]);
    }
    trainer_free(&wide);
    trainer_free(&narrow);
}

static void bf16_matrices(void **state)
{
    (void)state;
    erc_for_all_cases(bf16_case);
}

/* Each output may be left out, and what is left is the same. */
static void outputs_are_optional(void **state)
{
    (void)state;
    erc_inputs o = erc_inputs_random(6, 9, 5, 0, 0.8, 0.1, 1);
    erc_case c   = {.name = "random", .n = 6, .d = 9, .D = 5, .alpha = 0.8, .weight = 1};
    c.R          = erc_floats(o.R, 54);
    c.w[0]       = erc_floats(o.w[0], 270);
    trainer all = trainer_of(&c), some = trainer_of(&c);
    cpl_erc a = erc_of(&all, 0), b = erc_of(&some, 0), none = erc_of(&some, 0);
    assert_ok(cpl_erc_run(&a));
    b.router_grad = NULL;
    b.M = b.eps = NULL;
    assert_ok(cpl_erc_run(&b));
    assert_memory_equal(all.grad[0], some.grad[0], sizeof(float) * 270);
    b              = erc_of(&some, 0);
    b.gate_grad.at = NULL;
    assert_ok(cpl_erc_run(&b));
    assert_memory_equal(all.dR, some.dR, sizeof(float) * 54);
    none.router_grad  = NULL;
    none.gate_grad.at = none.up_grad.at = none.down_grad.at = NULL;
    assert_ok(cpl_erc_run(&none));
    assert_true(none.loss == a.loss && none.row_violations == a.row_violations);
    assert_true(a.row_violations > 0 && a.column_violations == none.column_violations);
    trainer_free(&all);
    trainer_free(&some);
    erc_inputs_free(&o);
    free(c.R);
    free(c.w[0]);
}

/* ---- many callers ---- */

static void threads_at_once(void **state)
{
    (void)state;
    erc_inputs o = erc_inputs_random(20, 33, 21, 3, 0.9, 0.1, 2);
    erc_case c   = {.name = "random", .n = 20, .d = 33, .D = 21, .alpha = 0.9, .weight = 1};
    c.activation = CPL_ERC_SWIGLU;
    c.R          = erc_floats(o.R, 20 * 33);
    for (int k = 0; k < 3; k++) c.w[k] = erc_floats(o.w[k], 20 * 33 * 21);
    enum { CALLERS = 4 };
    trainer t[CALLERS];
    cpl_erc erc[CALLERS];
    cpl_status status[CALLERS];
    for (int a = 0; a < CALLERS; a++) {
        t[a]             = trainer_of(&c);
        erc[a]           = erc_of(&t[a], 0);
        erc[a].noise     = CPL_ERC_NOISE_DRAWN;
        erc[a].seed      = 5;
        erc[a].layer     = (uint32_t)(a % 2);
        erc[a].n_threads = 1;
    }
#pragma omp parallel for num_threads(CALLERS)
    for (int a = 0; a < CALLERS; a++) status[a] = cpl_erc_run(&erc[a]);
    for (int a = 0; a < CALLERS; a++) assert_int_equal(status[a], CPL_OK);
    assert_memory_equal(t[0].dR, t[2].dR, sizeof(float) * 20 * 33);
    assert_memory_equal(t[1].grad[0], t[3].grad[0], sizeof(float) * 20 * 33 * 21);
    assert_true(erc[0].loss == erc[2].loss && erc[0].loss != erc[1].loss);
    for (int a = 0; a < CALLERS; a++) trainer_free(&t[a]);
    erc_inputs_free(&o);
    free(c.R);
    for (int k = 0; k < 3; k++) free(c.w[k]);
}

/* ---- refusals ---- */

static const erc_case small = {.name = "small", .n = 3, .d = 2, .D = 2, .alpha = 1, .weight = 1};

#define REFUSES(part, change)                                                                      \
    do {                                                                                           \
        cpl_erc bad = good;                                                                        \
        change;                                                                                    \
        assert_fails(CPL_ERR_INPUT, part, cpl_erc_run(&bad));                                      \
    } while (0)

static void bad_arguments(void **state)
{
    (void)state;
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
    REFUSES("no activation", bad.activation = (cpl_erc_activation)7);
    REFUSES("no kind of noise", bad.noise = (cpl_erc_noise_kind)9);
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
    trainer_free(&t);
}

static void phases_in_order(void **state)
{
    (void)state;
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
    p.erc.scratch = (free(p.erc.scratch), NULL);
    assert_fails(CPL_ERR_INPUT, "scratch is NULL", cpl_erc_diagonals(&p.erc));
    free(p.diagonal);
    free(p.violations);
    trainer_free(&t);
}

static void assert_not_a_number(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) assert_true(isnan(x[i]));
}

/* One number of the router that is NaN makes every expert's gradient NaN and that row's, so that a
 * check of the gradients finds it. */
static void a_broken_router_shows_in_every_gradient(void **state)
{
    (void)state;
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
        trainer_free(&t);
    }
    free(c.R);
    free(c.w[0]);
    erc_inputs_free(&o);
}

/* Not finite: no crash and no silence. */
static void broken_numbers_show(void **state)
{
    (void)state;
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
        trainer_free(&t);
        free(c.R);
        free(c.w[0]);
    }
    erc_inputs_free(&o);
}

/* ---- memory ---- */

static void memory(void **state)
{
    (void)state;
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
        /* a thread: activations and their gradient; active proxies twice, their gradient, the sum;
         * a packed strip. Together: proxies three times, delta, M, the own activations. */
        const int64_t fixed = 96 * 256 + 4096, each = 2 * n * D + 4 * n * d + fixed;
        assert_true(bytes <= sizeof(float) * (size_t)(threads * each + 4 * n * d + 4 * n * n +
                                                      n * (D + 64) + fixed));
        assert_true(bytes < sizeof(float) * (size_t)(n * n * D));
    }
}

static void out_of_memory(void **state)
{
    (void)state;
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
    erc.scratch = malloc(erc.scratch_bytes);
    assert_ok(cpl_erc_run(&erc));
    assert_int_equal(cpl_alloc_count(), before);
    free(erc.scratch);
    trainer_free(&t);
}

static void version(void **state)
{
    (void)state;
    char text[32] = {0};
    FILE *file    = fopen("VERSION", "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    assert_string_equal(cpl_version(), text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),
        cmocka_unit_test(expert_parallel),
        cmocka_unit_test(rows_over_replicas),
        cmocka_unit_test(fused_gate_and_up),
        cmocka_unit_test(bf16_matrices),
        cmocka_unit_test(outputs_are_optional),
        cmocka_unit_test(threads_at_once),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(phases_in_order),
        cmocka_unit_test(broken_numbers_show),
        cmocka_unit_test(a_broken_router_shows_in_every_gradient),
        cmocka_unit_test(memory),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
