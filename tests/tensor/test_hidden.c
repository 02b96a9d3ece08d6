/* Experts whose gates take a hidden vector in place of x, and the gradient of those vectors,
 * against plain double; that double's gradient against central differences of itself. */
#include "tensor/levels.h"
#include "tensor/ops_check.h"

static const double C    = 16;
static const double BF16 = 0x1p-6; /* operands keep 8 bits; three products in a row */

typedef struct sizes {
    int64_t T, K, n, d, D, r;
} sizes;

/* Tokens take neighbouring experts from a random one on; all of them expert 0 where `hot`. */
typedef struct problem {
    sizes s;
    cpl_tensor x, hidden, weight, expert, dy;
    cpl_expert_weights w;
} problem;

static problem new_problem(sizes s, bool hot)
{
    problem p = LIST(.s = s, .x = normal_2d(s.T, s.d, 1), .hidden = normal_3d(s.T, s.n, s.r, 1),
                     .weight = normal_2d(s.T, s.K, 1), .expert = new_tensor(CPL_I32, s.T, s.K),
                     .dy = normal_2d(s.T, s.d, 1));
    cpl_tensor first = new_1d(CPL_I32, s.T);
    p.w.w_gate       = normal_3d(s.n, s.D, s.r, 2 / sqrtf((float)s.r));
    p.w.w_up         = normal_3d(s.n, s.D, s.d, 1 / sqrtf((float)s.d));
    p.w.w_down       = normal_3d(s.n, s.d, s.D, 1 / sqrtf((float)s.D));
    if (!hot) randomise_ids(first, (int32_t)s.n);
    for (int64_t i = 0; i < s.T * s.K; i++)
        cpl_i32(p.expert)[i] = (int32_t)((cpl_i32(first)[i / s.K] + i % s.K) % s.n);
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
    w.hidden      = doubles_of(p->hidden);
    w.weight      = doubles_of(p->weight);
    w.gate        = doubles_of(p->w.w_gate);
    w.up          = doubles_of(p->w.w_up);
    w.down        = doubles_of(p->w.w_down);
    w.dy          = doubles_of(p->dy);
    w.y           = new_doubles(s.T * s.d);
    w.dx          = new_doubles(s.T * s.d);
    w.dhidden     = new_doubles(s.T * s.n * s.r);
    w.dweight     = new_doubles(s.T * s.K);
    w.dgate       = new_doubles(s.n * s.D * s.r);
    w.dup         = new_doubles(s.n * s.D * s.d);
    w.ddown       = new_doubles(s.n * s.d * s.D);
    return w;
}

/* One assignment, one number j of the expert's width: y += weight W_down[.,j] SiLU(g) u. */
static void one_number(wide *w, int64_t t, int64_t k, int64_t j, bool backward)
{
    const int64_t d = w->s.d, D = w->s.D, r = w->s.r, e = w->expert[t * w->s.K + k];
    const double *x = w->x + t * d, *h = w->hidden + (t * w->s.n + e) * r, *dy = w->dy + t * d;
    const double *gate = w->gate + (e * D + j) * r, *up = w->up + (e * D + j) * d;
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
        w->dgate[(e * D + j) * r + i] += dg * h[i];
        w->dhidden[(t * w->s.n + e) * r + i] += dg * gate[i];
    }
    for (int64_t i = 0; i < d; i++) {
        w->dup[(e * D + j) * d + i] += du * x[i];
        w->dx[t * d + i] += du * up[i];
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

static void assert_slopes(const char *what, wide *w, double *x, const double *got, int64_t count)
{
    const double *want = gradient(loss, w, x, count);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-7 * (1 + fabs(want[i]))))
            fail_msg("%s[%d] is %g, not %g", what, (int)i, got[i], want[i]);
}

