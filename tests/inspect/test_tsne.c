/* t-SNE as a whole: against scikit-learn on the same points (tests/golden/tsne), what must hold of
 * any run, and what points can be.
 *
 * Time:  a thousand iterations over all pairs take long with sanitizers, so that only those cases
 *        are run that differ in kind. With COUPLET_TSNE_ALL set all nine are. */
#include "inspect/tsne.h"

#include <malloc.h>

#include "base/arena.h"
#include "io/json.h"
#include "tensor/exact.h"
#include "tensor/ops_check.h"

static const cpl_tsne_options plain = {
    .perplexity = 30, .iterations = 1000, .seed = 1, .n_threads = 2};

typedef struct embedded {
    cpl_tensor y; /* [N,2] */
    cpl_tsne_result result;
} embedded;

static embedded embed(cpl_tensor x, cpl_tsne_options options)
{
    embedded e = {.y = new_tensor(CPL_F32, x.shape[0], 2)};
    assert_ok(cpl_tsne(cpl_f32(e.y), &e.result, matrix_of(x), &options));
    for (int64_t i = 0; i < 2 * x.shape[0]; i++) assert_true(isfinite(cpl_f32(e.y)[i]));
    assert_true(isfinite(e.result.kl));
    return e;
}

static double distance(cpl_tensor x, int64_t i, int64_t j)
{
    const int64_t d = x.shape[1];
    double sum      = 0;
    for (int64_t k = 0; k < d; k++) {
        double off = (double)cpl_f32(x)[i * d + k] - (double)cpl_f32(x)[j * d + k];
        sum += off * off;
    }
    return sum;
}

/* ---- the divergence, once more, in double ---- */

/* p [n]: the distribution around point i with this precision, from squared distances D [n];
 * returns its entropy. */
static double spread(double *p, const double *D, int64_t n, int64_t i, double precision)
{
    double sum = 0, entropy = 0, low = INFINITY;
    for (int64_t j = 0; j < n; j++) low = j == i ? low : fmin(low, D[j]);
    for (int64_t j = 0; j < n; j++) sum += p[j] = j == i ? 0 : exp(-precision * (D[j] - low));
    for (int64_t j = 0; j < n; j++) {
        p[j] /= sum;
        if (p[j] > 0) entropy -= p[j] * log(p[j]);
    }
    return entropy;
}

static double divergence_of(cpl_tensor x, cpl_tensor y, double perplexity)
{
    const int64_t n = x.shape[0];
    double *P = new_doubles(n * n), *D = new_doubles(n), Z = 0, kl = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) D[j] = distance(x, i, j);
        double low = -50, high = 50;
        for (int k = 0; k < 30; k++) { /* to 1e-7 of the precision */
            const double middle     = (low + high) / 2;
            const bool broad        = spread(P + i * n, D, n, i, exp(middle)) > log(perplexity);
            *(broad ? &low : &high) = middle;
        }
        for (int64_t j = 0; j < n; j++) Z += j == i ? 0 : 1 / (1 + distance(y, i, j));
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double p = fmax((P[i * n + j] + P[j * n + i]) / (2 * n), DBL_EPSILON);
            if (j != i) kl += p * log(p * Z * (1 + distance(y, i, j)));
        }
    return kl;
}

/* ---- the points of tests/golden/tsne/make_reference.py, number for number ---- */

static double clusters(int64_t i, int64_t k)
{
    return exact_normal(1, i * 20 + k) + (k == i % 3 ? 6 : 0);
}

static double even(int64_t i, int64_t k)
{
    return exact_uniform(2, i * 50 + k);
}

static double experts(int64_t i, int64_t k)
{
    double sum = 3 * exact_normal(6, i % 8 * 64 + k) + 0.5 * exact_normal(5, i * 64 + k);
    for (int64_t r = 0; r < 6; r++)
        sum += exact_normal(3, i * 6 + r) * exact_normal(4, (i % 8 * 6 + r) * 64 + k);
    return sum;
}

