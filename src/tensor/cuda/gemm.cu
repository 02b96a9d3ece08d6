/* gemm.cu - products of whole tensors, by the vendor's library.
 *
 * Room:    tensor/cuda. Operations: ops.h.
 * Method:  an operand whose type differs from the product's is first converted into scratch: in
 *          blocks if stored rows are terms of the sum or rows of the result, or as a whole. */
#include "tensor/cuda/device.h"
#include "tensor/cuda/vendor.h"

static const size_t PANEL_BYTES =
    CPL_PART((size_t)128 << 20, 512); /* limit of a block of a, exceeded only if a row is longer */

static int64_t longest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static size_t padded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Returns x as `dtype`, converted into `memory` if its type differs. */
static cpl_tensor converted(cpl_backend *be, cpl_tensor x, cpl_dtype dtype, void *memory)
{
    if (x.dtype == dtype) return x;
    const cpl_tensor y = cpl_tensor_2d(memory, dtype, x.shape[0], x.shape[1]);
    if (cpl_tensor_count(x)) be->ops->copy(be, y, x);
    return y;
}

static void multiply(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                     cpl_tensor b, float beta)
{
    const char *failed = cpl_vendor_product(cpl_cuda_of(be), c, ta, a, tb, b, beta);
    if (failed) cpl_cuda_fail(be, failed);
}

/* Returns the bytes of scratch of one stored row, or 0 if no conversion is needed. */
static size_t row_bytes(cpl_tensor x, cpl_dtype dtype)
{
    return x.dtype == dtype ? 0 : (size_t)x.shape[1] * cpl_dtype_bytes(dtype);
}

/* Returns the number of stored rows of `each` bytes in a block of `bytes`. */
static int64_t block_rows(size_t bytes, size_t each, int64_t rows)
{
    const size_t most = CPL_PART(bytes, bytes < 7 * each ? bytes : 7 * each);
    if (each == 0 || most / each >= (size_t)rows) return longest(rows, 1);
    CPL_ASSERT(most >= each);
    return (int64_t)(most / each);
}

/* Computes c = beta c + a^T . b: the sum by blocks of both operands' stored rows. */
static void product_along_k(cpl_backend *be, cpl_dtype dtype, cpl_tensor c, cpl_tensor a,
                            cpl_tensor b, float beta)
{
    const int64_t k   = a.shape[0];
    const size_t each = row_bytes(a, dtype) + row_bytes(b, dtype), room = be->scratch_bytes;
    const int64_t block = block_rows(room > 256 ? room - 256 : 0, each, k);
    char *of_a          = (char *)be->scratch;
    char *of_b          = of_a + padded((size_t)(block < k ? block : k) * row_bytes(a, dtype));
    for (int64_t at = 0; at == 0 || at < k; at += block) {
        const int64_t count = k - at < block ? k - at : block;
        multiply(be, c, CPL_TRANSPOSED, converted(be, cpl_tensor_range(a, at, count), dtype, of_a),
                 CPL_AS_IS, converted(be, cpl_tensor_range(b, at, count), dtype, of_b),
                 at > 0 ? 1.0f : beta);
    }
}

/* Computes c = beta c + op(a) . op(b). b is converted as a whole. a is converted in blocks of rows
 * of c if ta is CPL_AS_IS. */
static void product_along_m(cpl_backend *be, cpl_dtype dtype, cpl_tensor c, cpl_trans ta,
                            cpl_tensor a, cpl_trans tb, cpl_tensor b, float beta)
{
    const int64_t rows  = a.shape[0];
    const size_t of_b   = padded((size_t)b.shape[0] * row_bytes(b, dtype));
    const size_t room   = be->scratch_bytes;
    char *const scratch = (char *)be->scratch;
    CPL_ASSERT(of_b <= room);
    const int64_t block = block_rows(room - of_b, row_bytes(a, dtype), rows);
    CPL_ASSERT(ta == CPL_AS_IS || block >= rows);
    b = converted(be, b, dtype, scratch);
    for (int64_t at = 0; at == 0 || at < rows; at += block) {
        const int64_t count   = rows - at < block ? rows - at : block;
        const cpl_tensor part = cpl_tensor_range(a, at, count);
        multiply(be, ta == CPL_AS_IS ? cpl_tensor_range(c, at, count) : c, ta,
                 converted(be, part, dtype, scratch + of_b), tb, b, beta);
    }
}