TEST(equations_agree_with_differences)
{
    const sizes s = {5, 2, 3, 4, 3, 2};
    problem p     = new_problem(s, false);
    wide w        = widen(&p);
    equations(&w, true);
    assert_slopes("dx", &w, w.x, w.dx, s.T * s.d);
    assert_slopes("dhidden", &w, w.hidden, w.dhidden, s.T * s.n * s.r);
    assert_slopes("dweight", &w, w.weight, w.dweight, s.T * s.K);
    assert_slopes("dgate", &w, w.gate, w.dgate, s.n * s.D * s.r);
    assert_slopes("dup", &w, w.up, w.dup, s.n * s.D * s.d);
    assert_slopes("ddown", &w, w.down, w.ddown, s.n * s.d * s.D);
}

/* ---- the operation ---- */

typedef struct answer {
    cpl_tensor y, dx, dhidden, dweight; /* dhidden [T K, r] */
    cpl_expert_weights dw;
    cpl_dispatch plan;
} answer;

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
    const sizes s   = p->s;
    answer a        = {ones_like(p->x),
                       ones_like(p->x),
                       new_tensor(CPL_F32, s.T * s.K, s.r),
                       ones_like(p->weight),
                       {ones_like(p->w.w_gate), ones_like(p->w.w_up), ones_like(p->w.w_down)},
                       dispatch_of(be, p->expert, s.n)};
    cpl_tensor gate = new_tensor(CPL_F32, s.T * s.K, s.D), up = copy_of(gate);
    cpl_tensor unkept = new_tensor(CPL_F32, s.T, s.d), none = cpl_tensor_none();
    for (int64_t i = 0; i < s.T * s.K * s.r; i++) cpl_f32(a.dhidden)[i] = NAN; /* is set */
    be->ops->experts(be, a.y, gate, up, p->x, p->hidden, p->weight, a.plan, p->w);
    be->ops->experts(be, unkept, none, none, p->x, p->hidden, p->weight, a.plan, p->w);
    be->ops->experts_backward(be, a.dx, a.dhidden, a.dweight, a.dw, p->dy, gate, up, p->x,
                              p->hidden, p->weight, a.plan, p->w);
    assert_ok(be->ops->sync(be));
    assert_same_bits(a.y, unkept);
    return a;
}

static void compare(const answer *a, const problem *p, double limit)
{
    const sizes s = p->s;
    wide w        = widen(p);
    double *rows  = new_doubles(s.T * s.K * s.r);
    equations(&w, true);
    for (int64_t i = 0; i < s.T * s.K; i++)
        memcpy(rows + cpl_i32(a->plan.row)[i] * s.r,
               w.dhidden + (i / s.K * s.n + w.expert[i]) * s.r, (size_t)s.r * sizeof *rows);
    assert_close("y", a->y, w.y, limit, 0);
    assert_close("dweight", a->dweight, w.dweight, limit, 0);
    assert_close("dhidden", a->dhidden, rows, limit, 0);
    assert_added("dx", a->dx, w.dx, limit);
    assert_added("dw_gate", a->dw.w_gate, w.dgate, limit);
    assert_added("dw_up", a->dw.w_up, w.dup, limit);
    assert_added("dw_down", a->dw.w_down, w.ddown, limit);
}

static double f32_limit(sizes s)
{
    return sum_tolerance(C, s.T * s.K + s.d + s.D + s.r);
}

