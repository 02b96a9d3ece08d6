/* show.h - reports of coupling as tables, JSON, and a sentence.
 *
 * Room:    inspect. The figures of a layer are rows of columns.def; columns.c lists those of each
 *          table on the terminal. Charts and tables of the page are rows of assets/charts.json, which
 *          address members of the JSON. */
#ifndef CPL_INSPECT_SHOW_H
#define CPL_INSPECT_SHOW_H

#include <jansson.h>

#include "inspect/report.h"
#include "report/columns.h"

/* ---- columns.c ---- */

/* Parts of columns.def. */
enum {
    CPL_PART_SHAPE,
    CPL_PART_COUPLING,
    CPL_PART_CENTRED,
    CPL_PART_CENTRED_ROWS,
    CPL_PART_ROUTER,
    CPL_PART_NOISE,
    CPL_PART_CLUSTERS,
    CPL_PART_SAMPLE,
    CPL_PART_SAMPLE_M,
    CPL_PART_SAMPLE_CENTRED,
    CPL_INSPECT_PARTS
};

/* Whether layer number `layer` of the report's list has the figures of a part. */
bool cpl_inspect_has_part(const cpl_coupling_report *report, int64_t layer, int part);

/* The list with the values of a report: rows are its layers. */
cpl_columns cpl_inspect_columns(const cpl_coupling_report *report);

typedef enum cpl_inspect_table {
    CPL_TABLE_AGREEMENT, /* free of scale: layers with M */
    CPL_TABLE_CENTRED,   /* the same of the centred rows */
    CPL_TABLE_RAW,       /* depends on the scale of the weights */
    CPL_TABLE_CLUSTERS,  /* silhouettes */
    CPL_TABLE_SAMPLE     /* with options.sample, in place of AGREEMENT and CENTRED */
} cpl_inspect_table;

/* The layers that have no fault, for a terminal; AGREEMENT, CENTRED: those with M. All texts live in `pool`.
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_inspect_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_coupling_report *report,
                                          cpl_inspect_table table);

/* A table that compares several checkpoints: means over the layers. */
CPL_NODISCARD cpl_status cpl_inspect_grid_compare(cpl_grid *grid, cpl_pool *pool,
                                                  const cpl_coupling_report *reports,
                                                  int64_t count);

/* "3" or "encoder 3" into `out`, which is returned. */
const char *cpl_coupling_layer_label(char out[48], const cpl_layer_report *layer);

/* A new object for one report, {"checkpoints": [...]} for several; the caller gives it back with
 * json_decref. A figure that is not finite is null. NULL if there is no memory. */
json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count);

/* Adds the matrix M, packed for a page (report/view.h), to every layer of that object that has one:
 * member `map`. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_maps(json_t *json, const cpl_coupling_report *reports,
                                           int64_t count);

/* Whether the weights of router and experts are coupled: docs/inspection.md, "The verdict". */
typedef struct cpl_coupling_state {
    const char *words;       /* such as "partly coupled"; NULL: it cannot be told, or a sample */
    int64_t layers, coupled; /* layers that count; coupled ones of them */
} cpl_coupling_state;

cpl_coupling_state cpl_coupling_state_of(const cpl_coupling_report *report);

/* The figures that it follows from, over the layers that count; NaN, with_z 0: there are none. */
typedef struct cpl_coupling_rows {
    const char *name;
    int64_t layers, with_z;  /* with_z: some pairings of rows and experts give more than others */
    double own, violated, z; /* means; z over all layers */
    double least, most;      /* alpha_min */
} cpl_coupling_rows;

typedef struct cpl_coupling_summary {
    cpl_coupling_rows stored, centred;
    double own_by_chance, violated_by_chance;
} cpl_coupling_summary;

/* Of a report without --sample, whose figures have no bounds. */
cpl_coupling_summary cpl_coupling_summary_of(const cpl_coupling_report *report);

/* Appends it with the figures that it follows from, in lines of sentences. */
void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *report);

#endif /* CPL_INSPECT_SHOW_H */
