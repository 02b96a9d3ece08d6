/* train_step.c - how near to the plain product does a whole training step come, and what does it
 * hold in memory?
 *
 * usage:   train_step [pairs [f32|bf16 [micro]]]
 * Step:    forward, backward, coupling loss, gradient norm, AdamW over 8192 tokens in sequences of
 *          512; d = 1536, D = 768, n = 64, K = 8; once with two layers and a vocabulary of 4096, once
 *          with one layer and 50304. `micro` sequences are computed at once (default: all 16).
 * Counted: the operations of model/cost.h, three times forward; nothing computed twice counts.
 * Limit:   a product of [8192,1536] with [1536,1536], alternating with the step. */
#include "bench.h"

#include "model/cost.h"
#include "train/optimizer.h"
#include "train/step.h"

enum { TOKENS = 8192, SEQ_LEN = 512, PLAIN_REPEATS = 20 };

typedef struct subject {
    cpl_backend be;
    cpl_model model;
    cpl_optimizer optimizer;
    cpl_step step;
    cpl_settings settings;
    cpl_arena arena;
    cpl_metrics metrics;
    cpl_step_batch batch;
    int32_t *ids, *target;
    cpl_tensor a, b, c; /* of the plain product */
} subject;

static void one_step(void *context)
{
    subject *s = context;
    s->metrics.step++;
    cpl_optimizer_zero(&s->optimizer, &s->model);
    cpl_step_gradient(&s->step, &s->model, &s->optimizer.grads, &s->settings, &s->batch, false,
                      false, &s->metrics);
    double norm = cpl_optimizer_norm(&s->optimizer, &s->model);
    cpl_optimizer_update(&s->optimizer, &s->model, &s->settings.train, norm, 1e-4);
    bench_ok(s->be.ops->sync(&s->be));
}

static void plain(void *context)
{
    subject *s = context;
    for (int i = 0; i < PLAIN_REPEATS; i++)
        s->be.ops->gemm(&s->be, s->c, CPL_AS_IS, s->a, CPL_TRANSPOSED, s->b, 0);
}

static void draw_tokens(subject *s, int64_t vocab_size)
{
    cpl_rng_key key = {.seed = 1, .stream = CPL_STREAM_TEST};
    s->ids          = cpl_alloc(TOKENS * sizeof *s->ids);
    s->target       = cpl_alloc(TOKENS * sizeof *s->target);
    if (!s->ids || !s->target) bench_ok(CPL_ERR_MEMORY);
    for (int64_t i = 0; i < TOKENS; i++)
        s->ids[i] = (int32_t)(cpl_rng_u32(&key, (uint64_t)i) % (uint32_t)vocab_size);
    for (int64_t i = 0; i < TOKENS; i++) s->target[i] = (i + 1) % SEQ_LEN ? s->ids[i + 1] : -1;
    s->batch =
        (cpl_step_batch){s->ids, s->target, NULL, TOKENS / SEQ_LEN, TOKENS - TOKENS / SEQ_LEN};
}

static void init(subject *s, cpl_dtype dtype, int64_t n_layers, int64_t vocab_size, int64_t micro)
{
    cpl_section sections[CPL_N_SECTIONS];
    memset(s, 0, sizeof *s);
    cpl_settings_sections(sections);
    bench_ok(cpl_settings_init(&s->settings, sections, CPL_N_SECTIONS));
    cpl_model_settings *m    = &s->settings.model;
    m->n_layers              = n_layers;
    m->vocab_size            = vocab_size;
    m->d_model               = 1536;
    m->d_expert              = 768;
    m->n_experts             = 64;
    m->top_k                 = 8;
    m->n_heads               = 16;
    s->settings.data.seq_len = SEQ_LEN;
    bench_ok(cpl_model_settle(m));
    cpl_backend_cpu(&s->be, dtype, 0);
    cpl_work work = cpl_step_work(&s->settings, m, micro);
    bench_ok(cpl_backend_reserve(&s->be, &work));
    bench_ok(cpl_model_init(&s->model, &s->be, m, SEQ_LEN));
    cpl_model_randomize(&s->model, 1);
    bench_ok(cpl_optimizer_init(&s->optimizer, m));
    bench_ok(cpl_step_init(&s->step, &s->settings, m, micro));
    bench_ok(cpl_arena_init(&s->arena, 1 << 20, "metrics"));
    cpl_metrics_take(&s->metrics, &s->arena, m, 0);
    draw_tokens(s, vocab_size);
    s->a = bench_normal(&s->be, dtype, 1, TOKENS, 1536, 1);
    s->b = bench_normal(&s->be, dtype, 1, 1536, 1536, 0.02f);
    s->c = bench_normal(&s->be, CPL_F32, 1, TOKENS, 1536, 1);
    s->a = cpl_tensor_2d(s->a.data, dtype, TOKENS, 1536);
    s->b = cpl_tensor_2d(s->b.data, dtype, 1536, 1536);
    s->c = cpl_tensor_2d(s->c.data, CPL_F32, TOKENS, 1536);
}

static void release(subject *s)
{
    cpl_section sections[CPL_N_SECTIONS];
    cpl_settings_sections(sections);
    cpl_settings_free(&s->settings, sections, CPL_N_SECTIONS);
    cpl_free(s->ids);
    cpl_free(s->target);
    cpl_free(s->a.data);
    cpl_free(s->b.data);
    cpl_free(s->c.data);
    cpl_arena_free(&s->arena);
    cpl_step_free(&s->step);
    cpl_optimizer_free(&s->optimizer);
    cpl_model_free(&s->model);
    cpl_backend_free(&s->be);
}

static void compare(const char *what, cpl_dtype dtype, int64_t n_layers, int64_t vocab_size,
                    int64_t micro, int pairs)
{
    subject s;
    bench_reset_peak();
    init(&s, dtype, n_layers, vocab_size, micro);
    double flops    = cpl_cost_step(&s.settings.model, TOKENS, SEQ_LEN, &s.settings.erc);
    double limit    = PLAIN_REPEATS * 2.0 * TOKENS * 1536 * 1536;
    bench_pair pair = bench_alternate(pairs, one_step, &s, plain, &s);
    bench_print(what, &pair, flops, limit);
    printf("%-34s %8.0f tokens/s, peak resident %.2f GB\n", "",
           TOKENS / bench_median(&pair.subject), bench_status_bytes("VmHWM") / 1e9);
    release(&s);
}

int main(int argc, char **argv)
{
    int pairs       = argc > 1 ? atoi(argv[1]) : 3;
    bool bf16       = argc > 2 && strcmp(argv[2], "bf16") == 0;
    int64_t micro   = argc > 3 ? atoi(argv[3]) : TOKENS / SEQ_LEN;
    cpl_dtype dtype = bf16 ? CPL_BF16 : CPL_F32;
    cpl_backend be;
    cpl_backend_cpu(&be, dtype, 0);
    printf("A whole training step, %s\n", bf16 ? "bf16" : "f32");
    bench_machine(&be);
    compare("2 layers, vocabulary 4096", dtype, 2, 4096, micro, pairs);
    compare("1 layer, vocabulary 50304", dtype, 1, 50304, micro, pairs);
    return 0;
}
