/* router.h - what each kind of router (model.router) has and allows, as a table (routers.def).
 *
 * Room:   model. Code asks for a trait, not for a kind: a new kind is a row of routers.def and, if
 *         its scores are new, a case in moe.c. */
#ifndef CPL_MODEL_ROUTER_H
#define CPL_MODEL_ROUTER_H

#include <stdbool.h>

#include "model/settings.h"

typedef enum cpl_router_scores {
    CPL_SCORES_SOFTMAX,
    CPL_SCORES_SIGMOID,
    CPL_SCORES_NORMS
} cpl_router_scores;

typedef struct cpl_router_traits {
    const char *name, *description;
    cpl_router_scores scores;
    bool has_rows, allows_z, allows_bias, is_olmoe;
} cpl_router_traits;

/* What a loss or a setting needs of a router. */
typedef enum cpl_router_need {
    CPL_NEEDS_NOTHING,
    CPL_NEEDS_ROWS,      /* has_rows */
    CPL_NEEDS_LOGSUMEXP, /* allows_z */
    CPL_NEEDS_SOFTMAX    /* softmax scores of router rows */
} cpl_router_need;

/* The traits of the model's router. */
const cpl_router_traits *cpl_router_of(const cpl_model_settings *model);

bool cpl_router_meets(const cpl_model_settings *model, cpl_router_need need);

/* The value of model.router with this name; -1 if there is none. */
int cpl_router_find(const char *name);

/* All names for a sentence, `"softmax", "sigmoid" and "aoe"`, into `out`, which is returned. */
const char *cpl_router_names(char out[160]);

/* "sigmoid router with biases", "Autonomy-of-Experts of rank 3", into `out`, which is returned. */
const char *cpl_router_describe(char out[96], const cpl_model_settings *model);

/* Rank of the factorised gates that give the scores; 0 where a router does. */
int64_t cpl_router_gate_rank(const cpl_model_settings *model);

#endif /* CPL_MODEL_ROUTER_H */
