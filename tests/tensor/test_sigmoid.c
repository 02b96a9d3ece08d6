/* Routing by sigmoid scores, with and without a bias, against plain double; and the bias's own
 * steps. */
#include "tensor/levels.h"
#include "tensor/routing.h"

static cpl_routing sigmoids(bool renormalise, cpl_tensor bias)
{
    return (cpl_routing){.sigmoid = true, .renormalise = renormalise, .bias = bias};
}

/* What experts are ordered by. */
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

TEST(as_in_double)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {5, 7, 3}, {33, 64, 8}, {700, 17, 17}, {3, 300, 9}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++, release_all(state))
        for (int how = 0; how < 4; how++) {
            const int64_t T = shapes[i][0], n = shapes[i][1], K = shapes[i][2];
            cpl_tensor bias = how & 1 ? normal_1d(n, 0.3f) : cpl_tensor_none();
            check(normal_2d(T, n, 2), K, sigmoids(how & 2, bias));
        }
}

/* ---- the choice ---- */

/* A bias moves the choice, and neither scores nor what they weigh. */
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

TEST(ties_go_to_the_lower_index)
{
    cpl_tensor logits = new_tensor(CPL_F32, 60, 11), values = new_tensor(CPL_I32, 60, 11);
    cpl_tensor bias = new_1d(CPL_F32, 11);
    randomise_ids(values, 3);
    for (int i = 0; i < 660; i++) cpl_f32(logits)[i] = (float)cpl_i32(values)[i];
    cpl_f32(bias)[2] = cpl_f32(bias)[7] = 0.125f;
    for (int K = 1; K <= 11; K++) {
        check(logits, K, sigmoids(false, cpl_tensor_none()));
        check(logits, K, sigmoids(true, bias));
    }
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

TEST(nan_gives_valid_experts)
{
    cpl_tensor logits = normal_2d(1, 6, 1), bias = new_1d(CPL_F32, 6);
    routing r    = new_routing(logits, 6, sigmoids(false, bias));
    bool seen[6] = {false};
    for (int e = 0; e < 6; e++) cpl_f32(logits)[e] = e == 2 ? 1.0f : NAN;
    run_routing(routing_backend(1), &r);
    assert_int_equal(cpl_i32(r.expert)[0], 2);
    for (int k = 0; k < 6; k++) {
        int32_t e = cpl_i32(r.expert)[k];
        assert_true(e >= 0 && e < 6 && !seen[e]);
        seen[e] = true;
    }
}

/* ---- the gradient ---- */

static void check_slopes(int64_t T, int64_t n, int64_t K, cpl_routing how)
{
    cpl_backend *be = routing_backend(2);
    routing r       = new_routing(normal_2d(T, n, 1.5f), K, how);
    run_routing(be, &r);
    check_gradient(be, &r, 0);
}

TEST(gradient_as_by_differences)
{
    for (int how = 0; how < 4; how++) {
        cpl_tensor bias = normal_1d(30, 0.3f), none = cpl_tensor_none();
        for (int64_t n = 1; n <= 30; n += n + 2) {
            bias.shape[0]      = n;
            const int64_t K    = n < 3 ? 1 : 3;
            cpl_routing choose = sigmoids(how & 1, how & 2 ? bias : none);
            check_slopes(5, n, K, choose);
            check_slopes(3, n, n, choose);
        }
    }
}

/* Shares do not change where all scores are scaled, nor the loss with them: no gradient along. */
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
    cpl_f32(logits)[2] = -300; /* one score 0 among scores of 1 */
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
        assert_true(w[1 * K] == 0 && w[1 * K + 1] == 0); /* scores of 0: weights of 0 */
        if (!renormalise) continue;
        for (int k = 0; k < K; k++) assert_near(w[2 * K + k], 0.5, 0.01);
        for (int k = 0; k < K; k++) assert_near(w[3 * K + k], 0.5, 1e-6);
    }
}

TEST(no_tokens)
{
    routing r = new_routing(new_tensor(CPL_F32, 0, 5), 2, sigmoids(true, normal_1d(5, 1)));
    run_routing(routing_backend(2), &r);
    for (int e = 0; e < 5; e++) assert_true(cpl_f32(r.counts)[e] == 0);
    assert_true(cpl_f32(r.mean_prob)[0] == 0 && cpl_f32(r.entropy)[0] == 0);
}

TEST(nothing_depends_on_threads)
{
    cpl_tensor logits = normal_2d(700, 17, 2), bias = normal_1d(17, 0.2f);
    routing a          = new_routing(logits, 4, sigmoids(true, bias));
    routing b          = new_routing(logits, 4, sigmoids(true, bias));
    cpl_tensor dweight = normal_2d(700, 4, 1);
    run_routing(routing_backend(1), &a);
    run_routing(routing_backend(3), &b);
    assert_same_bits(a.weight, b.weight);
    assert_same_bits(a.expert, b.expert);
    assert_same_bits(a.mean_prob, b.mean_prob);
    assert_same_bits(a.entropy, b.entropy);
    assert_same_bits(routing_backward(routing_backend(1), &a, dweight, 1, 0),
                     routing_backward(routing_backend(3), &b, dweight, 1, 0));
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

/* Equal loads, of whatever size and number, and none at all, move nothing. */
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
