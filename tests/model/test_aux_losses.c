/* test_aux_losses.c - load balancing and z-loss of one layer against the reference, with their
 * gradients; balancing by biases. */
#include "model/aux_losses.h"

#include <math.h>

#include "base/arena.h"
#include "check.h"
#include "checkpoint/safetensors.h"
#include "io/json.h"
#include "tensor/backend/backend.h"

enum { LIMIT_DIGITS = 5 }; /* PyTorch in plain f32 stays below 1e-5 in all cases */

static const cpl_routing softmax = {0};

typedef struct routed {
    cpl_tensor logits, probs, lse, expert, weight, counts, mean_prob, z, entropy, dlogits, dweight;
} routed;

static cpl_tensor take(cpl_dtype dtype, int64_t rows, int64_t cols)
{
    return cpl_tensor_2d(calloc((size_t)(rows * cols), 4), dtype, rows, cols);
}

static cpl_tensor take1(int64_t count)
{
    return cpl_tensor_1d(calloc((size_t)count, 4), CPL_F32, count);
}

static routed routed_of(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n,
                        int64_t k)
{
    routed r = {take(CPL_F32, t, n),
                take(CPL_F32, t, n),
                take1(t),
                take(CPL_I32, t, k),
                take(CPL_F32, t, k),
                take1(n),
                take1(n),
                take1(1),
                take1(1),
                take(CPL_F32, t, n),
                take(CPL_F32, t, k)};
    assert_ok(cpl_safetensors_read_f32(file, cpl_safetensors_find(file, "logits"),
                                       cpl_f32(r.logits), 0, t * n));
    be->ops->route(be, r.probs, r.lse, r.expert, r.weight, r.logits, softmax);
    be->ops->route_stats(be, r.counts, r.mean_prob, r.z, r.entropy, r.probs, r.lse, r.expert,
                         false);
    return r;
}

static void routed_free(routed *r)
{
    cpl_tensor *all = &r->logits;
    for (size_t i = 0; i < sizeof *r / sizeof *all; i++) free(all[i].data);
}

static void compare(const cpl_safetensors *file, const char *name, const float *got, int64_t count)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    double difference = 0, reference = 0;
    float *want = malloc((size_t)count * 4);
    assert_non_null(entry);
    assert_ok(cpl_safetensors_read_f32(file, entry, want, 0, count));
    for (int64_t i = 0; i < count; i++) {
        difference += pow((double)got[i] - (double)want[i], 2);
        reference += pow((double)want[i], 2);
    }
    free(want);
    double limit = sqrt(reference) < 1e-10 ? 1e-6 : pow(10, -LIMIT_DIGITS) * sqrt(reference);
    assert_near(sqrt(difference), 0, limit);
}

static void one_balance(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n,
                        int64_t k)
{
    routed r   = routed_of(be, file, t, n, k);
    double dot = 0;
    be->ops->dot(be, cpl_tensor_1d(&dot, CPL_F64, 1), r.counts, r.mean_prob);
    float loss       = (float)cpl_aux_balance_loss(dot, n, t, k);
    const double two = 2; /* any weight */
    compare(file, "loss", &loss, 1);
    be->ops->route_backward(be, r.dlogits, r.dweight, r.probs, r.lse, r.expert, r.weight, r.counts,
                            cpl_aux_balance_scale(two, n, t, k), 0, softmax);
    for (int64_t i = 0; i < t * n; i++) cpl_f32(r.dlogits)[i] /= 2;
    compare(file, "dlogits", cpl_f32(r.dlogits), t * n);
    routed_free(&r);
}

static void one_z(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n, int64_t k)
{
    for (int form = 0; form < 2; form++) {
        routed r         = routed_of(be, file, t, n, k);
        cpl_z_settings s = {.form = form ? CPL_Z_OVER_K : CPL_Z_MEAN};
        double factor    = cpl_aux_z_factor(&s, k);
        float loss       = (float)(factor * (double)*cpl_f32(r.z));
        compare(file, form ? "loss.over_k" : "loss.mean", &loss, 1);
        be->ops->route_backward(be, r.dlogits, r.dweight, r.probs, r.lse, r.expert, r.weight,
                                r.counts, 0, (float)(factor / (double)t), softmax);
        compare(file, form ? "dlogits.over_k" : "dlogits.mean", cpl_f32(r.dlogits), t * n);
        routed_free(&r);
    }
}

