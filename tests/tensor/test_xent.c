/* Cross-entropy and its gradient against plain double, in one chunk and in several. */
#include "tensor/ops_check.h"

static const double C = 8;

typedef struct problem {
    int64_t T, d, V;
    cpl_tensor x, head, target;
    double *wide_x, *wide_head, scale;
} problem;

static problem new_problem(int64_t T, int64_t d, int64_t V)
{
    problem p = {T, d, V, normal_2d(T, d, 1), normal_2d(V, d, 1), new_1d(CPL_I32, T), 0, 0, 0.25};
    randomise_ids(p.target, (int32_t)V);
    if (T > 2) cpl_i32(p.target)[1] = -1;
    return p;
}

static cpl_backend *backend_for(const problem *p, cpl_dtype compute, int n_threads)
{
    return new_cpu(compute, n_threads,
                   (cpl_work){.n_tokens   = p->T,
                              .d_model    = p->d,
                              .n_experts  = 1,
                              .vocab_size = p->V,
                              .training   = true});
}

/* Sets prob [V] to the softmax of token t's logits and returns the token's nll. */
static double token(const problem *p, int64_t t, double *prob)
{
    const int32_t target = cpl_i32(p->target)[t];
    double largest = -INFINITY, sum = 0, nll = 0;
    for (int64_t v = 0; v < p->V; v++) {
        prob[v] = 0;
        for (int64_t i = 0; i < p->d; i++)
            prob[v] += p->wide_x[t * p->d + i] * p->wide_head[v * p->d + i];
        largest = fmax(largest, prob[v]);
    }
    for (int64_t v = 0; v < p->V; v++) sum += exp(prob[v] - largest);
    if (target >= 0) nll = largest + log(sum) - prob[target];
    for (int64_t v = 0; v < p->V; v++) prob[v] = exp(prob[v] - largest) / sum;
    return nll;
}

static double loss(void *context)
{
    const problem *p = context;
    double sum = 0, *prob = malloc((size_t)p->V * sizeof *prob);
    for (int64_t t = 0; t < p->T; t++) sum += p->scale * token(p, t, prob);
    free(prob);
    return sum;
}

/* Computes the gradient from its equation. Small problems are also checked by differences. */
static void plain_gradient(const problem *p, double *nll, double *dx, double *dhead)
{
    double *prob = new_doubles(p->V);
    for (int64_t t = 0; t < p->T; t++) {
        const int32_t target = cpl_i32(p->target)[t];
        nll[t]               = token(p, t, prob);
        if (target < 0) continue;
        prob[target] -= 1;
        for (int64_t v = 0; v < p->V; v++)
            for (int64_t i = 0; i < p->d; i++) {
                dx[t * p->d + i] += p->scale * prob[v] * p->wide_head[v * p->d + i];
                dhead[v * p->d + i] += p->scale * prob[v] * p->wide_x[t * p->d + i];
            }
    }
}

static void widen(problem *p)
{
    p->wide_x    = doubles_of(p->x);
    p->wide_head = doubles_of(p->head);
}

typedef struct answer {
    cpl_tensor nll, score, dx, dhead;
} answer;

/* dhead starts at one, to check that the gradient is added. */
static answer run(cpl_backend *be, const problem *p)
{
    answer a = {new_1d(CPL_F32, p->T), new_1d(CPL_F32, p->T), new_tensor(CPL_F32, p->T, p->d),
                new_tensor(CPL_F32, p->V, p->d)};
    be->ops->fill(be, a.dhead, 1);
    be->ops->xent(be, a.score, p->x, p->head, p->target);
    be->ops->xent_train(be, a.nll, a.dx, a.dhead, p->x, p->head, p->target, (float)p->scale);
    assert_ok(be->ops->sync(be));
    return a;
}

static void check(problem p, cpl_dtype compute, double tolerance)
{
    double *nll = new_doubles(p.T), *dx = new_doubles(p.T * p.d), *dhead = new_doubles(p.V * p.d);
    answer a = run(backend_for(&p, compute, 2), &p);
    widen(&p);
    plain_gradient(&p, nll, dx, dhead);
    for (int64_t i = 0; i < p.V * p.d; i++) cpl_f32(a.dhead)[i] -= 1;
    assert_close("score", a.score, nll, tolerance, 0);
    assert_close("nll", a.nll, nll, tolerance, 0);
    assert_close("dx", a.dx, dx, tolerance, 0);
    /* The subtraction of the initial 1 leaves its rounding in every number. */
    assert_close("dhead", a.dhead, dhead, tolerance,
                 (double)FLT_EPSILON * C * sqrt((double)(p.V * p.d)));
}

