/* test_balance.c - load balancing and z-loss of one layer against the reference, with their
 * gradients. */
#include "model/balance.h"

#include <math.h>

#include "base/arena.h"
#include "check.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "tensor/backend.h"

enum { LIMIT_DIGITS = 5 }; /* plain f32 stays below 1e-5 everywhere (golden README) */

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
    routed r         = routed_of(be, file, t, n, k);
    float loss       = (float)cpl_balance_loss(be, r.counts, r.mean_prob, t, k);
    const double two = 2; /* any weight */
    compare(file, "loss", &loss, 1);
    be->ops->route_backward(be, r.dlogits, r.dweight, r.probs, r.lse, r.expert, r.weight, r.counts,
                            cpl_balance_scale(two, n, t, k), 0, softmax);
    for (int64_t i = 0; i < t * n; i++) cpl_f32(r.dlogits)[i] /= 2;
    compare(file, "dlogits", cpl_f32(r.dlogits), t * n);
    routed_free(&r);
}

static void one_z(cpl_backend *be, const cpl_safetensors *file, int64_t t, int64_t n, int64_t k)
{
    for (int form = 0; form < 2; form++) {
        routed r         = routed_of(be, file, t, n, k);
        cpl_z_settings s = {.form = form ? CPL_Z_OVER_K : CPL_Z_MEAN};
        double factor    = cpl_z_factor(&s, k);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
