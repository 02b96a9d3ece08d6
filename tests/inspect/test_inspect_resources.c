/* test_inspect_resources.c - inspection and its resources: threads and memory change no figure,
 * memory stays within its prediction, progress is reported, and every allocation fails once. */
#include <omp.h>

#include "inspect/inspect_case.h"
#include "inspect/show/show.h"

/* ---- equal bits ---- */

static void check_threads(const char *folder, cpl_inspect_options options)
{
    static const int threads[] = {2, 3, 7};
    cpl_coupling_report one, other;
    assert_ok(inspect_all(&one, folder, &options));
    for (int i = 0; i < 3; i++) {
        options.n_threads = threads[i];
        assert_ok(inspect_all(&other, folder, &options));
        assert_int_equal(other.options.n_threads, threads[i]);
        check_same_report(&one, &other);
        assert_true(one.bytes_read == other.bytes_read && one.flops == other.flops);
        cpl_inspect_close(&other);
    }
    cpl_inspect_close(&one);
}

TEST(same_bits_with_any_threads)
{
    inspect_case c              = mixed_case();
    cpl_inspect_options options = inspect_plainly();
    case_write(&c, 0);
    check_threads(c.folder, options);
    options.noisy      = true;
    options.noise_seed = 5;
    check_threads(c.folder, options);
    options.silhouette = options.lambda = true;
    check_threads(c.folder, options);
    case_free(&c);
}

/* ---- memory ---- */

/* Inspects and returns the peak of the bytes that the library held, less those of the open
 * checkpoint. `cost` is set to the prediction, that of the rows with the tables of names. */
static double bytes_taken(const char *folder, const cpl_inspect_options *options,
                          cpl_inspect_cost *cost)
{
    cpl_coupling_report report;
    const int64_t before = cpl_alloc_in_use();
    (void)cpl_alloc_peak();
    assert_ok(cpl_inspect_open(&report, cost, folder, options, NULL));
    if (options->rows) cost->rows_bytes += report.table_bytes;
    (void)cpl_alloc_peak();
    assert_ok(cpl_inspect_run(&report));
    const int64_t most = cpl_alloc_peak();
    cpl_inspect_close(&report);
    assert_int_equal(cpl_alloc_in_use(), before);
    return (double)(most - before);
}

/* Returns the bytes that the figures keep: M, cosines, eps, three norms, perhaps silhouettes, by
 * layer. */
static double kept_of(const inspect_case *c)
{
    double sum = 0;
    for (int l = 0; l < c->n_layers; l++)
        sum += 6.0 * c->layers[l].n * c->layers[l].n + 40.0 * c->layers[l].n;
    return sum;
}

/* Checks that the bytes taken are within the prediction, in which rows and figures are not held
 * together. A single thread certainly reaches its peak, so it must take nearly as much. */
static void check_bytes(const inspect_case *c, cpl_inspect_options options)
{
    cpl_inspect_cost cost;
    const double taken = bytes_taken(c->folder, &options, &cost);
    const double most  = fmax(cost.memory_bytes, cost.rows_bytes + kept_of(c));
    if (!(taken <= most))
        fail_msg("%d threads took %.0f bytes, predicted were %.0f and %.0f", cost.n_threads, taken,
                 cost.memory_bytes, cost.rows_bytes);
    assert_true(cost.n_threads > 1 || most < 1.5 * taken + 10000);
}

TEST(takes_what_was_said)
{
    static const int shapes[][3] = {{8, 512, 256}, {64, 64, 16}, {3, 2048, 40}, {200, 16, 3}};
    cpl_inspect_options options  = inspect_plainly();
    for (int i = 0; i < 4; i++) {
        inspect_case c = case_of(shapes[i][0], shapes[i][1], shapes[i][2]);
        case_add(&c, shapes[i][0] / 2 + 1, shapes[i][1], shapes[i][2] + 1);
        case_write(&c, 0);
        for (int k = 0; k < 32; k++) {
            options.lambda     = k & 16;
            options.n_threads  = k % 2 ? 5 : 1;
            options.noisy      = k & 2;
            options.rows       = k & 4 && i == 1;
            options.silhouette = k & 8;
            check_bytes(&c, options);
        }
        case_free(&c);
    }
}

