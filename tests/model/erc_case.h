/* erc_case.h - one reference case of tests/golden/erc in memory (the README there lists its
 * contents), for the tests of the coupling loss and of the public interface. Its arrays last until
 * release_all. */
#ifndef CPL_TESTS_MODEL_ERC_CASE_H
#define CPL_TESTS_MODEL_ERC_CASE_H

#include <jansson.h>
#include <math.h>

#include "checkpoint/safetensors.h"
#include "tensor/ops_check.h"

typedef struct erc_case {
    const char *name; /* borrowed from the list of cases */
    int64_t n, d, D;
    double alpha, weight;
    int activation; /* as cpl_erc_activation */
    bool noise;
    double nearest_kink; /* relative; infinite without a kink */
    double loss;
    float *R, *delta, *eps, *M; /* delta: NULL without noise */
    float *w[3], *dw[3], *dR;   /* gate, up, down; NULL where the case has none */
    float *mean, *latent;       /* [d] of erc.proxy tokens, with `scale`; W_l [d,d]; or NULL */
    double scale;
} erc_case;

static inline float *erc_read(const cpl_safetensors *file, const char *name, int64_t count)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    if (!entry) return NULL;
    assert_int_equal(entry->n_elements, count);
    float *x = take((size_t)count * sizeof *x);
    assert_ok(cpl_safetensors_read_f32(file, entry, x, 0, count));
    return x;
}

static inline int erc_activation_of(const char *word)
{
    static const char *const words[] = {"gate", "up", "silu", "swiglu", "output", "gate_up"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(word, words[i])) return i;
    fail_msg("unknown activation %s", word);
    return -1;
}

/* Reads the tensors of the case `c`, whose sizes are set. Their names in the file are PREFIX, "" or
 * "NAME.", and the names of tests/golden/erc. */
static inline void erc_case_read(erc_case *c, const cpl_safetensors *file, const char *prefix)
{
    const int64_t router = c->n * c->d, expert = c->n * c->D * c->d;
    float *loss = NULL;
    const struct {
        const char *name;
        float **at;
        int64_t count;
    } tensors[] = {
        {"R", &c->R, router},       {"delta", &c->delta, router}, {"dR", &c->dR, router},
        {"eps", &c->eps, c->n},     {"M", &c->M, c->n * c->n},    {"Wg", &c->w[0], expert},
        {"Wp", &c->w[1], expert},   {"Wo", &c->w[2], expert},     {"dWg", &c->dw[0], expert},
        {"dWp", &c->dw[1], expert}, {"dWo", &c->dw[2], expert},   {"loss", &loss, 1}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, tensors[i].name);
        *tensors[i].at = erc_read(file, name, tensors[i].count);
    }
    assert_non_null(loss);
    c->loss = *loss;
}

static inline erc_case erc_case_load(json_t *entry)
{
    erc_case c     = {0};
    c.name         = json_string_value(json_object_get(entry, "name"));
    c.n            = json_integer_value(json_object_get(entry, "n"));
    c.d            = json_integer_value(json_object_get(entry, "d"));
    c.D            = json_integer_value(json_object_get(entry, "D"));
    c.alpha        = json_number_value(json_object_get(entry, "alpha"));
    c.weight       = json_number_value(json_object_get(entry, "weight"));
    c.activation   = erc_activation_of(json_string_value(json_object_get(entry, "activation")));
    c.noise        = !strcmp(json_string_value(json_object_get(entry, "noise")), "bounded");
    json_t *kink   = json_object_get(json_object_get(entry, "facts"), "nearest_kink");
    c.nearest_kink = json_is_number(kink) ? json_number_value(kink) : INFINITY;

    char path[256];
    cpl_safetensors *file;
    snprintf(path, sizeof path, "tests/golden/erc/%s.safetensors", c.name);
    assert_ok(cpl_safetensors_open(&file, path));
    erc_case_read(&c, file, "");
    cpl_safetensors_close(file);
    return c;
}

/* Calls `check` with every case of tests/golden/erc. */
static inline void erc_for_all_cases(void (*check)(const erc_case *c))
{
    json_error_t error;
    json_t *list = json_load_file("tests/golden/erc/cases.json", 0, &error), *entry;
    size_t i;
    if (!list) fail_msg("cases.json: %s", error.text);
    assert_true(json_array_size(list) > 20);
    json_array_foreach(list, i, entry)
    {
        erc_case c = erc_case_load(entry);
        check(&c);
        release_all(NULL);
    }
    json_decref(list);
}

/* Relative tolerance of a tensor: sums of at most some thousand f32 products, each rounded once. */
static const double ERC_F32_TOLERANCE = 2e-6;

/* Sets norm(got - ref) and norm(ref). A reference that is absent is zero. */
static inline void erc_difference(double *off, double *norm, const float *got, const float *ref,
                                  int64_t count)
{
    *off = *norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double want = ref ? (double)ref[i] : 0, by = (double)got[i] - want;
        *off += by * by;
        *norm += want * want;
    }
    *off  = sqrt(*off);
    *norm = sqrt(*norm);
}

/* Compares relatively, or absolutely (1e-6) where the reference is smaller than 1e-10. */
static inline void erc_assert_close(const char *name, const char *what, const float *got,
                                    const float *ref, int64_t count, double relative)
{
    double off, norm;
    erc_difference(&off, &norm, got, ref, count);
    double bound = norm < 1e-10 ? 1e-6 : relative * norm;
    if (!(off <= bound)) fail_msg("%s: %s is off by %.3g of %.3g", name, what, off, norm);
}

/* Asserts that eps, M, the weighted loss and all gradients equal the reference. */
static inline void erc_assert_reference(const erc_case *c, const float *eps, const float *M,
                                        double loss, const float *dR, float *const dw[3])
{
    static const char *const names[] = {"dWg", "dWp", "dWo"};
    erc_assert_close(c->name, "eps", eps, c->eps, c->n, ERC_F32_TOLERANCE);
    erc_assert_close(c->name, "M", M, c->M, c->n * c->n, ERC_F32_TOLERANCE);
    assert_near(c->weight * loss, c->loss, 1e-5 * fabs(c->loss) + 1e-12);
    erc_assert_close(c->name, "dR", dR, c->dR, c->n * c->d, ERC_F32_TOLERANCE);
    for (int k = 0; k < 3; k++)
        erc_assert_close(c->name, names[k], dw[k], c->dw[k], c->n * c->D * c->d, ERC_F32_TOLERANCE);
}

#endif /* CPL_TESTS_MODEL_ERC_CASE_H */
