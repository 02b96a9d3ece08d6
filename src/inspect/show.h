/* show.h - reports of coupling as tables, charts, one page, JSON, and a sentence.
 *
 * Room:    inspect. The figures of a layer are rows of columns.def; columns.c lists those of each
 *          table on the terminal and in the page, charts.c those of each chart.
 * Page:    the scale-free figures come first. Raw values of the loss and norms come later, with a
 *          sentence on why models of different families are not compared by them; nothing is
 *          ranked.
 * Charts:  several reports share them: up to three checkpoints in one, with a colour each; more go
 *          on in further charts of the same scale. */
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
    CPL_PART_CLUSTERS
};

/* The list with the values of a report: rows are its layers. */
cpl_columns cpl_inspect_columns(const cpl_coupling_report *report);

typedef enum cpl_inspect_table {
    CPL_TABLE_AGREEMENT, /* free of scale: layers with M */
    CPL_TABLE_CENTRED,   /* the same of the centred rows */
    CPL_TABLE_RAW,       /* depends on the scale of the weights */
    CPL_TABLE_CLUSTERS   /* silhouettes */
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

/* ---- sampled_show.c ---- */

/* With options.sample: what takes the place of the tables AGREEMENT and CENTRED. */
typedef enum cpl_sampled_table {
    CPL_SAMPLED_ESTIMATES,
    CPL_SAMPLED_CENTRED,
    CPL_SAMPLED_BOUNDS,
    CPL_SAMPLED_CENTRED_BOUNDS
} cpl_sampled_table;

CPL_NODISCARD cpl_status cpl_sampled_grid(cpl_grid *grid, cpl_pool *pool,
                                          const cpl_coupling_report *report,
                                          cpl_sampled_table table);

/* The means of all four over the layers, a column a checkpoint. */
CPL_NODISCARD cpl_status cpl_sampled_grid_compare(cpl_grid *grid, cpl_pool *pool,
                                                  const cpl_coupling_report *reports,
                                                  int64_t count);

/* ---- columns.c: in a page ---- */

/* Appends the table of one report, AGREEMENT, CENTRED or RAW, to a page: every layer, or why it has no
 * figures. */
void cpl_inspect_page_layers(cpl_text *out, const cpl_coupling_report *report,
                             cpl_inspect_table table);

/* Appends two tables with a line a checkpoint: its description; its scale-free figures, means and
 * ranges over the layers. */
void cpl_inspect_page_checkpoints(cpl_text *out, const cpl_coupling_report *const *reports,
                                  int64_t count);

/* "3" or "encoder 3" into `out`, which is returned. */
const char *cpl_coupling_layer_label(char out[48], const cpl_layer_report *layer);

/* The index in options.alphas of 1; if it is not among them 0. */
int cpl_coupling_alpha(const cpl_coupling_report *report);

/* ---- charts.c, maps.c ---- */

/* Appends all charts. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_charts(cpl_charts *out,
                                             const cpl_coupling_report *const *reports,
                                             int64_t count);

/* Inner, of maps.c: the coupling matrices. */
CPL_NODISCARD cpl_status cpl_coupling_maps(cpl_charts *out,
                                           const cpl_coupling_report *const *reports,
                                           int64_t count);

/* ---- page.c, json.c, verdict.c ---- */

/* Appends the whole page of one or more reports; `data` is their JSON with its series. `of_text`:
 * sentences beside the verdict, and `more` writes sections before the definitions of words, from
 * `ctx`; NULL: none. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_coupling_page(cpl_text *out, const cpl_coupling_report *const *reports,
                                           int64_t count, const json_t *data, const char *of_text,
                                           void (*more)(cpl_text *out, const void *ctx,
                                                        const json_t *data),
                                           const void *ctx);

/* A new object for one report, {"checkpoints": [...]} for several; the caller gives it back with
 * json_decref. A figure that is not finite is null. NULL if there is no memory. */
json_t *cpl_coupling_json(const cpl_coupling_report *reports, int64_t count);

/* Whether the weights of router and experts are coupled: docs/inspection.md, "The verdict". */
typedef struct cpl_coupling_state {
    const char *words;       /* such as "partly coupled"; NULL: it cannot be told */
    int64_t layers, coupled; /* that count; of them coupled, of a sample for certain */
} cpl_coupling_state;

cpl_coupling_state cpl_coupling_state_of(const cpl_coupling_report *report);

/* Appends it with the figures that it follows from, in lines of sentences. */
void cpl_coupling_verdict(cpl_text *out, const cpl_coupling_report *report);

#endif /* CPL_INSPECT_SHOW_H */
