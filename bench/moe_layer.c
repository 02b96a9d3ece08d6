/* moe_layer.c - the speed of a layer's experts, forward and backward, compared with plain products
 *
 * usage:   bench_moe_layer [pairs]
 * Names:   T tokens, K experts a token, n experts, d model width, D expert width; the sizes of
 *          OLMoE with d_expert 768.
 * Limit:   the nine products of a layer as three plain products, each [T K, .] long, one for each
 *          layout that occurs: x W^T (forward), x W (towards x), x^T y (towards W).
 * Loads:   balanced; one expert chosen by every token, with the other choices at random. */
#include "bench.h"

enum { T = 4096, K = 8, N = 64, D_MODEL = 1536, D_EXPERT = 768, ROWS = T * K };

typedef struct layer {
    cpl_backend *be;
    cpl_tensor x, dy, y, dx, weight, dweight, expert, gate, up;
    cpl_expert_weights w, dw;
    cpl_dispatch plan;
} layer;

static cpl_tensor ids(int64_t rows, int64_t cols)
{
    cpl_tensor x = cpl_tensor_2d(NULL, CPL_I32, rows, cols);
    x.storage    = cpl_alloc(cpl_tensor_bytes(x));
    if (!x.storage) bench_ok(CPL_ERR_MEMORY);
    return x;
}

static cpl_tensor matrix(layer *l, int64_t rows, int64_t cols)
{
    cpl_tensor x = bench_normal(l->be, CPL_F32, 1, rows, cols, 1);
    return cpl_tensor_2d(x.storage, CPL_F32, rows, cols);
}

static cpl_expert_weights weights(layer *l, cpl_dtype dtype)
{
    cpl_expert_weights w = {bench_normal(l->be, dtype, N, D_EXPERT, D_MODEL, 0.02f),
                            bench_normal(l->be, dtype, N, D_EXPERT, D_MODEL, 0.02f),
                            bench_normal(l->be, dtype, N, D_MODEL, D_EXPERT, 0.02f)};
    return w;
}

static void init(layer *l, cpl_backend *be)
{
    l->be      = be;
    l->x       = matrix(l, T, D_MODEL);
    l->dy      = matrix(l, T, D_MODEL);
    l->y       = matrix(l, T, D_MODEL);
    l->dx      = matrix(l, T, D_MODEL);
    l->gate    = matrix(l, ROWS, D_EXPERT);
    l->up      = matrix(l, ROWS, D_EXPERT);
    l->weight  = matrix(l, T, K);
    l->dweight = matrix(l, T, K);
    l->expert  = ids(T, K);
    l->plan    = (cpl_dispatch){ids(1, N + 1), ids(1, ROWS), ids(T, K)};
    l->w       = weights(l, be->compute);
    l->dw      = weights(l, CPL_F32);
}

/* Sets each token's experts: a hot one, if wanted, and a run of neighbours from a random place. */
static void load(layer *l, bool hot)
{
    cpl_rng_key key = {.seed = 2, .stream = CPL_STREAM_TEST};
    for (int64_t t = 0; t < T; t++) {
        int32_t *choice = cpl_i32(l->expert) + t * K, others = hot ? N - 1 : N;
        int32_t start = (int32_t)(cpl_rng_u32(&key, (uint64_t)t) % (uint32_t)others);
        for (int32_t k = 0; k < K; k++) choice[k] = (start + 7 * k) % others + (hot ? 1 : 0);
        if (hot) choice[0] = 0;
    }
    l->be->ops->dispatch(l->be, l->plan, l->expert, N);
}

static void forward(void *context)
{
    layer *l = context;
    l->be->ops->experts(l->be, l->y, l->gate, l->up, l->x, cpl_tensor_none(), l->weight, l->plan,
                        l->w);
}

static void forward_backward(void *context)
{
    layer *l = context;
    forward(l);
    l->be->ops->experts_backward(l->be, l->dx, cpl_tensor_none(), l->dweight, l->dw, l->dy, l->gate,
                                 l->up, l->x, cpl_tensor_none(), l->weight, l->plan, l->w);
    bench_ok(l->be->ops->sync(l->be));
}

