/* test_inspect_sample.c - an inspection with options.sample: the blocks that are read in every layout,
 * the bytes that it says, threads, memory, damage, and what it shows. The statistics have their own
 * tests (test_row_sample.c, test_row_bounds.c). */
#include "inspect/families/layout_list.h"
#include "inspect/inspect_case.h"
#include "inspect/row_sample_case.h"

static cpl_inspect_options sample_of(double share)
{
    cpl_inspect_options o = inspect_plainly();
    o.sample              = share;
    return o;
}

/* ---- the figures are those of the blocks ---- */

static void check_near(cpl_interval got, cpl_interval want, const char *what)
{
    const double size = 2e-4 * (1e-3 + fabs(want.high) + fabs(want.high - want.low));
    if (isnan(want.estimate) != isnan(got.estimate) || fabs(got.low - want.low) > size ||
        fabs(got.high - want.high) > size || fabs(got.estimate - want.estimate) > size)
        fail_msg("%s: %g [%g, %g], wanted %g [%g, %g]", what, got.estimate, got.low, got.high,
                 want.estimate, want.low, want.high);
}

/* The same from the numbers of a layer: R [n,d], W [n,D,d]. */
static rows_case rows_of(const float *R, const float *W, int n, int d, int D)
{
    rows_case c = {n,
                   d,
                   D,
                   malloc(sizeof(double) * (size_t)(n * D * n)),
                   malloc(sizeof(double) * (size_t)(n * D)),
                   {0}};
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int a = 0; a < d; a++) sum += (double)R[i * d + a] * R[i * d + a];
        c.row_norm[i] = sqrt(sum);
    }
    for (int j = 0; j < n; j++)
        for (int k = 0; k < D; k++) rows_set(&c, R, j, k, W + (j * D + k) * d);
    return c;
}

static void check_figures(const cpl_row_estimates *got, const cpl_row_bounds *b, rows_case *c,
                          const cpl_layer_report *l, const char *name)
{
    const double one = 1;
    cpl_row_sums s   = {c->n, l->sample->plan.n_read, l->sample->plan.n_blocks, NULL, NULL};
    cpl_row_estimates want;
    cpl_row_bounds bounds;
    s.squares = malloc(sizeof(double) * (size_t)(c->n * s.n_read * c->n));
    s.norms   = malloc(sizeof(double) * (size_t)(c->n * s.n_read));
    for (int j = 0; j < c->n; j++) {
        int64_t chosen[CPL_ROW_BLOCKS], rows;
        cpl_row_plan_choose(chosen, &l->sample->plan, 1, 0, l->at->layer, j);
        for (int64_t k = 0; k < s.n_read; k++) {
            const int64_t first = cpl_row_plan_block(&l->sample->plan, chosen[k], &rows);
            rows_add(c, j, first, rows, s.squares + (j * s.n_read + k) * c->n,
                     &s.norms[j * s.n_read + k]);
        }
    }
    assert_ok(cpl_row_sums_estimate(&want, &s, c->row_norm));
    assert_ok(cpl_row_sums_bound(&bounds, &s, c->row_norm, &one, 1));
    check_near(got->kappa_diagonal, want.kappa_diagonal, name);
    check_near(got->kappa_off_diagonal, want.kappa_off_diagonal, name);
    check_near(got->m_diagonal, want.m_diagonal, name);
    check_near(got->m_off_diagonal, want.m_off_diagonal, name);
    check_near(got->gate_norm, want.gate_norm, name);
    if (!isnan(want.z.estimate)) check_near(got->z, want.z, name);
    assert_near(b->erc[0].low, bounds.erc[0].low, 1e-3 * (1e-6 + bounds.erc[0].low));
    assert_near(b->alpha_min.low, bounds.alpha_min.low, 1e-3 * bounds.alpha_min.low);
    assert_true(b->rows_own.low == bounds.rows_own.low && b->assigned.low == bounds.assigned.low);
    rows_free_sums(&s);
}

