/* schedule.c - see schedule.h */
#include "train/schedule.h"

#include <math.h>

double cpl_schedule_lr(const cpl_train_settings *s, int64_t step)
{
    double peak    = s->lr;
    double minimum = isnan(s->lr_min) ? 0.1 * peak : s->lr_min;
    if (step <= s->warmup_steps) return peak * (double)step / (double)s->warmup_steps;
    if (step >= s->steps) return minimum;
    double done = (double)(step - s->warmup_steps) / (double)(s->steps - s->warmup_steps);
    return minimum + (peak - minimum) * 0.5 * (1.0 + cos(3.14159265358979323846 * done));
}
