/* Routing by softmax and by sigmoid scores, with and without a bias: choice, figures, gradient and
 * sorting, against plain double. The steps of the bias are checked too. Reference values of the
 * losses are in tests/model/test_aux_losses.c. */
#include "tensor/levels.h"
#include "tensor/routing.h"

static cpl_routing softmax(bool renormalise)
{
    return (cpl_routing){.renormalise = renormalise};
}

static cpl_routing sigmoids(bool renormalise, cpl_tensor bias)
{
    return (cpl_routing){.sigmoid = true, .renormalise = renormalise, .bias = bias};
}

/* Softmax, sigmoid, sigmoid with a bias, and softmax with a centred z-loss are routings without and
 * with renormalised weights. */
enum { N_ROUTINGS = 8 };

static cpl_routing routing_of(int which, int64_t n)
{
    if (which < 2) return softmax(which % 2);
    if (which > 5) return (cpl_routing){.renormalise = which % 2, .z_centred = true};
    return sigmoids(which % 2, which < 4 ? cpl_tensor_none() : normal_1d(n, 0.3f));
}

/* Returns the numbers that order the experts [T,n]. */
static const float *order_of(const routing *r)
{
    if (!r->how.bias.storage) return cpl_f32(r->logits);
    cpl_tensor sum = copy_of(r->probs);
    for (int64_t i = 0; i < r->T * r->n; i++) cpl_f32(sum)[i] += cpl_f32(r->how.bias)[i % r->n];
    return cpl_f32(sum);
}

static void check(cpl_tensor logits, int64_t K, cpl_routing how)
{
    routing r = new_routing(logits, K, how);
    run_routing(routing_backend(2), &r);
    check_choice(&r, order_of(&r));
    check_numbers(&r);
}

static const int64_t shapes[][3] = {{1, 1, 1}, {5, 7, 3}, {33, 64, 8}, {700, 17, 17}, {3, 300, 9}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

TEST(as_in_double)
{
    for (int i = 0; i < N_SHAPES; i++, release_all(state))
        for (int how = 0; how < N_ROUTINGS; how++)
            check(normal_2d(shapes[i][0], shapes[i][1], 2), shapes[i][2],
                  routing_of(how, shapes[i][1]));
}

TEST(no_tokens)
{
    for (int how = 1; how < N_ROUTINGS; how += 2) {
        routing r = new_routing(new_tensor(CPL_F32, 0, 5), 2, routing_of(how, 5));
        run_routing(routing_backend(2), &r);
        for (int e = 0; e < 5; e++) assert_true(cpl_f32(r.counts)[e] == 0);
        assert_true(cpl_f32(r.mean_prob)[0] == 0 && cpl_f32(r.entropy)[0] == 0);
        if (how == 1) assert_true(cpl_f32(r.z)[0] == 0);
    }
}

/* ---- the choice ---- */

/* The values are few, so that ties are everywhere, and infinities are among them. Ties go to the
 * lower index. */
TEST(ties)
{
    cpl_tensor logits = new_tensor(CPL_F32, 60, 11), values = new_tensor(CPL_I32, 60, 11);
    cpl_tensor bias = new_1d(CPL_F32, 11);
    randomise_ids(values, 3);
    for (int i = 0; i < 660; i++) cpl_f32(logits)[i] = (float)cpl_i32(values)[i];
    cpl_f32(bias)[2] = cpl_f32(bias)[7] = 0.125f;
    for (int K = 1; K <= 11; K++) {
        check(logits, K, softmax(false));
        check(logits, K, sigmoids(false, cpl_tensor_none()));
        check(logits, K, sigmoids(true, bias));
    }
    cpl_f32(logits)[3] = cpl_f32(logits)[5] = -INFINITY;
    check(logits, 11, softmax(true));
}

/* NaN logits give NaN weights, but valid and different experts. */
TEST(nan_gives_valid_experts)
{
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        cpl_tensor logits = normal_2d(2, 6, 1), bias = new_1d(CPL_F32, 6);
        routing r = new_routing(logits, 6, sigmoid ? sigmoids(false, bias) : softmax(false));
        for (int e = 0; e < 6; e++) cpl_f32(logits)[e] = e == 2 ? 1.0f : NAN;
        run_routing(routing_backend(1), &r);
        for (int t = 0; t < 2; t++) {
            bool seen[6] = {false};
            for (int k = 0; k < 6; k++) {
                int32_t e = cpl_i32(r.expert)[t * 6 + k];
                assert_true(e >= 0 && e < 6 && !seen[e]);
                seen[e] = true;
            }
        }
        assert_int_equal(cpl_i32(r.expert)[0], 2);
    }
}

