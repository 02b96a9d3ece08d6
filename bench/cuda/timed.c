/* timed.c - see timed.h */
#include "timed.h"

typedef void run_fn(cpl_backend *be, const void *arguments);

static struct {
    const cpl_ops *inner; /* the backend's own table */
    cpl_ops ops;          /* the table that the backend has instead */
    timed_rows rows;
    bool on;
    int rounds;
    double bytes; /* bytes of the next operation */
    char shapes[96];
} timing;

/* ---- arguments of an operation ---- */

enum { SHOWN = 3 }; /* tensors in a row's shapes: the output and two inputs */

static void add_shape(char text[96], cpl_tensor t)
{
    static const char *const types[] = {"f32", "bf16", "i32", "f64"};
    size_t at                        = strlen(text);
    at += (size_t)snprintf(text + at, 96 - at, "%s%s", at ? " " : "", types[t.dtype]);
    for (int i = 0; i < t.rank && at < 90; i++)
        at += (size_t)snprintf(text + at, 96 - at, "%c%lld", i ? 'x' : ' ', (long long)t.shape[i]);
}

static void reach(cpl_backend *be, cpl_tensor *const *tensors, int count)
{
    (void)be;
    timing.bytes     = 0;
    timing.shapes[0] = '\0';
    for (int i = 0; i < count; i++) {
        bool seen = !tensors[i]->storage;
        for (int k = 0; k < i && !seen; k++) seen = cpl_tensor_is_same(*tensors[k], *tensors[i]);
        if (seen) continue;
        timing.bytes += (double)cpl_tensor_bytes(*tensors[i]);
        if (i < SHOWN) add_shape(timing.shapes, *tensors[i]);
    }
}

static void give_work(cpl_backend *be, run_fn *run, const void *arguments, size_t bytes);

#include "timed_operations.inc" /* by tools/make_operations.py */

/* ---- counting ---- */

static double of_product(const gemm_arguments *g)
{
    const int64_t k = g->ta == CPL_AS_IS ? g->a.shape[1] : g->a.shape[0];
    return 2.0 * (double)(g->c.shape[0] * g->c.shape[1]) * (double)k;
}

/* Returns the FLOP of one product over the pairs of a query and a key that it sees. */
static double of_attention(cpl_attention_shape s)
{
    const double q = (double)s.n_queries, before = (double)(s.n_keys - s.n_queries);
    return 2.0 * (double)(s.batch * s.n_heads * s.head_dim) * (q * before + q * (q + 1) / 2);
}

static double of_experts(cpl_tensor weight, cpl_expert_weights w)
{
    const int64_t n = w.w_gate.shape[0];
    return 2.0 * (double)(cpl_tensor_count(weight) / n) *
           (double)(cpl_tensor_count(w.w_gate) + 2 * cpl_tensor_count(w.w_up));
}

static double of_head(cpl_tensor x, cpl_tensor head)
{
    return 2.0 * (double)(cpl_tensor_count(x) * head.shape[0]);
}

/* Returns the FLOP of one matrix that the activation reads, tripled with a gradient, every hinge
 * active. */
static double of_coupling(const cpl_erc_job *j)
{
    const int matrices = cpl_erc_has_gate(j->activation) + cpl_erc_has_up(j->activation) +
                         (j->activation == CPL_ERC_OUTPUT);
    const cpl_tensor one = cpl_tensor_is_there(j->gate) ? j->gate : j->up;
    const double forward = 2.0 * (double)(j->i1 - j->i0) * (double)cpl_tensor_count(one);
    return forward * matrices * (cpl_tensor_is_there(j->dR) ? 3 : 1);
}

static double flops_of(run_fn *run, const void *given)
{
    if (run == run_gemm || run == run_gemm_f32) return of_product(given);
    if (run == run_linear_backward)
        return 2 * of_head(((const linear_backward_arguments *)given)->x,
                           ((const linear_backward_arguments *)given)->w);
    if (run == run_attention) return 2 * of_attention(((const attention_arguments *)given)->shape);
    if (run == run_attention_backward)
        return 5 * of_attention(((const attention_backward_arguments *)given)->shape);
    if (run == run_experts)
        return of_experts(((const experts_arguments *)given)->weight,
                          ((const experts_arguments *)given)->w);
    if (run == run_experts_backward)
        return 2 * of_experts(((const experts_backward_arguments *)given)->weight,
                              ((const experts_backward_arguments *)given)->w);
    if (run == run_xent)
        return of_head(((const xent_arguments *)given)->x, ((const xent_arguments *)given)->head);
    if (run == run_xent_train)
        return 3 * of_head(((const xent_train_arguments *)given)->x,
                           ((const xent_train_arguments *)given)->head);
    if (run == run_erc_run_local)
        return of_coupling(&((const erc_run_local_arguments *)given)->job);
    return 0;
}

