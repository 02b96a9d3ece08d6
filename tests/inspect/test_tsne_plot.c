/* The t-SNE picture of an inspection: which experts and rows are in it, and that its failure is no
 * one else's. */
#include "inspect/inspect_case.h"
#include "inspect/tsne.h"
#include "tensor/backend/backend.h"

static void check_choice(const char *folder, int n, int D, int64_t asked, int64_t stride,
                         int64_t n_experts, int64_t every)
{
    cpl_inspect_options options = inspect_plainly();
    cpl_inspect_cost cost;
    cpl_coupling_report report;
    options.picture        = true;
    options.picture_stride = asked;
    assert_ok(cpl_inspect_open(&report, &cost, folder, &options, NULL));
    const cpl_tsne_plot *p = &report.picture;
    if (p->stride != stride || p->n_experts != n_experts || p->every != every)
        fail_msg("n %d, D %d, asked %d: stride %d, %d experts, every %d", n, D, (int)asked,
                 (int)p->stride, (int)p->n_experts, (int)p->every);
    assert_int_equal(p->n_points, n_experts * ((D + every - 1) / every));
    assert_true(p->n_points <= CPL_TSNE_MOST_POINTS && cost.picture_bytes > 0);
    assert_true(every == 1 || n_experts * ((D + every - 2) / (every - 1)) > CPL_TSNE_MOST_POINTS);
    cpl_inspect_close(&report);
}