static const struct {
    const char *name;
    double (*number)(int64_t i, int64_t k);
} makers[] = {{"clusters", clusters}, {"even", even}, {"experts", experts}};

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("reference.json: %s is no number", key);
    return json_number_value(value);
}

/* The case's points; they must have the sums that the script has written. */
static cpl_tensor points_of(const json_t *item)
{
    const char *name = json_string_value(json_object_get(item, "points"));
    const int64_t n = (int64_t)number_of(item, "n"), d = (int64_t)number_of(item, "d");
    cpl_tensor x = new_tensor(CPL_F32, n, d);
    double sum = 0, squares = 0;
    size_t m = 0;
    while (m < 3 && strcmp(makers[m].name, name) != 0) m++;
    assert_true(m < 3);
    for (int64_t i = 0; i < n * d; i++) {
        const float number = (float)makers[m].number(i / d, i % d);
        cpl_f32(x)[i]      = number;
        sum += (double)number;
        squares += (double)number * (double)number;
    }
    assert_near(sum, number_of(item, "sum"), 1e-9 * squares);
    assert_near(squares, number_of(item, "squares"), 1e-12 * squares);
    return x;
}

/* Widens [low, high] to what the array `key` holds. */
static void widen(double *low, double *high, const json_t *item, const char *key)
{
    const json_t *value;
    size_t i;
    assert_int_equal(json_array_size(json_object_get(item, key)), 5);
    json_array_foreach(json_object_get(item, key), i, value)
    {
        *low  = fmin(*low, json_number_value(value));
        *high = fmax(*high, json_number_value(value));
    }
}

/* The divergence is truly what y has, and at most 2 % above what scikit-learn reaches from the same
 * start, give or take rounding; nor is it lower than all of its runs by more than a tenth. */
static void check_against_reference(const json_t *item)
{
    const double own = number_of(item, "kl_pca"), perplexity = number_of(item, "perplexity");
    double low = own, high = own, lowest, highest;
    widen(&low, &high, item, "kl_near");
    lowest = low, highest = high;
    widen(&lowest, &highest, item, "kl_random");
    cpl_tensor x             = points_of(item);
    cpl_tsne_options options = plain;
    options.perplexity       = perplexity;
    embedded e               = embed(x, options);
    print_message("%s, perplexity %g: %.4f; scikit-learn %.4f (%.4f to %.4f), any start %.4f to "
                  "%.4f\n",
                  json_string_value(json_object_get(item, "points")), perplexity, e.result.kl, own,
                  low, high, lowest, highest);
    assert_true(e.result.perplexity_used == perplexity);
    assert_near(e.result.kl, divergence_of(x, e.y, perplexity), 1e-4);
    if (!(e.result.kl <= 1.02 * high))
        fail_msg("KL is %g, scikit-learn reaches %g", e.result.kl, high);
    assert_true(e.result.kl >= 0.9 * lowest);
}

/* Of evenly spread points every perplexity, of the others the usual one. */
static bool is_wanted(const json_t *item)
{
    const bool usual = number_of(item, "perplexity") == 30;
    const bool even  = strcmp(json_string_value(json_object_get(item, "points")), "even") == 0;
    return usual || even || getenv("COUPLET_TSNE_ALL");
}

static void test_against_scikit_learn(void **state)
{
    json_t *file, *item;
    size_t i;
    int made = 0;
    assert_ok(cpl_json_load(&file, golden_path("tsne/reference.json")));
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 9);
    json_array_foreach(json_object_get(file, "cases"), i, item)
    {
        if (!is_wanted(item)) continue;
        check_against_reference(item);
        release_all(state);
        made++;
    }
    assert_true(made >= 5);
    json_decref(file);
}

/* ---- what must hold of any run ---- */

