/* test_optimizer.c - AdamW over a whole model against the formula in double, clipping, skipped
 * steps, and the BF16 copies. The learning rate is compared with the reference and at its corners.
 * (One tensor against PyTorch: tests/tensor/test_adamw.c.) */
#include "train/norm.h"

#include "store/model_case.h"
#include "support/mirror.h"

static const cpl_train_settings recipe =
    LIST(.lr = 1e-2, .router_lr = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
         .clip = 1);

/* Returns a gradient that depends on the place alone. */
static float drawn(int64_t tensor, int64_t i, int64_t step)
{
    uint64_t x = (uint64_t)(tensor * 1000003 + i * 7919 + step * 104729) * 0x9E3779B97F4A7C15u;
    return (float)((double)(x >> 40) / (double)(1 << 24) - 0.5);
}

static void draw_gradients(cpl_optimizer *o, const cpl_model_settings *c, int64_t step,
                           double scale)
{
    for (int64_t t = 0; t < cpl_params_count(c); t++) {
        cpl_param p  = cpl_params_at(c, t);
        cpl_tensor g = *cpl_params_tensor(&o->grads, &p);
        float *all   = calloc((size_t)cpl_tensor_count(g), sizeof *all);
        for (int64_t i = 0; i < cpl_tensor_count(g); i++) all[i] = (float)scale * drawn(t, i, step);
        o->share.be->ops->put(o->share.be, g, all);
        free(all);
    }
}

static double squares(cpl_optimizer *o, const cpl_model_settings *c)
{
    double sum = 0;
    for (int64_t t = 0; t < cpl_params_count(c); t++) {
        cpl_param p  = cpl_params_at(c, t);
        cpl_tensor g = seen(o->share.be, *cpl_params_tensor(&o->grads, &p));
        for (int64_t i = 0; i < cpl_tensor_count(g); i++)
            sum += (double)cpl_f32(g)[i] * (double)cpl_f32(g)[i];
    }
    return sum;
}

static float second(cpl_backend *be, cpl_tensor t)
{
    return cpl_f32(seen(be, t))[1];
}

/* Compares every tensor's first numbers with the formula in double, in clipped and other steps. */
static void check_formula(double router_lr)
{
    enum { STEPS = 6, MOST = 64 };
    static const double scales[STEPS] = {3, 1e-3, 0.1, 1e-12, 50, 1};
    double w[MOST], m[MOST] = {0}, v[MOST] = {0};
    cpl_train_settings s = recipe;
    s.router_lr          = router_lr;
    cpl_model_settings c = small_config();
    model_case *mc       = model_drawn(&c, 1);
    cpl_optimizer o;
    int64_t count = cpl_params_count(&c);
    assert_true(count <= MOST);
    assert_ok(cpl_optimizer_init(&o, &mc->be, &c, NULL, false));
    for (int64_t t = 0; t < count; t++) {
        cpl_param p = cpl_params_at(&c, t);
        w[t]        = (double)second(o.share.be, *cpl_params_tensor(&mc->model.master, &p));
    }
    for (int step = 1; step <= STEPS; step++) {
        draw_gradients(&o, &c, step, scales[step - 1]);
        double norm = gradient_norm(&o);
        assert_near(norm, sqrt(squares(&o, &c)), 1e-6 * norm);
        double coef = fmin(1, 1 / (norm + 1e-6));
        for (int64_t t = 0; t < count; t++) {
            cpl_param p     = cpl_params_at(&c, t);
            double g        = coef * (double)second(o.share.be, *cpl_params_tensor(&o.grads, &p));
            m[t]            = 0.9 * m[t] + 0.1 * g;
            v[t]            = 0.95 * v[t] + 0.05 * g * g;
            const double lr = 1e-2 * (strcmp(p.field, "router") == 0 ? router_lr : 1);
            w[t] -= lr * 0.1 * w[t]; /* decay on everything, norms and embeddings too */
            w[t] -= lr * m[t] / (1 - pow(0.9, step)) / (sqrt(v[t] / (1 - pow(0.95, step))) + 1e-8);
        }
        cpl_optimizer_update(&o, &mc->model, &s, norm, 1e-2);
        for (int64_t t = 0; t < count; t++) {
            cpl_param p = cpl_params_at(&c, t);
            float got   = second(o.share.be, *cpl_params_tensor(&mc->model.master, &p));
            assert_near((double)got, w[t], 1e-6 * (fabs(w[t]) + 1e-1));
        }
    }
    assert_int_equal(o.count, STEPS);
    cpl_optimizer_free(&o);
    model_gone(mc);
}

TEST(as_the_formula)
{
    check_formula(1);
    check_formula(0.25);
    check_formula(0);
}