/* Experts i with i mod max(1, n / 8) = 0, thinned to 8 at most; rows to 4096 at most. */
static void picture_strides(void **state)
{
    (void)state;
    static const struct {
        int n, D;
        int64_t asked, stride, n_experts, every;
    } cases[] = {{5, 10, 0, 1, 5, 1},     {8, 512, 0, 1, 8, 1},    {8, 513, 0, 1, 8, 2},
                 {15, 1100, 0, 2, 8, 3},  {64, 100, 0, 8, 8, 1},   {256, 20, 0, 32, 8, 1},
                 {12, 2000, 0, 2, 6, 3},  {1, 5000, 0, 1, 1, 2},   {64, 600, 3, 9, 8, 2},
                 {64, 100, 10, 10, 7, 1}, {64, 100, 64, 64, 1, 1}, {64, 100, 1, 8, 8, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        inspect_case c = case_of(cases[i].n, 3, cases[i].D);
        case_write(&c, 0);
        check_choice(c.folder, cases[i].n, cases[i].D, cases[i].asked, cases[i].stride,
                     cases[i].n_experts, cases[i].every);
        case_free(&c);
    }
}

/* The points are those of t-SNE on the rows of the case, in the order of experts. */
static void check_points(const cpl_tsne_plot *p, const inspect_layer *l, int64_t step,
                         int64_t every)
{
    const int64_t N = p->n_points, d = l->d;
    cpl_tsne_result result;
    cpl_tsne_options options = {.perplexity = 5, .iterations = 250, .seed = 1, .n_threads = 1};
    float *x = malloc(sizeof(float) * (size_t)(N * d)), *y = malloc(sizeof(float) * (size_t)N * 2);
    int64_t row = 0;
    for (int64_t e = 0; e < l->n; e += step)
        for (int64_t r = 0; r < l->D; r += every, row++) {
            memcpy(x + row * d, l->W + (e * l->D + r) * d, sizeof(float) * (size_t)d);
            assert_int_equal(p->expert[row], e);
        }
    assert_int_equal(row, N);
    assert_ok(cpl_tsne(y, &result, (cpl_matrix){x, N, d}, &options));
    assert_memory_equal(p->y, y, sizeof(float) * (size_t)N * 2);
    assert_true(p->kl == result.kl && p->perplexity == result.perplexity_used);
    free(x);
    free(y);
}

static void picture_rows(void **state)
{
    (void)state;
    inspect_case c = case_of(3, 6, 9);
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    case_add(&c, 24, 6, 8); /* the middle one */
    case_add(&c, 4, 6, 5);
    options.picture = true;
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    assert_int_equal(report.picture.layer, 1);
    check_points(&report.picture, &c.layers[1], 3, 1);
    cpl_inspect_close(&report);
    options.picture_layer = 2;
    assert_ok(inspect_all(&report, c.folder, &options));
    check_points(&report.picture, &c.layers[2], 1, 1);
    cpl_inspect_close(&report);
    options.picture_layer = 3;
    assert_fails(CPL_ERR_INPUT, "layer 3, chosen for t-SNE, has no figures",
                 inspect_all(&report, c.folder, &options));
    case_free(&c);
}

/* Where rows are thinned, which ones are read: figures come of a sound file, then NaNs are written
 * into it, and t-SNE names the first of its points that has one. */
typedef struct spoiling {
    const cpl_coupling_report *report;
    int64_t expert, first; /* rows first, first + every, ... stay sound up to the one at last */
    int64_t every, last;
} spoiling;

static void spoil_rows(void *ctx, const cpl_inspect_progress *p)
{
    const spoiling *s       = ctx;
    const cpl_moe_layer *at = s->report->layers[0].at;
    const float nan         = NAN;
    if (p->bytes_read < p->bytes) return;
    FILE *file = fopen(at->matrices[0].weight->path, "r+b");
    for (int64_t e = 0; e < at->n; e++)
        for (int64_t r = 0; r < at->D; r++) {
            const bool sound     = r % s->every == 0 && (e != s->expert || r != s->last);
            const uint64_t begin = at->matrices[e].weight->offset;
            if (sound) continue;
            fseek(file, (long)(begin + (uint64_t)(r * at->d) * sizeof nan), SEEK_SET);
            fwrite(&nan, sizeof nan, 1, file);
        }
    fclose(file);
}

static void check_thinned(int n, int D, int64_t expert, int64_t every, int64_t last,
                          const char *words)
{
    inspect_case c = case_of(n, 2, D);
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    cpl_inspect_options options = inspect_plainly();
    spoiling s                  = {&report, expert, 0, every, last};
    options.picture = true, options.progress = spoil_rows, options.ctx = &s;
    assert_ok(cpl_inspect_open(&report, &cost, case_write(&c, 0), &options, NULL));
    assert_int_equal(report.picture.every, every);
    assert_ok(cpl_inspect_run(&report));
    if (!report.picture.fault || !strstr(report.picture.fault, words))
        fail_msg("\"%s\" does not say \"%s\"", report.picture.fault, words);
    assert_true(report.picture.lost);
    cpl_inspect_close(&report);
    case_free(&c);
}

static void picture_of_thinned_rows(void **state)
{
    (void)state;
    check_thinned(1, 4097, 0, 2, 4000, "point 2000 (of 2049, ");
    check_thinned(1, 9001, 0, 3, 9000, "point 3000 (of 3001, ");
    check_thinned(4, 1025, 3, 2, 0, "point 1539 (of 2052, ");
    check_thinned(16, 1100, 14, 3, 1098, "point 2935 (of 2936, ");
}

/* Two parts of a model have layers of one number: the picture is of one of them. */
static void picture_among_parts(void **state)
{
    (void)state;
    inspect_case c = {.config = "{\"model_type\":\"olmoe\"}"};
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    inspect_layer *first = case_add(&c, 3, 6, 9), *second = case_add(&c, 4, 6, 25);
    first->prefix = "encoder.", second->prefix = "decoder.";
    second->number  = 0;
    options.picture = true;
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    assert_int_equal(report.n_layers, 2);
    assert_int_equal(report.picture.n_points, 100);
    check_points(&report.picture, &c.layers[1], 1, 1);
    cpl_inspect_close(&report);
    case_free(&c);
}

static void picture_without_memory(void **state)
{
    (void)state;
    inspect_case c = case_of(8, 16, 250);
    cpl_coupling_report report;
    cpl_inspect_cost cost, told;
    cpl_inspect_options options = inspect_plainly();
    options.picture             = true;
    case_write(&c, 0);
    assert_ok(cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    cpl_inspect_close(&report);
    assert_true(cost.picture_bytes > cost.memory_bytes);
    options.memory_bytes = cost.memory_bytes;
    assert_ok(cpl_inspect_open(&report, &told, c.folder, &options, NULL));
    assert_true(told.picture_bytes == 0 && told.memory_bytes == cost.memory_bytes);
    assert_false(report.picture.lost);
    assert_ok(cpl_inspect_run(&report));
    assert_int_equal(report.n_measured, 1);
    assert_int_equal(report.picture.n_points, 0);
    assert_non_null(strstr(report.picture.fault, "t-SNE of 2000 points takes "));
    cpl_inspect_close(&report);
    case_free(&c);
}

/* What t-SNE refuses, or what cannot be read a second time, leaves the figures as they are. */
static void cut_the_file(void *ctx, const cpl_inspect_progress *p)
{
    if (p->bytes_read >= p->bytes) assert_int_equal(truncate(ctx, 700), 0);
}

static void check_no_picture(const char *folder, const cpl_inspect_options *options,
                             const char *words)
{
    cpl_coupling_report report;
    assert_ok(inspect_all(&report, folder, options));
    assert_int_equal(report.n_measured, 1);
    assert_int_equal(report.picture.n_points, 0);
    assert_null(report.picture.y);
    assert_non_null(report.picture.fault);
    if (!strstr(report.picture.fault, words)) fail_msg("\"%s\"", report.picture.fault);
    cpl_inspect_close(&report);
}

static void picture_that_fails(void **state)
{
    (void)state;
    inspect_case c              = case_of(4, 16, 10);
    cpl_inspect_options options = inspect_plainly(), few = options, cut = options, wrong = options;
    few.picture = cut.picture = wrong.picture = true;
    case_write(&c, 0);
    few.iterations = 100;
    check_no_picture(c.folder, &few, "100 iterations");
    cut.progress = cut_the_file;
    cut.ctx      = (void *)(uintptr_t)case_path(&c, "model.safetensors");
    check_no_picture(c.folder, &cut, "model.safetensors");
    cpl_folder_remove(c.folder);
    put_nan(&c, "model.layers.0.mlp.experts.3.gate_proj.weight", 5);
    c.n_layers = 1;
    case_add(&c, 4, 16, 10);
    case_add_tensors(&c, &c.layers[1]);
    case_write(&c, 0);
    wrong.keep_going = true, wrong.picture_layer = 0;
    check_no_picture(c.folder, &wrong, "could not be read");
    case_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picture_strides),         cmocka_unit_test(picture_rows),
        cmocka_unit_test(picture_of_thinned_rows), cmocka_unit_test(picture_among_parts),
        cmocka_unit_test(picture_without_memory),  cmocka_unit_test(picture_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
