/* text_json.c - see show.h */
#include "inspect/show/show.h"

#include "io/json.h"

/* Holds the state of the conversion to JSON. */
typedef struct maker {
    const cpl_routing_report *r;
    bool failed; /* memory is not available */
} maker;

static json_t *integer(int64_t value)
{
    return json_integer((json_int_t)value);
}

static void put_member(maker *m, json_t *object, const char *key, json_t *value)
{
    cpl_json_put(&m->failed, object, key, value);
}

static void add(maker *m, json_t *array, json_t *value)
{
    cpl_json_add(&m->failed, array, value);
}

static json_t *integers(maker *m, const int64_t *values, int64_t n)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++) add(m, array, integer(values[i]));
    return array;
}

static json_t *numbers(maker *m, const double *values, int64_t n)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++) add(m, array, cpl_json_number(values[i]));
    return array;
}

/* Lists values[i] / of[i], or values[i] / of[0] without `each`. */
static json_t *shares(maker *m, const int64_t *values, int64_t n, const int64_t *of, bool each)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++)
        add(m, array, cpl_json_number((double)values[i] / (double)of[each ? i : 0]));
    return array;
}

/* ---- a layer ---- */

static void put_load(maker *m, json_t *object, int64_t layer)
{
    const cpl_routing_layer *l = &m->r->layers[layer];
    const int64_t n = m->r->n_experts, all = m->r->texts.n_predictions * m->r->top_k;
    put_member(m, object, "load", shares(m, l->assignments, n, &all, false));
    put_member(m, object, "weight", numbers(m, l->mean_weight, n));
}

static void put_together(maker *m, json_t *object, const cpl_routing_layer *l)
{
    const int64_t n  = m->r->n_experts;
    json_t *together = json_array(), *pairs = json_array();
    for (int64_t i = 0; i < n; i++) add(m, together, integers(m, l->together + i * n, n));
    for (int k = 0; k < l->n_pairs; k++) {
        const cpl_routing_pair *p = &l->pairs[k];
        json_t *pair              = json_object();
        put_member(m, pair, "experts", json_pack("[I,I]", (json_int_t)p->i, (json_int_t)p->j));
        put_member(m, pair, "tokens", integer(p->tokens));
        put_member(m, pair, "expected", cpl_json_number(p->expected));
        add(m, pairs, pair);
    }
    put_member(m, object, "together", together);
    put_member(m, object, "pairs", pairs);
}

/* Puts the shares of a domain's assignments by expert, and of an expert's assignments by domain. */
static void put_domains(maker *m, json_t *object, int64_t layer)
{
    const cpl_routing_layer *l = &m->r->layers[layer];
    const int64_t n            = m->r->n_experts;
    json_t *by_expert = json_array(), *by_domain = json_array();
    for (int64_t s = 0; s < m->r->texts.sources.count; s++) {
        int64_t all = m->r->source_tokens[s] * m->r->top_k;
        add(m, by_expert, shares(m, l->by_source + s * n, n, &all, false));
        add(m, by_domain, shares(m, l->by_source + s * n, n, l->assignments, true));
    }
    json_t *domains = json_object_get(object, "domains");
    put_member(m, domains, "by_expert", by_expert);
    put_member(m, domains, "by_domain", by_domain);
}

/* Lists the rows of M_tok. The row of an expert without a token is null. */
static json_t *matrix(maker *m, const cpl_routing_layer *l)
{
    const int64_t n = m->r->n_experts;
    json_t *rows    = json_array();
    for (int64_t i = 0; i < n; i++) {
        json_t *row = l->routed[i] ? json_array() : json_null();
        for (int64_t j = 0; l->routed[i] && j < n; j++)
            add(m, row, cpl_json_number((double)l->M_tok[i * n + j]));
        add(m, rows, row);
    }
    return rows;
}