/* A bias changes the choice, but neither the scores nor the weights. */
TEST(bias_chooses_only)
{
    cpl_tensor logits = normal_2d(40, 9, 1), bias = new_1d(CPL_F32, 9);
    cpl_f32(bias)[4] = 2;
    routing with     = new_routing(logits, 3, sigmoids(false, bias));
    routing without  = new_routing(logits, 3, sigmoids(false, cpl_tensor_none()));
    run_routing(routing_backend(2), &with);
    run_routing(routing_backend(2), &without);
    assert_same_bits(with.probs, without.probs);
    assert_same_bits(with.mean_prob, without.mean_prob);
    assert_same_bits(with.lse, without.lse);
    for (int t = 0; t < 40; t++) {
        assert_int_equal(cpl_i32(with.expert)[t * 3], 4);
        assert_true(cpl_f32(with.weight)[t * 3] == cpl_f32(with.probs)[t * 9 + 4]);
    }
    assert_true(cpl_f32(without.counts)[4] < 40);
}

/* Scores of 1 tie where their logits do not: without a bias the logits decide. */
TEST(logits_decide_among_saturated_scores)
{
    cpl_tensor logits = new_tensor(CPL_F32, 1, 3), bias = new_1d(CPL_F32, 3);
    memcpy(cpl_f32(logits), (float[]){200, 300, 250}, 3 * sizeof(float));
    routing plain = new_routing(logits, 3, sigmoids(false, cpl_tensor_none()));
    routing moved = new_routing(logits, 3, sigmoids(false, bias));
    run_routing(routing_backend(1), &plain);
    run_routing(routing_backend(1), &moved);
    assert_memory_equal(plain.expert.storage, ((int32_t[]){1, 2, 0}), 3 * sizeof(int32_t));
    assert_memory_equal(moved.expert.storage, ((int32_t[]){0, 1, 2}), 3 * sizeof(int32_t));
}

/* ---- gradient ---- */

TEST(gradient_as_by_differences)
{
    static const int64_t sizes[][3] = {{5, 7, 3},  {3, 4, 4},   {2, 1, 1},  {9, 30, 1},
                                       {5, 10, 3}, {3, 10, 10}, {5, 22, 3}, {3, 22, 22}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, release_all(state))
        for (int how = 0; how < N_ROUTINGS; how++) {
            const int64_t T = sizes[i][0], n = sizes[i][1], K = sizes[i][2];
            cpl_backend *be = routing_backend(2);
            routing r       = new_routing(normal_2d(T, n, 1.5f), K, routing_of(how, n));
            run_routing(be, &r);
            check_gradient(be, &r, r.how.sigmoid ? 0 : 0.2);
        }
}

/* A centred z-loss does not change when one amount is added to all logits of a token, and is 0
 * without a gradient when they are equal. */
