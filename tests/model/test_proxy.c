/* Settings erc.proxy and erc.gradient against PyTorch in float64 (tests/golden/proxy), the response
 * of each loss to a shift of all router rows, and changes that the loss does not see. */
#include "model/coupling.h"

#include "model/erc_run.h"

/* Relative tolerance of a tensor: ERC_F32_TOLERANCE, and the rounding of a mean that is several
 * times as large as the remainder. */
static const double TOLERANCE = 2e-5;

static const char *const cases[]       = {"gate", "gate-clean", "up", "silu", "swiglu", "output"};
static const char *const activations[] = {"gate", "gate", "up", "silu", "swiglu", "output"};
enum { N_CASES = sizeof cases / sizeof *cases, N = 7, WIDTH = 12, EXPERT = 5 };

static erc_case case_of(int which)
{
    const char *name = cases[which];
    erc_case c       = {.name = name, .n = N, .d = WIDTH, .D = EXPERT, .weight = 1};
    char prefix[32], key[64];
    cpl_safetensors *file;
    snprintf(prefix, sizeof prefix, "%s.", name);
    snprintf(key, sizeof key, "%salpha", prefix);
    assert_ok(cpl_safetensors_open(&file, golden_path("proxy/reference.safetensors")));
    erc_case_read(&c, file, prefix);
    c.alpha      = (double)*erc_read(file, key, 1);
    c.activation = erc_activation_of(activations[which]);
    c.noise      = c.delta != NULL;
    cpl_safetensors_close(file);
    return c;
}

static void assert_zero(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) assert_true(x[i] == 0);
}

static void check_side(const erc_case *c, cpl_erc_gradient gradient, int n_threads)
{
    erc_outcome o = erc_run_as(c, CPL_PROXY_CENTRED, gradient, CPL_F32, n_threads, true);
    erc_assert_close(c->name, "eps", o.eps, c->eps, N, TOLERANCE);
    erc_assert_close(c->name, "M", o.M, c->M, N * N, TOLERANCE);
    assert_near(o.loss, c->loss, TOLERANCE * c->loss);
    if (gradient == CPL_ERC_TO_EXPERTS)
        assert_zero(o.dR, N * WIDTH);
    else
        erc_assert_close(c->name, "dR", o.dR, c->dR, N * WIDTH, TOLERANCE);
    for (int k = 0; k < 3; k++)
        if (gradient == CPL_ERC_TO_ROUTER)
            assert_zero(o.dw[k], N * WIDTH * EXPERT);
        else
            erc_assert_close(c->name, "dw", o.dw[k], c->dw[k], N * WIDTH * EXPERT, TOLERANCE);
}

TEST(centred_proxies_are_those_of_pytorch)
{
    for (int i = 0; i < N_CASES; i++) {
        erc_case c = case_of(i);
        for (int gradient = CPL_ERC_TO_BOTH; gradient <= CPL_ERC_TO_EXPERTS; gradient++)
            for (int n_threads = 1; n_threads <= 3; n_threads++)
                check_side(&c, (cpl_erc_gradient)gradient, n_threads);
    }
}

/* For the paper's own proxies, the part asked for equals that part of the whole gradient. */
static void check_part(const erc_case *c)
{
    const int64_t expert = c->n * c->D * c->d;
    erc_outcome both     = erc_run(c, CPL_F32, 2, true);
    erc_outcome router   = erc_run_as(c, CPL_PROXY_ROW, CPL_ERC_TO_ROUTER, CPL_F32, 2, true);
    erc_outcome experts  = erc_run_as(c, CPL_PROXY_ROW, CPL_ERC_TO_EXPERTS, CPL_F32, 2, true);
    erc_assert_close(c->name, "dR", router.dR, both.dR, c->n * c->d, 1e-6);
    assert_zero(experts.dR, c->n * c->d);
    for (int k = 0; k < 3; k++) {
        erc_assert_close(c->name, "dw", experts.dw[k], both.dw[k], expert, 1e-6);
        assert_zero(router.dw[k], expert);
    }
    assert_true(router.loss == experts.loss);
}

TEST(each_side_gets_its_own_gradient)
{
    erc_for_all_cases(check_part);
}

/* A vector added to all rows changes no softmax routing. It changes the loss of the rows, and not
 * the loss of the centred rows. */
