/* test_layouts.c - files in every layout give equal router and gate rows, bit for bit, and faults
 * of files are reported. */
#include <math.h>

#include "inspect/gate_reader.h"

#include "inspect/families/layout_list.h"
#include "tensor/backend/backend.h"
#include "tensor/poison/poison.h"

static cpl_status map_of(cpl_moe_map *map, const cpl_stored_files *files)
{
    const cpl_moe_document document = {files->config, files->is_gguf, files->path};
    return cpl_moe_map_make(map, files->tensors, files->count, &document);
}

/* ---- reading ---- */

static int half_read; /* 0: gates; 1: up projections, read as gates in the second half */

static void check_rows(const layout *t, const float *rows, int l, int e, int first, int count)
{
    for (int c = 0; c < count; c++)
        for (int a = 0; a < t->d; a++) {
            float want = layout_value(t, l, e, half_read, first + c, a);
            if (rows[c * t->d + a] != want)
                fail_msg("%s: layer %d expert %d row %d column %d is %.9g, wanted %.9g", t->name, l,
                         e, first + c, a, (double)rows[c * t->d + a], (double)want);
        }
}

static void check_gates(const layout *t, const cpl_moe_layer *layer, int l)
{
    cpl_gate gate = {0};
    float *rows   = malloc(sizeof *rows * (size_t)(t->D * t->d));
    int64_t bytes = 0;
    for (int e = t->n - 1; e >= 0; e--) {
        cpl_gate_prefetch(layer, e);
        assert_ok(cpl_gate_load(&gate, layer, e));
        for (int first = 0, count; first < t->D; first += count) {
            count = first + 5 < t->D ? 5 : t->D - first;
            cpl_gate_rows((cpl_matrix){rows, count, t->d}, &gate, first);
            check_rows(t, rows, l, e, first, count);
        }
        assert_ok(cpl_gate_check(&gate, rows));
    }
    assert_true(gate.size + gate.scale_size <= cpl_gate_bytes(layer));
    bytes = gate.read_bytes;
    assert_true(bytes < cpl_layer_bytes(layer));
    cpl_gate_free(&gate);
    free(rows);
}

/* Reads parts of every gate and compares numbers with the whole, and bytes with the prediction. */
static void check_parts(const layout *t, const cpl_moe_layer *layer, int l)
{
    cpl_gate gate = {0};
    float *rows   = malloc(sizeof *rows * (size_t)(t->D * t->d));
    if (layer->layout == CPL_GATE_COLUMNS) goto done;
    for (int e = 0; e < t->n; e++)
        for (int first = 0; first < t->D; first++)
            for (int count = 1; first + count <= t->D; count += 1 + count / 2) {
                const int64_t before = gate.read_bytes, inner = first + count / 2;
                cpl_gate_prefetch_rows(layer, e, first, count);
                assert_ok(cpl_gate_load_rows(&gate, layer, e, first, count));
                cpl_gate_rows((cpl_matrix){rows, count, t->d}, &gate, first);
                check_rows(t, rows, l, e, first, count);
                cpl_gate_rows((cpl_matrix){rows, 1, t->d}, &gate, inner);
                check_rows(t, rows, l, e, (int)inner, 1);
                assert_ok(cpl_gate_check(&gate, rows));
                assert_int_equal(gate.read_bytes - before,
                                 cpl_gate_rows_bytes(layer, e, first, count));
            }
    for (int e = 0; e < t->n; e++)
        assert_true(t->D == 1 || cpl_gate_rows_bytes(layer, e, t->D / 2, 1) <
                                     cpl_gate_rows_bytes(layer, e, 0, t->D));
done:
    cpl_gate_free(&gate);
    free(rows);
}

static void check_layer(const layout *t, const cpl_moe_layer *layer, int l)
{
    if (layer->fault) fail_msg("%s: %s", t->name, layer->fault);
    assert_null(layer->skip);
    assert_int_equal(layer->n, t->n);
    assert_int_equal(layer->d, t->d);
    assert_int_equal(layer->D, t->D);
    assert_int_equal(layer->K, t->K);
    assert_int_equal(layer->layer, l + t->first);
    assert_int_equal(layer->extra_rows, t->extra);
    float *R = malloc(sizeof *R * (size_t)(t->n * t->d));
    assert_ok(cpl_router_read((cpl_matrix){R, t->n, t->d}, layer));
    for (int i = 0; i < t->n; i++)
        for (int a = 0; a < t->d; a++)
            if (R[i * t->d + a] != layout_router(l, i, a))
                fail_msg("%s: router row %d column %d", t->name, i, a);
    free(R);
    check_gates(t, layer, l);
    check_parts(t, layer, l);
    if (layer->width == layer->D || layer->interleaved) return;
    cpl_moe_layer second = *layer;
    second.second        = true;
    half_read            = 1;
    check_gates(t, &second, l);
    check_parts(t, &second, l);
    half_read = 0;
}

