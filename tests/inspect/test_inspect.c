/* Inspection as a whole, through report.h: that threads and memory change no figure, and
 * what planted weights must give. Damage: test_inspect_damage.c; t-SNE: test_inspect_picture.c. */
#include <omp.h>

#include "inspect/inspect_case.h"
#include "inspect/show.h"
#include "inspect/tsne.h"
#include "tensor/backend.h"

static const inspect_layer *layer_of_case(const inspect_case *c, int l)
{
    return &c->layers[l];
}

/* ---- the same bits ---- */

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

static void same_bits_with_any_threads(void **state)
{
    (void)state;
    inspect_case c              = mixed_case();
    cpl_inspect_options options = inspect_plainly();
    case_write(&c, 0);
    check_threads(c.folder, options);
    options.noisy      = true;
    options.noise_seed = 5;
    check_threads(c.folder, options);
    options.silhouette = true;
    check_threads(c.folder, options);
    case_free(&c);
}

/* ---- memory ---- */

/* Inspects and returns the most bytes that the library held at once on top of what the open
 * checkpoint holds; `cost` is what was predicted. */
static double bytes_taken(const char *folder, const cpl_inspect_options *options,
                          cpl_inspect_cost *cost)
{
    cpl_coupling_report report;
    const int64_t before = cpl_alloc_in_use();
    (void)cpl_alloc_peak();
    assert_ok(cpl_inspect_open(&report, cost, folder, options, NULL));
    (void)cpl_alloc_peak();
    assert_ok(cpl_inspect_run(&report));
    const int64_t most = cpl_alloc_peak();
    cpl_inspect_close(&report);
    assert_int_equal(cpl_alloc_in_use(), before);
    return (double)(most - before);
}

/* Of every layer with figures: M, cosines, eps, two norms and perhaps silhouettes. */
static double kept_of(const inspect_case *c)
{
    double sum = 0;
    for (int l = 0; l < c->n_layers; l++)
        sum += 6.0 * c->layers[l].n * c->layers[l].n + 32.0 * c->layers[l].n;
    return sum;
}

/* Not more than was said, the picture not at the same time as the figures; and for one thread,
 * which certainly comes to hold all that it may, not much less. */
static void check_bytes(const inspect_case *c, cpl_inspect_options options)
{
    cpl_inspect_cost cost;
    const double taken = bytes_taken(c->folder, &options, &cost);
    const double most  = fmax(cost.memory_bytes, cost.picture_bytes + kept_of(c));
    if (!(taken <= most))
        fail_msg("%d threads took %.0f bytes, predicted were %.0f and %.0f", cost.n_threads, taken,
                 cost.memory_bytes, cost.picture_bytes);
    assert_true(cost.n_threads > 1 || most < 1.5 * taken + 10000);
}

static void takes_what_was_said(void **state)
{
    (void)state;
    static const int shapes[][3] = {{8, 512, 256}, {64, 64, 16}, {3, 2048, 40}, {200, 16, 3}};
    cpl_inspect_options options  = inspect_plainly();
    for (int i = 0; i < 4; i++) {
        inspect_case c = case_of(shapes[i][0], shapes[i][1], shapes[i][2]);
        case_add(&c, shapes[i][0] / 2 + 1, shapes[i][1], shapes[i][2] + 1);
        case_write(&c, 0);
        for (int k = 0; k < 16; k++) {
            options.n_threads  = k % 2 ? 5 : 1;
            options.noisy      = k & 2;
            options.picture    = k & 4 && i == 1;
            options.silhouette = k & 8;
            check_bytes(&c, options);
        }
        case_free(&c);
    }
}

static void memory_lowers_threads(void **state)
{
    (void)state;
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
    cpl_inspect_close(&whole);
    case_free(&c);
}

/* ---- what the figures mean ---- */

