/* internal.h - the way from names, config and shapes to MoE layers.
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
    CPL_ENDING_PACKED, /* eight 4-bit integers a word, or pairs of f4 */
    CPL_ENDING_GRID,   /* scales, one for each block */
    CPL_ENDING_SCALE,  /* scales whose blocks follow from the shape */
    CPL_ENDING_BIAS,
    CPL_ENDING_METHOD /* a tensor of a quantisation that is not read */
} cpl_ending;

/* Tells the gate's part of its tensor, from what follows a colon in a name of families.def. */
typedef enum cpl_gate_half {
    CPL_HALF_NONE,     /* "": the tensor has the gate alone */
    CPL_HALF_FIRST,    /* "GD": gate and up projection, one after the other */
    CPL_HALF_SECOND,   /* "UD": up projection and gate */
    CPL_HALF_IN_TURNS, /* "DG": gate and up row in turns */
    CPL_HALF_ALONE     /* "D": the only input matrix of an expert, used if there is no gate */
} cpl_gate_half;

typedef enum cpl_name_role {
    CPL_NAME_ROUTER,
    CPL_NAME_GATE,
    CPL_NAME_PROJECTION, /* W_l, before latent experts */
    CPL_NAME_NORM        /* the norm of W_l x */
} cpl_name_role;

/* Describes a name of families.def or names.c, which follows the layer's number. */
typedef struct cpl_name_pattern {
    const char *text; /* (length), without star and layout */
    size_t length;
    size_t hole;    /* offset of {e}; `length` if every expert is in one tensor */
    bool any_block; /* a star precedes the name */
    cpl_name_role role;
    bool pair; /* gate and up projection share the tensor */
    cpl_gate_half half;
} cpl_name_pattern;

typedef struct cpl_name_patterns {
    cpl_name_pattern *all; /* (count) patterns of the family, then of all, each once */
    int count, own;        /* the first `own` are the family's */
} cpl_name_patterns;

/* Describes the role of one tensor in its layer. */
typedef struct cpl_name_match {
    int pattern;
    int64_t expert;     /* 0 if the pattern has no {e} */
    const char *digits; /* the expert's number in the name; NULL if the pattern has no {e} */
    const char *end;    /* end of the pattern in the name */
    cpl_ending ending;
    const char *method; /* the quantisation, for CPL_ENDING_METHOD */
    const cpl_stored *tensor;
} cpl_name_match;

/* Splits at the layer's number: `prefix` bytes of the name end after "layers.3.". Returns false if
 * the tensor is in no layer. */
bool cpl_name_layer(const char *name, size_t *prefix, int64_t *layer);

bool cpl_name_is_mtp(const char *name);
bool cpl_name_is_text(const char *name); /* returns false for vision, audio, ... */

/* Returns whether a tensor with this name after its layer's prefix may belong to the router or a
 * routed expert, and not to attention, a shared expert, ... */
bool cpl_name_is_routed(const char *suffix);

/* Returns the reason why a layer with this tensor is not measured, or NULL. */
const char *cpl_name_unmeasured(const char *suffix);

/* Returns the names to search for. `family` may be NULL. Without memory `count` is 0. */
cpl_name_patterns cpl_name_patterns_make(cpl_pool *pool, const cpl_family *family);

/* Returns the first family of the table whose gate and up rows alternate in tensors with the names
 * of this router and this gate, or NULL. */
const cpl_family *cpl_name_patterns_in_turns(const cpl_name_pattern *router,
                                             const cpl_name_pattern *gate);

/* Returns whether the tensor with this name after its layer's prefix has a role. */
bool cpl_name_patterns_find(cpl_name_match *match, const cpl_name_patterns *patterns,
                            const char *suffix);

/* Sets `word` and `length` to the next of the words from *at on, which are separated by spaces.
 * Returns false after the last word. */
static inline bool cpl_name_next_word(const char **at, const char **word, size_t *length)
{
    *word   = *at;
    *length = strcspn(*at, " ");
    *at += *length + strspn(*at + *length, " ");
    return *length > 0;
}

/* Returns whether `words`, which are separated by spaces, have `word` among them. */
bool cpl_name_in_words(const char *words, const char *word);

/* Facts of config.json or the metadata of a GGUF file -------------------------------------------*/

enum { CPL_CONFIG_MAX_LEVELS = 8 };

