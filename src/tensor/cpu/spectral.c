/* spectral.c - the largest singular value of every expert's gate, and the response of the gate to
 * the expert's router row.
 *
 * Room:    tensor/cpu. Operations: ops.h.
 * Names:   W [D,d] a gate; v_k [d] orthonormal vectors, T_k = V^T W^T W V the tridiagonal k x k
 *          matrix with diagonal `own` and neighbours `next`; theta its largest eigenvalue, which
 *          rises to |W|_2^2.
 * Method:  Lanczos steps on W^T W (Golub, Van Loan, Matrix Computations, 10.1), each vector made
 *          orthogonal to all before it, twice. The first vector is W^T times normal numbers, so
 *          that min(D,d) steps are exact; its numbers are the same for all gates and on all ranks.
 * Ends:    when |W^T W y - theta y| <= TOLERANCE theta for the unit vector y of theta: the square
 *          of a singular value is then within TOLERANCE theta of theta (Parlett, The Symmetric
 *          Eigenvalue Problem, 4.5).
 * Order:   one thread a gate, in double: no result depends on the number of threads. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/rng.h"
#include "base/stats/eigen.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/numbers.h"

/* A random 2048 x 7168 matrix takes 56 steps. */
enum { MOST_STEPS = 384, STEPS_A_CHECK = 8 };
static const double TOLERANCE = 4e-6;

/* The memory of one thread. */
typedef struct lanczos {
    double *v;              /* [most,d] */
    double *w, *row;        /* [d] the next vector; a row of W */
    double *own, *next;     /* [most] */
    double *value, *beside; /* [most] copies of own and next, for the eigenvalues */
    int64_t most, d;
} lanczos;

static int64_t most_steps(int64_t D, int64_t d)
{
    const int64_t rank = D < d ? D : d;
    return rank < MOST_STEPS ? rank : MOST_STEPS;
}

static double *take_doubles(cpl_arena *arena, int64_t count)
{
    return cpl_arena_take(arena, (size_t)count * sizeof(double));
}

static lanczos take_lanczos(cpl_arena *arena, int64_t D, int64_t d)
{
    lanczos s = {.most = most_steps(D, d), .d = d};
    s.v       = take_doubles(arena, s.most * d);
    s.w       = take_doubles(arena, d);
    s.row     = take_doubles(arena, d);
    s.own     = take_doubles(arena, s.most);
    s.next    = take_doubles(arena, s.most);
    s.value   = take_doubles(arena, s.most);
    s.beside  = take_doubles(arena, s.most);
    return s;
}

static size_t bytes_of_thread(int64_t D, int64_t d)
{
    cpl_arena measure = cpl_arena_over(NULL, SIZE_MAX);
    (void)take_lanczos(&measure, D, d);
    return cpl_padded(measure.used);
}

size_t CPL_ISA_NAME(cpl_cpu_spectral_scratch)(const cpl_backend *be, const cpl_work *work)
{
    if (work->d_expert == 0) return 0;
    return (size_t)be->n_threads * bytes_of_thread(work->d_expert, work->d_model);
}

/* ---- vectors ---- */

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < n; k++) sum += x[k] * y[k];
    return sum;
}

/* Computes y += a x. */
static void add(double *y, double a, const double *x, int64_t n)
{
#pragma omp simd
    for (int64_t k = 0; k < n; k++) y[k] += a * x[k];
}

/* Reads row i of W [D,d] as doubles. */
static void read_row(double *row, cpl_tensor W, int64_t i)
{
    const int64_t d = W.shape[1];
    if (W.dtype == CPL_BF16) {
        const uint16_t *from = (const uint16_t *)W.storage + i * d;
        for (int64_t k = 0; k < d; k++) row[k] = (double)cpl_bf16_to_f32(from[k]);
        return;
    }
    for (int64_t k = 0; k < d; k++) row[k] = (double)cpl_f32(W)[i * d + k];
}

/* Returns the inner product of row i of W [D,d] with a row of the router. */
static double response(cpl_tensor W, int64_t i, const float *row)
{
    const int64_t d = W.shape[1];
    double sum      = 0;
    if (W.dtype == CPL_BF16) {
        const uint16_t *from = (const uint16_t *)W.storage + i * d;
        for (int64_t k = 0; k < d; k++) sum += (double)cpl_bf16_to_f32(from[k]) * (double)row[k];
        return sum;
    }
    const float *from = cpl_f32(W) + i * d;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < d; k++) sum += (double)from[k] * (double)row[k];
    return sum;
}