/* Expert j answers to router row to[j] above all: its gate is a tenth of noise and u R_i^T / |R_i|. */
static void plant(inspect_layer *l, const int *to, float strength)
{
    for (int j = 0; j < l->n; j++) {
        const float *R = l->R + to[j] * l->d;
        float size     = 0;
        for (int a = 0; a < l->d; a++) size += R[a] * R[a];
        for (int c = 0; c < l->D; c++)
            for (int a = 0; a < l->d; a++)
                l->W[(j * l->D + c) * l->d + a] +=
                    strength * case_normal(3, j, c) * R[a] / sqrtf(size);
    }
}

static char *verdict_of(const cpl_coupling_report *report)
{
    cpl_text text = {0};
    cpl_coupling_verdict(&text, report);
    assert_ok(cpl_text_status(&text));
    return text.bytes;
}

static void assert_verdict(const cpl_coupling_report *report, const char *words)
{
    char *verdict = verdict_of(report);
    if (!strstr(verdict, words)) fail_msg("\"%s\" does not say \"%s\"", verdict, words);
    cpl_free(verdict);
}

/* M[i,j] in double. */
static double response(const inspect_layer *l, const float *row, int j)
{
    double squares = 0;
    for (int c = 0; c < l->D; c++) {
        double dot = 0;
        for (int a = 0; a < l->d; a++)
            dot += (double)row[a] * (double)l->W[(j * l->D + c) * l->d + a];
        squares += dot * dot;
    }
    return sqrt(squares);
}

static double dot(const float *a, const float *b, int d)
{
    double sum = 0;
    for (int k = 0; k < d; k++) sum += (double)a[k] * (double)b[k];
    return sum;
}

static double cosine(const inspect_layer *l, int i, int j)
{
    const float *a = l->R + i * l->d, *b = l->R + j * l->d;
    return dot(a, b, l->d) / sqrt(dot(a, a, l->d) * dot(b, b, l->d));
}

/* M, norms of the gates and cosines of the rows. */
static void check_M(const cpl_layer_report *report, const inspect_layer *l)
{
    const int size = l->D * l->d;
    for (int i = 0, pair = 0; i < l->n; i++) {
        const float *W = l->W + i * size;
        assert_near(report->gate_norm[i], sqrt(dot(W, W, size)), 1e-12 * size);
        for (int j = 0; j < i; j++) assert_near(report->cosine[pair++], cosine(l, i, j), 1e-6);
    }
    for (int i = 0; i < l->n; i++)
        for (int j = 0; j < l->n; j++) {
            const double want = response(l, l->R + i * l->d, j);
            assert_near(report->M[i * l->n + j], want, 1e-5 * want);
        }
}

enum { EXPERTS = 12 };

static void planted_experts_agree(void **state)
{
    (void)state;
    int own[EXPERTS];
    inspect_case c = case_of(EXPERTS, 96, 20);
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    for (int j = 0; j < EXPERTS; j++) own[j] = j;
    plant(&c.layers[0], own, 3);
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    const cpl_layer_report *l = &report.layers[0];
    check_M(l, &c.layers[0]);
    assert_true(l->ratios.most < 1 && l->erc[0] == 0);
    assert_true(l->chance.z > 5 && l->chance.erc_mean[0] > 0);
    assert_true(l->chance.assignment_own == 1 && l->chance.kappa_row_top1 == 1);
    assert_verdict(&report, "The weights of router and experts agree: in every layer measured (1)");
    cpl_inspect_close(&report);
    case_free(&c);
}

/* kappa [n,n] of the report itself, for the assignment. */
static double *kappa_of(const cpl_layer_report *l)
{
    const int64_t n = l->at->n;
    double *kappa   = malloc(sizeof *kappa * (size_t)(n * n));
    for (int64_t i = 0; i < n * n; i++)
        kappa[i] = (double)l->M[i] / (l->router_norm[i / n] * l->gate_norm[i % n]);
    return kappa;
}

