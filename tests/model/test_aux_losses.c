/* test_aux_losses.c - load balancing and z-loss of one layer against the reference, with their
 * gradients, and balancing by biases. */
#include "model/aux_losses.h"

#include "io/json.h"
#include "support/mirror.h"
#include "tensor/golden.h"

static const double LIMIT = 1e-5; /* PyTorch in plain f32 stays below it in all cases */

static const cpl_routing softmax = {0};

/* One layer's routing in the test's memory. Operations get `mirrored` tensors. */
typedef struct routed {
    cpl_tensor logits, probs, lse, expert, weight, counts, mean_prob, z, entropy, dlogits, dweight;
} routed;

static routed mirrored_routed(cpl_backend *be, const routed *r)
{
    routed m        = *r;
    cpl_tensor *all = &m.logits;
    for (size_t i = 0; i < sizeof m / sizeof *all; i++) all[i] = mirrored(be, all[i]);
    return m;
}

/* Returns a routing whose tensors last until release_all. */
static routed new_routed(int64_t t, int64_t n, int64_t k)
{
    return (routed){.logits    = new_tensor(CPL_F32, t, n),
                    .probs     = new_tensor(CPL_F32, t, n),
                    .lse       = new_1d(CPL_F32, t),
                    .expert    = new_tensor(CPL_I32, t, k),
                    .weight    = new_tensor(CPL_F32, t, k),
                    .counts    = new_1d(CPL_F32, n),
                    .mean_prob = new_1d(CPL_F32, n),
                    .z         = new_1d(CPL_F32, 1),
                    .entropy   = new_1d(CPL_F32, 1),
                    .dlogits   = new_tensor(CPL_F32, t, n),
                    .dweight   = new_tensor(CPL_F32, t, k)};
}

static routed routed_by(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n,
                        int64_t k, cpl_routing how)
{
    routed r       = new_routed(t, n, k);
    r.logits       = golden_tensor(file, "logits");
    const routed m = mirrored_routed(be, &r);
    be->ops->route(be, m.probs, m.lse, m.expert, m.weight, m.logits, how);
    be->ops->route_stats(be, m.counts, m.mean_prob, m.z, m.entropy, m.probs, m.lse, m.expert,
                         false);
    mirrors_read(be);
    return r;
}

static routed routed_of(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n,
                        int64_t k)
{
    return routed_by(be, file, t, n, k, softmax);
}

/* Compares relative to the reference's norm, or absolutely (1e-6) if that is below 1e-10. */
static void compare(const cpl_safetensors *file, const char *name, cpl_tensor got)
{
    const double *want = golden_doubles(file, name);
    double squares     = 0;
    for (int64_t i = 0; i < cpl_tensor_count(got); i++) squares += want[i] * want[i];
    assert_close(name, got, want, LIMIT, sqrt(squares) < 1e-10 ? 1e-6 : 0);
}

static void one_balance(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n,
                        int64_t k)
{
    const routed r = routed_of(be, file, t, n, k), m = mirrored_routed(be, &r);
    double dot = 0;
    be->ops->dot(be, mirrored(be, cpl_tensor_1d(&dot, CPL_F64, 1)), m.counts, m.mean_prob);
    mirrors_read(be);
    float loss       = (float)cpl_aux_balance_loss(dot, n, t, k);
    const double two = 2; /* any weight */
    compare(file, "loss", cpl_tensor_1d(&loss, CPL_F32, 1));
    compare(file, "counts", r.counts);
    compare(file, "P", r.mean_prob);
    be->ops->route_backward(be, m.dlogits, m.dweight, m.probs, m.lse, m.expert, m.weight, m.counts,
                            cpl_aux_balance_scale(two, n, t, k), 0, softmax);
    mirrors_read(be);
    for (int64_t i = 0; i < t * n; i++) cpl_f32(r.dlogits)[i] /= 2;
    compare(file, "dlogits", r.dlogits);
    mirrors_end(be);
}

static void one_z(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n, int64_t k)
{
    for (int form = 0; form < 2; form++) {
        const routed r = routed_of(be, file, t, n, k), m = mirrored_routed(be, &r);
        cpl_z_settings s = {.form = form ? CPL_Z_OVER_K : CPL_Z_MEAN};
        double factor    = cpl_aux_z_factor(&s, k);
        float loss       = (float)(factor * (double)*cpl_f32(r.z));
        compare(file, form ? "loss.over_k" : "loss.mean", cpl_tensor_1d(&loss, CPL_F32, 1));
        be->ops->route_backward(be, m.dlogits, m.dweight, m.probs, m.lse, m.expert, m.weight,
                                m.counts, 0, (float)(factor / (double)t), softmax);
        mirrors_read(be);
        compare(file, form ? "dlogits.over_k" : "dlogits.mean", r.dlogits);
        mirrors_end(be);
    }
}

