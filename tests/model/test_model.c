/* test_model.c - properties of the whole model: threads, documents, order of sequences, unset
 * memory, the same start for the same seed, and learning of one batch by heart. (Every gradient
 * against PyTorch: tests/train/test_golden.c. The cache: tests/infer/test_generate.c.) */
#include "model/model.h"

#include "store/model_case.h"
#include "support/mirror.h"
#include "tensor/poison/poison.h"
#include "train/norm.h"

enum { B = 2, S = 12, T = B * S };

/* Forward and backward passes over [B,S], and their results. */
typedef struct world {
    cpl_model_settings config;
    cpl_backend cpu, poison, *be;
    cpl_model model;
    cpl_optimizer run; /* it holds the gradients */
    cpl_tensor_arena arena;
    cpl_pass pass;
    float logits[T * 37];
    double nll;
} world;

static world *world_in(cpl_dtype compute, const cpl_model_settings *config, int threads,
                       bool poisoned)
{
    world *w      = calloc(1, sizeof *w);
    cpl_work work = cpl_pass_work(config, B * S, true);
    w->config     = *config;
    assert_ok(cpl_backend_open(&w->cpu, "cpu", compute, threads));
    w->be = &w->cpu;
    if (poisoned) cpl_backend_poison(w->be = &w->poison, &w->cpu);
    assert_ok(cpl_backend_reserve(w->be, &work));
    assert_ok(cpl_model_init(&w->model, w->be, config, S));
    cpl_model_randomize(&w->model, 11);
    assert_ok(cpl_optimizer_init(&w->run, w->be, config, NULL, false));
    w->arena = cpl_tensor_arena_measure();
    cpl_pass_take(&w->pass, &w->arena, config, B, S, true, false);
    assert_ok(cpl_tensor_arena_init(&w->arena, w->be, &w->arena, "pass"));
    cpl_pass_take(&w->pass, &w->arena, config, B, S, true, false);
    return w;
}

static world *world_of(const cpl_model_settings *config, int threads, bool poisoned)
{
    return world_in(config->activations, config, threads, poisoned);
}

static void world_gone(world *w)
{
    cpl_tensor_arena_free(&w->arena);
    cpl_optimizer_free(&w->run);
    cpl_model_free(&w->model);
    cpl_backend_free(w->be);
    free(w);
}

static const int32_t some_ids[T] = {1, 5, 9,  2, 7, 30, 12, 4, 5, 9, 8,  36,
                                    3, 0, 11, 6, 5, 22, 9,  2, 7, 1, 31, 13};

static void pass_over(world *w, const int32_t *ids, const int32_t *doc_start)
{
    int32_t target[T];
    cpl_aux_grad_scales scales = {.balance_scale = 1e-3f, .z_scale = 1e-3f};
    cpl_tensor id              = mirrored(w->be, cpl_tensor_1d((void *)(uintptr_t)ids, CPL_I32, T));
    cpl_tensor doc             = cpl_tensor_2d((void *)(uintptr_t)doc_start, CPL_I32, B, S);
    cpl_tensor logits          = mirrored(w->be, cpl_tensor_2d(w->logits, CPL_F32, T, 37));
    doc                        = mirrored(w->be, doc);
    for (int i = 0; i < T; i++) target[i] = i % S == S - 1 ? -1 : ids[i + 1];
    cpl_optimizer_zero(&w->run, &w->model);
    cpl_model_forward(&w->model, &w->pass, id, doc, NULL);
    cpl_model_logits(&w->model, &w->pass, logits, 0);
    w->nll = 0;
    cpl_model_backward(&w->model, &w->pass, mirrored(w->be, cpl_tensor_1d(&w->nll, CPL_F64, 1)),
                       &w->run.grads, id, doc, mirrored(w->be, cpl_tensor_1d(target, CPL_I32, T)),
                       1.0f / T, scales);
    mirrors_end(w->be);
    assert_ok(w->be->ops->sync(w->be));
}

static void assert_same_gradients(world *a, world *b, double relative)
{
    for (int64_t i = 0; i < cpl_params_count(&a->config); i++) {
        cpl_param p       = cpl_params_at(&a->config, i);
        cpl_tensor x      = seen(a->be, *cpl_params_tensor(&a->run.grads, &p)),
                   y      = seen(b->be, *cpl_params_tensor(&b->run.grads, &p));
        double difference = 0, reference = 0;
        for (int64_t k = 0; k < cpl_tensor_count(x); k++) {
            double u = (double)cpl_f32(x)[k], v = (double)cpl_f32(y)[k];
            difference += (u - v) * (u - v);
            reference += v * v;
        }
        assert_true(isfinite(reference));
        assert_near(sqrt(difference), 0, relative * sqrt(reference));
    }
}

