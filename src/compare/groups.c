/* groups.c - groups of runs, and their names; see compare.h */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "compare/internal.h"

/* ---- names of runs ---- */

/* The folder's own name; if several have it, the folder as it was named; else a number more. */
static cpl_status name_runs(cpl_compare *c)
{
    c->names = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof *c->names);
    if (!c->names) return CPL_ERR_MEMORY;
    for (int64_t r = 0; r < c->n_runs; r++) {
        int same_name = 0, same_folder = 0;
        for (int64_t k = 0; k < c->n_runs; k++) {
            same_name += strcmp(c->runs[k].name, c->runs[r].name) == 0;
            same_folder += k <= r && strcmp(c->runs[k].folder, c->runs[r].folder) == 0;
        }
        const char *name = same_name > 1 ? c->runs[r].folder : c->runs[r].name;
        c->names[r] =
            same_folder > 1 ? cpl_pool_printf(&c->pool, "%s [%d]", name, same_folder) : name;
    }
    return CPL_OK;
}

/* ---- which runs form a group ---- */

/* Whether two runs learn from the same text, are evaluated on the same, and compute in the same
 * precision. */
static bool same_ground(const cpl_compare *c, int64_t a, int64_t b)
{
    static const char *const names[] = {"data.train", "data.validation", "compute.dtype"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cpl_compared_setting *s = cpl_compare_setting(c, names[i]);
        if (s && !cpl_compare_same(c, s, a, b)) return false;
    }
    return true;
}

static bool alike(const cpl_compare *c, int64_t a, int64_t b)
{
    if (c->options.group_by) {
        const cpl_compared_setting *s = cpl_compare_setting(c, c->options.group_by);
        return strcmp(s->meanings[a], s->meanings[b]) == 0 && same_ground(c, a, b);
    }
    for (int64_t i = 0; i < c->n_settings; i++) {
        const cpl_compared_setting *s = &c->settings[i];
        if (s->role == CPL_ROLE_MATTERS && !cpl_compare_same(c, s, a, b)) return false;
    }
    return true;
}

static bool belongs(const cpl_compare *c, const cpl_run_group *group, int64_t run)
{
    for (int64_t i = 0; i < group->n; i++)
        if (!alike(c, group->members[i], run)) return false;
    return true;
}

static cpl_status take_groups(cpl_compare *c)
{
    const size_t n = (size_t)c->n_runs;
    c->groups      = cpl_pool_take(&c->pool, n * sizeof *c->groups);
    c->group_of    = cpl_pool_take(&c->pool, n * sizeof *c->group_of);
    return c->groups && c->group_of ? CPL_OK : CPL_ERR_MEMORY;
}

static cpl_status gather(cpl_compare *c)
{
    CPL_TRY(take_groups(c));
    for (int64_t r = 0; r < c->n_runs; r++) {
        int64_t g = 0;
        while (g < c->n_groups && !belongs(c, &c->groups[g], r)) g++;
        cpl_run_group *group = &c->groups[g];
        if (g == c->n_groups) {
            c->n_groups++;
            group->place   = (double)NAN;
            group->members = cpl_pool_take(&c->pool, (size_t)c->n_runs * sizeof(int64_t));
            if (!group->members) return CPL_ERR_MEMORY;
        }
        group->members[group->n++] = r;
    }
    return CPL_OK;
}

/* ---- order ---- */

static bool comes_before(const cpl_compared_setting *s, const cpl_run_group *a,
                         const cpl_run_group *b)
{
    if (!isnan(a->place)) return a->place < b->place;
    return strcmp(s->texts[a->members[0]], s->texts[b->members[0]]) < 0;
}

/* By the value of the setting: as numbers if all are. */
static void order(cpl_compare *c)
{
    const cpl_compared_setting *s = cpl_compare_setting(c, c->options.group_by);
    bool numbers                  = true;
    for (int64_t g = 0; g < c->n_groups; g++) {
        const char *text   = s->meanings[c->groups[g].members[0]];
        char *end          = NULL;
        c->groups[g].place = strtod(text, &end);
        numbers            = numbers && end != text && *end == '\0';
    }
    for (int64_t g = 0; g < c->n_groups && !numbers; g++) c->groups[g].place = (double)NAN;
    for (int64_t i = 1; i < c->n_groups; i++)
        for (int64_t k = i; k > 0 && comes_before(s, &c->groups[k], &c->groups[k - 1]); k--) {
            cpl_run_group other = c->groups[k];
            c->groups[k]        = c->groups[k - 1];
            c->groups[k - 1]    = other;
        }
}

