/* inspect.c - the time of `couplet inspect`, compared with the least time of its work
 *
 * usage:   bench_inspect [pairs [CHECKPOINT]]
 * Names:   n experts, d model width, D expert width, as in cpl_response_ops (tensor/host_ops.h); X
 *          [n,d], W_j [D,d].
 *
 * Responses: M and the norms of all gates of one layer in memory, every thread taking experts, each
 *          in pieces of the operation's size, as they come from a file. They are compared
 *          with the product of [n,d] by [n D,d]^T in oneDNN, in the faster of two forms: one
 *          call, or a call an expert spread over the threads. The norms are not counted as work.
 *
 * Checkpoint: the whole inspection of CHECKPOINT (bench/make_olmoe.py makes one of OLMoE-1B-7B's
 *          shape), from opening to the figures. It is compared with the sum of two times. One is
 *          the reading of its routers and gates once, into memory that is used again, all threads
 *          taking experts. The other is oneDNN's products of one expert at a time on operands in
 *          memory. The inspection with silhouettes, which reads and multiplies twice, is timed
 *          too. All run in turn. The caller decides whether the system's cache has the file. */
#include <math.h>
#include <omp.h>

#include "bench.h"
#include "inspect/gate_reader.h"
#include "inspect/report.h"

/* ---- responses ---- */

typedef struct layer {
    cpl_backend *be;
    int64_t n, d, D;
    cpl_tensor X, w, product; /* [n,d], [n,D,d], [n,n D] or [n,n,D] */
    void *packed;
    char *scratch; /* [n_threads] */
    size_t scratch_bytes;
    double *squares, *norms; /* [n,n], expert j's at j n; [n] */
    bool one_call;           /* the limit's form */
} layer;

static void *room(size_t bytes)
{
    void *memory = cpl_alloc(bytes);
    if (!memory) bench_ok(CPL_ERR_MEMORY);
    memset(memory, 0, bytes);
    return memory;
}

static void init(layer *l, cpl_backend *be, int64_t n, int64_t d, int64_t D)
{
    const cpl_response_ops *op = &cpl_cpu_on_host()->response;
    memset(l, 0, sizeof *l);
    l->be            = be;
    l->n             = n;
    l->d             = d;
    l->D             = D;
    l->X             = bench_normal(be, CPL_F32, 1, n, d, 0.02f);
    l->X             = cpl_tensor_2d(l->X.storage, CPL_F32, n, d);
    l->w             = bench_normal(be, CPL_F32, n, D, d, 0.02f);
    l->product       = cpl_tensor_2d(room((size_t)(n * n * D) * sizeof(float)), CPL_F32, n, n * D);
    l->packed        = room(op->packed_bytes(n, d));
    l->scratch_bytes = op->scratch_bytes();
    l->scratch       = room((size_t)be->n_threads * l->scratch_bytes);
    l->squares       = room((size_t)(n * n) * sizeof(double));
    l->norms         = room((size_t)n * sizeof(double));
    op->pack(l->packed, (cpl_matrix){cpl_f32(l->X), n, d});
}

static void free_all(layer *l)
{
    cpl_free(l->X.storage);
    cpl_free(l->w.storage);
    cpl_free(l->product.storage);
    cpl_free(l->packed);
    cpl_free(l->scratch);
    cpl_free(l->squares);
    cpl_free(l->norms);
}

static void one_expert(const layer *l, int64_t j)
{
    const cpl_response_ops *op = &cpl_cpu_on_host()->response;
    const int64_t piece        = op->rows(l->d);
    char *scratch              = l->scratch + (size_t)omp_get_thread_num() * l->scratch_bytes;
    for (int64_t r = 0; r < l->D; r += piece) {
        const int64_t rows = l->D - r < piece ? l->D - r : piece;
        float *at          = cpl_f32(l->w) + (j * l->D + r) * l->d;
        op->add(l->squares + j * l->n, NULL, l->norms + j, l->packed, l->n,
                (cpl_matrix){at, rows, l->d}, scratch);
    }
}

static void responses(void *context)
{
    layer *l = context;
    memset(l->squares, 0, (size_t)(l->n * l->n) * sizeof(double));
    memset(l->norms, 0, (size_t)l->n * sizeof(double));
#pragma omp parallel for num_threads(l->be->n_threads) schedule(dynamic)
    for (int64_t j = 0; j < l->n; j++) one_expert(l, j);
}

/* Computes the product [n, count D] of `count` experts from j on. */
static cpl_status product(const layer *l, int64_t j, int64_t count, int n_threads)
{
    cpl_operand a = {l->X.storage, CPL_F32, CPL_AS_IS, l->d};
    cpl_operand b = {cpl_f32(l->w) + j * l->D * l->d, CPL_F32, CPL_TRANSPOSED, l->d};
    return cpl_product(cpl_f32(l->product) + j * l->n * l->D, count * l->D, a, b,
                       (cpl_product_shape){l->n, count * l->D, l->d}, 0, n_threads);
}

static void plain(void *context)
{
    layer *l          = context;
    cpl_status status = CPL_OK;
    if (l->one_call) {
        bench_ok(product(l, 0, l->n, l->be->n_threads));
        return;
    }
#pragma omp parallel for num_threads(l->be->n_threads) schedule(static)
    for (int64_t j = 0; j < l->n; j++) {
        cpl_status one = product(l, j, 1, 1);
        if (one != CPL_OK) {
#pragma omp critical
            status = one;
        }
    }
    bench_ok(status);
}

