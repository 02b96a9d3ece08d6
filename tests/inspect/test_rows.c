/* test_rows.c - rows of gates as a NumPy file: which experts and rows are in it, byte by byte, and
 * the errors if the rows cannot be read. */
#include "inspect/inspect_case.h"
#include "tensor/backend/backend.h"

static cpl_inspect_options with_rows(void)
{
    cpl_inspect_options options = inspect_plainly();
    options.rows                = true;
    return options;
}

/* Checks the file of the layer's rows: a head of 64 k bytes, then layer, expert and d numbers of
 * every `every`-th row of every `step`-th expert. */
static void check_file(const cpl_inspect_rows *p, const inspect_layer *l, int64_t step,
                       int64_t every)
{
    const int64_t experts = (l->n + step - 1) / step, rows = (l->D + every - 1) / every;
    const size_t d = (size_t)l->d, record = 8 + 4 * d;
    char head[200];
    if (p->stride != step || p->every != every || p->count != experts * rows)
        fail_msg("n %d, D %d: stride %d, every %d, %d rows", (int)l->n, (int)l->D, (int)p->stride,
                 (int)p->every, (int)p->count);
    assert_true(p->count <= CPL_MOST_ROWS);
    assert_true(every == 1 || experts * ((l->D + every - 2) / (every - 1)) > CPL_MOST_ROWS);
    snprintf(head, sizeof head,
             "{'descr': [('layer', '<i4'), ('expert', '<i4'), ('row', '<f4', (%d,))], "
             "'fortran_order': False, 'shape': (%d,), }",
             (int)l->d, (int)p->count);
    assert_memory_equal(p->file, "\x93NUMPY\x01\x00", 8);
    const size_t begin = 10 + (size_t)(unsigned char)p->file[8] + 256 * (size_t)p->file[9];
    assert_int_equal(begin % 64, 0);
    assert_memory_equal(p->file + 10, head, strlen(head));
    for (size_t i = 10 + strlen(head); i + 1 < begin; i++) assert_int_equal(p->file[i], ' ');
    assert_int_equal(p->file[begin - 1], '\n');
    assert_int_equal(p->bytes, begin + (size_t)p->count * record);
    const char *at = p->file + begin;
    for (int64_t e = 0; e < l->n; e += step)
        for (int64_t r = 0; r < l->D; r += every, at += record) {
            const int32_t labels[] = {(int32_t)l->number, (int32_t)e};
            assert_memory_equal(at, labels, sizeof labels);
            assert_memory_equal(at + 8, l->W + (e * l->D + r) * l->d, 4 * d);
        }
}

/* Expert i is chosen if i mod max(1, n / 8) = 0, at most 8 of them. The rows are at most 4096. */
TEST(strides)
{
    static const struct {
        int n, D;
        int64_t step, every;
    } cases[] = {{5, 10, 1, 1},    {8, 512, 1, 1},   {8, 513, 1, 2},   {15, 1100, 2, 3},
                 {64, 100, 8, 1},  {256, 20, 32, 1}, {12, 2000, 2, 3}, {1, 5000, 1, 2},
                 {64, 600, 8, 2},  {1, 4097, 1, 2},  {1, 9001, 1, 3},  {4, 1025, 1, 2},
                 {16, 1100, 2, 3}, {1, 1, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        inspect_case c = case_of(cases[i].n, 1 + (int)i, cases[i].D);
        cpl_coupling_report report;
        const cpl_inspect_options options = with_rows();
        assert_ok(inspect_all(&report, case_write(&c, 0), &options));
        check_file(&report.rows, &c.layers[0], cases[i].step, cases[i].every);
        cpl_inspect_close(&report);
        case_free(&c);
    }
}

/* The rows are those of the middle one of the chosen layers. */
TEST(layers)
{
    static const int64_t last[] = {2};
    inspect_case c              = case_of(3, 6, 9);
    cpl_coupling_report report;
    cpl_inspect_options options = with_rows();
    case_add(&c, 24, 6, 8);
    case_add(&c, 4, 6, 5);
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    check_file(&report.rows, &c.layers[1], 3, 1);
    cpl_inspect_close(&report);
    options.layers = last, options.n_layers = 1;
    assert_ok(inspect_all(&report, c.folder, &options));
    check_file(&report.rows, &c.layers[2], 1, 1);
    case_close(&c, &report);
}

/* Two parts of a model have layers of equal number: the rows come from one part. */
TEST(parts)
{
    inspect_case c                    = {.config = "{\"model_type\":\"olmoe\"}"};
    const cpl_inspect_options options = with_rows();
    inspect_layer *first = case_add(&c, 3, 6, 9), *second = case_add(&c, 4, 6, 25);
    first->prefix = "encoder.", second->prefix = "decoder.";
    second->number             = 0;
    cpl_coupling_report report = inspected(&c, options);
    assert_int_equal(report.n_layers, 2);
    check_file(&report.rows, &c.layers[1], 1, 1);
    case_close(&c, &report);
}

TEST(without_memory)
{
    inspect_case c = case_of(8, 16, 250);
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    cpl_inspect_options options = with_rows();
    case_write(&c, 0);
    assert_ok(cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    cpl_inspect_close(&report);
    assert_true(cost.rows_bytes > cost.memory_bytes);
    options.memory_bytes = cost.memory_bytes;
    assert_fails(CPL_ERR_MEMORY, "2000 rows of gates take",
                 cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    case_free(&c);
}

static void cut_the_file(void *ctx, const cpl_inspect_progress *p)
{
    if (p->bytes_read >= p->bytes) assert_int_equal(truncate(ctx, 700), 0);
}

static void spoil_the_file(void *ctx, const cpl_inspect_progress *p)
{
    const cpl_stored *gate = ctx;
    const float nan        = NAN;
    if (p->bytes_read < p->bytes) return;
    FILE *file = fopen(gate->path, "r+b");
    fseek(file, (long)gate->offset + 8, SEEK_SET);
    fwrite(&nan, sizeof nan, 1, file);
    fclose(file);
}

/* Files that were measured are missing or damaged when their rows are read. */
TEST(gone_meanwhile)
{
    inspect_case c = case_of(4, 16, 10);
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    cpl_inspect_options options = with_rows();
    case_write(&c, 0);
    options.progress = spoil_the_file;
    assert_ok(cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    report.options.ctx = (void *)(uintptr_t)report.layers[0].at->matrices[0].weight;
    assert_fails(CPL_ERR_INPUT, "NaN", cpl_inspect_run(&report));
    cpl_inspect_close(&report);
    options.progress = cut_the_file;
    case_write(&c, 0);
    options.ctx = (void *)(uintptr_t)in_folder(c.folder, "model.safetensors");
    assert_fails(CPL_ERR_IO, "model.safetensors", inspect_all(&report, c.folder, &options));
    case_free(&c);
}

/* With keep_going the layer of the rows may turn out to be damaged: the others have figures. */
TEST(of_a_damaged_layer)
{
    inspect_case c              = case_of(4, 16, 10);
    cpl_inspect_options options = with_rows();
    options.keep_going          = true;
    case_add(&c, 4, 16, 10);
    case_lay_out(&c);
    put_nan(&c, "model.layers.1.mlp.experts.3.gate_proj.weight", 5);
    cpl_coupling_report report = inspected(&c, options);
    assert_true(report.n_measured == 1 && report.layers[1].fault && !report.rows.file);
    case_close(&c, &report);
}