TEST(zero_and_not_finite)
{
    cpl_model_settings c = small_config();
    model_case *mc       = model_drawn(&c, 1);
    cpl_optimizer o;
    assert_ok(cpl_optimizer_init(&o, &mc->be, &c, NULL, false));
    assert_true(gradient_norm(&o) == 0);
    draw_gradients(&o, &c, 1, 1);
    cpl_optimizer_zero(&o, &mc->model);
    assert_true(squares(&o, &c) == 0);
    const cpl_tensor one = cpl_tensor_numbers(o.grads.head, 5, 1);
    o.share.be->ops->fill(o.share.be, one, INFINITY);
    assert_false(isfinite(gradient_norm(&o)));
    o.share.be->ops->fill(o.share.be, one, NAN);
    assert_false(isfinite(gradient_norm(&o)));
    o.share.be->ops->fill(o.share.be, one, 3e38f); /* the square exceeds F32, the norm does not */
    assert_near(gradient_norm(&o), 3e38, 1e32);
    assert_int_equal(o.count, 0);
    cpl_optimizer_free(&o);
    model_gone(mc);
}

TEST(copies_follow)
{
    cpl_model_settings c = small_config();
    cpl_backend be;
    cpl_model model, fresh;
    cpl_optimizer o;
    assert_ok(cpl_backend_open(&be, "cpu", CPL_BF16, 2));
    assert_ok(cpl_model_init(&model, &be, &c, 16));
    assert_ok(cpl_model_init(&fresh, &be, &c, 16));
    assert_ok(cpl_optimizer_init(&o, &be, &c, NULL, false));
    cpl_model_randomize(&model, 5);
    draw_gradients(&o, &c, 1, 1);
    cpl_optimizer_update(&o, &model, &recipe, gradient_norm(&o), 1e-2);
    for (int64_t t = 0; t < cpl_params_count(&c); t++) {
        cpl_param p   = cpl_params_at(&c, t);
        cpl_tensor to = *cpl_params_tensor(&fresh.master, &p),
                   w  = *cpl_params_tensor(&model.master, &p);
        be.ops->copy(&be, to, w);
    }
    cpl_model_refresh(&fresh);
    for (int64_t t = 0; t < cpl_params_count(&c); t++) {
        cpl_param p  = cpl_params_at(&c, t);
        cpl_tensor a = seen(&be, *cpl_params_tensor(&model.compute, &p)),
                   b = seen(&be, *cpl_params_tensor(&fresh.compute, &p));
        assert_int_equal(a.dtype, b.dtype);
        assert_memory_equal(a.storage, b.storage, cpl_tensor_bytes(b));
    }
    cpl_optimizer_free(&o);
    cpl_model_free(&model);
    cpl_model_free(&fresh);
    cpl_backend_free(&be);
}

TEST(learning_rate_as_the_reference)
{
    json_t *cases = NULL, *one, *pair;
    size_t i, k;
    int64_t seen = 0;
    assert_ok(cpl_json_load(&cases, golden_path("optim/schedule.json")));
    json_array_foreach(cases, i, one)
    {
        cpl_train_settings s = {.lr     = json_number_value(json_object_get(one, "peak")),
                                .lr_min = json_number_value(json_object_get(one, "min"))};
        s.warmup_steps       = json_integer_value(json_object_get(one, "warmup"));
        s.steps              = json_integer_value(json_object_get(one, "total"));
        json_array_foreach(json_object_get(one, "step_lr"), k, pair)
        {
            int64_t step = json_integer_value(json_array_get(pair, 0));
            double want  = json_number_value(json_array_get(pair, 1));
            assert_near(cpl_optimizer_lr(&s, step), want, 1e-14);
            seen++;
        }
    }
    assert_true(seen > 100);
    json_decref(cases);
}

TEST(learning_rate_at_its_corners)
{
    cpl_train_settings s = {.lr = 1, .lr_min = NAN, .warmup_steps = 0, .steps = 1};
    assert_near(cpl_optimizer_lr(&s, 1), 0.1, 0); /* the default is a tenth of the peak */
    s.steps = 1000000;
    assert_true(cpl_optimizer_lr(&s, 1) < 1 && cpl_optimizer_lr(&s, 1) > 0.999999);
    assert_near(cpl_optimizer_lr(&s, 500000), 0.55, 1e-12);
    assert_near(cpl_optimizer_lr(&s, 1000000), 0.1, 0);
    assert_near(cpl_optimizer_lr(&s, 2000000), 0.1, 0);
    s.warmup_steps = 999999;
    assert_near(cpl_optimizer_lr(&s, 999999), 1, 0);
    assert_near(cpl_optimizer_lr(&s, 1000000), 0.1, 0);
    s.lr_min = 0;
    assert_near(cpl_optimizer_lr(&s, 1000000), 0, 0);
    for (int64_t step = 2; step < 999999; step += 991)
        assert_true(cpl_optimizer_lr(&s, step) > cpl_optimizer_lr(&s, step - 1));
}
