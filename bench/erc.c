/* erc.c - the speed of the coupling loss, forward and backward, compared with a plain product
 *
 * usage:   bench_erc [pairs]
 * Names:   n experts, d model width, D expert width of the paper's models with D = 768.
 * Limit:   the product of [n,d] by [n D,d]^T in oneDNN in its fastest form here: one call, n calls
 *          in sequence, or n calls spread over the threads. A backward pass counts as two products.
 * Loads:   every hinge active (alpha near 0), about one hinge in a hundred, none (experts turned
 *          towards their own router row). For each load the line "forward+backward : forward" has
 *          the median time of forward and backward divided by the median time of the forward
 *          pass. */
#include "bench.h"
#include "couplet.h"

enum { D_MODEL = 1536, D_EXPERT = 768, MOST_EXPERTS = 256 };

typedef struct problem {
    cpl_backend *be;
    int64_t n;
    cpl_tensor R, R_low, w, product; /* R_low: R in the dtype of w */
    float *dR, *dw;
    const void *gate[MOST_EXPERTS];
    float *grad[MOST_EXPERTS];
    cpl_erc erc, forward;
    int form; /* form of the plain product, an index in choose_limit's `forms` */
} problem;

static void *room(size_t bytes)
{
    void *memory = cpl_alloc(bytes);
    if (!memory) bench_ok(CPL_ERR_MEMORY);
    memset(memory, 0, bytes);
    return memory;
}

/* ---- the limit ---- */

static cpl_status expert_product(const problem *p, int64_t j, int n_threads)
{
    const cpl_dtype dtype = p->w.dtype;
    cpl_operand a         = {p->R_low.storage, dtype, CPL_AS_IS, D_MODEL};
    cpl_operand b         = {p->gate[j], dtype, CPL_TRANSPOSED, D_MODEL};
    return cpl_product((float *)p->product.storage + j * p->n * D_EXPERT, D_EXPERT, a, b,
                       (cpl_product_shape){p->n, D_EXPERT, D_MODEL}, 0, n_threads);
}

static void one_product(problem *p)
{
    cpl_operand a = {p->R_low.storage, p->w.dtype, CPL_AS_IS, D_MODEL};
    cpl_operand b = {p->w.storage, p->w.dtype, CPL_TRANSPOSED, D_MODEL};
    bench_ok(cpl_product(p->product.storage, p->n * D_EXPERT, a, b,
                         (cpl_product_shape){p->n, p->n * D_EXPERT, D_MODEL}, 0, p->be->n_threads));
}

static void plain(void *context)
{
    problem *p        = context;
    cpl_status status = CPL_OK;
    if (p->form == 0) one_product(p);
    for (int64_t j = 0; p->form == 1 && j < p->n; j++)
        bench_ok(expert_product(p, j, p->be->n_threads));
    if (p->form != 2) return;
#pragma omp parallel for num_threads(p->be->n_threads) schedule(static)
    for (int64_t j = 0; j < p->n; j++) {
        cpl_status one = expert_product(p, j, 1);
        if (one != CPL_OK) {
#pragma omp critical
            status = one;
        }
    }
    bench_ok(status);
}

static void nothing(void *context)
{
    (void)context;
}

static void choose_limit(problem *p)
{
    static const char *const forms[] = {"one call", "one call per expert",
                                        "experts spread over threads"};
    double best                      = 0;
    int chosen                       = 0;
    for (p->form = 0; p->form < 3; p->form++) {
        bench_pair pair = bench_alternate(3, plain, p, nothing, p);
        double seconds  = bench_median(&pair.subject);
        if (best == 0 || seconds < best) {
            best   = seconds;
            chosen = p->form;
        }
    }
    p->form = chosen;
    printf("limit     %s\n", forms[chosen]);
}

/* ---- the subject ---- */

static void forward(void *context)
{
    problem *p = context;
    bench_ok(cpl_erc_run(&p->forward));
}

static void forward_backward(void *context)
{
    problem *p = context;
    bench_ok(cpl_erc_run(&p->erc));
}

/* Adds strength times expert j's router row to every row of its gate w_j. */
static void turn_towards_rows(problem *p, float strength)
{
    const cpl_tensor wide = bench_normal(p->be, CPL_F32, p->n, D_EXPERT, D_MODEL, 0.02f);
    float *w              = wide.storage;
    for (int64_t r = 0; r < p->n * D_EXPERT; r++)
        for (int64_t k = 0; k < D_MODEL; k++)
            w[r * D_MODEL + k] += strength * cpl_f32(p->R)[r / D_EXPERT * D_MODEL + k];
    p->be->ops->copy(p->be, p->w, wide);
    cpl_free(wide.storage);
}

static void init(problem *p, cpl_backend *be, int64_t n)
{
    const size_t expert = (size_t)D_MODEL * D_EXPERT;
    memset(p, 0, sizeof *p);
    p->be    = be;
    p->n     = n;
    p->R     = bench_normal(be, CPL_F32, 1, n, D_MODEL, 0.02f);
    p->R_low = p->R;
    if (be->compute == CPL_BF16) {
        p->R_low         = p->R;
        p->R_low.storage = room(cpl_tensor_bytes(p->R));
        p->R_low.dtype   = CPL_BF16;
        be->ops->copy(be, p->R_low, p->R);
    }
    p->w         = cpl_tensor_3d(NULL, be->compute, n, D_EXPERT, D_MODEL);
    p->w.storage = room(cpl_tensor_bytes(p->w));
    p->product =
        cpl_tensor_2d(room((size_t)(n * n) * D_EXPERT * sizeof(float)), CPL_F32, n, n * D_EXPERT);
    p->dR = room((size_t)n * D_MODEL * sizeof(float));
    p->dw = room((size_t)n * expert * sizeof(float));
    for (int64_t j = 0; j < n; j++) {
        p->gate[j] = (char *)p->w.storage + (size_t)j * expert * cpl_dtype_bytes(be->compute);
        p->grad[j] = p->dw + (size_t)j * expert;
    }
}

