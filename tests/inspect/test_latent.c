/* test_latent.c - inspections of latent experts, whose gates read W_l R_i: against the same layer
 * without a projection, and against plain loops where a norm follows the projection. */
#include "inspect/inspect_case.h"

static const char muse[] = "{\"model_type\":\"muse_spark\",\"num_experts_per_tok\":2,"
                           "\"rms_norm_eps\":0.25}";

/* Adds a tensor of layer 0, which has `rank` axes. */
static float *add_tensor(inspect_case *c, const char *suffix, int rank, int rows, int cols)
{
    char name[160];
    const int64_t shape[2] = {rows, cols};
    const size_t bytes     = sizeof(float) * (size_t)(rows * cols);
    snprintf(name, sizeof name, "model.layers.0.mlp.%s", suffix);
    return (float *)(void *)layout_add(c->files, name, CPL_SAFETENSORS_F32, rank,
                                       shape + (rank == 1), bytes);
}

static float small_integer(int what, int i)
{
    return (float)(layout_hash(what, i, 0, 0, 0) % 7u) - 3;
}

/* Returns a layer whose n router rows have d numbers and whose gates read l, all small integers,
 * with W_l in c->files. */
static inspect_case latent_case(int n, int d, int l, int D, const char *projection, float **W)
{
    inspect_case c = case_of(n, l, D);
    float *R       = malloc(sizeof(float) * (size_t)(n * d));
    for (int i = 0; i < n * d; i++) R[i] = small_integer(3, i);
    case_lay_out(&c);
    layout_tensor *router = case_tensor(&c, "model.layers.0.mlp.gate.weight");
    free(router->data);
    router->data     = (unsigned char *)R;
    router->bytes    = sizeof(float) * (size_t)(n * d);
    router->shape[1] = d;
    *W               = add_tensor(&c, projection, 2, l, d);
    for (int i = 0; i < l * d; i++) (*W)[i] = small_integer(4, i);
    return c;
}

/* Sets V [n,l] to W_l R_i, which is exact. */
static void project(float *V, const float *W, const float *R, int n, int d, int l)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < l; k++) {
            V[i * l + k] = 0;
            for (int a = 0; a < d; a++) V[i * l + k] += W[k * d + a] * R[i * d + a];
        }
}

static const float *router_of(inspect_case *c)
{
    return (const float *)(const void *)case_tensor(c, "model.layers.0.mlp.gate.weight")->data;
}

static void check_same_centred(const cpl_centred_report *a, const cpl_centred_report *b)
{
    assert_int_equal(a->has_M, b->has_M);
    assert_memory_equal(a->erc, b->erc, sizeof a->erc);
    assert_memory_equal(&a->ratios, &b->ratios, sizeof a->ratios);
    assert_memory_equal(&a->chance, &b->chance, sizeof a->chance);
}

/* W_l = I changes no bit of any report. */
TEST(identity)
{
    const cpl_inspect_options plain = inspect_plainly();
    cpl_inspect_options all[]       = {plain, plain, plain};
    all[0].silhouette = all[0].lambda = true;
    all[1].noisy                      = true;
    all[2].sample                     = 0.3;
    for (int o = 0; o < 3; o++) {
        inspect_case c = case_of(7, 40, 90), same = case_of(7, 40, 90);
        case_lay_out(&c);
        float *W = add_tensor(&c, "fc1_latent_proj.weight", 2, 40, 40);
        for (int k = 0; k < 40; k++) W[k * 40 + k] = 1;
        cpl_coupling_report a = inspected(&c, all[o]), b = inspected(&same, all[o]);
        const cpl_layer_report *x = &a.layers[0], *y = &b.layers[0];
        assert_non_null(x->at->projection.weight);
        assert_null(y->at->projection.weight);
        if (o < 2) check_same_report(&a, &b);
        check_same_centred(&x->centred, &y->centred);
        assert_memory_equal(&x->centred.figures, &y->centred.figures, sizeof x->centred.figures);
        if (o == 2) {
            assert_memory_equal(x->sample->stored, y->sample->stored, sizeof x->sample->stored);
            assert_memory_equal(x->sample->centred, y->sample->centred, sizeof x->sample->centred);
        }
        case_close(&c, &a);
        case_close(&same, &b);
    }
}

