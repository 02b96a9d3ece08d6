/* tables.h - the tables of a comparison, the same on a terminal and in a page.
 *
 * Room:  compare. */
#ifndef CPL_COMPARE_TABLES_H
#define CPL_COMPARE_TABLES_H

#include "compare/compare.h"
#include "report/grid.h"

/* Each sets `grid`, whose texts are taken from the pool; without rows where there is nothing. */
CPL_NODISCARD cpl_status cpl_compare_table_runs(cpl_grid *grid, cpl_pool *pool,
                                                const cpl_compare *compare);
/* What differs: settings that matter, then seeds, then bookkeeping. */
CPL_NODISCARD cpl_status cpl_compare_table_settings(cpl_grid *grid, cpl_pool *pool,
                                                    const cpl_compare *compare);
/* By groups, mean and deviation; or by runs. */
CPL_NODISCARD cpl_status cpl_compare_table_figures(cpl_grid *grid, cpl_pool *pool,
                                                   const cpl_compare *compare, bool by_runs);
CPL_NODISCARD cpl_status cpl_compare_table_pairs(cpl_grid *grid, cpl_pool *pool,
                                                 const cpl_compare *compare);
CPL_NODISCARD cpl_status cpl_compare_table_each_pair(cpl_grid *grid, cpl_pool *pool,
                                                     const cpl_compare *compare);
CPL_NODISCARD cpl_status cpl_compare_table_documents(cpl_grid *grid, cpl_pool *pool,
                                                     const cpl_compare *compare);
CPL_NODISCARD cpl_status cpl_compare_table_questions(cpl_grid *grid, cpl_pool *pool,
                                                     const cpl_compare *compare);

/* Appends all of it as text for a terminal, warnings at the top. */
CPL_NODISCARD cpl_status cpl_compare_text(cpl_text *out, const cpl_compare *compare);

#endif /* CPL_COMPARE_TABLES_H */
