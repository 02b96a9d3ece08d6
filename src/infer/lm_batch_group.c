/* lm_batch_group.c - see internal.h */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/internal.h"

/* ---- a pass over new tokens ---- */

cpl_status cpl_lm_batch_more_keys(cpl_lm_batch *a, int64_t count, int32_t **at)
{
    const int64_t need = a->list.n_keys + count;
    if (need > a->list.key_room) {
        const int64_t room = need + need / 2;
        int32_t *grown     = cpl_realloc(a->list.key_row, (size_t)room * sizeof *grown);
        if (!grown) return CPL_ERR_MEMORY;
        a->list.key_row  = grown;
        a->list.key_room = room;
    }
    *at            = a->list.key_row + a->list.n_keys;
    a->list.n_keys = need;
    return CPL_OK;
}

/* Copies the first `count` numbers of a list to the tensor `whole` and returns a view of them. */
static cpl_tensor put_list(cpl_lm_batch *a, cpl_tensor whole, const void *list, int64_t count)
{
    const cpl_tensor part = cpl_tensor_range(whole, 0, count);
    a->model->be->ops->put(a->model->be, part, list);
    return part;
}

/* Runs a pass over the `count` tokens of a->list, with keys in rows first_row ... of the cache and
 * the final rows of the n_picked requests. */
static cpl_status pass_tokens(cpl_lm_batch *a, cpl_pass *pass, int64_t count, int64_t n_segments,
                              int64_t first_row, int64_t n_picked)
{
    const cpl_lm_batch_lists *list = &a->list;
    CPL_TRY(cpl_tensor_reserve(&a->key_rows, a->model->be, CPL_I32, list->key_room));
    cpl_tensor_arena_release(&a->arena, a->mark);
    cpl_pass_take(pass, &a->arena, &a->model->config, 1, count, false, true);
    cpl_pass_select(pass, &a->arena, &a->model->config,
                    put_list(a, a->requests, list->requests, n_picked));
    const cpl_cached cached = {
        .cache     = a->cache,
        .first_row = first_row,
        .position  = put_list(a, a->position, list->position, count),
        .segments  = {.at      = put_list(a, a->segments, list->segment, n_segments),
                      .key_row = put_list(a, a->key_rows, list->key_row, list->n_keys)},
    };
    pass->moe_scratch.exchange = pass->selected_scratch.exchange = a->exchange;
    if (a->exchange) (void)cpl_exchange_meet(a->exchange, true);
    cpl_model_forward(a->model, pass, put_list(a, a->ids, list->ids, count), cpl_tensor_none(),
                      &cached);
    return CPL_OK;
}

/* ---- one group ---- */

int64_t cpl_lm_batch_token(const cpl_lm_batch_group *g, int64_t sequence, int64_t at)
{
    const cpl_node *node = &g->tree.node[g->tree.leaf[sequence]];
    while (at < node->begin) node = &g->tree.node[node->parent];
    return node->before + at - node->begin;
}

void cpl_lm_batch_rows(const cpl_lm_batch_group *g, const cpl_node *node, int64_t end,
                       int32_t *rows)
{
    if (rows != g->a->held_row) memcpy(rows, g->a->held_row, (size_t)g->shared * sizeof *rows);
    rows += g->shared;
    for (;;) {
        for (int64_t i = node->begin; i < end; i++)
            rows[i] = (int32_t)(g->first_row + node->before + i - node->begin);
        if (node->parent < 0) return;
        end  = node->begin;
        node = &g->tree.node[node->parent];
    }
}

/* Appends tokens `from` ... `to - 1` of the tree, all of one node, to the list, which has `count`
 * tokens. */
static cpl_status put_tokens(cpl_lm_batch_group *g, const cpl_node *node, int64_t from, int64_t to,
                             int64_t count, cpl_segment *segment)
{
    cpl_lm_batch *a     = g->a;
    const int64_t begin = node->begin + from - node->before, length = to - from;
    int32_t *rows;
    *segment = (cpl_segment){(int32_t)count, (int32_t)length, (int32_t)a->list.n_keys,
                             (int32_t)(g->shared + begin + length)};
    CPL_TRY(cpl_lm_batch_more_keys(a, segment->n_keys, &rows));
    cpl_lm_batch_rows(g, node, begin + length, rows);
    memcpy(a->list.ids + count, g->tail[node->sequence].ids + begin,
           (size_t)length * sizeof(int32_t));
    for (int64_t i = 0; i < length; i++)
        a->list.position[count + i] = (int32_t)(g->shared + begin + i);
    return CPL_OK;
}

static cpl_status not_finite(void)
{
    return CPL_FAIL(CPL_ERR_INPUT, "a log-probability is not finite: the weights are bad");
}

/* Sets id [count] of the picks: the requested id, or the most likely id of the pick's row of
 * logits. */
