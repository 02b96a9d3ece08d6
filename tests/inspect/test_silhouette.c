/* test_silhouette.c - silhouettes of a checkpoint's experts: the values of planted weights, and the
 * ends of the range. tests/cli/check_inspect.py compares with all pairs, test_silhouette_rows.c
 * tests rows. */
#include "inspect/inspect_case.h"

static cpl_coupling_report clustered(inspect_case *c, bool keep_going)
{
    cpl_inspect_options options = inspect_plainly();
    options.silhouette          = true;
    options.keep_going          = keep_going;
    options.n_threads           = 3;
    return inspected(c, options);
}

static float *row_of(const inspect_layer *l, int expert, int row)
{
    return l->W + (size_t)((expert * l->D + row) * l->d);
}

/* Sets every row of expert e along axis(e), with its own length. */
static void point(const inspect_layer *l, int (*axis)(int expert, int row))
{
    memset(l->W, 0, sizeof(float) * (size_t)(l->n * l->D * l->d));
    for (int e = 0; e < l->n; e++)
        for (int r = 0; r < l->D; r++) row_of(l, e, r)[axis(e, r)] = (float)(1 + r);
}

static int by_expert(int expert, int row)
{
    (void)row;
    return expert;
}

static int by_row(int expert, int row)
{
    (void)expert;
    return row;
}

/* Returns the axis of a row: all rows of expert 0 but the first lie with expert 1's. */
static int astray(int expert, int row)
{
    return expert == 0 && row > 0 ? 1 : expert;
}

TEST(planted)
{
    inspect_case c = case_of(4, 9, 5);
    case_add(&c, 4, 9, 5);
    case_add(&c, 3, 9, 5);
    point(&c.layers[0], by_expert);
    point(&c.layers[1], by_row);
    point(&c.layers[2], astray);
    cpl_coupling_report r = clustered(&c, false);
    for (int e = 0; e < 4; e++) {
        assert_near(r.layers[0].silhouettes[e], 1, 1e-5);
        /* The distance to the D - 1 own rows is 1, to another expert's 1 - 1/D: (0.8 - 1) / 1. */
        assert_near(r.layers[1].silhouettes[e], -0.2, 1e-5);
    }
    assert_near(r.layers[0].silhouette, 1, 1e-5);
    assert_near(r.layers[1].silhouette, -0.2, 1e-5);
    /* First row: a = b = 1. The other four: a = 1/4, b = 0. Expert 1: a = 0, b = 1/5. */
    assert_near(r.layers[2].silhouettes[0], -0.8, 1e-4);
    assert_near(r.layers[2].silhouettes[1], 1, 1e-4);
    assert_near(r.layers[2].silhouettes[2], 1, 1e-4);
    assert_near(r.layers[2].silhouette, 1.2 / 3, 1e-4);
    case_close(&c, &r);
}

TEST(scales_change_nothing)
{
    inspect_case c = case_of(5, 24, 7), scaled = case_of(5, 24, 7);
    for (int i = 0; i < 5 * 7; i++)
        for (int k = 0; k < 24; k++) scaled.layers[0].W[i * 24 + k] *= (float)(1 << i % 20);
    cpl_coupling_report a = clustered(&c, false), b = clustered(&scaled, false);
    assert_memory_equal(a.layers[0].silhouettes, b.layers[0].silhouettes, 5 * sizeof(double));
    assert_true(a.layers[0].gate_norm[1] < b.layers[0].gate_norm[1]);
    case_close(&c, &a);
    case_close(&scaled, &b);
}

/* A single expert has no other experts, a single row no other rows, and a zero row no direction. */
TEST(ends)
{
    inspect_case c = case_of(1, 12, 5);
    case_add(&c, 6, 12, 1);
    case_add(&c, 2, 12, 2);
    memset(row_of(&c.layers[2], 0, 1), 0, 12 * sizeof(float));
    cpl_coupling_report r = clustered(&c, false);
    assert_true(isnan(r.layers[0].silhouette) && isnan(r.layers[0].silhouettes[0]));
    assert_true(r.layers[1].silhouette == 0 && r.layers[1].silhouettes[5] == 0);
    assert_true(isfinite(r.layers[2].silhouette));
    json_t *json = cpl_coupling_json(&r, 1), *layers = json_object_get(json, "layers");
    assert_true(json_is_null(json_object_get(json_array_get(layers, 0), "silhouette")));
    assert_true(json_is_real(json_object_get(json_array_get(layers, 1), "silhouette")));
    assert_int_equal(
        json_array_size(json_object_get(json_array_get(layers, 1), "silhouette_experts")), 6);
    json_decref(json);
    case_close(&c, &r);
}

/* A gate that cannot be read leaves its layer out. The other layers keep their figures. */
TEST(damage)
{
    for (int expert = 0; expert < 5; expert += 2) {
        inspect_case c = mixed_case(), sick = mixed_case();
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.gate_proj.weight", expert);
        case_lay_out(&sick);
        put_nan(&sick, name, 7);
        cpl_coupling_report a = clustered(&c, false), b = clustered(&sick, true);
        assert_non_null(b.layers[0].fault);
        assert_int_equal(b.n_measured, 4);
        for (int l = 1; l < 5; l++) check_same_layer(&a.layers[l], &b.layers[l]);
        cpl_inspect_close(&a);
        cpl_inspect_close(&b);
        case_free(&c);
        case_free(&sick);
    }
}

/* Gates are read twice and multiplied twice, except the gate of a single expert. The memory is
 * predicted. */
TEST(cost)
{
    inspect_case c              = case_of(4, 16, 8);
    cpl_inspect_options options = inspect_plainly();
    cpl_inspect_cost once, twice;
    cpl_coupling_report plain, r;
    case_add(&c, 1, 16, 8);
    case_write(&c, 0);
    assert_ok(cpl_inspect_open(&plain, &once, c.folder, &options, NULL));
    assert_ok(cpl_inspect_run(&plain));
    options.silhouette = true;
    assert_ok(cpl_inspect_open(&r, &twice, c.folder, &options, NULL));
    assert_ok(cpl_inspect_run(&r));
    assert_near(twice.flops - once.flops, 2.0 * 4 * 4 * 16 * 8, 0.5);
    assert_near(twice.bytes - once.bytes, 4 * (4.0 * 16 + 4 * 8 * 16), 0.5);
    /* Memory holds the means of a layer in work, and the sum of one thread. */
    assert_true(twice.memory_bytes - once.memory_bytes >= 4.0 * 4 * 16 + 8.0 * 16);
    assert_near(r.bytes_read, twice.bytes, 0.5);
    assert_near(r.flops, twice.flops, 0.5);
    assert_true(isnan(plain.layers[0].silhouette) && !plain.layers[0].silhouettes);
    cpl_inspect_close(&plain);
    case_close(&c, &r);
}
