/* charts.h - the charts of a routing report.
 *
 * Room:  inspect/routing; shared by page.h's page and its files. */
#ifndef CPL_INSPECT_ROUTING_CHARTS_H
#define CPL_INSPECT_ROUTING_CHARTS_H

#include "inspect/routing/report.h"
#include "report/chart.h"

/* Over layers, in the order of the page. */
typedef enum cpl_routing_kind {
    CPL_ROUTING_LOAD,
    CPL_ROUTING_ENTROPY,
    CPL_ROUTING_RANKS,
    CPL_ROUTING_OVERLAP,
    CPL_ROUTING_LIKENESS,
    CPL_ROUTING_ERC,
    CPL_ROUTING_DOMAINS,
    CPL_ROUTING_VOCABULARY,
    CPL_ROUTING_SATURATION,
    CPL_ROUTING_KINDS
} cpl_routing_kind;

/* Matrices, one chart for each of something. */
typedef enum cpl_routing_map {
    CPL_ROUTING_BY_DOMAIN, /* a source: layers down, experts across */
    CPL_ROUTING_ANSWERS,   /* a layer: M_tok */
    CPL_ROUTING_TOGETHER,  /* a layer: pairs of experts */
    CPL_ROUTING_MAPS
} cpl_routing_map;

typedef struct cpl_routing_look {
    const char *file, *title, *caption;
} cpl_routing_look;

extern const cpl_routing_look cpl_routing_looks[CPL_ROUTING_KINDS];
extern const cpl_routing_look cpl_routing_map_looks[CPL_ROUTING_MAPS];

typedef struct cpl_routing_charts {
    const cpl_routing_report *report;
    const char *name;        /* the last part of the path */
    const char **layers;     /* [L] "0", "1", ... of the axis */
    cpl_chart_range answers; /* of M_tok over the mean of its row, all layers */
    void *memory;            /* inner */
} cpl_routing_charts;

/* The report must outlive it. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_charts_open(cpl_routing_charts *charts,
                                                 const cpl_routing_report *report);
void cpl_routing_charts_close(cpl_routing_charts *charts);

/* Whether a chart would show anything; of a map, how many there are. */
bool cpl_routing_charts_have(const cpl_routing_charts *charts, cpl_routing_kind kind);
int64_t cpl_routing_charts_maps(const cpl_routing_charts *charts, cpl_routing_map map);

/* Appends one chart. */
void cpl_routing_charts_draw(cpl_text *out, const cpl_routing_charts *charts, cpl_routing_kind kind,
                             bool in_page);
void cpl_routing_charts_map(cpl_text *out, const cpl_routing_charts *charts, cpl_routing_map map,
                            int64_t index, bool in_page);

/* Inner: what maps.c gives `answers` at opening. */
cpl_chart_range cpl_routing_answers_range(const cpl_routing_report *report);

#endif /* CPL_INSPECT_ROUTING_CHARTS_H */
