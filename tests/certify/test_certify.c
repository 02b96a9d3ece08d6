/* Certificates of the reference's own cases, of ties treated otherwise, and of files that are no
 * dumps. */
#include <jansson.h>

#include "certify/certify_case.h"
#include "certify/show.h"
#include "io/json.h"

/* ---- the reference's cases ---- */

static double *read_all(const cpl_safetensors *file, const char *name, int64_t count)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    double *values                     = zeros(count);
    if (!entry) return values;
    assert_int_equal(entry->n_elements, count);
    if (entry->dtype == CPL_SAFETENSORS_F64) {
        assert_ok(cpl_safetensors_read_raw(file, entry, values, 0, 8 * (size_t)count));
        return values;
    }
    float *narrow = malloc((size_t)count * sizeof *narrow);
    assert_ok(cpl_safetensors_read_f32(file, entry, narrow, 0, count));
    for (int64_t k = 0; k < count; k++) values[k] = (double)narrow[k];
    free(narrow);
    return values;
}

/* A case with activation gate; `kind` is the type of what it gave. */
static naive golden_case(const json_t *about, naive_kind kind)
{
    char relative[96];
    cpl_safetensors *file;
    naive v = {.kind = kind, .tie = 1, .layers = 1, .gives_M = true};
    snprintf(relative, sizeof relative, "erc/%s.safetensors",
             json_string_value(json_object_get(about, "name")));
    assert_ok(cpl_safetensors_open(&file, golden_path(relative)));
    v.n      = (int)json_integer_value(json_object_get(about, "n"));
    v.d      = (int)json_integer_value(json_object_get(about, "d"));
    v.D      = (int)json_integer_value(json_object_get(about, "D"));
    v.alpha  = json_number_value(json_object_get(about, "alpha"));
    v.weight = json_number_value(json_object_get(about, "weight"));
    v.noisy  = strcmp(json_string_value(json_object_get(about, "noise")), "none") != 0;
    double loss;
    const int64_t nd = (int64_t)v.n * v.d;
    naive_room(&v);
    double **fields[]      = {&v.R, &v.delta, &v.W[0], &v.M, &v.dR, &v.dW[0]};
    const char *names[]    = {"R", "delta", "Wg", "M", "dR", "dWg"};
    const int64_t counts[] = {nd, nd, nd * v.D, v.n * v.n, nd, nd * v.D};
    for (int k = 0; k < 6; k++) {
        free(*fields[k]);
        *fields[k] = read_all(file, names[k], counts[k]);
    }
    if (!v.noisy)
        for (int64_t k = 0; k < nd; k++) v.delta[k] = 1;
    double *one = read_all(file, "loss", 1);
    loss        = *one;
    free(one);
    v.loss = loss;
    naive_eps(&v);
    cpl_safetensors_close(file);
    return v;
}

static bool is_gate(const json_t *about)
{
    return strcmp(json_string_value(json_object_get(about, "activation")), "gate") == 0;
}

static cpl_certificate certify_as_it_is(const naive *v)
{
    piece pieces[MOST_PIECES];
    cpl_certificate out;
    write_pieces(case_path(), pieces, naive_pieces(v, pieces, true));
    assert_ok(cpl_certify(&out, case_path(), 2));
    return out;
}

static json_t *golden_list(void)
{
    json_t *list;
    assert_ok(cpl_json_load(&list, golden_path("erc/cases.json")));
    return list;
}

