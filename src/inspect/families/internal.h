/* internal.h - from names, config and shapes to the MoE layers of a checkpoint.
 *
 * Room:    inspect/families, inside it: names.c, config.c, matrix.c, layer.c and fit.c.
 * Source:  docs/formats.md, "Published MoE checkpoints"; the names are in families.def, the keys in
 *          config.c. */
#ifndef CPL_INSPECT_FAMILIES_INTERNAL_H
#define CPL_INSPECT_FAMILIES_INTERNAL_H

#include <string.h>

#include "base/arena.h"
#include "inspect/families/families.h"

/* Names: layer, router or gate, expert, kind of numbers
 * ------------------------------------------ */

typedef enum cpl_ending {
    CPL_ENDING_WEIGHT,
    CPL_ENDING_BLOCKS, /* pairs of f4 in groups of 16 bytes */
    CPL_ENDING_PACKED, /* eight 4-bit integers a word */
    CPL_ENDING_GRID,   /* scales, one for each block */
    CPL_ENDING_SCALE,  /* scales whose blocks follow from the shape */
    CPL_ENDING_BIAS,
    CPL_ENDING_METHOD /* of a quantisation that is not read */
} cpl_ending;

/* A name of families.def, after the layer's number. */
typedef struct cpl_name_pattern {
    const char *text; /* (length), without mark and star */
    size_t length;
    size_t hole;    /* offset of {e}; == length: there is none */
    bool any_block; /* a star was before it */
    bool router;
    char mark; /* '+', '-' or 0 */
} cpl_name_pattern;

typedef struct cpl_name_patterns {
    cpl_name_pattern
        *all;       /* (count) those of the family first, then those of all families, each once */
    int count, own; /* own: those of the family */
} cpl_name_patterns;

/* The role of one tensor in its layer. */
typedef struct cpl_name_match {
    int pattern;
    int64_t expert;     /* 0 if the pattern has no {e} */
    const char *digits; /* of the expert's number in the name; NULL: none */
    const char *end;    /* of the pattern in the name */
    cpl_ending ending;
    const char *method; /* of CPL_ENDING_METHOD */
    const cpl_stored *tensor;
} cpl_name_match;

/* Splits at the layer's number: `prefix` bytes of the name end after "layers.3.". False if the
 * tensor is in no layer. */
bool cpl_name_layer(const char *name, size_t *prefix, int64_t *layer);

bool cpl_name_is_mtp(const char *name);
bool cpl_name_is_text(const char *name); /* of the text model: not vision, audio, ... */

/* Whether a tensor with this name after its layer's prefix may belong to the router or a routed
 * expert: not attention, a shared expert, ... */
bool cpl_name_is_routed(const char *suffix);

/* Why a layer with this tensor has no figures; NULL: nothing against it. */
const char *cpl_name_unmeasured(const char *suffix);
bool cpl_name_projects(const char *suffix); /* the experts read a projection of the layer's input */

/* The names to search for; `family` may be NULL. Without memory `count` is 0. */
cpl_name_patterns cpl_name_patterns_make(cpl_pool *pool, const cpl_family *family);

/* The first family of the table whose gate and up rows alternate in tensors with the names of this
 * router and this gate; NULL: there is none. */
const cpl_family *cpl_name_patterns_in_turns(const cpl_name_pattern *router,
                                             const cpl_name_pattern *gate);

/* Whether the tensor with this name after its layer's prefix is a router's or a gate's. */
bool cpl_name_patterns_find(cpl_name_match *match, const cpl_name_patterns *patterns,
                            const char *suffix);

/* Sets `word` to the next of the words from *at on, which are separated by spaces, and its length;
 * false: there are no more. */
static inline bool cpl_name_next_word(const char **at, const char **word, size_t *length)
{
    *word   = *at;
    *length = strcspn(*at, " ");
    *at += *length + strspn(*at + *length, " ");
    return *length > 0;
}

/* Whether `word` is one of those in `words`, which are separated by spaces. */
bool cpl_name_in_words(const char *words, const char *word);

/* Facts of config.json or the metadata of a GGUF file -------------------------------------------*/

enum { CPL_CONFIG_MAX_LEVELS = 8 };

typedef enum cpl_config_key {
    CPL_CONFIG_N,
    CPL_CONFIG_K,
    CPL_CONFIG_D_EXPERT,
    CPL_CONFIG_D_ANY, /* of experts or of dense layers */
    CPL_CONFIG_MODEL, /* d */
    CPL_CONFIG_LAYERS,
    CPL_CONFIG_MTP,    /* layers of multi-token prediction */
    CPL_CONFIG_LATENT, /* width of the experts' input, if it is not d */
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
} cpl_moe_config;

/* CPL_ERR_INPUT for a quantisation that is not read. Borrows from `config`. */
CPL_NODISCARD cpl_status cpl_moe_config_read(cpl_moe_config *out, const json_t *config,
                                             const char *path, bool is_gguf);

/* The positive number under the keys of `what`, of a list the index-th; 0: unknown. Sets `name`
 * (may be NULL) to the key. */
int64_t cpl_moe_config_number(const cpl_moe_config *config, cpl_config_key what, int64_t index,
                              const char **name);

bool cpl_moe_config_flag(const cpl_moe_config *config, cpl_family_flag flag);

/* The number of columns for one scale of a 4-bit matrix that has `cols` columns and `scales`
 * scales a row; 0: no group of the config gives that. */
int64_t cpl_moe_config_group(const cpl_moe_config *config, int64_t cols, int64_t scales);

/* Sentences on a map of MoE layers as a whole --------------------------------------------------*/

/* Sets the map's notes: where config and shapes disagree, and how. */
void cpl_moe_notes(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config);

