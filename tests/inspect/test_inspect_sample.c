/* test_inspect_sample.c - an inspection with options.sample: the blocks that are read in every
 * layout, the bytes that it predicts, threads, memory, damage, and the shown figures. test_sample.c
 * tests the estimates. */
#include "inspect/families/layout_list.h"
#include "inspect/inspect_case.h"
#include "inspect/sample_case.h"

static cpl_inspect_options sample_of(double share)
{
    cpl_inspect_options o = inspect_plainly();
    o.sample              = share;
    return o;
}

/* ---- figures of the blocks ---- */

/* Returns the rows of a layer from its numbers: R [n,d], W [n,D,d]. */
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

static void check_figures(const cpl_estimate got[CPL_SAMPLE_FIGURES], rows_case *c,
                          const cpl_layer_report *l, const char *name)
{
    const cpl_row_plan *plan = &l->sample->plan;
    cpl_row_sums s           = {c->n, plan->n_read, plan->n_blocks, NULL, NULL};
    cpl_estimate want[CPL_SAMPLE_FIGURES];
    s.squares = malloc(sizeof(double) * (size_t)(c->n * s.n_read * c->n));
    s.norms   = malloc(sizeof(double) * (size_t)(c->n * s.n_read));
    for (int j = 0; j < c->n; j++) {
        int64_t chosen[CPL_ROW_BLOCKS], rows;
        cpl_row_plan_choose(chosen, plan, 1, 0, l->at->layer, j);
        for (int64_t k = 0; k < s.n_read; k++) {
            const int64_t first = cpl_row_plan_block(plan, chosen[k], &rows);
            rows_add(c, j, first, rows, s.squares + (j * s.n_read + k) * c->n,
                     &s.norms[j * s.n_read + k]);
        }
    }
    cpl_sample_estimate(want, &s, c->row_norm);
    for (int f = 0; f < CPL_SAMPLE_FIGURES; f++)
        if (fabs(got[f].estimate - want[f].estimate) > 1e-4 * (1e-3 + want[f].estimate) ||
            fabs(got[f].standard_error - want[f].standard_error) > 1e-4 * (1e-3 + want[f].estimate))
            fail_msg("%s, figure %d: %g +- %g, wanted %g +- %g", name, f, got[f].estimate,
                     got[f].standard_error, want[f].estimate, want[f].standard_error);
    rows_free_sums(&s);
}

static void check_layer(const cpl_layer_report *l, float *R, const float *W, const char *name)
{
    const int n = (int)l->at->n, d = (int)l->at->d, D = (int)l->at->D;
    rows_case c = rows_of(R, W, n, d, D);
    assert_false(l->has_M);
    assert_false(l->centred.has_M);
    assert_true(l->sample->has_M && l->sample->has_centred);
    check_figures(l->sample->stored, &c, l, name);
    rows_free(&c);
    for (int a = 0; a < d; a++) {
        double mean = 0;
        for (int i = 0; i < n; i++) mean += (double)R[i * d + a] / n;
        for (int i = 0; i < n; i++) R[i * d + a] -= (float)mean;
    }
    c = rows_of(R, W, n, d, D);
    check_figures(l->sample->centred, &c, l, name);
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
        assert_true(s->stored[CPL_SAMPLE_KAPPA_OWN].estimate == l->chance.kappa_diagonal);
        assert_true(s->stored[CPL_SAMPLE_M_OTHERS].estimate == l->figures.m_off_diagonal);
        assert_true(s->stored[CPL_SAMPLE_GATE_NORM].estimate == l->figures.gate_norm_mean);
        assert_true(s->centred[CPL_SAMPLE_KAPPA_OTHERS].estimate ==
                    l->centred.chance.kappa_off_diagonal);
        for (int f = 0; f < CPL_SAMPLE_FIGURES; f++)
            assert_true(s->stored[f].standard_error == 0 && s->centred[f].standard_error == 0);
    }
    assert_true(whole.bytes_read == sampled.bytes_read);
    cpl_inspect_close(&whole);
    case_close(&c, &sampled);
}

/* ---- resources ---- */

