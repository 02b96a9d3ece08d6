/* test_reference.c - the plain reference of the coupling loss. Its gradients are compared with
 * central differences of its loss, all outputs with the values of PyTorch in float64, and the fast
 * path (cpl_coupling) with the reference. */
#include "model/erc/reference.h"

#include <float.h>

#include "model/erc_run.h"

/* Tolerances are relative to the norm of a tensor as a vector, or to the mean of M for the loss.
 * F64: sums of at most some thousand products, in another order than PyTorch's (measured: 2.1e-15,
 * 10 DBL_EPSILON). F32: the fast path, which rounds to f32 after each stage (measured: 4.3e-7, 4
 * FLT_EPSILON). SLOPE: central differences with steps of 1e-5 (2.1e-9). */
static const double F64_TOLERANCE = 64 * DBL_EPSILON, F32_TOLERANCE = 16 * FLT_EPSILON;
static const double SLOPE_TOLERANCE = 1e-8;

/* No hinge is nearer to its kink than this, relative to its bound. Neither rounding to f32 nor a
 * step of a central difference moves a hinge across its kink. */
static const double F32_KINK = 1e-5, SLOPE_KINK = 1e-3;

/* ---- a reference made from a case ---- */

enum { ROUTER, DELTA, GATE, UP, DOWN, N_INPUTS };

typedef struct plain {
    cpl_erc_reference erc;
    int64_t n_router, n_expert;
    double *input[N_INPUTS]; /* the matrices that the activation does not use are NULL */
    double *grad[N_INPUTS];  /* shapes of the inputs; DELTA: NULL */
    double *epsilon, loss;
} plain;

static const bool USES[][3] = {
    [CPL_ERC_GATE] = {true, false, false}, [CPL_ERC_UP] = {false, true, false},
    [CPL_ERC_SILU] = {true, false, false}, [CPL_ERC_SWIGLU] = {true, true, false},
    [CPL_ERC_OUTPUT] = {true, true, true}, [CPL_ERC_GATE_UP] = {true, true, false}};

static double *filled(int64_t count, double value)
{
    double *x = new_doubles(count);
    for (int64_t k = 0; k < count; k++) x[k] = value;
    return x;
}

static double *doubles(int64_t count, const float *from)
{
    double *x = filled(count, 1);
    for (int64_t k = 0; from && k < count; k++) x[k] = (double)from[k];
    return x;
}

/* Returns a reference. Scratch and the outputs that forward sets hold NaN. Gradients begin at 0. */
static plain plain_of(const erc_case *c, const float *delta)
{
    plain p = {.n_router = c->n * c->d, .n_expert = c->n * c->D * c->d};

    p.input[ROUTER] = doubles(p.n_router, c->R);
    p.input[DELTA]  = doubles(p.n_router, delta);
    p.grad[ROUTER]  = filled(p.n_router, 0);
    for (int k = 0; k < 3; k++) {
        if (!USES[c->activation][k]) continue;
        p.input[GATE + k] = doubles(p.n_expert, c->w[k]);
        p.grad[GATE + k]  = filled(p.n_expert, 0);
    }
    p.epsilon = filled(c->n, NAN);
    p.erc     = (cpl_erc_reference){.n_experts   = c->n,
                                    .d_model     = c->d,
                                    .d_expert    = c->D,
                                    .activation  = (cpl_erc_activation)c->activation,
                                    .alpha       = c->alpha,
                                    .weight      = c->weight,
                                    .router      = p.input[ROUTER],
                                    .delta       = p.input[DELTA],
                                    .w_gate      = p.input[GATE],
                                    .w_up        = p.input[UP],
                                    .w_down      = p.input[DOWN],
                                    .proxy       = filled(p.n_router, NAN),
                                    .M           = filled(c->n * c->n, NAN),
                                    .grad_M      = filled(c->n * c->n, NAN),
                                    .grad_router = p.grad[ROUTER],
                                    .grad_gate   = p.grad[GATE],
                                    .grad_up     = p.grad[UP],
                                    .grad_down   = p.grad[DOWN],
                                    .scratch     = filled(4 * c->D + c->d, NAN)};
    return p;
}

static void plain_run(plain *p)
{
    cpl_erc_reference_epsilon(p->epsilon, p->erc.router, p->erc.n_experts, p->erc.d_model);
    p->loss = cpl_erc_reference_forward(&p->erc);
    cpl_erc_reference_backward(&p->erc);
}

/* Returns the least |M[i,j] - bound| over the bound (over 1 where it is 0) of all hinges except
 * exact ties. Sets the number of ties. */
