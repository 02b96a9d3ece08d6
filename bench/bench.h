/* bench.h - shared functions of the programs of this folder: the machine in one line, medians of
 * alternating runs, and peak memory.
 *
 * Timings on a shared machine vary, so no result is a bare speed. A subject and its limit run in
 * turn, and the ratio of their medians counts. */
#ifndef CPL_BENCH_BENCH_H
#define CPL_BENCH_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/rng.h"
#include "tensor/backend/backend.h"
#include "tensor/product.h"

#ifndef BENCH_FLAGS
#    define BENCH_FLAGS "unknown flags"
#endif

enum { BENCH_MOST = 64 };

static inline double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Stops the program with the library's sentence. */
static inline void bench_ok(cpl_status status)
{
    if (status == CPL_OK) return;
    fprintf(stderr, "%s\n", cpl_last_error());
    exit(1);
}

static inline void bench_machine(const cpl_backend *be)
{
    printf("machine   %s, %d of %d threads, kernels %s\n", cpl_cpu_name(), be->n_threads,
           cpl_cpu_count(), cpl_cpu_isa());
    printf("built     %s, %s; oneDNN %s\n", __VERSION__, BENCH_FLAGS, cpl_product_library());
}

/* ---- medians of alternating runs ---- */

typedef struct bench_times {
    int n;
    double seconds[BENCH_MOST];
} bench_times;

static inline int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the value below which the part `share` of the runs lies; 0.5 gives the median. */
static inline double bench_quantile(const bench_times *times, double share)
{
    bench_times sorted = *times;
    qsort(sorted.seconds, (size_t)sorted.n, sizeof sorted.seconds[0], bench_by_value);
    return sorted.seconds[(int)(share * (double)(sorted.n - 1) + 0.5)];
}

static inline double bench_median(const bench_times *times)
{
    return bench_quantile(times, 0.5);
}

/* A run that is timed, in turn with others. */
typedef struct bench_run {
    void (*run)(void *context);
    void *context;
    bench_times times;
} bench_run;

static inline void bench_time(bench_times *times, void (*run)(void *context), void *context)
{
    double begin = bench_now();
    run(context);
    times->seconds[times->n++] = bench_now() - begin;
}

/* Runs all of them once to warm up, then `rounds` times in turn. */
static inline void bench_rounds(int rounds, bench_run *runs, int n)
{
    rounds = rounds < 1 ? 1 : rounds > BENCH_MOST ? BENCH_MOST : rounds;
    for (int i = 0; i < n; i++) runs[i].run(runs[i].context);
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < n; i++) bench_time(&runs[i].times, runs[i].run, runs[i].context);
}

/* Returns the ratios of two runs, round by round. */
static inline bench_times bench_ratios(const bench_times *above, const bench_times *below)
{
    bench_times ratios = {above->n, {0}};
    for (int r = 0; r < above->n; r++) ratios.seconds[r] = above->seconds[r] / below->seconds[r];
    return ratios;
}

typedef struct bench_pair {
    bench_times subject, limit;
} bench_pair;

static inline bench_pair bench_alternate(int pairs, void (*subject)(void *), void *subject_context,
                                         void (*limit)(void *), void *limit_context)
{
    bench_run runs[2] = {{subject, subject_context, {0, {0}}}, {limit, limit_context, {0, {0}}}};
    bench_rounds(pairs, runs, 2);
    return (bench_pair){runs[0].times, runs[1].times};
}

/* Prints one line: speed of both in GFLOP/s and the subject's share of the limit, with the spread
 * between the quartiles. */
static inline void bench_print(const char *what, const bench_pair *pair, double subject_flops,
                               double limit_flops)
{
    double subject = bench_median(&pair->subject), limit = bench_median(&pair->limit);
    double spread =
        (bench_quantile(&pair->subject, 0.75) - bench_quantile(&pair->subject, 0.25)) / subject;
    double share = (subject_flops / subject) / (limit_flops / limit);
    printf("%-34s %8.1f ms +-%4.1f %%  %7.1f GFLOP/s  plain %7.1f GFLOP/s  share %5.1f %%\n", what,
           1e3 * subject, 50 * spread, 1e-9 * subject_flops / subject, 1e-9 * limit_flops / limit,
           100 * share);
    fflush(stdout);
}

/* ---- peak memory ---- */

/* Returns a line of /proc/self/status in bytes; 0 if the system does not have it. */
static inline double bench_status_bytes(const char *name)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0) kib = atof(line + strlen(name) + 1);
    if (file) fclose(file);
    return kib * 1024;
}

/* Resets the peak to the present use. */
static inline void bench_reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return;
    fputs("5", file);
    fclose(file);
}

/* Returns the peak bytes that `run` held beyond the resident bytes before it. Scratch is freed
 * before, so that its pages count when they are touched. */
static inline double bench_extra_bytes(void (*run)(void *context), void *context)
{
    bench_reset_peak();
    double before = bench_status_bytes("VmRSS");
    run(context);
    return bench_status_bytes("VmHWM") - before;
}

/* ---- operands ---- */

/* Returns [a,b,c] of normal numbers times `scale`, repeated (drawing is slow), in BF16 if asked.
 * The program ends if memory is missing. */
static inline cpl_tensor bench_normal(cpl_backend *be, cpl_dtype dtype, int64_t a, int64_t b,
                                      int64_t c, float scale)
{
    enum { DRAWN = 1 << 18 };
    static float numbers[DRAWN];
    const cpl_rng_key key = {.seed = 1, .stream = CPL_STREAM_TEST};
    cpl_tensor drawn      = cpl_tensor_1d(numbers, CPL_F32, DRAWN);
    cpl_tensor x          = cpl_tensor_3d(NULL, dtype, a, b, c);
    x.storage             = cpl_alloc(cpl_tensor_bytes(x));
    if (!x.storage) bench_ok(CPL_ERR_MEMORY);
    be->ops->normal(be, drawn, scale, 8.0f, key, 0);
    for (int64_t at = 0; at < cpl_tensor_count(x); at += DRAWN) {
        int64_t left    = cpl_tensor_count(x) - at;
        cpl_tensor from = cpl_tensor_1d(numbers, CPL_F32, left < DRAWN ? left : DRAWN);
        cpl_tensor to   = cpl_tensor_1d((char *)x.storage + (size_t)at * cpl_dtype_bytes(dtype),
                                        dtype, from.shape[0]);
        be->ops->copy(be, to, from);
    }
    return x;
}

#endif /* CPL_BENCH_BENCH_H */