/* ---- the plain products ---- */

typedef struct plain {
    cpl_backend *be;
    cpl_dtype dtype;
    cpl_tensor wide, slim, weight; /* [T K, d], [T K, D], [D,d] */
    float *result;                 /* memory of the largest result */
} plain;

static void init_plain(plain *p, cpl_backend *be)
{
    p->be     = be;
    p->dtype  = be->compute;
    p->wide   = bench_normal(be, p->dtype, 1, ROWS, D_MODEL, 1);
    p->slim   = bench_normal(be, p->dtype, 1, ROWS, D_EXPERT, 1);
    p->weight = bench_normal(be, p->dtype, 1, D_EXPERT, D_MODEL, 0.02f);
    p->result = cpl_f32(bench_normal(be, CPL_F32, 1, ROWS, D_MODEL, 1));
}

static void free_plain(plain *p)
{
    cpl_free(p->wide.storage);
    cpl_free(p->slim.storage);
    cpl_free(p->weight.storage);
    cpl_free(p->result);
}

static cpl_operand stored(cpl_tensor x, cpl_trans trans)
{
    return (cpl_operand){x.storage, x.dtype, trans, x.shape[2]};
}

static void three_products(void *context)
{
    plain *p                  = context;
    const int threads         = p->be->n_threads;
    const cpl_product_shape y = {ROWS, D_EXPERT, D_MODEL}, dx = {ROWS, D_MODEL, D_EXPERT};
    const cpl_product_shape dw = {D_EXPERT, D_MODEL, ROWS};
    cpl_operand weight         = stored(p->weight, CPL_AS_IS);
    bench_ok(cpl_product(p->result, D_EXPERT, stored(p->wide, CPL_AS_IS),
                         stored(p->weight, CPL_TRANSPOSED), y, 0, threads));
    bench_ok(cpl_product(p->result, D_MODEL, stored(p->slim, CPL_AS_IS), weight, dx, 0, threads));
    bench_ok(cpl_product(p->result, D_MODEL, stored(p->slim, CPL_TRANSPOSED),
                         stored(p->wide, CPL_AS_IS), dw, 0, threads));
}

/* ---- the comparison ---- */

static void compare(cpl_dtype compute, int pairs)
{
    static const char *const names[2][2] = {{"f32, balanced", "f32, one hot expert"},
                                            {"bf16, balanced", "bf16, one hot expert"}};
    const double one                     = 2.0 * ROWS * D_MODEL * D_EXPERT;
    const cpl_work work                  = {.n_tokens  = T,
                                            .n_experts = N,
                                            .top_k     = K,
                                            .d_model   = D_MODEL,
                                            .d_expert  = D_EXPERT,
                                            .training  = true};
    cpl_backend be;
    layer l = {0};
    plain p;
    cpl_backend_cpu(&be, compute, 0);
    bench_ok(cpl_backend_reserve(&be, &work));
    init(&l, &be);
    init_plain(&p, &be);
    load(&l, false);
    double extra = bench_extra_bytes(forward_backward, &l);
    for (int hot = 0; hot < 2; hot++) {
        load(&l, hot);
        bench_pair pair = bench_alternate(pairs, forward_backward, &l, three_products, &p);
        bench_print(names[compute == CPL_BF16][hot], &pair, 9 * one, 3 * one);
        pair = bench_alternate(pairs, forward, &l, three_products, &p);
        bench_print("  forward alone", &pair, 3 * one, 3 * one);
    }
    printf("  extra memory, forward and backward: %.0f MiB\n", extra / 1048576);
    free_plain(&p);
    cpl_backend_free(&be);
}

int main(int argc, char **argv)
{
    int pairs = argc > 1 ? atoi(argv[1]) : 5;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 0);
    bench_machine(&be);
    printf("experts   T %d, K %d, n %d, d %d, D %d; medians of %d alternating pairs\n", T, K, N,
           D_MODEL, D_EXPERT, pairs);
    compare(CPL_F32, pairs);
    if (cpl_cpu_has_bf16()) compare(CPL_BF16, pairs);
    return 0;
}