static void check_layer(const cpl_layer_report *l, float *R, const float *W, const char *name)
{
    const int n = (int)l->at->n, d = (int)l->at->d, D = (int)l->at->D;
    rows_case c = rows_of(R, W, n, d, D);
    assert_false(l->has_M);
    assert_false(l->centred.has_M);
    assert_true(l->sample->has_M && l->sample->has_centred);
    check_figures(&l->sample->estimates, &l->sample->bounds, &c, l, name);
    rows_free(&c);
    for (int a = 0; a < d; a++) {
        double mean = 0;
        for (int i = 0; i < n; i++) mean += (double)R[i * d + a] / n;
        for (int i = 0; i < n; i++) R[i * d + a] -= (float)mean;
    }
    c = rows_of(R, W, n, d, D);
    check_figures(&l->sample->centred_estimates, &l->sample->centred_bounds, &c, l, name);
    rows_free(&c);
}

static void check_layout(const layout *t)
{
    const cpl_inspect_options o = sample_of(0.3);
    const char *folder          = scratch_folder();
    float *R                    = malloc(sizeof *R * (size_t)(t->n * t->d));
    float *W                    = malloc(sizeof *W * (size_t)(t->n * t->D * t->d));
    cpl_coupling_report report;
    layout_write(t, folder);
    if (layout_turned(t)) {
        assert_fails(CPL_ERR_INPUT, "stored by columns", inspect_all(&report, folder, &o));
        goto done;
    }
    assert_ok(inspect_all(&report, folder, &o));
    for (int l = 0; l < LAYOUT_LAYERS; l++) {
        for (int i = 0; i < t->n * t->d; i++) R[i] = layout_router(l, i / t->d, i % t->d);
        for (int i = 0; i < t->n * t->D * t->d; i++)
            W[i] = layout_value(t, l, i / (t->D * t->d), 0, i / t->d % t->D, i % t->d);
        check_layer(&report.layers[l], R, W, t->name);
    }
    cpl_inspect_close(&report);
done:
    free(R);
    free(W);
}

TEST(every_layout)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) check_layout(&layouts[i]);
}

/* ---- all of the rows ---- */

TEST(all_rows_are_exact)
{
    inspect_case c                = mixed_case();
    const cpl_inspect_options all = inspect_plainly(), o = sample_of(0.95);
    cpl_coupling_report whole, sampled;
    case_write(&c, 0);
    assert_ok(inspect_all(&whole, c.folder, &all));
    assert_ok(inspect_all(&sampled, c.folder, &o));
    check_same_report(&whole, &sampled);
    for (int64_t k = 0; k < whole.n_layers; k++) {
        const cpl_layer_report *l  = &whole.layers[k];
        const cpl_sample_report *s = sampled.layers[k].sample;
        assert_true(s->plan.whole && s->rows == l->at->D && !l->sample);
        assert_true(s->estimates.kappa_diagonal.low == l->chance.kappa_diagonal);
        assert_true(s->estimates.kappa_diagonal.high == l->chance.kappa_diagonal);
        assert_true(s->estimates.gate_norm.high == l->figures.gate_norm_mean);
        assert_true(s->bounds.alpha_min.low == l->ratios.most);
        assert_true(s->bounds.alpha_min.high == l->ratios.most);
        assert_true(s->centred_bounds.rows_own.low == l->centred.chance.kappa_row_top1);
        assert_true(s->bounds.erc[2].high == l->erc[2]);
    }
    assert_true(whole.bytes_read == sampled.bytes_read);
    cpl_inspect_close(&whole);
    cpl_inspect_close(&sampled);
    case_free(&c);
}

/* ---- resources ---- */

static void check_same_sample(const cpl_coupling_report *a, const cpl_coupling_report *b)
{
    assert_int_equal(a->n_layers, b->n_layers);
    for (int64_t k = 0; k < a->n_layers; k++) {
        const cpl_sample_report *x = a->layers[k].sample, *y = b->layers[k].sample;
        assert_memory_equal(&x->estimates, &y->estimates, sizeof x->estimates);
        assert_memory_equal(&x->bounds, &y->bounds, sizeof x->bounds);
        assert_memory_equal(&x->centred_estimates, &y->centred_estimates, sizeof x->estimates);
        assert_memory_equal(&x->centred_bounds, &y->centred_bounds, sizeof x->bounds);
    }
}

