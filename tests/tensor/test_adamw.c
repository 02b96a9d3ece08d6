/* One AdamW step after another, against the reference values and the plain formula in double. */
#include "tensor/golden.h"

static const double GOLDEN = 1e-4;

static cpl_backend *backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads, (cpl_work){0});
}

static const double BETA1 = 0.9, BETA2 = 0.95, EPS = 1e-8, DECAY = 0.1;

/* Makes step s = 1, 2, ... */
static void step(cpl_backend *be, cpl_tensor p, cpl_tensor m, cpl_tensor v, cpl_tensor copy,
                 cpl_tensor grad, double coef, double lr, int s)
{
    be->ops->adamw(be, p, m, v, copy, grad, (float)coef, (float)lr, (float)DECAY, (float)BETA1,
                   (float)BETA2, (float)EPS, 1 - pow(BETA1, s), 1 - pow(BETA2, s));
}

/* ---- reference values ---- */

enum { STEPS = 10 };

static double norm(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static void assert_step(const cpl_safetensors *file, int k, const char *what, cpl_tensor got, int s,
                        const double *start)
{
    char name[64];
    snprintf(name, sizeof name, "%s_after.%d", what, k);
    const int64_t count = cpl_tensor_count(got);
    double *want        = golden_doubles(file, name) + (s - 1) * count;
    cpl_tensor moved    = copy_of(got);
    for (int64_t i = 0; i < count; i++) {
        cpl_f32(moved)[i] = (float)((double)cpl_f32(got)[i] - start[i]);
        want[i] -= start[i];
    }
    /* each of s steps rounds every parameter once */
    assert_close(name, moved, want, GOLDEN, s * (double)FLT_EPSILON / 2 * norm(start, count));
}

static void check_tensor(const cpl_safetensors *file, int k)
{
    char param[32], grads[32];
    snprintf(param, sizeof param, "param.%d", k);
    snprintf(grads, sizeof grads, "grad.%d", k);
    cpl_backend *be = backend(2);
    cpl_tensor p = golden_tensor(file, param), m = copy_of(p), v = copy_of(p), none = {0};
    cpl_tensor all      = golden_tensor(file, grads);
    const double *start = doubles_of(p), *zeros = new_doubles(cpl_tensor_count(p));
    const double *lr = golden_doubles(file, "lr"), *coef = golden_doubles(file, "coef");
    be->ops->fill(be, m, 0);
    be->ops->fill(be, v, 0);
    for (int s = 1; s <= STEPS; s++) {
        cpl_tensor grad = p;
        grad.storage    = cpl_f32(all) + (s - 1) * cpl_tensor_count(p);
        step(be, p, m, v, none, grad, coef[s - 1], lr[s - 1], s);
        assert_step(file, k, "param", p, s, start);
        assert_step(file, k, "m", m, s, zeros);
        assert_step(file, k, "v", v, s, zeros);
    }
}

static void check_file(const char *name, int n_tensors)
{
    cpl_safetensors *file = golden_open(name);
    for (int k = 0; k < n_tensors; k++) check_tensor(file, k);
    cpl_safetensors_close(file);
}

TEST(test_golden)
{
    check_file("optim/adamw-constant.safetensors", 3);
    check_file("optim/adamw-schedule.safetensors", 1);
}

/* ---- the formula ---- */

static void check_count(int64_t count)
{
    cpl_backend *be = backend(3);
    cpl_tensor p = normal_1d(count, 1), m = normal_1d(count, 0.1f), v = normal_1d(count, 0.1f);
    cpl_tensor grad = normal_1d(count, 2), copy = new_1d(CPL_BF16, count), before = copy_of(p);
    for (int64_t i = 0; i < count; i++) cpl_f32(v)[i] = fabsf(cpl_f32(v)[i]);
    double *want_m = doubles_of(m), *want_v = doubles_of(v), *want = new_doubles(count);
    for (int64_t i = 0; i < count; i++) {
        double g = 0.5 * (double)cpl_f32(grad)[i], start = cpl_f32(p)[i];
        want_m[i]    = BETA1 * want_m[i] + (1 - BETA1) * g;
        want_v[i]    = BETA2 * want_v[i] + (1 - BETA2) * g * g;
        double m_hat = want_m[i] / (1 - pow(BETA1, 7)), v_hat = want_v[i] / (1 - pow(BETA2, 7));
        want[i] = start * (1 - 0.01 * DECAY) - 0.01 * m_hat / (sqrt(v_hat) + EPS);
    }
    step(be, p, m, v, copy, grad, 0.5, 0.01, 7);
    assert_close("m", m, want_m, 1e-6, 0);
    assert_close("v", v, want_v, 1e-6, 0);
    assert_close("p", p, want, 1e-6, 0);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(((uint16_t *)copy.storage)[i], cpl_bf16_from_f32(cpl_f32(p)[i]));
        assert_true(cpl_f32(p)[i] != cpl_f32(before)[i]);
    }
}

TEST(test_formula)
{
    static const int64_t counts[] = {0, 1, 1023, 1025, 50001};
    for (int k = 0; k < 5; k++, release_all(state)) check_count(counts[k]);
}
