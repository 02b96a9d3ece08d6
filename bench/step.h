/* step.h - whole training steps of the benchmarks' model, and the plain product with which they are
 * compared: d = 1536, D = 768, n = 64, K = 8, 16 heads, sequences of 512.
 *
 * Every hinge of the coupling loss is active (erc.alpha near 0), so its operations are known. */
#ifndef CPL_BENCH_STEP_H
#define CPL_BENCH_STEP_H

#include "bench.h"
#include "model/aux_losses.h"
#include "plan/plan.h"
#include "train/optimizer.h"
#include "train/step.h"

enum { BENCH_SEQ_LEN = 512, BENCH_D = 1536, BENCH_PLAIN_REPEATS = 20, BENCH_PLAIN_ROWS = 8192 };

/* The properties that may differ between two steps. */
typedef struct bench_shape {
    cpl_dtype dtype;
    int64_t n_layers, vocab_size;
    int64_t n_tokens; /* tokens of a step */
    int64_t micro;    /* sequences computed at once */
    int router;       /* cpl_router */
    int n_threads;    /* 0: one per processor */
    cpl_mesh *mesh;   /* mesh of the ranks that make the step; NULL: one process */
} bench_shape;

typedef struct bench_step {
    cpl_backend be;
    cpl_model model;
    cpl_optimizer optimizer;
    cpl_step step;
    cpl_settings settings;
    cpl_arena arena;
    cpl_metrics metrics;
    cpl_step_batch batch;
    int32_t *ids, *target;
} bench_step;

/* Runs a step: gradient of all losses, its norm, AdamW. `context` is a bench_step. */
static inline void bench_step_run(void *context)
{
    bench_step *s = context;
    s->metrics.step++;
    cpl_optimizer_zero(&s->optimizer, &s->model);
    cpl_step_gradient(&s->step, &s->model, &s->optimizer.grads, &s->settings, &s->batch, false,
                      false, &s->metrics);
    cpl_optimizer_update(&s->optimizer, &s->model, &s->settings.train, s->metrics.grad_norm, 1e-4);
    bench_ok(s->be.ops->sync(&s->be));
}

static inline void bench_step_draw(bench_step *s, int64_t n_tokens)
{
    const int64_t length    = s->settings.data.seq_len;
    const int64_t sequences = n_tokens / length;
    const uint32_t ids      = (uint32_t)s->settings.model.vocab_size;
    cpl_rng_key key         = {.seed = 1, .stream = CPL_STREAM_TEST};
    s->ids                  = cpl_alloc((size_t)n_tokens * sizeof *s->ids);
    s->target               = cpl_alloc((size_t)n_tokens * sizeof *s->target);
    if (!s->ids || !s->target) bench_ok(CPL_ERR_MEMORY);
    for (int64_t i = 0; i < n_tokens; i++)
        s->ids[i] = (int32_t)(cpl_rng_u32(&key, (uint64_t)i) % ids);
    for (int64_t i = 0; i < n_tokens; i++) s->target[i] = (i + 1) % length ? s->ids[i + 1] : -1;
    s->batch = (cpl_step_batch){s->ids, s->target, NULL, sequences, n_tokens - sequences};
}

static inline void bench_step_settings(cpl_settings *settings, const bench_shape *shape)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    bench_ok(cpl_settings_init(settings, sections, CPL_N_SECTIONS));
    cpl_model_settings *m       = &settings->model;
    m->n_layers                 = shape->n_layers;
    m->vocab_size               = shape->vocab_size;
    m->d_model                  = BENCH_D;
    m->d_expert                 = 768;
    m->n_experts                = 64;
    m->top_k                    = 8;
    m->n_heads                  = 16;
    m->router                   = shape->router;
    m->activations              = shape->dtype; /* bf16: as products */
    settings->data.seq_len      = BENCH_SEQ_LEN;
    settings->data.batch_tokens = shape->n_tokens;
    settings->losses.erc.alpha  = 1e-3;
    bench_ok(cpl_model_resolve(m));
    bench_ok(cpl_aux_resolve(&settings->losses, m));
}