static void the_reference_is_right(void **state)
{
    (void)state;
    json_t *list = golden_list(), *about;
    size_t at;
    int seen = 0;
    json_array_foreach(list, at, about)
    {
        const char *name = json_string_value(json_object_get(about, "name"));
        if (!is_gate(about)) continue;
        naive v           = golden_case(about, NAIVE_F64);
        cpl_certificate c = certify_as_it_is(&v);
        if (c.verdict != CPL_CERTIFY_RIGHT || c.rounded)
            fail_msg("%s: %s, verdict %d", name, set_text(c.faults), c.verdict);
        assert_true(c.ties <= CPL_CERTIFY_TIES_PASS);
        for (int k = 0; k < CPL_CERTIFY_FIGURES; k++)
            if (c.figures[k].name && !(c.figures[k].distance < 1e-9))
                fail_msg("%s: %s is %g off", name, c.figures[k].name, c.figures[k].distance);
        naive_free(&v);
        seen++;
    }
    assert_int_equal(seen, 23);
    json_decref(list);
}

static void multiply_outputs(naive *v, float by)
{
    v->loss *= by;
    for (int k = 0; k < v->n * v->d; k++) v->dR[k] *= by;
    for (int k = 0; k < v->n * v->D * v->d; k++) v->dW[0][k] *= by;
}

/* Ties that give nothing, or half, and then a factor before everything too; the inputs are small
 * integers, so that they are exact. */
static void ties_otherwise(void **state)
{
    (void)state;
    json_t *list = golden_list(), *about;
    size_t at;
    int told = 0, told_factors = 0;
    json_array_foreach(list, at, about)
    {
        const char *name = json_string_value(json_object_get(about, "name"));
        if (strncmp(name, "ties-", 5) != 0) continue;
        for (int half = 0; half <= 1; half++) {
            naive v           = golden_case(about, NAIVE_F32);
            v.tie             = half ? 0.5 : 0;
            cpl_certificate c = naive_certify(&v, 0);
            if (c.verdict != CPL_CERTIFY_RIGHT || c.rounded)
                fail_msg("%s: %s, verdict %d", name, set_text(c.faults), c.verdict);
            told += c.ties == (half ? CPL_CERTIFY_TIES_HALF : CPL_CERTIFY_TIES_STRICT);
            naive_run(&v, 0);
            multiply_outputs(&v, 3.7f);
            c = certify_as_it_is(&v);
            told_factors += c.faults == CPL_FAULT_BIT(FACTOR) && fabs(c.factor - 3.7) < 1e-3;
            naive_free(&v);
        }
    }
    if (told < 6) fail_msg("only %d of the ten were told", told);
    if (told_factors < 6) fail_msg("only %d of the ten factors were told", told_factors);
    json_decref(list);
}

/* ---- what is said ---- */

static void words_and_members(void **state)
{
    (void)state;
    naive v                 = naive_random(5);
    const cpl_fault_set set = CPL_FAULT_BIT(ROUTER_DETACHED) | CPL_FAULT_BIT(PAIRS_MEAN);
    v.kind                  = NAIVE_F32;
    cpl_certificate c       = naive_certify(&v, set);
    cpl_text text           = {0};
    assert_int_equal(c.faults, set);
    assert_ok(cpl_certify_text(&text, &c, "x.safetensors"));
    const char *parts[] = {"fault router_detached: the router gets no gradient",
                           "To fix it: ", "fault pairs_mean: ", "divide the sum by n * n",
                           "Measured: the distance of dR is"};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        if (!strstr(text.bytes, parts[k])) fail_msg("no \"%s\" in\n%s", parts[k], text.bytes);
    json_t *json = cpl_certify_json(&c, "x.safetensors");
    assert_string_equal(json_string_value(json_object_get(json, "verdict")), "fault");
    assert_int_equal(json_array_size(json_object_get(json, "faults")), 2);
    assert_non_null(json_object_get(json_object_get(json, "figures"), "dW_g"));
    json_decref(json);
    cpl_text_free(&text);
    naive_free(&v);
}

