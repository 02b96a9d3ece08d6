/* path_guard.h - that nothing is ever written into a folder that is read: a checkpoint's, a run's.
 *
 * Room:  io. */
#ifndef CPL_IO_PATH_GUARD_H
#define CPL_IO_PATH_GUARD_H

#include "base/status.h"

/* CPL_ERR_INPUT where `target`, a file or folder to be written that need not be there yet, is the
 * folder of the checkpoint, lies below it, or is its file; links are followed. A checkpoint given as
 * one file has a folder of its own where a config.json, params.json or an index stands beside it, or
 * beside the file it leads to; else only the file itself is kept. A target that is there and has the
 * ending of weights is refused too. A checkpoint that is not there keeps nothing. */
CPL_NODISCARD cpl_status cpl_path_guard_check(const char *target, const char *checkpoint);

#endif /* CPL_IO_PATH_GUARD_H */
