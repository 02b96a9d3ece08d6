/* svgs.c - every chart as a file of its own; see page.h */
#include <stdio.h>
#include <string.h>

#include "inspect/charts.h"
#include "inspect/page.h"
#include "io/file.h"
#include "io/path_guard.h"
#include "report/svg_file.h"

/* The name for files of the report: with its number behind it where an earlier one has the same. */
static void file_name(char out[CPL_SVG_NAME_BYTES + 24], const cpl_coupling_report *const *reports,
                      int64_t r)
{
    char mine[CPL_SVG_NAME_BYTES], other[CPL_SVG_NAME_BYTES];
    bool taken = false;
    cpl_svg_name(mine, reports[r]->name, "checkpoint");
    for (int64_t i = 0; i < r; i++) {
        cpl_svg_name(other, reports[i]->name, "checkpoint");
        taken = taken || strcmp(mine, other) == 0;
    }
    if (taken)
        snprintf(out, CPL_SVG_NAME_BYTES + 24, "%s_%lld", mine, (long long)r + 1);
    else
        strcpy(out, mine);
}

static cpl_status write_kinds(int64_t *n_written, const char *folder, const char *name,
                              const cpl_coupling_charts *charts, int64_t view)
{
    cpl_status status = CPL_OK;
    cpl_text svg      = {0};
    for (cpl_coupling_kind kind = 0; kind < CPL_COUPLING_KINDS; kind++) {
        if (!cpl_coupling_charts_have(charts, view, kind)) continue;
        cpl_coupling_charts_draw(&svg, charts, view, kind, false);
        CPL_TRY_DONE(
            cpl_svg_write(n_written, folder, &svg, "%s-%s.svg", name, cpl_chart_specs[kind].file));
    }
done:
    cpl_text_free(&svg);
    return status;
}

static cpl_status write_heats(int64_t *n_written, const char *folder, const char *name,
                              const cpl_coupling_charts *charts, int64_t view)
{
    cpl_status status            = CPL_OK;
    const cpl_coupling_report *r = charts->views[view].report;
    cpl_text svg                 = {0};
    char part[CPL_SVG_NAME_BYTES];
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_moe_layer *at = r->layers[i].at;
        if (!r->layers[i].has_M) continue;
        cpl_coupling_charts_heat(&svg, charts, view, i);
        cpl_svg_name(part, at->part, "layer");
        CPL_TRY_DONE(cpl_svg_write(n_written, folder, &svg, "%s-coupling-%.20s-%03lld.svg", name,
                                   part, (long long)at->layer));
    }
done:
    cpl_text_free(&svg);
    return status;
}

cpl_status cpl_coupling_svgs(int64_t *n_written, const char *folder,
                             const cpl_coupling_report *const *reports, int64_t count)
{
    cpl_status status          = CPL_OK;
    cpl_coupling_charts charts = {0};
    char name[CPL_SVG_NAME_BYTES + 24];
    int64_t written = 0;
    for (int64_t r = 0; r < count; r++) CPL_TRY(cpl_path_guard_check(folder, reports[r]->path));
    CPL_TRY_DONE(cpl_coupling_charts_open(&charts, reports, count));
    CPL_TRY_DONE(cpl_folder_make(folder));
    for (int64_t r = 0; r < count; r++) {
        file_name(name, reports, r);
        CPL_TRY_DONE(write_kinds(&written, folder, name, &charts, r));
        CPL_TRY_DONE(write_heats(&written, folder, name, &charts, r));
    }
done:
    if (n_written) *n_written = written;
    cpl_coupling_charts_close(&charts);
    return status;
}
