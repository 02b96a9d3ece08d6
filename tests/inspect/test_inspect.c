/* test_inspect.c - whole inspections through report.h: the figures of planted weights, and noise.
 * Threads, memory and progress are in test_inspect_resources.c, damage in test_inspect_damage.c. */
#include "base/stats/eigen.h"
#include "inspect/inspect_case.h"
#include "inspect/show/show.h"
#include "tensor/backend/backend.h"

static const inspect_layer *layer_of_case(const inspect_case *c, int l)
{
    return &c->layers[l];
}

/* ---- the meaning of the figures ---- */

/* Lets expert j respond most to router row to[j]: its gate is noise / 10 + u R_i^T / |R_i|. */
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

/* Returns M[i,j] in double. */
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

/* Checks M, the norms of the gates and the cosines of the rows. */
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

/* Returns |W_g^j|_2 [D,d], from all eigenvalues of W W^T. */
static double spectral_norm(const inspect_layer *l, int j)
{
    const int D = l->D;
    double gram[32 * 32], value[32], spare[32];
    assert_true(D <= 32);
    for (int a = 0; a < D; a++)
        for (int b = 0; b < D; b++)
            gram[a * D + b] = dot(l->W + (j * D + a) * l->d, l->W + (j * D + b) * l->d, l->d);
    cpl_eigenvalues(value, gram, spare, D);
    return sqrt(value[0]);
}

/* Subtracts the mean of the router rows from each of them. */
static void centre(inspect_layer *l)
{
    for (int k = 0; k < l->d; k++) {
        double sum = 0;
        for (int i = 0; i < l->n; i++) sum += (double)l->R[i * l->d + k];
        for (int i = 0; i < l->n; i++) l->R[i * l->d + k] -= (float)(sum / l->n);
    }
}

static double mean_lambda(const inspect_layer *l)
{
    double sum = 0;
    for (int i = 0; i < l->n; i++) {
        const float *R = l->R + i * l->d;
        sum += response(l, R, i) / (sqrt(dot(R, R, l->d)) * spectral_norm(l, i));
    }
    return sum / l->n;
}

/* Silhouettes are measured too: they overwrite the rows of a gate. */
TEST(lambda_is_that_of_plain_loops)
{
    inspect_case c              = case_of(6, 40, 13);
    inspect_layer *l            = &c.layers[0];
    cpl_inspect_options options = inspect_plainly();
    double random               = 0;
    for (int j = 0; j < l->n; j++) {
        const float *W = l->W + j * l->D * l->d;
        random += sqrt(dot(W, W, l->D * l->d)) / (sqrt(l->d) * spectral_norm(l, j)) / l->n;
    }
    options.lambda = options.silhouette = true;
    options.n_threads                   = 3;
    cpl_coupling_report report          = inspected(&c, options);
    const cpl_coupling_figures *f       = &report.layers[0].figures;
    const double want                   = mean_lambda(l);
    assert_near(f->router_lambda, want, 3e-5 * want);
    assert_near(f->router_lambda_random, random, 3e-5 * random);
    centre(l);
    assert_near(report.layers[0].centred.figures.router_lambda, mean_lambda(l), 3e-5);
    case_close(&c, &report);
}

enum { EXPERTS = 12 };

TEST(planted_experts_agree)
{
    int own[EXPERTS];
    inspect_case c = case_of(EXPERTS, 96, 20);
    for (int j = 0; j < EXPERTS; j++) own[j] = j;
    plant(&c.layers[0], own, 3);
    cpl_coupling_report report = inspected(&c, inspect_plainly());
    const cpl_layer_report *l  = &report.layers[0];
    check_M(l, &c.layers[0]);
    assert_true(l->ratios.most < 1 && l->erc[0] == 0);
    assert_true(l->chance.z > 5 && l->chance.erc_mean[0] > 0);
    assert_true(l->chance.assignment_accuracy == 1 && l->chance.kappa_row_top1 == 1);
    assert_verdict(&report,
                   "Router and experts are coupled (coupled layers: 1 of 1).\nRouter rows as "
                   "stored: 100 % excite their own expert most (chance: 8.33 %), 0 % of");
    case_close(&c, &report);
}

