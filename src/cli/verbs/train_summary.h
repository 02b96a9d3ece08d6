/* train_summary.h - what a run came to: a table from the run's own files.
 *
 * Room:  cli/verbs. */
#ifndef CPL_CLI_VERBS_TRAIN_SUMMARY_H
#define CPL_CLI_VERBS_TRAIN_SUMMARY_H

#include "base/log.h"
#include "base/status.h"

/* Prints held-out loss before and after, per source, and per layer the coupling before and after,
 * eps, norms and load, from RUN/start.json and the last line of RUN/metrics.jsonl with an
 * evaluation. A start.json that cannot be read is a warning: the training is done. */
CPL_NODISCARD cpl_status cpl_train_summary_print(const char *run, const cpl_log *log);

#endif /* CPL_CLI_VERBS_TRAIN_SUMMARY_H */
