/* config.h - what config.json or a GGUF file's metadata say of an MoE checkpoint.
 *
 * Room:    inspect/families, inside the families room.
 * Source:  docs/formats.md, "Names and shapes"; the keys are in families.def. */
#ifndef CPL_INSPECT_FAMILIES_CONFIG_H
#define CPL_INSPECT_FAMILIES_CONFIG_H

#include "inspect/families/families.h"

enum { CPL_CONFIG_MAX_LEVELS = 8 };

typedef enum cpl_config_key {
#define CPL_KEYS(what, keys, gguf) CPL_CONFIG_##what,
#include "inspect/families/families.def"
    CPL_N_CONFIG_KEYS
} cpl_config_key;

typedef struct cpl_moe_config {
    const json_t *levels[CPL_CONFIG_MAX_LEVELS]; /* (n_levels) objects, the top one first */
    int n_levels;
    bool is_gguf;
    const char *model_type;         /* or a GGUF file's architecture; NULL: not told */
    const cpl_family *family;       /* NULL: in no row */
    const char *family_name;        /* its name; more words may stand behind it; NULL: not told */
    const json_t *quant;            /* quantization_config; NULL: none */
    const char *quant_method;       /* NULL: none */
    int64_t block_rows, block_cols; /* of f8 scales */
    int64_t n_layers;               /* without multi-token prediction; -1: not told */
    int64_t transformers;           /* major version; 0: not told */
} cpl_moe_config;

/* CPL_ERR_INPUT for a quantisation that is not read. Borrows from `config`. */
CPL_NODISCARD cpl_status cpl_moe_config_read(cpl_moe_config *out, const json_t *config,
                                             const char *path, bool is_gguf);

/* The positive number under the keys of `what`, of a list the index-th; 0: not told. Sets `name`
 * (may be NULL) to the key. */
int64_t cpl_moe_config_number(const cpl_moe_config *config, cpl_config_key what, int64_t index,
                              const char **name);

bool cpl_moe_config_flag(const cpl_moe_config *config, const char *flag); /* of the family's row */

/* How many columns one scale of a 4-bit matrix is for, where it has `cols` columns and `scales`
 * scales a row; 0: no group of the config gives that. */
int64_t cpl_moe_config_group(const cpl_moe_config *config, int64_t cols, int64_t scales);

#endif /* CPL_INSPECT_FAMILIES_CONFIG_H */