/* Returns kappa [n,n] of the report itself, for the assignment. */
static double *kappa_of(const cpl_layer_report *l)
{
    const int64_t n = l->at->n;
    double *kappa   = malloc(sizeof *kappa * (size_t)(n * n));
    for (int64_t i = 0; i < n * n; i++)
        kappa[i] = (double)l->M[i] / (l->router_norm[i / n] * l->gate_norm[i % n]);
    return kappa;
}

TEST(permuted_experts_are_found)
{
    int to[EXPERTS];
    int32_t pairing[EXPERTS];
    inspect_case c = case_of(EXPERTS, 96, 20);
    for (int j = 0; j < EXPERTS; j++) to[j] = j < 2 ? j : 2 + (j * 7 + 3) % 10;
    plant(&c.layers[0], to, 3);
    cpl_coupling_report report = inspected(&c, inspect_plainly());
    const cpl_layer_report *l  = &report.layers[0];
    double *kappa              = kappa_of(l);
    int own                    = 0;
    assert_ok(cpl_null_model_assign(pairing, kappa, EXPERTS));
    for (int j = 0; j < EXPERTS; j++) assert_int_equal(pairing[to[j]], j);
    for (int j = 0; j < EXPERTS; j++) own += to[j] == j;
    assert_near(l->chance.assignment_accuracy, (double)own / EXPERTS, 1e-12);
    assert_true(own < EXPERTS / 2 && l->ratios.most > 2);
    free(kappa);
    case_close(&c, &report);
}

TEST(random_experts_are_chance)
{
    inspect_case c = {0};
    for (int l = 0; l < 6; l++) case_add(&c, 16, 48, 12);
    cpl_coupling_report report = inspected(&c, inspect_plainly());
    for (int l = 0; l < 6; l++) {
        check_M(&report.layers[l], layer_of_case(&c, l));
        assert_true(fabs(report.layers[l].chance.z) < 4);
        assert_true(report.layers[l].ratios.most > 1);
    }
    assert_verdict(&report, "Router and experts are not coupled (coupled layers: 0 of 6).");
    assert_verdict(&report, " (chance: 0 +- 1).");
    case_close(&c, &report);
}

TEST(an_expert_of_zeros)
{
    inspect_case c = case_of(4, 24, 6);
    memset(c.layers[0].W + 2 * 6 * 24, 0, sizeof(float) * 6 * 24);
    cpl_coupling_report report = inspected(&c, inspect_plainly());
    const cpl_layer_report *l  = &report.layers[0];
    assert_true(isinf(l->ratios.most) && isinf(l->figures.alpha_min));
    assert_true(l->M[2 * 4 + 2] == 0 && isfinite(l->erc[0]) && isfinite(l->chance.z));
    json_t *json = cpl_coupling_json(&report, 1);
    json_t *of   = json_array_get(json_object_get(json, "layers"), 0);
    assert_true(json_is_null(json_object_get(of, "alpha_min")));
    assert_true(json_is_true(json_object_get(of, "alpha_min_infinite")));
    json_decref(json);
    case_close(&c, &report);
}

/* Router and experts of Gemma-4 read different vectors. */
TEST(without_M)
{
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
    cpl_coupling_report report = inspected(&c, inspect_plainly());
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
    case_close(&c, &report);
}

TEST(one_expert)
{
    inspect_case c              = case_of(1, 30, 11);
    cpl_inspect_options options = inspect_plainly();
    options.noisy               = true;
    options.n_threads           = 3;
    options.rows                = true;
    cpl_coupling_report report  = inspected(&c, options);
    const cpl_layer_report *l   = &report.layers[0];
    check_M(l, &c.layers[0]); /* eps is 0, so that delta is 1 */
    assert_true(l->eps[0] == 0 && l->erc[0] == 0 && l->ratios.most == 0 && isnan(l->chance.z));
    assert_int_equal(report.rows.count, 11);
    assert_verdict(&report, "nothing to compare");
    case_close(&c, &report);
}