static void what_a_dump_cannot_tell(void **state)
{
    (void)state;
    naive v = naive_random(3);
    v.kind = NAIVE_F32, v.alpha = 1, v.weight = 1, v.layers = 1, v.noisy = false;
    for (int k = 0; k < v.n * v.d; k++) v.delta[k] = 1;
    v.has_up = v.gives_M    = false;
    const cpl_certificate c = naive_certify(&v, 0);
    const cpl_fault_set all = CPL_FAULT_BIT(MERGED) | CPL_FAULT_BIT(UP_FOR_GATE) |
                              CPL_FAULT_BIT(NOISE_LEFT_OUT) | CPL_FAULT_BIT(ALPHA_IGNORED) |
                              CPL_FAULT_BIT(DIAGONAL_KEPT) | CPL_FAULT_BIT(WEIGHT_LEFT_OUT) |
                              CPL_FAULT_BIT(WEIGHT_TWICE) | CPL_FAULT_BIT(LAYERS_SUM) |
                              CPL_FAULT_BIT(LAYERS_TWICE) | CPL_FAULT_BIT(DELTA_LEFT_OUT) |
                              CPL_FAULT_BIT(EPS_GRADIENT) | CPL_FAULT_BIT(TRANSPOSED);
    assert_int_equal(c.verdict, CPL_CERTIFY_RIGHT);
    if (c.untold != all) fail_msg("untold are %s", set_text(c.untold));
    for (int f = 0; f < CPL_N_FAULTS; f++)
        if (c.untold >> f & 1) assert_non_null(c.reasons[f]);
    naive_free(&v);
}

/* All of it times three and a bit; then noise in place of a gradient. */
static void a_factor_and_nonsense(void **state)
{
    (void)state;
    naive v = naive_random(11);
    dice r  = {9};
    v.kind  = NAIVE_F32;
    naive_run(&v, 0);
    multiply_outputs(&v, 3.7f);
    cpl_certificate c = certify_as_it_is(&v);
    assert_int_equal(c.faults, CPL_FAULT_BIT(FACTOR));
    assert_near(c.factor, 3.7, 1e-4);
    for (int k = 0; k < v.n * v.d; k++) v.dR[k] = dice_normal(&r);
    c = certify_as_it_is(&v);
    assert_int_equal(c.verdict, CPL_CERTIFY_UNKNOWN);
    naive_free(&v);
}

/* ---- no dumps ---- */

typedef struct damage {
    const char *name; /* of the piece that is changed; NULL: one is added */
    piece with;       /* name NULL: it is left out */
    const char *words;
} damage;

static void check_damage(const naive *v, const damage *bad)
{
    piece pieces[MOST_PIECES + 1];
    cpl_certificate out;
    int count = naive_pieces(v, pieces, true), kept = 0;
    for (int k = 0; k < count; k++) {
        const bool hit = bad->name && strcmp(pieces[k].name, bad->name) == 0;
        if (hit && !bad->with.name) continue;
        pieces[kept++] = hit ? bad->with : pieces[k];
    }
    if (!bad->name) pieces[kept++] = bad->with;
    write_pieces(case_path(), pieces, kept);
    assert_fails(CPL_ERR_INPUT, "dump.safetensors", cpl_certify(&out, case_path(), 2));
    if (!strstr(cpl_last_error(), bad->words))
        fail_msg("\"%s\" does not say \"%s\"", cpl_last_error(), bad->words);
}