static void as_the_reference(void **state)
{
    (void)state;
    json_t *cases = NULL, *one;
    size_t i;
    int seen = 0;
    cpl_backend be;
    cpl_backend_cpu(&be, CPL_F32, 2);
    assert_ok(cpl_json_load(&cases, golden_path("losses/cases.json")));
    json_array_foreach(cases, i, one)
    {
        char path[200];
        const char *kind      = json_string_value(json_object_get(one, "kind"));
        int64_t t             = json_integer_value(json_object_get(one, "T"));
        int64_t n             = json_integer_value(json_object_get(one, "n"));
        int64_t k             = json_integer_value(json_object_get(one, "K"));
        cpl_safetensors *file = NULL;
        cpl_work work         = {.n_tokens = t, .n_experts = n, .top_k = k, .training = true};
        if (strcmp(kind, "orth") == 0) continue;
        assert_ok(cpl_backend_reserve(&be, &work));
        snprintf(path, sizeof path, "losses/%s.safetensors",
                 json_string_value(json_object_get(one, "name")));
        assert_ok(cpl_safetensors_open(&file, golden_path(path)));
        (strcmp(kind, "z") == 0 ? one_z : one_balance)(&be, file, t, n, k);
        cpl_safetensors_close(file);
        seen++;
    }
    assert_true(seen >= 8);
    json_decref(cases);
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

/* Logits that favour the first experts, the same preference in every batch, other noise. */
static void skewed(cpl_tensor logits, uint64_t step)
{
    const cpl_rng_key key = {.seed = 5, .stream = CPL_STREAM_TEST, .step = step};
    const int64_t t = logits.shape[0], n = logits.shape[1];
    for (int64_t i = 0; i < t * n; i++) {
        double noise       = (double)cpl_rng_u32(&key, (uint64_t)i) / 0x1p32 - 0.5;
        cpl_f32(logits)[i] = (float)(1.5 - 0.35 * (double)(i % n) + noise);
    }
}

/* A router that sends nearly all to a few experts is evened out by the biases alone, while what the
 * chosen weigh stays a matter of their scores. */
static void biases_even_out_a_skewed_router(void **state)
{
    (void)state;
    enum { TOKENS = 256, N = 16, K = 2, STEPS = 1500, LAST = 50 };
    cpl_backend be;
    cpl_work work     = {.n_tokens = TOKENS, .n_experts = N, .top_k = K, .training = true};
    cpl_tensor logits = take(CPL_F32, TOKENS, N), probs = take(CPL_F32, TOKENS, N);
    cpl_tensor lse = take1(TOKENS), expert = take(CPL_I32, TOKENS, K);
    cpl_tensor weight = take(CPL_F32, TOKENS, K), counts = take1(N), mean = take1(N);
    cpl_tensor z = take1(1), entropy = take1(1);
    cpl_routing how = {.sigmoid = true, .bias = take1(N)};
    float late[N]   = {0}; /* loads of the last steps together: of one alone chance has a part */
    double first    = 0;
    cpl_backend_cpu(&be, CPL_F32, 2);
    assert_ok(cpl_backend_reserve(&be, &work));
    for (int step = 0; step < STEPS; step++) {
        skewed(logits, (uint64_t)step);
        be.ops->route(&be, probs, lse, expert, weight, logits, how);
        be.ops->route_stats(&be, counts, mean, z, entropy, probs, lse, expert, true);
        be.ops->balance_bias(&be, how.bias, counts, 1e-3F);
        if (step == 0) first = busiest(cpl_f32(counts), N);
        for (int64_t e = 0; e < N && step >= STEPS - LAST; e++) late[e] += cpl_f32(counts)[e];
    }
    assert_true(first > 4); /* two of sixteen have more than half of all */
    assert_true(busiest(late, N) < 1.1);
    for (int64_t i = 0; i < TOKENS * K; i++)
        assert_near((double)cpl_f32(weight)[i],
                    (double)cpl_f32(probs)[i / K * N + cpl_i32(expert)[i]], 0);
    const cpl_tensor all[] = {logits, probs, lse, expert,  weight,
                              counts, mean,  z,   entropy, how.bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i].data);
    cpl_backend_free(&be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_reference),
        cmocka_unit_test(biases_even_out_a_skewed_router),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
