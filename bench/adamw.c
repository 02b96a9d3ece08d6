/* adamw.c - the time of an optimizer step, compared with the speed of memory
 *
 * usage:   bench_adamw [pairs]
 * Limit:   y += x over arrays of the same length, 12 bytes of traffic a number; AdamW has 28 (reads
 *          p, m, v and the gradient, writes p, m and v), 30 with a bf16 copy of the parameters. */
#include "bench.h"

enum { COUNT = 32 << 20 };

typedef struct tensors {
    cpl_backend *be;
    cpl_tensor p, m, v, grad, copy; /* copy: none, or bf16 */
} tensors;

static cpl_tensor flat(cpl_backend *be, cpl_dtype dtype)
{
    return cpl_tensor_1d(bench_normal(be, dtype, 1, 1, COUNT, 0.02f).storage, dtype, COUNT);
}

static void step(void *context)
{
    tensors *t = context;
    t->be->ops->adamw(t->be, t->p, t->m, t->v, t->copy, t->grad, 0.5f, 1e-4f, 0.1f, 0.9f, 0.95f,
                      1e-8f, 0.5, 0.3);
}

static void add(void *context)
{
    tensors *t = context;
    t->be->ops->add(t->be, t->p, t->grad, 1);
}

static void compare(const char *what, tensors *t, int pairs, double bytes)
{
    bench_pair pair     = bench_alternate(pairs, step, t, add, t);
    const double time   = bench_median(&pair.subject);
    const double spread = bench_quantile(&pair.subject, 0.75) - bench_quantile(&pair.subject, 0.25);
    const double speed  = bytes * COUNT / time;
    const double limit  = 12.0 * COUNT / bench_median(&pair.limit);
    printf("%-34s %8.1f ms +-%4.1f %%  %7.1f GB/s  y += x %7.1f GB/s  share %5.1f %%\n", what,
           1e3 * time, 50 * spread / time, 1e-9 * speed, 1e-9 * limit, 100 * speed / limit);
}

int main(int argc, char **argv)
{
    int pairs = argc > 1 ? atoi(argv[1]) : 9;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 0);
    bench_machine(&be);
    printf("adamw     %d numbers; medians of %d alternating pairs\n", COUNT, pairs);
    tensors t = {&be,
                 flat(&be, CPL_F32),
                 flat(&be, CPL_F32),
                 flat(&be, CPL_F32),
                 flat(&be, CPL_F32),
                 cpl_tensor_none()};
    be.ops->fill(&be, t.v, 1e-4f);
    compare("one step", &t, pairs, 28);
    t.copy = flat(&be, CPL_BF16);
    compare("one step and a bf16 copy", &t, pairs, 30);
    return 0;
}