static void no_dumps(void **state)
{
    (void)state;
    naive v  = naive_random(8);
    v.has_up = v.gives_M = v.noisy = true;
    const int64_t n = v.n, d = v.d, D = v.D;
    double *bad = zeros(n * D * d + n * n), none = 0, less = -1;
    bad[D * d + 2]                  = NAN;
    bad[0]                          = INFINITY;
    const cpl_safetensors_dtype f32 = CPL_SAFETENSORS_F32, i64 = CPL_SAFETENSORS_I64;
    const damage damages[] = {
        {"R", {0}, "there is no tensor R"},
        {"W_g", {0}, "there is no tensor W_g"},
        {"loss", {0}, "there is no tensor loss"},
        {"W_p", {0}, "there is a tensor dW_p but no W_p"},
        {"R", {"R", f32, 1, {n}, v.R}, "tensor R is ["},
        {"W_g", {"W_g", f32, 3, {n, d + 1, D}, bad}, "as nn.Linear stores them"},
        {"W_p", {"W_p", f32, 2, {n, d}, v.R}, "tensor W_p is ["},
        {"dR", {"dR", f32, 2, {d, n}, v.R}, "tensor dR is ["},
        {"dW_g", {"dW_g", f32, 2, {n, d}, v.R}, "tensor dW_g is ["},
        {"M", {"M", f32, 1, {n}, v.M}, "tensor M is ["},
        {"dR", {"dR", i64, 2, {n, d}, v.R}, "tensor dR is I64"},
        {"W_g", {"W_g", i64, 3, {n, D, d}, v.W[0]}, "tensor W_g is I64"},
        {"dW_g",
         {"dW_g", CPL_SAFETENSORS_F64, 3, {n, D, d}, bad + 1},
         "tensor dW_g is NaN at [1,0,1]"},
        {"R", {"R", f32, 2, {n, d}, bad}, "tensor R is infinite at [0,0]"},
        {"alpha", {"alpha", f32, 0, {0}, &less}, "tensor alpha is -1, wanted 0 or more"},
        {"weight", {"weight", f32, 0, {0}, &none}, "tensor weight is 0, wanted more than 0"},
        {"layers", {"layers", i64, 0, {0}, &none}, "tensor layers is 0"},
        {"loss", {"loss", f32, 1, {2}, v.R}, "tensor loss is [2], wanted a single number"},
        {NULL,
         {"dWg", f32, 3, {n, D, d}, v.W[0]},
         "tensor dWg is none of a dump's: did you mean dW_g?"},
        {NULL, {"x", f32, 1, {1}, v.R}, "tensor x is none of a dump's"},
    };
    for (size_t k = 0; k < sizeof damages / sizeof *damages; k++) check_damage(&v, &damages[k]);
    free(bad);
    naive_free(&v);
}

/* 20,000 experts of width 1 are a small file, and 64 TB to judge. */
static void too_many_experts(void **state)
{
    (void)state;
    enum { MANY = 20000 };
    cpl_certificate out;
    double *ones = zeros(MANY), loss = 0;
    for (int k = 0; k < MANY; k++) ones[k] = 1;
    const piece pieces[] = {{"R", CPL_SAFETENSORS_F32, 2, {MANY, 1}, ones},
                            {"W_g", CPL_SAFETENSORS_F32, 3, {MANY, 1, 1}, ones},
                            {"loss", CPL_SAFETENSORS_F32, 0, {0}, &loss}};
    write_pieces(case_path(), pieces, 3);
    assert_fails(CPL_ERR_MEMORY, "judging 20000 experts", cpl_certify(&out, case_path(), 1));
    free(ones);
}

static void out_of_memory(void **state)
{
    (void)state;
    piece pieces[MOST_PIECES];
    naive v = naive_random(13);
    v.n     = 3;
    naive_eps(&v);
    naive_run(&v, 0);
    write_pieces(case_path(), pieces, naive_pieces(&v, pieces, true));
    for (int64_t nth = 1;; nth++) {
        cpl_certificate out;
        const int64_t held = cpl_alloc_in_use();
        cpl_alloc_fail_at(nth);
        const cpl_status status = cpl_certify(&out, case_path(), 1);
        cpl_alloc_fail_at(0);
        assert_int_equal(cpl_alloc_in_use(), held);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
        assert_true(nth < 1000);
    }
    naive_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_is_right), cmocka_unit_test(ties_otherwise),
        cmocka_unit_test(words_and_members),      cmocka_unit_test(what_a_dump_cannot_tell),
        cmocka_unit_test(a_factor_and_nonsense),  cmocka_unit_test(no_dumps),
        cmocka_unit_test(too_many_experts),       cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
