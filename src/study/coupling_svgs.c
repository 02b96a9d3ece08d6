/* coupling_svgs.c - every chart as a file of its own; see coupling_page.h */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "study/coupling_charts.h"
#include "study/coupling_page.h"
#include "study/outside.h"

enum { NAME_BYTES = 72 };

/* A name that every file system takes: what is neither letter, digit, dot, dash nor underscore
 * becomes an underscore; a dot in front, too. */
static void plain_name(char out[NAME_BYTES], const char *name)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n                 = 0;
    for (; name[n] && n + 1 < NAME_BYTES; n++) out[n] = strchr(good, name[n]) ? name[n] : '_';
    out[n] = '\0';
    if (n == 0) strcpy(out, "checkpoint");
    if (out[0] == '.' || out[0] == '-') out[0] = '_';
}

/* The name for files of the report: with its number behind it where an earlier one has the same. */
static void file_name(char out[NAME_BYTES + 24], const cpl_coupling_report *const *reports,
                      int64_t r)
{
    char mine[NAME_BYTES], other[NAME_BYTES];
    bool taken = false;
    plain_name(mine, reports[r]->name);
    for (int64_t i = 0; i < r; i++) {
        plain_name(other, reports[i]->name);
        taken = taken || strcmp(mine, other) == 0;
    }
    if (taken)
        snprintf(out, NAME_BYTES + 24, "%s_%lld", mine, (long long)r + 1);
    else
        strcpy(out, mine);
}

static cpl_status write_one(int64_t *n_written, const char *folder, const char *name,
                            const cpl_text *svg)
{
    char *path = cpl_path_join(folder, name);
    CPL_TRY(cpl_text_status(svg));
    if (!path) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a path");
    cpl_status status = cpl_file_write_atomic(path, svg->bytes, svg->length);
    cpl_free(path);
    if (status == CPL_OK) ++*n_written;
    return status;
}

static cpl_status write_kinds(int64_t *n_written, const char *folder, const char *name,
                              const cpl_coupling_charts *charts, int64_t view)
{
    cpl_status status = CPL_OK;
    cpl_text svg      = {0};
    char file[NAME_BYTES + 64];
    for (cpl_coupling_kind kind = 0; kind < CPL_COUPLING_KINDS; kind++) {
        if (!cpl_coupling_charts_have(charts, view, kind)) continue;
        cpl_text_clear(&svg);
        cpl_coupling_charts_draw(&svg, charts, view, kind, false);
        snprintf(file, sizeof file, "%s-%s.svg", name, cpl_coupling_looks[kind].file);
        CPL_TRY_DONE(write_one(n_written, folder, file, &svg));
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
    char file[NAME_BYTES + 96], part[NAME_BYTES];
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_moe_layer *at = r->layers[i].at;
        if (!r->layers[i].has_M) continue;
        cpl_text_clear(&svg);
        cpl_coupling_charts_heat(&svg, charts, view, i);
        plain_name(part, *at->part ? at->part : "layer");
        snprintf(file, sizeof file, "%s-coupling-%.20s-%03lld.svg", name, part,
                 (long long)at->layer);
        CPL_TRY_DONE(write_one(n_written, folder, file, &svg));
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
    char name[NAME_BYTES + 24];
    int64_t written = 0;
    for (int64_t r = 0; r < count; r++) CPL_TRY(cpl_outside_check(folder, reports[r]->path));
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