static void test_same_bits_for_the_same_seed(void **state)
{
    cpl_tsne_options options = plain;
    cpl_tensor x = normal_2d(120, 10, 1), equal = new_tensor(CPL_F32, 20, 3);
    options.perplexity = 10;
    (void)state;
    embedded a = embed(x, options), b = embed(x, options), c = embed(equal, options);
    assert_same_bits(a.y, b.y);
    assert_true(a.result.kl == b.result.kl);
    options.seed = 2; /* starts at random where points have no components */
    assert_int_not_equal(memcmp(embed(equal, options).y.storage, c.y.storage, 20 * 8), 0);
}

/* Four clouds that lie apart: the nearest neighbour of every point is of its own cloud, and the
 * middles of clouds lie farther apart than any point from its middle. */
static void test_clusters_stay_apart(void **state)
{
    enum { N = 160, CLOUDS = 4 };
    cpl_tensor x = normal_2d(N, 10, 1), middle = new_tensor(CPL_F32, CLOUDS, 2);
    cpl_tsne_options options = plain;
    double widest = 0, nearest = INFINITY;
    (void)state;
    for (int64_t i = 0; i < N; i++) cpl_f32(x)[i * 10 + i % CLOUDS] += 20;
    options.perplexity = 15;
    embedded e         = embed(x, options);
    for (int64_t i = 0; i < 2 * N; i++)
        cpl_f32(middle)[i / 2 % CLOUDS * 2 + i % 2] += cpl_f32(e.y)[i] * CLOUDS / N;
    for (int64_t i = 0; i < N; i++) {
        int64_t best = i ? 0 : 1;
        for (int64_t j = 0; j < N; j++)
            if (j != i && distance(e.y, i, j) < distance(e.y, i, best)) best = j;
        assert_int_equal(best % CLOUDS, i % CLOUDS);
        const double dx = cpl_f32(e.y)[2 * i] - cpl_f32(middle)[i % CLOUDS * 2];
        const double dy = cpl_f32(e.y)[2 * i + 1] - cpl_f32(middle)[i % CLOUDS * 2 + 1];
        widest          = fmax(widest, dx * dx + dy * dy);
    }
    for (int64_t a = 0; a < CLOUDS; a++)
        for (int64_t b = 0; b < a; b++) nearest = fmin(nearest, distance(middle, a, b));
    assert_true(nearest > 4 * widest);
}

typedef struct watched {
    int64_t calls, last;
    double kl;
} watched;

static void see_progress(void *ctx, int64_t iteration, double kl)
{
    watched *w = ctx;
    assert_true(iteration % 50 == 0 && iteration > w->last && isfinite(kl));
    w->calls++;
    w->last = iteration;
    w->kl   = kl;
}

static void test_watching(void **state)
{
    watched w                = {0};
    cpl_tsne_options options = plain;
    (void)state;
    options.perplexity = 10, options.iterations = 520, options.progress = see_progress,
    options.ctx = &w;
    embedded e  = embed(normal_2d(90, 10, 1), options);
    assert_int_equal(w.calls, 10);
    assert_int_equal(w.last, 500);
    assert_near(w.kl, e.result.kl, 0.02 * e.result.kl);
}

/* ---- memory ---- */

#if defined(__SANITIZE_ADDRESS__)
size_t __sanitizer_get_current_allocated_bytes(void);
static size_t heap_bytes(void)
{
    return __sanitizer_get_current_allocated_bytes();
}
#else
static size_t heap_bytes(void)
{
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}
#endif

static void watch_memory(void *ctx, int64_t iteration, double kl)
{
    size_t *most = ctx, now = heap_bytes();
    (void)iteration, (void)kl;
    *most = now > *most ? now : *most;
}

/* One allocation, as large as was said; the rest is oneDNN's code for the products, which the
 * first run has made. */