/* Completes `s`, whose settings and backend are set. `m` is the model of this process. */
static inline void bench_step_make(bench_step *s, const cpl_model_settings *m, int64_t micro,
                                   cpl_mesh *mesh)
{
    const int64_t length = s->settings.data.seq_len;
    cpl_work work        = cpl_step_work(&s->settings, m, micro);
    bench_ok(cpl_backend_reserve(&s->be, &work));
    bench_ok(cpl_optimizer_init(&s->optimizer, &s->be, m, mesh, true));
    bench_ok(cpl_model_init_over(&s->model, &s->be, m, length, cpl_optimizer_over(&s->optimizer)));
    cpl_model_randomize(&s->model, 1);
    cpl_share_keep_masters(&s->optimizer.share, &s->model.master);
    bench_ok(cpl_step_init(&s->step, &s->be, &s->settings, m, micro, &s->optimizer.share));
    bench_ok(cpl_arena_init(&s->arena, 1 << 20, "metrics"));
    cpl_metrics_take(&s->metrics, &s->arena, m, 0);
    bench_step_draw(s, s->settings.data.batch_tokens / (mesh ? mesh->world.size : 1));
}

static inline void bench_step_init(bench_step *s, const bench_shape *shape)
{
    memset(s, 0, sizeof *s);
    bench_step_settings(&s->settings, shape);
    cpl_model_settings own = s->settings.model;
    if (shape->mesh) {
        own.first_expert                 = shape->mesh->first_expert;
        own.n_local                      = shape->mesh->n_local;
        s->settings.losses.balance.scope = CPL_BALANCE_GLOBAL;
    }
    cpl_backend_cpu(&s->be, shape->dtype, shape->n_threads);
    bench_step_make(s, &own, shape->micro, shape->mesh);
}

static inline void bench_step_free(bench_step *s)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    cpl_settings_free(&s->settings, sections, CPL_N_SECTIONS);
    cpl_free(s->ids);
    cpl_free(s->target);
    cpl_arena_free(&s->arena);
    cpl_step_free(&s->step);
    cpl_optimizer_free(&s->optimizer);
    cpl_model_free(&s->model);
    cpl_backend_free(&s->be);
}

/* Returns the prediction of `couplet plan` for the step. */
static inline cpl_plan bench_step_plan(const bench_step *s)
{
    cpl_plan plan;
    const cpl_model_settings twin = cpl_plan_twin(&s->settings.model);
    const cpl_plan_input input    = {
           .model           = s->settings.model,
           .erc             = s->settings.losses.erc,
           .batch_tokens    = s->settings.data.batch_tokens,
           .seq_len         = BENCH_SEQ_LEN,
           .micro_sequences = s->step.micro,
           .ranks           = 1,
           .expert_parallel = 1,
           .compute         = s->be.compute,
           .counted.step    = cpl_step_bytes(&s->settings, &s->settings.model, s->step.micro),
           .twin.step       = cpl_step_bytes(&s->settings, &twin, s->step.micro),
    };
    bench_ok(cpl_plan_make(&plan, &input));
    return plan;
}

/* ---- the plain product ---- */

typedef struct bench_plain {
    cpl_backend *be;
    cpl_tensor a, b, c; /* [8192,d] [d,d] [8192,d] */
} bench_plain;

static inline double bench_plain_flops(void)
{
    return BENCH_PLAIN_REPEATS * 2.0 * BENCH_PLAIN_ROWS * BENCH_D * BENCH_D;
}

static inline void bench_plain_run(void *context)
{
    bench_plain *p = context;
    for (int i = 0; i < BENCH_PLAIN_REPEATS; i++)
        p->be->ops->gemm(p->be, p->c, CPL_AS_IS, p->a, CPL_TRANSPOSED, p->b, 0);
}

static inline cpl_tensor bench_plain_matrix(cpl_backend *be, cpl_dtype dtype, int64_t rows,
                                            float scale)
{
    cpl_tensor x = bench_normal(be, dtype, 1, rows, BENCH_D, scale);
    return cpl_tensor_2d(x.storage, dtype, rows, BENCH_D);
}

static inline void bench_plain_init(bench_plain *p, cpl_backend *be)
{
    p->be = be;
    p->a  = bench_plain_matrix(be, be->compute, BENCH_PLAIN_ROWS, 1);
    p->b  = bench_plain_matrix(be, be->compute, BENCH_D, 0.02f);
    p->c  = bench_plain_matrix(be, CPL_F32, BENCH_PLAIN_ROWS, 1);
}

static inline void bench_plain_free(bench_plain *p)
{
    cpl_free(p->a.storage);
    cpl_free(p->b.storage);
    cpl_free(p->c.storage);
}

#endif /* CPL_BENCH_STEP_H */