static double nearest_kink(const cpl_erc_reference *erc, int64_t *ties)
{
    double nearest  = INFINITY;
    const int64_t n = erc->n_experts;
    *ties           = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double bound = erc->alpha * erc->M[i * n + i], scale = bound > 0 ? bound : 1;
            for (int k = 0; i != j && k < 2; k++) {
                const double apart = fabs(erc->M[k ? j * n + i : i * n + j] - bound) / scale;
                if (apart > 0) nearest = fmin(nearest, apart);
                *ties += apart == 0;
            }
        }
    return nearest;
}

/* Compares two arrays as vectors. `want` NULL stands for zeros. */
static void assert_same(const char *name, const char *what, const double *got, const double *want,
                        int64_t count, double tolerance)
{
    double off = 0, norm = 0;
    for (int64_t k = 0; k < count; k++) {
        off += pow(got[k] - (want ? want[k] : 0), 2);
        norm += want ? want[k] * want[k] : 0;
    }
    if (!(sqrt(off) <= tolerance * sqrt(norm)))
        fail_msg("%s: %s is off by %.3g of %.3g", name, what, sqrt(off), sqrt(norm));
}

/* ---- its gradients against its own loss ---- */

static double loss(void *erc)
{
    return cpl_erc_reference_forward(erc);
}

static const char *const INPUT_NAMES[] = {"router", "delta", "gate", "up", "down"};

/* Returns false, without a comparison, if a hinge is too near to its kink. */
static bool check_slopes(const erc_inputs *inputs)
{
    erc_case c = erc_case_of(inputs, "random");
    c.weight   = 0.75;
    plain p    = plain_of(&c, c.delta);
    plain_run(&p);
    int64_t ties;
    const bool smooth = nearest_kink(&p.erc, &ties) > SLOPE_KINK && ties == 0;
    for (int k = 0; smooth && k < N_INPUTS; k++) {
        if (!p.grad[k]) continue;
        const int64_t count = k == ROUTER ? p.n_router : p.n_expert;
        double *want        = gradient(loss, &p.erc, p.input[k], count);
        for (int64_t a = 0; a < count; a++) want[a] *= c.weight;
        assert_same("central differences", INPUT_NAMES[k], p.grad[k], want, count, SLOPE_TOLERANCE);
    }
    return smooth;
}

/* Checks the first random inputs whose hinges are all away from their kinks. */
static void check_slopes_of(const int shape[3], int activation, double alpha)
{
    bool compared = false;
    for (uint64_t seed = 1; seed <= 20 && !compared; seed++) {
        erc_inputs inputs =
            erc_inputs_random(shape[0], shape[1], shape[2], activation, alpha, 0.2, seed);
        compared = check_slopes(&inputs);
        release_all(NULL);
    }
    assert_true(compared);
}

TEST(central_differences)
{
    const double alphas[] = {0, 0.5, 1, 1.7};
    const int shapes[][3] = {{1, 4, 3}, {2, 1, 1}, {3, 5, 4}, {5, 7, 3}};
    for (int activation = CPL_ERC_GATE; activation <= CPL_ERC_GATE_UP; activation++)
        for (int a = 0; a < 4; a++)
            for (int k = 0; k < 4; k++) check_slopes_of(shapes[k], activation, alphas[a]);
}

/* A second backward adds the same gradient again. */
TEST(gradients_add)
{
    erc_inputs inputs = erc_inputs_random(4, 7, 6, CPL_ERC_OUTPUT, 0.5, 0, 3);
    erc_case c        = erc_case_of(&inputs, "random");
    plain once = plain_of(&c, c.delta), twice = plain_of(&c, c.delta);
    plain_run(&once);
    plain_run(&twice);
    cpl_erc_reference_backward(&twice.erc);
    for (int k = 0; k < N_INPUTS; k++) {
        if (!once.grad[k]) continue;
        const int64_t count = k == ROUTER ? once.n_router : once.n_expert;
        for (int64_t a = 0; a < count; a++) once.grad[k][a] *= 2;
        assert_same("twice", INPUT_NAMES[k], twice.grad[k], once.grad[k], count, F64_TOLERANCE);
    }
}

/* ---- against PyTorch ---- */

static void golden_tensor(const cpl_safetensors *file, const char *name, const double *got,
                          int64_t count)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    double *want                       = filled(count, 0);
    const size_t bytes                 = (size_t)count * sizeof *want;
    assert_non_null(entry);
    assert_int_equal(entry->n_elements, count);
    assert_int_equal(entry->end - entry->begin, bytes);
    assert_ok(cpl_safetensors_read_raw(file, entry, want, 0, bytes));
    assert_same(file->path, name, got, want, count, F64_TOLERANCE);
}