static void check_layout(const layout *t)
{
    const char *folder = scratch_folder();
    layout_write(t, folder);
    cpl_stored_files *files;
    cpl_moe_map map;
    assert_ok(cpl_stored_open(&files, NULL, folder, (double)INFINITY, NULL));
    if (map_of(&map, files) != CPL_OK) fail_msg("%s: %s", t->name, cpl_last_error());
    assert_int_equal(map.n_layers, LAYOUT_LAYERS);
    for (int l = 0; l < LAYOUT_LAYERS; l++) check_layer(t, &map.layers[l], l);
    cpl_moe_map_free(&map);
    cpl_stored_close(files);
}

TEST(every_layout)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) check_layout(&layouts[i]);
}

/* ---- the folders that Transformers has written ---- */

static void check_golden(const cpl_moe_map *map, const char *folder)
{
    json_error_t error;
    json_t *expected = json_load_file(in_folder(folder, "expected.json"), 0, &error);
    json_t *layers   = json_object_get(expected, "layers");
    assert_string_equal(map->family, json_string_value(json_object_get(expected, "family")));
    assert_int_equal(map->n_layers, json_array_size(layers));
    assert_int_equal(map->n_notes, 0);
    assert_int_equal(map->n_dense, json_array_size(json_object_get(expected, "skipped_layers")));
    for (int64_t i = 0; i < map->n_layers; i++) {
        const cpl_moe_layer *layer = &map->layers[i];
        json_t *want               = json_array_get(layers, (size_t)i);
        assert_null(layer->fault);
        assert_int_equal(layer->layer, json_integer_value(json_object_get(want, "layer")));
        assert_int_equal(layer->K, json_integer_value(json_object_get(want, "K")));
        assert_int_equal(layer->n, json_integer_value(json_object_get(want, "n")));
        assert_int_equal(layer->d, json_integer_value(json_object_get(want, "d")));
        assert_int_equal(layer->D, json_integer_value(json_object_get(want, "D")));
        json_t *l = json_object_get(want, "l");
        assert_int_equal(layer->l, l ? json_integer_value(l) : layer->d);
    }
    json_decref(expected);
}

TEST(golden_families)
{
    static const char *const names[] = {"olmoe",     "sharded_olmoe", "mixtral",
                                        "qwen3_moe", "deepseek_v3",   "granitemoe",
                                        "gpt_oss",   "nemotron_h",    "muse_spark_text"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char relative[128];
        snprintf(relative, sizeof relative, "families/%s", names[i]);
        const char *folder = golden_path(relative);
        cpl_stored_files *files;
        cpl_moe_map map;
        assert_ok(cpl_stored_open(&files, NULL, folder, (double)INFINITY, NULL));
        assert_ok(map_of(&map, files));
        check_golden(&map, folder);
        cpl_moe_map_free(&map);
        cpl_stored_close(files);
    }
}

/* ---- GGUF, compared with the Python package ---- */

static void read_wanted(float *out, cpl_stored_files *wanted, const char *what, int64_t layer,
                        size_t count)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%lld", what, (long long)layer);
    const cpl_stored *tensor = cpl_stored_find(wanted, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->n_elements, count);
    assert_ok(cpl_stored_read(tensor, out, 0, count * sizeof *out));
}

static void check_gguf_layer(const cpl_moe_layer *layer, cpl_stored_files *wanted)
{
    enum { N = 3, WIDTH = 5, MODEL = 256, GATE = WIDTH * MODEL };
    static float R[N * MODEL], rows[GATE], want_R[N * MODEL], want[N * GATE];
    cpl_gate gate = {0};
    assert_null(layer->fault);
    assert_int_equal(layer->n, N);
    assert_int_equal(layer->D, WIDTH);
    assert_int_equal(layer->K, 2);
    read_wanted(want_R, wanted, "R", layer->layer, N * MODEL);
    read_wanted(want, wanted, "G", layer->layer, N * GATE);
    assert_ok(cpl_router_read((cpl_matrix){R, N, MODEL}, layer));
    assert_memory_equal(R, want_R, sizeof R);
    for (int e = 0; e < N; e++) {
        assert_ok(cpl_gate_load(&gate, layer, e));
        cpl_gate_rows((cpl_matrix){rows, WIDTH, MODEL}, &gate, 0);
        for (int i = 0; i < GATE; i++)
            assert_near(rows[i], want[e * GATE + i], 1e-6 * fabs(want[e * GATE + i]));
    }
    cpl_gate_free(&gate);
}

