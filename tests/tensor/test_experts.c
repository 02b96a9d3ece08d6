/* Grouped experts, forward and backward, against plain double; that double's gradient against
 * central differences of itself. */
#include "base/arena.h"
#include "tensor/levels.h"
#include "tensor/ops_check.h"

static const double C    = 16;
static const double BF16 = 0x1p-6; /* operands keep 8 bits; three products in a row */

/* How tokens choose: at random; all of them expert 0 first; never expert 1. */
typedef enum choice { RANDOM, HOT, EMPTY } choice;

typedef struct sizes {
    int64_t T, K, n, d, D;
} sizes;

typedef struct problem {
    sizes s;
    cpl_tensor x, weight, expert, dy;
    cpl_expert_weights w;
} problem;

/* Everything a call gives. */
typedef struct answer {
    cpl_tensor y, gate, up, dx, dweight;
    cpl_expert_weights dw;
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

static problem new_problem(sizes s, choice how)
{
    float by_d = 1.0f / sqrtf((float)s.d), by_D = 1.0f / sqrtf((float)s.D);
    problem p  = LIST(.s = s, .x = normal_2d(s.T, s.d, 1), .weight = normal_2d(s.T, s.K, 1),
                      .expert = new_tensor(CPL_I32, s.T, s.K), .dy = normal_2d(s.T, s.d, 1));
    p.w.w_gate = normal_3d(s.n, s.D, s.d, 2 * by_d);
    p.w.w_up   = normal_3d(s.n, s.D, s.d, by_d);
    p.w.w_down = normal_3d(s.n, s.d, s.D, by_D);
    choose(&p, how);
    return p;
}

/* ---- the equations in double ---- */

typedef struct wide {
    sizes s;
    const int32_t *expert;
    double *x, *weight, *gate, *up, *down, *dy;
    double *y, *dx, *dweight, *dgate, *dup, *ddown;
} wide;

static wide widen(const problem *p)
{
    wide w    = {.s = p->s, .expert = cpl_i32(p->expert)};
    w.x       = doubles_of(p->x);
    w.weight  = doubles_of(p->weight);
    w.gate    = doubles_of(p->w.w_gate);
    w.up      = doubles_of(p->w.w_up);
    w.down    = doubles_of(p->w.w_down);
    w.dy      = doubles_of(p->dy);
    w.y       = new_doubles(p->s.T * p->s.d);
    w.dx      = new_doubles(p->s.T * p->s.d);
    w.dweight = new_doubles(p->s.T * p->s.K);
    w.dgate   = new_doubles(cpl_tensor_count(p->w.w_gate));
    w.dup     = new_doubles(cpl_tensor_count(p->w.w_up));
    w.ddown   = new_doubles(cpl_tensor_count(p->w.w_down));
    return w;
}

/* One assignment: y += weight W_down (SiLU(g) u), and its gradients where `backward`. */
static void assignment(wide *w, int64_t t, int64_t k, bool backward)
{
    const int64_t d = w->s.d, D = w->s.D, base = w->expert[t * w->s.K + k] * D * d;
    const double *x = w->x + t * d, *dy = w->dy + t * d, weight = w->weight[t * w->s.K + k];
    double *y = w->y + t * d, *dx = w->dx + t * d;
    for (int64_t j = 0; j < D; j++) {
        const int64_t row = base + j * d;
        double g = 0, u = 0, da = 0;
        for (int64_t i = 0; i < d; i++) {
            g += w->gate[row + i] * x[i];
            u += w->up[row + i] * x[i];
        }
        const double sigmoid = 1 / (1 + exp(-g)), act = g * sigmoid * u;
        for (int64_t i = 0; i < d; i++) y[i] += weight * w->down[base + i * D + j] * act;
        if (!backward) continue;
        for (int64_t i = 0; i < d; i++) {
            da += dy[i] * w->down[base + i * D + j];
            w->ddown[base + i * D + j] += weight * dy[i] * act;
        }
        const double dg = weight * da * u * (sigmoid + g * sigmoid * (1 - sigmoid));
        const double du = weight * da * g * sigmoid;
        w->dweight[t * w->s.K + k] += act * da;
        for (int64_t i = 0; i < d; i++) {
            w->dgate[row + i] += dg * x[i];
            w->dup[row + i] += du * x[i];
            dx[i] += dg * w->gate[row + i] + du * w->up[row + i];
        }
    }
}

static void equations(wide *w, bool backward)
{
    for (int64_t i = 0; i < w->s.T * w->s.d; i++) w->y[i] = 0;
    for (int64_t t = 0; t < w->s.T; t++)
        for (int64_t k = 0; k < w->s.K; k++) assignment(w, t, k, backward);
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
    const sizes s = {5, 2, 3, 4, 3};
    problem p     = new_problem(s, RANDOM);
    wide w        = widen(&p);
    equations(&w, true);
    const int64_t matrix = s.n * s.D * s.d;
    assert_doubles("dx", w.dx, gradient(loss, &w, w.x, s.T * s.d), s.T * s.d);
    assert_doubles("dweight", w.dweight, gradient(loss, &w, w.weight, s.T * s.K), s.T * s.K);
    assert_doubles("dgate", w.dgate, gradient(loss, &w, w.gate, matrix), matrix);
    assert_doubles("dup", w.dup, gradient(loss, &w, w.up, matrix), matrix);
    assert_doubles("ddown", w.ddown, gradient(loss, &w, w.down, matrix), matrix);
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
                              .training  = true});
}

