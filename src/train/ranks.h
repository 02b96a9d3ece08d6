/* ranks.h - checks that ranks that train together have the same folder, weights, settings and data.
 *
 * Room:   train. All functions are collective. All except cpl_ranks_share_folder return the same
 *         result on all ranks. cpl_ranks_share_folder returns this rank's own result, which the
 *         caller passes to cpl_group_agree (parallel/group.h). With one rank the first three
 *         functions check nothing. */
#ifndef CPL_TRAIN_RANKS_H
#define CPL_TRAIN_RANKS_H

#include <jansson.h>

#include "parallel/group.h"
#include "store/hf.h"
#include "train/config/settings.h"

/* Checks that `folder` is the same folder on all ranks: rank 0 writes a file into it, the other
 * ranks read the file, and it is removed. Returns CPL_ERR_INPUT, with the name of the host, if this
 * rank does not see the file, CPL_ERR_IO or CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_ranks_share_folder(cpl_group *world, const char *folder);

/* Returns CPL_ERR_INPUT, with both fingerprints, if a rank begins with other weights than rank 0.
 * `from` holds the weights that are read, or is NULL for drawn weights. Call it before all other
 * checks, since ranks that read weights make more collective calls than ranks that draw weights. */
CPL_NODISCARD cpl_status cpl_ranks_agree_on_weights(cpl_group *world, const cpl_hf *from);

/* Returns CPL_ERR_INPUT, with name and both values, if settings, data or `made_with` (precision,
 * kernels, threads, versions; trainer.h) differ between a rank and rank 0. `data` is the
 * fingerprint of the data. */
CPL_NODISCARD cpl_status cpl_ranks_agree_on_run(cpl_group *world, const cpl_settings *settings,
                                                json_t *made_with, uint64_t data);

/* Returns whether a stop is requested on any rank (base/stop.h). If so, requests the stop on all
 * ranks: with SIGINT if every request is a SIGINT, otherwise with SIGTERM. */
bool cpl_ranks_are_stopped(cpl_group *world);

/* Returns CPL_ERR_STOPPED on all ranks if a stop is requested on any rank. */
CPL_NODISCARD cpl_status cpl_ranks_check_stop(cpl_group *world);

#endif /* CPL_TRAIN_RANKS_H */