static inspect_case wide_case(void)
{
    inspect_case c = {0};
    case_add(&c, 5, 24, 200);
    case_add(&c, 8, 24, 96);
    case_add(&c, 1, 24, 64);
    return c;
}

TEST(same_bits_with_any_threads)
{
    inspect_case c        = wide_case();
    cpl_inspect_options o = sample_of(0.1);
    cpl_coupling_report one, other;
    case_write(&c, 0);
    assert_ok(inspect_all(&one, c.folder, &o));
    for (o.n_threads = 2; o.n_threads < 6; o.n_threads += 3) {
        assert_ok(inspect_all(&other, c.folder, &o));
        check_same_sample(&one, &other);
        cpl_inspect_close(&other);
    }
    o.seed = 2;
    assert_ok(inspect_all(&other, c.folder, &o));
    assert_true(one.layers[0].sample->estimates.gate_norm.estimate !=
                other.layers[0].sample->estimates.gate_norm.estimate);
    cpl_inspect_close(&other);
    cpl_inspect_close(&one);
    case_free(&c);
}

/* One layer alone has the same sample as among others. */
TEST(a_layer_alone)
{
    const int64_t second  = 1;
    inspect_case c        = wide_case();
    cpl_inspect_options o = sample_of(0.1);
    cpl_coupling_report all, one;
    case_write(&c, 0);
    assert_ok(inspect_all(&all, c.folder, &o));
    o.layers = &second, o.n_layers = 1;
    assert_ok(inspect_all(&one, c.folder, &o));
    assert_memory_equal(&one.layers[0].sample->estimates, &all.layers[1].sample->estimates,
                        sizeof(cpl_row_estimates));
    cpl_inspect_close(&all);
    cpl_inspect_close(&one);
    case_free(&c);
}

TEST(reads_what_it_says)
{
    inspect_case c        = case_of(6, 32, 1000);
    cpl_inspect_options o = sample_of(0.05);
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    case_write(&c, 0);
    assert_ok(cpl_inspect_open(&report, &cost, c.folder, &o, NULL));
    assert_ok(cpl_inspect_run(&report));
    const double row = 4 * 32, router = 6 * row;
    assert_near(cost.whole_bytes, router + 6 * 1000 * row, 0.5);
    assert_true(fabs(cost.bytes - router - 6 * 50 * row) <= 6 * 4 * row);
    assert_near(report.bytes_read, cost.bytes, 0.5);
    assert_true(cost.flops < 0.06 * 2 * 6 * 6 * 32 * 1000);
    cpl_inspect_close(&report);
    case_free(&c);
}

/* No more than was said, of one thread and of several, with the sums of large layers. */
TEST(takes_what_was_said)
{
    static const int shapes[][3] = {{8, 64, 400}, {64, 64, 40}, {200, 16, 20}};
    for (int k = 0; k < 6; k++) {
        inspect_case c        = case_of(shapes[k / 2][0], shapes[k / 2][1], shapes[k / 2][2]);
        cpl_inspect_options o = sample_of(0.1);
        cpl_coupling_report report;
        cpl_inspect_cost cost;
        o.n_threads = k % 2 ? 4 : 1;
        case_write(&c, 0);
        const int64_t before = cpl_alloc_in_use();
        assert_ok(cpl_inspect_open(&report, &cost, c.folder, &o, NULL));
        (void)cpl_alloc_peak();
        assert_ok(cpl_inspect_run(&report));
        assert_true((double)(cpl_alloc_peak() - before) <= cost.memory_bytes);
        cpl_inspect_close(&report);
        assert_int_equal(cpl_alloc_in_use(), before);
        case_free(&c);
    }
}

