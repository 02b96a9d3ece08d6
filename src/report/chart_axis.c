/* chart_axis.c - ranges and round numbers of chart.h, axes of chart_internal.h */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/chart_internal.h"

static const double slack = 1e-9; /* of a step: what rounding may cost at the ends */
/* Sizes that are computed with: of seen values, of what is shown (rounding adds to them). */
static const double largest = 1e300, largest_shown = 1e301, narrowest = 1e-290;
static const double same = 1e-6; /* of the size: nearer numbers have no ticks between them */
enum { WANTED_TICKS = 5, MANY_DECADES = 3, MOST_ROUNDS = 8 };

cpl_chart_range cpl_chart_range_none(void)
{
    return (cpl_chart_range){DBL_MAX, -DBL_MAX};
}

void cpl_chart_range_add(cpl_chart_range *range, double value)
{
    if (!isfinite(value)) return;
    if (value < range->low) range->low = value;
    if (value > range->high) range->high = value;
}

bool cpl_chart_range_is_none(cpl_chart_range range)
{
    return range.low > range.high;
}

static bool is_asked(cpl_chart_range range, bool log)
{
    if (!isfinite(range.low) || !isfinite(range.high) || range.low > range.high) return false;
    return log ? range.low > 0 : range.low != 0 || range.high != 0;
}

/* What lies between them can be computed with. */
static cpl_chart_range clamped(cpl_chart_range range, double least, double most)
{
    range.low  = fmin(fmax(range.low, least), most);
    range.high = fmin(fmax(range.high, least), most);
    return range;
}

/* Whether ticks can be told apart: the ends are a few million steps from 0 at most. */
static bool is_wide(cpl_chart_range range)
{
    double size = fmax(fabs(range.low), fabs(range.high));
    return range.high - range.low > fmax(size * same, narrowest);
}

/* The smallest of 1, 2, 5 times a power of ten that is not below `value` > 0. */
static double round_up(double value)
{
    double power = pow(10, floor(log10(value) + slack)), lead = value / power;
    return power * (lead <= 1 + slack ? 1 : lead <= 2 + slack ? 2 : lead <= 5 + slack ? 5 : 10);
}

static double round_down(double value)
{
    double power = pow(10, floor(log10(value) + slack)), lead = value / power;
    return power * (lead >= 5 - slack ? 5 : lead >= 2 - slack ? 2 : 1);
}

static double linear_step(double low, double high)
{
    return round_up((high - low) / WANTED_TICKS);
}

/* A range of some width; numbers so large or so near each other that ticks would be the same are
 * drawn apart. */
static cpl_chart_range widened(cpl_chart_range range)
{
    if (cpl_chart_range_is_none(range)) return (cpl_chart_range){0, 1};
    range = clamped(range, -largest, largest);
    if (is_wide(range)) return range;
    double size = fmax(fabs(range.low), fabs(range.high));
    double half = size > narrowest ? size / 2 : 0.5, low = range.low - half;
    return (cpl_chart_range){range.low >= 0 ? fmax(low, 0) : low, range.high + half};
}

static cpl_chart_range rounded_log(cpl_chart_range range)
{
    if (cpl_chart_range_is_none(range) || range.high <= 0) return (cpl_chart_range){0.1, 1};
    double low  = range.low > 0 ? range.low : range.high / 10;
    low         = fmin(fmax(low, 1 / largest), largest / 10);
    double high = fmin(fmax(range.high, low), largest);
    low         = round_down(low);
    high        = fmax(round_up(high), low * 10);
    if (log10(high) - log10(low) > MANY_DECADES) {
        low  = pow(10, floor(log10(low) + slack));
        high = pow(10, ceil(log10(high) - slack));
    }
    return (cpl_chart_range){low, high};
}

cpl_chart_range cpl_chart_range_round(cpl_chart_range range, bool logarithmic)
{
    if (logarithmic) return rounded_log(range);
    double step = 0;
    range       = widened(range);
    for (int i = 0; i < MOST_ROUNDS; i++) {
        double wider = linear_step(range.low, range.high);
        if (wider == step) break;
        step       = wider; /* of the wider range it may be the next larger one */
        range.low  = floor(range.low / step + slack) * step;
        range.high = ceil(range.high / step - slack) * step;
    }
    return range;
}