static void permuted_experts_are_found(void **state)
{
    (void)state;
    int to[EXPERTS];
    int32_t pairing[EXPERTS];
    inspect_case c = case_of(EXPERTS, 96, 20);
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    for (int j = 0; j < EXPERTS; j++) to[j] = j < 2 ? j : 2 + (j * 7 + 3) % 10;
    plant(&c.layers[0], to, 3);
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    const cpl_layer_report *l = &report.layers[0];
    double *kappa             = kappa_of(l);
    int own                   = 0;
    assert_ok(cpl_null_model_assign(pairing, kappa, EXPERTS));
    for (int j = 0; j < EXPERTS; j++) assert_int_equal(pairing[to[j]], j);
    for (int j = 0; j < EXPERTS; j++) own += to[j] == j;
    assert_near(l->chance.assignment_own, (double)own / EXPERTS, 1e-12);
    assert_true(own < EXPERTS / 2 && l->ratios.most > 2);
    free(kappa);
    cpl_inspect_close(&report);
    case_free(&c);
}

static void random_experts_are_chance(void **state)
{
    (void)state;
    inspect_case c = {0};
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    for (int l = 0; l < 6; l++) case_add(&c, 16, 48, 12);
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    for (int l = 0; l < 6; l++) {
        check_M(&report.layers[l], layer_of_case(&c, l));
        assert_true(fabs(report.layers[l].chance.z) < 4);
        assert_true(report.layers[l].ratios.most > 1);
    }
    assert_verdict(&report, "no better than chance may give");
    cpl_inspect_close(&report);
    case_free(&c);
}

static void an_expert_of_zeros(void **state)
{
    (void)state;
    inspect_case c = case_of(4, 24, 6);
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    memset(c.layers[0].W + 2 * 6 * 24, 0, sizeof(float) * 6 * 24);
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    const cpl_layer_report *l = &report.layers[0];
    assert_true(isinf(l->ratios.most) && isinf(l->figures.alpha_min));
    assert_true(l->M[2 * 4 + 2] == 0 && isfinite(l->erc[0]) && isfinite(l->chance.z));
    json_t *json = cpl_coupling_json(&report, 1);
    json_t *of   = json_array_get(json_object_get(json, "layers"), 0);
    assert_true(json_is_null(json_object_get(of, "alpha_min")));
    assert_true(json_is_true(json_object_get(of, "alpha_min_infinite")));
    json_decref(json);
    cpl_inspect_close(&report);
    case_free(&c);
}

/* Router and experts of Gemma-4 read different vectors. */
static void without_M(void **state)
{
    (void)state;
    enum { N = 4, MODEL = 20, WIDTH = 6 };
    inspect_case c    = {.config = "{\"model_type\":\"gemma4_text\",\"num_experts\":4,"
                                      "\"top_k_experts\":2}",
                         .files  = calloc(1, sizeof(layout_files))};
    int64_t router[2] = {N, MODEL}, gates[3] = {N, 2 * WIDTH, MODEL};
    float *R = (float *)(void *)layout_add(c.files, "model.layers.0.router.proj.weight",
                                           CPL_SAFETENSORS_F32, 2, router, 4 * N * MODEL);
    float *W = (float *)(void *)layout_add(c.files, "model.layers.0.experts.gate_up_proj",
                                           CPL_SAFETENSORS_F32, 3, gates, 8 * N * WIDTH * MODEL);
    for (int i = 0; i < N * MODEL; i++) R[i] = case_normal(1, 0, i);
    for (int i = 0; i < 2 * N * WIDTH * MODEL; i++) W[i] = case_normal(2, 0, i);
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    assert_string_equal(report.map.family, "gemma4_text");
    assert_false(report.layers[0].has_M);
    assert_true(report.layers[0].router_norm[0] > 0 && report.layers[0].gate_norm[3] > 0);
    assert_verdict(&report, "No layer has a coupling matrix that means something");
    json_t *json = cpl_coupling_json(&report, 1);
    json_t *of   = json_array_get(json_object_get(json, "layers"), 0);
    assert_true(json_is_false(json_object_get(of, "comparable")));
    assert_null(json_object_get(of, "erc"));
    assert_true(json_is_object(json_object_get(of, "expert_norm")));
    json_decref(json);
    cpl_inspect_close(&report);
    case_free(&c);
}