/* A sentence on the tensors that were used as router and gates, for a checkpoint in no row of the
 * table. `used`: patterns of router and gates, or -1. */
const char *cpl_moe_guess(cpl_pool *pool, const cpl_moe_config *config,
                          const cpl_name_patterns *patterns, const int used[2]);

/* A stored tensor with its scales, as a matrix of numbers ---------------------------------------
 *
 * docs/formats.md, "Quantised numbers". Which tensors are there decides how one is read; the config
 * only adds the sizes of blocks. */

/* Its numbers: [rows,cols], or [n,rows,cols]. */
typedef struct cpl_matrix_shape {
    bool stacked;
    int64_t n, rows, cols; /* n 1 if not stacked */
} cpl_matrix_shape;

/* The tensors of one matrix, or of one stack of matrices, and what is made of them. */
typedef struct cpl_matrix_parts {
    const cpl_stored *weight, *blocks, *packed, *scale; /* NULL: not there */
    bool grid; /* `scale` has one for each block of the config, whatever its shape suggests */
    const cpl_moe_config *config;
    int64_t d; /* the number of columns that is expected, 0 if none is */
    cpl_pool *pool;
    cpl_stored_matrix *out;
    cpl_matrix_shape *shape;
} cpl_matrix_parts;

/* Sets *out and *shape. NULL, or a sentence that says why it cannot be read. One of weight, blocks,
 * packed must be there. */
const char *cpl_matrix_make(const cpl_matrix_parts *parts);

/* One MoE layer out of the tensors that its names have found ------------------------------------*/

/* What is the same for all layers. */
typedef struct cpl_layer_reading {
    cpl_pool *pool;
    const cpl_moe_config *config;
    const cpl_name_patterns *patterns;
    const char *path; /* of the checkpoint, for sentences */
} cpl_layer_reading;

/* Facts from the names of one layer's tensors. */
typedef struct cpl_layer_names {
    const cpl_name_match *matches; /* (n_matches) by pattern, then expert, then ending */
    int64_t n_matches;
    const cpl_stored *const *tensors; /* (n_tensors) all of the layer, by name */
    int64_t n_tensors;
    const char *unmeasured;       /* NULL, or why it has no figures */
    const cpl_stored *projection; /* NULL, or the projection before its experts */
} cpl_layer_names;

/* Fills `layer` (prefix and number are set) except `part`. Sets `is_moe`: false, and nothing
 * filled, if the layer has no experts. `patterns_used` [2] are router's and gates', or -1.
 * CPL_ERR_INPUT: nothing decides between two readings, or the quantisation cannot be read. Any
 * other error is the layer's fault. */
CPL_NODISCARD cpl_status cpl_moe_layer_fill(cpl_moe_layer *layer, bool *is_moe,
                                            int patterns_used[2], const cpl_layer_reading *reading,
                                            const cpl_layer_names *names);

/* ---- inside layer.c and fit.c: n, d, D, and whether rows or columns are the gates' rows
 * (docs/formats.md, "Orientation of fused tensors") ---- */

/* The work on one layer. `fault` and `refusal` are the first of their kind. */
typedef struct cpl_layer_builder {
    const cpl_layer_reading *r;
    const cpl_layer_names *names;
    cpl_moe_layer *layer;
    int router, gate;             /* numbers of their patterns */
    cpl_stored_matrix *all;       /* (n_all) of the gates, by expert; without {e} one */
    int64_t n_all;                /* experts that have a gate, or 1 */
    int64_t *experts;             /* (n_all) their numbers */
    const cpl_name_match **first; /* (n_all + 1) where the matches of each begin, and the end */
    cpl_matrix_shape rows;        /* of the router as stored */
    cpl_matrix_shape gates;       /* of the first gate, or of the stack */
    const char *fault, *refusal;
} cpl_layer_builder;

#define CPL_SAY(f, ...)   cpl_pool_printf((f)->r->pool, __VA_ARGS__)
#define CPL_FAULT(f, ...) ((f)->fault = (f)->fault ? (f)->fault : CPL_SAY(f, __VA_ARGS__))

/* Whether the table has the family of the checkpoint. */
static inline bool cpl_family_is_listed(const cpl_layer_builder *f)
{
    return f->r->config->family != NULL;
}

static inline const cpl_name_pattern *cpl_gate_pattern(const cpl_layer_builder *f)
{
    return &f->r->patterns->all[f->gate];
}

/* Whether there is one tensor for each expert. */
static inline bool cpl_gate_each(const cpl_layer_builder *f)
{
    return cpl_gate_pattern(f)->hole < cpl_gate_pattern(f)->length;
}

/* The matrix itself, not its scales or biases. */
static inline bool cpl_name_match_holds_numbers(const cpl_name_match *match)
{
    return match->ending == CPL_ENDING_WEIGHT || match->ending == CPL_ENDING_BLOCKS ||
           match->ending == CPL_ENDING_PACKED || match->ending == CPL_ENDING_METHOD;
}

/* A flag of the family on the layout of its safetensors; GGUF files have one layout. */
static inline bool cpl_fit_flag(const cpl_layer_builder *f, cpl_family_flag flag)
{
    return !f->r->config->is_gguf && cpl_moe_config_flag(f->r->config, flag);
}

/* With router and first gate read: sets n, d and whether the router is [d,n]. */
void cpl_fit_router(cpl_layer_builder *f);
bool cpl_fit_is_latent(const cpl_layer_builder *f);

/* Sets layout, width, D; false with a fault if the tensors do not fit. */
bool cpl_fit_gates(cpl_layer_builder *f);

#endif /* CPL_INSPECT_FAMILIES_INTERNAL_H */
