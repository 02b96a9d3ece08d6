/* names.h - what a tensor's name says: layer, router or gate, expert, kind of numbers.
 *
 * Room:    inspect/families, inside the families room.
 * Source:  docs/formats.md, "Names and shapes"; the names themselves are in families.def. */
#ifndef CPL_INSPECT_FAMILIES_NAMES_H
#define CPL_INSPECT_FAMILIES_NAMES_H

#include "base/arena.h"
#include "inspect/families/families.h"

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
    size_t hole;    /* where {e} is in it; == length: nowhere */
    bool any_block; /* a star was before it */
    bool router;
    char mark; /* '+', '-' or 0 */
} cpl_name_pattern;

typedef struct cpl_name_patterns {
    cpl_name_pattern
        *all;       /* (count) those of the family first, then those of all families, each once */
    int count, own; /* own: those of the family */
} cpl_name_patterns;

/* What one tensor is in its layer. */
typedef struct cpl_name_match {
    int pattern;
    int64_t expert;     /* 0 where the pattern has no {e} */
    const char *digits; /* of the expert's number in the name; NULL: none */
    cpl_ending ending;
    const char *method; /* of CPL_ENDING_METHOD */
    const cpl_stored *tensor;
} cpl_name_match;

/* Splits at the layer's number: `prefix` bytes of the name end after "layers.3.". False where the
 * tensor is in no layer. */
bool cpl_name_layer(const char *name, size_t *prefix, int64_t *layer);

bool cpl_name_is_mtp(const char *name);
bool cpl_name_is_text(const char *name); /* of the text model: not vision, audio, ... */

/* Why a layer with this tensor has no figures; NULL: nothing against it. */
const char *cpl_name_unmeasured(const char *suffix);
bool cpl_name_projects(const char *suffix); /* what the experts read is projected before */

/* The names to look for; `family` may be NULL. Without memory `count` is 0. */
cpl_name_patterns cpl_name_patterns_make(cpl_pool *pool, const cpl_family *family);

/* The first family of the table that lets gate and up take turns in tensors with the names of this
 * router and this gate; NULL: none does. */
const cpl_family *cpl_name_patterns_in_turns(const cpl_name_pattern *router,
                                             const cpl_name_pattern *gate);

/* Whether the tensor with this name after its layer's prefix is a router's or a gate's. */
bool cpl_name_patterns_find(cpl_name_match *match, const cpl_name_patterns *patterns,
                            const char *suffix);

/* Whether `word` is one of those in `words`, which are separated by spaces. */
bool cpl_words_have(const char *words, const char *word);

#endif /* CPL_INSPECT_FAMILIES_NAMES_H */
