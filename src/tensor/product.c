/* product.c - see product.h.
 *
 * F32 products use dnnl_sgemm. oneDNN has no such function for bf16, so a matmul primitive is made
 * with run-time sizes and strides: one for each of (a transposed, b transposed, beta), eight in all
 * for the life of the process, for all shapes. Measured with 2.6.3 they run as fast as primitives
 * made for one shape. */
#include "tensor/product.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"

/* ---- instruction sets ---- */

void cpl_product_limit(const char *isa)
{
    if (!strcmp(isa, "v2")) dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
    if (!strcmp(isa, "v3")) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
}

bool cpl_product_has_bf16(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    unsigned all = (unsigned)dnnl_cpu_isa_avx512_core_bf16;
    return (isa & all) == all;
}

const char *cpl_product_library(void)
{
    static _Thread_local char text[64];
    const dnnl_version_t *v = dnnl_version();
    static const struct {
        unsigned isa;
        const char *name;
    } names[]        = {{dnnl_cpu_isa_avx512_core_amx, "amx"},
                        {dnnl_cpu_isa_avx512_core_bf16, "avx512 with bf16"},
                        {dnnl_cpu_isa_avx512_core, "avx512"},
                        {dnnl_cpu_isa_avx2, "avx2"},
                        {dnnl_cpu_isa_sse41, "sse4.1"}};
    const char *name = "generic";
    for (size_t i = sizeof names / sizeof names[0]; i-- > 0;)
        if (((unsigned)dnnl_get_effective_cpu_isa() & names[i].isa) == names[i].isa)
            name = names[i].name;
    snprintf(text, sizeof text, "%d.%d.%d, %s", v->major, v->minor, v->patch, name);
    return text;
}

/* ---- bf16 primitives ---- */

static struct {
    pthread_once_t once;
    dnnl_status_t status;
    dnnl_engine_t engine;
    dnnl_primitive_t matmul[2][2][2]; /* a transposed, b transposed, beta */
    size_t scratch_bytes;             /* bytes of one execution at most; 0 with 2.6 and 3.2 */
} bf16 = {.once = PTHREAD_ONCE_INIT};

/* A description of a stored matrix: a struct in version 2, a handle in version 3. */
typedef dnnl_memory_desc_t layout;

#if DNNL_VERSION_MAJOR >= 3
#    define LAYOUT_INIT      dnnl_memory_desc_create_with_strides
#    define LAYOUT_PASSED(l) (*(l))
#    define APPEND_SUM(ops)  dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_f32)
#    define LAYOUT_FREE(l)   (*(l) ? (void)dnnl_memory_desc_destroy(*(l)) : (void)0)

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, layout *a, layout *b, layout *c,
                                 dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(pd, bf16.engine, *a, *b, NULL, *c, attr);
}
#else
#    define LAYOUT_INIT      dnnl_memory_desc_init_by_strides
#    define LAYOUT_PASSED(l) (l)
#    define APPEND_SUM(ops)  dnnl_post_ops_append_sum(ops, 1.0f)
#    define LAYOUT_FREE(l)   ((void)(l))

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, layout *a, layout *b, layout *c,
                                 dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, a, b, NULL, c);
    return status ? status : dnnl_primitive_desc_create(pd, &desc, attr, bf16.engine, NULL);
}
#endif

static dnnl_status_t memory_init(dnnl_memory_t *memory, layout *l, void *data)
{
    return dnnl_memory_create(memory, LAYOUT_PASSED(l), bf16.engine, data);
}

/* Describes a matrix [rows, cols] after op(). Transposed it runs along the first dimension. */
static dnnl_status_t operand_layout(layout *l, dnnl_data_type_t type, int64_t rows, int64_t cols,
                                    bool transposed, int64_t stride)
{
    dnnl_dims_t dims = {rows, cols}, strides = {stride, 1};
    if (transposed) {
        strides[0] = 1;
        strides[1] = stride;
    }
    return LAYOUT_INIT(l, 2, dims, type, strides);
}

/* Makes the attributes. The caller owns the scratch: with oneDNN's own scratch a primitive could
 * not be used by several threads. */
static dnnl_status_t attributes(dnnl_primitive_attr_t *attr, bool adds)
{
    dnnl_post_ops_t ops  = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (!status) status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (!status && adds) {
        status = dnnl_post_ops_create(&ops);
        if (!status) status = APPEND_SUM(ops);
        if (!status) status = dnnl_primitive_attr_set_post_ops(*attr, ops);
        if (ops) dnnl_post_ops_destroy(ops);
    }
    return status;
}

