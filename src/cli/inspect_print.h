/* inspect_print.h - what an inspection shows in the terminal: the bar while it works, the tables
 * after.
 *
 * Room:  cli. */
#ifndef CPL_CLI_INSPECT_PRINT_H
#define CPL_CLI_INSPECT_PRINT_H

#include "inspect/report.h"

/* What it will cost, on standard error, before it begins; `base_bytes` is what the program itself
 * takes. */
void cpl_inspect_print_cost(const cpl_coupling_report *report, const cpl_inspect_cost *cost,
                            double base_bytes);

/* For options.progress; `ctx` is a cpl_inspect_bar, all zero at first. On a terminal a line of
 * standard error that is drawn again, elsewhere a line every now and then. */
typedef struct cpl_inspect_bar {
    bool begun, terminal, drawn;
    double last; /* seconds, when it was drawn */
} cpl_inspect_bar;

void cpl_inspect_bar_progress(void *ctx, const cpl_inspect_progress *progress);
void cpl_inspect_bar_clear(cpl_inspect_bar *bar); /* takes the line away */

/* The tables of one checkpoint and its verdict, on standard output. */
CPL_NODISCARD cpl_status cpl_inspect_print(const cpl_coupling_report *report);

/* Compares several checkpoints: means over their layers. */
CPL_NODISCARD cpl_status cpl_inspect_print_compare(const cpl_coupling_report *reports,
                                                   int64_t count);

#endif /* CPL_CLI_INSPECT_PRINT_H */
