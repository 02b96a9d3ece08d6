/* operations.c - what does each operation of a training step take on a device, and what share of the
 * time is that which its rates allow?
 *
 * usage:    operations CONFIG.yaml [rounds=N] [rates=N] [SECTION.NAME=VALUE ...]
 *           operations configs/paper-3b.yaml compute.device=cuda model.num_hidden_layers=1
 * Step:     one micro-batch of random tokens: forward, backward, losses, gradient norm, AdamW.
 * Rates:    a product of N by N matrices in the type of products and in F32, a copy of 4 N^2 F32;
 *           measured here, the fastest of `rounds` (rates=8192 on a GPU, 1024 elsewhere).
 * Printed:  a Markdown table, operations in the order of the step. Milliseconds: all calls of a step,
 *           the median of `rounds` (5). Share: the least time, of FLOP or of bytes, over that time. A
 *           step in which every operation is waited for, and one in which none is. */
#include "../step.h"

#include "settings/yaml.h"
#include "timed.h"
#include "train/loop.h"

typedef struct rates {
    double product, f32, copy; /* FLOP/s, FLOP/s, bytes/s */
} rates;

typedef struct options {
    int rounds;
    int64_t size; /* of the matrices that rates are measured with; 0: the device's own */
} options;

/* ---- rates ---- */

static cpl_tensor room(cpl_backend *be, cpl_dtype dtype, int64_t a, int64_t b)
{
    cpl_tensor x = cpl_tensor_none();
    bench_ok(cpl_tensor_reserve(&x, be, dtype, a * b));
    return cpl_tensor_2d(x.storage, dtype, a, b);
}

/* Seconds of the fastest. */
static double fastest(cpl_backend *be, int rounds, cpl_tensor c, cpl_tensor a, cpl_tensor b)
{
    double least = INFINITY;
    for (int i = 0; i <= rounds; i++) {
        bench_ok(be->ops->sync(be));
        const double begin = bench_now();
        if (!cpl_tensor_is_there(b))
            be->ops->copy(be, c, a);
        else if (a.dtype == CPL_F32)
            be->ops->gemm_f32(be, c, CPL_AS_IS, a, CPL_TRANSPOSED, b, 0);
        else
            be->ops->gemm(be, c, CPL_AS_IS, a, CPL_TRANSPOSED, b, 0);
        bench_ok(be->ops->sync(be));
        if (i > 0) least = fmin(least, bench_now() - begin); /* the first one warms up */
    }
    return least;
}

static double product_rate(cpl_backend *be, const options *o, cpl_dtype dtype)
{
    const int64_t n = o->size;
    cpl_tensor a = room(be, dtype, n, n), b = room(be, dtype, n, n), c = room(be, CPL_F32, n, n);
    cpl_tensor half = room(be, CPL_F32, n, n);
    be->ops->fill(be, half, 0.5f);
    be->ops->copy(be, a, half);
    be->ops->copy(be, b, half);
    const double seconds = fastest(be, o->rounds, c, a, b);
    cpl_tensor_free(&a, be);
    cpl_tensor_free(&b, be);
    cpl_tensor_free(&c, be);
    cpl_tensor_free(&half, be);
    return 2.0 * (double)n * (double)n * (double)n / seconds;
}

static rates measure(cpl_backend *be, const options *o)
{
    const cpl_work work = {.n_tokens   = o->size,
                           .n_keys     = 1,
                           .batch      = 1,
                           .d_model    = o->size,
                           .d_expert   = 1,
                           .n_experts  = 1,
                           .top_k      = 1,
                           .n_heads    = 1,
                           .n_kv_heads = 1,
                           .vocab_size = o->size};
    bench_ok(cpl_backend_reserve(be, &work));
    cpl_tensor from = room(be, CPL_F32, 2 * o->size, 2 * o->size), to = from;
    to.storage = room(be, CPL_F32, 2 * o->size, 2 * o->size).storage;
    be->ops->fill(be, from, 0.5f);
    rates r = {.copy = 2.0 * (double)cpl_tensor_bytes(from) /
                       fastest(be, o->rounds, to, from, cpl_tensor_none())};
    cpl_tensor_free(&from, be);
    cpl_tensor_free(&to, be);
    r.f32     = product_rate(be, o, CPL_F32);
    r.product = be->compute == CPL_F32 ? r.f32 : product_rate(be, o, be->compute);
    return r;
}

/* ---- the step ---- */

static void read_settings(cpl_settings *s, options *o, int argc, char **argv)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    bench_ok(cpl_settings_init(s, sections, CPL_N_SECTIONS));
    bench_ok(cpl_yaml_read(s, sections, CPL_N_SECTIONS, argv[1], NULL));
    for (int i = 2; i < argc; i++)
        if (!strncmp(argv[i], "rounds=", 7))
            o->rounds = atoi(argv[i] + 7);
        else if (!strncmp(argv[i], "rates=", 6))
            o->size = atoi(argv[i] + 6);
        else
            bench_ok(cpl_settings_set(s, sections, CPL_N_SECTIONS, argv[i], NULL));
    if (o->rounds < 1 || o->rounds >= BENCH_MOST) o->rounds = 5;
    if (s->train.micro_batch < 1) s->train.micro_batch = 1;
    s->data.batch_tokens = s->train.micro_batch * s->data.seq_len;
}