typedef enum cpl_config_key {
    CPL_CONFIG_N,
    CPL_CONFIG_K,
    CPL_CONFIG_D_EXPERT,
    CPL_CONFIG_D_ANY, /* D of experts or of dense layers */
    CPL_CONFIG_MODEL, /* d */
    CPL_CONFIG_LAYERS,
    CPL_CONFIG_MTP,    /* layers of multi-token prediction */
    CPL_CONFIG_LATENT, /* l, if not d */
    CPL_CONFIG_EPS,    /* eps of the norms, a real number */
    CPL_N_CONFIG_KEYS
} cpl_config_key;

typedef struct cpl_moe_config {
    const json_t *levels[CPL_CONFIG_MAX_LEVELS]; /* (n_levels) objects, the top one first */
    int n_levels;
    bool is_gguf;
    const char *model_type;         /* or a GGUF file's architecture; NULL if unknown */
    const cpl_family *family;       /* NULL if no row has the model type */
    const char *family_name;        /* more words may follow the name; NULL if unknown */
    const json_t *quant;            /* quantization_config, or NULL */
    const char *quant_method;       /* or NULL */
    int64_t block_rows, block_cols; /* numbers that share a scale of f8 */
    int64_t n_layers;               /* without multi-token prediction; -1 if unknown */
} cpl_moe_config;

/* Sets *out, which borrows from the document. Returns NULL, or the fault of a quantisation that is
 * not read, as a sentence. */
const char *cpl_moe_config_read(cpl_moe_config *out, cpl_pool *pool,
                                const cpl_moe_document *document);

/* Returns the positive number under a key of `what`, or the index-th number of a list there, or 0
 * if it is unknown. Sets `name` (may be NULL) to the key. */
int64_t cpl_moe_config_number(const cpl_moe_config *config, cpl_config_key what, int64_t index,
                              const char **name);

/* Returns the real number under a key of `what`, or -1 if there is none of 0 or more. */
double cpl_moe_config_real(const cpl_moe_config *config, cpl_config_key what);

bool cpl_moe_config_flag(const cpl_moe_config *config, cpl_family_flag flag);

/* Returns the number of columns that share a scale in a 4-bit matrix with `cols` columns and
 * `scales` scales a row, or 0 if no group of the config has such a size. */
int64_t cpl_moe_config_group(const cpl_moe_config *config, int64_t cols, int64_t scales);

/* Sentences on a map of MoE layers as a whole --------------------------------------------------*/

/* Sets the map's notes, which are sentences on differences between config and shapes. */
void cpl_moe_notes(cpl_moe_map *map, cpl_pool *pool, const cpl_moe_config *config);

/* Returns a sentence on the tensors that were used as router and gates, for a model type that no
 * row has. `used` are the patterns of router and gates, or -1. */
const char *cpl_moe_guess(cpl_pool *pool, const cpl_moe_config *config,
                          const cpl_name_patterns *patterns, const int used[2]);

/* A stored tensor with its scales, as a matrix of numbers ---------------------------------------
 *
 * docs/formats.md, "Quantised numbers". The tensors that are present decide how a matrix is read.
 * The config only adds the sizes of blocks. */

/* Holds the shape of the numbers: [rows,cols], or [n,rows,cols]. */
typedef struct cpl_matrix_shape {
    bool stacked;
    int64_t n, rows, cols; /* n 1 if not stacked */
} cpl_matrix_shape;

/* Lists the tensors of one matrix, or of one stack of matrices, and the places of the result. */
typedef struct cpl_matrix_parts {
    const cpl_stored *weight, *blocks, *packed, *scale; /* NULL if absent */
    bool grid; /* each block of the config has a scale, whatever the shape of `scale` suggests */
    const cpl_moe_config *config;
    int64_t d; /* the expected number of columns, or 0 */
    cpl_pool *pool;
    cpl_stored_matrix *out;
    cpl_matrix_shape *shape;
} cpl_matrix_parts;

/* Sets *out and *shape. Returns NULL, or a sentence that says why the matrix cannot be read. One of
 * weight, blocks and packed must be there. */
const char *cpl_matrix_make(const cpl_matrix_parts *parts);

/* Returns the shape of a tensor for sentences: "[6,32]". */
const char *cpl_matrix_sizes(cpl_pool *pool, const cpl_stored *tensor);

/* One MoE layer out of the tensors that its names have found ------------------------------------*/

/* Holds the facts that all layers share. */
typedef struct cpl_layer_reading {
    cpl_pool *pool;
    const cpl_moe_config *config;
    const cpl_name_patterns *patterns;
    const char *path; /* the checkpoint's, for sentences */
} cpl_layer_reading;