/* What depends on M alone is that of a layer whose router rows are W_l R_i. */
TEST(rows_of_another_router)
{
    enum { N = 6, d = 24, l = 10, D = 70 };
    for (int o = 0; o < 2; o++) {
        float *W, V[N * l];
        inspect_case c = latent_case(N, d, l, D, "squeeze.weight", &W), other = case_of(N, l, D);
        cpl_inspect_options options = inspect_plainly();
        if (o) options.sample = 0.3;
        options.lambda = !o;
        project(V, W, router_of(&c), N, d, l);
        memcpy(other.layers[0].R, V, sizeof V);
        cpl_coupling_report a = inspected(&c, options), b = inspected(&other, options);
        const cpl_layer_report *x = &a.layers[0], *y = &b.layers[0];
        assert_int_equal(x->at->d, d);
        assert_int_equal(x->at->l, l);
        assert_true(x->at->projection_by_shape);
        assert_string_equal(x->at->note, "its experts are latent: they read 10 numbers, which "
                                         "mlp.squeeze.weight (found by its shape) makes");
        check_same_centred(&x->centred, &y->centred);
        for (int i = 0; i < CPL_N_FIGURES; i++) {
            const cpl_figure_row *row = &cpl_figure_rows[i];
            const size_t at           = row->offset;
            if (!o && (row->needs_M || row->needs_spectral))
                assert_memory_equal((const char *)&x->figures + at, (const char *)&y->figures + at,
                                    sizeof(double));
        }
        if (o)
            assert_memory_equal(x->sample->centred, y->sample->centred, sizeof x->sample->centred);
        else
            assert_memory_equal(x->M, y->M, N * N * sizeof *x->M);
        assert_memory_equal(&x->chance, &y->chance, sizeof x->chance);
        assert_memory_equal(x->input_norm, y->router_norm, N * sizeof *x->input_norm);
        assert_true(fabs(x->router_norm[0] - y->router_norm[0]) > 1);
        case_close(&c, &a);
        case_close(&other, &b);
    }
}

/* Silhouettes are those of the rows of W_g W_l. */
TEST(silhouettes_in_front_of_the_projection)
{
    enum { N = 4, d = 24, l = 10, D = 9 };
    float *P;
    cpl_inspect_options options = inspect_plainly();
    inspect_case c              = latent_case(N, d, l, D, "routed_expert_down_proj.weight", &P);
    inspect_case wide           = case_of(N, d, D);
    const inspect_layer *from   = &c.layers[0];
    for (int r = 0; r < N * D; r++)
        for (int a = 0; a < d; a++) {
            double sum = 0;
            for (int k = 0; k < l; k++) sum += (double)from->W[r * l + k] * (double)P[k * d + a];
            wide.layers[0].W[r * d + a] = (float)sum;
        }
    options.silhouette    = true;
    cpl_coupling_report a = inspected(&c, options), b = inspected(&wide, options);
    for (int j = 0; j < N; j++)
        assert_near(a.layers[0].silhouettes[j], b.layers[0].silhouettes[j], 1e-6);
    case_close(&c, &a);
    case_close(&wide, &b);
}

/* Returns |W_g^j (g v / sqrt(mean(v^2) + eps))|. */
static double normed_response(const inspect_layer *at, const double *v, const float *w, int j)
{
    double squares = 0, sum = 0;
    for (int k = 0; k < at->d; k++) squares += v[k] * v[k];
    for (int r = 0; r < at->D; r++) {
        double dot = 0;
        for (int k = 0; k < at->d; k++)
            dot += (double)at->W[(j * at->D + r) * at->d + k] * (1 + (double)w[k]) * v[k] /
                   sqrt(squares / at->d + 0.25);
        sum += dot * dot;
    }
    return sqrt(sum);
}

/* M of stored and of centred rows with the norm of Muse Spark, whose factor is 1 + w. */
TEST(a_norm_behind_the_projection)
{
    enum { N = 5, d = 24, l = 10, D = 17 };
    float *W, V[N * l], mean[l] = {0};
    inspect_case c = latent_case(N, d, l, D, "pre_expert_proj.weight", &W);
    c.config       = muse;
    float *w       = add_tensor(&c, "pre_expert_norm.weight", 1, 1, l);
    for (int k = 0; k < l; k++) w[k] = 0.1f * small_integer(5, k);
    cpl_coupling_report report   = inspected(&c, inspect_plainly());
    const cpl_layer_report *have = &report.layers[0];
    double own                   = 0;
    project(V, W, router_of(&c), N, d, l);
    for (int i = 0; i < N * l; i++) mean[i % l] += V[i] / N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double v[l], centred[l];
            for (int k = 0; k < l; k++) {
                v[k]       = (double)V[i * l + k];
                centred[k] = (double)V[i * l + k] - (double)mean[k];
            }
            const double want = normed_response(&c.layers[0], v, w, j);
            assert_near(have->M[i * N + j], want, 1e-5 * want);
            if (i == j) own += normed_response(&c.layers[0], centred, w, j) / N;
        }
    assert_near(have->centred.figures.m_diagonal, own, 1e-5 * own);
    case_close(&c, &report);
}