TEST(a_centred_z_loss_ignores_shifts)
{
    cpl_backend *be   = routing_backend(1);
    cpl_tensor logits = normal_2d(3, 8, 1), moved = copy_of(logits);
    const cpl_routing how = {.z_centred = true};
    for (int e = 0; e < 8; e++) cpl_f32(logits)[e] = cpl_f32(moved)[e] = 3;
    for (int i = 0; i < 24; i++) cpl_f32(moved)[i] += 64;
    routing plain = new_routing(logits, 2, how), shifted = new_routing(moved, 2, how);
    run_routing(be, &plain);
    run_routing(be, &shifted);
    assert_close("lse", shifted.lse, doubles_of(plain.lse), 1e-4, 0);
    assert_true(cpl_f32(plain.lse)[0] == 0 && cpl_f32(plain.lse)[1] > 0);
    cpl_tensor dlogits = routing_backward(be, &plain, new_tensor(CPL_F32, 3, 2), 0, 1);
    for (int e = 0; e < 8; e++) assert_true(cpl_f32(dlogits)[e] == 0);
}

/* Shares do not change when all scores are scaled, and neither does the loss: its gradient along a
 * common factor is zero. */
TEST(balance_pulls_along_no_common_factor)
{
    cpl_backend *be = routing_backend(1);
    routing r       = new_routing(normal_2d(6, 8, 1), 2, sigmoids(true, cpl_tensor_none()));
    run_routing(be, &r);
    cpl_tensor dlogits = routing_backward(be, &r, new_tensor(CPL_F32, 6, 2), 0.5, 0);
    for (int t = 0; t < 6; t++) {
        double along = 0, size = 0;
        for (int e = 0; e < 8; e++) {
            double d = cpl_f32(dlogits)[t * 8 + e], s = cpl_f32(r.probs)[t * 8 + e];
            along += d / (1 - s); /* dL/ds times s */
            size += fabs(d / (1 - s));
        }
        assert_true(size > 0.01);
        assert_near(along, 0, size * sum_tolerance(ROUTING_C, 8));
    }
}

/* ---- scores of 0 and 1 ---- */

TEST(large_logits_give_no_nan)
{
    enum { T = 5, N = 4, K = 2 };
    static const float rows[T] = {200, -200, -100, -80, INFINITY};
    cpl_tensor logits = new_tensor(CPL_F32, T, N), dweight = normal_2d(T, K, 1);
    for (int i = 0; i < T * N; i++) cpl_f32(logits)[i] = rows[i / N];
    cpl_f32(logits)[2] = -300; /* one score is 0 among scores of 1 */
    for (int i = 0; i < N; i++) cpl_f32(logits)[4 * N + i] = i % 2 ? 1e30f : -1e30f;
    for (int renormalise = 0; renormalise < 2; renormalise++) {
        cpl_backend *be = routing_backend(1);
        routing r       = new_routing(logits, K, sigmoids(renormalise, cpl_tensor_none()));
        run_routing(be, &r);
        cpl_tensor dlogits = routing_backward(be, &r, dweight, 0.5, 0);
        const float *w     = cpl_f32(r.weight);
        for (int i = 0; i < T * K; i++) assert_true(w[i] >= 0 && w[i] <= 1);
        for (int i = 0; i < T * N; i++) assert_true(isfinite(cpl_f32(dlogits)[i]));
        for (int i = 0; i < 2 * N; i++) assert_true(cpl_f32(dlogits)[i] == 0);
        for (int i = 4 * N; i < 5 * N; i++) assert_true(cpl_f32(dlogits)[i] == 0);
        for (int i = 0; i < N; i++) assert_true(isfinite(cpl_f32(r.mean_prob)[i]));
        assert_true(isfinite(*cpl_f32(r.entropy)));
        assert_true(w[1 * K] == 0 && w[1 * K + 1] == 0); /* scores of 0 give weights of 0 */
        if (!renormalise) continue;
        for (int k = 0; k < K; k++) assert_near(w[2 * K + k], 0.5, 0.01);
        for (int k = 0; k < K; k++) assert_near(w[3 * K + k], 0.5, 1e-6);
    }
}

/* ---- sorting ---- */

