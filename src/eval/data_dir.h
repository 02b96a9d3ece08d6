/* data_dir.h - the folder of evaluation rows that come with the program.
 *
 * Room:  eval. */
#ifndef CPL_EVAL_DATA_DIR_H
#define CPL_EVAL_DATA_DIR_H

#include "base/status.h"

/* The rows that come with the program, from cpl_alloc: share/couplet/eval beside its bin, or the
 * project's data/eval; "data/eval" where neither is there. NULL: no memory. */
char *cpl_eval_data_dir(void);

/* CPL_ERR_INPUT where that folder is not there; `word` is the flag or setting that names another. */
CPL_NODISCARD cpl_status cpl_eval_data_dir_check(const char *data, const char *word);

#endif /* CPL_EVAL_DATA_DIR_H */
