/* run_dir.h - what a folder is: a run, a checkpoint, a model; finding, verifying and removing the
 * checkpoints of a run.
 *
 * Room:    store. Knows names and check sums, nothing of what a checkpoint holds (checkpoint.h). */
#ifndef CPL_STORE_RUN_DIR_H
#define CPL_STORE_RUN_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Removes all but the newest `keep` checkpoints of steps up to `step`, as far as the system allows:
 * what a killed run left over. */
void cpl_run_dir_prune(const char *run, int64_t step, int64_t keep);

/* Whether the run has a `last`, whole or not, or any checkpoint. */
bool cpl_run_dir_has_checkpoint(const char *run);

/* Sets the name of a file that only a run that has begun its first step has: metrics, plain or
 * compressed, figures of the start, a checkpoint after a step; "" if there is none. */
enum { CPL_RUN_DIR_NAME_BYTES = 64 };
CPL_NODISCARD cpl_status cpl_run_dir_trace(char name[CPL_RUN_DIR_NAME_BYTES], const char *folder);

/* CPL_ERR_INPUT unless the folder has a config.yaml and either what a run leaves (metrics, a
 * checkpoint) or no weights: the sentence says what it is. */
CPL_NODISCARD cpl_status cpl_run_dir_check(const char *folder);

/* Folder of the checkpoint RUN/last leads to, from cpl_alloc; without such a link the newest. If
 * the link leads nowhere, the sentence names the newest whole checkpoint. */
CPL_NODISCARD cpl_status cpl_run_dir_last(char **folder, const char *run);

/* What a user means by a folder: the last checkpoint of a run, whatever else lies in it, or of a
 * folder that has checkpoints and no weights of its own; any other folder itself; from
 * cpl_alloc. CPL_ERR_INPUT for a run without a checkpoint and for token shards, which are no model.
 */
CPL_NODISCARD cpl_status cpl_run_dir_resolve(char **folder, const char *path);

/* Compares every file with checksums.json: CPL_ERR_INPUT naming the file that differs, is gone, or
 * must have a sum and has none. A directory without checksums.json is CPL_OK with `*checked` false.
 */
CPL_NODISCARD cpl_status cpl_run_dir_verify(const char *folder, bool *checked);

/* The same for only the files number `first`, `first` + `every`, ... of checksums.json: what each
 * of `every` ranks does. */
CPL_NODISCARD cpl_status cpl_run_dir_verify_share(const char *folder, int first, int every,
                                                  bool *checked);

/* The same for only config.json and model.safetensors, and only if the latter has at most
 * `most_bytes`. */
CPL_NODISCARD cpl_status cpl_run_dir_verify_model(const char *folder, int64_t most_bytes);

/* Removes what a killed run left half-written (.tmp- in its name) in `run`. */
void cpl_run_dir_clean(const char *run);

#endif /* CPL_STORE_RUN_DIR_H */
