/* examined.h - an evaluation as it is watched: a bar on a terminal, a line a task elsewhere.
 *
 * Room:  cli. */
#ifndef CPL_CLI_EXAMINED_H
#define CPL_CLI_EXAMINED_H

#include "study/eval/evaluation.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cpl_examined_bar {
    bool terminal; /* standard error is one: redraw a line */
    bool drawn;
    int64_t total;    /* questions of all tasks */
    int64_t recorded; /* answered before this run */
    double behind;    /* answered in this run, in tasks that are done */
    double now;       /* and in the one at hand */
    const char *task;
    double began, shown; /* seconds, monotonic */
} cpl_examined_bar;

/* Watches an evaluation of `total` questions. */
cpl_evaluation_watch cpl_examined_watch(cpl_examined_bar *bar, int64_t total);

/* Ends the bar's line, so that something else can be written. */
void cpl_examined_clear(cpl_examined_bar *bar);

/* Prints the tasks there are: set, profiles, rows found in `data`, where the full ones are published.
 * Those of `files` (n_files) too. */
CPL_NODISCARD cpl_status cpl_examined_list(const cpl_selection *selection, const char *data);

/* Appends the words that --tasks takes, and the names of profiles, with a blank behind each. */
void cpl_examined_offer_tasks(cpl_text *words);
void cpl_examined_offer_profiles(cpl_text *words);

/* The rows that come with the program, from cpl_alloc: share/couplet/eval beside its bin, or the
 * project's data/eval; "data/eval" where neither is there. NULL: no memory. */
char *cpl_examined_data(void);

/* CPL_ERR_INPUT where that folder is not there; `word` is the flag or setting that names another. */
CPL_NODISCARD cpl_status cpl_examined_check_data(const char *data, const char *word);

#ifdef __cplusplus
}
#endif
#endif /* CPL_CLI_EXAMINED_H */
