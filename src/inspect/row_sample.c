/* row_sample.c - which rows of a gate are read; see row_sample.h. */
#include "inspect/row_sample.h"

#include <math.h>

#include "base/rng.h"

/* ---- blocks ---- */

/* The largest divisor of `group` that is at most `rows`. */
static int64_t divisor_below(int64_t group, int64_t rows)
{
    int64_t best = 1;
    for (int64_t k = 2; k <= rows && k <= group; k++)
        if (group % k == 0) best = k;
    return best;
}

/* Fewer rows give intervals that do not hold (docs/inspection.md). */
enum { LEAST_ROWS = 16 };

/* A larger share is all of the rows. */
static const double nearly_all = 0.9;

/* Blocks of whole groups, or, where a group is more than a block may have, of an equal part of
 * one. */
cpl_row_plan cpl_row_plan_of(int64_t rows, int64_t aligned, double share)
{
    const double wanted   = fmin(fmax(share * (double)rows, LEAST_ROWS), (double)rows);
    const int64_t a_block = (int64_t)(wanted / CPL_ROW_BLOCKS);
    cpl_row_plan plan     = {.rows = rows, .unit = 1, .n_read = CPL_ROW_BLOCKS};
    if (aligned > 1 && a_block > 1)
        plan.unit = a_block >= aligned ? aligned : divisor_below(aligned, a_block);
    const double units = ceil((double)rows / (double)plan.unit);
    const double size  = fmax(1, round(wanted / (double)(plan.unit * plan.n_read))); /* in units */
    plan.n_blocks =
        plan.unit > 1 && plan.unit < aligned ? (int64_t)units : (int64_t)round(units / size);
    plan.whole = plan.n_blocks <= plan.n_read || wanted >= nearly_all * (double)rows;
    if (plan.whole) plan.n_blocks = plan.n_read = 1;
    return plan;
}

static int64_t boundary(const cpl_row_plan *plan, int64_t block)
{
    const int64_t units = (plan->rows + plan->unit - 1) / plan->unit;
    const int64_t row   = block * units / plan->n_blocks * plan->unit;
    return row < plan->rows ? row : plan->rows;
}

int64_t cpl_row_plan_block(const cpl_row_plan *plan, int64_t block, int64_t *rows)
{
    const int64_t first = boundary(plan, block);
    *rows               = boundary(plan, block + 1) - first;
    return first;
}

/* ---- which of them ---- */

/* The upper bits of numbers that no model has but a file may claim are left out. */
static cpl_rng_key key_of(uint64_t seed, int part, int64_t layer, int64_t expert)
{
    return (cpl_rng_key){.seed   = seed,
                         .step   = (uint64_t)part << 32 | ((uint64_t)expert & 0xffffffffu),
                         .layer  = (uint32_t)((uint64_t)layer & 0xffffu),
                         .stream = CPL_STREAM_ROWS};
}

/* Floyd's choice of b of G numbers (J. Bentley, R. Floyd, "A sample of brilliance", 1987), put in
 * their order. The multiplication prefers some numbers to others by less than G / 2^32. */
void cpl_row_plan_choose(int64_t chosen[CPL_ROW_BLOCKS], const cpl_row_plan *plan, uint64_t seed,
                         int part, int64_t layer, int64_t expert)
{
    const cpl_rng_key key = key_of(seed, part, layer, expert);
    for (int64_t k = 0; k < plan->n_read; k++) {
        const int64_t last    = plan->n_blocks - plan->n_read + k;
        const uint64_t random = cpl_rng_u32(&key, (uint64_t)k);
        int64_t block = (int64_t)(random * (uint64_t)(last + 1) >> 32), at = k;
        for (int64_t l = 0; l < k; l++)
            if (chosen[l] == block) block = last;
        for (; at > 0 && chosen[at - 1] > block; at--) chosen[at] = chosen[at - 1];
        chosen[at] = block;
    }
}

/* ---- sums of figures ---- */

cpl_interval cpl_interval_sum(const cpl_interval *parts, int64_t count, double weight)
{
    cpl_interval sum = {0};
    if (count == 0) return (cpl_interval){NAN, NAN, NAN};
    for (int64_t k = 0; k < count; k++) {
        sum.estimate += weight * parts[k].estimate;
        sum.low += weight * parts[k].low;
        sum.high += weight * parts[k].high;
    }
    return sum;
}
