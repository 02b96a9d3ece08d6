/* gemm.c - products of whole tensors.
 *
 * Room:    tensor/cpu. Operations: ops.h; the product itself is tensor/product.h.
 * Method:  operands that lie in the backend's form are multiplied in place. Other operands are
 *          converted block by block, so that scratch stays small for every shape. A BF16 result is
 *          made in F32 and rounded, block by block of its rows. */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/operand.h"

enum {
    BLOCK_NUMBERS = 4 << 20, /* numbers in one operand's panel */
    BLOCK_DEPTH   = 8192,    /* longest piece of k in a panel */
};

/* One operand of c = a b as the product reads it, and its panel. */
typedef struct side {
    cpl_tensor x;
    cpl_trans trans;
    bool direct; /* multiplied in place */
    void *panel;
    int64_t begin, depth_begin; /* position of the block in the panel; -1 before the first block */
    cpl_operand packed;
} side;

static side side_of(cpl_operand_form form, cpl_tensor x, cpl_trans trans, void *panel)
{
    CPL_ASSERT(x.rank == 2 && x.dtype != CPL_I32);
    side s = {x, trans, cpl_operand_form_fits(form, x.dtype), panel, -1, -1, {0}};
    return s;
}

/* Returns the rows (of a) or columns (of b) in a block that is `depth` deep. */
static int64_t block_length(const side *s, int64_t length, int64_t depth)
{
    int64_t most = depth > 0 ? BLOCK_NUMBERS / depth : length;
    return s->direct || length < most ? length : most;
}

