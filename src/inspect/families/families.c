#include "inspect/families/families.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/pool.h"

const cpl_family cpl_families[] = {
#define CPL_FAMILY(types, title, gguf, router, gate, flags)                                        \
    {types, title, gguf, router, gate, flags},
#include "inspect/families/families.def"
};
const int64_t cpl_n_families = sizeof cpl_families / sizeof *cpl_families;

cpl_status cpl_moe_map_make(cpl_moe_map *map, const cpl_stored_files *files)
{
    *map                       = (cpl_moe_map){0};
    int64_t count              = cpl_stored_count(files);
    const cpl_stored **tensors = cpl_alloc((size_t)(count + 1) * sizeof *tensors);
    if (!tensors) return CPL_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++) tensors[i] = cpl_stored_at(files, i);
    cpl_moe_source source = {cpl_stored_path(files), cpl_stored_config(files), tensors, count,
                             cpl_stored_is_gguf(files)};
    cpl_status status     = cpl_moe_map_of(map, &source);
    cpl_free(tensors);
    return status;
}

void cpl_moe_map_free(cpl_moe_map *map)
{
    if (map->memory) cpl_pool_free(map->memory);
    cpl_free(map->memory);
    *map = (cpl_moe_map){0};
}
