/* inspect_print.h - what an inspection shows in the terminal: the cost before, the tables after.
 *
 * Room:  cli/verbs. */
#ifndef CPL_CLI_VERBS_INSPECT_PRINT_H
#define CPL_CLI_VERBS_INSPECT_PRINT_H

#include "inspect/report.h"

/* What it will cost, on standard error, before it begins; `base_bytes` is what the program itself
 * takes. */
void cpl_inspect_print_cost(const cpl_coupling_report *report, const cpl_inspect_cost *cost,
                            double base_bytes);

/* The tables of one checkpoint and its verdict, on standard output. */
CPL_NODISCARD cpl_status cpl_inspect_print(const cpl_coupling_report *report);

/* Compares several checkpoints: means over their layers. */
CPL_NODISCARD cpl_status cpl_inspect_print_compare(const cpl_coupling_report *reports,
                                                   int64_t count);

#endif /* CPL_CLI_VERBS_INSPECT_PRINT_H */
