/* Routing: choice, figures, gradient and sorting, against plain double and the reference values. */
#include "tensor/golden.h"
#include "tensor/routing.h"

static const double GOLDEN = 1e-4; /* the limit that the reference values come with */

static cpl_routing softmax_routing(bool renormalise)
{
    return (cpl_routing){.renormalise = renormalise};
}

static void check(cpl_tensor logits, int64_t K, bool renormalise)
{
    routing r = new_routing(logits, K, softmax_routing(renormalise));
    run_routing(routing_backend(2), &r);
    check_choice(&r, cpl_f32(r.logits));
    check_numbers(&r);
}

static const int64_t shapes[][3] = {{1, 1, 1}, {5, 7, 3}, {33, 64, 8}, {700, 17, 17}, {3, 300, 9}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

TEST(test_random_logits)
{
    for (int i = 0; i < N_SHAPES; i++, release_all(state)) {
        check(normal_2d(shapes[i][0], shapes[i][1], 2), shapes[i][2], false);
        check(normal_2d(shapes[i][0], shapes[i][1], 2), shapes[i][2], true);
    }
}

TEST(test_no_tokens)
{
    routing r = new_routing(new_tensor(CPL_F32, 0, 5), 2, softmax_routing(true));
    run_routing(routing_backend(2), &r);
    for (int e = 0; e < 5; e++) assert_true(cpl_f32(r.counts)[e] == 0);
    assert_true(cpl_f32(r.z)[0] == 0 && cpl_f32(r.entropy)[0] == 0);
}

/* Few different values, so that ties are everywhere; infinities among them. */
TEST(test_ties)
{
    cpl_tensor logits = new_tensor(CPL_F32, 60, 11);
    cpl_tensor values = new_tensor(CPL_I32, 60, 11);
    randomise_ids(values, 3);
    for (int i = 0; i < 660; i++) cpl_f32(logits)[i] = (float)cpl_i32(values)[i];
    for (int K = 1; K <= 11; K++) check(logits, K, false);
    cpl_f32(logits)[3] = cpl_f32(logits)[5] = -INFINITY;
    check(logits, 11, true);
}

/* Logits that are no numbers give weights that are none, but experts that are: different ones. */
TEST(test_nan_gives_valid_experts)
{
    cpl_tensor logits = normal_2d(2, 6, 1);
    routing r         = new_routing(logits, 6, softmax_routing(false));
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

/* ---- gradient ---- */

/* The K-th logit must lead the next by more than the step of the differences. */
static void assert_away_from_kinks(const routing *r)
{
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t i = 0; i < r->n; i++)
            for (int64_t j = 0; j < i; j++)
                assert_true(fabsf(cpl_f32(r->logits)[t * r->n + i] -
                                  cpl_f32(r->logits)[t * r->n + j]) > 1e-4f);
}

static void check_slopes(int64_t T, int64_t n, int64_t K, bool renormalise)
{
    cpl_backend *be = routing_backend(2);
    routing r       = new_routing(normal_2d(T, n, 1.5f), K, softmax_routing(renormalise));
    run_routing(be, &r);
    assert_away_from_kinks(&r);
    check_gradient(be, &r, 0.2);
}

TEST(test_gradient)
{
    for (int renormalise = 0; renormalise < 2; renormalise++) {
        check_slopes(5, 7, 3, renormalise);
        check_slopes(3, 4, 4, renormalise);
        check_slopes(2, 1, 1, renormalise);
        check_slopes(9, 30, 1, renormalise);
    }
}

/* ---- sorting ---- */

/* Every assignment has its own row, rows of an expert stand together, tokens rise in them. */
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

TEST(test_dispatch)
{
    for (int i = 0; i < N_SHAPES; i++, release_all(state)) {
        routing r = new_routing(normal_2d(shapes[i][0], shapes[i][1], 1), shapes[i][2],
                                softmax_routing(false));
        run_routing(routing_backend(2), &r);
        check_dispatch(r.expert, r.n);
    }
}

/* All tokens to one expert, others without any; and no tokens at all. */
TEST(test_dispatch_extremes)
{
    cpl_tensor all = new_tensor(CPL_I32, 500, 1);
    for (int i = 0; i < 500; i++) cpl_i32(all)[i] = 3;
    check_dispatch(all, 5);
    check_dispatch(new_tensor(CPL_I32, 0, 2), 5);
}

TEST(test_nothing_depends_on_threads)
{
    cpl_tensor logits = normal_2d(700, 17, 2);
    routing a         = new_routing(logits, 4, softmax_routing(true)),
            b         = new_routing(logits, 4, softmax_routing(true));
    run_routing(routing_backend(1), &a);
    run_routing(routing_backend(3), &b);
    assert_same_bits(a.weight, b.weight);
    assert_same_bits(a.expert, b.expert);
    assert_same_bits(a.mean_prob, b.mean_prob);
    assert_same_bits(a.entropy, b.entropy);
}

/* ---- reference values ---- */

static void check_balance(const char *name, int64_t K)
{
    char path[128];
    snprintf(path, sizeof path, "losses/%s.safetensors", name);
    cpl_safetensors *file = golden_open(path);
    cpl_backend *be       = routing_backend(2);
    routing r             = new_routing(golden_tensor(file, "logits"), K, softmax_routing(false));
    const double T = (double)r.T, n = (double)r.n;
    cpl_tensor none = new_tensor(CPL_F32, r.T, K); /* zeros */
    run_routing(be, &r);
    assert_close("counts", r.counts, golden_doubles(file, "counts"), 0, 0);
    assert_close("P", r.mean_prob, golden_doubles(file, "P"), GOLDEN, 0);
    const double loss = n * dot_of(be, r.counts, r.mean_prob) / (T * (double)K);
    const double want = *golden_doubles(file, "loss");
    assert_near(loss, want, GOLDEN * want);
    assert_close("dlogits", routing_backward(be, &r, none, n / (T * T * (double)K), 0),
                 golden_doubles(file, "dlogits"), GOLDEN, 1e-6);
    cpl_safetensors_close(file);
}

TEST(test_golden_balance)
{
    check_balance("balance-random", 4);
    check_balance("balance-balanced", 3);
    check_balance("balance-ties", 3);
    check_balance("balance-favourites", 3);
    check_balance("balance-top-1", 1);
    check_balance("balance-all", 5);
}

static void check_z(const char *name, int64_t K)
{
    char path[128];
    snprintf(path, sizeof path, "losses/%s.safetensors", name);
    cpl_safetensors *file = golden_open(path);
    cpl_backend *be       = routing_backend(2);
    routing r             = new_routing(golden_tensor(file, "logits"), K, softmax_routing(false));
    cpl_tensor none       = new_tensor(CPL_F32, r.T, K);
    const double mean     = *golden_doubles(file, "loss.mean");
    run_routing(be, &r);
    assert_near(cpl_f32(r.z)[0], mean, GOLDEN * mean);
    assert_near(cpl_f32(r.z)[0] / (double)K, *golden_doubles(file, "loss.over_k"), GOLDEN * mean);
    assert_close("dlogits", routing_backward(be, &r, none, 0, 1 / (double)r.T),
                 golden_doubles(file, "dlogits.mean"), GOLDEN, 0);
    cpl_safetensors_close(file);
}

TEST(test_golden_z)
{
    check_z("z-random", 4);
    check_z("z-large", 2);
}