cpl_chart_range cpl_chart_range_shown(cpl_chart_range range, bool logarithmic)
{
    cpl_chart_range shown =
        clamped(range, logarithmic ? 1 / largest_shown : -largest_shown, largest_shown);
    /* On a logarithmic scale a ratio is what counts, however near 0 both ends are. */
    bool wide = logarithmic ? shown.high > shown.low * (1 + same) : is_wide(shown);
    return is_asked(range, logarithmic) && wide ? shown : cpl_chart_range_round(range, logarithmic);
}

static void add_tick(cpl_chart_axis *axis, double value)
{
    if (axis->n_ticks < CPL_CHART_MOST_TICKS) axis->ticks[axis->n_ticks++] = value;
}

static void linear_ticks(cpl_chart_axis *axis)
{
    axis->step   = linear_step(axis->low, axis->high);
    double first = ceil(axis->low / axis->step - slack);
    double last  = floor(axis->high / axis->step + slack);
    int n        = (int)fmin(last - first + 1, CPL_CHART_MOST_TICKS);
    for (int i = 0; i < n; i++) add_tick(axis, first + i == 0 ? 0 : (first + i) * axis->step);
}

/* Decades where there are many; 1, 2 and 5 of each where there are few; where fewer than two of
 * them lie in the range, those of a linear scale. The powers are at most 301 in size. */
static void log_ticks(cpl_chart_axis *axis)
{
    static const double leads[] = {1, 2, 5};
    double from = log10(axis->low), to = log10(axis->high);
    int n_leads = to - from > MANY_DECADES ? 1 : 3;
    int first   = (int)(n_leads == 1 ? ceil(from - slack) : floor(from + slack));
    int last = (int)ceil(to - slack), stride = (int)fmax(ceil((to - from) / 7 - slack), 1);
    for (int power = first; power <= last; power += stride)
        for (int i = 0; i < n_leads; i++) {
            double value = leads[i] * pow(10, power);
            if (value >= axis->low * (1 - slack) && value <= axis->high * (1 + slack))
                add_tick(axis, value);
        }
    if (axis->n_ticks > 1) return;
    axis->n_ticks = 0;
    linear_ticks(axis);
}

cpl_chart_axis cpl_chart_axis_of(cpl_chart_range asked, cpl_chart_range seen, bool log)
{
    cpl_chart_range range =
        is_asked(asked, log) ? cpl_chart_range_shown(asked, log) : cpl_chart_range_round(seen, log);
    cpl_chart_axis axis = {.low = range.low, .high = range.high, .log = log, .to = 1};
    if (log)
        log_ticks(&axis);
    else
        linear_ticks(&axis);
    return axis;
}

double cpl_chart_axis_at(const cpl_chart_axis *axis, double value)
{
    double low = axis->low, high = axis->high;
    CPL_ASSERT(!isnan(value));
    value = fmin(fmax(value, low), high);
    double share =
        axis->log ? (log(value) - log(low)) / (log(high) - log(low)) : (value - low) / (high - low);
    return axis->from + share * (axis->to - axis->from);
}

/* As many digits as it takes to tell one tick from the next. */
static int label_digits(const cpl_chart_axis *axis, double value)
{
    if (axis->step == 0 || value == 0) return 1;
    double digits = floor(log10(fabs(value)) + slack) - floor(log10(axis->step) + slack) + 1;
    return digits < 1 ? 1 : digits > 9 ? 9 : (int)digits;
}

const char *cpl_chart_axis_label(char out[48], const cpl_chart_axis *axis, int tick)
{
    return cpl_markup_figure(out, axis->ticks[tick], label_digits(axis, axis->ticks[tick]));
}

double cpl_chart_axis_label_width(const cpl_chart_axis *axis)
{
    char label[48];
    double widest = 0;
    for (int i = 0; i < axis->n_ticks; i++) {
        double letters = (double)cpl_markup_length(cpl_chart_axis_label(label, axis, i));
        widest         = fmax(widest, letters * CPL_CHART_LETTER);
    }
    return widest;
}