static void refuse_nan(const char *projection, const char *tensor, const char *config,
                       const char *sentence)
{
    float *W;
    cpl_coupling_report report;
    const cpl_inspect_options options = inspect_plainly();
    inspect_case c                    = latent_case(3, 8, 4, 5, projection, &W);
    c.config                          = config;
    add_tensor(&c, "pre_expert_norm.weight", 1, 1, 4);
    put_nan(&c, tensor, 1);
    assert_fails(CPL_ERR_INPUT, sentence, inspect_all(&report, case_write(&c, 0), &options));
    case_free(&c);
}

TEST(numbers_that_are_not_finite)
{
    refuse_nan("pre_expert_proj.weight", "model.layers.0.mlp.pre_expert_proj.weight", muse,
               "pre_expert_proj.weight: the projection has 1 values that are NaN");
    refuse_nan("pre_expert_proj.weight", "model.layers.0.mlp.pre_expert_norm.weight", muse,
               "pre_expert_norm.weight: the norm has 1 values that are NaN");
}

/* ---- resources ---- */

/* Returns a case whose projection is followed by a norm. */
static inspect_case normed_case(int n, int d, int l, int D)
{
    float *W;
    inspect_case c = latent_case(n, d, l, D, "pre_expert_proj.weight", &W);
    c.config       = muse;
    add_tensor(&c, "pre_expert_norm.weight", 1, 1, l);
    case_write(&c, 0);
    return c;
}

TEST(takes_what_was_said)
{
    inspect_case c = normed_case(24, 300, 200, 40);
    for (int k = 0; k < 8; k++) {
        cpl_coupling_report report;
        cpl_inspect_cost cost;
        cpl_inspect_options options = inspect_plainly();
        const int64_t before        = cpl_alloc_in_use();
        options.n_threads           = k & 1 ? 3 : 1;
        options.noisy               = k & 2;
        options.silhouette          = k & 4;
        assert_ok(cpl_inspect_open(&report, &cost, c.folder, &options, NULL));
        (void)cpl_alloc_peak();
        assert_ok(cpl_inspect_run(&report));
        const double taken = (double)(cpl_alloc_peak() - before);
        if (taken > cost.memory_bytes || (!(k & 1) && cost.memory_bytes > 1.5 * taken + 10000))
            fail_msg("round %d took %.0f bytes, predicted were %.0f", k, taken, cost.memory_bytes);
        cpl_inspect_close(&report);
        assert_int_equal(cpl_alloc_in_use(), before);
    }
    case_free(&c);
}

TEST(every_allocation_fails_once)
{
    inspect_case c              = normed_case(3, 8, 4, 5);
    cpl_inspect_options options = inspect_plainly();
    options.silhouette          = true;
    for (int noisy = 0; noisy < 2; noisy++) {
        cpl_coupling_report report;
        options.noisy  = noisy;
        int64_t calls  = cpl_alloc_count();
        int64_t failed = 0;
        assert_ok(inspect_all(&report, c.folder, &options));
        cpl_inspect_close(&report);
        calls              = cpl_alloc_count() - calls;
        const int64_t held = cpl_alloc_in_use();
        for (int64_t nth = 1; nth <= calls; nth++) {
            cpl_alloc_fail_at(nth);
            const cpl_status status = inspect_all(&report, c.folder, &options);
            cpl_alloc_fail_at(0);
            if (status == CPL_OK) cpl_inspect_close(&report);
            if (status != CPL_OK) assert_int_equal(status, CPL_ERR_MEMORY);
            failed += status != CPL_OK;
            assert_int_equal(cpl_alloc_in_use(), held);
        }
        assert_true(failed >= calls - 3); /* all but those of the config and of a trial reading */
    }
    case_free(&c);
}