static void note_scratch(dnnl_primitive_desc_t desc)
{
    size_t bytes =
        dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    if (bytes > bf16.scratch_bytes) bf16.scratch_bytes = bytes;
}

static dnnl_status_t make_matmul(dnnl_primitive_t *matmul, bool ta, bool tb, bool adds)
{
    const int64_t any = DNNL_RUNTIME_DIM_VAL;
    layout a, b, c;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    memset(&c, 0, sizeof c);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status       = attributes(&attr, adds);
    if (!status) status = operand_layout(&a, dnnl_bf16, any, any, ta, any);
    if (!status) status = operand_layout(&b, dnnl_bf16, any, any, tb, any);
    if (!status) status = operand_layout(&c, dnnl_f32, any, any, false, any);
    if (!status) status = matmul_desc(&desc, &a, &b, &c, attr);
    if (!status) status = dnnl_primitive_create(matmul, desc);
    if (!status) note_scratch(desc);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    LAYOUT_FREE(&a);
    LAYOUT_FREE(&b);
    LAYOUT_FREE(&c);
    return status;
}

static void make_all(void)
{
    bf16.status = dnnl_engine_create(&bf16.engine, dnnl_cpu, 0);
    for (int i = 0; i < 8 && !bf16.status; i++)
        bf16.status =
            make_matmul(&bf16.matmul[i >> 2][i >> 1 & 1][i & 1], i >> 2, i >> 1 & 1, i & 1);
}

/* Makes memory for one execution. *memory stays NULL if it is not needed. */
static dnnl_status_t scratch_init(dnnl_memory_t *memory, void **data)
{
    const int64_t bytes = (int64_t)bf16.scratch_bytes;
    layout l;
    if (bytes == 0) return dnnl_success;
    memset(&l, 0, sizeof l);
    *data = cpl_alloc(bf16.scratch_bytes);
    if (!*data) return dnnl_out_of_memory;
    dnnl_status_t status = operand_layout(&l, dnnl_u8, 1, bytes, false, bytes);
    if (!status) status = memory_init(memory, &l, *data);
    LAYOUT_FREE(&l);
    return status;
}

static dnnl_status_t execute(dnnl_primitive_t matmul, const dnnl_memory_t operand[3])
{
    dnnl_stream_t stream    = NULL;
    dnnl_memory_t scratch   = NULL;
    void *data              = NULL;
    dnnl_status_t status    = scratch_init(&scratch, &data);
    dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, operand[0]},
                               {DNNL_ARG_WEIGHTS, operand[1]},
                               {DNNL_ARG_DST, operand[2]},
                               {DNNL_ARG_SCRATCHPAD, scratch}};
    if (!status) status = dnnl_stream_create(&stream, bf16.engine, dnnl_stream_default_flags);
    if (!status) status = dnnl_primitive_execute(matmul, stream, scratch ? 4 : 3, args);
    if (!status) status = dnnl_stream_wait(stream);
    if (stream) dnnl_stream_destroy(stream);
    if (scratch) dnnl_memory_destroy(scratch);
    cpl_free(data);
    return status;
}

/* Multiplies in bf16. The casts drop const: oneDNN only reads a and b, but has one memory type. */
static dnnl_status_t product_bf16(float *c, int64_t c_stride, cpl_operand a, cpl_operand b,
                                  cpl_product_shape s, float beta)
{
    pthread_once(&bf16.once, make_all);
    if (bf16.status) return bf16.status;
    bool ta = a.trans == CPL_TRANSPOSED, tb = b.trans == CPL_TRANSPOSED;
    layout l[3];
    dnnl_memory_t memory[3] = {NULL, NULL, NULL};
    memset(l, 0, sizeof l);
    dnnl_status_t status = operand_layout(&l[0], dnnl_bf16, s.m, s.k, ta, a.stride);
    if (!status) status = operand_layout(&l[1], dnnl_bf16, s.k, s.n, tb, b.stride);
    if (!status) status = operand_layout(&l[2], dnnl_f32, s.m, s.n, false, c_stride);
    if (!status) status = memory_init(&memory[0], &l[0], (void *)(uintptr_t)a.data);
    if (!status) status = memory_init(&memory[1], &l[1], (void *)(uintptr_t)b.data);
    if (!status) status = memory_init(&memory[2], &l[2], c);
    if (!status) status = execute(bf16.matmul[ta][tb][beta != 0.0f], memory);
    for (int i = 0; i < 3; i++) {
        if (memory[i]) dnnl_memory_destroy(memory[i]);
        LAYOUT_FREE(&l[i]);
    }
    return status;
}

