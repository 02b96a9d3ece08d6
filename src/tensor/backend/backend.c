/* backend.c - see backend.h */
#include "tensor/backend/backend.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "tensor/memory.h"
#include "tensor/product.h"

/* ---- which kernels run ---- */

#if defined(__x86_64__)
#    define CPL_ISAS CPL_ISA_ROW(v2) CPL_ISA_ROW(v3) CPL_ISA_ROW(v4)
#else
#    define CPL_ISAS CPL_ISA_ROW(any)
#endif

#define CPL_ISA_ROW(isa)                                                                           \
    extern const cpl_ops cpl_cpu_ops_##isa;                                                        \
    extern const cpl_host_ops cpl_cpu_host_ops_##isa;
CPL_ISAS
#undef CPL_ISA_ROW

typedef struct kernels {
    const char *isa, *backend_name;
    const cpl_ops *ops;
    const cpl_host_ops *host_ops;
} kernels;

/* Sorted from the smallest instruction set to the largest. */
#define CPL_ISA_ROW(isa) {#isa, "cpu " #isa, &cpl_cpu_ops_##isa, &cpl_cpu_host_ops_##isa},
static const kernels all_kernels[] = {CPL_ISAS};
#undef CPL_ISA_ROW

static struct {
    pthread_once_t once;
    kernels kernels;
    char cpu_name[128];
} chosen = {.once = PTHREAD_ONCE_INIT};

/* Returns the index of the last kernels that this processor can run. */
static int best_kernels(void)
{
#if defined(__x86_64__)
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return v3 && v4 ? 2 : v3 ? 1 : 0;
#else
    return 0;
#endif
}

/* Returns the kernels that COUPLET_ISA allows, at most `best`; `best` for an unknown name. */
static int limited_kernels(int best)
{
    const char *limit = getenv("COUPLET_ISA");
    for (int i = 0; limit && i < best; i++)
        if (!strcmp(limit, all_kernels[i].isa)) return i;
    return best;
}

static void read_cpu_name(char *name, size_t size)
{
    snprintf(name, size, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(name, size, "%.100s", value);
        break;
    }
    if (file) fclose(file);
}

static void choose(void)
{
    int best       = best_kernels();
    int index      = limited_kernels(best);
    chosen.kernels = all_kernels[index];
    if (index < best) cpl_product_limit(chosen.kernels.isa);
    read_cpu_name(chosen.cpu_name, sizeof chosen.cpu_name);
}

static void choose_once(void)
{
    pthread_once(&chosen.once, choose);
}

/* ---- what this machine can do ---- */

const cpl_host_ops *cpl_cpu_on_host(void)
{
    choose_once();
    return chosen.kernels.host_ops;
}

const char *cpl_cpu_isa(void)
{
    choose_once();
    return chosen.kernels.isa;
}

bool cpl_cpu_has_bf16(void)
{
    choose_once();
    return cpl_product_has_bf16();
}

bool cpl_backend_has_bf16(const cpl_backend *be)
{
    return (be && be->room) || cpl_cpu_has_bf16();
}

const char *cpl_cpu_name(void)
{
    choose_once();
    return chosen.cpu_name;
}

int cpl_cpu_count(void)
{
    return omp_get_max_threads();
}

/* ---- after fork() ---- */

static atomic_int forks;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

/* Installs the handler when the library is loaded, since the program may fork before its first
 * call. The C library removes the handler when this library is unloaded. */
__attribute__((constructor)) static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, count_fork);
}

int cpl_backend_forks(void)
{
    return atomic_load(&forks);
}

int cpl_cpu_threads(int asked)
{
    CPL_ASSERT(asked >= 0);
    return cpl_backend_forks() ? 1 : asked ? asked : cpl_cpu_count();
}

/* ---- one backend ---- */

void cpl_backend_cpu(cpl_backend *be, cpl_dtype compute, int n_threads)
{
    CPL_ASSERT(compute == CPL_F32 || compute == CPL_BF16);
    choose_once();
    memset(be, 0, sizeof *be);
    be->ops       = chosen.kernels.ops;
    be->device    = "cpu";
    be->name      = chosen.kernels.backend_name;
    be->compute   = compute;
    be->n_threads = cpl_cpu_threads(n_threads);
    be->failure   = CPL_OK;
}

/* Bytes of address space for the kernels of oneDNN. Version 2.6.3 takes 6 MiB with AVX2 and 20 MiB
 * with AVX-512. The rest is a reserve for other versions. */
static const size_t library_bytes = (size_t)32 << 20;

cpl_status cpl_cpu_start(int n_threads)
{
    static atomic_int started; /* number of threads started so far */
    if (n_threads <= atomic_load(&started) || omp_in_parallel()) return CPL_OK;
    CPL_TRY(cpl_memory_try(library_bytes, n_threads));
    CPL_TRY(cpl_product_prepare());
#pragma omp parallel num_threads(n_threads)
    atomic_store(&started, n_threads);
    return CPL_OK;
}