/* Asserts that every assignment has its own row. Tokens rise in the adjacent rows of an expert. */
static void check_dispatch(cpl_tensor expert, int64_t n)
{
    const int64_t T = expert.shape[0], K = expert.shape[1];
    cpl_dispatch plan     = dispatch_of(routing_backend(3), expert, n);
    const int32_t *offset = cpl_i32(plan.offset), *token = cpl_i32(plan.token);
    assert_int_equal(offset[0], 0);
    assert_int_equal(offset[n], T * K);
    for (int64_t i = 0; i < T * K; i++) {
        int32_t e = cpl_i32(expert)[i], row = cpl_i32(plan.row)[i];
        assert_true(row >= offset[e] && row < offset[e + 1]);
        assert_int_equal(token[row], i / K);
    }
    for (int64_t e = 0; e < n; e++)
        for (int32_t row = offset[e] + 1; row < offset[e + 1]; row++)
            assert_true(token[row - 1] < token[row]);
}

TEST(dispatch)
{
    for (int i = 0; i < N_SHAPES; i++, release_all(state)) {
        routing r =
            new_routing(normal_2d(shapes[i][0], shapes[i][1], 1), shapes[i][2], softmax(false));
        run_routing(routing_backend(2), &r);
        check_dispatch(r.expert, r.n);
    }
}

/* Checks all tokens at one expert and none at others, and an input without tokens. */
TEST(dispatch_extremes)
{
    cpl_tensor all = new_tensor(CPL_I32, 500, 1);
    for (int i = 0; i < 500; i++) cpl_i32(all)[i] = 3;
    check_dispatch(all, 5);
    check_dispatch(new_tensor(CPL_I32, 0, 2), 5);
}

TEST(nothing_depends_on_threads)
{
    cpl_tensor logits = normal_2d(700, 17, 2), dweight = normal_2d(700, 4, 1);
    for (int which = 1; which < N_ROUTINGS; which += 2) {
        const cpl_routing how = routing_of(which, 17);
        routing a = new_routing(logits, 4, how), b = new_routing(logits, 4, how);
        run_routing(routing_backend(1), &a);
        run_routing(routing_backend(3), &b);
        assert_same_bits(a.weight, b.weight);
        assert_same_bits(a.expert, b.expert);
        assert_same_bits(a.mean_prob, b.mean_prob);
        assert_same_bits(a.entropy, b.entropy);
        assert_same_bits(routing_backward(routing_backend(1), &a, dweight, 1, 0),
                         routing_backward(routing_backend(3), &b, dweight, 1, 0));
    }
}

/* ---- the bias's steps ---- */

TEST(bias_rises_where_load_is_below_the_mean)
{
    cpl_backend *be = routing_backend(1);
    cpl_tensor bias = new_1d(CPL_F32, 4), load = new_1d(CPL_F32, 4);
    memcpy(cpl_f32(bias), (float[]){1, 2, 3, 4}, 4 * sizeof(float));
    memcpy(cpl_f32(load), (float[]){7, 0, 4, 5}, 4 * sizeof(float));
    be->ops->balance_bias(be, bias, load, 0.25f);
    assert_memory_equal(bias.storage, ((float[]){0.75f, 2.25f, 3, 3.75f}), 4 * sizeof(float));
}

/* Equal loads of any size and number, and zero loads, leave the bias as it is. */
TEST(equal_loads_move_nothing)
{
    static const float loads[] = {0, 1.0f / 3, 0.1f, 16777215};
    cpl_backend *be            = routing_backend(1);
    for (int i = 0; i < 4; i++)
        for (int n = 1; n < 70; n += 3) {
            cpl_tensor bias = normal_1d(n, 1), before = copy_of(bias), load = new_1d(CPL_F32, n);
            for (int e = 0; e < n; e++) cpl_f32(load)[e] = loads[i];
            be->ops->balance_bias(be, bias, load, 0.25f);
            assert_same_bits(bias, before);
        }
}
