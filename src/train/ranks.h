/* ranks.h - what ranks that train together must have in common.
 *
 * Room:   train. All functions are collective; their status is this rank's own, to be agreed on
 *         (dist/group.h: cpl_group_agree). */
#ifndef CPL_TRAIN_RANKS_H
#define CPL_TRAIN_RANKS_H

#include "dist/group.h"
#include "tensor/ops.h"
#include "train/config/settings.h"

/* CPL_ERR_INPUT, with the name of the host, if this rank does not see the folder that rank 0 sees
 * under the same path. */
CPL_NODISCARD cpl_status cpl_ranks_share_folder(cpl_group *world, const char *folder);

/* CPL_ERR_INPUT, with both values, if this rank has another version of the program, other settings,
 * data, type of products or number of threads than rank 0. */
CPL_NODISCARD cpl_status cpl_ranks_agree_on_run(cpl_group *world, const cpl_settings *settings,
                                                const cpl_backend *backend, uint64_t data);

#endif /* CPL_TRAIN_RANKS_H */