cpl_status cpl_backend_reserve(cpl_backend *be, const cpl_work *work)
{
    CPL_TRY(cpl_cpu_start(be->n_threads));
    size_t bytes = be->ops->scratch_bytes(be, work);
    if (bytes <= be->scratch_bytes) return CPL_OK;
    be->ops->give(be, be->scratch); /* freed first: old and new scratch need not fit together */
    be->scratch       = be->ops->take(be, bytes);
    be->scratch_bytes = be->scratch ? bytes : 0;
    return be->scratch ? CPL_OK : cpl_tensor_no_memory(be, bytes, "the scratch of the operations");
}

void cpl_backend_tell(const cpl_backend *be, const cpl_log *log)
{
    static atomic_bool told;
    if (be->note && !atomic_exchange(&told, true)) cpl_log_warn(log, "%s", be->note);
}

cpl_status cpl_backend_fits(cpl_backend *be, double needs, const char *what)
{
    double there, all;
    char words[3][32];
    if (!be->room) return cpl_memory_check(needs, what);
    be->room(be, &there, &all);
    CPL_TRY(cpl_backend_status(be));
    if (!(needs > there)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "not enough memory: %s needs %s on %s, and %s of %s are free",
                    what, cpl_text_bytes(words[0], needs), be->device,
                    cpl_text_bytes(words[1], there), cpl_text_bytes(words[2], all));
}

cpl_status cpl_backend_status(const cpl_backend *be)
{
    if (be->failure == CPL_OK) return CPL_OK;
    if (be->sentence) return CPL_FAIL(be->failure, "%s: %s", be->device, be->sentence);
    return CPL_FAIL(be->failure, "an operation of the %s backend failed (out of memory?)",
                    be->name);
}

void cpl_backend_free(cpl_backend *be)
{
    if (!be->ops) return;
    be->ops->give(be, be->scratch);
    be->scratch       = NULL;
    be->scratch_bytes = 0;
    if (!be->close) return;
    be->close(be);
    be->ops = NULL;
}

/* ---- the machine's peak ---- */

typedef struct product {
    cpl_tensor_arena arena;
    cpl_tensor c, a, b; /* [side,side] each */
} product;

/* Returns whether the product is measured in bf16. A CPU without bf16 instructions uses F32. */
static bool in_bf16(const cpl_backend *be)
{
    return be->compute == CPL_BF16 && cpl_backend_has_bf16(be);
}

static cpl_status take_product(product *p, cpl_backend *be, int64_t side)
{
    const cpl_dtype dtype = in_bf16(be) ? CPL_BF16 : CPL_F32;
    p->arena              = cpl_tensor_arena_measure();
    for (int turn = 0; turn < 2; turn++) {
        if (turn) CPL_TRY(cpl_tensor_arena_init(&p->arena, be, &p->arena, "measuring its speed"));
        p->c = cpl_tensor_take_2d(&p->arena, side, side);
        p->a = cpl_tensor_take(&p->arena, cpl_tensor_2d(NULL, dtype, side, side));
        p->b = cpl_tensor_take(&p->arena, cpl_tensor_2d(NULL, dtype, side, side));
    }
    return CPL_OK;
}

static double seconds_of(cpl_backend *be, const product *p)
{
    const double start = cpl_seconds_now();
    if (in_bf16(be))
        be->ops->gemm(be, p->c, CPL_AS_IS, p->a, CPL_TRANSPOSED, p->b, 0);
    else
        be->ops->gemm_f32(be, p->c, CPL_AS_IS, p->a, CPL_TRANSPOSED, p->b, 0);
    (void)be->ops->sync(be);
    return cpl_seconds_now() - start;
}

/* Sets *side to a side whose product takes long compared with waiting for the device. The first
 * product of each side is a warm-up. */
static cpl_status choose_product(product *p, int64_t *side, cpl_backend *be, int64_t most)
{
    static const double enough = 1e-3;
    for (*side = be->room && most > 64 ? 64 : most;; *side *= 2) {
        CPL_TRY(take_product(p, be, *side));
        (void)seconds_of(be, p);
        if (*side >= most || seconds_of(be, p) >= enough) return CPL_OK;
        cpl_tensor_arena_free(&p->arena);
    }
}

/* Returns the largest side of the measured products. On a device the three matrices take at most
 * half of the free memory. */
static int64_t most_side(cpl_backend *be)
{
    double there, all;
    int64_t side = 8192;
    if (!be->room) return 1536;
    be->room(be, &there, &all);
    while (side > 64 && 24.0 * (double)(side * side) > there) side /= 2;
    return side;
}

/* Measures the peak. Without a device this measures the CPU's own operations, even if be->ops wraps
 * them. */
cpl_status cpl_backend_peak(double *flops, cpl_backend *be, double seconds)
{
    cpl_backend cpu;
    cpl_backend_cpu(&cpu, be->compute, be->n_threads);
    if (!be->room) be = &cpu;
    const double begin = cpl_seconds_now();
    double fastest     = INFINITY;
    int64_t side;
    product p;
    CPL_TRY(choose_product(&p, &side, be, most_side(be)));
    do fastest = fmin(fastest, seconds_of(be, &p));
    while (cpl_seconds_now() - begin < seconds);
    cpl_tensor_arena_free(&p.arena);
    *flops = 2.0 * (double)side * (double)side * (double)side / fastest;
    return cpl_backend_status(be);
}