/* Holds facts from the names of one layer's tensors. */
typedef struct cpl_layer_names {
    const cpl_name_match *matches; /* (n_matches) by pattern, then expert, then ending */
    int64_t n_matches;
    const cpl_stored *const *tensors; /* (n_tensors) all tensors of the layer, by name */
    int64_t n_tensors;
    const char *unmeasured; /* reason why the layer has no figures, or NULL */
} cpl_layer_names;

/* Fills `layer`, whose prefix and number are set, except `part`. Its fault is filled too. Returns
 * false and fills nothing if the layer has no experts. `patterns_used` [2] are the patterns of
 * router and gates, or -1. */
bool cpl_moe_layer_fill(cpl_moe_layer *layer, int patterns_used[2],
                        const cpl_layer_reading *reading, const cpl_layer_names *names);

/* ---- inside layer.c and fit.c: n, d, D, and the orientation of the gates (docs/formats.md,
 * "Orientation of fused tensors") ---- */

/* Holds the work on one layer. `fault` is the first fault that was found. */
typedef struct cpl_layer_builder {
    const cpl_layer_reading *r;
    const cpl_layer_names *names;
    cpl_moe_layer *layer;
    int router, gate, projection; /* numbers of the patterns, or -1 */
    cpl_name_pattern form;        /* the gates' pattern, as the down projection shows it to be */
    int64_t flat_n;               /* experts in each flat tensor of OLMo-core, or 0 */
    cpl_stored_matrix *all;       /* (n_all) the gates, by expert; without {e} one stack */
    int64_t n_all;                /* experts that have a gate, or 1 */
    const cpl_name_match **first; /* (n_all + 1) the first match of each expert, and the end */
    cpl_matrix_shape rows;        /* shape of the router as stored */
    cpl_matrix_shape gates;       /* shape of the first gate, or of the stack */
    cpl_matrix_shape down;        /* shape of the projection with a known name */
    const char *fault;
    bool refused; /* the fault concerns the whole checkpoint */
} cpl_layer_builder;

#define CPL_SAY(f, ...)      cpl_pool_printf((f)->r->pool, __VA_ARGS__)
#define CPL_FAULT(f, ...)    ((f)->fault = (f)->fault ? (f)->fault : CPL_SAY(f, __VA_ARGS__))
#define CPL_REFUSE(f, ...)   (CPL_FAULT(f, __VA_ARGS__), (f)->refused = true)
#define CPL_SIZES(f, tensor) cpl_matrix_sizes((f)->r->pool, tensor)

/* Returns whether the table has the family of the checkpoint. */
static inline bool cpl_family_is_listed(const cpl_layer_builder *f)
{
    return f->r->config->family != NULL;
}

static inline const cpl_name_pattern *cpl_gate_pattern(const cpl_layer_builder *f)
{
    return &f->form;
}

/* Returns whether there is one tensor for each expert. */
static inline bool cpl_gate_each(const cpl_layer_builder *f)
{
    return cpl_gate_pattern(f)->hole < cpl_gate_pattern(f)->length;
}

/* Returns whether the tensor is the matrix itself, not a scale or a bias. */
static inline bool cpl_name_match_holds_numbers(const cpl_name_match *match)
{
    return match->ending == CPL_ENDING_WEIGHT || match->ending == CPL_ENDING_BLOCKS ||
           match->ending == CPL_ENDING_PACKED || match->ending == CPL_ENDING_METHOD;
}

/* Returns a flag of the family on the layout of its safetensors. GGUF files have one layout. */
static inline bool cpl_fit_flag(const cpl_layer_builder *f, cpl_family_flag flag)
{
    return !f->r->config->is_gguf && cpl_moe_config_flag(f->r->config, flag);
}

/* Sets n, d and whether the router is [d,n]. Router and first gate must have been read. */
void cpl_fit_router(cpl_layer_builder *f);

/* Sets l and the projection: the one with a known name, if gates of l numbers follow it, or the
 * only tensor [l,d] of the layer. Returns false, with a fault, if the gates need one that is
 * missing. */
bool cpl_fit_projection(cpl_layer_builder *f);

/* Sets layout, width and D. Returns false, with a fault, if the tensors do not fit. */
bool cpl_fit_gates(cpl_layer_builder *f);

#endif /* CPL_INSPECT_FAMILIES_INTERNAL_H */