static double bytes_in(cpl_expert_weights w)
{
    return (double)(cpl_tensor_bytes(w.w_gate) + cpl_tensor_bytes(w.w_up) +
                    cpl_tensor_bytes(w.w_down));
}

/* Returns the bytes of tensors to which an operation adds, which it reads and writes. */
static double added(run_fn *run, const void *given)
{
    if (run == run_adamw) return 3 * (double)cpl_tensor_bytes(((const adamw_arguments *)given)->p);
    if (run == run_add) return (double)cpl_tensor_bytes(((const add_arguments *)given)->y);
    if (run == run_gemm || run == run_gemm_f32) {
        const gemm_arguments *g = given;
        return g->beta == 0 ? 0 : (double)cpl_tensor_bytes(g->c);
    }
    if (run == run_linear_backward) {
        const linear_backward_arguments *g = given;
        return (double)cpl_tensor_bytes(g->dw) +
               (g->beta == 0 ? 0 : (double)cpl_tensor_bytes(g->dx));
    }
    if (run == run_rms_norm_backward) {
        const rms_norm_backward_arguments *g = given;
        return g->beta == 0 ? 0 : (double)cpl_tensor_bytes(g->dx);
    }
    if (run == run_experts_backward)
        return bytes_in(((const experts_backward_arguments *)given)->dw) +
               (double)cpl_tensor_bytes(((const experts_backward_arguments *)given)->dx);
    if (run == run_xent_train)
        return (double)cpl_tensor_bytes(((const xent_train_arguments *)given)->dhead);
    return 0;
}

static double bytes_of(run_fn *run, const void *given, double all)
{
    if (run == run_embed)
        return 2.0 * (double)cpl_tensor_bytes(((const embed_arguments *)given)->y);
    if (run == run_embed_backward)
        return 3.0 * (double)cpl_tensor_bytes(((const embed_backward_arguments *)given)->dy);
    return all + added(run, given);
}

static const char *name_of(run_fn *run)
{
    static const struct {
        run_fn *run;
        const char *name;
    } all[] = {
#define CPL_OP(name)     {run_##name, #name},
#define CPL_ERC_OP(name) {run_erc_##name, "erc." #name},
#include "tensor/ops.def"
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].run == run) return all[i].name;
    return "?";
}

/* ---- running ---- */

static timed_row *row_of(run_fn *run, const void *arguments)
{
    timed_rows *rows = &timing.rows;
    for (int i = 0; i < rows->count; i++)
        if (rows->row[i].run == run && !strcmp(rows->row[i].shapes, timing.shapes))
            return &rows->row[i];
    CPL_ASSERT(rows->count < TIMED_MOST_ROWS);
    timed_row *row = &rows->row[rows->count++];
    *row           = (timed_row){.run    = run,
                                 .name   = name_of(run),
                                 .flops  = flops_of(run, arguments),
                                 .bytes  = bytes_of(run, arguments, timing.bytes),
                                 .in_f32 = run == run_gemm_f32,
                                 .times  = {.n = timing.rounds}};
    memcpy(row->shapes, timing.shapes, sizeof row->shapes);
    return row;
}

static void give_work(cpl_backend *be, run_fn *run, const void *arguments, size_t bytes)
{
    (void)bytes;
    be->ops = timing.inner;
    if (!timing.on) {
        run(be, arguments);
    } else {
        timed_row *row = row_of(run, arguments);
        bench_ok(be->ops->sync(be));
        const double begin = bench_now();
        run(be, arguments);
        bench_ok(be->ops->sync(be));
        row->calls++;
        row->times.seconds[row->times.n - 1] += bench_now() - begin;
    }
    be->ops = &timing.ops;
}

void timed_begin(void)
{
    CPL_ASSERT(timing.rounds < BENCH_MOST);
    timing.on = true;
    timing.rounds++;
    for (int i = 0; i < timing.rows.count; i++) timing.rows.row[i].times.n = timing.rounds;
}

void timed_end(void)
{
    timing.on = false;
}

const timed_rows *timed_operations(void)
{
    return &timing.rows;
}

void timed_backend(cpl_backend *be)
{
    timing.inner = be->ops;
    timing.ops   = *be->ops; /* operations of memory stay */
    fill_table(&timing.ops);
    be->ops = &timing.ops;
}
