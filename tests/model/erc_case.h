/* erc_case.h - one reference case of tests/golden/erc in memory (its README says what is in it),
 * for the tests of the coupling loss and of the public door. */
#ifndef CPL_TESTS_MODEL_ERC_CASE_H
#define CPL_TESTS_MODEL_ERC_CASE_H

#include <jansson.h>
#include <math.h>

#include "check.h"
#include "checkpoint/safetensors.h"

typedef struct erc_case {
    const char *name; /* borrowed from the list of cases */
    int64_t n, d, D;
    double alpha, weight;
    int activation; /* 0 ... 4 as cpl_erc_activation */
    bool noise;
    double nearest_kink; /* relative; infinite where there is none */
    double loss;
    float *R, *delta, *eps, *M; /* delta: NULL without noise */
    float *w[3], *dw[3], *dR;   /* gate, up, down; NULL where the case has none */
} erc_case;

static inline float *erc_read(const cpl_safetensors *file, const char *name, int64_t count)
{
    const cpl_safetensors_entry *entry = cpl_safetensors_find(file, name);
    if (!entry) return NULL;
    assert_int_equal(entry->n_elements, count);
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    assert_ok(cpl_safetensors_read_f32(file, entry, x, 0, count));
    return x;
}

static inline int erc_activation_of(const char *word)
{
    static const char *const words[] = {"gate", "up", "silu", "swiglu", "output"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(word, words[i])) return i;
    fail_msg("unknown activation %s", word);
    return -1;
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
    snprintf(path, sizeof path, "tests/golden/erc/%s.safetensors", c.name);
    cpl_safetensors *file;
    assert_ok(cpl_safetensors_open(&file, path));
    const int64_t router = c.n * c.d, expert = c.n * c.D * c.d;
    c.R                          = erc_read(file, "R", router);
    c.delta                      = erc_read(file, "delta", router);
    c.dR                         = erc_read(file, "dR", router);
    c.eps                        = erc_read(file, "eps", c.n);
    c.M                          = erc_read(file, "M", c.n * c.n);
    static const char *const w[] = {"Wg", "Wp", "Wo"}, *const dw[] = {"dWg", "dWp", "dWo"};
    for (int k = 0; k < 3; k++) {
        c.w[k]  = erc_read(file, w[k], expert);
        c.dw[k] = erc_read(file, dw[k], expert);
    }
    float *loss = erc_read(file, "loss", 1);
    assert_non_null(loss);
    c.loss = *loss;
    free(loss);
    cpl_safetensors_close(file);
    return c;
}

static inline void erc_case_free(erc_case *c)
{
    free(c->R);
    free(c->delta);
    free(c->eps);
    free(c->M);
    free(c->dR);
    for (int k = 0; k < 3; k++) {
        free(c->w[k]);
        free(c->dw[k]);
    }
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
        erc_case_free(&c);
    }
    json_decref(list);
}

/* norm(got - ref) and norm(ref); a reference that is absent is zero. */
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

/* Relative per tensor; absolute (1e-6) where the reference is smaller than 1e-10. */
static inline void erc_assert_close(const char *name, const char *what, const float *got,
                                    const float *ref, int64_t count, double relative)
{
    double off, norm;
    erc_difference(&off, &norm, got, ref, count);
    double bound = norm < 1e-10 ? 1e-6 : relative * norm;
    if (!(off <= bound)) fail_msg("%s: %s is off by %.3g of %.3g", name, what, off, norm);
}

#endif /* CPL_TESTS_MODEL_ERC_CASE_H */
