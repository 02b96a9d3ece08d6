/* Grouped experts, forward and backward, against plain double. The gradient in double is compared
 * with central differences. The gates take x, or hidden vectors of each token and expert in its
 * place. The gradient of those vectors is checked too. */
#include "base/arena.h"
#include "tensor/levels.h"
#include "tensor/ops_check.h"

static const double C    = 16;
static const double BF16 = 0x1p-6; /* operands keep 8 bits; three products in a row */

/* The choices of the tokens: at random; all of them expert 0 first; never expert 1. */
typedef enum choice { RANDOM, HOT, EMPTY } choice;

typedef struct sizes {
    int64_t T, K, n, d, D;
    int64_t r; /* width of the hidden vectors; 0: gates take x */
} sizes;

typedef struct problem {
    sizes s;
    cpl_tensor x, hidden, weight, expert, dy; /* hidden [T,n,r], or none */
    cpl_expert_weights w;
} problem;

/* The outputs of a call. */
typedef struct answer {
    cpl_tensor y, gate, up, dx, dhidden, dweight; /* dhidden [T K, r], or none */
    cpl_expert_weights dw;
    cpl_dispatch plan;
} answer;

static void choose(problem *p, choice how)
{
    const sizes s   = p->s;
    cpl_rng_key key = {.seed = 5, .stream = CPL_STREAM_TEST};
    uint64_t drawn  = 0;
    for (int64_t t = 0; t < s.T; t++)
        for (int64_t k = 0; k < s.K; k++) {
            int32_t *row = cpl_i32(p->expert) + t * s.K;
            bool taken   = true;
            while (taken) {
                row[k] = (int32_t)(cpl_rng_u32(&key, drawn++) % (uint32_t)s.n);
                if (how == HOT && k == 0) row[k] = 0;
                taken = how == EMPTY && row[k] == 1;
                for (int64_t i = 0; i < k; i++) taken = taken || row[i] == row[k];
            }
        }
}

static int64_t gate_width(sizes s)
{
    return s.r ? s.r : s.d;
}

static problem new_problem(sizes s, choice how)
{
    const float by_d = 1 / sqrtf((float)s.d), by_D = 1 / sqrtf((float)s.D);
    problem p  = LIST(.s = s, .x = normal_2d(s.T, s.d, 1), .weight = normal_2d(s.T, s.K, 1),
                      .expert = new_tensor(CPL_I32, s.T, s.K), .dy = normal_2d(s.T, s.d, 1));
    p.hidden   = s.r ? normal_3d(s.T, s.n, s.r, 1) : cpl_tensor_none();
    p.w.w_gate = normal_3d(s.n, s.D, gate_width(s), 2 / sqrtf((float)gate_width(s)));
    p.w.w_up   = normal_3d(s.n, s.D, s.d, by_d);
    p.w.w_down = normal_3d(s.n, s.d, s.D, by_D);
    choose(&p, how);
    return p;
}

/* ---- the equations in double ---- */

typedef struct wide {
    sizes s;
    const int32_t *expert;
    double *x, *hidden, *weight, *gate, *up, *down, *dy;
    double *y, *dx, *dhidden, *dweight, *dgate, *dup, *ddown; /* dhidden [T,n,r] */
} wide;

static wide widen(const problem *p)
{
    const sizes s = p->s;
    wide w        = {.s = s, .expert = cpl_i32(p->expert)};
    w.x           = doubles_of(p->x);
    w.hidden      = s.r ? doubles_of(p->hidden) : NULL;
    w.weight      = doubles_of(p->weight);
    w.gate        = doubles_of(p->w.w_gate);
    w.up          = doubles_of(p->w.w_up);
    w.down        = doubles_of(p->w.w_down);
    w.dy          = doubles_of(p->dy);
    w.y           = new_doubles(s.T * s.d);
    w.dx          = new_doubles(s.T * s.d);
    w.dhidden     = new_doubles(s.T * s.n * s.r);
    w.dweight     = new_doubles(s.T * s.K);
    w.dgate       = new_doubles(cpl_tensor_count(p->w.w_gate));
    w.dup         = new_doubles(cpl_tensor_count(p->w.w_up));
    w.ddown       = new_doubles(cpl_tensor_count(p->w.w_down));
    return w;
}