static answer run_experts(cpl_backend *be, const problem *p)
{
    const sizes s     = p->s;
    cpl_dispatch plan = dispatch_of(be, p->expert, s.n);
    answer a          = {ones_like(p->x),
                         new_tensor(CPL_F32, s.T * s.K, s.D),
                         new_tensor(CPL_F32, s.T * s.K, s.D),
                         ones_like(p->x),
                         ones_like(p->weight),
                         {ones_like(p->w.w_gate), ones_like(p->w.w_up), ones_like(p->w.w_down)}};
    cpl_tensor unkept = new_tensor(CPL_F32, s.T, s.d), none = cpl_tensor_none();
    int64_t before = cpl_alloc_count();
    be->ops->experts(be, a.y, a.gate, a.up, p->x, none, p->weight, plan, p->w);
    be->ops->experts(be, unkept, none, none, p->x, none, p->weight, plan, p->w);
    be->ops->experts_backward(be, a.dx, none, a.dweight, a.dw, p->dy, a.gate, a.up, p->x, none,
                              p->weight, plan, p->w);
    assert_int_equal(cpl_alloc_count(), before);
    assert_ok(be->ops->sync(be));
    assert_same_bits(a.y, unkept);
    return a;
}

static void compare(const answer *a, const problem *p, double limit)
{
    wide w = widen(p);
    equations(&w, true);
    assert_close("y", a->y, w.y, limit, 0);
    assert_close("dweight", a->dweight, w.dweight, limit, 0);
    assert_added("dx", a->dx, w.dx, limit);
    assert_added("dw_gate", a->dw.w_gate, w.dgate, limit);
    assert_added("dw_up", a->dw.w_up, w.dup, limit);
    assert_added("dw_down", a->dw.w_down, w.ddown, limit);
}

static void assert_same_answer(const answer *a, const answer *b)
{
    assert_same_bits(a->y, b->y);
    assert_same_bits(a->dx, b->dx);
    assert_same_bits(a->dweight, b->dweight);
    assert_same_bits(a->dw.w_gate, b->dw.w_gate);
    assert_same_bits(a->dw.w_up, b->dw.w_up);
    assert_same_bits(a->dw.w_down, b->dw.w_down);
}

static double f32_limit(sizes s)
{
    return sum_tolerance(C, s.T * s.K + s.d + s.D);
}

static void check(sizes s, choice how, cpl_dtype compute, double limit)
{
    problem p        = new_problem(s, how);
    answer one       = run_experts(backend_for(s, compute, 1), &p);
    answer two       = run_experts(backend_for(s, compute, 2), &p);
    answer six       = run_experts(backend_for(s, compute, 6), &p);
    answer two_again = run_experts(backend_for(s, compute, 2), &p);
    compare(&one, &p, limit);
    compare(&two, &p, limit);
    compare(&six, &p, limit);
    assert_same_answer(&two, &two_again);
    release_all(NULL);
}

static const struct {
    sizes s;
    choice how;
} cases[] = {
    {{1, 1, 1, 1, 1}, RANDOM},    {{1, 3, 8, 5, 7}, RANDOM},    {{37, 2, 5, 17, 9}, RANDOM},
    {{64, 4, 4, 16, 33}, RANDOM}, {{50, 2, 6, 12, 20}, HOT},    {{50, 1, 6, 12, 300}, HOT},
    {{40, 2, 4, 13, 11}, EMPTY},  {{1200, 2, 3, 10, 6}, HOT},   {{1100, 1, 2, 7, 5}, HOT},
    {{0, 2, 4, 8, 8}, RANDOM},    {{3, 1, 64, 8, 257}, RANDOM},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

TEST(experts_in_f32)
{
    for (int i = 0; i < N_CASES; i++)
        check(cases[i].s, cases[i].how, CPL_F32, f32_limit(cases[i].s));
}

TEST(experts_in_bf16)
{
    for (int i = 0; i < N_CASES; i++) check(cases[i].s, cases[i].how, CPL_BF16, BF16);
}

/* Weights that come as bf16 give what their F32 originals give once rounded. */
TEST(bf16_weights)
{
    const sizes s   = {45, 2, 5, 16, 24};
    problem p       = new_problem(s, RANDOM);
    cpl_backend *be = backend_for(s, CPL_BF16, 2);
    answer with_f32 = run_experts(be, &p);
    cpl_tensor *w[] = {&p.w.w_gate, &p.w.w_up, &p.w.w_down};
    for (int i = 0; i < 3; i++) *w[i] = as_bf16(be, *w[i]);
    answer with_bf16 = run_experts(be, &p);
    assert_same_answer(&with_f32, &with_bf16);
}

/* Large gates neither overflow nor lose the gradient: SiLU is linear or zero there. */
TEST(saturated_gates)
{
    const sizes s = {20, 2, 4, 8, 8};
    problem p     = new_problem(s, RANDOM);
    for (int64_t i = 0; i < cpl_tensor_count(p.w.w_gate); i++) cpl_f32(p.w.w_gate)[i] *= 300;
    answer a = run_experts(backend_for(s, CPL_F32, 2), &p);
    compare(&a, &p, f32_limit(s));
}

/* More assignments than one block of slots holds: tokens in two blocks. */
TEST(several_blocks)
{
    const sizes s = {1100, 8, 9, 8192, 1};
    problem p     = new_problem(s, RANDOM);
    answer a      = run_experts(backend_for(s, CPL_F32, 2), &p);
    compare(&a, &p, f32_limit(s));
}

/* Renaming the experts permutes the weights' gradients and changes nothing else but sums' order. */
TEST(permuted_experts)
{
    const sizes s = {60, 2, 4, 9, 6};
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