TEST(chosen_layers)
{
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
    case_close(&c, &all);
}

/* Returns delta [n,d] as training draws it: by the library's operation on eps of the clean rows. */

/* delta [n,d] as training draws it: the library's own operation on eps of the clean rows. */
static float *delta_of(const inspect_layer *l, uint64_t seed, uint32_t number)
{
    const cpl_rng_key key = {seed, 0, number, CPL_STREAM_NOISE};
    float *delta          = malloc(sizeof(float) * (size_t)(l->n * l->d)), eps[64];
    assert_true(l->n <= 64);
    cpl_cpu_on_host()->erc_nearest(eps, (cpl_matrix){l->R, l->n, l->d}, 1);
    cpl_cpu_on_host()->erc_noise((cpl_matrix){delta, l->n, l->d}, eps, key, 0, 1);
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

TEST(noise)
{
    inspect_case c                 = case_of(7, 26, 9);
    cpl_inspect_options options    = inspect_plainly();
    options.noisy                  = true;
    options.noise_seed             = 77;
    case_add(&c, 5, 26, 4)->number = 65535;
    cpl_coupling_report report     = inspected(&c, options);
    check_noisy(&report.layers[0], &c.layers[0], 77);
    check_noisy(&report.layers[1], &c.layers[1], 77);
    case_close(&c, &report);
}

/* The number of a layer in a name may be too large for the key of the random numbers. Layers of
 * equal weights differ by their noise alone, also where the lower 16 bits of their numbers, or the
 * upper ones, are equal. */
TEST(noise_of_a_layer_of_a_large_number)
{
    enum { N = 3, D = 4, WIDTH = 10, LARGE = 999999999, LAYERS = 4 };
    static const int numbers[LAYERS] = {LARGE & 0xffff, LARGE - 65536, LARGE - 1, LARGE};
    inspect_case c                   = case_of(N, WIDTH, D);
    cpl_inspect_options options      = inspect_plainly();
    for (int l = 1; l < LAYERS; l++) {
        case_add(&c, N, WIDTH, D);
        memcpy(c.layers[l].R, c.layers[0].R, sizeof(float) * N * WIDTH);
        memcpy(c.layers[l].W, c.layers[0].W, sizeof(float) * N * D * WIDTH);
    }
    for (int l = 0; l < LAYERS; l++) c.layers[l].number = numbers[l];
    options.noisy              = true;
    cpl_coupling_report report = inspected(&c, options);
    for (int l = 0; l < LAYERS; l++) {
        assert_int_equal(report.layers[l].at->layer, numbers[l]);
        assert_true(isfinite(report.layers[l].erc[0]));
        assert_memory_equal(report.layers[l].eps, report.layers[0].eps, N * sizeof(float));
        for (int k = 0; k < l; k++)
            assert_memory_not_equal(report.layers[l].M, report.layers[k].M, N * N * sizeof(float));
    }
    case_close(&c, &report);
}

/* The name of a folder may be invalid UTF-8. */
TEST(odd_names)
{
    inspect_case c = case_of(3, 8, 4);
    char odd[sizeof c.folder];
    case_write(&c, 0);
    snprintf(odd, sizeof odd, "%.50s-\xff", c.folder);
    assert_int_equal(rename(c.folder, odd), 0);
    snprintf(c.folder, sizeof c.folder, "%s", odd);
    cpl_coupling_report report = inspected(&c, inspect_plainly());
    json_t *json               = cpl_coupling_json(&report, 1);
    assert_non_null(json);
    const char *name = json_string_value(json_object_get(json, "checkpoint"));
    assert_non_null(strstr(name, "-\xef\xbf\xbd"));
    json_decref(json);
    case_close(&c, &report);
}