/* Returns a block as operand, in place or packed. `along` is true if a stored row runs along k. */
static cpl_operand side_block(side *s, cpl_operand_form form, bool along, int64_t begin,
                              int64_t length, int64_t depth_begin, int64_t depth, int threads)
{
    int64_t stride = s->x.shape[1];
    int64_t from   = along ? begin * stride + depth_begin : depth_begin * stride + begin;
    if (s->direct) {
        const char *data = s->x.storage;
        data += (size_t)from * cpl_dtype_bytes(s->x.dtype);
        return (cpl_operand){data, s->x.dtype, s->trans, stride};
    }
    if (s->begin != begin || s->depth_begin != depth_begin) {
        s->packed       = cpl_pack(form, s->panel, s->x.storage, s->x.dtype, from, stride,
                             along ? length : depth, along ? depth : length, threads);
        s->packed.trans = s->trans;
        s->begin        = begin;
        s->depth_begin  = depth_begin;
    }
    return s->packed;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void multiply(cpl_backend *be, cpl_operand_form form, cpl_tensor c, side *a, side *b,
                     int64_t k, float beta)
{
    const int64_t m = c.shape[0], n = c.shape[1];
    const bool a_along = a->trans == CPL_AS_IS, b_along = b->trans == CPL_TRANSPOSED;
    const int64_t depth = a->direct && b->direct ? k : least(k, BLOCK_DEPTH);
    const int64_t rows = block_length(a, m, depth), cols = block_length(b, n, depth);
    if (k == 0) {
        cpl_operand none = {NULL, CPL_F32, CPL_AS_IS, 1};
        cpl_multiply(be, 1, c.storage, n, none, none, (cpl_product_shape){m, n, 0}, beta);
        return;
    }
    for (int64_t p = 0; p < k; p += depth)
        for (int64_t j = 0; j < n; j += cols)
            for (int64_t i = 0; i < m; i += rows) {
                cpl_product_shape s = {least(rows, m - i), least(cols, n - j), least(depth, k - p)};
                cpl_operand x       = side_block(a, form, a_along, i, s.m, p, s.k, be->n_threads);
                cpl_operand y       = side_block(b, form, b_along, j, s.n, p, s.k, be->n_threads);
                cpl_multiply(be, be->n_threads, cpl_f32(c) + i * n + j, n, x, y, s,
                             p > 0 ? 1.0f : beta);
            }
}

static int64_t longest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns the bytes of the panel of an operand of `count` numbers, in any form. */
static size_t panel_bytes(int64_t count)
{
    return cpl_padded((size_t)least(count, BLOCK_NUMBERS) * sizeof(float));
}

/* Returns the rows of a block of a BF16 result [m,n]. */
static int64_t block_rows(int64_t m, int64_t n)
{
    return n ? least(m, longest(BLOCK_NUMBERS / n, 1)) : m;
}

static void gemm_f32_result(cpl_backend *be, cpl_operand_form form, cpl_tensor c, cpl_trans ta,
                            cpl_tensor a, cpl_trans tb, cpl_tensor b, float beta)
{
    int64_t k = a.shape[ta == CPL_AS_IS], kb = b.shape[tb == CPL_TRANSPOSED];
    CPL_ASSERT(c.rank == 2 && c.dtype == CPL_F32 && k == kb);
    CPL_ASSERT(c.shape[0] == a.shape[ta != CPL_AS_IS] && c.shape[1] == b.shape[tb == CPL_AS_IS]);
    bool direct  = cpl_operand_form_fits(form, a.dtype) && cpl_operand_form_fits(form, b.dtype);
    size_t panel = panel_bytes(longest(cpl_tensor_count(a), cpl_tensor_count(b)));
    CPL_ASSERT(direct || be->scratch_bytes >= 2 * panel);
    char *scratch = be->scratch;
    side left     = side_of(form, a, ta, scratch);
    side right    = side_of(form, b, tb, direct ? scratch : scratch + panel);
    multiply(be, form, c, &left, &right, k, beta);
}

static void gemm_form(cpl_backend *be, cpl_operand_form form, cpl_tensor c, cpl_trans ta,
                      cpl_tensor a, cpl_trans tb, cpl_tensor b, float beta)
{
    const int64_t m = c.shape[0], n = c.shape[1], rows = block_rows(m, n);
    if (c.dtype == CPL_F32) {
        gemm_f32_result(be, form, c, ta, a, tb, b, beta);
        return;
    }
    const size_t panels = 2 * panel_bytes(longest(cpl_tensor_count(a), cpl_tensor_count(b)));
    CPL_ASSERT(ta == CPL_AS_IS && beta == 0);
    CPL_ASSERT(be->scratch_bytes >= panels + (size_t)(rows * n) * sizeof(float));
    for (int64_t at = 0; at < m; at += rows) {
        const int64_t count = least(rows, m - at);
        cpl_tensor sums     = cpl_tensor_2d((char *)be->scratch + panels, CPL_F32, count, n);
        gemm_f32_result(be, form, sums, ta, cpl_tensor_range(a, at, count), tb, b, 0);
        be->ops->copy(be, cpl_tensor_range(c, at, count), sums);
    }
}

void CPL_ISA_NAME(cpl_cpu_gemm)(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a,
                                cpl_trans tb, cpl_tensor b, float beta)
{
    gemm_form(be, cpl_operand_form_of(be), c, ta, a, tb, b, beta);
}

void CPL_ISA_NAME(cpl_cpu_gemm_f32)(cpl_backend *be, cpl_tensor c, cpl_trans ta, cpl_tensor a,
                                    cpl_trans tb, cpl_tensor b, float beta)
{
    gemm_form(be, CPL_FORM_F32, c, ta, a, tb, b, beta);
}

void CPL_ISA_NAME(cpl_cpu_linear_backward)(cpl_backend *be, cpl_tensor dx, cpl_tensor dw,
                                           cpl_tensor dy, cpl_tensor x, cpl_tensor w, float beta)
{
    CPL_ISA_NAME(cpl_cpu_gemm)(be, dx, CPL_AS_IS, dy, CPL_AS_IS, w, beta);
    CPL_ISA_NAME(cpl_cpu_gemm)(be, dw, CPL_TRANSPOSED, dy, CPL_AS_IS, x, 1);
}

/* Returns the scratch bytes. The largest dimension bounds operands and results. */
size_t CPL_ISA_NAME(cpl_cpu_gemm_scratch)(const cpl_backend *be, const cpl_work *work)
{
    int64_t most = longest(longest(work->n_tokens, work->vocab_size), work->d_model);
    most         = longest(longest(most, work->d_expert), work->n_experts);
    most         = longest(longest(most, work->d_shared), work->n_experts * work->gate_rank);
    most         = most < BLOCK_DEPTH ? most * most : BLOCK_NUMBERS;
    return be->compute == CPL_F32 ? 0 : 3 * panel_bytes(most);
}
