/* json.c - a comparison as JSON; see compare.h */
#include <math.h>

#include "compare/compare.h"
#include "io/json.h"
#include "tensor/figures.h"

/* `array` with one element more, which it takes over; NULL if either is NULL. */
static json_t *with(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) == 0) return array;
    json_decref(array);
    return NULL;
}

/* The same of an object. */
static json_t *with_member(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) == 0) return object;
    json_decref(object);
    return NULL;
}

static json_t *words_or_null(const char *words)
{
    return words ? cpl_json_words(words) : json_null();
}

/* A number of steps; null: below 0, unknown. */
static json_t *steps_or_null(int64_t steps)
{
    return steps < 0 ? json_null() : json_integer((json_int_t)steps);
}

/* ---- runs ---- */

static json_t *settings_of(const cpl_run_record *run)
{
    json_t *object = json_object();
    for (int64_t i = 0; i < run->settings.count; i++)
        object = with_member(object, run->settings.pairs[i].name,
                             cpl_json_words(run->settings.pairs[i].text));
    return object;
}

/* A figure of a run, or with `group` >= 0 of a group. */
static json_t *value_of(const cpl_compared_figure *f, int64_t run, int64_t group)
{
    if (group < 0) return cpl_json_count(f->values[run]);
    const cpl_spread *s = &f->spread[group];
    return json_pack("{s:o, s:o, s:I}", "mean", cpl_json_number(s->mean), "sd",
                     cpl_json_number(s->sd), "n", (json_int_t)s->n);
}

static json_t *figures_of(const cpl_compare *c, int64_t run, int64_t group)
{
    json_t *object = json_object(), *sources = json_object();
    for (int64_t i = 0; i < c->n_figures; i++) {
        const cpl_compared_figure *f = &c->figures[i];
        json_t *value                = value_of(f, run, group);
        const char *old              = f->source ? NULL : cpl_figure_old_name(f->is->key);
        if (old) object = with_member(object, old, json_incref(value));
        if (f->source)
            sources = with_member(sources, f->source, value);
        else
            object = with_member(object, f->is->key, value);
    }
    return with_member(object, "val_loss_by_source", sources);
}

static json_t *layers_of(const cpl_run_line *line)
{
    json_t *object = json_object();
    for (int f = 0; line && f < CPL_RUN_FIGURES; f++) {
        if (cpl_run_figures[f].of != CPL_RUN_OF_LAYERS) continue;
        json_t *array = json_array();
        for (int64_t l = 0; l < line->n_layers; l++)
            array = with(array, cpl_json_number(line->layers[f * line->n_layers + l]));
        const char *old = cpl_figure_old_name(cpl_run_figures[f].key);
        object          = with_member(object, cpl_run_figures[f].key, json_incref(array));
        if (old) object = with_member(object, old, json_incref(array));
        json_decref(array);
    }
    return object;
}

static json_t *run_of(const cpl_compare *c, int64_t r)
{
    const cpl_run_record *run = &c->runs[r];
    const cpl_run_line *last  = cpl_run_last(run);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "name", cpl_json_words(c->names[r]), "folder", cpl_json_words(run->folder),
                     "group", cpl_json_words(c->groups[c->group_of[r]].name), "step",
                     steps_or_null(last ? last->step : -1), "steps", steps_or_null(run->steps),
                     "in_progress", run->in_progress, "damaged_lines", (json_int_t)run->n_damaged,
                     "repeated_steps", (json_int_t)run->n_repeated, "data",
                     words_or_null(run->data), "held_out", words_or_null(run->held_out),
                     "tokenizer", words_or_null(run->tokenizer), "figures", figures_of(c, r, -1),
                     "layers", layers_of(cpl_compare_line(c, r)), "settings", settings_of(run));
}

/* ---- settings and groups ---- */

static json_t *setting_of(const cpl_compare *c, const cpl_compared_setting *s)
{
    static const char *const roles[] = {"matters", "seed", "bookkeeping"};
    json_t *values                   = json_array();
    for (int64_t r = 0; r < c->n_runs; r++) values = with(values, cpl_json_words(s->texts[r]));
    return json_pack("{s:o, s:s, s:o}", "setting", cpl_json_words(s->name), "role", roles[s->role],
                     "values", values);
}

static json_t *settings_that_differ(const cpl_compare *c)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < c->n_settings; i++)
        if (c->settings[i].differs) array = with(array, setting_of(c, &c->settings[i]));
    return array;
}