static void set_ids(cpl_lm_batch_group *g, cpl_lm_batch_pick *picks, int64_t count,
                    cpl_tensor logits, const int32_t *row, int32_t *id)
{
    cpl_lm_batch *a  = g->a;
    cpl_backend *be  = a->model->be;
    cpl_tensor drawn = cpl_tensor_range(a->pick_id, 0, count);
    bool any         = false;
    for (int64_t k = 0; k < count; k++) {
        if (picks[k].id >= 0) continue;
        any = true;
        be->ops->sample(be, cpl_tensor_range(drawn, k, 1),
                        cpl_tensor_range(cpl_tensor_at(logits, row[k]), 0, g->n_ids), 0, 1, 0);
    }
    if (any) be->ops->get(be, id, drawn);
    for (int64_t k = 0; k < count; k++) {
        if (picks[k].id >= 0)
            id[k] = picks[k].id;
        else
            picks[k].best = id[k];
    }
}

/* Answers `count` picks, at most CPL_LM_BATCH_PICKS. The first pick belongs to row first_row of
 * pass->final. */
static cpl_status answer_some(cpl_lm_batch_group *g, const cpl_pass *pass, cpl_lm_batch_pick *picks,
                              int64_t count, int64_t first_row)
{
    int32_t row[CPL_LM_BATCH_PICKS], id[CPL_LM_BATCH_PICKS];
    float log_prob[CPL_LM_BATCH_PICKS];
    cpl_lm_batch *a = g->a;
    cpl_backend *be = a->model->be;
    int64_t rows    = 0;
    for (int64_t k = 0; k < count; k++) {
        rows += k == 0 || picks[k].token != picks[k - 1].token;
        row[k] = (int32_t)(rows - 1);
    }
    const cpl_tensor logits  = cpl_tensor_range(a->logits, 0, rows);
    const cpl_tensor answers = cpl_tensor_range(a->pick, 0, count);
    cpl_model_logits(a->model, pass, logits, first_row);
    set_ids(g, picks, count, logits, row, id);
    be->ops->log_probs(be, answers, logits, put_list(a, a->pick_row, row, count),
                       put_list(a, a->pick_id, id, count));
    be->ops->get(be, log_prob, answers);
    CPL_TRY(be->ops->sync(be));
    for (int64_t k = 0; k < count; k++) {
        picks[k].log_prob = (double)log_prob[k];
        if (!isfinite(log_prob[k])) return not_finite();
    }
    return CPL_OK;
}

/* Writes the different tokens of picks first ... last - 1 to the requests, relative to `from`.
 * Returns their number. */
static int64_t list_selected(cpl_lm_batch_group *g, int64_t first, int64_t last, int64_t from)
{
    int64_t count = 0;
    for (int64_t i = first; i < last; i++)
        if (i == first || g->picks[i].token != g->picks[i - 1].token)
            g->a->list.requests[count++] = (int32_t)(g->picks[i].token - from);
    return count;
}

cpl_status cpl_lm_batch_answer(cpl_lm_batch_group *g, int64_t from, int64_t to, int64_t n_segments,
                               int64_t first_row, int64_t *next)
{
    cpl_pass pass;
    int64_t end = *next, row = 0;
    while (end < g->n_picks && g->picks[end].token < to) end++;
    CPL_TRY(pass_tokens(g->a, &pass, to - from, n_segments, first_row,
                        list_selected(g, *next, end, from)));
    while (*next < end) {
        const int64_t last = end - *next < CPL_LM_BATCH_PICKS ? end : *next + CPL_LM_BATCH_PICKS;
        while (g->a->list.requests[row] < g->picks[*next].token - from) row++;
        CPL_TRY(answer_some(g, &pass, &g->picks[*next], last - *next, row));
        *next = last;
    }
    return CPL_OK;
}

static cpl_status run_tree(cpl_lm_batch_group *g)
{
    cpl_lm_batch *a = g->a;
    int64_t at = 0, next = 0, node = 0;
    while (at < g->tree.tokens) {
        int64_t to = at, n_segments = 0;
        a->list.n_keys = 0;
        while (to - at < a->settings.chunk && to < g->tree.tokens) {
            const cpl_node *n  = &g->tree.node[node];
            const int64_t end  = n->before + n->end - n->begin;
            const int64_t room = at + a->settings.chunk, stop = end < room ? end : room;
            CPL_TRY(put_tokens(g, n, to, stop, to - at, &a->list.segment[n_segments++]));
            to = stop;
            if (to == end) node++;
        }
        CPL_TRY(cpl_lm_batch_answer(g, at, to, n_segments, g->first_row + at, &next));
        at = to;
    }
    return CPL_OK;
}

static int by_token(const void *left, const void *right)
{
    const cpl_lm_batch_pick *a = left, *b = right;
    return a->token < b->token ? -1 : a->token > b->token;
}

static int by_sequence(const void *left, const void *right)
{
    const cpl_lm_batch_pick *a = left, *b = right;
    if (a->sequence != b->sequence) return a->sequence < b->sequence ? -1 : 1;
    return by_token(left, right);
}

