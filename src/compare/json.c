/* json.c - see json.h */
#include "compare/json.h"

#include "io/json.h"
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

static void put(maker *m, json_t *object, const char *key, json_t *value)
{
    m->failed = json_object_set_new(object, key, value) != 0 || m->failed;
}

static void add(maker *m, json_t *array, json_t *value)
{
    m->failed = json_array_append_new(array, value) != 0 || m->failed;
}

static void put_spread(maker *m, json_t *object, const cpl_spread *s)
{
    put(m, object, "mean", cpl_json_number(s->mean));
    put(m, object, "sd", cpl_json_number(s->sd));
    put(m, object, "n", json_integer((json_int_t)s->n));
}

/* The member of a figure: as in metrics.jsonl, or for those made here the word of its file. */
static const char *key_of(const cpl_compared_figure *f)
{
    return f->figure >= 0 ? cpl_run_figures[f->figure].key : f->file;
}

/* ---- runs ---- */

static json_t *settings_of(maker *m, const cpl_run_record *run)
{
    json_t *object = json_object();
    for (int64_t i = 0; i < run->settings.count; i++)
        put(m, object, run->settings.pairs[i].name, cpl_json_words(run->settings.pairs[i].text));
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
        put(m, into, f->source ? f->source : key_of(f), value_of(m, f, run, group));
    }
    put(m, object, "val_loss_by_source", sources);
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
            add(m, array, cpl_json_number(line->layers[f * line->n_layers + l]));
        const char *old = cpl_figure_old_name(cpl_run_figures[f].key);
        put(m, object, cpl_run_figures[f].key, array);
        if (old) put(m, object, old, json_incref(array));
    }
    return object;
}

static json_t *run_of(maker *m, int64_t r)
{
    json_t *o                 = json_object();
    const cpl_run_record *run = &m->c->runs[r];
    const cpl_run_line *last  = cpl_run_last(run);
    put(m, o, "name", cpl_json_words(m->c->names[r]));
    put(m, o, "folder", cpl_json_words(run->folder));
    put(m, o, "group", cpl_json_words(m->c->groups[m->c->group_of[r]].name));
    put(m, o, "step", last ? json_integer((json_int_t)last->step) : json_null());
    put(m, o, "steps", run->steps < 0 ? json_null() : json_integer((json_int_t)run->steps));
    put(m, o, "in_progress", json_boolean(run->in_progress));
    put(m, o, "damaged_lines", json_integer((json_int_t)run->n_damaged));
    put(m, o, "repeated_steps", json_integer((json_int_t)run->n_repeated));
    put(m, o, "data", run->data ? cpl_json_words(run->data) : json_null());
    put(m, o, "held_out", run->held_out ? cpl_json_words(run->held_out) : json_null());
    put(m, o, "tokenizer", run->tokenizer ? cpl_json_words(run->tokenizer) : json_null());
    put(m, o, "figures", figures_of(m, r, -1));
    put(m, o, "layers", layers_of(m, r));
    put(m, o, "settings", settings_of(m, run));
    return o;
}

/* ---- settings and groups ---- */

static json_t *setting_of(maker *m, const cpl_compared_setting *s)
{
    static const char *const roles[] = {"matters", "seed", "bookkeeping"};
    json_t *o = json_object(), *values = json_array();
    for (int64_t r = 0; r < m->c->n_runs; r++) add(m, values, cpl_json_words(s->texts[r]));
    put(m, o, "setting", cpl_json_words(s->name));
    put(m, o, "role", cpl_json_words(roles[s->role]));
    put(m, o, "values", values);
    return o;
}

static json_t *settings_that_differ(maker *m)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < m->c->n_settings; i++)
        if (m->c->settings[i].differs) add(m, array, setting_of(m, &m->c->settings[i]));
    return array;
}

static json_t *group_of(maker *m, int64_t g)
{
    const cpl_run_group *group = &m->c->groups[g];
    json_t *o = json_object(), *members = json_array();
    for (int64_t i = 0; i < group->n; i++)
        add(m, members, cpl_json_words(m->c->names[group->members[i]]));
    put(m, o, "name", cpl_json_words(group->name));
    put(m, o, "place", cpl_json_number(group->place));
    put(m, o, "members", members);
    put(m, o, "figures", figures_of(m, -1, g));
    return o;
}

/* ---- pairs ---- */