static json_t *group_of(const cpl_compare *c, int64_t g)
{
    const cpl_run_group *group = &c->groups[g];
    json_t *members            = json_array();
    for (int64_t i = 0; i < group->n; i++)
        members = with(members, cpl_json_words(c->names[group->members[i]]));
    return json_pack("{s:o, s:o, s:o, s:o}", "name", cpl_json_words(group->name), "place",
                     cpl_json_number(group->place), "members", members, "figures",
                     figures_of(c, -1, g));
}

/* ---- pairs ---- */

static json_t *set_of(const cpl_document_set *set)
{
    return json_pack("{s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "source",
                     words_or_null(set->source), "documents", (json_int_t)set->n, "bytes",
                     cpl_json_count(set->bytes), "base", cpl_json_number(set->base), "other",
                     cpl_json_number(set->other), "difference", cpl_json_number(set->difference),
                     "low", cpl_json_number(set->low), "high", cpl_json_number(set->high));
}

static json_t *bits_of(const cpl_document_difference *d)
{
    if (d->n_pairs == 0) return json_null();
    json_t *sets = json_array();
    for (int64_t i = 0; i < d->n_sets; i++) sets = with(sets, set_of(&d->sets[i]));
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "pairs", (json_int_t)d->n_pairs, "step",
                     (json_int_t)d->step, "only_base", (json_int_t)d->only_base, "only_other",
                     (json_int_t)d->only_other, "sets", sets);
}

static json_t *task_of(const cpl_compare *c, const cpl_run_pair *pair, const cpl_question_table *t)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o}", "base",
                     cpl_json_words(c->names[pair->base]), "other",
                     cpl_json_words(c->names[pair->other]), "task", cpl_json_words(t->task),
                     "metric", cpl_json_words(t->metric), "both", (json_int_t)t->both, "only_base",
                     (json_int_t)t->only_base, "only_other", (json_int_t)t->only_other, "neither",
                     (json_int_t)t->neither, "left_out", (json_int_t)t->left_out, "p",
                     cpl_json_number(t->p));
}

static json_t *pair_of(const cpl_compare *c, const cpl_run_pair *pair)
{
    return json_pack("{s:o, s:o, s:o}", "base", cpl_json_words(c->names[pair->base]), "other",
                     cpl_json_words(c->names[pair->other]), "difference",
                     cpl_json_number(pair->difference));
}

static json_t *pairing_of(const cpl_compare *c, const cpl_pairing *p)
{
    json_t *pairs = json_array(), *questions = json_array();
    for (int64_t i = 0; i < p->n; i++) {
        const cpl_run_pair *pair = &p->pairs[i];
        pairs                    = with(pairs, pair_of(c, pair));
        for (int64_t t = 0; t < pair->n_tasks; t++)
            questions = with(questions, task_of(c, pair, &pair->tasks[t]));
    }
    return json_pack("{s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "group",
                     cpl_json_words(c->groups[p->group].name), "mean",
                     cpl_json_number(p->spread.mean), "sd", cpl_json_number(p->spread.sd), "n",
                     (json_int_t)p->spread.n, "low", cpl_json_number(p->spread.mean - p->half),
                     "high", cpl_json_number(p->spread.mean + p->half), "detectable",
                     cpl_json_number(p->detectable), "pairs", pairs, "bits_per_byte",
                     bits_of(&p->documents), "questions", questions);
}

/* ---- the whole ---- */

json_t *cpl_compare_json(const cpl_compare *c)
{
    static const char *const kinds[] = {"evaluated", "logged", "last", "none"};
    json_t *warnings = json_array(), *runs = json_array();
    json_t *groups = json_array(), *pairings = json_array();
    for (int64_t i = 0; i < c->warnings.count; i++)
        warnings = with(warnings, cpl_json_words(c->warnings.at[i]));
    for (int64_t r = 0; r < c->n_runs; r++) runs = with(runs, run_of(c, r));
    for (int64_t g = 0; g < c->n_groups; g++) groups = with(groups, group_of(c, g));
    for (int64_t p = 0; p < c->n_pairings; p++)
        pairings = with(pairings, pairing_of(c, &c->pairings[p]));
    return json_pack("{s:i, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "schema",
                     CPL_FIGURES_SCHEMA, "warnings", warnings, "point_tokens",
                     cpl_json_count(c->point), "point_kind", kinds[c->point_kind], "equal_time_s",
                     cpl_json_number(c->seconds), "group_by", words_or_null(c->options.group_by),
                     "baseline", cpl_json_words(c->groups[c->baseline].name), "differing",
                     settings_that_differ(c), "runs", runs, "groups", groups, "comparisons",
                     pairings);
}
