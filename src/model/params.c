/* params.c - see params.h */
#include "model/params.h"

#include <stdio.h>

typedef enum owner { MODEL, LAYER, EXPERTS } owner;
typedef enum when { ALWAYS, UNTIED, ROUTER, AOE, MPI, BIAS, LATENT, SHARED } when;
typedef enum size { SIZE_1, SIZE_V, SIZE_d, SIZE_D, SIZE_KV, SIZE_N, SIZE_r, SIZE_S, SIZE_l } size;

typedef struct row {
    const char *field;
    owner owner;
    when when;
    cpl_param_init init;
    int stream;
    const char *hub;
    size rows, cols;
    size_t offset;
} row;

#define OFFSET_MODEL(field)   offsetof(cpl_params, field)
#define OFFSET_LAYER(field)   offsetof(cpl_layer_params, field)
#define OFFSET_EXPERTS(field) offsetof(cpl_layer_params, field)
#define CPL_PARAM(field, owner, when, init, stream, hub, rows, cols)                               \
    {#field, owner,       when,        CPL_INIT_##init,      stream,                               \
     hub,    SIZE_##rows, SIZE_##cols, OFFSET_##owner(field)},
static const row list[] = {
#include "model/params.def"
};
#undef CPL_PARAM

enum { N_ROWS = sizeof list / sizeof *list };

int64_t cpl_model_kv_width(const cpl_model_settings *c)
{
    return c->d_model / c->n_heads * c->n_kv_heads;
}

int64_t cpl_model_expert_input(const cpl_model_settings *c)
{
    return c->d_latent ? c->d_latent : c->d_model;
}

int64_t cpl_model_shared_width(const cpl_model_settings *c)
{
    return c->n_shared * c->d_expert;
}

bool cpl_model_is_olmoe(const cpl_model_settings *c)
{
    return cpl_router_of(c)->is_olmoe && c->n_shared == 0 && c->d_latent == 0;
}

int64_t cpl_model_aoe_rank(int64_t d_model, int64_t d_expert)
{
    const int64_t sum = d_model + d_expert, rank = (2 * d_model * d_expert + sum) / (2 * sum);
    return rank < 1 ? 1 : rank;
}

/* Returns whether the model's experts have factorised gates. */
static bool factorised(const cpl_model_settings *c)
{
    return cpl_router_of(c)->scores == CPL_SCORES_NORMS;
}

static bool has(const cpl_model_settings *c, when which)
{
    const bool of[] = {
        [ALWAYS] = true,
        [UNTIED] = !c->tied,
        [ROUTER] = cpl_router_of(c)->has_rows,
        [AOE]    = factorised(c),
        [MPI]    = cpl_router_of(c)->iterates,
        [BIAS]   = c->router_bias,
        [LATENT] = c->d_latent > 0,
        [SHARED] = c->n_shared > 0,
    };
    return of[which];
}

static int64_t size_of(const cpl_model_settings *c, size s)
{
    const int64_t of[] = {
        [SIZE_1]  = 1,
        [SIZE_V]  = c->vocab_size,
        [SIZE_d]  = c->d_model,
        [SIZE_D]  = c->d_expert,
        [SIZE_KV] = cpl_model_kv_width(c),
        [SIZE_N]  = c->n_experts,
        [SIZE_r]  = c->aoe_rank,
        [SIZE_S]  = cpl_model_shared_width(c),
        [SIZE_l]  = cpl_model_expert_input(c),
    };
    return of[s];
}

/* The rows of params.def that the model has, in order, and their number before the layers, in each
 * layer, and after the layers. */
typedef struct lines {
    const row *at[N_ROWS];
    int64_t count[3];
} lines;

static lines lines_of(const cpl_model_settings *c)
{
    lines all = {0};
    int n = 0, part = 0;
    for (const row *r = list; r < list + N_ROWS; r++) {
        if ((r->owner == MODEL) == (part == 1)) part++;
        if (!has(c, r->when)) continue;
        all.at[n++] = r;
        all.count[part]++;
    }
    CPL_ASSERT(part == 2);
    return all;
}

static int64_t count_of(const lines *all, const cpl_model_settings *c)
{
    return all->count[0] + c->n_layers * all->count[1] + all->count[2];
}

int64_t cpl_params_count(const cpl_model_settings *config)
{
    const lines all = lines_of(config);
    return count_of(&all, config);
}

/* Returns whether the parameter follows from others and is not trained. */
static bool is_derived(const cpl_model_settings *c, const row *r)
{
    return r->owner == LAYER && r->offset == offsetof(cpl_layer_params, router) &&
           cpl_router_of(c)->iterates;
}

cpl_param cpl_params_at(const cpl_model_settings *config, int64_t i)
{
    const lines all     = lines_of(config);
    const int64_t first = all.count[0], each = all.count[1], last = first + config->n_layers * each;
    const bool in_layer = i >= first && i < last;
    CPL_ASSERT(i >= 0 && i < count_of(&all, config));
    const row *r = all.at[i < first  ? i
                          : in_layer ? first + (i - first) % each
                                     : first + each + i - last];
    cpl_param p  = {.field      = r->field,
                    .hub        = r->hub,
                    .layer      = in_layer ? (i - first) / each : -1,
                    .per_expert = r->owner == EXPERTS,
                    .init       = r->init,
                    .stream     = r->stream,
                    .offset     = r->offset,
                    .shape      = {1, 1, 1}};
    if (is_derived(config, r)) p.init = CPL_INIT_ZEROS;
    if (r->owner == EXPERTS) p.shape[p.rank++] = cpl_model_local_experts(config);
    p.shape[p.rank++] = size_of(config, r->rows);
    if (r->cols != SIZE_1) p.shape[p.rank++] = size_of(config, r->cols);
    if (p.per_expert) p.begin = config->first_expert * p.shape[1] * p.shape[2];
    return p;
}

bool cpl_param_trains(const cpl_param *param)
{
    return param->init != CPL_INIT_ZEROS;
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

bool cpl_param_is_router(const cpl_param *param)
{
    return param->layer >= 0 && (param->offset == offsetof(cpl_layer_params, router) ||
                                 param->offset == offsetof(cpl_layer_params, router_original));
}

cpl_tensor cpl_params_trained_router(const cpl_layer_params *set)
{
    return cpl_tensor_is_there(set->router_original) ? set->router_original : set->router;
}

bool cpl_param_has_copy(const cpl_param *param)
{
    return param->init == CPL_INIT_NORMAL && !cpl_param_is_router(param);
}

/* Takes a whole set. With `rest`, takes only the tensors for which has_copy equals have_copy, and
 * copies the others from `rest`. */
static void take_set(cpl_params *set, cpl_tensor_arena *arena, const cpl_model_settings *config,
                     cpl_dtype dtype, bool have_copy, cpl_params *rest)
{
    cpl_layer_params unseen = {0};
    cpl_layer_params *layers =
        cpl_tensor_take_host(arena, (size_t)config->n_layers * sizeof(cpl_layer_params));
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p  = cpl_params_at(config, i);
        cpl_tensor t = {NULL, dtype, p.rank, {p.shape[0], p.shape[1], p.shape[2], 1}};
        if (!rest || cpl_param_has_copy(&p) == have_copy)
            t = cpl_tensor_take(arena, t);
        else if (layers)
            t = *cpl_params_tensor(rest, &p);
        set->layer = layers ? layers : &unseen; /* there is no array while measuring */
        if (!layers && p.layer > 0) p.layer = 0;
        *cpl_params_tensor(set, &p) = t;
    }
    set->layer = layers;
    if (config->tied) set->head = set->embed;
}

void cpl_params_take(cpl_params *set, cpl_tensor_arena *arena, const cpl_model_settings *config,
                     cpl_dtype dtype)
{
    take_set(set, arena, config, dtype, true, NULL);
}

void cpl_params_take_some(cpl_params *set, cpl_tensor_arena *arena,
                          const cpl_model_settings *config, cpl_dtype dtype, bool have_copy,
                          cpl_params *rest)
{
    take_set(set, arena, config, dtype, have_copy, rest);
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

int64_t cpl_params_active(const cpl_model_settings *config)
{
    int64_t idle = 0;
    for (int64_t i = 0; i < cpl_params_count(config); i++) {
        cpl_param p = cpl_params_at(config, i);
        if (p.per_expert && p.offset != offsetof(cpl_layer_params, w_gate_a))
            idle += (config->n_experts - config->top_k) * p.shape[1] * p.shape[2];
    }
    return cpl_params_numbers(config) - idle;
}

static double gate_factors(const cpl_model_settings *c)
{
    if (!factorised(c)) return 0;
    return (double)c->n_experts * (double)c->aoe_rank * (double)(c->d_model + c->d_expert);
}

/* Counts the parameters in double, since a count in integers could overflow. */
static cpl_status check_size(const cpl_model_settings *c)
{
    static const double most = 0x1p50; /* numbers; they take four pebibytes in F32 */
    double d = (double)c->d_model, layers = (double)c->n_layers, n = (double)c->n_experts;
    double latent = (double)c->d_latent, input = (double)cpl_model_expert_input(c);
    double experts = 3.0 * (double)c->d_expert * (n * input + (double)c->n_shared * d);
    double numbers = 2.0 * (double)c->vocab_size * d +
                     layers * (4.0 * d * d + n * d + 2.0 * latent * d + gate_factors(c) + experts);
    if (numbers <= most) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT,
                    "the model.* sizes make %.3g parameters, more than the limit of 2^50", numbers);
}

static cpl_status check_router(const cpl_model_settings *c)
{
    if (c->router_bias && !cpl_router_of(c)->allows_bias)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.router_bias is true, but model.router is %s, which has no bias: "
                        "model.router=sigmoid has one",
                        cpl_router_of(c)->name);
    if (c->aoe_rank != CPL_UNSET && !factorised(c))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.aoe_rank is %lld, but model.router is %s: only aoe has factorised "
                        "gates",
                        (long long)c->aoe_rank, cpl_router_of(c)->name);
    if (c->aoe_init_std > 0 && !factorised(c))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.aoe_initializer_range is %g, but model.router is %s: only aoe has "
                        "factorised gates",
                        c->aoe_init_std, cpl_router_of(c)->name);
    if (c->router_scale != 1 && !cpl_router_of(c)->iterates)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.router_scale is %g, but model.router is %s: only mpi has a scale",
                        c->router_scale, cpl_router_of(c)->name);
    return CPL_OK;
}

