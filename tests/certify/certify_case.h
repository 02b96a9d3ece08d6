/* certify_case.h - an implementation of the coupling loss of its own, plain loops in double, with
 * every fault as a switch and rounding as f32 or bf16 would have it; and dumps of what it gives.
 *
 * Its gradient goes back operation by operation, as autograd does: from the loss to the hinges, to
 * M, to A, to the proxies. */
#ifndef CPL_TESTS_CERTIFY_CERTIFY_CASE_H
#define CPL_TESTS_CERTIFY_CERTIFY_CASE_H

#include <math.h>

#include "base/arena.h"
#include "certify/certify.h"
#include "check.h"
#include "checkpoint/safetensors.h"
#include "tensor/numbers.h"

#define HAS(faults, name) (((faults)&CPL_FAULT_BIT(name)) != 0)

/* ---- numbers ---- */

typedef enum naive_kind {
    NAIVE_F64,
    NAIVE_F32,      /* every result of every operation */
    NAIVE_AUTOCAST, /* operands and results of products are bf16, the rest f32 */
    NAIVE_BF16,     /* everything is */
    NAIVE_KINDS
} naive_kind;

static inline double to_f32(double x)
{
    return (double)(float)x;
}

static inline double to_bf16(double x)
{
    return (double)cpl_bf16_to_f32(cpl_bf16_from_f32((float)x));
}

static inline double plain(naive_kind kind, double x)
{
    return kind == NAIVE_F64 ? x : kind == NAIVE_BF16 ? to_bf16(x) : to_f32(x);
}

static inline double product(naive_kind kind, double x)
{
    return kind == NAIVE_F64 ? x : kind == NAIVE_F32 ? to_f32(x) : to_bf16(x);
}

/* Numbers of a case: a generator of its own. */
typedef struct dice {
    uint64_t state;
} dice;

static inline double dice_unit(dice *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(r->state >> 11) * 0x1p-53;
}

static inline double dice_normal(dice *r)
{
    double sum = 0;
    for (int k = 0; k < 12; k++) sum += dice_unit(r);
    return sum - 6;
}

static inline int dice_int(dice *r, int low, int high)
{
    return low + (int)(dice_unit(r) * (high - low + 1));
}

/* ---- a case ---- */

typedef struct naive {
    int n, d, D;
    double alpha, weight, layers;
    naive_kind kind;
    bool noisy, has_up, gives_M;
    double tie; /* what passes at an exact tie: 1, or strict 0, or 0.5 */
    double *R, *delta, *W[2], *M, *dR, *dW[2];
    double *eps, *X, *A; /* A [n(j),n(i),2 D] */
    int *nearest;
    double loss;
} naive;

static inline double *zeros(int64_t count)
{
    return calloc((size_t)(count > 0 ? count : 1), sizeof(double));
}

static inline void naive_room(naive *v)
{
    const int64_t nd = (int64_t)v->n * v->d, nDd = nd * v->D;
    v->R = zeros(nd), v->delta = zeros(nd), v->dR = zeros(nd), v->X = zeros(nd);
    for (int h = 0; h < 2; h++) v->W[h] = zeros(nDd), v->dW[h] = zeros(nDd);
    v->M = zeros(v->n * v->n), v->eps = zeros(v->n);
    v->A       = zeros((int64_t)v->n * v->n * 2 * v->D);
    v->nearest = calloc((size_t)v->n, sizeof(int));
}

static inline void naive_free(naive *v)
{
    double *all[] = {v->R,     v->delta, v->dR, v->X,   v->W[0], v->W[1],
                     v->dW[0], v->dW[1], v->M,  v->eps, v->A};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
    free(v->nearest);
}

static inline void naive_eps(naive *v)
{
    for (int i = 0; i < v->n; i++) {
        double norm = 0, least = INFINITY;
        for (int k = 0; k < v->d; k++) norm += v->R[i * v->d + k] * v->R[i * v->d + k];
        for (int m = 0; m < v->n; m++) {
            double apart = 0;
            if (m == i) continue;
            for (int k = 0; k < v->d; k++) apart += pow(v->R[i * v->d + k] - v->R[m * v->d + k], 2);
            if (apart < least) least = apart, v->nearest[i] = m;
        }
        v->eps[i] = v->n > 1 && norm > 0 ? sqrt(least) / (2 * sqrt(norm)) : 0;
    }
}

