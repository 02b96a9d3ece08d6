/* chart_points.c - points in classes; see chart.h */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/chart_internal.h"

static cpl_chart_range range_of(const cpl_chart *chart, const float *points, int64_t n)
{
    cpl_chart_range seen = cpl_chart_range_none();
    for (int64_t i = 0; i < 2 * n; i++) cpl_chart_range_add(&seen, points[i]);
    cpl_chart_axis axis = cpl_chart_axis_of(chart->x, seen, false);
    return (cpl_chart_range){axis.low, axis.high};
}

static void put_class(cpl_chart_canvas *s, const float *points, const int32_t *class_of, int64_t n,
                      int32_t class, double radius)
{
    char colour[24];
    cpl_chart_colour_class(colour, class, false, 0);
    cpl_text_printf(s->out, "<g class=\"%s\">\n", colour);
    for (int64_t i = 0; i < n; i++) {
        if (class_of[i] != class || !isfinite(points[2 * i]) || !isfinite(points[2 * i + 1]))
            continue;
        cpl_text_printf(s->out, "<circle class=\"c-point\"");
        cpl_chart_put_attribute(s->out, "r", radius);
        cpl_chart_put_attribute(s->out, "cx", cpl_chart_axis_at(&s->x, points[2 * i]));
        cpl_chart_put_attribute(s->out, "cy", cpl_chart_axis_at(&s->y, points[2 * i + 1]));
        cpl_text_printf(s->out, "/>\n");
    }
    cpl_text_printf(s->out, "</g>\n");
}

static void legend(cpl_chart_canvas *s, const char *const *names, int64_t n_classes)
{
    cpl_chart_key keys[CPL_CHART_COLOURS];
    for (int64_t k = 0; k < n_classes; k++) {
        keys[k] = (cpl_chart_key){.name = names[k], .mark = CPL_CHART_KEY_DOT};
        cpl_chart_colour_class(keys[k].colour, (int)k, false, 0);
    }
    cpl_chart_canvas_legend(s, keys, n_classes);
}

void cpl_chart_points(cpl_text *out, const cpl_chart *chart, const float *points,
                      const int32_t *class_of, int64_t n, const char *const *names,
                      int64_t n_classes)
{
    cpl_chart tall = *chart;
    CPL_ASSERT(n_classes <= CPL_CHART_COLOURS);
    if (tall.height <= 0) tall.height = 390;
    cpl_chart_canvas s    = cpl_chart_canvas_open(out, &tall);
    cpl_chart_range range = range_of(chart, points, n);
    legend(&s, names, n_classes);
    double side = fmin(s.right - s.left, s.bottom - s.top - 4);
    double from = (s.left + s.right - side) / 2, inset = 6;
    cpl_text_printf(out, "<rect class=\"c-grid\"");
    cpl_chart_put_attribute(out, "x", from);
    cpl_chart_put_attribute(out, "y", s.top + 2);
    cpl_chart_put_attribute(out, "width", side);
    cpl_chart_put_attribute(out, "height", side);
    cpl_text_printf(out, "/>\n");
    s.x = s.y = cpl_chart_axis_of(range, range, false);
    s.x.from  = from + inset;
    s.x.to    = from + side - inset;
    s.y.from  = s.top + 2 + side - inset;
    s.y.to    = s.top + 2 + inset;
    for (int64_t k = 0; k < n_classes; k++)
        put_class(&s, points, class_of, n, (int32_t)k, n > 1500 ? 1.3 : n > 400 ? 1.8 : 2.4);
    cpl_chart_canvas_close(&s);
}
