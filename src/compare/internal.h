/* internal.h - the steps of cpl_compare_open, in their order.
 *
 * Room:  compare, compare*.c only. */
#ifndef CPL_COMPARE_INTERNAL_H
#define CPL_COMPARE_INTERNAL_H

#include "compare/compare.h"

/* Sets the settings of all runs. */
CPL_NODISCARD cpl_status cpl_compare_settings(cpl_compare *compare);

/* The setting of a name; NULL: no run has it. */
const cpl_compared_setting *cpl_compare_setting(const cpl_compare *compare, const char *name);

/* Whether two runs have the same under a setting: by the hash of its content where both have one,
 * else by its meaning. */
bool cpl_compare_same(const cpl_compare *compare, const cpl_compared_setting *setting, int64_t a,
                      int64_t b);

/* Whether two runs learn from the same text and are evaluated on the same. */
bool cpl_compare_same_text(const cpl_compare *compare, int64_t a, int64_t b);

/* What the run has under a name, as cpl_compared_setting.texts; "-" where no run has it. */
const char *cpl_compare_value(const cpl_compare *compare, int64_t run, const char *name);

/* Sets groups, baseline and names. */
CPL_NODISCARD cpl_status cpl_compare_groups(cpl_compare *compare);

/* Sets point, times and figures. */
CPL_NODISCARD cpl_status cpl_compare_figures(cpl_compare *compare);

/* Validation loss of a run at the point of comparison; NaN: it has none there. */
double cpl_compare_loss(const cpl_compare *compare, int64_t run);

/* Sets the pairings. */
CPL_NODISCARD cpl_status cpl_compare_pairs(cpl_compare *compare);

/* Sets the warnings. */
CPL_NODISCARD cpl_status cpl_compare_warnings(cpl_compare *compare);

/* Adds one sentence to them. */
CPL_NODISCARD cpl_status cpl_compare_warn(cpl_compare *compare, const char *format, ...)
    CPL_PRINTF(2, 3);

#endif /* CPL_COMPARE_INTERNAL_H */