/* Adds one assignment's number j of the expert's width: y += weight W_down[.,j] SiLU(g) u, and the
 * gradients if `backward`. The gate takes h. */
static void one_number(wide *w, int64_t t, int64_t k, int64_t j, bool backward)
{
    const int64_t d = w->s.d, D = w->s.D, r = gate_width(w->s), e = w->expert[t * w->s.K + k];
    const int64_t vector = (t * w->s.n + e) * w->s.r, row = e * D + j;
    const double *x = w->x + t * d, *h = w->s.r ? w->hidden + vector : x, *dy = w->dy + t * d;
    double *dx = w->dx + t * d, *dh = w->s.r ? w->dhidden + vector : dx;
    const double *gate = w->gate + row * r, *up = w->up + row * d;
    const double weight = w->weight[t * w->s.K + k];
    double g = 0, u = 0, da = 0;
    for (int64_t i = 0; i < r; i++) g += gate[i] * h[i];
    for (int64_t i = 0; i < d; i++) u += up[i] * x[i];
    const double sigmoid = 1 / (1 + exp(-g)), act = g * sigmoid * u;
    for (int64_t i = 0; i < d; i++) {
        const int64_t at = (e * d + i) * D + j;
        w->y[t * d + i] += weight * w->down[at] * act;
        da += dy[i] * w->down[at];
        if (backward) w->ddown[at] += weight * dy[i] * act;
    }
    if (!backward) return;
    const double dg = weight * da * u * (sigmoid + g * sigmoid * (1 - sigmoid));
    const double du = weight * da * g * sigmoid;
    w->dweight[t * w->s.K + k] += act * da;
    for (int64_t i = 0; i < r; i++) {
        w->dgate[row * r + i] += dg * h[i];
        dh[i] += dg * gate[i];
    }
    for (int64_t i = 0; i < d; i++) {
        w->dup[row * d + i] += du * x[i];
        dx[i] += du * up[i];
    }
}

static void equations(wide *w, bool backward)
{
    for (int64_t i = 0; i < w->s.T * w->s.d; i++) w->y[i] = 0;
    for (int64_t t = 0; t < w->s.T; t++)
        for (int64_t k = 0; k < w->s.K; k++)
            for (int64_t j = 0; j < w->s.D; j++) one_number(w, t, k, j, backward);
}

static double loss(void *context)
{
    wide *w    = context;
    double sum = 0;
    equations(w, false);
    for (int64_t i = 0; i < w->s.T * w->s.d; i++) sum += w->dy[i] * w->y[i];
    return sum;
}

TEST(equations_agree_with_differences)
{
    for (int64_t r = 0; r < 3; r += 2) {
        const sizes s = {5, 2, 3, 4, 3, r};
        problem p     = new_problem(s, RANDOM);
        wide w        = widen(&p);
        const struct {
            const char *name;
            double *at, *slope;
            int64_t count;
        } all[] = {{"dx", w.x, w.dx, s.T * s.d},
                   {"dhidden", w.hidden, w.dhidden, s.T * s.n * s.r},
                   {"dweight", w.weight, w.dweight, s.T * s.K},
                   {"dgate", w.gate, w.dgate, cpl_tensor_count(p.w.w_gate)},
                   {"dup", w.up, w.dup, cpl_tensor_count(p.w.w_up)},
                   {"ddown", w.down, w.ddown, cpl_tensor_count(p.w.w_down)}};
        equations(&w, true);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            assert_doubles(all[i].name, all[i].slope, gradient(loss, &w, all[i].at, all[i].count),
                           all[i].count);
    }
}

/* ---- the operation ---- */

