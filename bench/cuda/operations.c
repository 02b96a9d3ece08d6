/* operations.c - the time of each operation of a training step on a device, and the share of the
 * time that the device's rates explain
 *
 * usage:    operations CONFIG.yaml [rounds=N] [rates=N] [SECTION.NAME=VALUE ...]
 *           operations configs/paper-3b.yaml compute.device=cuda model.num_hidden_layers=1
 * Step:     one micro-batch of random tokens: forward, backward, losses, gradient norm, AdamW.
 * Rates:    the fastest measured here: products in their type and in F32 (cpl_backend_peak),
 *           copies of 4 N^2 F32 (rates=8192 on a GPU, 1024 elsewhere).
 * Printed:  a table in Markdown, in the order of the step. Milliseconds: all calls of a step,
 *           the median of `rounds` (5). Share: the least time, of FLOP or of bytes, over this time.
 *           Then a step that waits for every operation, and one that waits for none. */
#include "../step.h"

#include "settings/yaml.h"
#include "timed.h"
#include "train/loop.h"

typedef struct rates {
    double product, f32, copy; /* FLOP/s, FLOP/s, bytes/s */
} rates;

typedef struct options {
    int rounds;
    int64_t size; /* N; 0: the device's default */
} options;

/* ---- rates ---- */

static cpl_tensor room(cpl_backend *be, cpl_dtype dtype, int64_t a, int64_t b)
{
    cpl_tensor x = cpl_tensor_none();
    bench_ok(cpl_tensor_reserve(&x, be, dtype, a * b));
    return cpl_tensor_2d(x.storage, dtype, a, b);
}

/* Returns the bytes/s of the fastest copy. */
static double copy_rate(cpl_backend *be, const options *o)
{
    const int64_t side = 2 * o->size;
    cpl_tensor from = room(be, CPL_F32, side, side), to = room(be, CPL_F32, side, side);
    double least = INFINITY;
    be->ops->fill(be, from, 0.5f);
    for (int i = 0; i <= o->rounds; i++) {
        bench_ok(be->ops->sync(be));
        const double begin = bench_now();
        be->ops->copy(be, to, from);
        bench_ok(be->ops->sync(be));
        if (i > 0) least = fmin(least, bench_now() - begin); /* the first one warms up */
    }
    const double bytes = 2.0 * (double)cpl_tensor_bytes(from);
    cpl_tensor_free(&from, be);
    cpl_tensor_free(&to, be);
    return bytes / least;
}

/* Returns the FLOP/s of products in `compute`. */
static double product_rate(cpl_backend *be, cpl_dtype compute)
{
    const cpl_dtype before = be->compute;
    double flops;
    be->compute = compute;
    bench_ok(cpl_backend_peak(&flops, be, 0.3));
    be->compute = before;
    return flops;
}

static rates measure(cpl_backend *be, const options *o)
{
    rates r   = {.f32 = product_rate(be, CPL_F32), .copy = copy_rate(be, o)};
    r.product = be->compute == CPL_F32 ? r.f32 : product_rate(be, be->compute);
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

/* Resolves the settings as training on the backend does. */
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
    printf("Rates: products %.4g TFLOP/s, in F32 %.4g TFLOP/s; copy %.4g GB/s.\n\n",
           1e-12 * r->product, 1e-12 * r->f32, 1e-9 * r->copy);
}

static void print_row(const timed_row *row, const rates *r, int rounds)
{
    const double calls = (double)row->calls / rounds, s = bench_median(&row->times);
    printf("| %s | %s | %.0f | %.3f | %.4g | %.4g | %.4g | %.4g | %.0f %% |\n", row->name,
           row->shapes, calls, 1e3 * s, 1e-9 * calls * row->flops, 1e-6 * calls * row->bytes,
           1e-12 * calls * row->flops / s, 1e-9 * calls * row->bytes / s,
           100 * calls * least_time(row, r) / s);
}

static void print_rows(const rates *r, int rounds)
{
    const timed_rows *rows = timed_operations();
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
    options o         = {0};
    bench_times whole = {0}, waited = {0};
    if (argc < 2) {
        fputs("usage: operations CONFIG.yaml [rounds=N] [rates=N] [SECTION.NAME=VALUE ...]\n",
              stderr);
        return 2;
    }
    read_settings(&s.settings, &o, argc, argv);
    bench_ok(cpl_backend_open(&s.be, s.settings.compute.device,
                              cpl_dtype_chosen(s.settings.compute.dtype),
                              (int)s.settings.compute.threads));
    resolve(&s.settings, &s.be);
    if (o.size < 1) o.size = strcmp(s.be.name, "cuda") ? 1024 : 8192;
    const rates r = measure(&s.be, &o);
    timed_backend(&s.be);
    bench_step_make(&s, &s.settings.model, s.settings.train.micro_batch, NULL);
    bench_step_run(&s); /* warms up */
    for (int i = 0; i < o.rounds; i++) {
        timed_begin();
        waited.seconds[waited.n++] = seconds_of(&s);
        timed_end();
        whole.seconds[whole.n++] = seconds_of(&s);
    }
    print_head(&s, &r, &o);
    print_rows(&r, o.rounds);
    printf("A step: %.3f ms, %.0f tokens/s; with a wait for every operation %.3f ms.\n",
           1e3 * bench_median(&whole), (double)s.settings.data.batch_tokens / bench_median(&whole),
           1e3 * bench_median(&waited));
    bench_step_free(&s);
    return 0;
}
