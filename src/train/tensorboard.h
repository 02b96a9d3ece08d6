/* tensorboard.h - the lines of metrics.jsonl as event files for TensorBoard.
 *
 * Room:  train. report/event_file.h has the format.
 * Tags:  of a member of a line (docs/formats.md): `train/loss`, `validation/val_loss`; of layer l
 *        `erc_layers/layer_3`; of a source `val_loss_by_source/NAME`; of a task
 *        `tasks/NAME/METRIC`. A list of lists ([L][n]: tokens_per_expert) is a histogram for each
 *        layer. A continued prompt is the text `samples/1`. null and old keys are left out. */
#ifndef CPL_TRAIN_TENSORBOARD_H
#define CPL_TRAIN_TENSORBOARD_H

#include <jansson.h>
#include <stdio.h>

#include "base/text.h"

/* Appends the values of a line. */
void cpl_tensorboard_values(cpl_text *values, const json_t *line);

/* Cuts events of later steps, and what is not whole, off the event files that runs wrote into the
 * folder RUN. Other files are left alone. CPL_ERR_IO, CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_tensorboard_cut(const char *run, int64_t step);

/* Opens a new event file in the folder RUN for a run that goes on after `step`. Events of later
 * steps are cut off older files. The new file begins with the configuration as text. CPL_ERR_IO. */
CPL_NODISCARD cpl_status cpl_tensorboard_open(FILE **file, const char *run, int64_t step);

/* Appends the event of a line, with the time now, and hands it to the system. */
CPL_NODISCARD cpl_status cpl_tensorboard_log(FILE *file, const json_t *line);

/* Writes FOLDER/events.out.tfevents.0000000000.couplet-export.RUN.HASH of all lines of a run, which
 * may be compressed; HASH is of the run's path. Times are those of the file, less what later steps
 * took by their tokens_per_s. Damaged lines are left out and counted in `*damaged`. CPL_ERR_INPUT
 * if there is no such run, it has no line that can be read, or the folder has other event files. */
CPL_NODISCARD cpl_status cpl_tensorboard_export(const char *run, const char *folder, int64_t *lines,
                                                int64_t *damaged);

#endif /* CPL_TRAIN_TENSORBOARD_H */