TEST(as_the_reference)
{
    json_t *cases = NULL, *one;
    size_t i;
    int seen = 0;
    cpl_backend be;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 2));
    assert_ok(cpl_json_load(&cases, golden_path("losses/cases.json")));
    json_array_foreach(cases, i, one)
    {
        char path[200];
        const char *kind = json_string_value(json_object_get(one, "kind"));
        int64_t t        = json_integer_value(json_object_get(one, "T"));
        int64_t n        = json_integer_value(json_object_get(one, "n"));
        int64_t k        = json_integer_value(json_object_get(one, "K"));
        cpl_work work    = {.n_tokens = t, .n_experts = n, .top_k = k, .training = true};
        if (strcmp(kind, "orth") == 0) continue;
        assert_ok(cpl_backend_reserve(&be, &work));
        snprintf(path, sizeof path, "losses/%s.safetensors",
                 json_string_value(json_object_get(one, "name")));
        cpl_safetensors *file = golden_open(path);
        (strcmp(kind, "z") == 0 ? one_z : one_balance)(&be, file, t, n, k);
        cpl_safetensors_close(file);
        seen++;
    }
    assert_true(seen >= 8);
    json_decref(cases);
    cpl_backend_free(&be);
}

TEST(a_centred_z_loss_as_the_reference)
{
    const int64_t t = 12, n = 8, k = 2;
    const cpl_routing how = {.z_centred = true};
    cpl_work work         = {.n_tokens = t, .n_experts = n, .top_k = k, .training = true};
    cpl_safetensors *file = golden_open("losses/z-centred.safetensors");
    cpl_backend be;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 2));
    assert_ok(cpl_backend_reserve(&be, &work));
    const routed r = routed_by(&be, file, t, n, k, how), m = mirrored_routed(&be, &r);
    compare(file, "loss", r.z);
    be.ops->route_backward(&be, m.dlogits, m.dweight, m.probs, m.lse, m.expert, m.weight, m.counts,
                           0, 1.0f / (float)t, how);
    mirrors_read(&be);
    compare(file, "dlogits", r.dlogits);
    mirrors_end(&be);
    cpl_safetensors_close(file);
    cpl_backend_free(&be);
}

/* ---- balancing by biases ---- */

static double busiest(const float *counts, int64_t n)
{
    double most = 0, all = 0;
    for (int64_t e = 0; e < n; e++) {
        most = fmax(most, (double)counts[e]);
        all += (double)counts[e];
    }
    return most * (double)n / all;
}

/* Sets logits that favour the first experts, equally in every batch, with other noise. */
static void skewed(cpl_tensor logits, uint64_t step)
{
    const cpl_rng_key key = {.seed = 5, .stream = CPL_STREAM_TEST, .step = step};
    const int64_t t = logits.shape[0], n = logits.shape[1];
    for (int64_t i = 0; i < t * n; i++) {
        double noise       = (double)cpl_rng_u32(&key, (uint64_t)i) / 0x1p32 - 0.5;
        cpl_f32(logits)[i] = (float)(1.5 - 0.35 * (double)(i % n) + noise);
    }
}

/* A router sends nearly all tokens to a few experts. The biases alone even it out, while the
 * weights of the chosen experts depend on the scores alone. */
TEST(biases_even_out_a_skewed_router)
{
    enum { TOKENS = 256, N = 16, K = 2, STEPS = 1500, LAST = 50 };
    cpl_backend be;
    cpl_work work = {.n_tokens = TOKENS, .n_experts = N, .top_k = K, .training = true};
    routed r      = new_routed(TOKENS, N, K);
    float bias[N] = {0};
    float late[N] = {0}; /* loads of the last steps together: a single load has a part of chance */
    double first  = 0;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_F32, 2));
    assert_ok(cpl_backend_reserve(&be, &work));
    const routed m  = mirrored_routed(&be, &r);
    cpl_routing how = {.sigmoid = true, .bias = mirrored(&be, cpl_tensor_1d(bias, CPL_F32, N))};
    for (int step = 0; step < STEPS; step++) {
        skewed(r.logits, (uint64_t)step);
        be.ops->put(&be, m.logits, r.logits.storage);
        be.ops->route(&be, m.probs, m.lse, m.expert, m.weight, m.logits, how);
        be.ops->route_stats(&be, m.counts, m.mean_prob, m.z, m.entropy, m.probs, m.lse, m.expert,
                            true);
        be.ops->balance_bias(&be, how.bias, m.counts, 1e-3F);
        const cpl_tensor counts = seen(&be, m.counts);
        if (step == 0) first = busiest(cpl_f32(counts), N);
        for (int64_t e = 0; e < N && step >= STEPS - LAST; e++) late[e] += cpl_f32(counts)[e];
    }
    mirrors_read(&be);
    assert_true(first > 4); /* two of sixteen experts have more than half of all loads */
    assert_true(busiest(late, N) < 1.1);
    for (int64_t i = 0; i < TOKENS * K; i++)
        assert_near((double)cpl_f32(r.weight)[i],
                    (double)cpl_f32(r.probs)[i / K * N + cpl_i32(r.expert)[i]], 0);
    mirrors_end(&be);
    cpl_backend_free(&be);
}
