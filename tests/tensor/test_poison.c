/* The poisoning backend itself: the memory it poisons, and its stops at forbidden calls (ops.h). */
#include <signal.h>
#include <sys/wait.h>

#include "base/arena.h"
#include "tensor/ops_check.h"
#include "tensor/poison/poison.h"

/* ---- poison, as an inner backend that does nothing receives it ---- */

static size_t some_scratch(const cpl_backend *be, const cpl_work *work)
{
    (void)be, (void)work;
    return 256;
}

static bool all_nan(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isnan(x[i])) return false;
    return true;
}

static void lazy_rms_norm(cpl_backend *be, cpl_tensor y, cpl_tensor inv, cpl_tensor x,
                          cpl_tensor weight, float eps)
{
    (void)weight, (void)eps;
    assert_true(all_nan(cpl_f32(y), cpl_tensor_count(y)));
    assert_true(all_nan(cpl_f32(inv), cpl_tensor_count(inv)));
    assert_true(all_nan(be->scratch, 64));
    assert_false(isnan(cpl_f32(x)[0]));
    be->failure = CPL_ERR_MEMORY;
}

static void lazy_clamp(cpl_backend *be, cpl_tensor y, cpl_tensor x, float limit)
{
    (void)be, (void)limit;
    assert_int_equal(isnan(cpl_f32(y)[0]) != 0, y.storage != x.storage);
}

static void lazy_dispatch(cpl_backend *be, cpl_dispatch plan, cpl_tensor expert, int64_t n_experts)
{
    (void)be, (void)plan, (void)expert, (void)n_experts;
}

static void *lazy_take(cpl_backend *be, size_t bytes)
{
    (void)be;
    return cpl_alloc(bytes);
}

static void lazy_give(cpl_backend *be, void *memory)
{
    (void)be;
    cpl_free(memory);
}

static const cpl_ops lazy =
    LIST(.take = lazy_take, .give = lazy_give, .rms_norm = lazy_rms_norm, .clamp = lazy_clamp,
         .dispatch = lazy_dispatch, .scratch_bytes = some_scratch);

static void make_lazy(cpl_backend *poison, cpl_backend *inner)
{
    const cpl_work work = {0};
    *inner              = (cpl_backend){.ops = &lazy, .compute = CPL_F32, .n_threads = 1};
    cpl_backend_poison(poison, inner);
    assert_ok(cpl_backend_reserve(poison, &work));
}

TEST(test_outputs_and_scratch_are_poisoned)
{
    cpl_backend poison, inner;
    cpl_tensor x = normal_2d(3, 5, 1), y = normal_2d(3, 5, 1);
    make_lazy(&poison, &inner);
    poison.ops->rms_norm(&poison, y, normal_1d(3, 1), x, normal_1d(5, 1), 1e-5f);
    assert_int_equal(poison.failure, CPL_ERR_MEMORY); /* the inner backend's failure is copied */
    poison.ops->clamp(&poison, y, x, 1);
    poison.ops->clamp(&poison, x, x, 1); /* in place: no output to poison */
    assert_null(inner.scratch);
    cpl_backend_free(&poison);
}

/* ---- stops ---- */

typedef struct scene {
    cpl_backend *be;
    cpl_tensor x, y, low, ids, table;
} scene;

static void fine(scene *s)
{
    s->be->ops->add(s->be, s->y, s->x, 1);
    s->be->ops->embed(s->be, s->y, s->table, s->ids);
}

static void counts_differ(scene *s)
{
    s->be->ops->add(s->be, s->y, normal_2d(2, 5, 1), 1);
}

static void outputs_overlap_inputs(scene *s)
{
    cpl_tensor next = s->x;
    next.storage    = cpl_f32(s->x) + 1;
    next.shape[0] = s->x.shape[0] = 2;
    s->be->ops->add(s->be, next, s->x, 1);
}

static void id_is_too_large(scene *s)
{
    cpl_i32(s->ids)[2] = 7;
    s->be->ops->embed(s->be, s->y, s->table, s->ids);
}

