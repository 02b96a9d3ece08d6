/* json.c - see json.h */
#include "compare/json.h"

#include "io/json.h"
#include "io/json_build.h"
#include "tensor/figures.h"
#include <math.h>

/* What all of it is made with. */
typedef struct maker {
    const cpl_compare *c;
    bool failed; /* there was no memory for something */
} maker;

/* Counts of tokens and bytes are whole. */
static json_t *whole(double value)
{
    return isfinite(value) && fabs(value) < 0x1p53 && value == floor(value)
               ? json_integer((json_int_t)value)
               : cpl_json_number(value);
}

static void put_spread(maker *m, json_t *object, const cpl_spread *s)
{
    cpl_json_put(&m->failed, object, "mean", cpl_json_number(s->mean));
    cpl_json_put(&m->failed, object, "sd", cpl_json_number(s->sd));
    cpl_json_put(&m->failed, object, "n", json_integer((json_int_t)s->n));
}

/* ---- runs ---- */

static json_t *settings_of(maker *m, const cpl_run_record *run)
{
    json_t *object = json_object();
    for (int64_t i = 0; i < run->settings.count; i++)
        cpl_json_put(&m->failed, object, run->settings.pairs[i].name,
                     cpl_json_words(run->settings.pairs[i].text));
    return object;
}

/* Figures of a run, or with `group` >= 0 of a group. */
static json_t *value_of(maker *m, const cpl_compared_figure *f, int64_t run, int64_t group)
{
    if (group < 0) return whole(f->values[run]);
    json_t *object = json_object();
    put_spread(m, object, &f->spread[group]);
    return object;
}

static json_t *figures_of(maker *m, int64_t run, int64_t group)
{
    json_t *object = json_object(), *sources = json_object();
    for (int64_t i = 0; i < m->c->n_figures; i++) {
        const cpl_compared_figure *f = &m->c->figures[i];
        json_t *into                 = f->source ? sources : object;
        cpl_json_put(&m->failed, into, f->source ? f->source : f->is->key,
                     value_of(m, f, run, group));
    }
    cpl_json_put(&m->failed, object, "val_loss_by_source", sources);
    return object;
}

static json_t *layers_of(maker *m, int64_t run)
{
    json_t *object           = json_object();
    const cpl_run_line *line = cpl_compare_line(m->c, run);
    for (int f = 0; line && f < CPL_RUN_FIGURES; f++) {
        if (cpl_run_figures[f].of != CPL_RUN_OF_LAYERS) continue;
        json_t *array = json_array();
        for (int64_t l = 0; l < line->n_layers; l++)
            cpl_json_add(&m->failed, array, cpl_json_number(line->layers[f * line->n_layers + l]));
        const char *old = cpl_figure_old_name(cpl_run_figures[f].key);
        cpl_json_put(&m->failed, object, cpl_run_figures[f].key, array);
        if (old) cpl_json_put(&m->failed, object, old, json_incref(array));
    }
    return object;
}

static json_t *run_of(maker *m, int64_t r)
{
    json_t *o                 = json_object();
    const cpl_run_record *run = &m->c->runs[r];
    const cpl_run_line *last  = cpl_run_last(run);
    cpl_json_put(&m->failed, o, "name", cpl_json_words(m->c->names[r]));
    cpl_json_put(&m->failed, o, "folder", cpl_json_words(run->folder));
    cpl_json_put(&m->failed, o, "group", cpl_json_words(m->c->groups[m->c->group_of[r]].name));
    cpl_json_put(&m->failed, o, "step", last ? json_integer((json_int_t)last->step) : json_null());
    cpl_json_put(&m->failed, o, "steps",
                 run->steps < 0 ? json_null() : json_integer((json_int_t)run->steps));
    cpl_json_put(&m->failed, o, "in_progress", json_boolean(run->in_progress));
    cpl_json_put(&m->failed, o, "damaged_lines", json_integer((json_int_t)run->n_damaged));
    cpl_json_put(&m->failed, o, "repeated_steps", json_integer((json_int_t)run->n_repeated));
    cpl_json_put(&m->failed, o, "data", run->data ? cpl_json_words(run->data) : json_null());
    cpl_json_put(&m->failed, o, "held_out",
                 run->held_out ? cpl_json_words(run->held_out) : json_null());
    cpl_json_put(&m->failed, o, "tokenizer",
                 run->tokenizer ? cpl_json_words(run->tokenizer) : json_null());
    cpl_json_put(&m->failed, o, "figures", figures_of(m, r, -1));
    cpl_json_put(&m->failed, o, "layers", layers_of(m, r));
    cpl_json_put(&m->failed, o, "settings", settings_of(m, run));
    return o;
}

