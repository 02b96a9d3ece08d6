/* xent.c - the time of cross-entropy with its gradient, compared with its three products
 *
 * usage:   bench_xent [pairs]
 * Names:   T tokens, d width, V vocabulary, OLMoE's.
 * Limit:   the three products with the layouts that occur, of whole T x V matrices that lie ready:
 *          x head^T, p head and p^T x. The operation itself never holds T x V numbers. */
#include "bench.h"

enum { T = 1024, D_MODEL = 1536, VOCAB = 50304 };

typedef struct problem {
    cpl_backend *be;
    cpl_tensor x, head, nll, dx, dhead, target;
    cpl_tensor logits, p, low; /* of the plain products: [T,V], [T,V] and x in be->compute */
} problem;

static cpl_tensor matrix(cpl_backend *be, cpl_dtype dtype, int64_t rows, int64_t cols, float scale)
{
    return cpl_tensor_2d(bench_normal(be, dtype, 1, rows, cols, scale).storage, dtype, rows, cols);
}

static void init(problem *p, cpl_backend *be)
{
    cpl_rng_key key = {.seed = 3, .stream = CPL_STREAM_TEST};
    p->be           = be;
    p->x            = matrix(be, CPL_F32, T, D_MODEL, 1);
    p->head         = matrix(be, be->compute, VOCAB, D_MODEL, 0.02f);
    p->dx           = matrix(be, CPL_F32, T, D_MODEL, 1);
    p->dhead        = matrix(be, CPL_F32, VOCAB, D_MODEL, 0);
    p->nll          = cpl_tensor_1d(matrix(be, CPL_F32, T, 1, 1).storage, CPL_F32, T);
    p->target       = cpl_tensor_1d(matrix(be, CPL_F32, T, 1, 1).storage, CPL_I32, T);
    for (int64_t t = 0; t < T; t++)
        cpl_i32(p->target)[t] = (int32_t)(cpl_rng_u32(&key, (uint64_t)t) % VOCAB);
}

static void init_plain(problem *p)
{
    p->logits = matrix(p->be, CPL_F32, T, VOCAB, 1);
    p->p      = matrix(p->be, p->be->compute, T, VOCAB, 1);
    p->low    = matrix(p->be, p->be->compute, T, D_MODEL, 1);
}

static void release(problem *p)
{
    cpl_tensor all[] = {p->x, p->head, p->nll, p->dx, p->dhead, p->target, p->logits, p->p, p->low};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) cpl_free(all[i].storage);
}

static void train(void *context)
{
    problem *p = context;
    p->be->ops->xent_train(p->be, p->nll, p->dx, p->dhead, p->x, p->head, p->target, 1.0f / T);
    bench_ok(p->be->ops->sync(p->be));
}

static void score(void *context)
{
    problem *p = context;
    p->be->ops->xent(p->be, p->nll, p->x, p->head, p->target);
}

static void one_product(void *context)
{
    problem *p = context;
    p->be->ops->gemm(p->be, p->logits, CPL_AS_IS, p->low, CPL_TRANSPOSED, p->head, 0);
}

static void three_products(void *context)
{
    problem *p = context;
    one_product(p);
    p->be->ops->gemm(p->be, p->dx, CPL_AS_IS, p->p, CPL_AS_IS, p->head, 0);
    p->be->ops->gemm(p->be, p->dhead, CPL_TRANSPOSED, p->p, CPL_AS_IS, p->low, 1);
}

static void compare(cpl_dtype compute, int pairs)
{
    const double one    = 2.0 * T * D_MODEL * VOCAB;
    const cpl_work work = {.n_tokens   = T,
                           .d_model    = D_MODEL,
                           .vocab_size = VOCAB,
                           .d_expert   = 1,
                           .n_experts  = 1,
                           .top_k      = 1,
                           .n_heads    = 1,
                           .training   = true};
    const bool low      = compute == CPL_BF16;
    cpl_backend be;
    problem p = {0};
    cpl_backend_cpu(&be, compute, 0);
    bench_ok(cpl_backend_reserve(&be, &work));
    init(&p, &be);
    double extra = bench_extra_bytes(train, &p);
    init_plain(&p);
    bench_pair pair = bench_alternate(pairs, train, &p, three_products, &p);
    bench_print(low ? "bf16, with gradients" : "f32, with gradients", &pair, 3 * one, 3 * one);
    pair = bench_alternate(pairs, score, &p, one_product, &p);
    bench_print(low ? "bf16, alone" : "f32, alone", &pair, one, one);
    printf("  extra memory with gradients: %.0f MiB; %d x %d logits would be %.0f MiB\n",
           extra / 1048576, T, VOCAB, 4.0 * T * VOCAB / 1048576);
    release(&p);
    cpl_backend_free(&be);
}

int main(int argc, char **argv)
{
    int pairs = argc > 1 ? atoi(argv[1]) : 3;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 0);
    bench_machine(&be);
    printf("xent      T %d, d %d, V %d; medians of %d alternating pairs\n", T, D_MODEL, VOCAB,
           pairs);
    compare(CPL_F32, pairs);
    if (cpl_cpu_has_bf16()) compare(CPL_BF16, pairs);
    return 0;
}