static cpl_backend *backend_for(sizes s, cpl_dtype compute, int n_threads)
{
    return new_cpu(compute, n_threads,
                   (cpl_work){.n_tokens  = s.T,
                              .d_model   = s.d,
                              .d_expert  = s.D,
                              .n_experts = s.n,
                              .top_k     = s.K,
                              .gate_rank = s.r,
                              .training  = true});
}

static answer run_experts(cpl_backend *be, const problem *p)
{
    const sizes s     = p->s;
    answer a          = {ones_like(p->x),
                         new_tensor(CPL_F32, s.T * s.K, s.D),
                         new_tensor(CPL_F32, s.T * s.K, s.D),
                         ones_like(p->x),
                s.r ? new_tensor(CPL_F32, s.T * s.K, s.r) : cpl_tensor_none(),
                         ones_like(p->weight),
                         {ones_like(p->w.w_gate), ones_like(p->w.w_up), ones_like(p->w.w_down)},
                         dispatch_of(be, p->expert, s.n)};
    cpl_tensor unkept = new_tensor(CPL_F32, s.T, s.d), none = cpl_tensor_none();
    for (int64_t i = 0; i < s.T * s.K * s.r; i++) cpl_f32(a.dhidden)[i] = NAN; /* not set yet */
    int64_t before = cpl_alloc_count();
    be->ops->experts(be, a.y, a.gate, a.up, p->x, p->hidden, p->weight, a.plan, p->w);
    be->ops->experts(be, unkept, none, none, p->x, p->hidden, p->weight, a.plan, p->w);
    be->ops->experts_backward(be, a.dx, a.dhidden, a.dweight, a.dw, p->dy, a.gate, a.up, p->x,
                              p->hidden, p->weight, a.plan, p->w);
    assert_int_equal(cpl_alloc_count(), before);
    assert_ok(be->ops->sync(be));
    assert_same_bits(a.y, unkept);
    return a;
}

/* Returns dhidden [T K, r] as the operation gives it: the rows of the choices, sorted. */
static double *chosen_rows(const answer *a, const wide *w)
{
    const sizes s = w->s;
    double *rows  = new_doubles(s.T * s.K * s.r);
    for (int64_t i = 0; i < s.T * s.K; i++)
        memcpy(rows + cpl_i32(a->plan.row)[i] * s.r,
               w->dhidden + (i / s.K * s.n + w->expert[i]) * s.r, (size_t)s.r * sizeof *rows);
    return rows;
}

static void compare(const answer *a, const problem *p, double limit)
{
    wide w = widen(p);
    equations(&w, true);
    assert_close("y", a->y, w.y, limit, 0);
    assert_close("dweight", a->dweight, w.dweight, limit, 0);
    if (p->s.r) assert_close("dhidden", a->dhidden, chosen_rows(a, &w), limit, 0);
    assert_added("dx", a->dx, w.dx, limit);
    assert_added("dw_gate", a->dw.w_gate, w.dgate, limit);
    assert_added("dw_up", a->dw.w_up, w.dup, limit);
    assert_added("dw_down", a->dw.w_down, w.ddown, limit);
}

static void assert_same_answer(const answer *a, const answer *b)
{
    assert_same_bits(a->y, b->y);
    assert_same_bits(a->dx, b->dx);
    if (cpl_tensor_is_there(a->dhidden)) assert_same_bits(a->dhidden, b->dhidden);
    assert_same_bits(a->dweight, b->dweight);
    assert_same_bits(a->dw.w_gate, b->dw.w_gate);
    assert_same_bits(a->dw.w_up, b->dw.w_up);
    assert_same_bits(a->dw.w_down, b->dw.w_down);
}

static double f32_limit(sizes s)
{
    return sum_tolerance(C, s.T * s.K + s.d + s.D + s.r);
}

