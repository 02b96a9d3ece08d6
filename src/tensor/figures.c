/* figures.c - see figures.h */
#include "tensor/figures.h"

#include <string.h>

enum { REAL, COUNT };

const cpl_figure_row cpl_figure_rows[CPL_N_FIGURES] = {
#define CPL_FIGURE(name, old, kind, needs, centred)                                                \
    {#name,                                                                                        \
     #old,                                                                                         \
     kind == COUNT,                                                                                \
     ((needs)&1) != 0,                                                                             \
     ((needs)&2) != 0,                                                                             \
     centred,                                                                                      \
     "centred_" #name,                                                                             \
     offsetof(cpl_coupling_figures, name)},
#include "tensor/coupling_figures.def"
#undef CPL_FIGURE
};

void cpl_figures_take_read(cpl_coupling_figures *figures, const cpl_coupling_figures *read)
{
    for (int i = 0; i < CPL_N_FIGURES; i++) {
        const cpl_figure_row *row = &cpl_figure_rows[i];
        if (row->needs_M || row->needs_spectral)
            memcpy((char *)figures + row->offset, (const char *)read + row->offset, sizeof(double));
    }
}

const char *cpl_figure_old_name(const char *name)
{
    for (int i = 0; i < CPL_N_FIGURES; i++)
        if (strcmp(cpl_figure_rows[i].name, name) == 0 &&
            strcmp(cpl_figure_rows[i].old_name, name) != 0)
            return cpl_figure_rows[i].old_name;
    return NULL;
}
