/* show.h - the reports of coupling and of routing as tables, JSON, and sentences.
 *
 * Room:    inspect/show. The figures of a layer are rows of columns.def. columns.c lists the
 *          figures of each table on the terminal. Charts and tables of the page are rows of
 *          assets/charts.json, which address members of the JSON. */
#ifndef CPL_INSPECT_SHOW_SHOW_H
#define CPL_INSPECT_SHOW_SHOW_H

#include <jansson.h>

#include "inspect/report.h"
#include "inspect/routing/report.h"
#include "report/columns.h"

/* ---- columns.c ---- */

/* Add the members of columns.def that a layer has. `layer` is its index in the report. */
void cpl_coupling_columns_json(bool *failed, json_t *object, const cpl_coupling_report *report,
                               int64_t layer);
void cpl_routing_columns_json(bool *failed, json_t *object, const cpl_routing_report *report,
                              int64_t layer);

/* Adds mean_token: the means over the layers that have the figure, without nulls. Adds nothing
 * without router rows. */
void cpl_routing_means_json(bool *failed, json_t *object, const cpl_routing_report *report);

typedef enum cpl_inspect_table {
    CPL_TABLE_AGREEMENT, /* free of scale: layers with M */
    CPL_TABLE_CENTRED,   /* the figures of AGREEMENT of the centred rows */
    CPL_TABLE_RAW,       /* depends on the scale of the weights */
    CPL_TABLE_CLUSTERS,  /* silhouettes */
    CPL_TABLE_SAMPLE,    /* with options.sample, in place of AGREEMENT and CENTRED */
    CPL_TABLE_LOAD,      /* LOAD and the following tables are of a text */
    CPL_TABLE_CHOICES,
    CPL_TABLE_SIGNS,      /* only models with router rows have it, */
    CPL_TABLE_MEAN_TOKEN, /* and this */
    CPL_TABLE_LIKENESS,
    CPL_TABLE_TEXT_ERC,
    CPL_TABLE_VOCABULARY
} cpl_inspect_table;

/* Makes a table for a terminal: its rows are the layers that have its figures. All texts live in
 * `pool`. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_inspect_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_coupling_report *report,
                                          cpl_inspect_table table);
CPL_NODISCARD cpl_status cpl_routing_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_routing_report *report,
                                          cpl_inspect_table table);

/* Makes a table that compares several checkpoints: means over the layers. */
CPL_NODISCARD cpl_status cpl_inspect_grid_compare(cpl_grid *grid, cpl_pool *pool,
                                                  const cpl_coupling_report *reports,
                                                  int64_t count);

/* Writes the name of a layer, such as "3" or "encoder 3", and returns `out`. */
const char *cpl_coupling_layer_label(char out[48], const cpl_layer_report *layer);

/* ---- json.c, verdict.c ---- */

/* Returns a new object for one report, {"checkpoints": [...]} for several, which the caller frees
 * with json_decref, or NULL without memory. A figure that is not finite is null. */
json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count);

/* Adds the member `map` to every layer of that object that has M: the matrix M, packed for a page
 * (report/view.h). CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_maps(json_t *json, const cpl_coupling_report *reports,
                                           int64_t count);

/* Holds the verdict on the weights (docs/inspection.md, "The verdict"). */
typedef struct cpl_coupling_state {
    const char *words;       /* such as "partly coupled"; NULL if undecided, or for a sample */
    int64_t layers, coupled; /* layers that count; coupled layers among them */
} cpl_coupling_state;

cpl_coupling_state cpl_coupling_state_of(const cpl_coupling_report *report);

/* Holds the figures of the verdict, over the layers that count. They are NaN, and with_z is 0, if
 * no layer has the figure. */
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

/* Returns the figures of the verdict. The report has all rows, without --sample. */
cpl_coupling_summary cpl_coupling_summary_of(const cpl_coupling_report *report);

/* Appends the verdict and its figures, in lines of sentences. */
void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *report);

/* ---- text_json.c, text_verdict.c ---- */

/* Returns whether the router's choices follow the experts' responses (docs/inspection.md):
 * "follow", ..., or NULL if that is undecided. */
const char *cpl_routing_state(const cpl_routing_report *report);

/* Holds means over the layers. Means of rho, centred and own are over the layers that have a value,
 * and NaN if none has. */
typedef struct cpl_routing_summary {
    double rho, least, most;
    double centred; /* rho without the main effects of the experts */
    double top1, overlap;
    double own; /* share of the rows of M_tok whose own entry is the largest */
} cpl_routing_summary;

cpl_routing_summary cpl_routing_summary_of(const cpl_routing_report *report);

/* Appends the verdict on text and its figures, in sentences. */
void cpl_routing_verdict(cpl_text *out, const cpl_routing_report *report);

/* Returns a new object, which the caller frees with json_decref, or NULL without memory. A figure
 * that is not finite is null. */
json_t *cpl_routing_json(const cpl_routing_report *report);

#endif /* CPL_INSPECT_SHOW_SHOW_H */
