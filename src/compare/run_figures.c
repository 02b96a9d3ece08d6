/* run_figures.c - the list of a run's figures; see run_record.h */
#include "compare/run_record.h"

#define CPL_RUN_FIGURE(name, key, of, how, start, curve, file, label, digits, sentence)            \
    {key,   CPL_RUN_OF_##of, CPL_RUN_HOW_##how, start, CPL_RUN_CURVE_##curve, file,                \
     label, digits,          sentence},
const cpl_run_figure cpl_run_figures[CPL_RUN_FIGURES] = {
#include "compare/run_figures.def"
};
