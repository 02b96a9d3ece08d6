/* rope.c - rotary positions: the table of angles and the rotation.
 *
 * Room:   tensor/cpu. Operations: ops.h.
 * Names:  h width of a head, P positions. */
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/numbers.h"

/* Fills the table of angles. Frequency and angle are rounded to F32, as Hugging Face rounds them.
 * cos and sin of the angle are computed in double, so that they are correctly rounded. */
void CPL_ISA_NAME(cpl_cpu_rope_table)(cpl_backend *be, cpl_tensor table, float theta)
{
    CPL_ASSERT(table.rank == 3 && table.shape[2] == 2);
    const int64_t P = table.shape[0], half = table.shape[1];
    float *out = cpl_f32(table);
#pragma omp parallel for num_threads(cpl_threads(be, 16 * P * half)) schedule(static)
    for (int64_t i = 0; i < half; i++) {
        float power     = (float)(2 * i) / (float)(2 * half);
        float frequency = 1.0f / (float)pow((double)theta, (double)power);
        for (int64_t p = 0; p < P; p++) {
            float angle                 = (float)p * frequency;
            out[2 * (p * half + i)]     = (float)cos((double)angle);
            out[2 * (p * half + i) + 1] = (float)sin((double)angle);
        }
    }
}

/* Rotates one head: (a, b) becomes (a cos - b sin, b cos + a sin), sin taken with `sign`. */
static void rotate(float *head, const float *angles, int64_t half, float sign)
{
    float *upper = head + half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float c = angles[2 * i], s = sign * angles[2 * i + 1];
        float a = head[i], b = upper[i];
        head[i]  = a * c - b * s;
        upper[i] = b * c + a * s;
    }
}

static void rotate_bf16(uint16_t *head, const float *angles, int64_t half, float sign)
{
    uint16_t *upper = head + half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float c = angles[2 * i], s = sign * angles[2 * i + 1];
        float a = cpl_bf16_to_f32(head[i]), b = cpl_bf16_to_f32(upper[i]);
        head[i]  = cpl_bf16_from_f32(a * c - b * s);
        upper[i] = cpl_bf16_from_f32(b * c + a * s);
    }
}

/* Rotates all heads of token t of x. */
static void rotate_heads(cpl_tensor x, int64_t t, const float *angles, int64_t n_heads,
                         int64_t half, float sign)
{
    for (int64_t i = t * n_heads; i < (t + 1) * n_heads; i++)
        if (x.dtype == CPL_BF16)
            rotate_bf16((uint16_t *)x.storage + i * 2 * half, angles, half, sign);
        else
            rotate(cpl_f32(x) + i * 2 * half, angles, half, sign);
}

void CPL_ISA_NAME(cpl_cpu_rope)(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                                int64_t n_queries, int64_t first, int direction)
{
    const int64_t T = cpl_tensor_rows(x), half = table.shape[1];
    CPL_ASSERT(cpl_tensor_cols(x) == n_heads * 2 * half);
    CPL_ASSERT(T == 0 || (first >= 0 && first + n_queries <= table.shape[0]));
    const float *angles = cpl_f32(table), sign = direction < 0 ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(cpl_threads(be, 2 * cpl_tensor_count(x))) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        const float *at = angles + (first + t % n_queries) * 2 * half;
        rotate_heads(x, t, at, n_heads, half, sign);
    }
}

void CPL_ISA_NAME(cpl_cpu_rope_at)(cpl_backend *be, cpl_tensor x, cpl_tensor table, int64_t n_heads,
                                   cpl_tensor position)
{
    const int64_t T = cpl_tensor_rows(x), half = table.shape[1];
    CPL_ASSERT(cpl_tensor_cols(x) == n_heads * 2 * half && cpl_tensor_count(position) == T);
    const float *angles = cpl_f32(table);
    const int32_t *at   = cpl_i32(position);
#pragma omp parallel for num_threads(cpl_threads(be, 2 * cpl_tensor_count(x))) schedule(static)
    for (int64_t t = 0; t < T; t++) {
        CPL_ASSERT(at[t] >= 0 && at[t] < table.shape[0]);
        rotate_heads(x, t, angles + at[t] * 2 * half, n_heads, half, 1.0f);
    }
}
