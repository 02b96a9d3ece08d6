/* rope.cu - rotary positions: the table of angles and the rotation.
 *
 * Room:   tensor/cuda. Operations: ops.h.
 * Names:  h width of a head, P positions. */
#include "tensor/cuda/four.h"

enum { THREADS = 256 };

static dim3 grid_of(int64_t threads)
{
    return dim3((unsigned)((threads + THREADS - 1) / THREADS));
}

/* Fills the table of angles. Frequency and angle are rounded to F32, as Hugging Face rounds them.
 * cos and sin of the angle are computed in double. */
__global__ void rope_table(float *out, int64_t P, int64_t half, double theta)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= P * half) return;
    const int64_t p = at / half, i = at % half;
    const float power     = (float)(2 * i) / (float)(2 * half);
    const float frequency = 1.0f / (float)pow(theta, (double)power);
    const float angle     = (float)p * frequency;
    out[2 * at]           = (float)cos((double)angle);
    out[2 * at + 1]       = (float)sin((double)angle);
}

extern "C" void cpl_cuda_rope_table(cpl_backend *be, cpl_tensor table, float theta)
{
    CPL_ASSERT(table.rank == 3 && table.shape[2] == 2);
    const int64_t P = table.shape[0], half = table.shape[1];
    CPL_LAUNCH(be, rope_table, grid_of(P * half), THREADS, 0, cpl_f32(table), P, half,
               (double)theta);
}

typedef struct rotation {
    cpl_device_numbers x, angles;
    int64_t tokens, heads, half;
    const int32_t *position; /* [tokens], or NULL for first + (t mod n_queries) */
    int64_t n_queries, first;
    float sign; /* sign of the sine: 1 forward, -1 backward */
} rotation;

/* A thread rotates four pairs of a head: (a, b) becomes (a cos - b sin, b cos + a sin). */
__global__ void rotate(rotation s)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t pieces = (s.half + 3) / 4, head = thread / pieces, t = head / s.heads;
    const int64_t i = 4 * (thread % pieces), low = 2 * head * s.half, high = low + s.half;
    if (t >= s.tokens) return;
    const int64_t p          = s.position ? s.position[t] : s.first + t % s.n_queries;
    cpl_four a               = cpl_four_get(s.x, low + i, low + s.half);
    cpl_four b               = cpl_four_get(s.x, high + i, high + s.half);
    const cpl_four angles[2] = {
        cpl_four_get(s.angles, 2 * (p * s.half + i), 2 * (p + 1) * s.half),
        cpl_four_get(s.angles, 2 * (p * s.half + i) + 4, 2 * (p + 1) * s.half),
    };
    for (int k = 0; k < 4; k++) {
        const float c    = angles[k / 2].at[k % 2 * 2],
                    sine = s.sign * angles[k / 2].at[k % 2 * 2 + 1];
        const float from = a.at[k];
        a.at[k]          = from * c - b.at[k] * sine;
        b.at[k]          = b.at[k] * c + from * sine;
    }
    cpl_four_set(s.x, low + i, low + s.half, a);
    cpl_four_set(s.x, high + i, high + s.half, b);
}

static void launch(cpl_backend *be, rotation s)
{
    CPL_LAUNCH(be, rotate, grid_of(s.tokens * s.heads * ((s.half + 3) / 4)), THREADS, 0, s);
}

extern "C" void cpl_cuda_rope(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                              int64_t n_queries, int64_t first, int direction)
{
    const int64_t T = cpl_tensor_rows(x), half = table.shape[1];
    CPL_ASSERT(cpl_tensor_cols(x) == n_heads * 2 * half && table.dtype == CPL_F32);
    CPL_ASSERT(T == 0 || (first >= 0 && first + n_queries <= table.shape[0]));
    launch(be, {cpl_device_numbers_of(x), cpl_device_numbers_of(table), T, n_heads, half, NULL,
                n_queries, first, direction < 0 ? -1.0f : 1.0f});
}

extern "C" void cpl_cuda_rope_at(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                                 cpl_tensor position)
{
    const int64_t T = cpl_tensor_rows(x), half = table.shape[1];
    CPL_ASSERT(cpl_tensor_cols(x) == n_heads * 2 * half && table.dtype == CPL_F32);
    CPL_ASSERT(cpl_tensor_count(position) == T);
    launch(be, {cpl_device_numbers_of(x), cpl_device_numbers_of(table), T, n_heads, half,
                cpl_i32(position), 1, 0, 1.0f});
}

extern "C" size_t cpl_cuda_rope_scratch(const cpl_backend *, const cpl_work *)
{
    return 0;
}