static json_t *layer(maker *m, int64_t index)
{
    const cpl_routing_layer *l = &m->r->layers[index];
    json_t *object             = json_object();
    put_member(m, object, "layer", integer(index));
    cpl_routing_columns_json(&m->failed, object, m->r, index);
    put_load(m, object, index);
    put_together(m, object, l);
    put_domains(m, object, index);
    put_member(m, object, "token_mean", numbers(m, l->token_mean, m->r->d_model));
    if (l->M)
        put_member(m, json_object_get(object, "mean_token"), "curve",
                   numbers(m, l->curve, m->r->n_experts));
    json_t *tokens_M = json_object_get(object, "tokens_M");
    put_member(m, tokens_M, "routed", integers(m, l->routed, m->r->n_experts));
    put_member(m, tokens_M, "M", matrix(m, l));
    return object;
}

/* ---- the whole ---- */

static json_t *sources(maker *m)
{
    json_t *array = json_array();
    for (int64_t s = 0; s < m->r->texts.sources.count; s++) {
        json_t *source = json_object();
        put_member(m, source, "source", cpl_json_words(m->r->texts.sources.at[s]));
        put_member(m, source, "tokens", integer(m->r->source_tokens[s]));
        add(m, array, source);
    }
    return array;
}

static json_t *saturation(maker *m)
{
    json_t *array = json_array();
    for (int64_t s = 0; s < m->r->n_steps; s++) {
        json_t *step = json_object();
        put_member(m, step, "step", integer(m->r->steps[s].step));
        put_member(m, step, "topk", numbers(m, m->r->steps[s].topk, m->r->n_layers));
        put_member(m, step, "top1", numbers(m, m->r->steps[s].top1, m->r->n_layers));
        add(m, array, step);
    }
    return array;
}

/* Lists the figures of the verdict, each with its value by chance. */
static json_t *summary(maker *m)
{
    const cpl_routing_summary s = cpl_routing_summary_of(m->r);
    const double n              = (double)m->r->n_experts;
    const struct {
        const char *key;
        double value;
    } rows[]       = {{"spearman", s.rho},
                      {"spearman_least", s.least},
                      {"spearman_most", s.most},
                      {"spearman_by_chance", 0},
                      {"top1", s.top1},
                      {"top1_by_chance", 1 / n},
                      {"overlap", s.overlap},
                      {"overlap_by_chance", (double)m->r->top_k / n},
                      {"own", s.own}};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put_member(m, object, rows[i].key, cpl_json_number(rows[i].value));
    cpl_routing_means_json(&m->failed, object, m->r);
    return object;
}

json_t *cpl_routing_json(const cpl_routing_report *r)
{
    maker m        = {.r = r};
    json_t *object = json_object(), *layers = json_array();
    const char *state = cpl_routing_state(r);
    cpl_text verdict  = {0};
    cpl_routing_verdict(&verdict, r);
    m.failed = verdict.failed;
    put_member(&m, object, "model", cpl_json_words(r->path));
    put_member(&m, object, "step", r->reader.step < 0 ? json_null() : integer(r->reader.step));
    put_member(&m, object, "tokens", integer(r->texts.n_predictions));
    put_member(&m, object, "documents", integer(r->texts.n_documents));
    put_member(&m, object, "window", integer(r->reader.window));
    put_member(&m, object, "sampled", integer(r->n_sampled));
    put_member(&m, object, "seed", integer((int64_t)r->options.seed));
    put_member(&m, object, "n", integer(r->n_experts));
    put_member(&m, object, "K", integer(r->top_k));
    put_member(&m, object, "sources", sources(&m));
    for (int64_t l = 0; l < r->n_layers; l++) add(&m, layers, layer(&m, l));
    put_member(&m, object, "verdict", cpl_json_words(verdict.bytes ? verdict.bytes : ""));
    put_member(&m, object, "summary", summary(&m));
    put_member(&m, object, "state", state ? json_string(state) : json_null());
    put_member(&m, object, "layers", layers);
    put_member(&m, object, "saturation", saturation(&m));
    put_member(&m, object, "checkpoints_lost", integer(r->n_lost));
    cpl_text_free(&verdict);
    if (!m.failed) return object;
    json_decref(object);
    return NULL;
}