/* ---- the product ---- */

static void clear(float *c, int64_t c_stride, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) memset(c + i * c_stride, 0, (size_t)n * sizeof *c);
}

static dnnl_status_t product(float *c, int64_t c_stride, cpl_operand a, cpl_operand b,
                             cpl_product_shape s, float beta)
{
    if (a.dtype == CPL_BF16) return product_bf16(c, c_stride, a, b, s, beta);
    return dnnl_sgemm(a.trans == CPL_TRANSPOSED ? 'T' : 'N', b.trans == CPL_TRANSPOSED ? 'T' : 'N',
                      s.m, s.n, s.k, 1.0f, a.data, a.stride, b.data, b.stride, beta, c, c_stride);
}

cpl_status cpl_product(float *c, int64_t c_stride, cpl_operand a, cpl_operand b,
                       cpl_product_shape s, float beta, int n_threads)
{
    CPL_ASSERT(a.dtype == b.dtype && (beta == 0.0f || beta == 1.0f) && n_threads >= 1);
    if (s.m == 0 || s.n == 0) return CPL_OK;
    if (s.k == 0) {
        if (beta == 0.0f) clear(c, c_stride, s.m, s.n);
        return CPL_OK;
    }
    int before = omp_get_max_threads();
    if (before != n_threads) omp_set_num_threads(n_threads);
    dnnl_status_t status = product(c, c_stride, a, b, s, beta);
    if (before != n_threads) omp_set_num_threads(before);
    if (status == dnnl_success) return CPL_OK;
    return CPL_FAIL(status == dnnl_out_of_memory ? CPL_ERR_MEMORY : CPL_ERR_DEVICE,
                    "oneDNN %s could not multiply [%lld,%lld] by [%lld,%lld]: %d",
                    cpl_product_library(), (long long)s.m, (long long)s.k, (long long)s.k,
                    (long long)s.n, (int)status);
}

cpl_status cpl_product_matrices(cpl_matrix c, cpl_trans ta, cpl_matrix a, cpl_trans tb,
                                cpl_matrix b, int n_threads)
{
    const int64_t k = ta == CPL_AS_IS ? a.cols : a.rows;
    CPL_ASSERT(c.rows == (ta == CPL_AS_IS ? a.rows : a.cols));
    CPL_ASSERT(c.cols == (tb == CPL_AS_IS ? b.cols : b.rows));
    CPL_ASSERT(k == (tb == CPL_AS_IS ? b.rows : b.cols));
    return cpl_product(c.at, c.cols, (cpl_operand){a.at, CPL_F32, ta, a.cols},
                       (cpl_operand){b.at, CPL_F32, tb, b.cols},
                       (cpl_product_shape){c.rows, c.cols, k}, 0, n_threads);
}

/* ---- before the first product ---- */

/* Computes products so that oneDNN makes its kernels, which it does at the first product of their
 * form: of square and narrow matrices, of vectors, unchanged and transposed. */
static cpl_status prepare(cpl_dtype dtype)
{
    enum { SIDE = 64, NARROW = 4, FORMS = 5 };
    static float memory[3 * SIDE * SIDE]; /* zeros; the third matrix is the product */
    static const int64_t sides[FORMS][2] = {
        {SIDE, SIDE}, {SIDE, NARROW}, {NARROW, SIDE}, {SIDE, 1}, {1, SIDE}};
    for (int i = 0; i < 8 * FORMS; i++) {
        const cpl_product_shape shape = {sides[i / 8][0], sides[i / 8][1], SIDE};
        cpl_operand a                 = {memory, dtype, i & 1 ? CPL_TRANSPOSED : CPL_AS_IS, SIDE};
        cpl_operand b = {memory + SIDE * SIDE, dtype, i & 2 ? CPL_TRANSPOSED : CPL_AS_IS, SIDE};
        CPL_TRY(cpl_product(memory + 2 * SIDE * SIDE, SIDE, a, b, shape, i & 4 ? 1.0f : 0.0f, 1));
    }
    return CPL_OK;
}

static cpl_status prepared;

static void prepare_all(void)
{
    prepared = prepare(CPL_F32);
    if (prepared == CPL_OK && cpl_product_has_bf16()) prepared = prepare(CPL_BF16);
}

cpl_status cpl_product_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare_all);
    return prepared;
}
