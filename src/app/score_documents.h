/* score_documents.h - computes the losses of held-out documents with a run's last checkpoint.
 * couplet.compare uses them to compare runs in pairs.
 *
 * Room:  app. Writes RUN/documents.json. */
#ifndef CPL_APP_SCORE_DOCUMENTS_H
#define CPL_APP_SCORE_DOCUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"

/* Scores the first `max_documents` held-out documents of each source (0: all) under the last
 * checkpoint of `run`, in windows of data.seq_len, and writes RUN/documents.json. n_threads -1: the
 * run's number. CPL_ERR_INPUT if the run has no checkpoint, its held-out text is token shards, or
 * documents.json exists and `overwrite` is false. CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_score_documents(const char *run, int64_t max_documents, int n_threads,
                                             bool overwrite, const cpl_log *log);

#endif /* CPL_APP_SCORE_DOCUMENTS_H */