enum { N_VARIANTS = 4 };

static cpl_model_settings variant_of(int variant)
{
    cpl_model_settings c = small_config();
    c.tied               = variant == 1;
    c.norm_topk          = variant == 1;
    c.clip_qkv           = variant == 2 ? 0.5 : NAN;
    c.router             = variant == 3 ? CPL_ROUTER_AOE : CPL_ROUTER_SOFTMAX;
    c.aoe_rank           = variant == 3 ? 3 : c.aoe_rank;
    c.n_shared           = variant == 3;
    c.d_latent           = variant == 2 ? 7 : 0;
    return c;
}

/* Returns the distance of a to b over the norm of b, of all gradients together. */
static double distance(const world *a, const world *b)
{
    double difference = 0, reference = 0;
    for (int64_t i = 0; i < cpl_params_count(&a->config); i++) {
        const cpl_param p = cpl_params_at(&a->config, i);
        cpl_params of_a = a->run.grads, of_b = b->run.grads;
        const cpl_tensor x = seen(a->be, *cpl_params_tensor(&of_a, &p));
        const cpl_tensor y = seen(b->be, *cpl_params_tensor(&of_b, &p));
        for (int64_t k = 0; k < cpl_tensor_count(x); k++) {
            const double u = (double)cpl_f32(x)[k], v = (double)cpl_f32(y)[k];
            difference += (u - v) * (u - v);
            reference += v * v;
        }
    }
    return sqrt(difference / reference);
}

/* The distance to F32 grows at most by half over bf16 products: one more rounding a number. */
TEST(activations_in_bf16)
{
    for (int variant = 0; variant < N_VARIANTS; variant++) {
        cpl_model_settings c = variant_of(variant), low = c;
        low.activations = CPL_BF16;
        world *w[3]     = {world_in(CPL_F32, &c, 2, false), world_in(CPL_BF16, &c, 2, false),
                           world_in(CPL_BF16, &low, 2, false)};
        for (int i = 0; i < 3; i++) pass_over(w[i], some_ids, NULL);
        assert_near(w[2]->nll, w[0]->nll, 1e-2 * w[0]->nll);
        assert_true(distance(w[2], w[0]) < 1.5 * distance(w[1], w[0]));
        assert_true(distance(w[2], w[1]) > 0);
        assert_int_equal(w[2]->pass.x[1].dtype, CPL_F32); /* the residual stream */
        for (int i = 0; i < 3; i++) world_gone(w[i]);
    }
}

/* The bits are the same, and all layers share one buffer each for a, b, q and k. */
TEST(norms_made_again)
{
    for (int variant = 0; variant < 2 * N_VARIANTS; variant++) {
        cpl_model_settings c  = variant_of(variant / 2), again;
        c.activations         = variant % 2 ? CPL_BF16 : CPL_F32;
        again                 = c;
        again.recompute_norms = true;
        const int64_t row = 3 * c.d_model + c.d_model / 2, each = c.activations == CPL_BF16 ? 2 : 4;
        world *kept = world_of(&c, 2, false), *made = world_of(&again, 2, true);
        pass_over(kept, some_ids, NULL);
        pass_over(made, some_ids, NULL);
        assert_memory_equal(kept->logits, made->logits, sizeof kept->logits);
        assert_same_gradients(kept, made, 0);
        assert_int_equal(cpl_tensor_arena_bytes(&kept->arena) -
                             cpl_tensor_arena_bytes(&made->arena),
                         (c.n_layers - 1) * T * row * each);
        world_gone(kept);
        world_gone(made);
    }
}

/* Results differ by the order of sums alone: c eps sqrt(terms). */
TEST(one_thread_or_two)
{
    cpl_model_settings c = small_config();
    world *one = world_of(&c, 1, false), *two = world_of(&c, 2, false);
    pass_over(one, some_ids, NULL);
    pass_over(two, some_ids, NULL);
    assert_near(one->nll, two->nll, 1e-6 * two->nll);
    for (int i = 0; i < T * 37; i++)
        assert_near((double)one->logits[i], (double)two->logits[i], 1e-5);
    assert_same_gradients(one, two, 1e-5);
    world_gone(one);
    world_gone(two);
}

