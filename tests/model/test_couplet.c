/* test_couplet.c - the public interface of the coupling loss (couplet.h): reference values, parts
 * of M and the exchanges between them, matrices as trainers hold them. */
#include "tensor/levels.h"

#include "model/couplet_case.h"
#include "tensor/numbers.h"

static void assert_as_reference(const trainer *t, double loss)
{
    erc_assert_reference(t->c, t->eps, t->M, loss, t->dR, t->grad);
}

static void one_call(const erc_case *c)
{
    trainer t   = trainer_of(c);
    cpl_erc erc = erc_of(&t, 0);
    assert_ok(cpl_erc_run(&erc));
    assert_as_reference(&t, erc.loss);
}

TEST(golden)
{
    erc_for_all_cases(one_call);
}

/* ---- parts ---- */

/* Copies diagonals as an all-gather does. The next function sums as an all-reduce does. */
static void exchange_diagonals(part *parts, int count)
{
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++)
            for (int64_t j = parts[b].erc.first_expert; j < parts[b].erc.end_expert; j++)
                parts[a].diagonal[j] = parts[b].diagonal[j];
}

static void exchange_violations(part *parts, int count, int64_t n)
{
    for (int64_t i = 0; i < 2 * n; i++) {
        int32_t sum = 0;
        for (int a = 0; a < count; a++) sum += parts[a].violations[i];
        for (int a = 0; a < count; a++) parts[a].violations[i] = sum;
    }
}

/* Cuts the experts at these places (expert parallelism). All gradients go to the same arrays. */
static void in_parts(const erc_case *c, const int64_t *cuts, int count)
{
    trainer t = trainer_of(c);
    part parts[MOST_PARTS];
    double loss = 0;
    for (int a = 0; a < count; a++) parts[a] = part_of(&t, cuts[a], cuts[a + 1], 0, c->n);
    for (int a = 0; a < count; a++) assert_ok(cpl_erc_diagonals(&parts[a].erc));
    exchange_diagonals(parts, count);
    for (int a = 0; a < count; a++) {
        assert_ok(cpl_erc_sweep(&parts[a].erc));
        loss += parts[a].erc.loss;
    }
    exchange_violations(parts, count, c->n);
    for (int a = 0; a < count; a++) assert_ok(cpl_erc_finish(&parts[a].erc));
    assert_as_reference(&t, loss);
}

static void parts_of_a_case(const erc_case *c)
{
    const int64_t n = c->n;
    in_parts(c, (int64_t[]){0, n}, 1);
    if (n > 1) in_parts(c, (int64_t[]){0, n / 2, n}, 2);
    if (n > 2) in_parts(c, (int64_t[]){0, 1, n - 1, n}, 3);
}

TEST(expert_parallel)
{
    erc_for_all_cases(parts_of_a_case);
}

/* Splits rows over replicas with every expert: one call each, losses and gradients summed. */
static void rows_of_a_case(const erc_case *c)
{
    if (c->n < 3) return;
    trainer t            = trainer_of(c);
    const int64_t cuts[] = {0, 1, c->n / 2 + 1, c->n};
    double loss          = 0;
    for (int a = 0; a < 3; a++) {
        cpl_erc erc   = erc_of(&t, 0);
        erc.first_row = cuts[a];
        erc.end_row   = cuts[a + 1];
        assert_ok(cpl_erc_run(&erc));
        loss += erc.loss;
    }
    assert_as_reference(&t, loss);
}

TEST(rows_over_replicas)
{
    erc_for_all_cases(rows_of_a_case);
}

/* ---- matrices as trainers hold them ---- */

/* Checks gate and up interleaved in one [2 D, d + 3] tensor an expert, and gradients alike. */
static void fused_case(const erc_case *c)
{
    if (!c->w[1] || c->activation == CPL_ERC_OUTPUT || c->n > 16) return;
    trainer t            = trainer_of(c);
    const int64_t stride = c->d + 3, size = 2 * c->D * stride;
    float *w = zeros(c->n * size), *dw = zeros(c->n * size);
    cpl_erc erc = erc_of(&t, 0);
    for (int64_t e = 0; e < c->n; e++)
        for (int k = 0; k < 2; k++) {
            float *at       = w + e * size + k * c->D * stride;
            t.at[k][e]      = at;
            t.grad_at[k][e] = dw + e * size + k * c->D * stride;
            for (int64_t r = 0; r < c->D; r++)
                memcpy(at + r * stride, c->w[k] + (e * c->D + r) * c->d,
                       sizeof(float) * (size_t)c->d);
        }
    erc.gate.stride = erc.up.stride = erc.gate_grad.stride = erc.up_grad.stride = stride;
    assert_ok(cpl_erc_run(&erc));
    for (int64_t e = 0; e < c->n; e++)
        for (int k = 0; k < 2; k++)
            for (int64_t r = 0; r < c->D; r++) {
                const float *from = t.grad_at[k][e] + r * stride;
                memcpy(t.grad[k] + (e * c->D + r) * c->d, from, sizeof(float) * (size_t)c->d);
                assert_true(from[c->d] == 0 && from[c->d + 2] == 0);
            }
    assert_as_reference(&t, erc.loss);
}