TEST(no_memory)
{
    inspect_case c              = case_of(4, 8, 40);
    const cpl_inspect_options o = sample_of(0.1);
    cpl_coupling_report report;
    case_write(&c, 0);
    int64_t calls = cpl_alloc_count(), failures = 0;
    assert_ok(inspect_all(&report, c.folder, &o));
    calls = cpl_alloc_count() - calls;
    cpl_inspect_close(&report);
    const int64_t held = cpl_alloc_in_use();
    for (int64_t nth = 1; nth <= calls; nth++) {
        cpl_alloc_fail_at(nth);
        const cpl_status status = inspect_all(&report, c.folder, &o);
        cpl_alloc_fail_at(0);
        if (status == CPL_OK) cpl_inspect_close(&report);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
        assert_int_equal(cpl_alloc_in_use(), held);
        failures += status != CPL_OK;
    }
    /* What does not matter: the look whether the file is GGUF, and the estimate of the speed. */
    assert_true(failures >= calls - 4);
    case_free(&c);
}

/* ---- damage ---- */

/* A number that is none is an error if its row is read, and only then; its row is named. */
TEST(not_a_number)
{
    inspect_case c              = case_of(4, 16, 400);
    const cpl_inspect_options o = sample_of(0.1);
    cpl_coupling_report report;
    int64_t chosen[CPL_ROW_BLOCKS], rows;
    const cpl_row_plan plan = cpl_row_plan_of(400, 1, 0.1);
    char words[64];
    cpl_row_plan_choose(chosen, &plan, 1, 0, 0, 2);
    const int64_t last = cpl_row_plan_block(&plan, chosen[3], &rows) + rows - 1;
    const int64_t free_row =
        last + 1 < 400 ? last + 1 : cpl_row_plan_block(&plan, chosen[0], &rows) - 1;
    case_lay_out(&c);
    put_nan(&c, "model.layers.0.mlp.experts.2.gate_proj.weight", (size_t)free_row * 16 + 3);
    case_write(&c, 0);
    assert_ok(inspect_all(&report, c.folder, &o));
    cpl_inspect_close(&report);
    cpl_folder_remove(c.folder);
    put_nan(&c, "model.layers.0.mlp.experts.2.gate_proj.weight", (size_t)last * 16 + 3);
    snprintf(words, sizeof words, "in its row %d, column 3", (int)last);
    assert_fails(CPL_ERR_INPUT, words, inspect_all(&report, case_write(&c, 0), &o));
    case_free(&c);
}

/* ---- noise, and what is shown ---- */

/* M is that of the noisy rows: 40 samples hold it about as often as they should. */
TEST(noisy_rows)
{
    inspect_case c        = case_of(5, 24, 200);
    cpl_inspect_options o = sample_of(0.2), all = inspect_plainly();
    cpl_coupling_report sampled, whole;
    int held = 0;
    o.noisy = all.noisy = true;
    o.noise_seed = all.noise_seed = 4;
    assert_ok(inspect_all(&whole, case_write(&c, 0), &all));
    for (o.seed = 1; o.seed <= 40; o.seed++) {
        assert_ok(inspect_all(&sampled, c.folder, &o));
        const cpl_sample_report *s = sampled.layers[0].sample;
        assert_true(s->has_M && !s->has_centred);
        assert_true(sampled.layers[0].figures.eps_mean == whole.layers[0].figures.eps_mean);
        held += rows_holds(s->estimates.m_diagonal, whole.layers[0].figures.m_diagonal);
        cpl_inspect_close(&sampled);
    }
    assert_true(held >= 33); /* of 40 at 95 %: fewer once in a thousand times */
    cpl_inspect_close(&whole);
    case_free(&c);
}

static const json_t *at(const json_t *object, const char *a, const char *b, const char *c)
{
    const json_t *x = json_object_get(object, a);
    if (b) x = json_object_get(x, b);
    if (c) x = json_object_get(x, c);
    return x;
}