TEST(a_shift_of_all_rows_changes_the_loss_of_rows_alone)
{
    erc_inputs in       = erc_inputs_random(9, 20, 12, 0, 1.0, 0.05, 7);
    erc_case c          = erc_case_of(&in, "shift");
    erc_outcome at      = erc_run_as(&c, CPL_PROXY_CENTRED, CPL_ERC_TO_BOTH, CPL_F32, 1, true);
    erc_outcome of_rows = erc_run(&c, CPL_F32, 1, false);
    for (int64_t i = 0; i < c.n * c.d; i++) c.R[i] += 0.3f * (float)((i % c.d) % 3);
    erc_outcome to    = erc_run_as(&c, CPL_PROXY_CENTRED, CPL_ERC_TO_BOTH, CPL_F32, 1, true);
    erc_outcome moved = erc_run(&c, CPL_F32, 1, false);
    assert_near(to.loss, at.loss, TOLERANCE * at.loss);
    assert_true(fabs(moved.loss - of_rows.loss) > 0.1 * of_rows.loss);
    erc_assert_close(c.name, "dR", to.dR, at.dR, c.n * c.d, 1e-4);
    for (int64_t k = 0; k < c.d; k++) { /* a step along it moves no common part */
        double sum = 0, size = 0;
        for (int64_t i = 0; i < c.n; i++) {
            sum += (double)at.dR[i * c.d + k];
            size += fabs((double)at.dR[i * c.d + k]);
        }
        assert_near(sum, 0, 1e-6 * size);
    }
}

/* Returns how often experts are among the K with the largest scores of both x R^T and -x R^T. */
static int64_t chosen_by_both(const erc_case *c, const float *x, int64_t top_k)
{
    int64_t both = 0;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t above = 0, below = 0; /* experts with a larger score; with a smaller one */
        double own = 0;
        for (int64_t k = 0; k < c->d; k++) own += (double)x[k] * (double)c->R[i * c->d + k];
        for (int64_t j = 0; j < c->n; j++) {
            double other = 0;
            for (int64_t k = 0; k < c->d; k++) other += (double)x[k] * (double)c->R[j * c->d + k];
            above += other > own;
            below += other < own;
        }
        both += above < top_k && below < top_k;
    }
    return both;
}

/* The router -R has the loss of R, draw for draw and bit for bit. It chooses no expert that R
 * chooses if 2 K <= n. */
TEST(the_opposite_router_has_the_same_loss)
{
    erc_inputs in  = erc_inputs_random(9, 20, 12, 0, 1.0, 0.05, 11);
    erc_case c     = erc_case_of(&in, "sign");
    erc_outcome at = erc_run(&c, CPL_F32, 1, true);
    assert_true(at.loss > 0);
    for (int64_t t = 0; t < 20; t++) {
        float *x = c.w[0] + t * c.d; /* any vectors will do */
        for (int64_t k = 1; 2 * k <= c.n; k++) assert_int_equal(chosen_by_both(&c, x, k), 0);
        assert_int_equal(chosen_by_both(&c, x, c.n / 2 + 1), 1); /* with 9 experts the middle one */
    }
    for (int64_t i = 0; i < c.n * c.d; i++) c.R[i] = -c.R[i];
    erc_outcome opposite = erc_run(&c, CPL_F32, 1, true);
    assert_true(opposite.loss == at.loss);
    assert_memory_equal(opposite.M, at.M, (size_t)(c.n * c.n) * sizeof(float));
    for (int64_t i = 0; i < c.n * c.d; i++) assert_true(opposite.dR[i] == -at.dR[i]);
}

/* ERC(R + t u) / t tends to the loss of the matrix whose rows are all |u W_j| (docs/coupling.md).
 * The loss therefore has no bound in t. */
static void assert_grows_with_a_shift(double alpha)
{
    const double far   = 1e4;
    erc_inputs in      = erc_inputs_random(9, 20, 12, 0, alpha, 0.05, 13);
    erc_case c         = erc_case_of(&in, "far");
    double response[9] = {0}, limit = 0;
    for (int64_t j = 0; j < c.n; j++)
        for (int64_t b = 0; b < c.D; b++) {
            double sum = 0;
            for (int64_t k = 0; k < c.d; k++) sum += (double)c.w[0][(j * c.D + b) * c.d + k];
            response[j] += sum * sum;
        }
    for (int64_t i = 0; i < c.n; i++)
        for (int64_t j = 0; j < c.n; j++) {
            const double own = sqrt(response[i]), other = sqrt(response[j]);
            if (i != j)
                limit +=
                    (fmax(other - alpha * own, 0) + fmax(1 - alpha, 0) * own) / (double)(c.n * c.n);
        }
    for (int64_t i = 0; i < c.n * c.d; i++) c.R[i] += (float)far;
    c.noise           = false;
    c.delta           = NULL;
    erc_outcome moved = erc_run(&c, CPL_F32, 1, false);
    assert_true(limit > 0);
    assert_near(moved.loss / far, limit, 1e-3 * limit);
}

TEST(the_loss_has_no_bound_under_a_shift)
{
    assert_grows_with_a_shift(1.0);
    assert_grows_with_a_shift(0.5);
    assert_grows_with_a_shift(1.02);
}