static void test_memory(void **state)
{
    static const int64_t shapes[][2] = {{300, 60}, {100, 3000}};
    cpl_tsne_options options         = plain;
    options.iterations               = 250;
    for (int k = 0; k < 2; k++, release_all(state)) {
        cpl_tensor x = normal_2d(shapes[k][0], shapes[k][1], 1);
        (void)embed(x, options);
        cpl_tensor y     = new_tensor(CPL_F32, shapes[k][0], 2);
        size_t most      = 0;
        const size_t had = heap_bytes(), told = cpl_tsne_bytes(shapes[k][0], shapes[k][1]);
        const int64_t calls = cpl_alloc_count();
        cpl_tsne_result result;
        cpl_tsne_options watching = options;
        watching.progress = watch_memory, watching.ctx = &most;
        assert_ok(cpl_tsne(cpl_f32(y), &result, matrix_of(x), &watching));
        assert_int_equal(cpl_alloc_count() - calls, 1);
        assert_true(most - had >= told && most - had < told + 200000);
        assert_true(heap_bytes() < had + 200000);
    }
    assert_true(cpl_tsne_bytes(4096, 2048) < 70000000);
    assert_true(cpl_tsne_bytes(4096, 7168) < 120000000);
}

static void test_no_memory(void **state)
{
    cpl_tsne_result result;
    cpl_tensor x = normal_2d(20, 3, 1), y = new_tensor(CPL_F32, 20, 2);
    (void)state;
    cpl_alloc_fail_at(1);
    assert_fails(CPL_ERR_MEMORY, "t-SNE", cpl_tsne(cpl_f32(y), &result, matrix_of(x), &plain));
}

/* ---- what points can be ---- */

/* A power of two changes no bit, however large or small. */
static void test_scale(void **state)
{
    static const int powers[] = {-130, -66, 66, 120};
    cpl_tensor x              = normal_2d(60, 8, 1);
    (void)state;
    for (int64_t i = 0; i < 60 * 8; i++) /* few digits, so that none is lost far below 1 */
        cpl_f32(x)[i] = (float)round(cpl_f32(x)[i] * 1024) / 1024;
    embedded e = embed(x, plain);
    for (int k = 0; k < 4; k++) {
        cpl_tensor scaled = copy_of(x);
        for (int64_t i = 0; i < 60 * 8; i++) cpl_f32(scaled)[i] = ldexpf(cpl_f32(x)[i], powers[k]);
        assert_same_bits(embed(scaled, plain).y, e.y);
    }
}

/* Any place will do; the divergence is that of pairs that are all alike. */
static void test_all_points_equal(void **state)
{
    cpl_tensor x = new_tensor(CPL_F32, 30, 4);
    (void)state;
    for (int k = 0; k < 2; k++) {
        embedded e = embed(x, plain);
        assert_near(e.result.kl, divergence_of(x, e.y, e.result.perplexity_used), 1e-4);
        for (int64_t i = 0; i < 30 * 4; i++) cpl_f32(x)[i] = 0.1f;
    }
}

/* Far from the origin and near each other: distances by a product of rows would lose every
 * digit. */
static void test_near_points(void **state)
{
    cpl_tensor x             = normal_2d(60, 30, 0.001f);
    cpl_tsne_options options = plain;
    (void)state;
    for (int64_t i = 0; i < 60 * 30; i++) cpl_f32(x)[i] += 100 + (float)(i % 30);
    options.perplexity = 8;
    embedded e         = embed(x, options);
    assert_near(e.result.kl, divergence_of(x, e.y, 8), 1e-4);
}

/* Equal points push each other away as all do, but stay near. */
static void test_duplicates(void **state)
{
    cpl_tensor x = normal_2d(60, 5, 1);
    double near = 0, any = 0;
    (void)state;
    for (int64_t i = 30; i < 60; i++)
        memcpy(cpl_f32(x) + 5 * i, cpl_f32(x) + 5 * (i % 20), 5 * sizeof(float));
    cpl_tsne_options options = plain;
    options.perplexity       = 8;
    embedded e               = embed(x, options);
    for (int64_t i = 30; i < 60; i++) near += distance(e.y, i, i % 20);
    for (int64_t i = 30; i < 60; i++) any += distance(e.y, i, (i + 1) % 20);
    assert_true(near < 0.05 * any);
    assert_near(e.result.kl, divergence_of(x, e.y, 8), 1e-4);
}