static cpl_status check_latent(const cpl_model_settings *c)
{
    if (c->d_latent > c->d_model)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.latent_dim is %lld, but model.hidden_size is %lld: latent experts "
                        "read at most as many numbers",
                        (long long)c->d_latent, (long long)c->d_model);
    if (c->d_latent && (factorised(c) || cpl_router_of(c)->iterates))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "model.latent_dim is %lld, but model.router is %s, whose gates read the "
                        "token itself: use model.router=softmax, or leave model.latent_dim at 0",
                        (long long)c->d_latent, cpl_router_of(c)->name);
    return CPL_OK;
}

cpl_status cpl_model_resolve(cpl_model_settings *c)
{
    if (factorised(c) && c->aoe_rank == CPL_UNSET)
        c->aoe_rank = cpl_model_aoe_rank(c->d_model, c->d_expert);
    if (c->n_kv_heads == CPL_UNSET) c->n_kv_heads = c->n_heads;
    if (c->vocab_size == CPL_UNSET)
        return CPL_FAIL(CPL_ERR_INPUT, "model.vocab_size is not set and no tokenizer gives it: set "
                                       "model.vocab_size, for example "
                                       "to 50304");
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
    CPL_TRY(check_router(c));
    CPL_TRY(check_latent(c));
    return check_size(c);
}
