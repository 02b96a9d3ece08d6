/* run_dir.h - finds, verifies and removes the checkpoints of a run, and tells runs, checkpoints and
 * models apart.
 *
 * Room:    store. Uses only names and check sums. checkpoint.h handles the contents. */
#ifndef CPL_STORE_RUN_DIR_H
#define CPL_STORE_RUN_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Removes all but the newest `keep` checkpoints of steps up to `step`, as far as the system
 * allows. */
void cpl_run_dir_prune(const char *run, int64_t step, int64_t keep);

/* Returns whether the run has a `last`, complete or not, or any checkpoint. */
bool cpl_run_dir_has_checkpoint(const char *run);

/* Sets the name of a file that only a run that has begun its first step has: metrics, plain or
 * compressed, figures of the start, a checkpoint after a step. Sets "" without such a file. */
enum { CPL_RUN_DIR_NAME_BYTES = 64 };
CPL_NODISCARD cpl_status cpl_run_dir_trace(char name[CPL_RUN_DIR_NAME_BYTES], const char *folder);

/* Fails with CPL_ERR_INPUT, naming the kind of the folder, unless it has a config.yaml and either
 * files of a begun run (metrics, a checkpoint) or no weights. */
CPL_NODISCARD cpl_status cpl_run_dir_check(const char *folder);

/* Sets the folder of the checkpoint that RUN/last leads to, from cpl_alloc. Without this link it is
 * the newest checkpoint. For a broken link the message names the newest complete checkpoint. */
CPL_NODISCARD cpl_status cpl_run_dir_last(char **folder, const char *run);

/* Sets the folder of the model that `path` means, from cpl_alloc: the last checkpoint of a run, or
 * of a folder with checkpoints and without weights. Any other folder is the folder of the model
 * itself. Returns CPL_ERR_INPUT for a run without a checkpoint and for token shards. */
CPL_NODISCARD cpl_status cpl_run_dir_resolve(char **folder, const char *path);

/* Compares every file with checksums.json. Returns CPL_ERR_INPUT, naming the file, if a file
 * differs, is missing, or lacks a required sum. Without checksums.json returns CPL_OK with
 * `*checked` false. */
CPL_NODISCARD cpl_status cpl_run_dir_verify(const char *folder, bool *checked);

/* Does what cpl_run_dir_verify does, for the files number `first`, `first` + `every`, ... of
 * checksums.json, so that `every` ranks can divide the files. */
CPL_NODISCARD cpl_status cpl_run_dir_verify_share(const char *folder, int first, int every,
                                                  bool *checked);

/* Verifies config.json and model.safetensors, if the latter has at most `most_bytes` bytes. */
CPL_NODISCARD cpl_status cpl_run_dir_verify_model(const char *folder, int64_t most_bytes);

/* Removes the unfinished files of killed runs (.tmp- in the name) from `run`. */
void cpl_run_dir_clean(const char *run);

#endif /* CPL_STORE_RUN_DIR_H */