/* Gates with a part along their own router row, so that some hinges are active and some are not. */
static inline void naive_fill(naive *v, dice *r, double own)
{
    const int n = v->n, d = v->d, D = v->D;
    const double scale = exp(2 * dice_unit(r) - 1);
    for (int k = 0; k < n * d; k++) v->R[k] = to_f32(scale * dice_normal(r));
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < n; j++)
            for (int c = 0; c < D; c++) {
                const double along = own * dice_normal(r) / scale;
                for (int k = 0; k < d; k++)
                    v->W[h][(j * D + c) * d + k] =
                        to_f32(dice_normal(r) + along * v->R[j * d + k] / sqrt(d));
            }
    naive_eps(v);
    for (int k = 0; k < n * d; k++)
        v->delta[k] = v->noisy ? to_f32(1 + v->eps[k / d] * (2 * dice_unit(r) - 1)) : 1;
}

/* Small odd shapes; alpha 0 ... 1.5, weight and layers other than 1. */
static inline naive naive_random(uint64_t seed)
{
    dice r  = {seed * 0x9e3779b97f4a7c15u + 1};
    naive v = {.tie = 1};
    for (int k = 0; k < 4; k++) dice_unit(&r);
    v.n       = dice_int(&r, 2, 24);
    v.d       = 2 * dice_int(&r, 1, 6) + 1;
    v.D       = 2 * dice_int(&r, 0, 5) + 1;
    v.alpha   = to_f32(1.5 * dice_unit(&r));
    v.weight  = to_f32(dice_unit(&r) < 0.5 ? 0.2 + 0.5 * dice_unit(&r) : 1.6 + dice_unit(&r));
    v.layers  = dice_int(&r, 3, 40);
    v.noisy   = dice_unit(&r) < 0.7;
    v.has_up  = dice_unit(&r) < 0.7;
    v.gives_M = dice_unit(&r) < 0.5;
    naive_room(&v);
    naive_fill(&v, &r, 1.5 * dice_unit(&r));
    return v;
}

/* ---- forward ---- */

static inline bool uses(cpl_fault_set faults, int half)
{
    return half == 0 ? !HAS(faults, UP_FOR_GATE) : HAS(faults, UP_FOR_GATE) || HAS(faults, MERGED);
}

static inline double *naive_a(const naive *v, int i, int j)
{
    return v->A + ((int64_t)j * v->n + i) * 2 * v->D;
}

static inline double naive_dot(const naive *v, const double *x, const double *w, int count,
                               int x_step, int w_step)
{
    double sum = 0;
    for (int k = 0; k < count; k++) {
        const double term = product(v->kind, x[k * x_step]) * product(v->kind, w[k * w_step]);
        sum               = v->kind == NAIVE_F64 ? sum + term : to_f32(sum + term);
    }
    return product(v->kind, sum);
}

static inline void naive_M(naive *v, cpl_fault_set faults)
{
    const int n = v->n, d = v->d, D = v->D;
    for (int k = 0; k < n * d; k++)
        v->X[k] = HAS(faults, NOISE_LEFT_OUT) ? v->R[k] : plain(v->kind, v->R[k] * v->delta[k]);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < n; i++) {
            double *a = naive_a(v, i, j), square = 0;
            memset(a, 0, (size_t)(2 * D) * sizeof *a);
            for (int h = 0; h < 2; h++)
                for (int c = 0; c < D && uses(faults, h); c++)
                    a[h * D + c] = naive_dot(v, v->X + i * d, v->W[h] + (j * D + c) * d, d, 1, 1);
            for (int c = 0; c < 2 * D; c++) square += a[c] * a[c];
            v->M[i * n + j] = plain(v->kind, HAS(faults, SQUARED) ? square : sqrt(square));
        }
}

