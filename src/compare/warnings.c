/* warnings.c - warnings for the reader of a comparison; see compare.h */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "compare/internal.h"
#include "io/paths.h"

cpl_status cpl_compare_warn(cpl_compare *c, const char *format, ...)
{
    char sentence[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return cpl_paths_add(&c->warnings, sentence);
}

/* ---- what makes losses incomparable ---- */

typedef struct same_text {
    const char *setting, *what, *why;
} same_text;

static const same_text must_agree[] = {
    {"data.train", "training data", "their losses are of different text"},
    {"data.validation", "validation data", "their validation losses are of different text"},
    {"eval.max_sequences", "validation data", "their validation losses are of different text"},
    {"data.tokenizer", "tokenizer", "a token is not the same to both, and losses are a token's"},
    {"model.vocab_size", "vocabulary", "losses of different vocabularies cannot be compared"},
    {"data.seq_len", "length of sequences", "tokens of theirs have different context"},
};

/* How many runs have another content than `run`; the first of them in `*other`. */
static int64_t count_others(const cpl_compare *c, const cpl_compared_setting *s, int64_t run,
                            int64_t *other)
{
    int64_t count = 0;
    for (int64_t r = c->n_runs; r-- > 0;) {
        if (cpl_compare_same(c, s, run, r)) continue;
        *other = r;
        count++;
    }
    return count;
}

static cpl_status warn_of_text(cpl_compare *c, const same_text *must)
{
    const cpl_compared_setting *s = cpl_compare_setting(c, must->setting);
    if (!s || !s->differs) return CPL_OK;
    int64_t run = 0, other = 0, count = 0;
    while ((count = count_others(c, s, run, &other)) == 0) run++;
    char more[64] = "";
    if (count > 1) snprintf(more, sizeof more, " (and %lld more runs)", (long long)count - 1);
    return cpl_compare_warn(c, "%s and %s%s differ in their %s (%s: %s and %s): %s", c->names[run],
                            c->names[other], more, must->what, s->name, s->texts[run],
                            s->texts[other], must->why);
}

/* ---- groups that hold more than seeds ---- */

static bool differs_within(const cpl_compare *c, const cpl_run_group *group,
                           const cpl_compared_setting *s)
{
    for (int64_t i = 1; i < group->n; i++)
        if (!cpl_compare_same(c, s, group->members[i], group->members[0])) return true;
    return false;
}

static cpl_status warn_of_group(cpl_compare *c, const cpl_run_group *group)
{
    cpl_text list     = {0};
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < c->n_settings; i++) {
        const cpl_compared_setting *s = &c->settings[i];
        if (s->role != CPL_ROLE_MATTERS || !differs_within(c, group, s)) continue;
        cpl_text_printf(&list, "%s%s", list.length ? ", " : "", s->name);
    }
    if (list.length)
        status = cpl_compare_warn(c, "the runs of the group %s differ in more than their seeds: %s",
                                  group->name, list.bytes);
    cpl_text_free(&list);
    return status;
}

/* ---- what was named, and damage ---- */

static cpl_status warn_of_naming(cpl_compare *c, int64_t r)
{
    const cpl_run_record *run = &c->runs[r];
    if (!run->duplicate) return CPL_OK;
    return cpl_compare_warn(c, "%s and %s are the same folder: it counts once", run->folder,
                            run->duplicate);
}

static cpl_status warn_of_damage(cpl_compare *c, int64_t r)
{
    const cpl_run_record *run = &c->runs[r];
    if (run->n_damaged)
        CPL_TRY(cpl_compare_warn(c, "%s: %lld damaged line%s of its metrics %s passed over",
                                 c->names[r], (long long)run->n_damaged,
                                 run->n_damaged == 1 ? "" : "s",
                                 run->n_damaged == 1 ? "was" : "were"));
    if (run->n_repeated)
        CPL_TRY(cpl_compare_warn(
            c,
            "%s: %lld step%s several lines, as after a run that went on from a "
            "checkpoint; the last one counts",
            c->names[r], (long long)run->n_repeated, run->n_repeated == 1 ? " has" : "s have"));
    if (run->cut)
        CPL_TRY(cpl_compare_warn(c, "%s: its metrics end early: %s", c->names[r], run->cut));
    return CPL_OK;
}

static cpl_status warn_of_point(cpl_compare *c)
{
    if (c->point_kind == CPL_POINT_EVALUATED || c->point_kind == CPL_POINT_NONE) return CPL_OK;
    return cpl_compare_warn(
        c,
        c->point_kind == CPL_POINT_LOGGED
            ? "there is no number of tokens at which every run was evaluated: figures are at the "
              "largest that all have logged, and validation loss is linear between the two "
              "evaluations around it"
            : "there is no number of tokens at which every run has a line: of each the last one "
              "before the shortest run's end is taken, and validation loss is linear between the "
              "two evaluations around that end");
}

/* Older versions recorded the setting, auto, and not what it became. */
static cpl_status warn_of_precision(cpl_compare *c)
{
    const cpl_compared_setting *dtype = cpl_compare_setting(c, "compute.dtype");
    int64_t first = c->n_runs, n = 0;
    for (int64_t r = c->n_runs - 1; dtype && r >= 0; r--) {
        if (strcmp(dtype->texts[r], "auto") != 0) continue;
        first = r;
        n++;
    }
    if (n < 2) return CPL_OK;
    return cpl_compare_warn(c,
                            "%lld runs, %s the first of them, do not say whether they were "
                            "computed in f32 or bf16 (compute.dtype auto): one group may hold both",
                            (long long)n, c->names[first]);
}

cpl_status cpl_compare_warnings(cpl_compare *c)
{
    for (size_t i = 0; i < sizeof must_agree / sizeof *must_agree; i++)
        CPL_TRY(warn_of_text(c, &must_agree[i]));
    for (int64_t g = 0; g < c->n_groups && c->options.group_by; g++)
        CPL_TRY(warn_of_group(c, &c->groups[g]));
    CPL_TRY(warn_of_precision(c));
    CPL_TRY(warn_of_point(c));
    for (int64_t r = 0; r < c->n_runs; r++) CPL_TRY(warn_of_naming(c, r));
    for (int64_t r = 0; r < c->n_runs; r++) CPL_TRY(warn_of_damage(c, r));
    return CPL_OK;
}