TEST(nothing_unset_is_read)
{
    for (int variant = 0; variant < 2 * N_VARIANTS; variant++) {
        cpl_model_settings c = variant_of(variant / 2);
        c.activations        = variant % 2 ? CPL_BF16 : CPL_F32;
        world *plain = world_of(&c, 2, false), *poisoned = world_of(&c, 2, true);
        pass_over(plain, some_ids, NULL);
        pass_over(poisoned, some_ids, NULL);
        assert_near(plain->nll, poisoned->nll, 0);
        assert_memory_equal(plain->logits, poisoned->logits, sizeof plain->logits);
        assert_same_gradients(plain, poisoned, 0);
        world_gone(plain);
        world_gone(poisoned);
    }
}

/* Every token's logits equal the logits of its document alone. */
TEST(documents_apart)
{
    static const int first[4] = {0, 5, S, S + 8}, after[4] = {5, S, S + 8, T};
    cpl_model_settings c = small_config();
    world *w = world_of(&c, 2, false), *alone = world_of(&c, 2, false);
    int32_t doc_start[T];
    for (int d = 0; d < 4; d++)
        for (int i = first[d]; i < after[d]; i++) doc_start[i] = first[d] % S;
    pass_over(w, some_ids, doc_start);
    for (int d = 0; d < 4; d++) {
        int32_t ids[T] = {0};
        int length     = after[d] - first[d];
        memcpy(ids, some_ids + first[d], (size_t)length * sizeof *ids);
        pass_over(alone, ids, NULL); /* positions differ: only distances count */
        for (int i = 0; i < length * 37; i++)
            assert_near((double)w->logits[first[d] * 37 + i], (double)alone->logits[i], 2e-5);
    }
    pass_over(alone, some_ids, NULL);
    assert_true(fabsf(alone->logits[(S - 1) * 37] - w->logits[(S - 1) * 37]) > 1e-3f);
    world_gone(w);
    world_gone(alone);
}

TEST(sequences_do_not_see_each_other)
{
    cpl_model_settings c = small_config();
    world *w = world_of(&c, 2, false), *other = world_of(&c, 2, false);
    int32_t swapped[T];
    memcpy(swapped, some_ids + S, S * sizeof *swapped);
    memcpy(swapped + S, some_ids, S * sizeof *swapped);
    pass_over(w, some_ids, NULL);
    pass_over(other, swapped, NULL);
    for (int i = 0; i < S * 37; i++)
        assert_near((double)w->logits[i], (double)other->logits[S * 37 + i], 1e-5);
    assert_near(w->nll, other->nll, 1e-5 * w->nll);
    assert_same_gradients(w, other, 1e-5);
    world_gone(w);
    world_gone(other);
}

/* The start is a normal distribution cut at three deviations. It depends on the seed alone. */
TEST(same_seed_same_start)
{
    cpl_model_settings c = small_config();
    model_case *a = model_drawn(&c, 3), *b = model_drawn(&c, 3), *other = model_drawn(&c, 4);
    assert_same_weights(a, b, CPL_SAFETENSORS_F32);
    double sum = 0, square = 0, most = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < cpl_params_count(&c); i++) {
        cpl_param p  = cpl_params_at(&c, i);
        cpl_tensor x = seen(&a->be, *cpl_params_tensor(&a->model.master, &p));
        cpl_tensor y = seen(&other->be, *cpl_params_tensor(&other->model.master, &p));
        for (int64_t k = 0; k < cpl_tensor_count(x); k++) {
            double v = (double)cpl_f32(x)[k];
            if (p.init == CPL_INIT_ONES) {
                assert_true(v == 1);
                continue;
            }
            sum += v, square += v * v, count++;
            most = fmax(most, fabs(v));
        }
        if (p.init == CPL_INIT_NORMAL)
            assert_memory_not_equal(x.storage, y.storage, cpl_tensor_bytes(x));
    }
    double deviation = c.init_std * 0.98658; /* a normal distribution cut at three */
    assert_true(most <= 3 * c.init_std && most > 2.8 * c.init_std);
    assert_near(sum / (double)count, 0, 5 * deviation / sqrt((double)count));
    assert_near(sqrt(square / (double)count), deviation, 5 * deviation / sqrt((double)count));
    model_gone(a);
    model_gone(b);
    model_gone(other);
}

/* The layers that a watcher got, in their order, with the tensors of each. */
typedef struct watched {
    cpl_backend *be;
    int64_t layers, counted[8];
    const cpl_moe_kept *kept[8];
} watched;