/* One hinge; adds to the loss and to dM. */
static inline void naive_hinge(naive *v, cpl_fault_set faults, double *dM, double u, int i, int j,
                               int k)
{
    const int n        = v->n;
    const double alpha = HAS(faults, ALPHA_IGNORED) ? 1 : v->alpha;
    const double sign  = HAS(faults, HINGE_SIGN) ? -1 : 1;
    const double bound = plain(v->kind, alpha * v->M[k * n + k]);
    const double over  = plain(v->kind, sign * (v->M[i * n + j] - bound));
    const double open  = over > 0 ? 1 : over == 0 ? v->tie : 0;
    v->loss += u * (over > 0 ? over : 0);
    dM[i * n + j] += u * open * sign;
    if (!HAS(faults, DIAGONAL_DETACHED)) dM[k * n + k] -= u * open * sign * alpha;
}

static inline double naive_u(const naive *v, cpl_fault_set faults)
{
    const double n = v->n;
    double u       = HAS(faults, PAIRS_MEAN)  ? 1 / (n * (n - 1))
                     : HAS(faults, ROWS_MEAN) ? 1 / n
                     : HAS(faults, NO_MEAN)   ? 1
                                              : 1 / (n * n);
    if (!HAS(faults, WEIGHT_LEFT_OUT)) u *= v->weight;
    if (HAS(faults, WEIGHT_TWICE)) u *= v->weight;
    if (!HAS(faults, LAYERS_SUM)) u /= v->layers;
    if (HAS(faults, LAYERS_TWICE)) u /= v->layers;
    return HAS(faults, LOSS_SIGN) ? -u : u;
}

static inline void naive_loss(naive *v, cpl_fault_set faults, double *dM)
{
    const double u = naive_u(v, faults);
    v->loss        = 0;
    for (int i = 0; i < v->n; i++)
        for (int j = 0; j < v->n; j++) {
            if (i == j && !HAS(faults, DIAGONAL_KEPT)) continue;
            if (!HAS(faults, ROW_MISSING)) naive_hinge(v, faults, dM, u, i, j, i);
            if (!HAS(faults, COLUMN_MISSING)) naive_hinge(v, faults, dM, u, i, j, j);
        }
    v->loss = plain(v->kind, v->loss);
}

/* ---- backward ---- */

static inline void naive_eps_backward(naive *v, const double *dX)
{
    const int d = v->d;
    for (int i = 0; i < v->n; i++) {
        const double *R = v->R + i * d, *near = v->R + v->nearest[i] * d;
        double by_eps = 0, norm = 0, apart = 0;
        if (v->eps[i] == 0) continue;
        for (int k = 0; k < d; k++) {
            const double z = (v->delta[i * d + k] - 1) / v->eps[i];
            by_eps += dX[i * d + k] * R[k] * z;
            norm += R[k] * R[k];
            apart += (R[k] - near[k]) * (R[k] - near[k]);
        }
        norm = sqrt(norm), apart = sqrt(apart);
        for (int k = 0; k < d; k++) {
            const double by_apart = by_eps / (2 * norm) * (R[k] - near[k]) / apart;
            v->dR[i * d + k] += by_apart - by_eps * apart / (2 * norm * norm) * R[k] / norm;
            v->dR[v->nearest[i] * d + k] -= by_apart;
        }
    }
}

static inline void naive_router(naive *v, cpl_fault_set faults, const double *dX)
{
    const bool bare = HAS(faults, NOISE_LEFT_OUT) || HAS(faults, DELTA_LEFT_OUT);
    memset(v->dR, 0, (size_t)(v->n * v->d) * sizeof(double));
    if (HAS(faults, ROUTER_DETACHED)) return;
    for (int k = 0; k < v->n * v->d; k++) v->dR[k] = dX[k] * (bare ? 1 : v->delta[k]);
    if (HAS(faults, EPS_GRADIENT)) naive_eps_backward(v, dX);
    for (int k = 0; k < v->n * v->d; k++) v->dR[k] = plain(v->kind, v->dR[k]);
}