static void set_calls(problem *p)
{
    cpl_erc *erc = &p->erc;
    cpl_erc_init(erc);
    erc->n_experts   = p->n;
    erc->d_model     = D_MODEL;
    erc->d_expert    = D_EXPERT;
    erc->router      = cpl_f32(p->R);
    erc->dtype       = p->be->compute == CPL_BF16 ? CPL_ERC_BF16 : CPL_ERC_F32;
    erc->compute     = erc->dtype;
    erc->n_threads   = p->be->n_threads;
    erc->gate        = (cpl_erc_matrices){p->gate, D_MODEL};
    p->forward       = *erc;
    erc->router_grad = p->dR;
    erc->gate_grad   = (cpl_erc_gradients){p->grad, D_MODEL};
}

static void take_scratch(cpl_erc *erc)
{
    bench_ok(cpl_erc_scratch(erc, &erc->scratch_bytes));
    erc->scratch = room(erc->scratch_bytes);
}

/* Returns the alpha at which one hinge in a hundred is active. */
static double hundredth_alpha(problem *p)
{
    const int64_t n = p->n;
    float *M        = room((size_t)(n * n) * sizeof(float));
    double *ratio   = room((size_t)(2 * n * n) * sizeof(double));
    int64_t count   = 0;
    p->forward.M    = M;
    forward(p);
    p->forward.M = NULL;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (i == j) continue;
            ratio[count++] = (double)M[i * n + j] / (double)M[i * n + i];
            ratio[count++] = (double)M[i * n + j] / (double)M[j * n + j];
        }
    qsort(ratio, (size_t)count, sizeof *ratio, bench_by_value);
    const double alpha = ratio[count - count / 100];
    cpl_free(ratio);
    cpl_free(M);
    return alpha;
}

static void measure(problem *p, const char *load, double alpha, int pairs)
{
    char what[64];
    const double flops = 2.0 * (double)p->n * (double)p->n * D_MODEL * D_EXPERT;
    p->erc.alpha = p->forward.alpha = alpha;
    bench_pair ahead                = bench_alternate(pairs, forward, p, plain, p);
    bench_pair both                 = bench_alternate(pairs, forward_backward, p, plain, p);
    bench_pair price                = bench_alternate(pairs, forward_backward, p, forward, p);
    const double hinges             = (double)(p->erc.row_violations + p->erc.column_violations);
    printf("%s: %.2f %% of the hinges active\n", load,
           100 * hinges / (2.0 * (double)p->n * (double)(p->n - 1)));
    snprintf(what, sizeof what, "  n=%d forward", (int)p->n);
    bench_print(what, &ahead, flops, flops);
    snprintf(what, sizeof what, "  n=%d forward+backward", (int)p->n);
    bench_print(what, &both, 3 * flops, flops);
    printf("  n=%d forward+backward : forward  %.2f\n", (int)p->n,
           bench_median(&price.subject) / bench_median(&price.limit));
}

static void all_loads(cpl_backend *be, int64_t n, int pairs)
{
    static problem p;
    init(&p, be, n);
    printf("\n%s, n=%d, d=%d, D=%d\n", be->compute == CPL_BF16 ? "bf16" : "f32", (int)n, D_MODEL,
           D_EXPERT);
    set_calls(&p);
    take_scratch(&p.erc);
    take_scratch(&p.forward);
    printf("scratch   %.1f MB forward, %.1f MB forward+backward (n n D floats: %.0f MB)\n",
           1e-6 * (double)p.forward.scratch_bytes, 1e-6 * (double)p.erc.scratch_bytes,
           4e-6 * (double)(n * n * D_EXPERT));
    turn_towards_rows(&p, 0);
    choose_limit(&p);
    measure(&p, "all", 1e-3, pairs);
    measure(&p, "one in a hundred", hundredth_alpha(&p), pairs);
    turn_towards_rows(&p, 1);
    measure(&p, "none", 1, pairs);
    cpl_free(p.erc.scratch);
    cpl_free(p.forward.scratch);
    cpl_free(p.dR);
    cpl_free(p.dw);
    cpl_free(p.w.storage);
    cpl_free(p.product.storage);
    if (p.R_low.storage != p.R.storage) cpl_free(p.R_low.storage);
    cpl_free(p.R.storage);
}

int main(int argc, char **argv)
{
    const int pairs = argc > 1 ? atoi(argv[1]) : 7;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 0);
    bench_machine(&be);
    all_loads(&be, 64, pairs);
    all_loads(&be, 256, pairs < 3 ? pairs : 3);
    if (!cpl_cpu_has_bf16()) {
        printf("\nbf16: this processor does not multiply it\n");
        return 0;
    }
    cpl_backend_cpu(&be, CPL_BF16, 0);
    all_loads(&be, 64, pairs);
    all_loads(&be, 256, pairs < 3 ? pairs : 3);
    return 0;
}