static void choose_limit(layer *l)
{
    layer spread = *l, whole = *l;
    whole.one_call  = true;
    bench_pair pair = bench_alternate(2, plain, &spread, plain, &whole);
    l->one_call     = bench_median(&pair.limit) < bench_median(&pair.subject);
    printf("limit     %s\n", l->one_call ? "one call" : "experts over threads");
}

static void measure_responses(cpl_backend *be, const char *what, int64_t n, int64_t d, int64_t D,
                              int pairs)
{
    layer l;
    init(&l, be, n, d, D);
    printf("\nresponses, n=%d, d=%d, D=%d, pieces of %d rows\n", (int)n, (int)d, (int)D,
           (int)cpl_cpu_on_host()->response.rows(d));
    choose_limit(&l);
    const double flops = 2.0 * (double)(n * n) * (double)(d * D);
    bench_pair pair    = bench_alternate(pairs, responses, &l, plain, &l);
    bench_print(what, &pair, flops, flops);
    free_all(&l);
}

/* ---- a whole checkpoint ---- */

typedef struct checkpoint {
    cpl_backend *be;
    const char *path;
    cpl_inspect_options options;
    cpl_coupling_report files; /* opened, for the reading */
} checkpoint;

static void inspect(void *context)
{
    checkpoint *c = context;
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    bench_ok(cpl_inspect_open(&report, &cost, c->path, &c->options, NULL));
    bench_ok(cpl_inspect_run(&report));
    cpl_inspect_close(&report);
}

/* Reads every byte once, without using it. */
static void read_once(void *context)
{
    checkpoint *c = context;
#pragma omp parallel num_threads(c->be->n_threads)
    {
        cpl_gate gate = {0};
        for (int64_t l = 0; l < c->files.n_layers; l++) {
            const cpl_moe_layer *at = c->files.layers[l].at;
#pragma omp for schedule(dynamic) nowait
            for (int64_t e = 0; e < at->n; e++) bench_ok(cpl_gate_load(&gate, at, e));
        }
        cpl_gate_free(&gate);
    }
}

/* Computes R . W_g^T of every expert of every layer, on the first layer's operands in memory. */
static void products(void *context)
{
    checkpoint *c           = context;
    const cpl_moe_layer *at = c->files.layers[0].at;
    const int64_t n = at->n, d = at->d, D = at->D, T = c->be->n_threads;
    cpl_tensor X = bench_normal(c->be, CPL_F32, 1, n, d, 0.02f);
    cpl_tensor W = bench_normal(c->be, CPL_F32, T, D, d, 0.02f);
    float *out   = room((size_t)(T * n * D) * sizeof(float));
#pragma omp parallel for num_threads(c->be->n_threads) schedule(static)
    for (int64_t j = 0; j < n * c->files.n_layers; j++) {
        const int64_t t = omp_get_thread_num();
        cpl_operand a   = {X.storage, CPL_F32, CPL_AS_IS, d};
        cpl_operand b   = {cpl_f32(W) + t * D * d, CPL_F32, CPL_TRANSPOSED, d};
        bench_ok(cpl_product(out + t * n * D, D, a, b, (cpl_product_shape){n, D, d}, 0, 1));
    }
    cpl_free(X.storage);
    cpl_free(W.storage);
    cpl_free(out);
}

static void measure_checkpoint(cpl_backend *be, const char *path, int pairs)
{
    checkpoint c = {.be = be, .path = path};
    checkpoint twice;
    bench_times whole = {0}, reading = {0}, multiplying = {0}, silhouettes = {0};
    cpl_inspect_cost cost;
    c.options = (cpl_inspect_options){.n_alphas     = 5,
                                      .alphas       = {1, 2, 3, 4, 5},
                                      .n_threads    = be->n_threads,
                                      .memory_bytes = (double)INFINITY};
    bench_ok(cpl_inspect_open(&c.files, &cost, path, &c.options, NULL));
    printf("\nwhole inspection of %s: %.2f GB to read, %.3g FLOP\n", path, 1e-9 * cost.bytes,
           cost.flops);
    inspect(&c);
    printf("  peak memory of the process so far %.0f MB", 1e-6 * bench_status_bytes("VmHWM"));
    twice                    = c;
    twice.options.silhouette = true;
    inspect(&twice);
    printf(", with silhouettes %.0f MB\n", 1e-6 * bench_status_bytes("VmHWM"));
    for (int i = 0; i < pairs; i++) {
        bench_time(&reading, read_once, &c);
        bench_time(&multiplying, products, &c);
        bench_time(&whole, inspect, &c);
        bench_time(&silhouettes, inspect, &twice);
    }
    const double a = bench_median(&reading), b = bench_median(&multiplying);
    const double all = bench_median(&whole);
    printf("  inspection %.2f s; reading %.2f s + products %.2f s = %.2f s; ratio %.2f\n", all, a,
           b, a + b, all / (a + b));
    printf("  with silhouettes %.2f s, %.2f times as long\n", bench_median(&silhouettes),
           bench_median(&silhouettes) / all);
    cpl_inspect_close(&c.files);
}

int main(int argc, char **argv)
{
    const int pairs = argc > 1 ? atoi(argv[1]) : 5;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 0);
    bench_machine(&be);
    if (argc > 2) {
        measure_checkpoint(&be, argv[2], pairs);
        return 0;
    }
    measure_responses(&be, "  M of a layer, the 15B's width", 256, 1536, 768, pairs);
    measure_responses(&be, "  M of a layer, OLMoE-1B-7B", 64, 2048, 1024, pairs);
    return 0;
}