/* On a line there is no second component to begin with. */
static void test_line(void **state)
{
    cpl_tensor line = new_tensor(CPL_F32, 50, 3), column = new_tensor(CPL_F32, 50, 1);
    (void)state;
    for (int64_t i = 0; i < 50; i++) {
        for (int k = 0; k < 3; k++) cpl_f32(line)[3 * i + k] = (float)(i * (k - 1));
        cpl_f32(column)[i] = (float)(i * i);
    }
    cpl_tsne_options options = plain;
    options.perplexity       = 5;
    embedded e               = embed(line, options);
    double height            = 0;
    for (int64_t i = 0; i < 50; i++) height = fmax(height, fabsf(cpl_f32(e.y)[2 * i + 1]));
    assert_true(height > 0.1);
    for (int64_t i = 0; i + 1 < 50; i++) assert_true(distance(e.y, i, i + 1) < 400);
    (void)embed(column, options);
}

static void test_few_points(void **state)
{
    (void)state;
    for (int64_t n = 4; n < 12; n++) {
        embedded e = embed(normal_2d(n, 3, 1), plain);
        assert_near(e.result.perplexity_used, (double)(n - 1) / 3, 1e-12);
    }
}

static void test_perplexity_is_clipped(void **state)
{
    cpl_tensor x             = normal_2d(40, 3, 1);
    cpl_tsne_options options = plain;
    (void)state;
    options.perplexity = 1e6;
    embedded e         = embed(x, options);
    assert_near(e.result.perplexity_used, 13, 1e-12);
    assert_near(e.result.kl, divergence_of(x, e.y, 13), 1e-4);
}

static void check_refused(const char *sentence, int64_t n, float number, cpl_tsne_options options)
{
    cpl_tsne_result result;
    cpl_tensor x = normal_2d(n, 3, 1), y = new_tensor(CPL_F32, n, 2);
    cpl_f32(x)[n * 3 - 2] = number;
    assert_fails(CPL_ERR_INPUT, sentence, cpl_tsne(cpl_f32(y), &result, matrix_of(x), &options));
}

static void test_refused(void **state)
{
    cpl_tsne_options few = plain, low = plain, none = plain;
    few.iterations = 249, low.perplexity = 0.5, none.perplexity = NAN;
    (void)state;
    check_refused("4 to 4096 points, there are 3", 3, 0, plain);
    check_refused("4 to 4096 points, there are 4097", 4097, 0, plain);
    check_refused("point 9 (of 10, from 0)", 10, NAN, plain);
    check_refused("point 9 (of 10, from 0)", 10, -INFINITY, plain);
    check_refused("249 iterations", 10, 0, few);
    check_refused("perplexity is 0.5", 10, 0, low);
    check_refused("perplexity is nan", 10, 0, none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_against_scikit_learn, release_all),
        cmocka_unit_test_teardown(test_same_bits_for_the_same_seed, release_all),
        cmocka_unit_test_teardown(test_clusters_stay_apart, release_all),
        cmocka_unit_test_teardown(test_watching, release_all),
        cmocka_unit_test_teardown(test_memory, release_all),
        cmocka_unit_test_teardown(test_no_memory, release_all),
        cmocka_unit_test_teardown(test_scale, release_all),
        cmocka_unit_test_teardown(test_all_points_equal, release_all),
        cmocka_unit_test_teardown(test_near_points, release_all),
        cmocka_unit_test_teardown(test_duplicates, release_all),
        cmocka_unit_test_teardown(test_line, release_all),
        cmocka_unit_test_teardown(test_few_points, release_all),
        cmocka_unit_test_teardown(test_perplexity_is_clipped, release_all),
        cmocka_unit_test_teardown(test_refused, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