static void product(cpl_backend *be, cpl_dtype dtype, cpl_tensor c, cpl_trans ta, cpl_tensor a,
                    cpl_trans tb, cpl_tensor b, float beta)
{
    CPL_ASSERT(c.rank == 2 && a.rank == 2 && b.rank == 2);
    CPL_ASSERT(a.shape[ta == CPL_AS_IS] == b.shape[tb == CPL_TRANSPOSED]);
    CPL_ASSERT(c.shape[0] == a.shape[ta != CPL_AS_IS] && c.shape[1] == b.shape[tb == CPL_AS_IS]);
    CPL_ASSERT(c.dtype == CPL_F32 || (c.dtype == CPL_BF16 && ta == CPL_AS_IS && beta == 0));
    if (ta == CPL_TRANSPOSED && tb == CPL_AS_IS)
        product_along_k(be, dtype, c, a, b, beta);
    else
        product_along_m(be, dtype, c, ta, a, tb, b, beta);
}

extern "C" void cpl_cuda_gemm(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a,
                              cpl_trans tb, cpl_tensor b, float beta)
{
    product(be, be->compute, c, ta, a, tb, b, beta);
}

extern "C" void cpl_cuda_gemm_f32(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a,
                                  cpl_trans tb, cpl_tensor b, float beta)
{
    product(be, CPL_F32, c, ta, a, tb, b, beta);
}

/* Computes both gradients and converts dy once for both products. */
extern "C" void cpl_cuda_linear_backward(cpl_backend *be, cpl_tensor dx, cpl_tensor dw,
                                         cpl_tensor dy, cpl_tensor x, cpl_tensor w, float beta)
{
    char *const scratch = (char *)be->scratch;
    const size_t room   = be->scratch_bytes;
    const size_t used   = padded((size_t)dy.shape[0] * row_bytes(dy, be->compute));
    CPL_ASSERT(used <= room);
    dy                = converted(be, dy, be->compute, scratch);
    be->scratch       = scratch + used;
    be->scratch_bytes = room - used;
    cpl_cuda_gemm(be, dx, CPL_AS_IS, dy, CPL_AS_IS, w, beta);
    cpl_cuda_gemm(be, dw, CPL_TRANSPOSED, dy, CPL_AS_IS, x, 1);
    be->scratch       = scratch;
    be->scratch_bytes = room;
}

/* Returns the scratch. Operands converted as a whole are a weight, at most [largest dimension, d],
 * and a gradient of the tokens. A block has at least a row of each operand. */
extern "C" size_t cpl_cuda_gemm_scratch(const cpl_backend *be, const cpl_work *work)
{
    int64_t wide = longest(longest(work->n_tokens, work->vocab_size), work->d_model);
    wide         = longest(longest(wide, work->d_expert), work->n_experts);
    wide         = longest(longest(wide, work->d_shared), work->n_experts * work->gate_rank);
    if (be->compute == CPL_F32) return 0;
    const size_t of_b  = padded((size_t)(wide * work->d_model) * sizeof(float));
    const size_t all_a = (size_t)wide * (size_t)wide * sizeof(float);
    const size_t row   = 2 * (size_t)wide * sizeof(float) + 512;
    const size_t block = all_a < PANEL_BYTES ? all_a : PANEL_BYTES;
    const size_t of_dy =
        (size_t)(work->n_tokens * longest(work->d_model, work->n_experts * work->gate_rank)) * 2;
    return of_b + padded(of_dy) + (block > row ? block : row);
}
