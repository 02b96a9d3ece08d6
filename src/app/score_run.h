/* score_run.h - the losses of held-out documents under a run's last checkpoint, made if they are
 * missing: comparisons pair runs by them.
 *
 * Room:  app. The one file that a comparison writes into a run: RUN/documents.json. */
#ifndef CPL_APP_SCORE_RUN_H
#define CPL_APP_SCORE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"

/* Scores the first `max_documents` held-out documents of each source (0: all) under the last
 * checkpoint of `run` and writes RUN/documents.json, unless one of that step and window is there
 * and not `again`. n_threads -1: as many as the run itself. A run that is not done, has no
 * checkpoint, or whose held-out text is token shards is left as it is; so is, with a warning, one
 * whose configuration or documents cannot be read, being wrong or not there. CPL_ERR_MEMORY,
 * CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_score_run(const char *run, int64_t max_documents, int n_threads,
                                       bool again, const cpl_log *log);

#endif /* CPL_APP_SCORE_RUN_H */
