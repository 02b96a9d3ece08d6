/* family_list.c - the table of families; see families.h */
#include "inspect/families/families.h"

const cpl_family cpl_families[] = {
#define CPL_FAMILY(types, title, gguf, router, gate, flags)                                        \
    {types, title, gguf, router, gate, flags},
#include "inspect/families/families.def"
};
const int64_t cpl_n_families = sizeof cpl_families / sizeof *cpl_families;