/* r above d and below, alone and wide; an expert with all tokens in several chunks. */
static const struct {
    sizes s;
    bool hot;
} cases[] = {
    {{1, 1, 1, 1, 1, 1}, false},    {{1, 3, 8, 5, 7, 2}, false},
    {{37, 2, 5, 17, 9, 21}, false}, {{64, 4, 4, 16, 33, 11}, false},
    {{50, 2, 6, 12, 20, 7}, true},  {{1200, 1, 3, 10, 6, 4}, true},
    {{0, 2, 4, 8, 8, 4}, false},    {{3, 1, 64, 8, 257, 40}, false},
    {{1100, 2, 2, 7, 5, 3}, false},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void check(cpl_dtype compute)
{
    for (int i = 0; i < N_CASES; i++, release_all(NULL)) {
        problem p          = new_problem(cases[i].s, cases[i].hot);
        const double limit = compute == CPL_BF16 ? BF16 : f32_limit(p.s);
        for (int threads = 1; threads < 7; threads += 5) {
            answer a = run_experts(backend_for(p.s, compute, threads), &p);
            compare(&a, &p, limit);
        }
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

/* More assignments than one block of slots holds: slots and sorted rows part. */
TEST(several_blocks)
{
    const sizes s = {1100, 8, 9, 8192, 1, 2};
    problem p     = new_problem(s, false);
    answer a      = run_experts(backend_for(s, CPL_F32, 2), &p);
    compare(&a, &p, f32_limit(s));
}

/* Matrices that come as bf16 give what their F32 originals give once rounded. */
TEST(bf16_weights)
{
    const sizes s   = {45, 2, 5, 16, 24, 9};
    problem p       = new_problem(s, false);
    cpl_backend *be = backend_for(s, CPL_BF16, 2);
    answer with_f32 = run_experts(be, &p), with_bf16;
    cpl_tensor *w[] = {&p.w.w_gate, &p.w.w_up, &p.w.w_down};
    for (int i = 0; i < 3; i++) *w[i] = as_bf16(be, *w[i]);
    with_bf16 = run_experts(be, &p);
    assert_same_bits(with_f32.y, with_bf16.y);
    assert_same_bits(with_f32.dx, with_bf16.dx);
    assert_same_bits(with_f32.dhidden, with_bf16.dhidden);
    assert_same_bits(with_f32.dw.w_gate, with_bf16.dw.w_gate);
}

/* ---- against whole gates ---- */

/* Gates W_b [n,D,r] of hidden = W_a x are whole gates W_b W_a of x: the same y, and with the
 * gradient taken through the product the same dx. */
TEST(factors_are_as_their_product)
{
    const sizes s   = {70, 2, 5, 24, 16, 10};
    problem p       = new_problem(s, false), whole;
    cpl_backend *be = backend_for(s, CPL_F32, 2);
    cpl_tensor a = normal_2d(s.n * s.r, s.d, 1 / sqrtf((float)s.d)), none = cpl_tensor_none();
    cpl_tensor hidden = cpl_tensor_2d(p.hidden.storage, CPL_F32, s.T, s.n * s.r);
    cpl_tensor gate = new_tensor(CPL_F32, s.T * s.K, s.D), up = copy_of(gate), y, dx, dweight;
    cpl_expert_weights dw;
    be->ops->gemm(be, hidden, CPL_AS_IS, p.x, CPL_TRANSPOSED, a, 0);
    answer parts   = run_experts(be, &p);
    whole          = p;
    whole.w.w_gate = normal_3d(s.n, s.D, s.d, 1);
    for (int64_t e = 0; e < s.n; e++) {
        cpl_tensor of_a = cpl_tensor_2d(cpl_f32(a) + e * s.r * s.d, CPL_F32, s.r, s.d);
        be->ops->gemm(be, cpl_tensor_at(whole.w.w_gate, e), CPL_AS_IS, cpl_tensor_at(p.w.w_gate, e),
                      CPL_AS_IS, of_a, 0);
    }
    y = ones_like(p.x), dx = ones_like(p.x), dweight = ones_like(p.weight);
    dw =
        (cpl_expert_weights){ones_like(whole.w.w_gate), ones_like(p.w.w_up), ones_like(p.w.w_down)};
    be->ops->experts(be, y, gate, up, p.x, none, p.weight, parts.plan, whole.w);
    be->ops->experts_backward(be, dx, none, dweight, dw, p.dy, gate, up, p.x, none, p.weight,
                              parts.plan, whole.w);
    for (int64_t i = 0; i < s.T * s.K; i++) {
        const int64_t e = cpl_i32(p.expert)[i];
        cpl_tensor row  = cpl_tensor_2d(cpl_f32(parts.dhidden) + cpl_i32(parts.plan.row)[i] * s.r,
                                        CPL_F32, 1, s.r);
        cpl_tensor to   = cpl_tensor_2d(cpl_f32(parts.dx) + i / s.K * s.d, CPL_F32, 1, s.d);
        cpl_tensor of_a = cpl_tensor_2d(cpl_f32(a) + e * s.r * s.d, CPL_F32, s.r, s.d);
        be->ops->gemm(be, to, CPL_AS_IS, row, CPL_AS_IS, of_a, 1);
    }
    assert_close("y", parts.y, doubles_of(y), f32_limit(s), 0);
    assert_close("dx", parts.dx, doubles_of(dx), f32_limit(s), 0);
    assert_close("dweight", parts.dweight, doubles_of(dweight), f32_limit(s), 0);
    assert_close("dw_up", parts.dw.w_up, doubles_of(dw.w_up), f32_limit(s), 0);
    assert_close("dw_down", parts.dw.w_down, doubles_of(dw.w_down), f32_limit(s), 0);
}

/* ---- a shared expert ---- */

/* All tokens on the one expert, whose gates take x. */
static void check_shared(cpl_backend *be, double limit)
{
    const sizes s   = {600, 1, 1, 8, 300, 8};
    problem p       = new_problem(s, false);
    cpl_tensor gate = new_tensor(CPL_F32, s.T, s.D), up = copy_of(gate), none = cpl_tensor_none();
    cpl_tensor y = ones_like(p.x), dx = ones_like(p.x), dweight = ones_like(p.weight);
    cpl_dispatch all      = dispatch_of(be, p.expert, 1);
    cpl_expert_weights dw = {ones_like(p.w.w_gate), ones_like(p.w.w_up), ones_like(p.w.w_down)};
    p.hidden.storage      = p.x.storage;
    wide w                = widen(&p);
    equations(&w, true);
    for (int64_t i = 0; i < s.T * s.d; i++) w.dx[i] += w.dhidden[i];
    be->ops->experts(be, y, gate, up, p.x, none, p.weight, all, p.w);
    be->ops->experts_backward(be, dx, none, dweight, dw, p.dy, gate, up, p.x, none, p.weight, all,
                              p.w);
    assert_close("y", y, w.y, limit, 0);
    assert_added("dx", dx, w.dx, limit);
    assert_added("dw_gate", dw.w_gate, w.dgate, limit);
}

/* Scratch that is sized for routed experts and a wider shared one does for both calls. */
TEST(scratch_covers_a_shared_expert)
{
    const sizes routed  = {600, 2, 4, 8, 6, 5};
    const cpl_work work = LIST(.n_tokens = 600, .d_model = 8, .d_expert = 6, .n_experts = 4,
                               .top_k = 2, .d_shared = 300, .gate_rank = 5, .training = true);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cpl_backend *be    = new_cpu(bf16 ? CPL_BF16 : CPL_F32, 2, work);
        const double limit = bf16 ? BF16 : sum_tolerance(C, 600 + 300);
        problem p          = new_problem(routed, false);
        answer a           = run_experts(be, &p);
        compare(&a, &p, limit);
        check_shared(be, limit);
    }
}

/* ---- the gradient of the hidden vectors ---- */

static void check_hidden_backward(sizes s, bool hot, int n_threads)
{
    cpl_backend *be   = backend_for(s, CPL_F32, n_threads);
    problem p         = new_problem(s, hot);
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
    for (int i = 0; i < N_CASES; i++, release_all(state)) {
        check_hidden_backward(cases[i].s, cases[i].hot, 1);
        check_hidden_backward(cases[i].s, cases[i].hot, 3);
    }
}

/* A norm of 0, or one whose reciprocal is infinite, gives nothing. */
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
