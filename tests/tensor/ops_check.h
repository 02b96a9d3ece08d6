/* ops_check.h - random tensors, backends and tolerances for the tests of ops.h.
 *
 * Every tensor is an allocation of its own and exactly as long as its numbers, so that the
 * sanitizers see a step beyond its end. release_all, a teardown of cmocka, frees all tensors. */
#ifndef CPL_TESTS_TENSOR_OPS_CHECK_H
#define CPL_TESTS_TENSOR_OPS_CHECK_H

#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "tensor/backend/backend.h"
#include "tensor/numbers.h"

enum { MOST_TAKEN = 4096, MOST_BACKENDS = 256 };

typedef struct taken_memory {
    void *at[MOST_TAKEN];
    int count;
    cpl_backend *backend[MOST_BACKENDS];
    int n_backends;
    uint64_t n_random; /* random tensors made so far; setting it repeats the numbers */
} taken_memory;

static inline taken_memory *taken(void)
{
    static taken_memory all;
    return &all;
}

static inline void *take(size_t bytes)
{
    taken_memory *all = taken();
    assert_true(all->count < MOST_TAKEN);
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return all->at[all->count++] = memory;
}

static inline int release_all(void **state)
{
    taken_memory *all = taken();
    (void)state;
    for (int i = 0; i < all->n_backends; i++) cpl_backend_free(all->backend[i]);
    for (int i = 0; i < all->count; i++) free(all->at[i]);
    all->count = all->n_backends = 0;
    return 0;
}
TESTS_DO(after_each, release_all);

static inline int64_t at_least_one(int64_t count)
{
    return count > 0 ? count : 1;
}

/* Returns `work` with 1 for everything that it leaves out. */
static inline cpl_work whole_work(cpl_work work)
{
    work.n_tokens   = at_least_one(work.n_tokens);
    work.d_model    = at_least_one(work.d_model);
    work.d_expert   = at_least_one(work.d_expert);
    work.n_experts  = at_least_one(work.n_experts);
    work.top_k      = at_least_one(work.top_k);
    work.n_heads    = at_least_one(work.n_heads);
    work.vocab_size = at_least_one(work.vocab_size);
    return work;
}

/* Returns a CPU backend with scratch for `work`, which lasts until the test's end. */
static inline cpl_backend *new_cpu(cpl_dtype compute, int n_threads, cpl_work work)
{
    cpl_backend *be = take(sizeof *be);
    work            = whole_work(work);
    cpl_backend_cpu(be, compute, n_threads);
    assert_ok(cpl_backend_reserve(be, &work));
    assert_true(taken()->n_backends < MOST_BACKENDS);
    taken()->backend[taken()->n_backends++] = be;
    return be;
}

/* ---- tensors ---- */

static inline cpl_tensor new_tensor(cpl_dtype dtype, int64_t a, int64_t b)
{
    cpl_tensor x = cpl_tensor_2d(NULL, dtype, a, b);
    x.storage    = take(cpl_tensor_bytes(x));
    memset(x.storage, 0, cpl_tensor_bytes(x));
    return x;
}

static inline cpl_tensor new_1d(cpl_dtype dtype, int64_t a)
{
    return cpl_tensor_1d(new_tensor(dtype, a, 1).storage, dtype, a);
}

/* Returns a tensor, F32 of two dimensions, as the operations of the host take it. */
static inline cpl_matrix matrix_of(cpl_tensor x)
{
    assert_true(x.rank == 2);
    return (cpl_matrix){cpl_f32(x), x.shape[0], x.shape[1]};
}

/* Fills x with standard normal numbers times `scale`. The numbers differ from call to call. */
static inline void randomise(cpl_tensor x, float scale)
{
    cpl_rng_key key = {.seed = 11, .step = taken()->n_random++, .stream = CPL_STREAM_TEST};
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) {
        float value = scale * cpl_rng_normal(&key, (uint64_t)i);
        if (x.dtype == CPL_BF16)
            ((uint16_t *)x.storage)[i] = cpl_bf16_from_f32(value);
        else
            cpl_f32(x)[i] = value;
    }
}

static inline cpl_tensor normal_2d(int64_t a, int64_t b, float scale)
{
    cpl_tensor x = new_tensor(CPL_F32, a, b);
    randomise(x, scale);
    return x;
}

static inline cpl_tensor normal_1d(int64_t a, float scale)
{
    cpl_tensor x = normal_2d(a, 1, scale);
    return cpl_tensor_1d(x.storage, CPL_F32, a);
}

static inline cpl_tensor normal_3d(int64_t a, int64_t b, int64_t c, float scale)
{
    cpl_tensor x = normal_2d(a * b, c, scale);
    return cpl_tensor_3d(x.storage, CPL_F32, a, b, c);
}

/* Fills x with whole numbers in [0, below). */
static inline void randomise_ids(cpl_tensor x, int32_t below)
{
    cpl_rng_key key = {.seed = 12, .step = taken()->n_random++, .stream = CPL_STREAM_TEST};
    for (int64_t i = 0; i < cpl_tensor_count(x); i++)
        cpl_i32(x)[i] = (int32_t)(cpl_rng_u32(&key, (uint64_t)i) % (uint32_t)below);
}

static inline cpl_tensor copy_of(cpl_tensor x)
{
    cpl_tensor y = x;
    y.storage    = take(cpl_tensor_bytes(x));
    memcpy(y.storage, x.storage, cpl_tensor_bytes(x));
    return y;
}