/* ---- settings and groups ---- */

static json_t *setting_of(maker *m, const cpl_compared_setting *s)
{
    static const char *const roles[] = {"matters", "seed", "bookkeeping"};
    json_t *o = json_object(), *values = json_array();
    for (int64_t r = 0; r < m->c->n_runs; r++)
        cpl_json_add(&m->failed, values, cpl_json_words(s->texts[r]));
    cpl_json_put(&m->failed, o, "setting", cpl_json_words(s->name));
    cpl_json_put(&m->failed, o, "role", cpl_json_words(roles[s->role]));
    cpl_json_put(&m->failed, o, "values", values);
    return o;
}

static json_t *settings_that_differ(maker *m)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < m->c->n_settings; i++)
        if (m->c->settings[i].differs)
            cpl_json_add(&m->failed, array, setting_of(m, &m->c->settings[i]));
    return array;
}

static json_t *group_of(maker *m, int64_t g)
{
    const cpl_run_group *group = &m->c->groups[g];
    json_t *o = json_object(), *members = json_array();
    for (int64_t i = 0; i < group->n; i++)
        cpl_json_add(&m->failed, members, cpl_json_words(m->c->names[group->members[i]]));
    cpl_json_put(&m->failed, o, "name", cpl_json_words(group->name));
    cpl_json_put(&m->failed, o, "place", cpl_json_number(group->place));
    cpl_json_put(&m->failed, o, "members", members);
    cpl_json_put(&m->failed, o, "figures", figures_of(m, -1, g));
    return o;
}

/* ---- pairs ---- */

static json_t *set_of(maker *m, const cpl_document_set *set)
{
    json_t *o = json_object();
    cpl_json_put(&m->failed, o, "source", set->source ? cpl_json_words(set->source) : json_null());
    cpl_json_put(&m->failed, o, "documents", json_integer((json_int_t)set->n));
    cpl_json_put(&m->failed, o, "bytes", whole(set->bytes));
    cpl_json_put(&m->failed, o, "base", cpl_json_number(set->base));
    cpl_json_put(&m->failed, o, "other", cpl_json_number(set->other));
    cpl_json_put(&m->failed, o, "difference", cpl_json_number(set->difference));
    cpl_json_put(&m->failed, o, "low", cpl_json_number(set->low));
    cpl_json_put(&m->failed, o, "high", cpl_json_number(set->high));
    return o;
}

static json_t *bits_of(maker *m, const cpl_document_difference *d)
{
    if (d->n_pairs == 0) return json_null();
    json_t *o = json_object(), *sets = json_array();
    for (int64_t i = 0; i < d->n_sets; i++) cpl_json_add(&m->failed, sets, set_of(m, &d->sets[i]));
    cpl_json_put(&m->failed, o, "pairs", json_integer((json_int_t)d->n_pairs));
    cpl_json_put(&m->failed, o, "step", json_integer((json_int_t)d->step));
    cpl_json_put(&m->failed, o, "only_base", json_integer((json_int_t)d->only_base));
    cpl_json_put(&m->failed, o, "only_other", json_integer((json_int_t)d->only_other));
    cpl_json_put(&m->failed, o, "sets", sets);
    return o;
}