static void look(void *ctx, int64_t layer, const cpl_moe_kept *kept)
{
    watched *s = ctx;
    assert_int_equal(layer, s->layers);
    assert_true(layer < 8);
    s->kept[layer]          = kept;
    const cpl_tensor counts = seen(s->be, kept->counts);
    for (int64_t e = 0; e < cpl_tensor_count(counts); e++)
        s->counted[layer] += (int64_t)cpl_f32(counts)[e];
    s->layers++;
}

TEST(a_watcher_sees_every_layer)
{
    cpl_model_settings c = small_config();
    world *w             = world_of(&c, 1, false);
    watched s            = {.be = w->be};
    pass_over(w, some_ids, NULL); /* without a watcher */
    w->pass.on_layer = look;
    w->pass.ctx      = &s;
    pass_over(w, some_ids, NULL);
    assert_int_equal(s.layers, c.n_layers);
    for (int64_t l = 0; l < c.n_layers; l++) {
        assert_int_equal(s.counted[l], T * c.top_k);
        assert_ptr_equal(s.kept[l], &w->pass.moe[l]);
    }
    world_gone(w);
}

/* Sixty updates on one batch take the loss from above the entropy of its ids to nearly zero. */
TEST(learns_one_batch)
{
    const cpl_train_settings recipe = {
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0, .clip = 1};
    cpl_model_settings c = small_config();
    c.init_std           = 0.05;
    world *w             = world_of(&c, 1, false);
    for (int step = 0; step < 60; step++) {
        pass_over(w, some_ids, NULL);
        if (step == 0) assert_near(w->nll / (T - B), log(37), 0.3);
        cpl_optimizer_update(&w->run, &w->model, &recipe, gradient_norm(&w->run), 1e-2);
    }
    pass_over(w, some_ids, NULL);
    assert_true(w->nll / (T - B) < 0.05);
    world_gone(w);
}

/* Takes a pass without training, with room for all tokens and for as many selected tokens. */
static void take_forward(cpl_pass *pass, cpl_tensor_arena *arena, cpl_backend *be,
                         const cpl_model_settings *c, cpl_tensor selected)
{
    *arena = cpl_tensor_arena_measure();
    cpl_pass_take(pass, arena, c, B, S, false, false);
    cpl_pass_select(pass, arena, c, selected);
    assert_ok(cpl_tensor_arena_init(arena, be, arena, "pass"));
    cpl_pass_take(pass, arena, c, B, S, false, false);
    cpl_pass_select(pass, arena, c, selected);
}

/* Selected tokens, in any order, have the logits of the whole pass. */
TEST(tokens_asked_for)
{
    static const int32_t some[] = {T - 1, 0, 7, 7};
    for (int aoe = 0; aoe < 2; aoe++) {
        cpl_model_settings c = small_config();
        c.router             = aoe ? CPL_ROUTER_AOE : CPL_ROUTER_SOFTMAX;
        c.aoe_rank           = aoe ? 3 : c.aoe_rank;
        c.n_shared           = 1;
        c.d_latent           = aoe ? 0 : 7;
        world *w             = world_of(&c, 2, true);
        pass_over(w, some_ids, NULL);
        for (int count = 0; count <= 4; count++) {
            cpl_pass pass;
            cpl_tensor_arena arena;
            float logits[37];
            const cpl_tensor ids =
                mirrored(w->be, cpl_tensor_1d((void *)(uintptr_t)some_ids, CPL_I32, T));
            const cpl_tensor chosen =
                mirrored(w->be, cpl_tensor_1d((void *)(uintptr_t)some, CPL_I32, 4));
            const cpl_tensor of_one = mirrored(w->be, cpl_tensor_2d(logits, CPL_F32, 1, 37));
            take_forward(&pass, &arena, w->be, &c, cpl_tensor_range(chosen, 0, count));
            cpl_model_forward(&w->model, &pass, ids, cpl_tensor_none(), NULL);
            assert_int_equal(cpl_tensor_rows(pass.final), count);
            for (int first = 0; first < count; first++) {
                cpl_model_logits(&w->model, &pass, of_one, first);
                mirrors_read(w->be);
                for (int v = 0; v < 37; v++)
                    assert_near((double)logits[v], (double)w->logits[some[first] * 37 + v], 1e-6);
            }
            mirrors_end(w->be);
            cpl_tensor_arena_free(&arena);
        }
        world_gone(w);
    }
}
