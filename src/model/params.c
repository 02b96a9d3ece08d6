/* params.c - see params.h */
#include "model/params.h"

#include <stdio.h>

typedef enum owner { MODEL, LAYER, EXPERTS } owner;
typedef enum init { NORMAL, ONES } init;
typedef enum size { SIZE_1, SIZE_V, SIZE_d, SIZE_D, SIZE_KV, SIZE_N } size;

typedef struct row {
    const char *field;
    owner owner;
    init init;
    const char *hub;
    size rows, cols;
    size_t offset;
} row;

#define OFFSET_MODEL(field)   offsetof(cpl_params, field)
#define OFFSET_LAYER(field)   offsetof(cpl_layer_params, field)
#define OFFSET_EXPERTS(field) offsetof(cpl_layer_params, field)
#define CPL_PARAM(field, owner, init, hub, rows, cols)                                             \
    {#field, owner, init, hub, SIZE_##rows, SIZE_##cols, OFFSET_##owner(field)},
static const row list[] = {
#include "model/params.def"
};
#undef CPL_PARAM

enum { N_ROWS = sizeof list / sizeof *list };

int64_t cpl_model_kv_width(const cpl_model_settings *c)
{
    return c->d_model / c->n_heads * c->n_kv_heads;
}

static int64_t size_of(const cpl_model_settings *c, size s)
{
    switch (s) {
    case SIZE_V:
        return c->vocab_size;
    case SIZE_d:
        return c->d_model;
    case SIZE_D:
        return c->d_expert;
    case SIZE_KV:
        return cpl_model_kv_width(c);
    case SIZE_N:
        return c->n_experts;
    case SIZE_1:
        break;
    }
    return 1;
}

/* Lines of the list that stand before the layers' ones, inside, and behind. */
static int first_layer_row(void)
{
    int i = 0;
    while (list[i].owner == MODEL) i++;
    return i;
}

static int last_layer_row(void)
{
    int i = N_ROWS - 1;
    while (list[i].owner == MODEL) i--;
    return i;
}

int64_t cpl_params_count(const cpl_model_settings *config)
{
    int in_layer = last_layer_row() - first_layer_row() + 1;
    return config->n_layers * in_layer + (N_ROWS - in_layer) - (config->tied ? 1 : 0);
}

cpl_param cpl_params_at(const cpl_model_settings *config, int64_t i)
{
    int first = first_layer_row(), in_layer = last_layer_row() - first + 1;
    int64_t layer = -1, behind = first + config->n_layers * in_layer;
    int at = (int)i;
    CPL_ASSERT(i >= 0 && i < cpl_params_count(config));
    if (i >= behind) {
        at = first + in_layer + (int)(i - behind);
    } else if (i >= first) {
        layer = (i - first) / in_layer;
        at    = first + (int)((i - first) % in_layer);
    }
    const row *r = &list[at];
    int64_t rows = size_of(config, r->rows);
    int64_t cols = size_of(config, r->cols);
    cpl_param p  = {r->field,  r->hub, layer,    r->owner == EXPERTS, r->init == ONES, at,
                    r->offset, 0,      {1, 1, 1}};
    if (r->owner == EXPERTS) p.shape[p.rank++] = config->n_experts;
    p.shape[p.rank++] = rows;
    if (r->cols != SIZE_1) p.shape[p.rank++] = cols;
    return p;
}

cpl_tensor *cpl_params_tensor(cpl_params *set, const cpl_param *param)
{
    char *base = param->layer < 0 ? (char *)set : (char *)&set->layer[param->layer];
    return (cpl_tensor *)(void *)(base + param->offset);
}

void cpl_param_name(char out[128], const cpl_param *p, int64_t expert)
{
    if (p->layer < 0)
        snprintf(out, 128, "%s", p->hub);
    else if (p->per_expert)
        snprintf(out, 128, "model.layers.%lld.mlp.experts.%lld.%s", (long long)p->layer,
                 (long long)expert, p->hub);
    else
        snprintf(out, 128, "model.layers.%lld.%s", (long long)p->layer, p->hub);
}

void cpl_params_take(cpl_params *set, cpl_arena *arena, const cpl_model_settings *config,
                     cpl_dtype dtype)
{
    cpl_layer_params unseen = {0};
    cpl_layer_params *layers =
        cpl_arena_take(arena, (size_t)config->n_layers * sizeof(cpl_layer_params));
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p  = cpl_params_at(config, i);
        cpl_tensor t = {NULL, dtype, p.rank, {p.shape[0], p.shape[1], p.shape[2], 1}};
        t.data       = cpl_arena_take(arena, cpl_tensor_bytes(t));
        set->layer   = layers ? layers : &unseen; /* while measuring there is no array */
        if (!layers && p.layer > 0) p.layer = 0;
        *cpl_params_tensor(set, &p) = t;
    }
    set->layer = layers;
    if (config->tied) set->head = set->embed;
}

int64_t cpl_params_numbers(const cpl_model_settings *config)
{
    int64_t total = 0;
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p = cpl_params_at(config, i);
        total += p.shape[0] * p.shape[1] * p.shape[2];
    }
    return total;
}

/* In double, which cannot run over where the count in integers would. */
static cpl_status check_size(const cpl_model_settings *c)
{
    static const double most = 0x1p50; /* numbers; four pebibytes in F32 */
    double d = (double)c->d_model, layers = (double)c->n_layers, n = (double)c->n_experts;
    double numbers = 2.0 * (double)c->vocab_size * d +
                     layers * (4.0 * d * d + n * d + 3.0 * n * (double)c->d_expert * d);
    if (numbers <= most) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "the model.* sizes make %.3g parameters, which no machine can hold", numbers);
}

cpl_status cpl_model_settle(cpl_model_settings *c)
{
    if (c->n_kv_heads == CPL_UNSET) c->n_kv_heads = c->n_heads;
    if (c->vocab_size == CPL_UNSET)
        return CPL_FAIL(CPL_ERR_INPUT, "model.vocab_size is not set and no tokenizer gives it");
    if (c->top_k > c->n_experts)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.num_experts_per_tok is %lld, but there are only %lld experts "
                        "(model.num_experts)",
                        (long long)c->top_k, (long long)c->n_experts);
    if (c->d_model % c->n_heads != 0 || c->d_model / c->n_heads % 2 != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.hidden_size %lld does not divide into %lld heads of an even width "
                        "(model.num_attention_heads)",
                        (long long)c->d_model, (long long)c->n_heads);
    if (c->n_heads % c->n_kv_heads != 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.num_key_value_heads %lld does not divide the %lld heads of "
                        "model.num_attention_heads",
                        (long long)c->n_kv_heads, (long long)c->n_heads);
    return check_size(c);
}