/* Computes w = W^T W v, or W^T times normal numbers if v is NULL. */
static void multiply(const lanczos *s, cpl_tensor W, const double *v)
{
    const cpl_rng_key key = {.stream = CPL_STREAM_LANCZOS};
    memset(s->w, 0, (size_t)s->d * sizeof(double));
    for (int64_t i = 0; i < W.shape[0]; i++) {
        read_row(s->row, W, i);
        const double by = v ? dot(s->row, v, s->d) : (double)cpl_rng_normal(&key, (uint64_t)i);
        add(s->w, by, s->row, s->d);
    }
}

/* ---- Lanczos ---- */

/* Subtracts from w its components along v_0 ... v_k. Returns the component along v_k. */
static double make_orthogonal(const lanczos *s, int64_t k)
{
    double along = 0;
    for (int again = 0; again < 2; again++)
        for (int64_t j = 0; j <= k; j++) {
            const double part = dot(s->v + j * s->d, s->w, s->d);
            add(s->w, -part, s->v + j * s->d, s->d);
            if (j == k) along += part;
        }
    return along;
}

/* Returns the last number of the unit eigenvector of T_k, by a recurrence from the last number to
 * the first. In this direction the numbers grow and rounding errors do not. */
static double last_of_eigenvector(const lanczos *s, double theta, int64_t steps)
{
    double above = 0, x = 1, squares = 1; /* entries i + 1 and i; the last entry is 1 */
    for (int64_t i = steps - 1; i > 0 && isfinite(squares); i--) {
        const double below = i + 1 < steps ? s->next[i] * above : 0;
        const double up    = ((theta - s->own[i]) * x - below) / s->next[i - 1];
        above              = x;
        x                  = up;
        squares += x * x;
    }
    return 1 / sqrt(squares);
}

/* Returns theta of T after `steps` steps. Sets *known if theta is accurate enough. */
static double largest(const lanczos *s, int64_t steps, bool *known)
{
    const double rest = s->next[steps - 1]; /* the norm of the rest, orthogonal to all v */
    memcpy(s->value, s->own, (size_t)steps * sizeof(double));
    memcpy(s->beside, s->next, (size_t)steps * sizeof(double));
    cpl_eigenvalues_tridiagonal(s->value, s->beside, steps);
    const double theta = s->value[0];
    *known             = rest * last_of_eigenvector(s, theta, steps) <= TOLERANCE * theta;
    return theta;
}

static double spectral_norm(const lanczos *s, cpl_tensor W)
{
    double length, theta = 0, scale = 0;
    bool known = false;
    multiply(s, W, NULL);
    length = sqrt(dot(s->w, s->w, s->d));
    if (!isfinite(length)) return NAN;
    if (length == 0) return 0;
    for (int64_t k = 0; k < s->most && !known; k++) {
        double *v = s->v + k * s->d;
        for (int64_t i = 0; i < s->d; i++) v[i] = s->w[i] / length;
        multiply(s, W, v);
        s->own[k]  = make_orthogonal(s, k);
        length     = sqrt(dot(s->w, s->w, s->d));
        s->next[k] = length;
        scale      = fmax(scale, s->own[k]);
        known      = length <= TOLERANCE * scale; /* scale <= theta: the rest is negligible */
        if (known || (k + 1) % STEPS_A_CHECK == 0 || k + 1 == s->most) {
            bool found;
            theta = largest(s, k + 1, &found);
            known = known || found;
        }
    }
    return sqrt(theta);
}

void CPL_ISA_NAME(cpl_cpu_spectral_norms)(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    const int64_t n = x.shape[0], D = x.shape[1], d = x.shape[2];
    const size_t bytes = bytes_of_thread(D, d);
    const int threads  = cpl_threads(be, cpl_tensor_count(x));
    CPL_ASSERT(cpl_tensor_count(out) == n);
    CPL_ASSERT((size_t)threads * bytes <= be->scratch_bytes);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        cpl_arena own =
            cpl_arena_over((char *)be->scratch + (size_t)omp_get_thread_num() * bytes, bytes);
        const lanczos s = take_lanczos(&own, D, d);
        cpl_f32(out)[i] = (float)spectral_norm(&s, cpl_tensor_at(x, i));
    }
}

void CPL_ISA_NAME(cpl_cpu_own_responses)(cpl_backend *be, cpl_tensor out, cpl_tensor rows,
                                         cpl_tensor x)
{
    const int64_t n = x.shape[0], D = x.shape[1], d = x.shape[2];
    CPL_ASSERT(cpl_tensor_count(out) == n && cpl_tensor_count(rows) == n * d);
#pragma omp parallel for num_threads(cpl_threads(be, n *D *d)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const cpl_tensor W = cpl_tensor_at(x, i);
        const float *row   = cpl_f32(rows) + i * d;
        double squares     = 0;
        for (int64_t k = 0; k < D; k++) {
            const double answer = response(W, k, row);
            squares += answer * answer;
        }
        cpl_f32(out)[i] = (float)sqrt(squares);
    }
}