TEST(test_small_shapes)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 7, 11}, {0, 3, 4}, {40, 16, 130}, {3, 2, 1}};
    for (int i = 0; i < 5; i++, release_all(state))
        check(new_problem(shapes[i][0], shapes[i][1], shapes[i][2]), CPL_F32,
              sum_tolerance(C, shapes[i][2]));
}

TEST(test_gradient_is_that_of_the_loss)
{
    problem p = new_problem(6, 5, 9);
    answer a  = run(backend_for(&p, CPL_F32, 2), &p);
    widen(&p);
    double *dhead = gradient(loss, &p, p.wide_head, p.V * p.d);
    for (int64_t i = 0; i < p.V * p.d; i++) dhead[i] += 1;
    assert_close("dx", a.dx, gradient(loss, &p, p.wide_x, p.T * p.d), sum_tolerance(C, p.V), 1e-8);
    assert_close("dhead", a.dhead, dhead, sum_tolerance(C, p.V), 1e-8);
}

/* The logits need several chunks: 100 tokens of 300000 logits are 120 MB. */
TEST(test_several_chunks)
{
    problem p = new_problem(100, 3, 300000);
    check(p, CPL_F32, sum_tolerance(C, p.V));
}

/* A token without a target changes no result. */
TEST(test_without_targets)
{
    problem p = new_problem(4, 3, 5);
    for (int t = 0; t < 4; t++) cpl_i32(p.target)[t] = -1;
    answer a = run(backend_for(&p, CPL_F32, 1), &p);
    for (int i = 0; i < 4; i++) assert_true(cpl_f32(a.nll)[i] == 0 && cpl_f32(a.score)[i] == 0);
    for (int i = 0; i < 12; i++) assert_true(cpl_f32(a.dx)[i] == 0);
    for (int i = 0; i < 15; i++) assert_true(cpl_f32(a.dhead)[i] == 1);
}

/* Logits are far beyond the range of exp. */
TEST(test_large_logits)
{
    problem p = new_problem(5, 4, 12);
    for (int64_t i = 0; i < 48; i++) cpl_f32(p.head)[i] *= 300;
    check(p, CPL_F32, sum_tolerance(C, 300));
}

TEST(test_bf16)
{
    static const double BF16 = 2e-2; /* operands keep 8 bits: half of 2^-8 each, and a margin */
    problem p                = new_problem(40, 16, 130);
    check(p, CPL_BF16, BF16);
    cpl_tensor low  = new_tensor(CPL_BF16, p.V, p.d);
    cpl_backend *be = backend_for(&p, CPL_BF16, 2);
    be->ops->copy(be, low, p.head);
    answer with_f32 = run(be, &p);
    p.head          = low;
    answer with_low = run(be, &p);
    assert_same_bits(with_f32.nll, with_low.nll);
    assert_same_bits(with_f32.dx, with_low.dx);
}

/* Log probabilities of any rows in any order equal the equation in double. */
TEST(test_log_probs)
{
    const int64_t R = 5, V = 301, P = 12;
    cpl_backend *be   = new_cpu(CPL_F32, 2, (cpl_work){0});
    cpl_tensor logits = normal_2d(R, V, 4), out = new_1d(CPL_F32, P);
    cpl_tensor row = new_1d(CPL_I32, P), id = new_1d(CPL_I32, P);
    double want[12];
    for (int64_t p = 0; p < P; p++) {
        cpl_i32(row)[p] = (int32_t)(p * 3 % R);
        cpl_i32(id)[p]  = (int32_t)(p * 29 % V);
        const float *at = cpl_f32(logits) + p * 3 % R * V;
        double sum      = 0;
        for (int64_t i = 0; i < V; i++) sum += exp((double)at[i]);
        want[p] = (double)at[p * 29 % V] - log(sum);
    }
    be->ops->log_probs(be, out, logits, row, id);
    assert_close("log probabilities", out, want, 1e-6, 0);
}

TEST(test_same_bits_again)
{
    problem p       = new_problem(40, 16, 1300);
    cpl_backend *be = backend_for(&p, CPL_F32, 2);
    answer a = run(be, &p), b = run(be, &p);
    assert_same_bits(a.nll, b.nll);
    assert_same_bits(a.dx, b.dx);
    assert_same_bits(a.dhead, b.dhead);
}