TEST(json_tells_estimates_from_bounds)
{
    inspect_case c              = case_of(5, 24, 200);
    const cpl_inspect_options o = sample_of(0.1);
    cpl_coupling_report report;
    assert_ok(inspect_all(&report, case_write(&c, 0), &o));
    const cpl_sample_report *s = report.layers[0].sample;
    json_t *json               = cpl_coupling_json(&report, 1);
    const json_t *layer        = json_array_get(json_object_get(json, "layers"), 0);
    const json_t *sample       = json_object_get(layer, "sample");
    assert_near(json_number_value(json_object_get(json, "sample_share")), 0.1, 1e-12);
    assert_int_equal(json_integer_value(at(sample, "rows", NULL, NULL)), s->rows);
    const json_t *own = at(sample, "estimates", "kappa_diagonal", NULL);
    assert_true(json_number_value(at(own, "low", NULL, NULL)) == s->estimates.kappa_diagonal.low);
    assert_true(json_number_value(at(own, "estimate", NULL, NULL)) ==
                s->estimates.kappa_diagonal.estimate);
    const json_t *least = at(sample, "centred", "bounds", "alpha_min");
    assert_null(at(least, "estimate", NULL, NULL));
    assert_true(json_number_value(at(least, "low", NULL, NULL)) == s->centred_bounds.alpha_min.low);
    assert_non_null(at(at(sample, "bounds", "erc", "3.5"), "high", NULL, NULL));
    assert_null(json_object_get(layer, "kappa"));
    assert_null(json_object_get(layer, "erc"));
    assert_null(json_object_get(layer, "centred"));
    assert_non_null(at(layer, "eps", "mean", NULL));
    assert_true(json_is_null(at(layer, "expert_norm", "mean", NULL)));
    json_decref(json);
    cpl_inspect_close(&report);
    case_free(&c);
}

/* What needs the router alone is what all rows give, of centred rows too: in JSON and in the table. */
TEST(the_router_alone_is_exact)
{
    static const char *const names[] =
        LIST("eps_mean", "router_cos", "centred_eps_mean", "centred_eps_min", "centred_eps_max",
             "centred_router_norm_mean", "centred_router_norm_std", "centred_router_cos",
             "centred_router_effective_rank");
    inspect_case c        = case_of(5, 24, 200);
    cpl_inspect_options o = sample_of(0.1), all = inspect_plainly();
    cpl_coupling_report part, whole;
    case_write(&c, 0);
    assert_ok(inspect_all(&part, c.folder, &o));
    assert_ok(inspect_all(&whole, c.folder, &all));
    json_t *some = cpl_coupling_json(&part, 1), *full = cpl_coupling_json(&whole, 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *got =
            at(json_array_get(json_object_get(some, "layers"), 0), "figures", names[i], NULL);
        const json_t *want =
            at(json_array_get(json_object_get(full, "layers"), 0), "figures", names[i], NULL);
        if (!json_is_real(got) || !json_equal(got, want)) fail_msg("%s differs", names[i]);
    }
    assert_null(at(json_array_get(json_object_get(some, "layers"), 0), "figures",
                   "centred_kappa_diagonal", NULL));
    char cosines[2][64] = {"", ""};
    for (int k = 0; k < 2; k++) {
        cpl_pool pool = {0};
        cpl_grid g;
        assert_ok(cpl_inspect_grid(&g, &pool, k ? &whole : &part, CPL_TABLE_RAW));
        for (int64_t column = 0; column < g.n_columns; column++)
            if (strcmp(g.columns[column], "|cos|") == 0)
                snprintf(cosines[k] + strlen(cosines[k]), 20, "%s;", g.cells[column]);
        cpl_pool_free(&pool);
    }
    assert_string_equal(cosines[0], cosines[1]);
    json_decref(some);
    json_decref(full);
    cpl_inspect_close(&part);
    cpl_inspect_close(&whole);
    case_free(&c);
}

/* Of a layer of which every gate has the router row that is `apart` places after its own added `by` times. */
static void check_verdict(float by, int apart, double share, const char *words)
{
    inspect_case c              = case_of(12, 24, 400);
    const cpl_inspect_options o = sample_of(share);
    cpl_text verdict            = {0};
    cpl_coupling_report report;
    for (int j = 0; j < 12; j++)
        for (int k = 0; k < 400 * 24; k++)
            c.layers[0].W[j * 400 * 24 + k] +=
                by * case_normal(7, j, k / 24) * c.layers[0].R[(j + apart) % 12 * 24 + k % 24];
    assert_ok(inspect_all(&report, case_write(&c, 0), &o));
    cpl_coupling_verdict(&verdict, &report);
    if (strncmp(verdict.bytes, words, strlen(words)) != 0)
        fail_msg("%g, %d, %g: %s", (double)by, apart, share, verdict.bytes);
    cpl_text_free(&verdict);
    cpl_inspect_close(&report);
    case_free(&c);
}

