/* compare.c - runs lined up, step by step; see compare.h */
#include "compare/compare.h"

#include <stdio.h>
#include <string.h>

#include "compare/internal.h"

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
    for (int64_t p = 0; p < c->n_pairings; p++) {
        cpl_document_difference_free(&c->pairings[p].documents);
        cpl_question_counts_free(&c->pairings[p].questions);
    }
    cpl_pool_free(&c->pool);
    memset(c, 0, sizeof *c);
}