/* ---- names of groups ---- */

/* Length of the common start of all members' names, without the part that names a seed: "vanilla"
 * of vanilla-s0, vanilla-s1. */
static size_t common_length(const cpl_compare *c, const cpl_run_group *group)
{
    const char *first = c->names[group->members[0]];
    size_t length     = strlen(first);
    for (int64_t i = 1; i < group->n; i++) {
        const char *other = c->names[group->members[i]];
        size_t same       = 0;
        while (same < length && other[same] == first[same]) same++;
        length = same;
    }
    while (length > 0 && first[length - 1] >= '0' && first[length - 1] <= '9') length--;
    static const char *const endings[] = {"seed", "s"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t own = strlen(endings[i]);
        if (length > own && strchr("-_. ", first[length - own - 1]) &&
            memcmp(first + length - own, endings[i], own) == 0)
            length -= own;
    }
    while (length > 0 && strchr("-_. ", first[length - 1])) length--;
    return length;
}

/* "erc.weight 0, model.num_experts 16": the settings that are not the same in every other group. */
static const char *words_of(cpl_compare *c, const cpl_run_group *group)
{
    cpl_text out = {0};
    for (int64_t i = 0; i < c->n_settings; i++) {
        const cpl_compared_setting *s = &c->settings[i];
        if (s->role != CPL_ROLE_MATTERS || !s->differs) continue;
        cpl_text_printf(&out, "%s%s %s", out.length ? ", " : "", s->name,
                        s->texts[group->members[0]]);
    }
    c->pool.failed     = c->pool.failed || out.failed;
    const char *result = cpl_pool_printf(&c->pool, "%.120s", out.length ? out.bytes : "all runs");
    cpl_text_free(&out);
    return result;
}

static bool taken(const cpl_compare *c, int64_t g)
{
    for (int64_t k = 0; k < g; k++)
        if (strcmp(c->groups[k].name, c->groups[g].name) == 0) return true;
    return false;
}

static void name_group(cpl_compare *c, int64_t g)
{
    cpl_run_group *group = &c->groups[g];
    const char *by       = c->options.group_by;
    const int64_t first  = group->members[0];
    if (by) {
        group->name =
            cpl_pool_printf(&c->pool, "%s %s", by, cpl_compare_setting(c, by)->texts[first]);
    } else if (group->n == 1) {
        group->name = c->names[first];
    } else {
        const size_t length = common_length(c, group);
        group->name =
            length ? cpl_pool_copy(&c->pool, c->names[first], length) : words_of(c, group);
    }
    const char *stem = group->name;
    for (long long k = 2; taken(c, g); k++)
        group->name = cpl_pool_printf(&c->pool, "%s [%lld]", stem, k);
}

static cpl_status check_setting(const cpl_compare *c)
{
    const char *by   = c->options.group_by;
    const char *near = NULL;
    if (!by || cpl_compare_setting(c, by)) return CPL_OK;
    for (int64_t i = 0; i < c->n_settings && !near; i++)
        near = cpl_text_nearest(by, &c->settings[i].name, 1);
    return near ? CPL_FAIL(CPL_ERR_USAGE, "no run has a setting %s; did you mean %s?", by, near)
                : CPL_FAIL(CPL_ERR_USAGE, "no run has a setting %s", by);
}

cpl_status cpl_compare_groups(cpl_compare *c)
{
    CPL_TRY(check_setting(c));
    CPL_TRY(name_runs(c));
    CPL_TRY(gather(c));
    if (c->options.group_by) order(c);
    c->grouped = c->options.group_by != NULL;
    for (int64_t g = 0; g < c->n_groups; g++) {
        name_group(c, g);
        c->grouped = c->grouped || c->groups[g].n > 1;
        for (int64_t i = 0; i < c->groups[g].n; i++) c->group_of[c->groups[g].members[i]] = g;
    }
    c->baseline = c->group_of[0];
    return cpl_pool_status(&c->pool);
}
