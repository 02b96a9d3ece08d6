/* families.h - routers and experts' gates of published MoE checkpoints.
 *
 * Room:    inspect/families. The list of families is families.def, once: to add a family is to add
 *          a row. The room opens and reads no file, and calls functions of base alone
 *          (tools/check_layers.py).
 * Names:   n experts, d model width, D expert width, K experts a token; the gate of expert j is the
 *          matrix W_g^j [D,l] whose output enters the activation function. l = d, but for latent
 *          experts, which read W_l x: W_l [l,d] is the projection.
 * Source:  docs/formats.md, "Published MoE checkpoints". Shapes are the authority: n and d are the
 *          router's, D the gate's; config.json gives K and the family's name. */
#ifndef CPL_INSPECT_FAMILIES_FAMILIES_H
#define CPL_INSPECT_FAMILIES_FAMILIES_H

#include "checkpoint/stored.h"

/* Describes a stored tensor and its scales: number (r,c) is multiplied by
 * scale[r / block_rows][c / block_cols]. */
typedef struct cpl_stored_matrix {
    const cpl_stored *weight;
    cpl_format format;       /* format of the numbers: weight->format, or the scheme's format of the
                                bytes (gpt-oss's U8 blocks: F4_PAIR) */
    const cpl_stored *scale; /* may be NULL */
    cpl_format scale_format;
    int64_t block_rows, block_cols; /* numbers that share a scale */
} cpl_stored_matrix;

typedef enum cpl_gate_layout {
    CPL_GATE_PER_EXPERT, /* a matrix [D,d] for each expert (GGUF's and Grok-2's slices included) */
    CPL_GATE_ROWS,   /* one tensor [n,A,d] (also flat, [n A,d]), or one [A,d] for each expert; the
                            gate is among the A rows */
    CPL_GATE_COLUMNS /* one tensor [n,d,A], or one [d,A] for each expert; the gate is among the A
                            columns */
} cpl_gate_layout;

/* Describes one MoE layer, also one that cannot be measured. */
typedef struct cpl_moe_layer {
    const char *part;   /* "encoder", "decoder", or "" */
    const char *prefix; /* prefix of its tensors' names: "model.layers.3." */
    int64_t layer;      /* number of the layer in the prefix */
    const char *skip;   /* reason why the layer has no figures, or NULL: "hash-routed: ..." */
    const char *fault;  /* a sentence that names file and tensor, or NULL */
    bool refused;       /* the fault concerns the whole checkpoint */
    const char *note;   /* a remark for the reader, or NULL: "its experts have no gate: ..." */
    bool comparable;    /* router and experts read the same vector: M has a meaning */
    bool biased;        /* the router or the gates have biases, which are left out */

    int64_t n, d, l, D;
    int64_t K;                /* 0 if the config does not have it */
    int64_t extra_rows;       /* rows of the router that belong to no expert, left out */
    cpl_stored_matrix router; /* [n + extra_rows, d], or its transpose */
    bool router_transposed;

    cpl_stored_matrix projection; /* W_l [l,d]; its weight is NULL if the experts read d numbers */
    bool projection_by_shape; /* no known name, but the only tensor of the layer with its shape */
    cpl_stored_matrix latent_norm; /* w [l] of the norm (1 + w) v / sqrt(mean(v^2) + latent_eps) of
                                      v = W_l x; its weight is NULL without a norm */
    double latent_eps;

    cpl_gate_layout layout;
    int64_t width;                     /* A; equal to D if the gates have the tensor alone */
    bool interleaved;                  /* the gate is every second of the A, the first included */
    bool second;                       /* the gate is the last D of A, not the first D */
    const cpl_stored_matrix *matrices; /* (n_matrices) */
    int64_t n_matrices;                /* n, or 1 for a stack */
} cpl_moe_layer;

