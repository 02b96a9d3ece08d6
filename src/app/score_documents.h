/* score_documents.h - the losses of held-out documents under a run's last checkpoint, which
 * couplet.compare pairs runs by.
 *
 * Room:  app. Writes RUN/documents.json. */
#ifndef CPL_APP_SCORE_DOCUMENTS_H
#define CPL_APP_SCORE_DOCUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"

/* Scores the first `max_documents` held-out documents of each source (0: all) under the last
 * checkpoint of `run`, in windows of data.seq_len, and writes RUN/documents.json. n_threads -1: as
 * many as the run itself. CPL_ERR_INPUT: it has no checkpoint, its held-out text is token shards,
 * or documents.json is there and not `overwrite`. CPL_ERR_IO; CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_score_documents(const char *run, int64_t max_documents, int n_threads,
                                             bool overwrite, const cpl_log *log);

#endif /* CPL_APP_SCORE_DOCUMENTS_H */