static void id_is_negative(scene *s)
{
    cpl_i32(s->ids)[0] = -1;
    s->be->ops->embed_backward(s->be, s->table, s->y, s->ids);
}

static void type_is_wrong(scene *s)
{
    sum_of(s->be, s->low);
}

static void output_is_missing(scene *s)
{
    s->be->ops->fill(s->be, cpl_tensor_none(), 1);
}

static void products_do_not_fit(scene *s)
{
    s->be->ops->gemm(s->be, s->y, CPL_AS_IS, s->x, CPL_AS_IS, s->table, 0);
}

static void plan_is_not_made(scene *s)
{
    cpl_backend inner, poison;
    cpl_tensor expert = new_tensor(CPL_I32, 3, 1);
    cpl_dispatch plan = {new_1d(CPL_I32, 3), new_1d(CPL_I32, 3), new_tensor(CPL_I32, 3, 1)};
    (void)s;
    make_lazy(&poison, &inner);
    poison.ops->dispatch(&poison, plan, expert, 2);
}

/* Routes one token to two experts, both chosen. */
static void route_by(scene *s, cpl_routing how)
{
    s->be->ops->route(s->be, new_tensor(CPL_F32, 1, 2), new_1d(CPL_F32, 1),
                      new_tensor(CPL_I32, 1, 2), new_tensor(CPL_F32, 1, 2), normal_2d(1, 2, 1),
                      how);
}

static void bias_fits(scene *s)
{
    route_by(s, (cpl_routing){.sigmoid = true, .bias = normal_1d(2, 1)});
}

static void bias_without_sigmoid(scene *s)
{
    route_by(s, (cpl_routing){.bias = normal_1d(2, 1)});
}

static void bias_is_too_short(scene *s)
{
    route_by(s, (cpl_routing){.sigmoid = true, .bias = normal_1d(1, 1)});
}

static void z_loss_of_sigmoids(scene *s)
{
    cpl_tensor wide = normal_2d(1, 2, 1), expert = new_tensor(CPL_I32, 1, 2);
    s->be->ops->route_backward(s->be, new_tensor(CPL_F32, 1, 2), wide, wide, normal_1d(1, 1),
                               expert, wide, normal_1d(2, 1), 1, 0.5f,
                               (cpl_routing){.sigmoid = true});
}

static void rows_lie_in_their_gradient(scene *s)
{
    orthogonality_of(s->be, s->x, s->x, 1);
}

/* Returns whether the mistake stops the program, tried in a process of its own without output. */
static bool stops(void (*mistake)(scene *s), scene *s)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        mistake(s);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST(test_mistakes_are_stopped)
{
    cpl_backend inner, poison;
    const cpl_work work = whole_work((cpl_work){0});
    scene s = LIST(&poison, normal_2d(3, 5, 1), normal_2d(3, 5, 1), new_tensor(CPL_BF16, 3, 5),
                   new_1d(CPL_I32, 3), normal_2d(7, 5, 1));
    cpl_backend_cpu(&inner, CPL_F32, 1);
    cpl_backend_poison(&poison, &inner);
    assert_ok(cpl_backend_reserve(&poison, &work));
    assert_false(stops(fine, &s));
    assert_true(stops(counts_differ, &s));
    assert_true(stops(outputs_overlap_inputs, &s));
    assert_true(stops(id_is_too_large, &s));
    assert_true(stops(id_is_negative, &s));
    assert_true(stops(type_is_wrong, &s));
    assert_true(stops(output_is_missing, &s));
    assert_true(stops(products_do_not_fit, &s));
    assert_true(stops(plan_is_not_made, &s));
    assert_false(stops(bias_fits, &s));
    assert_true(stops(bias_without_sigmoid, &s));
    assert_true(stops(bias_is_too_short, &s));
    assert_true(stops(z_loss_of_sigmoids, &s));
    assert_true(stops(rows_lie_in_their_gradient, &s));
    cpl_backend_free(&poison);
}
