/* ranks.h - what ranks that train together must have in common.
 *
 * Room:   train. All functions are collective and return the same on all ranks, but for
 *         cpl_ranks_share_folder: its status is this rank's own, and the caller makes it that of
 *         all (parallel/group.h: cpl_group_agree). With one rank the first three check nothing. */
#ifndef CPL_TRAIN_RANKS_H
#define CPL_TRAIN_RANKS_H

#include <jansson.h>

#include "parallel/group.h"
#include "store/hf.h"
#include "train/config/settings.h"

/* Checks that `folder` is the same folder on all ranks: rank 0 writes a file into it, the others
 * read it, and it is removed. CPL_ERR_INPUT, with the name of the host, if this rank does not see
 * it; CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_ranks_share_folder(cpl_group *world, const char *folder);

/* CPL_ERR_INPUT, with both fingerprints, if a rank begins with other weights than rank 0. `from`:
 * the weights that are read; NULL: they are drawn. To be called before all other checks, since
 * ranks that read weights make more collective calls than ranks that draw them. */
CPL_NODISCARD cpl_status cpl_ranks_agree_on_weights(cpl_group *world, const cpl_hf *from);

/* CPL_ERR_INPUT, with name and both values, if a rank has other settings or data than rank 0, or
 * computes with anything else (`made_with`: precision, kernels, threads, versions; trainer.h).
 * `data`: fingerprint of the data. */
CPL_NODISCARD cpl_status cpl_ranks_agree_on_run(cpl_group *world, const cpl_settings *settings,
                                                json_t *made_with, uint64_t data);

/* Whether a stop was requested of any rank (base/stop.h). Then it is requested of all: with SIGINT
 * if every request was one, else with SIGTERM. */
bool cpl_ranks_are_stopped(cpl_group *world);

/* CPL_ERR_STOPPED on all ranks if a stop was requested of any. */
CPL_NODISCARD cpl_status cpl_ranks_check_stop(cpl_group *world);

#endif /* CPL_TRAIN_RANKS_H */
