/* run_lines.h - the lines of a run's metrics, into its record.
 *
 * Room:  compare, for run_record.c only. */
#ifndef CPL_COMPARE_RUN_LINES_H
#define CPL_COMPARE_RUN_LINES_H

#include "compare/run_record.h"

/* Sets the lines of `run`, their sources and counts of damage, from a file of JSON lines, whatever
 * it is compressed with. `batch_tokens` are the tokens of a step where a line does not say them, and
 * a line that says others is damaged; NaN: unknown, and lines whose tokens fall are damaged.
 * CPL_ERR_INPUT where there are lines and none can be used. */
CPL_NODISCARD cpl_status cpl_run_lines_read(cpl_run_record *run, const char *path,
                                            double batch_tokens);

/* Sets the start of `run`, and what it says of its data, from start.json, which is
 * there. CPL_ERR_INPUT where it is no JSON object; CPL_ERR_IO; CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_run_lines_start(cpl_run_record *run, const char *path);

#endif /* CPL_COMPARE_RUN_LINES_H */
