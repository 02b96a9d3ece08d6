/* config.h - what config.json or a GGUF file's metadata say of an MoE checkpoint.
 *
 * Room:    inspect/families, inside the families room.
 * Source:  docs/formats.md, "Names and shapes"; the keys are in config.c. */
#ifndef CPL_INSPECT_FAMILIES_CONFIG_H
#define CPL_INSPECT_FAMILIES_CONFIG_H

#include "base/arena.h"
#include "inspect/families/families.h"
#include "inspect/families/names.h"

enum { CPL_CONFIG_MAX_LEVELS = 8 };

typedef enum cpl_config_key {
    CPL_CONFIG_N,
    CPL_CONFIG_K,
    CPL_CONFIG_D_EXPERT,
    CPL_CONFIG_D_ANY, /* of experts or of dense layers */
    CPL_CONFIG_MODEL, /* d */
    CPL_CONFIG_LAYERS,
    CPL_CONFIG_MTP,    /* layers of multi-token prediction */
    CPL_CONFIG_LATENT, /* width of what experts read, where it is not d */
    CPL_N_CONFIG_KEYS
} cpl_config_key;

typedef struct cpl_moe_config {
    const json_t *levels[CPL_CONFIG_MAX_LEVELS]; /* (n_levels) objects, the top one first */
    int n_levels;
    bool is_gguf;
    const char *model_type;         /* or a GGUF file's architecture; NULL: unknown */
    const cpl_family *family;       /* NULL: in no row */
    const char *family_name;        /* its name; more words may follow it; NULL: unknown */
    const json_t *quant;            /* quantization_config; NULL: none */
    const char *quant_method;       /* NULL: none */
    int64_t block_rows, block_cols; /* of f8 scales */
    int64_t n_layers;               /* without multi-token prediction; -1: unknown */
    int64_t transformers;           /* major version; 0: unknown */
} cpl_moe_config;

/* CPL_ERR_INPUT for a quantisation that is not read. Borrows from `config`. */
CPL_NODISCARD cpl_status cpl_moe_config_read(cpl_moe_config *out, const json_t *config,
                                             const char *path, bool is_gguf);

/* The positive number under the keys of `what`, of a list the index-th; 0: unknown. Sets `name`
 * (may be NULL) to the key. */
int64_t cpl_moe_config_number(const cpl_moe_config *config, cpl_config_key what, int64_t index,
                              const char **name);

bool cpl_moe_config_flag(const cpl_moe_config *config, cpl_family_flag flag);

/* How many columns one scale of a 4-bit matrix is for, where it has `cols` columns and `scales`
 * scales a row; 0: no group of the config gives that. */
int64_t cpl_moe_config_group(const cpl_moe_config *config, int64_t cols, int64_t scales);

/* ---- sentences on a map of MoE layers as a whole (notes.c) ---- */

/* Sets the map's notes: where config and shapes disagree, and how. */
void cpl_moe_notes(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config);

/* What was taken for what where no row of the table says; patterns of router and gates, or -1. */
const char *cpl_moe_guess(cpl_pool *pool, const cpl_moe_config *config,
                          const cpl_name_patterns *patterns, const int used[2]);

/* A name that looks as if there were experts; NULL: none does. */
const char *cpl_moe_likely(const cpl_stored *const *tensors, int64_t count);

#endif /* CPL_INSPECT_FAMILIES_CONFIG_H */