static void check_same_sample(const cpl_coupling_report *a, const cpl_coupling_report *b)
{
    assert_int_equal(a->n_layers, b->n_layers);
    for (int64_t k = 0; k < a->n_layers; k++) {
        const cpl_sample_report *x = a->layers[k].sample, *y = b->layers[k].sample;
        assert_memory_equal(x->stored, y->stored, sizeof x->stored);
        assert_memory_equal(x->centred, y->centred, sizeof x->centred);
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
    assert_true(one.layers[0].sample->stored[CPL_SAMPLE_GATE_NORM].estimate !=
                other.layers[0].sample->stored[CPL_SAMPLE_GATE_NORM].estimate);
    cpl_inspect_close(&other);
    case_close(&c, &one);
}

/* A layer that is inspected alone has the sample that it has among others. */
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
    assert_memory_equal(one.layers[0].sample->stored, all.layers[1].sample->stored,
                        sizeof one.layers[0].sample->stored);
    cpl_inspect_close(&all);
    case_close(&c, &one);
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
    case_close(&c, &report);
}

/* The estimate of the time reads rows of the sample alone, and so takes less memory than a gate. */
TEST(estimates_without_whole_gates)
{
    enum { D = 16000, WIDTH = 32 };
    inspect_case c        = case_of(2, WIDTH, D);
    cpl_inspect_options o = sample_of(0.01);
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    case_write(&c, 0);
    const int64_t before = cpl_alloc_in_use();
    (void)cpl_alloc_peak();
    assert_ok(cpl_inspect_open(&report, &cost, c.folder, &o, NULL));
    assert_true(cpl_alloc_peak() - before < (int64_t)(D * WIDTH * sizeof(float)));
    case_close(&c, &report);
}

/* The bytes taken are within the prediction, for one or more threads, with the sums of large
 * layers. */
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
    /* Some failures change nothing: the check for GGUF, and the estimate of the speed. */
    assert_true(failures >= calls - 4);
    case_free(&c);
}

/* ---- damage ---- */

/* NaN is an error only if its row is read. The error names the row. */
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
    put_nan(&c, "model.layers.0.mlp.experts.2.gate_proj.weight", (size_t)last * 16 + 3);
    snprintf(words, sizeof words, "in its row %d, column 3", (int)last);
    assert_fails(CPL_ERR_INPUT, words, inspect_all(&report, case_write(&c, 0), &o));
    case_free(&c);
}

/* ---- noise, and the shown figures ---- */

/* M belongs to the noisy rows: 40 samples give it on average. */
TEST(noisy_rows)
{
    inspect_case c        = case_of(5, 24, 200);
    cpl_inspect_options o = sample_of(0.2), all = inspect_plainly();
    cpl_coupling_report sampled, whole;
    double mean = 0;
    o.noisy = all.noisy = true;
    o.noise_seed = all.noise_seed = 4;
    assert_ok(inspect_all(&whole, case_write(&c, 0), &all));
    for (o.seed = 1; o.seed <= 40; o.seed++) {
        assert_ok(inspect_all(&sampled, c.folder, &o));
        const cpl_sample_report *s = sampled.layers[0].sample;
        assert_true(s->has_M && !s->has_centred);
        assert_true(sampled.layers[0].figures.eps_mean == whole.layers[0].figures.eps_mean);
        mean += s->stored[CPL_SAMPLE_M_OWN].estimate / 40;
        cpl_inspect_close(&sampled);
    }
    assert_near(mean, whole.layers[0].figures.m_diagonal, 0.02 * mean);
    case_close(&c, &whole);
}

static const json_t *at(const json_t *object, const char *a, const char *b, const char *c)
{
    const json_t *x = json_object_get(object, a);
    if (b) x = json_object_get(x, b);
    if (c) x = json_object_get(x, c);
    return x;
}