cpl_status cpl_lm_batch_take_picks(cpl_lm_batch_group *g, int64_t count)
{
    g->picks = cpl_alloc((size_t)count * sizeof *g->picks + 1);
    return g->picks ? CPL_OK : CPL_ERR_MEMORY;
}

/* Records the tokens of the group's last sequence and their rows in the cache. */
static void hold_last(const cpl_lm_batch_group *g)
{
    cpl_lm_batch *a      = g->a;
    const cpl_sequence s = g->tail[g->n - 1];
    cpl_lm_batch_rows(g, &g->tree.node[g->tree.leaf[g->n - 1]], s.length, a->held_row);
    memcpy(a->held, s.ids - g->shared, (size_t)(g->shared + s.length) * sizeof *a->held);
    a->n_held = g->shared + s.length;
}

cpl_status cpl_lm_batch_run(cpl_lm_batch_group *g)
{
    qsort(g->picks, (size_t)g->n_picks, sizeof *g->picks, by_token);
    CPL_TRY(run_tree(g));
    qsort(g->picks, (size_t)g->n_picks, sizeof *g->picks, by_sequence);
    hold_last(g);
    return CPL_OK;
}

/* ---- division into groups ---- */

/* Returns the end of the group that begins at order[first]: all sequences that fit into the
 * cache. */
static int64_t group_end(const cpl_lm_batch_plan *p, const int64_t *order, int64_t first)
{
    int64_t rows = 0, at = first;
    for (; at < p->n && (p->most == 0 || at - first < p->most); at++) {
        const cpl_sequence s = p->fed[order[at]];
        int64_t fresh        = s.length + p->extra;
        if (at > first) fresh -= cpl_prefix_tree_common(p->fed[order[at - 1]], s);
        if (rows + fresh > p->a->settings.rows) break;
        rows += fresh;
    }
    return at;
}

/* Returns the number of tokens of the common prefix of a group, order [n], that are in the cache,
 * without tokens that every sequence must feed anyway. Sets *first_row to the next row. */
static int64_t shared_tokens(const cpl_lm_batch_plan *p, const int64_t *order, int64_t n,
                             int64_t *first_row)
{
    const cpl_lm_batch *a = p->a;
    const cpl_sequence s  = p->fed[order[0]];
    int64_t shared = cpl_prefix_tree_common(s, p->fed[order[n - 1]]), rows = 0, top = 0;
    const int64_t held = cpl_prefix_tree_common(s, (cpl_sequence){a->held, a->n_held});
    if (held < shared) shared = held;
    for (int64_t i = 0; i < n; i++) {
        const int64_t needed = p->needed ? p->needed[order[i]] : 1;
        const int64_t most   = p->fed[order[i]].length - needed;
        if (most < shared) shared = most;
    }
    for (int64_t i = 0; i < shared; i++) top = a->held_row[i] >= top ? a->held_row[i] + 1 : top;
    for (int64_t i = 0; i < n; i++) {
        const cpl_sequence one = p->fed[order[i]];
        rows += one.length + p->extra;
        rows -= i > 0 ? cpl_prefix_tree_common(p->fed[order[i - 1]], one) : shared;
    }
    *first_row = top;
    if (top + rows <= a->settings.rows) return shared;
    *first_row = 0;
    return 0;
}

static cpl_status take_group(const cpl_lm_batch_plan *p, const int64_t *order, int64_t n,
                             cpl_sequence *tail)
{
    cpl_lm_batch_group g = {.a = p->a, .index = order, .tail = tail, .n = n, .n_ids = p->n_ids};
    g.shared             = shared_tokens(p, order, n, &g.first_row);
    for (int64_t i = 0; i < n; i++) {
        const cpl_sequence s = p->fed[order[i]];
        tail[i]              = (cpl_sequence){s.ids + g.shared, s.length - g.shared};
    }
    CPL_TRY(cpl_prefix_tree_make(&g.tree, tail, n));
    cpl_status status = p->work(p->ctx, &g);
    cpl_prefix_tree_free(&g.tree);
    cpl_free(g.picks);
    return status;
}

cpl_status cpl_lm_batch_groups(const cpl_lm_batch_plan *p)
{
    int64_t *order     = cpl_alloc((size_t)p->n * sizeof *order + 1);
    cpl_sequence *tail = order ? cpl_alloc((size_t)p->n * sizeof *tail + 1) : NULL;
    cpl_status status  = tail ? CPL_OK : CPL_ERR_MEMORY;
    p->a->n_held       = 0;
    if (tail) cpl_sequence_sort(order, p->fed, p->n);
    for (int64_t first = 0, last; status == CPL_OK && first < p->n; first = last) {
        last   = group_end(p, order, first);
        status = take_group(p, order + first, last - first, tail);
    }
    cpl_free(order);
    cpl_free(tail);
    return status;
}
