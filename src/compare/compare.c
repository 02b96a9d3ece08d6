/* compare.c - a comparison as a whole, and the baseline against each other group in pairs; see
 * compare.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/internal.h"
#include "io/paths.h"

/* ---- who pairs with whom ---- */

static const char *meaning(const cpl_compare *c, int64_t run, const char *name)
{
    const cpl_compared_setting *s = cpl_compare_setting(c, name);
    return s ? s->meanings[run] : "-";
}

/* The seed of the order; the run's seed if the order has none of its own. */
static const char *order_seed(const cpl_compare *c, int64_t run)
{
    const char *own = meaning(c, run, "data.seed");
    const bool none = strcmp(own, "unset") == 0 || strcmp(own, "-") == 0;
    return none ? meaning(c, run, "train.seed") : own;
}

static bool same_data(const cpl_compare *c, int64_t a, int64_t b)
{
    for (int64_t i = 0; i < c->n_settings; i++) {
        const cpl_compared_setting *s = &c->settings[i];
        if (s->role != CPL_ROLE_MATTERS || strncmp(s->name, "data.", 5) != 0) continue;
        if (!cpl_compare_same(c, s, a, b)) return false;
    }
    return true;
}

static bool are_a_pair(const cpl_compare *c, int64_t a, int64_t b)
{
    if (!cpl_run_last(&c->runs[a]) || !cpl_run_last(&c->runs[b])) return false;
    return strcmp(meaning(c, a, "train.seed"), meaning(c, b, "train.seed")) == 0 &&
           strcmp(order_seed(c, a), order_seed(c, b)) == 0 && same_data(c, a, b);
}

static bool is_used(const cpl_pairing *p, int64_t other)
{
    for (int64_t i = 0; i < p->n; i++)
        if (p->pairs[i].other == other) return true;
    return false;
}

/* Each run of the baseline with the first run of the group that is free and fits. */
static cpl_status find_pairs(cpl_compare *c, cpl_pairing *p)
{
    const cpl_run_group *base = &c->groups[c->baseline], *group = &c->groups[p->group];
    p->pairs = cpl_pool_take(&c->pool, (size_t)base->n * sizeof *p->pairs);
    if (!p->pairs) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < base->n; i++)
        for (int64_t k = 0; k < group->n; k++) {
            const int64_t a = base->members[i], b = group->members[k];
            if (is_used(p, b) || !are_a_pair(c, a, b)) continue;
            const double difference = cpl_compare_loss(c, b) - cpl_compare_loss(c, a);
            p->pairs[p->n++] = (cpl_run_pair){.base = a, .other = b, .difference = difference};
            break;
        }
    return CPL_OK;
}

/* ---- what they show ---- */

static cpl_status measure(cpl_compare *c, cpl_pairing *p)
{
    double *differences = cpl_pool_take(&c->pool, (size_t)p->n * sizeof *differences);
    if (!differences) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < p->n; i++) differences[i] = p->pairs[i].difference;
    p->spread     = cpl_spread_of(differences, p->n);
    p->half       = cpl_spread_half(&p->spread);
    p->detectable = cpl_spread_detectable(&p->spread);
    return CPL_OK;
}

static cpl_status look_closer(cpl_compare *c, cpl_pairing *p)
{
    const char *name = c->groups[p->group].name, *reason = NULL;
    CPL_TRY(cpl_compare_documents(c, p, &reason));
    if (reason)
        CPL_TRY(
            cpl_compare_warn(c, "%s: not every pair was compared by documents: %s", name, reason));
    reason = NULL;
    CPL_TRY(cpl_compare_questions(c, p, &reason));
    if (reason)
        CPL_TRY(cpl_compare_warn(c, "%s: not every pair was compared by all questions: %s", name,
                                 reason));
    return CPL_OK;
}

cpl_status cpl_compare_pairs(cpl_compare *c)
{
    c->pairings = cpl_pool_take(&c->pool, (size_t)c->n_groups * sizeof *c->pairings);
    if (!c->pairings) return CPL_ERR_MEMORY;
    for (int64_t g = 0; g < c->n_groups; g++) {
        if (g == c->baseline) continue;
        cpl_pairing *p = &c->pairings[c->n_pairings++];
        p->group       = g;
        CPL_TRY(find_pairs(c, p));
        CPL_TRY(measure(c, p));
        CPL_TRY(look_closer(c, p));
    }
    return CPL_OK;
}

/* ---- the whole comparison ---- */

cpl_status cpl_compare_open(cpl_compare *c, const cpl_run_record *runs, int64_t n_runs,
                            const cpl_compare_options *options)
{
    cpl_status status = CPL_OK;
    CPL_ASSERT(n_runs > 0);
    *c = (cpl_compare){.runs = runs, .n_runs = n_runs, .options = *options};
    CPL_TRY_DONE(cpl_compare_settings(c));
    CPL_TRY_DONE(cpl_compare_groups(c));
    CPL_TRY_DONE(cpl_compare_figures(c));
    CPL_TRY_DONE(cpl_compare_warnings(c));
    CPL_TRY_DONE(cpl_compare_pairs(c));
    status = cpl_pool_status(&c->pool);
done:
    if (status != CPL_OK) cpl_compare_close(c);
    return status;
}

void cpl_compare_close(cpl_compare *c)
{
    cpl_paths_free(&c->warnings);
    cpl_pool_free(&c->pool);
    memset(c, 0, sizeof *c);
}
