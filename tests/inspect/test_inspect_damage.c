/* test_inspect_damage.c - inspection of damaged checkpoints: the report names the damaged layer,
 * and the other layers have the figures of the sound checkpoint. */
#include <omp.h>

#include "inspect/inspect_case.h"
#include "tensor/backend/backend.h"

/* Checks that layer `faulty` alone has a fault with these words, and other layers are as in
 * `sound`. */
static void check_fault(const char *folder, const cpl_coupling_report *sound, int64_t faulty,
                        const char *words)
{
    cpl_inspect_options options = inspect_plainly();
    cpl_coupling_report report;
    for (int threads = 1; threads <= 3; threads++) {
        options.n_threads  = threads;
        options.keep_going = true;
        assert_ok(inspect_all(&report, folder, &options));
        assert_int_equal(report.n_layers, sound->n_layers);
        assert_int_equal(report.n_measured, sound->n_layers - 1);
        for (int64_t l = 0; l < report.n_layers; l++) {
            const cpl_layer_report *layer = &report.layers[l];
            if (l != faulty) {
                check_same_layer(layer, &sound->layers[l]);
                continue;
            }
            assert_non_null(layer->fault);
            if (!strstr(layer->fault, words))
                fail_msg("\"%s\" does not say \"%s\"", layer->fault, words);
            assert_false(layer->has_M || layer->skipped);
        }
        cpl_inspect_close(&report);
        options.keep_going = false;
        assert_fails(CPL_ERR_INPUT, words, inspect_all(&report, folder, &options));
        assert_null(report.path);
    }
}

/* Writes and returns the mixed case. Sets `sound` to its report, before a test damages it. */
static inspect_case sound_case(cpl_coupling_report *sound)
{
    inspect_case c              = mixed_case();
    cpl_inspect_options options = inspect_plainly();
    assert_ok(inspect_all(sound, case_write(&c, 0), &options));
    return c;
}

TEST(nan_in_a_gate)
{
    cpl_coupling_report sound;
    inspect_case c = sound_case(&sound);
    put_nan(&c, "model.layers.3.mlp.experts.20.gate_proj.weight", 2 * 33 + 7);
    check_fault(case_write(&c, 0), &sound, 3,
                "layers.3.mlp.experts.20.gate_proj.weight: the gate of expert 20 has 1 values that "
                "are NaN or infinite, the first (NaN) in its row 2, column 7");
    case_close(&c, &sound);
}

TEST(nan_in_a_router)
{
    cpl_coupling_report sound;
    inspect_case c = sound_case(&sound);
    put_nan(&c, "model.layers.0.mlp.gate.weight", 41);
    check_fault(case_write(&c, 0), &sound, 0,
                "layers.0.mlp.gate.weight: the router has 1 values that are NaN or infinite, the "
                "first (NaN) in row 1, column 1");
    case_close(&c, &sound);
}

/* Each shard holds a layer. One shard is missing, and then it ends too early. */
TEST(a_shard_is_missing)
{
    inspect_case c = {0};
    for (int l = 0; l < 4; l++) case_add(&c, 3, 20, 6);
    case_lay_out(&c); /* four tensors a layer: put in turns, a shard has one of each layer */
    layout_files *turned = calloc(1, sizeof *turned);
    for (int i = 0; i < 16; i++) turned->all[i] = c.files->all[i % 4 * 4 + i / 4];
    turned->count = 16;
    free(c.files);
    c.files = turned;
    cpl_coupling_report sound;
    cpl_inspect_options options = inspect_plainly();
    assert_ok(inspect_all(&sound, case_write(&c, 4), &options));
    assert_int_equal(truncate(case_shard(&c, 2, 4), 600), 0);
    check_fault(c.folder, &sound, 2, "model-00003-of-00004.safetensors");
    assert_int_equal(unlink(case_shard(&c, 2, 4)), 0);
    check_fault(c.folder, &sound, 2, "model-00003-of-00004.safetensors");
    case_close(&c, &sound);
}

