/* json.c - a certificate as JSON; see show.h */
#include "io/json.h"
#include "certify/show.h"

typedef struct maker {
    const cpl_certificate *c;
    bool failed; /* there was no memory for something */
} maker;

static void put(maker *m, json_t *object, const char *key, json_t *value)
{
    m->failed = json_object_set_new(object, key, value) != 0 || m->failed;
}

static void add(maker *m, json_t *array, json_t *value)
{
    m->failed = json_array_append_new(array, value) != 0 || m->failed;
}

static json_t *set_of(maker *m, cpl_fault_set faults)
{
    json_t *array = json_array();
    for (int f = 0; f < CPL_N_FAULTS; f++)
        if (faults >> f & 1) add(m, array, json_string(cpl_faults[f].key));
    return array;
}

static json_t *faults_of(maker *m)
{
    json_t *array = json_array();
    for (int f = 0; f < CPL_N_FAULTS; f++) {
        json_t *object;
        if (!(m->c->faults >> f & 1)) continue;
        object = json_object();
        put(m, object, "key", json_string(cpl_faults[f].key));
        put(m, object, "sentence", json_string(cpl_faults[f].sentence));
        put(m, object, "remedy", json_string(cpl_faults[f].remedy));
        add(m, array, object);
    }
    return array;
}

static json_t *figures_of(maker *m)
{
    json_t *object = json_object();
    for (int k = 0; k < CPL_CERTIFY_FIGURES; k++) {
        const cpl_certify_figure *f = &m->c->figures[k];
        json_t *one;
        if (!f->name) continue;
        one = json_object();
        put(m, one, "given", json_boolean(f->given));
        put(m, one, "expected", cpl_json_number(f->expected));
        put(m, one, "got", cpl_json_number(f->got));
        put(m, one, "distance", cpl_json_number(f->distance));
        put(m, one, "fault_distance", cpl_json_number(f->fault_distance));
        put(m, object, f->name, one);
    }
    return object;
}

static json_t *untold_of(maker *m)
{
    json_t *array = json_array();
    for (int f = 0; f < CPL_N_FAULTS; f++) {
        json_t *object;
        if (!(m->c->untold >> f & 1)) continue;
        object = json_object();
        put(m, object, "key", json_string(cpl_faults[f].key));
        put(m, object, "reason", json_string(m->c->reasons[f]));
        add(m, array, object);
    }
    return array;
}

static void put_verdict(maker *m, json_t *object)
{
    static const char *const verdicts[] = {"right", "fault", "unknown"};
    static const char *const ties[]     = {"none", "pass", "strict", "half", "other"};
    json_t *alternatives                = json_array();
    for (int k = 0; k < m->c->n_alternatives; k++)
        add(m, alternatives, set_of(m, m->c->alternatives[k]));
    put(m, object, "verdict", json_string(verdicts[m->c->verdict]));
    put(m, object, "faults", faults_of(m));
    put(m, object, "alternatives", alternatives);
    put(m, object, "factor", cpl_json_number(m->c->factor));
    put(m, object, "rounding", json_string(m->c->rounded ? "bf16" : "f32"));
    put(m, object, "ties", json_string(ties[m->c->ties]));
    put(m, object, "n_ties", json_integer(m->c->n_ties));
}

json_t *cpl_certify_json(const cpl_certificate *c, const char *path)
{
    maker m        = {.c = c};
    json_t *object = json_object();
    put(&m, object, "dump", cpl_json_words(path));
    put(&m, object, "n", json_integer(c->n));
    put(&m, object, "d", json_integer(c->d));
    put(&m, object, "D", json_integer(c->D));
    put(&m, object, "alpha", cpl_json_number(c->alpha));
    put(&m, object, "weight", cpl_json_number(c->weight));
    put(&m, object, "layers", cpl_json_number(c->layers));
    put(&m, object, "noise", json_boolean(c->has_delta));
    put(&m, object, "active", json_integer(c->active));
    put_verdict(&m, object);
    put(&m, object, "figures", figures_of(&m));
    put(&m, object, "untold", untold_of(&m));
    if (!m.failed) return object;
    json_decref(object);
    return NULL;
}
