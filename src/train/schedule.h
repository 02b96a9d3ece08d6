/* schedule.h - the learning rate of a step.
 *
 * Room:   train. Steps count from 1. */
#ifndef CPL_TRAIN_SCHEDULE_H
#define CPL_TRAIN_SCHEDULE_H

#include <stdint.h>

#include "train/config/settings.h"

/* Up to warm-up: peak * step / warmup; after it a cosine from the peak to the minimum, which the
 * last step has (docs/method.md 7.4). */
double cpl_schedule_lr(const cpl_train_settings *settings, int64_t step);

#endif /* CPL_TRAIN_SCHEDULE_H */