static json_t *question_of(maker *m, const cpl_pairing *p, const cpl_question_table *t)
{
    json_t *o = json_object();
    cpl_json_put(&m->failed, o, "base", cpl_json_words(m->c->names[p->pairs[t->pair].base]));
    cpl_json_put(&m->failed, o, "other", cpl_json_words(m->c->names[p->pairs[t->pair].other]));
    cpl_json_put(&m->failed, o, "task", cpl_json_words(t->task));
    cpl_json_put(&m->failed, o, "metric", cpl_json_words(t->metric));
    cpl_json_put(&m->failed, o, "both", json_integer((json_int_t)t->both));
    cpl_json_put(&m->failed, o, "only_base", json_integer((json_int_t)t->only_base));
    cpl_json_put(&m->failed, o, "only_other", json_integer((json_int_t)t->only_other));
    cpl_json_put(&m->failed, o, "neither", json_integer((json_int_t)t->neither));
    cpl_json_put(&m->failed, o, "left_out", json_integer((json_int_t)t->left_out));
    cpl_json_put(&m->failed, o, "p", cpl_json_number(t->p));
    return o;
}

static json_t *pairing_of(maker *m, const cpl_pairing *p)
{
    json_t *o = json_object(), *pairs = json_array(), *questions = json_array();
    for (int64_t i = 0; i < p->n; i++) {
        json_t *pair = json_object();
        cpl_json_put(&m->failed, pair, "base", cpl_json_words(m->c->names[p->pairs[i].base]));
        cpl_json_put(&m->failed, pair, "other", cpl_json_words(m->c->names[p->pairs[i].other]));
        cpl_json_put(&m->failed, pair, "difference", cpl_json_number(p->pairs[i].difference));
        cpl_json_add(&m->failed, pairs, pair);
    }
    for (int64_t i = 0; i < p->questions.n; i++)
        cpl_json_add(&m->failed, questions, question_of(m, p, &p->questions.tables[i]));
    cpl_json_put(&m->failed, o, "group", cpl_json_words(m->c->groups[p->group].name));
    put_spread(m, o, &p->spread);
    cpl_json_put(&m->failed, o, "low", cpl_json_number(p->spread.mean - p->half));
    cpl_json_put(&m->failed, o, "high", cpl_json_number(p->spread.mean + p->half));
    cpl_json_put(&m->failed, o, "detectable", cpl_json_number(p->detectable));
    cpl_json_put(&m->failed, o, "pairs", pairs);
    cpl_json_put(&m->failed, o, "bits_per_byte", bits_of(m, &p->documents));
    cpl_json_put(&m->failed, o, "questions", questions);
    return o;
}

/* ---- the whole ---- */

json_t *cpl_compare_json(const cpl_compare *c)
{
    static const char *const kinds[] = {"evaluated", "logged", "last", "none"};
    maker m                          = {.c = c};
    json_t *o = json_object(), *warnings = json_array(), *runs = json_array();
    json_t *groups = json_array(), *pairings = json_array();
    for (int64_t i = 0; i < c->n_warnings; i++)
        cpl_json_add(&m.failed, warnings, cpl_json_words(c->warnings[i]));
    for (int64_t r = 0; r < c->n_runs; r++) cpl_json_add(&m.failed, runs, run_of(&m, r));
    for (int64_t g = 0; g < c->n_groups; g++) cpl_json_add(&m.failed, groups, group_of(&m, g));
    for (int64_t p = 0; p < c->n_pairings; p++)
        cpl_json_add(&m.failed, pairings, pairing_of(&m, &c->pairings[p]));
    cpl_json_put(&m.failed, o, "warnings", warnings);
    cpl_json_put(&m.failed, o, "point_tokens", whole(c->point));
    cpl_json_put(&m.failed, o, "point_kind", cpl_json_words(kinds[c->point_kind]));
    cpl_json_put(&m.failed, o, "equal_time_s", cpl_json_number(c->seconds));
    cpl_json_put(&m.failed, o, "group_by",
                 c->options.group_by ? cpl_json_words(c->options.group_by) : json_null());
    cpl_json_put(&m.failed, o, "baseline", cpl_json_words(c->groups[c->baseline].name));
    cpl_json_put(&m.failed, o, "differing", settings_that_differ(&m));
    cpl_json_put(&m.failed, o, "runs", runs);
    cpl_json_put(&m.failed, o, "groups", groups);
    cpl_json_put(&m.failed, o, "comparisons", pairings);
    if (!m.failed) return o;
    json_decref(o);
    return NULL;
}