static json_t *set_of(maker *m, const cpl_document_set *set)
{
    json_t *o = json_object();
    put(m, o, "source", set->source ? cpl_json_words(set->source) : json_null());
    put(m, o, "documents", json_integer((json_int_t)set->n));
    put(m, o, "bytes", whole(set->bytes));
    put(m, o, "base", cpl_json_number(set->base));
    put(m, o, "other", cpl_json_number(set->other));
    put(m, o, "difference", cpl_json_number(set->difference));
    put(m, o, "low", cpl_json_number(set->low));
    put(m, o, "high", cpl_json_number(set->high));
    return o;
}

static json_t *bits_of(maker *m, const cpl_document_difference *d)
{
    if (d->n_pairs == 0) return json_null();
    json_t *o = json_object(), *sets = json_array();
    for (int64_t i = 0; i < d->n_sets; i++) add(m, sets, set_of(m, &d->sets[i]));
    put(m, o, "pairs", json_integer((json_int_t)d->n_pairs));
    put(m, o, "step", json_integer((json_int_t)d->step));
    put(m, o, "only_base", json_integer((json_int_t)d->only_base));
    put(m, o, "only_other", json_integer((json_int_t)d->only_other));
    put(m, o, "sets", sets);
    return o;
}

static json_t *question_of(maker *m, const cpl_pairing *p, const cpl_question_table *t)
{
    json_t *o = json_object();
    put(m, o, "base", cpl_json_words(m->c->names[p->pairs[t->pair].base]));
    put(m, o, "other", cpl_json_words(m->c->names[p->pairs[t->pair].other]));
    put(m, o, "task", cpl_json_words(t->task));
    put(m, o, "metric", cpl_json_words(t->metric));
    put(m, o, "both", json_integer((json_int_t)t->both));
    put(m, o, "only_base", json_integer((json_int_t)t->only_base));
    put(m, o, "only_other", json_integer((json_int_t)t->only_other));
    put(m, o, "neither", json_integer((json_int_t)t->neither));
    put(m, o, "left_out", json_integer((json_int_t)t->left_out));
    put(m, o, "p", cpl_json_number(t->p));
    return o;
}

static json_t *pairing_of(maker *m, const cpl_pairing *p)
{
    json_t *o = json_object(), *pairs = json_array(), *questions = json_array();
    for (int64_t i = 0; i < p->n; i++) {
        json_t *pair = json_object();
        put(m, pair, "base", cpl_json_words(m->c->names[p->pairs[i].base]));
        put(m, pair, "other", cpl_json_words(m->c->names[p->pairs[i].other]));
        put(m, pair, "difference", cpl_json_number(p->pairs[i].difference));
        add(m, pairs, pair);
    }
    for (int64_t i = 0; i < p->questions.n; i++)
        add(m, questions, question_of(m, p, &p->questions.tables[i]));
    put(m, o, "group", cpl_json_words(m->c->groups[p->group].name));
    put_spread(m, o, &p->spread);
    put(m, o, "low", cpl_json_number(p->spread.mean - p->half));
    put(m, o, "high", cpl_json_number(p->spread.mean + p->half));
    put(m, o, "detectable", cpl_json_number(p->detectable));
    put(m, o, "pairs", pairs);
    put(m, o, "bits_per_byte", bits_of(m, &p->documents));
    put(m, o, "questions", questions);
    return o;
}

/* ---- the whole ---- */

json_t *cpl_compare_json(const cpl_compare *c)
{
    static const char *const kinds[] = {"evaluated", "logged", "last", "none"};
    maker m                          = {.c = c};
    json_t *o = json_object(), *warnings = json_array(), *runs = json_array();
    json_t *groups = json_array(), *pairings = json_array();
    for (int64_t i = 0; i < c->n_warnings; i++) add(&m, warnings, cpl_json_words(c->warnings[i]));
    for (int64_t r = 0; r < c->n_runs; r++) add(&m, runs, run_of(&m, r));
    for (int64_t g = 0; g < c->n_groups; g++) add(&m, groups, group_of(&m, g));
    for (int64_t p = 0; p < c->n_pairings; p++) add(&m, pairings, pairing_of(&m, &c->pairings[p]));
    put(&m, o, "warnings", warnings);
    put(&m, o, "point_tokens", whole(c->point));
    put(&m, o, "point_kind", cpl_json_words(kinds[c->point_kind]));
    put(&m, o, "equal_time_s", cpl_json_number(c->seconds));
    put(&m, o, "group_by", c->options.group_by ? cpl_json_words(c->options.group_by) : json_null());
    put(&m, o, "baseline", cpl_json_words(c->groups[c->baseline].name));
    put(&m, o, "differing", settings_that_differ(&m));
    put(&m, o, "runs", runs);
    put(&m, o, "groups", groups);
    put(&m, o, "comparisons", pairings);
    if (!m.failed) return o;
    json_decref(o);
    return NULL;
}