/* The width r is above d and below, alone and wide. One expert has all tokens in several chunks. */
static const struct {
    sizes s;
    choice how;
} cases[] = {
    {{1, 1, 1, 1, 1, 0}, RANDOM},     {{1, 3, 8, 5, 7, 0}, RANDOM},
    {{37, 2, 5, 17, 9, 0}, RANDOM},   {{64, 4, 4, 16, 33, 0}, RANDOM},
    {{50, 2, 6, 12, 20, 0}, HOT},     {{50, 1, 6, 12, 300, 0}, HOT},
    {{40, 2, 4, 13, 11, 0}, EMPTY},   {{1200, 2, 3, 10, 6, 0}, HOT},
    {{1100, 1, 2, 7, 5, 0}, HOT},     {{0, 2, 4, 8, 8, 0}, RANDOM},
    {{3, 1, 64, 8, 257, 0}, RANDOM},  {{1, 1, 1, 1, 1, 1}, RANDOM},
    {{1, 3, 8, 5, 7, 2}, RANDOM},     {{37, 2, 5, 17, 9, 21}, RANDOM},
    {{64, 4, 4, 16, 33, 11}, RANDOM}, {{50, 2, 6, 12, 20, 7}, HOT},
    {{1200, 1, 3, 10, 6, 4}, HOT},    {{0, 2, 4, 8, 8, 4}, RANDOM},
    {{3, 1, 64, 8, 257, 40}, RANDOM}, {{1100, 2, 2, 7, 5, 3}, RANDOM},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void check(cpl_dtype compute)
{
    static const int threads[] = {1, 2, 6, 2};
    for (int i = 0; i < N_CASES; i++, release_all(NULL)) {
        problem p          = new_problem(cases[i].s, cases[i].how);
        const double limit = compute == CPL_BF16 ? BF16 : f32_limit(p.s);
        answer a[4];
        for (int k = 0; k < 4; k++) a[k] = run_experts(backend_for(p.s, compute, threads[k]), &p);
        assert_same_answer(&a[1], &a[3]);
        for (int k = 0; k < 3; k++) compare(&a[k], &p, limit);
    }
}

TEST(experts_in_f32)
{
    check(CPL_F32);
}

TEST(experts_in_bf16)
{
    check(CPL_BF16);
}

/* Weights in bf16 give the results of their F32 originals after rounding. */
TEST(bf16_weights)
{
    for (int64_t r = 0; r < 10; r += 9) {
        const sizes s   = {45, 2, 5, 16, 24, r};
        problem p       = new_problem(s, RANDOM);
        cpl_backend *be = backend_for(s, CPL_BF16, 2);
        answer with_f32 = run_experts(be, &p);
        cpl_tensor *w[] = {&p.w.w_gate, &p.w.w_up, &p.w.w_down};
        for (int i = 0; i < 3; i++) *w[i] = as_bf16(be, *w[i]);
        answer with_bf16 = run_experts(be, &p);
        assert_same_answer(&with_f32, &with_bf16);
    }
}

/* Large gates neither overflow nor lose the gradient: SiLU is linear or zero there. */
TEST(saturated_gates)
{
    const sizes s = {20, 2, 4, 8, 8, 0};
    problem p     = new_problem(s, RANDOM);
    for (int64_t i = 0; i < cpl_tensor_count(p.w.w_gate); i++) cpl_f32(p.w.w_gate)[i] *= 300;
    answer a = run_experts(backend_for(s, CPL_F32, 2), &p);
    compare(&a, &p, f32_limit(s));
}

/* A block of slots holds fewer assignments: tokens lie in two blocks, and slots and rows differ. */
TEST(several_blocks)
{
    for (int64_t r = 0; r < 3; r += 2) {
        const sizes s = {1100, 8, 9, 8192, 1, r};
        problem p     = new_problem(s, RANDOM);
        answer a      = run_experts(backend_for(s, CPL_F32, 2), &p);
        compare(&a, &p, f32_limit(s));
    }
}

/* Renaming the experts permutes the weights' gradients and changes only the order of sums. */
TEST(permuted_experts)
{
    const sizes s = {60, 2, 4, 9, 6, 0};
    problem p = new_problem(s, RANDOM), q = p;
    answer a = run_experts(backend_for(s, CPL_F32, 2), &p), b;
    q.expert = copy_of(p.expert);
    q.w      = (cpl_expert_weights){copy_of(p.w.w_gate), copy_of(p.w.w_up), copy_of(p.w.w_down)};
    for (int64_t i = 0; i < s.T * s.K; i++) cpl_i32(q.expert)[i] = 3 - cpl_i32(p.expert)[i];
    cpl_tensor from[] = {p.w.w_gate, p.w.w_up, p.w.w_down},
               to[]   = {q.w.w_gate, q.w.w_up, q.w.w_down};
    for (int k = 0; k < 3; k++)
        for (int64_t e = 0; e < s.n; e++)
            memcpy(cpl_tensor_at(to[k], 3 - e).storage, cpl_tensor_at(from[k], e).storage,
                   cpl_tensor_bytes(cpl_tensor_at(from[k], e)));
    b = run_experts(backend_for(s, CPL_F32, 2), &q);
    assert_close("y", b.y, doubles_of(a.y), f32_limit(s), 0);
    assert_close("dx", b.dx, doubles_of(a.dx), f32_limit(s), 0);
    for (int64_t e = 0; e < s.n; e++)
        assert_close("dw", cpl_tensor_at(b.dw.w_down, 3 - e),
                     doubles_of(cpl_tensor_at(a.dw.w_down, e)), f32_limit(s), 0);
}

/* ---- against whole gates ---- */

/* Returns matrix e of a [n r, d]: the r rows of expert e. */
static cpl_tensor rows_of(cpl_tensor a, int64_t e, int64_t r)
{
    return cpl_tensor_range(a, e * r, r);
}

/* Gates W_b [n,D,r] of hidden = W_a x equal whole gates W_b W_a of x. They give the same y and,
 * with the gradient taken through the product, the same dx. */
TEST(factors_are_as_their_product)
{
    const sizes s   = {70, 2, 5, 24, 16, 10};
    problem p       = new_problem(s, RANDOM), q;
    cpl_backend *be = backend_for(s, CPL_F32, 2);
    cpl_tensor a    = normal_2d(s.n * s.r, s.d, 1 / sqrtf((float)s.d));
    be->ops->gemm(be, cpl_tensor_as_2d(p.hidden, s.T, s.n * s.r), CPL_AS_IS, p.x, CPL_TRANSPOSED, a,
                  0);
    answer parts = run_experts(be, &p);
    q            = p;
    q.s.r        = 0;
    q.hidden     = cpl_tensor_none();
    q.w.w_gate   = normal_3d(s.n, s.D, s.d, 1);
    for (int64_t e = 0; e < s.n; e++)
        be->ops->gemm(be, cpl_tensor_at(q.w.w_gate, e), CPL_AS_IS, cpl_tensor_at(p.w.w_gate, e),
                      CPL_AS_IS, rows_of(a, e, s.r), 0);
    answer whole = run_experts(be, &q);
    for (int64_t i = 0; i < s.T * s.K; i++) {
        const cpl_tensor row = cpl_tensor_range(parts.dhidden, cpl_i32(parts.plan.row)[i], 1);
        be->ops->gemm(be, cpl_tensor_range(parts.dx, i / s.K, 1), CPL_AS_IS, row, CPL_AS_IS,
                      rows_of(a, cpl_i32(p.expert)[i], s.r), 1);
    }
    assert_close("y", parts.y, doubles_of(whole.y), f32_limit(s), 0);
    assert_close("dx", parts.dx, doubles_of(whole.dx), f32_limit(s), 0);
    assert_close("dweight", parts.dweight, doubles_of(whole.dweight), f32_limit(s), 0);
    assert_close("dw_up", parts.dw.w_up, doubles_of(whole.dw.w_up), f32_limit(s), 0);
    assert_close("dw_down", parts.dw.w_down, doubles_of(whole.dw.w_down), f32_limit(s), 0);
}

/* Scratch for routed experts and a wider shared expert with all tokens is enough for both calls. */
TEST(scratch_covers_a_shared_expert)
{
    static const sizes both[] = {{600, 2, 4, 8, 6, 5}, {600, 1, 1, 8, 300, 0}};
    const cpl_work work       = LIST(.n_tokens = 600, .d_model = 8, .d_expert = 6, .n_experts = 4,
                                     .top_k = 2, .d_shared = 300, .gate_rank = 5, .training = true);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cpl_backend *be    = new_cpu(bf16 ? CPL_BF16 : CPL_F32, 2, work);
        const double limit = bf16 ? BF16 : sum_tolerance(C, 600 + 300);
        for (int i = 0; i < 2; i++) {
            problem p = new_problem(both[i], RANDOM);
            answer a  = run_experts(be, &p);
            compare(&a, &p, limit);
        }
    }
}

