/* attention.cu - the operations of causal attention, as in flash attention without a T x T matrix.
 *
 * Room:    tensor/cuda. Operations: ops.h. Method: attention.h. */
#include "tensor/cuda/attention.h"

/* Computes delta = dot(dout, out). One warp computes one query and head. */
__global__ void __launch_bounds__(THREADS) attention_delta(attention_job j, int64_t count)
{
    const int64_t at = (int64_t)blockIdx.x * WARPS + warp_here(), h = j.s.head_dim;
    if (at >= count) return;
    float dot = 0;
    for (int64_t x = lane_here(); x < h; x += CPL_WARP)
        dot += cpl_device_get(j.dout, at * h + x) * cpl_device_get(j.out, at * h + x);
    dot                = cpl_warp_sum(dot);
    const int64_t head = at % j.s.n_heads, token = at / j.s.n_heads;
    const int64_t b = token / j.s.n_queries, i = token % j.s.n_queries;
    if (lane_here() == 0) j.delta[(b * j.s.n_heads + head) * j.s.n_queries + i] = dot;
}

/* ---- the operations ---- */

static attention_job job_of(const cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                            cpl_tensor k, cpl_tensor v, cpl_attention_shape s)
{
    CPL_ASSERT(s.n_kv_heads > 0 && s.n_heads % s.n_kv_heads == 0 && s.head_dim > 0);
    attention_job j = {};
    j.s             = s;
    j.scale         = 1.0f / sqrtf((float)s.head_dim);
    j.rounds        = be->compute == CPL_BF16;
    j.out           = cpl_device_numbers_of(out);
    j.q             = cpl_device_numbers_of(q);
    j.k             = cpl_device_numbers_of(k);
    j.v             = cpl_device_numbers_of(v);
    j.lse           = lse.storage ? cpl_f32(lse) : nullptr;
    return j;
}

/* Launches the forward kernels, or the backward kernels if j.delta is set. */
static void launch(cpl_backend *be, const attention_job &j)
{
    if (!cpl_attention_cores(be, &j)) cpl_attention_plain(be, &j);
}

extern "C" void cpl_cuda_attention(cpl_backend *be, cpl_tensor out, cpl_tensor lse, cpl_tensor q,
                                   cpl_tensor k, cpl_tensor v, cpl_tensor doc_start,
                                   cpl_attention_shape s)
{
    CPL_ASSERT(s.n_queries <= s.n_keys && s.n_keys <= s.key_stride);
    attention_job j = job_of(be, out, lse, q, k, v, s);
    j.doc_start     = doc_start.storage ? cpl_i32(doc_start) : nullptr;
    launch(be, j);
}

extern "C" void cpl_cuda_attention_segments(cpl_backend *be, cpl_tensor out, cpl_tensor q,
                                            cpl_tensor k, cpl_tensor v, cpl_segments segments)
{
    const cpl_attention_shape s = {
        1, q.shape[0], 0, 0, segments.n_heads, segments.n_kv_heads, segments.head_dim};
    attention_job j = job_of(be, out, cpl_tensor_none(), q, k, v, s);
    j.rounds        = false;
    j.segment       = (const cpl_segment *)(void *)cpl_i32(segments.at);
    j.key_row       = cpl_i32(segments.key_row);
    j.n_segments    = segments.at.shape[0];
    if (j.n_segments == 0) return;
    cpl_attention_plain(be, &j);
}

extern "C" void cpl_cuda_attention_backward(cpl_backend *be, cpl_tensor dq, cpl_tensor dk,
                                            cpl_tensor dv, cpl_tensor dout, cpl_tensor out,
                                            cpl_tensor lse, cpl_tensor q, cpl_tensor k,
                                            cpl_tensor v, cpl_tensor doc_start,
                                            cpl_attention_shape s)
{
    CPL_ASSERT(s.n_queries == s.n_keys && s.n_keys == s.key_stride);
    const int64_t count = s.batch * s.n_queries * s.n_heads;
    CPL_ASSERT((size_t)count * sizeof(float) <= be->scratch_bytes);
    attention_job j = job_of(be, out, lse, q, k, v, s);
    j.doc_start     = doc_start.storage ? cpl_i32(doc_start) : nullptr;
    j.dout          = cpl_device_numbers_of(dout);
    j.dq            = cpl_f32(dq);
    j.dk            = cpl_f32(dk);
    j.dv            = cpl_f32(dv);
    j.delta         = (float *)be->scratch;
    CPL_LAUNCH(be, attention_delta, dim3(tiles_of(count, WARPS)), dim3(THREADS), 0, j, count);
    launch(be, j);
}

/* Returns the bytes for delta, which the backward pass needs. */
extern "C" size_t cpl_cuda_attention_scratch(const cpl_backend *be, const cpl_work *work)
{
    (void)be;
    return (size_t)(work->n_tokens * work->n_heads) * sizeof(float);
}