TEST(a_wrong_shape)
{
    cpl_coupling_report sound;
    inspect_case c   = sound_case(&sound);
    layout_tensor *t = case_tensor(&c, "model.layers.4.mlp.experts.7.gate_proj.weight");
    t->shape[0] = 40, t->shape[1] = 30;
    check_fault(case_write(&c, 0), &sound, 4, "experts.7.gate_proj.weight is [40,30], but");
    t->shape[0] = 30, t->shape[1] = 40;
    snprintf(t->name, sizeof t->name, "model.layers.4.mlp.experts.9.gate_proj.weight");
    check_fault(case_write(&c, 0), &sound, 4, "experts.7.gate_proj.weight is missing");
    case_close(&c, &sound);
}

/* Every layer lacks an expert. The error names the chosen layer. */
TEST(faults_of_chosen_layers)
{
    enum { CHOSEN = 4 };
    const int64_t chosen        = CHOSEN;
    cpl_inspect_options options = inspect_plainly();
    cpl_coupling_report report;
    inspect_case c = {0};
    for (int l = 0; l <= CHOSEN; l++) case_add(&c, 4, 20, 6);
    case_lay_out(&c);
    for (int l = 0; l <= CHOSEN; l++) {
        char name[80];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.2.gate_proj.weight", l);
        layout_tensor *t = case_tensor(&c, name);
        snprintf(t->name, sizeof t->name, "model.layers.%d.mlp.experts.9.gate_proj.weight", l);
    }
    options.layers = &chosen, options.n_layers = 1;
    assert_fails(CPL_ERR_INPUT, "model.layers.4.mlp.experts.2.gate_proj.weight is missing",
                 inspect_all(&report, case_write(&c, 0), &options));
    assert_null(strstr(cpl_last_error(), "not shown"));
    case_free(&c);
}

/* With several faults, the error names the first in the file, whichever thread is first. */
TEST(the_first_fault)
{
    inspect_case c = mixed_case();
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    case_lay_out(&c);
    for (int e = 7; e < 24; e++) {
        char name[80];
        snprintf(name, sizeof name, "model.layers.3.mlp.experts.%d.gate_proj.weight", e);
        put_nan(&c, name, e < 10 ? 12 * 33 - 1 : 0);
    }
    put_nan(&c, "model.layers.4.mlp.gate.weight", 0);
    put_nan(&c, "model.layers.4.mlp.experts.0.gate_proj.weight", 0);
    case_write(&c, 0);
    for (int k = 0; k < 60; k++) {
        options.n_threads  = 1 + k % 7;
        options.keep_going = false;
        assert_fails(CPL_ERR_INPUT, "the gate of expert 7 has",
                     inspect_all(&report, c.folder, &options));
        options.keep_going = true;
        assert_ok(inspect_all(&report, c.folder, &options));
        assert_int_equal(report.n_measured, 3);
        assert_non_null(strstr(report.layers[3].fault, "the gate of expert 7 has"));
        assert_non_null(strstr(report.layers[4].fault, "mlp.gate.weight: the router has 1"));
        cpl_inspect_close(&report);
    }
    case_free(&c);
}

/* Finite weights may have products that are not finite: their layer has no figures. */
TEST(too_large_numbers)
{
    for (int k = 0; k < 3; k++) {
        cpl_coupling_report sound;
        inspect_case c = sound_case(&sound);
        float *R       = (float *)(void *)case_tensor(&c, "model.layers.0.mlp.gate.weight")->data;
        float *W =
            (float *)(void *)case_tensor(&c, "model.layers.0.mlp.experts.3.gate_proj.weight")->data;
        for (int a = 0; a < 40; a++) R[2 * 40 + a] *= k == 2 ? 1 : 1e20f;
        for (int a = 0; a < 17 * 40; a++) W[a] *= k == 0 ? 1 : k == 1 ? 1e20f : 3e38f;
        check_fault(case_write(&c, 0), &sound, 0,
                    k == 0
                        ? "layers.0.mlp.gate.weight: the product of router row 2 and row 2 is no "
                          "finite number"
                    : k == 1 ? "product of router row 2 and the gate of expert 3 is no finite"
                             : "product of router row ");
        cpl_inspect_close(&sound);
        case_free(&c);
    }
}