/* From dM to dA; A is not needed any more. */
static inline void naive_dA(naive *v, cpl_fault_set faults, const double *dM)
{
    for (int j = 0; j < v->n; j++)
        for (int i = 0; i < v->n; i++) {
            const double M = v->M[i * v->n + j], by_M = plain(v->kind, dM[i * v->n + j]);
            const double slope = HAS(faults, SQUARED) ? 2 : M > 0 ? 1 / M : 0;
            double *a          = naive_a(v, i, j);
            for (int c = 0; c < 2 * v->D; c++) a[c] = plain(v->kind, by_M * slope * a[c]);
        }
}

static inline void naive_backward(naive *v, cpl_fault_set faults, const double *dM)
{
    const int n = v->n, d = v->d, D = v->D;
    double *dX = zeros(n * d);
    naive_dA(v, faults, dM);
    for (int h = 0; h < 2; h++) memset(v->dW[h], 0, (size_t)(n * D * d) * sizeof(double));
    for (int j = 0; j < n; j++)
        for (int h = 0; h < 2; h++) {
            if (!uses(faults, h)) continue;
            for (int c = 0; c < D; c++)
                for (int k = 0; k < d && !HAS(faults, EXPERTS_DETACHED); k++)
                    v->dW[h][(j * D + c) * d + k] =
                        naive_dot(v, naive_a(v, 0, j) + h * D + c, v->X + k, n, 2 * D, d);
            for (int i = 0; i < n; i++)
                for (int k = 0; k < d; k++)
                    dX[i * d + k] +=
                        naive_dot(v, naive_a(v, i, j) + h * D, v->W[h] + j * D * d + k, D, 1, d);
        }
    naive_router(v, faults, dX);
    free(dX);
}

static inline void naive_run(naive *v, cpl_fault_set faults)
{
    const int n = v->n;
    double *dM  = zeros(n * n);
    naive_M(v, faults);
    naive_loss(v, faults, dM);
    naive_backward(v, faults, dM);
    for (int i = 0; i < n && HAS(faults, TRANSPOSED); i++)
        for (int j = 0; j < i; j++) {
            const double swap = v->M[i * n + j];
            v->M[i * n + j]   = v->M[j * n + i];
            v->M[j * n + i]   = swap;
        }
    free(dM);
}

/* ---- dumps ---- */

typedef struct piece {
    const char *name;
    cpl_safetensors_dtype dtype;
    int rank;
    int64_t shape[3];
    const double *values;
} piece;

static inline size_t piece_count(const piece *p)
{
    size_t count = 1;
    for (int k = 0; k < p->rank; k++) count *= (size_t)p->shape[k];
    return count;
}

static inline size_t piece_bytes(const piece *p, void *out)
{
    const size_t count = piece_count(p);
    for (size_t k = 0; k < count; k++) {
        const float narrow    = (float)p->values[k];
        const uint16_t bf16   = cpl_bf16_from_f32(narrow);
        const int64_t integer = (int64_t)p->values[k];
        switch (p->dtype) {
        case CPL_SAFETENSORS_F64:
            memcpy((char *)out + 8 * k, &p->values[k], 8);
            break;
        case CPL_SAFETENSORS_I64:
            memcpy((char *)out + 8 * k, &integer, 8);
            break;
        case CPL_SAFETENSORS_F32:
            memcpy((char *)out + 4 * k, &narrow, 4);
            break;
        default:
            memcpy((char *)out + 2 * k, &bf16, 2);
        }
    }
    return count * (size_t)cpl_safetensors_dtype_bits(p->dtype) / 8;
}