TEST(memory_lowers_threads)
{
    inspect_case c              = case_of(16, 128, 96);
    cpl_inspect_options options = inspect_plainly();
    cpl_inspect_cost cost, least, held;
    cpl_coupling_report report, whole;
    case_write(&c, 0);
    assert_ok(cpl_inspect_open(&whole, &least, c.folder, &options, NULL));
    assert_ok(cpl_inspect_run(&whole));
    options.n_threads = 6;
    assert_ok(cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    cpl_inspect_close(&report);
    assert_int_equal(cost.n_threads, 6);
    assert_true(cost.memory_bytes > least.memory_bytes);
    for (int64_t k = 0, threads = 0; k <= 20; k++) {
        options.memory_bytes =
            least.memory_bytes + (cost.memory_bytes - least.memory_bytes) * (double)k / 20;
        assert_ok(cpl_inspect_open(&report, &held, c.folder, &options, NULL));
        assert_true(held.memory_bytes <= options.memory_bytes);
        assert_true(held.n_threads >= threads && held.n_threads == report.options.n_threads);
        threads = held.n_threads;
        assert_ok(cpl_inspect_run(&report));
        check_same_report(&whole, &report);
        cpl_inspect_close(&report);
        assert_true(k > 0 || threads == 1);
        assert_true(k < 20 || threads == 6);
    }
    options.memory_bytes = least.memory_bytes - 1;
    assert_fails(CPL_ERR_MEMORY, "not enough memory",
                 cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    assert_null(report.path);
    options.memory_bytes = 4000;
    assert_fails(CPL_ERR_MEMORY, "model.safetensors: not enough memory: its table of tensors",
                 cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    case_close(&c, &whole);
}

/* ---- watching ---- */

typedef struct watched {
    omp_lock_t lock;
    bool of_layer[16];
    double last;
    const char *wrong; /* the first fault; reported at the end, in the test's own thread */
} watched;

static void expect(watched *w, bool is_so, const char *else_)
{
    if (!is_so) w->wrong = else_;
}

static void see_progress(void *ctx, const cpl_inspect_progress *p)
{
    watched *w       = ctx;
    const bool alone = omp_test_lock(&w->lock);
    expect(w, alone, "two threads tell their progress at once");
    if (!alone) return;
    expect(w, p->path && p->seconds >= 0 && !(p->seconds_left < -1e-3), "path or times");
    expect(w, p->layer >= 0 && p->layer < 16, "a layer that is not there");
    if (p->layer >= 0 && p->layer < 16) w->of_layer[p->layer] = true;
    expect(w, p->bytes_read > w->last && p->bytes_read <= p->bytes * (1 + 1e-12), "bytes");
    w->last = p->bytes_read;
    usleep(100); /* long enough for other threads to come */
    omp_unset_lock(&w->lock);
}

TEST(watching)
{
    inspect_case c              = mixed_case();
    cpl_inspect_options options = inspect_plainly();
    watched w                   = {0};
    omp_init_lock(&w.lock);
    options.n_threads = 3, options.rows = true, options.progress = see_progress, options.ctx = &w;
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    assert_ok(cpl_inspect_open(&report, &cost, case_write(&c, 0), &options, NULL));
    assert_true(w.last == 0);
    assert_ok(cpl_inspect_run(&report));
    if (w.wrong) fail_msg("%s", w.wrong);
    for (int l = 0; l < c.n_layers; l++) assert_true(w.of_layer[c.layers[l].number]);
    assert_near(w.last, cost.bytes, 1e-9 * cost.bytes);
    cpl_inspect_close(&report);
    omp_destroy_lock(&w.lock);
    case_free(&c);
}

/* ---- every allocation fails once ---- */

/* Sets `text` to all forms of the report, or to NULL on failure. */
static cpl_status open_run_json(char **text, const char *folder, const cpl_inspect_options *options)
{
    cpl_coupling_report report;
    *text = NULL;
    CPL_TRY(inspect_all(&report, folder, options));
    json_t *json = cpl_coupling_json(&report, 1);
    if (json) *text = json_dumps(json, 0);
    json_decref(json);
    cpl_inspect_close(&report);
    return json ? CPL_OK : CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the report");
}

static void fail_everywhere(const char *folder, cpl_inspect_options options)
{
    char *whole, *text;
    int64_t refused = 0, calls = cpl_alloc_count();
    assert_ok(open_run_json(&whole, folder, &options));
    calls              = cpl_alloc_count() - calls;
    const int64_t held = cpl_alloc_in_use();
    assert_true(calls > 30);
    for (int64_t nth = 1; nth <= calls; nth++, free(text)) {
        cpl_alloc_fail_at(nth);
        cpl_status status = open_run_json(&text, folder, &options);
        cpl_alloc_fail_at(0);
        assert_int_equal(cpl_alloc_in_use(), held);
        if (status == CPL_OK) { /* the allocation was not essential */
            assert_string_equal(text, whole);
            continue;
        }
        if (status != CPL_ERR_MEMORY || !strstr(cpl_last_error(), "memory"))
            fail_msg("allocation %d: %d: %s", (int)nth, (int)status, cpl_last_error());
        refused++;
    }
    if (refused < calls - 2)
        fail_msg("%d of %d are not refused", (int)(calls - refused), (int)calls);
    free(whole);
}

/* Counters of the JSON library's own allocations, one of which fails. */
static int64_t json_calls, json_fail_at;

static void *json_take(size_t bytes)
{
    return ++json_calls == json_fail_at ? NULL : malloc(bytes);
}

TEST(no_memory_for_json)
{
    inspect_case c = case_of(3, 8, 4);
    cpl_coupling_report reports[2];
    cpl_inspect_options options = inspect_plainly();
    options.noisy = options.rows = options.keep_going = true;
    case_write(&c, 0);
    assert_ok(inspect_all(&reports[0], c.folder, &options));
    case_add(&c, 2, 8, 4);
    case_add_tensors(&c, &c.layers[1]);
    put_nan(&c, "model.layers.0.mlp.gate.weight", 3);
    assert_ok(inspect_all(&reports[1], case_write(&c, 0), &options));
    json_set_alloc_funcs(json_take, free);
    json_calls    = 0;
    json_t *json  = cpl_coupling_json(reports, 2);
    int64_t calls = json_calls, refused = 0;
    json_t *whole = json;
    assert_non_null(whole);
    assert_true(calls > 200);
    for (int64_t nth = 1; nth <= calls; nth++) {
        json_calls   = 0;
        json_fail_at = nth;
        json         = cpl_coupling_json(reports, 2);
        json_fail_at = 0;
        if (json && !json_equal(json, whole)) fail_msg("allocation %d is not missed", (int)nth);
        refused += !json;
        json_decref(json);
    }
    assert_true(refused > calls - 20);
    json_decref(whole);
    json_set_alloc_funcs(malloc, free);
    cpl_inspect_close(&reports[0]);
    cpl_inspect_close(&reports[1]);
    case_free(&c);
}

TEST(no_memory)
{
    inspect_case c              = case_of(3, 8, 4);
    cpl_inspect_options options = inspect_plainly();
    case_add(&c, 2, 8, 4);
    case_write(&c, 2);
    options.rows = options.noisy = options.silhouette = options.lambda = true;
    fail_everywhere(c.folder, options);
    options.n_threads = 2;
    fail_everywhere(c.folder, options);
    put_nan(&c, "model.layers.0.mlp.experts.1.gate_proj.weight", 5);
    case_write(&c, 2);
    options.keep_going = true;
    fail_everywhere(c.folder, options);
    case_free(&c);
}