/* The state, where both ends of the bounds have one; then figures, bounds where they have some width. */
TEST(the_verdict_of_a_sample)
{
    check_verdict(
        0, 0, 0.02,
        "Whether router and experts are coupled cannot be told from this sample; a larger "
        "--sample, or none, says more (coupled layers: 0 to 1 of 1).\nRouter rows as "
        "stored: 0 to 100 % excite their own expert most (chance: 8.33 %), 0 to 100 % of");
    check_verdict(
        0.5f, 0, 0.3,
        "Router and experts are coupled, as far as the sample shows (coupled layers: 1 of "
        "1).\nRouter rows as stored: 100 % excite their own");
    check_verdict(0.5f, 1, 0.3,
                  "Router and experts are not coupled, as far as the sample shows (coupled layers: "
                  "0 of 1).\nRouter rows as stored: 0 % excite their own");
}

/* ---- few experts, whose z is never far from 0 ---- */

static const char *verdict_of(const inspect_case *c, double share, bool noisy)
{
    cpl_inspect_options o = sample_of(share);
    cpl_coupling_report report;
    o.noisy = noisy;
    assert_ok(inspect_all(&report, c->folder, &o));
    const char *words = cpl_coupling_state_of(&report).words;
    cpl_inspect_close(&report);
    return words ? words : "unknown";
}

/* Of so many layers of n experts, each of whose gates has its own row added `own` times; `apart`: router
 * rows at right angles. */
static inspect_case coupled_case(int n, int layers, int D, float own, bool apart)
{
    inspect_case c = {0};
    for (int l = 0; l < layers; l++) {
        inspect_layer *at = case_add(&c, n, 24, D);
        for (int i = 0; i < n * 24 && apart; i++) at->R[i] = i % 25 == 0;
        for (int j = 0; j < n; j++)
            for (int k = 0; k < D * 24; k++)
                at->W[j * D * 24 + k] +=
                    own * case_normal(7, l * n + j, k / 24) * at->R[j * 24 + k % 24];
    }
    case_write(&c, 0);
    return c;
}

/* Adds to `told`: the sample shares that decide, by whether it is "coupled". */
static void never_contradicts(const inspect_case *c, bool noisy, int told[2])
{
    const char *all = verdict_of(c, 0, noisy);
    for (int p = 1; p <= 3; p++) {
        const char *part = verdict_of(c, p * p * 0.05, noisy);
        if (strcmp(part, "unknown") == 0) continue;
        told[strcmp(part, "coupled") == 0]++;
        if (strcmp(part, all) != 0)
            fail_msg("%d experts, %d layers, %d %%: \"%s\", and of all rows \"%s\"", c->layers[0].n,
                     c->n_layers, p * p * 5, part, all);
    }
}

TEST(few_experts)
{
    static const float own[] = {0, 0.02f, 0.05f, 0.1f, 0.5f, 2};
    int told[2]              = {0};
    for (int n = 2; n <= 4; n++)
        for (int k = 0; k < 12; k++) {
            inspect_case c = coupled_case(n, k % 2 ? 4 : 1, 400, own[k / 2], false);
            never_contradicts(&c, false, told);
            never_contradicts(&c, true, told);
            case_free(&c);
        }
    assert_true(told[0] > 0 && told[1] > 10);
}

/* Their z is at most 2.8, which may be chance; the bounds show it. */
TEST(three_experts_that_agree)
{
    inspect_case c = coupled_case(3, 2, 800, 2, true);
    assert_string_equal(verdict_of(&c, 0, false), "coupled");
    assert_string_equal(verdict_of(&c, 0.3, false), "coupled");
    case_free(&c);
}