/* ---- the gradient of the hidden vectors ---- */

static void check_hidden_backward(sizes s, choice how, int n_threads)
{
    cpl_backend *be   = backend_for(s, CPL_F32, n_threads);
    problem p         = new_problem(s, how);
    cpl_dispatch plan = dispatch_of(be, p.expert, s.n);
    cpl_tensor norm = new_tensor(CPL_F32, s.T, s.n), dnorm = normal_2d(s.T, s.n, 1);
    cpl_tensor dchosen = normal_2d(s.T * s.K, s.r, 1);
    if (s.T > 1) memset(cpl_tensor_at(p.hidden, 1).storage, 0, (size_t)(s.n * s.r) * sizeof(float));
    be->ops->row_norms(be, cpl_tensor_1d(norm.storage, CPL_F32, s.T * s.n),
                       cpl_tensor_2d(p.hidden.storage, CPL_F32, s.T * s.n, s.r));
    double *want = doubles_of(p.hidden);
    for (int64_t i = 0; i < s.T * s.n; i++)
        for (int64_t k = 0; k < s.r; k++) {
            const double length = cpl_f32(norm)[i];
            want[i * s.r + k] *= length > 0 ? cpl_f32(dnorm)[i] / length : 0;
        }
    for (int64_t i = 0; i < s.T * s.K; i++)
        for (int64_t k = 0; k < s.r; k++)
            want[(i / s.K * s.n + cpl_i32(p.expert)[i]) * s.r + k] +=
                cpl_f32(dchosen)[cpl_i32(plan.row)[i] * s.r + k];
    be->ops->hidden_backward(be, p.hidden, norm, dnorm, dchosen, p.expert, plan);
    assert_close("dhidden", p.hidden, want, sum_tolerance(4, 1), 0);
}