/* As training on the backend does. */
static void resolve(cpl_settings *s, const cpl_backend *be)
{
    bench_ok(cpl_train_resolve_machine(s, be, 1, false));
    cpl_train_set_activations(&s->model, s);
    bench_ok(cpl_model_resolve(&s->model));
    bench_ok(cpl_aux_resolve(&s->losses, &s->model));
}

static double seconds_of(bench_step *s)
{
    const double begin = bench_now();
    bench_step_run(s);
    return bench_now() - begin;
}

/* ---- the table ---- */

static double least_time(const timed_row *row, const rates *r)
{
    const double product = row->in_f32 ? r->f32 : r->product;
    return fmax(row->flops / product, row->bytes / r->copy);
}

static void print_head(const bench_step *s, const rates *r, const options *o)
{
    const cpl_model_settings *m = &s->settings.model;
    printf("%s: %s products and %s activations; %lld layers of width %lld, %lld experts of width "
           "%lld, %lld of them a token; %lld tokens, medians of %d rounds.\n\n",
           s->be.device, s->be.compute == CPL_BF16 ? "bf16" : "f32",
           m->activations == CPL_BF16 ? "bf16" : "f32", (long long)m->n_layers,
           (long long)m->d_model, (long long)m->n_experts, (long long)m->d_expert,
           (long long)m->top_k, (long long)s->settings.data.batch_tokens, o->rounds);
    printf("Rates: product of N = %lld %.4g TFLOP/s, in F32 %.4g TFLOP/s; copy %.4g GB/s.\n\n",
           (long long)o->size, 1e-12 * r->product, 1e-12 * r->f32, 1e-9 * r->copy);
}

static void print_row(const timed_row *row, const rates *r, int rounds)
{
    const double calls = (double)row->calls / rounds, s = bench_median(&row->times);
    printf("| %s | %s | %.0f | %.3f | %.4g | %.4g | %.4g | %.4g | %.0f %% |\n", row->name,
           row->shapes, calls, 1e3 * s, 1e-9 * calls * row->flops, 1e-6 * calls * row->bytes,
           1e-12 * calls * row->flops / s, 1e-9 * calls * row->bytes / s,
           100 * calls * least_time(row, r) / s);
}

static void print_rows(const bench_step *s, const rates *r, int rounds)
{
    const timed_rows *rows = timed_of(&s->be);
    double all = 0, least = 0;
    puts("| operation | first tensors | calls | ms | GFLOP | MB | TFLOP/s | GB/s | share |\n"
         "|---|---|---|---|---|---|---|---|---|");
    for (int i = 0; i < rows->count; i++) {
        const timed_row *row = &rows->row[i];
        print_row(row, r, rounds);
        all += bench_median(&row->times);
        least += (double)row->calls / rounds * least_time(row, r);
    }
    printf("| all | | | %.3f | | | | | %.0f %% |\n\n", 1e3 * all, 100 * least / all);
}

int main(int argc, char **argv)
{
    static bench_step s;
    cpl_backend inner;
    options o         = {0};
    bench_times whole = {0}, waited = {0};
    if (argc < 2) {
        fputs("usage: operations CONFIG.yaml [rounds=N] [rates=N] [SECTION.NAME=VALUE ...]\n",
              stderr);
        return 2;
    }
    read_settings(&s.settings, &o, argc, argv);
    bench_ok(cpl_backend_open(&inner, s.settings.compute.device,
                              cpl_dtype_chosen(s.settings.compute.dtype),
                              (int)s.settings.compute.threads));
    resolve(&s.settings, &inner);
    if (o.size < 1) o.size = strcmp(inner.name, "cuda") ? 1024 : 8192;
    const rates r = measure(&inner, &o);
    timed_backend(&s.be, &inner);
    bench_step_make(&s, &s.settings.model, s.settings.train.micro_batch, NULL);
    bench_step_run(&s); /* warms up */
    for (int i = 0; i < o.rounds; i++) {
        timed_begin(&s.be);
        waited.seconds[waited.n++] = seconds_of(&s);
        timed_end(&s.be);
        whole.seconds[whole.n++] = seconds_of(&s);
    }
    print_head(&s, &r, &o);
    print_rows(&s, &r, o.rounds);
    printf("A step: %.3f ms, %.0f tokens/s; with a wait for every operation %.3f ms.\n",
           1e3 * bench_median(&whole), (double)s.settings.data.batch_tokens / bench_median(&whole),
           1e3 * bench_median(&waited));
    bench_step_free(&s);
    return 0;
}