/* Returns a tensor of ones like x: the start of a tensor to which an operation adds. */
static inline cpl_tensor ones_like(cpl_tensor x)
{
    cpl_tensor y = x;
    y.dtype      = CPL_F32;
    y.storage    = take(cpl_tensor_bytes(y));
    for (int64_t i = 0; i < cpl_tensor_count(y); i++) cpl_f32(y)[i] = 1;
    return y;
}

/* Returns the F32 tensor x rounded to bf16. */
static inline cpl_tensor as_bf16(cpl_backend *be, cpl_tensor x)
{
    cpl_tensor low = x;
    low.dtype      = CPL_BF16;
    low.storage    = take(cpl_tensor_bytes(low));
    be->ops->copy(be, low, x);
    return low;
}

/* Returns the assignments expert [T,K] sorted by their n experts. */
static inline cpl_dispatch dispatch_of(cpl_backend *be, cpl_tensor expert, int64_t n)
{
    const int64_t T = expert.shape[0], K = expert.shape[1];
    cpl_dispatch plan = {new_1d(CPL_I32, n + 1), new_1d(CPL_I32, T * K), new_tensor(CPL_I32, T, K)};
    be->ops->dispatch(be, plan, expert, n);
    return plan;
}

/* Returns number i of x, F32 or BF16. */
static inline double float_number(cpl_tensor x, int64_t i)
{
    return (double)(x.dtype == CPL_BF16 ? cpl_bf16_to_f32(((const uint16_t *)x.storage)[i])
                                        : cpl_f32(x)[i]);
}

static inline double *doubles_of(cpl_tensor x)
{
    double *wide = take((size_t)cpl_tensor_count(x) * sizeof *wide);
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) wide[i] = float_number(x, i);
    return wide;
}

static inline double *new_doubles(int64_t count)
{
    double *wide = take((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++) wide[i] = 0;
    return wide;
}

/* ---- comparing ---- */

/* Returns c * eps * sqrt(k), the relative error that sums of k terms in F32 may have. */
static inline double sum_tolerance(double c, int64_t k)
{
    return c * (double)FLT_EPSILON * sqrt((double)(k > 0 ? k : 1));
}

/* Asserts norm(got - want) <= limit * norm(want) + floor. */
static inline void assert_close(const char *what, cpl_tensor got, const double *want, double limit,
                                double floor)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < cpl_tensor_count(got); i++) {
        double difference = float_number(got, i) - want[i];
        off += difference * difference;
        size += want[i] * want[i];
    }
    if (!(sqrt(off) <= limit * sqrt(size) + floor))
        fail_msg("%s is off by %.3g of %.3g, more than %.3g", what, sqrt(off), sqrt(size), limit);
}

/* Does what assert_close does for a tensor that began at one. */
static inline void assert_added(const char *what, cpl_tensor got, double *want, double limit)
{
    for (int64_t i = 0; i < cpl_tensor_count(got); i++) want[i] += 1;
    assert_close(what, got, want, limit, 0);
}

static inline void assert_same_bits(cpl_tensor a, cpl_tensor b)
{
    assert_memory_equal(a.storage, b.storage, cpl_tensor_bytes(a));
}

/* Returns the derivative of f (of `context`) by *at, by central differences in double. */
static inline double slope(double (*f)(void *context), void *context, double *at, double step)
{
    const double middle = *at;
    *at                 = middle + step;
    double above        = f(context);
    *at                 = middle - step;
    double below        = f(context);
    *at                 = middle;
    return (above - below) / (2 * step);
}

/* Returns the gradient of f by every number of x [count]. */
static inline double *gradient(double (*f)(void *context), void *context, double *x, int64_t count)
{
    const double step = 1e-5;
    double *dx        = new_doubles(count);
    for (int64_t i = 0; i < count; i++) dx[i] = slope(f, context, &x[i], step);
    return dx;
}

/* Compares a gradient with the gradient by differences. */
static inline void assert_doubles(const char *what, const double *got, const double *want,
                                  int64_t count)
{
    static const double STEP = 1e-7; /* rounding over the step of central differences */
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    if (!(sqrt(off) <= STEP * (1 + sqrt(size)))) fail_msg("%s is off by %g", what, sqrt(off));
}

/* ---- operations that add to one number, as functions ---- */

#define NUMBER_OF(call)                                                                            \
    double number  = 0;                                                                            \
    cpl_tensor out = cpl_tensor_1d(&number, CPL_F64, 1);                                           \
    be->ops->call;                                                                                 \
    return number

static inline double sum_of(cpl_backend *be, cpl_tensor x)
{
    NUMBER_OF(sum(be, out, x));
}

static inline double negatives_of(cpl_backend *be, cpl_tensor x)
{
    NUMBER_OF(count_negative(be, out, x));
}

static inline double dot_of(cpl_backend *be, cpl_tensor x, cpl_tensor y)
{
    NUMBER_OF(dot(be, out, x, y));
}

static inline double orthogonality_of(cpl_backend *be, cpl_tensor dR, cpl_tensor R, float scale)
{
    NUMBER_OF(orthogonality(be, out, dR, R, scale));
}

static inline int32_t sample_of(cpl_backend *be, cpl_tensor logits, float temperature, float top_p,
                                float uniform)
{
    int32_t id = -1;
    be->ops->sample(be, cpl_tensor_1d(&id, CPL_I32, 1), logits, temperature, top_p, uniform);
    return id;
}

#endif /* CPL_TESTS_TENSOR_OPS_CHECK_H */