TEST(hidden_backward)
{
    for (int i = 0; i < N_CASES; i++, release_all(state))
        for (int n_threads = 1; cases[i].s.r && n_threads < 4; n_threads += 2)
            check_hidden_backward(cases[i].s, cases[i].how, n_threads);
}

/* A norm of 0, or a norm whose reciprocal is infinite, gives no gradient. */
TEST(zero_norms_have_no_gradient)
{
    const sizes s     = {2, 1, 2, 4, 4, 3};
    cpl_backend *be   = backend_for(s, CPL_F32, 1);
    cpl_tensor hidden = cpl_tensor_3d(new_tensor(CPL_F32, 4, 3).storage, CPL_F32, 2, 2, 3);
    cpl_tensor norm = new_tensor(CPL_F32, 2, 2), dnorm = normal_2d(2, 2, 1);
    cpl_tensor expert = new_tensor(CPL_I32, 2, 1), dchosen = normal_2d(2, 3, 1);
    cpl_f32(hidden)[1] = cpl_f32(norm)[0] = 1e-42f;
    be->ops->hidden_backward(be, hidden, norm, dnorm, dchosen, expert, dispatch_of(be, expert, 2));
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 3; k++) {
            assert_true(cpl_f32(hidden)[t * 6 + k] == cpl_f32(dchosen)[t * 3 + k]);
            assert_true(cpl_f32(hidden)[t * 6 + 3 + k] == 0);
        }
}