static void golden_case(const erc_case *c)
{
    static const char *const names[] = {"dR", NULL, "dWg", "dWp", "dWo"};
    plain p                          = plain_of(c, c->delta);
    cpl_safetensors *file;
    char path[256];
    snprintf(path, sizeof path, "tests/golden/erc/%s.safetensors", c->name);
    assert_ok(cpl_safetensors_open(&file, path));
    plain_run(&p);
    p.loss *= c->weight;
    golden_tensor(file, "loss", &p.loss, 1);
    golden_tensor(file, "eps", p.epsilon, c->n);
    golden_tensor(file, "M", p.erc.M, c->n * c->n);
    for (int k = 0; k < N_INPUTS; k++)
        if (p.grad[k])
            golden_tensor(file, names[k], p.grad[k], k == ROUTER ? p.n_router : p.n_expert);
    cpl_safetensors_close(file);
}

TEST(golden)
{
    erc_for_all_cases(golden_case);
}

/* ---- the fast path against the reference ---- */

/* Compares `got` of the fast path with the reference. For `want` NULL, `got` must be zeros. */
static void assert_fast(const erc_case *c, const char *what, const float *got, const double *want,
                        int64_t count)
{
    double *x = doubles(count, got);
    char name[64];
    snprintf(name, sizeof name, "%dx%dx%d, activation %d, alpha %g", (int)c->n, (int)c->d,
             (int)c->D, c->activation, c->alpha);
    assert_same(name, what, x, want, count, F32_TOLERANCE);
}

static double mean(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t k = 0; k < count; k++) sum += x[k];
    return sum / (double)count;
}

/* Makes expert i + 3 equal to expert i, and row i + 4 to row i. */
static void tie(erc_inputs *o)
{
    for (int i = 0; i < o->n * o->d; i++) o->R[i] = o->R[i % (4 * o->d)];
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < o->n * o->d * o->D; i++) o->w[k][i] = o->w[k][i % (3 * o->d * o->D)];
}

/* The library draws the noise for this layer, and the reference gets the numbers drawn. */
static void check_fast_path(int n, int d, int D, int activation, double alpha, bool tied)
{
    erc_inputs inputs = erc_inputs_random(n, d, D, activation, alpha, 0.1, (uint64_t)(n * 10));
    if (tied) tie(&inputs);
    erc_case c        = erc_case_of(&inputs, "random");
    c.weight          = 0.75;
    erc_outcome drawn = erc_run_drawn(&c, 1, (uint64_t)n);
    c.delta           = drawn.delta;
    erc_outcome got   = erc_run(&c, CPL_F32, 2, true);
    plain p           = plain_of(&c, drawn.delta);
    plain_run(&p);
    int64_t ties;
    assert_true(nearest_kink(&p.erc, &ties) > F32_KINK);
    assert_true(tied == (ties > 0));
    assert_fast(&c, "epsilon", got.eps, p.epsilon, n);
    for (int i = 0; i < n * d; i++)
        assert_near(drawn.delta[i], 1, p.epsilon[i / d] + 2 * FLT_EPSILON);
    assert_fast(&c, "M", got.M, p.erc.M, n * n);
    assert_near(got.loss, p.loss, F32_TOLERANCE * mean(p.erc.M, n * n));
    assert_near(drawn.loss, p.loss, F32_TOLERANCE * mean(p.erc.M, n * n));
    assert_fast(&c, "the gradient of router", got.dR, p.grad[ROUTER], n * d);
    assert_fast(&c, "the drawn gradient of router", drawn.dR, p.grad[ROUTER], n * d);
    for (int k = 0; k < 3; k++)
        assert_fast(&c, INPUT_NAMES[GATE + k], got.dw[k], p.grad[GATE + k], p.n_expert);
    release_all(NULL);
}

TEST(fast_path)
{
    const double alphas[] = {0, 0.5, 1, 1.7};
    const int shapes[][3] = {{1, 4, 3},  {2, 1, 1},  {3, 5, 4},    {4, 7, 6},
                             {5, 17, 3}, {18, 3, 2}, {16, 33, 20}, {33, 50, 41}};
    const int n_shapes = (int)(sizeof shapes / sizeof *shapes), first_tied = 4;
    for (int activation = CPL_ERC_GATE; activation <= CPL_ERC_GATE_UP; activation++) {
        for (int k = first_tied; k < n_shapes; k++)
            check_fast_path(shapes[k][0], shapes[k][1], shapes[k][2], activation, 1, true);
        for (int a = 0; a < 4; a++)
            for (int k = 0; k < n_shapes; k++)
                check_fast_path(shapes[k][0], shapes[k][1], shapes[k][2], activation, alphas[a],
                                false);
    }
}
