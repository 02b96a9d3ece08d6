/* ranks.h - what ranks that train together must have in common.
 *
 * Room:   train. All functions are collective. The status of cpl_ranks_share_folder is this rank's
 *         own, to be agreed on (dist/group.h: cpl_group_agree); the others have agreed. */
#ifndef CPL_TRAIN_RANKS_H
#define CPL_TRAIN_RANKS_H

#include "dist/group.h"
#include "store/hf.h"
#include "tensor/ops.h"
#include "train/config/settings.h"

/* CPL_ERR_INPUT, with the name of the host, if this rank does not see the folder that rank 0 sees
 * under the same path. */
CPL_NODISCARD cpl_status cpl_ranks_share_folder(cpl_group *world, const char *folder);

/* CPL_ERR_INPUT, with both values, if this rank begins with other weights than rank 0 (NULL: they are
 * drawn). The first check, since more is collective where there are such weights. */
CPL_NODISCARD cpl_status cpl_ranks_agree_on_weights(cpl_group *world, const cpl_hf *from);

/* CPL_ERR_INPUT, with both values, if this rank has another version of the program, other settings,
 * data, type of products or number of threads than rank 0. */
CPL_NODISCARD cpl_status cpl_ranks_agree_on_run(cpl_group *world, const cpl_settings *settings,
                                                const cpl_backend *backend, uint64_t data);

/* Whether a stop was requested of any rank (base/stop.h): then it is requested of all, with SIGTERM if
 * signals differ. */
bool cpl_ranks_are_stopped(cpl_group *world);

/* CPL_ERR_STOPPED on all ranks if a stop was requested of any. */
CPL_NODISCARD cpl_status cpl_ranks_check_stop(cpl_group *world);

#endif /* CPL_TRAIN_RANKS_H */