TEST(gguf_files)
{
    static const struct {
        const char *name, *family;
        int n_layers, n_dense, n_mtp;
    } files[] = {{"deepseek2", "deepseek_v2", 3, 1, 1}, {"llama", "mixtral", 1, 0, 0}};
    for (int i = 0; i < 2; i++) {
        char name[64];
        cpl_stored_files *file, *wanted;
        cpl_moe_map map;
        snprintf(name, sizeof name, "gguf/moe/%s.gguf", files[i].name);
        assert_ok(cpl_stored_open(&file, NULL, golden_path(name), (double)INFINITY, NULL));
        snprintf(name, sizeof name, "gguf/moe/%s.safetensors", files[i].name);
        assert_ok(cpl_stored_open(&wanted, NULL, golden_path(name), (double)INFINITY, NULL));
        assert_ok(map_of(&map, file));
        assert_string_equal(map.family, files[i].family);
        assert_int_equal(map.n_layers, files[i].n_layers);
        assert_int_equal(map.n_dense, files[i].n_dense);
        assert_int_equal(map.n_mtp, files[i].n_mtp);
        assert_int_equal(map.n_notes, 0);
        for (int64_t l = 0; l < map.n_layers; l++) check_gguf_layer(&map.layers[l], wanted);
        cpl_moe_map_free(&map);
        cpl_stored_close(wanted);
        cpl_stored_close(file);
    }
}

/* ---- NaN, and bytes that were read ---- */

TEST(not_a_number)
{
    enum { N = 2, MODEL = 4, WIDTH = 3 };
    const char *folder = scratch_folder();
    layout_files *f    = calloc(1, sizeof *f);
    int64_t router[2] = {N, MODEL}, gate[2] = {WIDTH, MODEL};
    float nan = NAN, infinite = -INFINITY;
    layout_add(f, "layers.0.mlp.gate.weight", CPL_SAFETENSORS_F32, 2, router, 4 * N * MODEL);
    layout_add(f, "layers.0.mlp.experts.0.gate_proj.weight", CPL_SAFETENSORS_F32, 2, gate,
               4 * WIDTH * MODEL);
    layout_add(f, "layers.0.mlp.experts.1.gate_proj.weight", CPL_SAFETENSORS_F32, 2, gate,
               4 * WIDTH * MODEL);
    memcpy(f->all[0].data + 4 * (MODEL + 2), &nan, 4);
    memcpy(f->all[2].data + 4 * (2 * MODEL + 1), &infinite, 4);
    memcpy(f->all[2].data + 4 * (2 * MODEL + 3), &nan, 4);
    layout_write_file(f, in_folder(folder, "model.safetensors"), 0, 1);
    for (int i = 0; i < f->count; i++) free(f->all[i].data);
    free(f);

    cpl_stored_files *files;
    cpl_moe_map map;
    cpl_gate gate_1 = {0};
    float R[N * MODEL], scratch[MODEL];
    assert_ok(cpl_stored_open(&files, NULL, folder, (double)INFINITY, NULL));
    assert_ok(map_of(&map, files));
    assert_fails(CPL_ERR_INPUT,
                 "layers.0.mlp.gate.weight: the router has 1 values that are NaN or infinite, the "
                 "first (NaN) in row 1, column 2",
                 cpl_router_read((cpl_matrix){R, N, MODEL}, &map.layers[0]));
    assert_ok(cpl_gate_load(&gate_1, &map.layers[0], 0));
    assert_ok(cpl_gate_check(&gate_1, scratch));
    assert_ok(cpl_gate_load(&gate_1, &map.layers[0], 1));
    assert_fails(CPL_ERR_INPUT,
                 "experts.1.gate_proj.weight: the gate of expert 1 has 2 values that are NaN or "
                 "infinite, the first (-Inf) in its row 2, column 1",
                 cpl_gate_check(&gate_1, scratch));
    assert_int_equal(gate_1.read_bytes, 2 * 4 * WIDTH * MODEL);
    assert_int_equal(cpl_layer_bytes(&map.layers[0]), 4 * (N * MODEL + 2 * WIDTH * MODEL));
    cpl_gate_free(&gate_1);
    cpl_moe_map_free(&map);
    cpl_stored_close(files);
}