TEST(fused_gate_and_up)
{
    erc_for_all_cases(fused_case);
}

/* bf16 matrices give the results of the same numbers in F32. */
static void bf16_case(const erc_case *c)
{
    if (c->n > 16) return;
    const int64_t count = c->n * c->d * c->D, size = c->d * c->D;
    trainer wide = trainer_of(c), narrow = trainer_of(c);
    float *rounded[3] = {NULL, NULL, NULL};
    uint16_t *bits[3] = {NULL, NULL, NULL};
    for (int k = 0; k < 3; k++) {
        rounded[k] = zeros(count);
        bits[k]    = take((size_t)count * sizeof(uint16_t));
        for (int64_t i = 0; c->w[k] && i < count; i++) {
            bits[k][i]    = cpl_bf16_from_f32(c->w[k][i]);
            rounded[k][i] = cpl_bf16_to_f32(bits[k][i]);
        }
        for (int64_t e = 0; e < c->n; e++) {
            wide.at[k][e]   = rounded[k] + e * size;
            narrow.at[k][e] = bits[k] + e * size;
        }
    }
    cpl_erc a = erc_of(&wide, 0), b = erc_of(&narrow, 0);
    b.dtype = CPL_ERC_BF16;
    assert_ok(cpl_erc_run(&a));
    assert_ok(cpl_erc_run(&b));
    assert_true(a.loss == b.loss && a.row_violations == b.row_violations);
    assert_memory_equal(wide.M, narrow.M, sizeof(float) * (size_t)(c->n * c->n));
    assert_memory_equal(wide.dR, narrow.dR, sizeof(float) * (size_t)(c->n * c->d));
    for (int k = 0; k < 3; k++)
        assert_memory_equal(wide.grad[k], narrow.grad[k], sizeof(float) * (size_t)count);

    b.compute = CPL_ERC_BF16; /* proxies rounded too */
    assert_ok(cpl_erc_run(&b));
    erc_assert_close(c->name, "M in bf16", narrow.M, wide.M, c->n * c->n, 1e-2);
}

TEST(bf16_matrices)
{
    erc_for_all_cases(bf16_case);
}

/* At alpha 0 the loss is a sum of norms off the diagonal. The derivative along a row is the row's
 * part of the loss, so that each step shortens the row (docs/method.md 3.3). */
static void alpha_0_of_a_case(const erc_case *c)
{
    if (c->activation != CPL_ERC_GATE) return;
    trainer t   = trainer_of(c);
    cpl_erc erc = erc_of(&t, 0);
    double loss = 0;
    erc.alpha   = 0;
    erc.weight  = 1;
    assert_ok(cpl_erc_run(&erc));
    for (int64_t i = 0; i < c->n; i++) {
        double own = 0, along = 0;
        for (int64_t j = 0; j < c->n; j++)
            if (j != i) own += 2 * (double)t.M[i * c->n + j] / (double)(c->n * c->n);
        for (int64_t k = 0; k < c->d; k++)
            along += (double)c->R[i * c->d + k] * (double)t.dR[i * c->d + k];
        assert_near(along, own, 1e-5 * own);
        loss += own;
    }
    assert_near(erc.loss, loss, 1e-6 * loss);
}

TEST(alpha_0_shortens_every_row)
{
    erc_for_all_cases(alpha_0_of_a_case);
}

/* Each output may be left out, and the other outputs stay the same. */
TEST(outputs_are_optional)
{
    erc_inputs o = erc_inputs_random(6, 9, 5, 0, 0.8, 0.1, 1);
    erc_case c   = {.name = "random", .n = 6, .d = 9, .D = 5, .alpha = 0.8, .weight = 1};
    c.R          = erc_floats(o.R, 54);
    c.w[0]       = erc_floats(o.w[0], 270);
    trainer all = trainer_of(&c), some = trainer_of(&c);
    cpl_erc a = erc_of(&all, 0), b = erc_of(&some, 0), none = erc_of(&some, 0);
    assert_ok(cpl_erc_run(&a));
    b.router_grad = NULL;
    b.M = b.eps = NULL;
    assert_ok(cpl_erc_run(&b));
    assert_memory_equal(all.grad[0], some.grad[0], sizeof(float) * 270);
    b              = erc_of(&some, 0);
    b.gate_grad.at = NULL;
    assert_ok(cpl_erc_run(&b));
    assert_memory_equal(all.dR, some.dR, sizeof(float) * 54);
    none.router_grad  = NULL;
    none.gate_grad.at = none.up_grad.at = none.down_grad.at = NULL;
    assert_ok(cpl_erc_run(&none));
    assert_true(none.loss == a.loss && none.row_violations == a.row_violations);
    assert_true(a.row_violations > 0 && a.column_violations == none.column_violations);
}

TEST(version)
{
    char text[32] = {0};
    FILE *file    = fopen("VERSION", "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    assert_string_equal(cpl_version(), text);
}