static void one_expert(void **state)
{
    (void)state;
    inspect_case c = case_of(1, 30, 11);
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    options.noisy               = true;
    options.n_threads           = 3;
    options.picture             = true;
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    const cpl_layer_report *l = &report.layers[0];
    check_M(l, &c.layers[0]); /* eps is 0, so that delta is 1 */
    assert_true(l->eps[0] == 0 && l->erc[0] == 0 && l->ratios.most == 0 && isnan(l->chance.z));
    assert_int_equal(report.picture.n_points, 11);
    assert_verdict(&report, "nothing to agree on");
    cpl_inspect_close(&report);
    case_free(&c);
}

static void chosen_layers(void **state)
{
    (void)state;
    inspect_case c              = mixed_case();
    cpl_inspect_options options = inspect_plainly();
    static const int64_t some[] = {4, 0}, none[] = {0, 5};
    cpl_coupling_report all, report;
    cpl_inspect_cost cost, whole;
    case_write(&c, 0);
    assert_ok(cpl_inspect_open(&all, &whole, c.folder, &options, NULL));
    assert_ok(cpl_inspect_run(&all));
    options.layers = some, options.n_layers = 2;
    assert_ok(cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    assert_ok(cpl_inspect_run(&report));
    assert_int_equal(report.n_layers, 2);
    check_same_layer(&report.layers[0], &all.layers[0]);
    check_same_layer(&report.layers[1], &all.layers[4]);
    assert_near(cost.bytes, 4 * (5 * 40 * 18 + 9 * 40 * 31), 0);
    assert_near(cost.flops, 2 * (25 * 40 * 17 + 81 * 40 * 30), 0);
    assert_near(report.bytes_read, cost.bytes, 1e-6);
    assert_true(cost.bytes < whole.bytes && cost.memory_bytes < whole.memory_bytes);
    cpl_inspect_close(&report);
    options.layers = none;
    assert_fails(CPL_ERR_INPUT, "layer 5 has no routed experts, or is not there",
                 cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
    cpl_inspect_close(&all);
    case_free(&c);
}

/* ---- noise ---- */

/* delta [n,d] as training draws it: the library's own operation on eps of the clean rows. */
static float *delta_of(const inspect_layer *l, uint64_t seed, uint32_t number)
{
    cpl_backend be;
    const cpl_rng_key key = {seed, 0, number, CPL_STREAM_NOISE};
    float *delta          = malloc(sizeof(float) * (size_t)(l->n * l->d)), eps[64];
    cpl_backend_cpu(&be, CPL_F32, 1);
    assert_true(l->n <= 64);
    be.ops->proxy.nearest(&be, cpl_tensor_1d(eps, CPL_F32, l->n),
                          cpl_tensor_2d(l->R, CPL_F32, l->n, l->d));
    be.ops->proxy.noise(&be, cpl_tensor_2d(delta, CPL_F32, l->n, l->d),
                        cpl_tensor_1d(eps, CPL_F32, l->n), &key, 0);
    return delta;
}

static void check_noisy(const cpl_layer_report *report, const inspect_layer *l, uint64_t seed)
{
    float *delta = delta_of(l, seed, (uint32_t)l->number);
    for (int i = 0; i < l->n; i++) {
        double nearest = INFINITY, size = 0;
        for (int a = 0; a < l->d; a++) size += (double)l->R[i * l->d + a] * l->R[i * l->d + a];
        for (int j = 0; j < l->n; j++) {
            double off = 0;
            for (int a = 0; a < l->d; a++)
                off += pow((double)l->R[i * l->d + a] - (double)l->R[j * l->d + a], 2);
            if (j != i) nearest = fmin(nearest, off);
        }
        assert_near(report->eps[i], sqrt(nearest / size) / 2, 1e-6);
        assert_near(report->router_norm[i], sqrt(size), 1e-6 * sqrt(size));
        for (int a = 0; a < l->d; a++) delta[i * l->d + a] *= l->R[i * l->d + a];
        for (int j = 0; j < l->n; j++) {
            const double want = response(l, delta + i * l->d, j);
            assert_near(report->M[i * l->n + j], want, 1e-5 * want);
        }
    }
    free(delta);
}

static void noise(void **state)
{
    (void)state;
    inspect_case c              = case_of(7, 26, 9);
    cpl_inspect_options options = inspect_plainly();
    cpl_coupling_report report;
    options.noisy                  = true;
    options.noise_seed             = 77;
    case_add(&c, 5, 26, 4)->number = 65535;
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    check_noisy(&report.layers[0], &c.layers[0], 77);
    check_noisy(&report.layers[1], &c.layers[1], 77);
    cpl_inspect_close(&report);
    case_free(&c);
}

/* A name may hold a larger number than any model has layers, which random numbers have no place
 * for in their key. Layers of the same weights differ by their noise alone, also where the lower 16
 * bits of their numbers, or the upper ones, are the same. */
static void noise_of_a_layer_of_a_large_number(void **state)
{
    (void)state;
    enum { N = 3, D = 4, WIDTH = 10, LARGE = 999999999, LAYERS = 4 };
    static const int numbers[LAYERS] = {LARGE & 0xffff, LARGE - 65536, LARGE - 1, LARGE};
    inspect_case c                   = case_of(N, WIDTH, D);
    cpl_inspect_options options      = inspect_plainly();
    cpl_coupling_report report;
    for (int l = 1; l < LAYERS; l++) {
        case_add(&c, N, WIDTH, D);
        memcpy(c.layers[l].R, c.layers[0].R, sizeof(float) * N * WIDTH);
        memcpy(c.layers[l].W, c.layers[0].W, sizeof(float) * N * D * WIDTH);
    }
    for (int l = 0; l < LAYERS; l++) c.layers[l].number = numbers[l];
    options.noisy = true;
    assert_ok(inspect_all(&report, case_write(&c, 0), &options));
    for (int l = 0; l < LAYERS; l++) {
        assert_int_equal(report.layers[l].at->layer, numbers[l]);
        assert_true(isfinite(report.layers[l].erc[0]));
        assert_memory_equal(report.layers[l].eps, report.layers[0].eps, N * sizeof(float));
        for (int k = 0; k < l; k++)
            assert_memory_not_equal(report.layers[l].M, report.layers[k].M, N * N * sizeof(float));
    }
    cpl_inspect_close(&report);
    case_free(&c);
}

/* ---- watching ---- */

typedef struct watched {
    omp_lock_t lock;
    int64_t of_picture;
    bool of_layer[16];
    double last;
    const char *wrong; /* what was; told at the end, in the test's own thread */
} watched;

static void expect(watched *w, bool is_so, const char *else_)
{
    if (!is_so) w->wrong = else_;
}

static void watch(void *ctx, const cpl_inspect_progress *p)
{
    watched *w       = ctx;
    const bool alone = omp_test_lock(&w->lock);
    expect(w, alone, "two threads tell their progress at once");
    if (!alone) return;
    expect(w, p->path && p->seconds >= 0 && !(p->seconds_left < -1e-3), "path or times");
    if (p->layer < 0) {
        w->of_picture++;
        expect(w, p->iterations == 250 && p->iteration >= 1 && p->iteration <= 250, "iterations");
        expect(w, p->bytes_read == p->bytes, "bytes of the picture");
    } else {
        expect(w, w->of_picture == 0 && p->iteration == 0, "a layer behind the picture");
        expect(w, p->layer < 16, "a layer that is not there");
        if (p->layer < 16) w->of_layer[p->layer] = true;
        expect(w, p->bytes_read > w->last && p->bytes_read <= p->bytes * (1 + 1e-12), "bytes");
        w->last = p->bytes_read;
    }
    usleep(100); /* long enough for others to come */
    omp_unset_lock(&w->lock);
}

static void watching(void **state)
{
    (void)state;
    inspect_case c              = mixed_case();
    cpl_inspect_options options = inspect_plainly();
    watched w                   = {0};
    omp_init_lock(&w.lock);
    options.n_threads = 3, options.picture = true, options.watch = watch, options.ctx = &w;
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    assert_ok(cpl_inspect_open(&report, &cost, case_write(&c, 0), &options, NULL));
    assert_true(w.last == 0 && w.of_picture == 0);
    assert_ok(cpl_inspect_run(&report));
    if (w.wrong) fail_msg("%s", w.wrong);
    for (int l = 0; l < c.n_layers; l++) assert_true(w.of_layer[c.layers[l].number]);
    assert_true(w.of_picture >= 4);
    assert_near(w.last, cost.bytes, 1e-9 * cost.bytes);
    cpl_inspect_close(&report);
    omp_destroy_lock(&w.lock);
    case_free(&c);
}

/* ---- every allocation fails once ---- */

/* Sets `text` to all that the report says; to NULL on failure. */
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
        if (status == CPL_OK) { /* it could be done without */
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

/* The same of the JSON library's own allocations. */
static int64_t json_calls, json_fail_at;

static void *json_take(size_t bytes)
{
    return ++json_calls == json_fail_at ? NULL : malloc(bytes);
}

static void no_memory_for_json(void **state)
{
    (void)state;
    inspect_case c = case_of(3, 8, 4);
    cpl_coupling_report reports[2];
    cpl_inspect_options options = inspect_plainly();
    options.noisy = options.picture = options.keep_going = true;
    case_write(&c, 0);
    assert_ok(inspect_all(&reports[0], c.folder, &options));
    case_add(&c, 2, 8, 4);
    case_add_tensors(&c, &c.layers[1]);
    put_nan(&c, "model.layers.0.mlp.gate.weight", 3);
    cpl_folder_remove(c.folder);
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

/* A folder whose name is no UTF-8. */
static void odd_names(void **state)
{
    (void)state;
    inspect_case c = case_of(3, 8, 4);
    cpl_coupling_report report;
    cpl_inspect_options options = inspect_plainly();
    char odd[sizeof c.folder];
    case_write(&c, 0);
    snprintf(odd, sizeof odd, "%.50s-\xff", c.folder);
    assert_int_equal(rename(c.folder, odd), 0);
    snprintf(c.folder, sizeof c.folder, "%s", odd);
    assert_ok(inspect_all(&report, c.folder, &options));
    json_t *json = cpl_coupling_json(&report, 1);
    assert_non_null(json);
    const char *name = json_string_value(json_object_get(json, "checkpoint"));
    assert_non_null(strstr(name, "-\xef\xbf\xbd"));
    json_decref(json);
    cpl_inspect_close(&report);
    case_free(&c);
}

static void no_memory(void **state)
{
    (void)state;
    inspect_case c              = case_of(3, 8, 4);
    cpl_inspect_options options = inspect_plainly();
    case_add(&c, 2, 8, 4);
    case_write(&c, 2);
    options.picture = options.noisy = options.silhouette = true;
    fail_everywhere(c.folder, options);
    options.n_threads = 2;
    fail_everywhere(c.folder, options);
    put_nan(&c, "model.layers.0.mlp.experts.1.gate_proj.weight", 5);
    cpl_folder_remove(c.folder);
    case_write(&c, 2);
    options.keep_going = true;
    fail_everywhere(c.folder, options);
    case_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_with_any_threads),
        cmocka_unit_test(takes_what_was_said),
        cmocka_unit_test(memory_lowers_threads),
        cmocka_unit_test(planted_experts_agree),
        cmocka_unit_test(permuted_experts_are_found),
        cmocka_unit_test(random_experts_are_chance),
        cmocka_unit_test(an_expert_of_zeros),
        cmocka_unit_test(without_M),
        cmocka_unit_test(one_expert),
        cmocka_unit_test(chosen_layers),
        cmocka_unit_test(noise),
        cmocka_unit_test(noise_of_a_layer_of_a_large_number),
        cmocka_unit_test(watching),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(no_memory_for_json),
        cmocka_unit_test(odd_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