TEST(json_of_a_sample)
{
    inspect_case c              = case_of(5, 24, 200);
    const cpl_inspect_options o = sample_of(0.1);
    cpl_coupling_report report  = inspected(&c, o);
    const cpl_sample_report *s  = report.layers[0].sample;
    json_t *json                = cpl_coupling_json(&report, 1);
    const json_t *layer         = json_array_get(json_object_get(json, "layers"), 0);
    const json_t *sample        = json_object_get(layer, "sample");
    assert_near(json_number_value(json_object_get(json, "sample_share")), 0.1, 1e-12);
    assert_int_equal(json_integer_value(at(sample, "rows", NULL, NULL)), s->rows);
    const json_t *own = at(sample, "estimates", "kappa_diagonal", NULL);
    const json_t *centred =
        at(at(sample, "centred", "estimates", NULL), "m_off_diagonal", NULL, NULL);
    const cpl_estimate want = s->stored[CPL_SAMPLE_KAPPA_OWN];
    assert_true(json_number_value(at(own, "estimate", NULL, NULL)) == want.estimate);
    assert_true(json_number_value(at(own, "standard_error", NULL, NULL)) == want.standard_error);
    assert_true(json_number_value(at(centred, "estimate", NULL, NULL)) ==
                s->centred[CPL_SAMPLE_M_OTHERS].estimate);
    assert_null(json_object_get(sample, "bounds"));
    assert_null(json_object_get(json, "summary"));
    assert_true(json_is_null(json_object_get(json, "state")));
    assert_non_null(
        strstr(json_string_value(json_object_get(json, "verdict")), "without --sample"));
    assert_null(json_object_get(layer, "kappa"));
    assert_null(json_object_get(layer, "erc"));
    assert_null(json_object_get(layer, "centred"));
    assert_non_null(at(layer, "eps", "mean", NULL));
    assert_null(json_object_get(layer, "expert_norm"));
    json_decref(json);
    case_close(&c, &report);
}

/* Figures of the router alone equal those of all rows, for centred rows too, in both forms. */
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
    case_close(&c, &whole);
}

/* Norms of gates have a column only if all rows are read. */
TEST(no_column_of_gates)
{
    inspect_case c = case_of(5, 24, 200);
    case_write(&c, 0);
    for (int whole = 0; whole < 2; whole++) {
        const cpl_inspect_options o = sample_of(whole ? 0.95 : 0.1);
        cpl_coupling_report report;
        cpl_pool pool = {0};
        cpl_grid g;
        int there = 0;
        assert_ok(inspect_all(&report, c.folder, &o));
        assert_ok(cpl_inspect_grid(&g, &pool, &report, CPL_TABLE_RAW));
        for (int64_t column = 0; column < g.n_columns; column++)
            there += g.groups[column] && strcmp(g.groups[column], "|W_g|") == 0;
        assert_int_equal(there, whole);
        cpl_pool_free(&pool);
        cpl_inspect_close(&report);
    }
    case_free(&c);
}

/* A sample has no verdict, however many rows it has and however coupled the layer is. */
TEST(a_sample_has_no_verdict)
{
    static const char part[] = "A sample has no verdict: the verdict compares single entries of M, "
                               "and a part of the rows gives their means alone. Run without "
                               "--sample for a verdict.";
    static const char whole[]    = "All rows were read; --sample gives no verdict. Run without "
                                   "--sample for a verdict.";
    static const double shares[] = {0.02, 0.3, 0.95};
    inspect_case c               = case_of(12, 24, 400);
    for (int j = 0; j < 12; j++)
        for (int k = 0; k < 400 * 24; k++)
            c.layers[0].W[j * 400 * 24 + k] +=
                2 * case_normal(7, j, k / 24) * c.layers[0].R[j * 24 + k % 24];
    case_write(&c, 0);
    for (int s = 0; s < 3; s++) {
        const cpl_inspect_options o = sample_of(shares[s]);
        cpl_text verdict            = {0};
        cpl_coupling_report report;
        assert_ok(inspect_all(&report, c.folder, &o));
        cpl_coupling_verdict(&verdict, &report);
        assert_string_equal(verdict.bytes, shares[s] > 0.9 ? whole : part);
        assert_null(cpl_coupling_state_of(&report).words);
        cpl_text_free(&verdict);
        cpl_inspect_close(&report);
    }
    case_free(&c);
}