typedef struct cpl_moe_map {
    const char *family;    /* the model_type: "mixtral"; for GGUF the first of the row; "" if it is
                              not given */
    const char *title;     /* title for sentences: "Mixtral"; if unlisted, the model_type, or
                              "family not given" */
    bool guessed;          /* no row has the model type: read by the rules of names and shapes */
    const char *guess;     /* if guessed, a sentence on the tensors used as router and gates */
    cpl_moe_layer *layers; /* (n_layers), by part (encoder first), then by number */
    int64_t n_layers;
    int64_t n_dense; /* layers without routed experts */
    int64_t n_mtp;   /* multi-token-prediction layers, left out */
    char **notes;    /* (n_notes) sentences on the whole checkpoint: differences of shapes
                             and config, ... */
    int64_t n_notes;
    const char **faults; /* (n_faults) all faults as sentences: the map's, then those of refused
                            layers, then those of the others */
    int64_t n_faults;
    void *memory; /* inner: owns all of the above */
} cpl_moe_map;

/* Holds the configuration of a checkpoint. */
typedef struct cpl_moe_document {
    const json_t *json; /* config.json, or the metadata of a GGUF file; may be NULL */
    bool is_gguf;
    const char *path; /* the checkpoint's, for sentences */
} cpl_moe_document;

/* Sets `map` from the document, and from names, types and shapes of (count) tensors, which must
 * outlive it. The members name, type_name, format, rank, shape, n_elements, path, fault, slice and
 * n_slices of a tensor are used. A fault of one layer is also the `fault` of the layer, and the map
 * is set. Fails with CPL_ERR_INPUT, and a map of `faults` alone, which must be freed, if there are
 * no MoE layers, if a part of the model has a layer twice, if the tensors are the moments of an
 * optimizer, if the quantisation cannot be read (the sentence names it), or if names, shapes and
 * config do not decide between two readings. */
CPL_NODISCARD cpl_status cpl_moe_map_make(cpl_moe_map *map, const cpl_stored tensors[],
                                          int64_t count, const cpl_moe_document *document);
void cpl_moe_map_free(cpl_moe_map *map); /* the map may be all zero */

/* Fails with CPL_ERR_INPUT and a sentence of up to three of the faults, of which there must be one
 * or more, and the number of the others. */
CPL_NODISCARD cpl_status cpl_moe_faults_fail(const char *const faults[], int64_t n_faults);

/* Lists facts of a family that names and shapes of its tensors do not give. */
typedef enum cpl_family_flag {
    /* the router has further rows, for experts that compute nothing; n is the config's */
    CPL_FLAG_ZERO_EXPERTS = 1 << 0,
    /* the router has further rows, for shared experts */
    CPL_FLAG_SHARED_ROWS = 1 << 1,
    /* the second half of the experts, and the second numbers of lists in the config, are for
     * pictures; the router is stored [d,n] if shapes do not decide */
    CPL_FLAG_VISION_HALF = 1 << 2,
    /* matrices may be stored [in,out], and so is the router if shapes do not decide and gate and up
     * share a tensor */
    CPL_FLAG_TRANSPOSED = 1 << 3,
    /* a tensor may be cut along its rows over several files */
    CPL_FLAG_SLICES = 1 << 4,
    /* router and experts read different vectors */
    CPL_FLAG_NOT_COMPARABLE = 1 << 5,
    /* the router's bias enters the choice of experts only: no bias of M */
    CPL_FLAG_CHOICE_BIAS = 1 << 6,
    /* recognised by a config without model_type that has `moe` */
    CPL_FLAG_NO_CONFIG = 1 << 7,
} cpl_family_flag;

/* Holds a row of the table, for help and for copies in other languages. */
typedef struct cpl_family {
    const char *model_types; /* separated by spaces; the first is the family's name */
    const char *title;
    const char *gguf;   /* general.architecture of its GGUF files, separated by spaces */
    const char *router; /* suffixes after the layer's prefix, separated by spaces */
    const char *gate;   /* suffixes of the gates, with layouts; {e} is the expert's number */
    unsigned flags;     /* cpl_family_flag, joined by | */
} cpl_family;

extern const cpl_family cpl_families[];
extern const int64_t cpl_n_families;

#endif /* CPL_INSPECT_FAMILIES_FAMILIES_H */