/* Plainly, not as the library does, which syncs each file: there are thousands of them. */
static inline void write_pieces(const char *path, const piece *pieces, int count)
{
    char header[4096] = "{";
    unsigned char length[8];
    size_t end = 0;
    FILE *out  = fopen(path, "wb");
    assert_non_null(out);
    for (int k = 0; k < count; k++) {
        const piece *p = &pieces[k];
        char *at       = header + strlen(header);
        at += sprintf(at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", k ? "," : "", p->name,
                      cpl_safetensors_dtype_name(p->dtype));
        for (int r = 0; r < p->rank; r++)
            at += sprintf(at, "%s%lld", r ? "," : "", (long long)p->shape[r]);
        const size_t begin = end;
        end += piece_count(p) * (size_t)cpl_safetensors_dtype_bits(p->dtype) / 8;
        sprintf(at, "],\"data_offsets\":[%zu,%zu]}", begin, end);
    }
    strcat(header, "}");
    for (int k = 0; k < 8; k++) length[k] = (unsigned char)(strlen(header) >> 8 * k);
    fwrite(length, 1, 8, out);
    fwrite(header, 1, strlen(header), out);
    for (int k = 0; k < count; k++) {
        void *bytes = malloc(piece_count(&pieces[k]) * 8 + 8);
        fwrite(bytes, 1, piece_bytes(&pieces[k], bytes), out);
        free(bytes);
    }
    assert_int_equal(fclose(out), 0);
}

enum { MOST_PIECES = 12 };

/* What a case's dump holds; results as wide as they were computed. */
static inline int naive_pieces(const naive *v, piece *p, bool gradients)
{
    const cpl_safetensors_dtype in  = CPL_SAFETENSORS_F32;
    const cpl_safetensors_dtype out = v->kind == NAIVE_F64    ? CPL_SAFETENSORS_F64
                                      : v->kind == NAIVE_BF16 ? CPL_SAFETENSORS_BF16
                                                              : CPL_SAFETENSORS_F32;
    const int64_t n = v->n, d = v->d, D = v->D;
    int count  = 0;
    p[count++] = (piece){"R", in, 2, {n, d}, v->R};
    p[count++] = (piece){"W_g", in, 3, {n, D, d}, v->W[0]};
    if (v->has_up) p[count++] = (piece){"W_p", in, 3, {n, D, d}, v->W[1]};
    if (v->noisy) p[count++] = (piece){"delta", in, 2, {n, d}, v->delta};
    p[count++] = (piece){"alpha", CPL_SAFETENSORS_F64, 0, {0}, &v->alpha};
    p[count++] = (piece){"weight", CPL_SAFETENSORS_F64, 1, {1}, &v->weight};
    p[count++] = (piece){"layers", CPL_SAFETENSORS_I64, 0, {0}, &v->layers};
    p[count++] = (piece){"loss", out, 0, {0}, &v->loss};
    if (v->gives_M) p[count++] = (piece){"M", out, 2, {n, n}, v->M};
    if (!gradients) return count;
    p[count++] = (piece){"dR", out, 2, {n, d}, v->dR};
    p[count++] = (piece){"dW_g", out, 3, {n, D, d}, v->dW[0]};
    if (v->has_up) p[count++] = (piece){"dW_p", out, 3, {n, D, d}, v->dW[1]};
    return count;
}

/* A file that is written again and again. */
static inline const char *case_path(void)
{
    static char path[128];
    if (!*path) snprintf(path, sizeof path, "%s/dump.safetensors", scratch_folder());
    return path;
}

/* What the program says of a case under these faults. */
static inline cpl_certificate naive_certify(naive *v, cpl_fault_set faults)
{
    piece pieces[MOST_PIECES];
    cpl_certificate out;
    naive_run(v, faults);
    write_pieces(case_path(), pieces, naive_pieces(v, pieces, true));
    assert_ok(cpl_certify(&out, case_path(), 1));
    return out;
}

/* "row_missing+pairs_mean" */
static inline const char *set_text(cpl_fault_set faults)
{
    static char texts[4][256];
    static int turn;
    char *text = texts[turn = (turn + 1) % 4];
    *text      = 0;
    for (int f = 0; f < CPL_N_FAULTS; f++)
        if (faults >> f & 1)
            snprintf(text + strlen(text), 256 - strlen(text), "%s%s", *text ? "+" : "",
                     cpl_faults[f].key);
    return *text ? text : "right";
}

#endif /* CPL_TESTS_CERTIFY_CERTIFY_CASE_H */
