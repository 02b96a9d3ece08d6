/* fit.c - fit of the tensors of one MoE layer: n, d, D, and the meaning of each axis. */
#include "inspect/families/internal.h"

#include <inttypes.h>

/* ---- missing experts ---- */

/* Returns the name of the tensor of `match`, with the number of another expert. */
static const char *name_of_expert(cpl_layer_builder *f, const cpl_name_match *match, int64_t expert)
{
    const char *name = match->tensor->name, *rest = match->digits;
    while (*rest >= '0' && *rest <= '9') rest++;
    return CPL_SAY(f, "%.*s%" PRId64 "%s", (int)(match->digits - name), name, expert, rest);
}

static const cpl_name_match *numbers_match(const cpl_layer_builder *f, int64_t i)
{
    for (const cpl_name_match *match = f->first[i]; match < f->first[i + 1]; match++)
        if (cpl_name_match_holds_numbers(match)) return match;
    return f->first[i];
}

/* Returns whether experts 0 ... n-1 are all there. */
static bool check_experts(cpl_layer_builder *f, int64_t n)
{
    for (int64_t e = 0; e < n; e++) {
        if (e < f->n_all && f->first[e]->expert == e) continue;
        const cpl_name_match *like = numbers_match(f, e < f->n_all ? e : f->n_all - 1);
        CPL_FAULT(f, "%s: tensor %s is missing (the router has rows for %" PRId64 " experts)",
                  f->r->path, name_of_expert(f, like, e), n);
        return false;
    }
    return true;
}

/* ---- the router's orientation, n and d ---- */

/* Returns whether the gates have an axis of this length that may be d. */
static bool gates_have(const cpl_layer_builder *f, int64_t d)
{
    return f->gates.cols == d || f->gates.rows == d;
}

static int64_t n_known(const cpl_layer_builder *f)
{
    if (cpl_gate_each(f)) return f->n_all;
    return f->gates.stacked ? f->gates.n : 0;
}

static bool counts_experts(const cpl_layer_builder *f, int64_t axis)
{
    int64_t known = n_known(f);
    return axis == known || (cpl_fit_flag(f, CPL_FLAG_VISION_HALF) && 2 * axis == known);
}

/* Returns whether the router is [d,n]. If both orientations fit, the family's row decides. */
static bool is_turned(const cpl_layer_builder *f)
{
    if (!cpl_fit_flag(f, CPL_FLAG_TRANSPOSED)) return false;
    int64_t a = f->rows.rows, b = f->rows.cols;
    bool as_is  = gates_have(f, b) && counts_experts(f, a);
    bool turned = gates_have(f, a) && counts_experts(f, b);
    if (as_is != turned) return turned;
    if (as_is) return cpl_fit_flag(f, CPL_FLAG_VISION_HALF) || cpl_gate_pattern(f)->pair;
    return gates_have(f, a) && !gates_have(f, b);
}

/* Returns the number of experts. The router has more rows only if the family says so. */
static int64_t n_of_extra(const cpl_layer_builder *f, int64_t router_rows)
{
    int64_t known = n_known(f);
    int64_t given = cpl_moe_config_number(f->r->config, CPL_CONFIG_N, f->layer->layer, NULL);
    if (cpl_moe_config_flag(f->r->config, CPL_FLAG_ZERO_EXPERTS) && given && given <= router_rows)
        return given;
    bool extra = cpl_moe_config_flag(f->r->config, CPL_FLAG_ZERO_EXPERTS) ||
                 cpl_moe_config_flag(f->r->config, CPL_FLAG_SHARED_ROWS);
    return extra && known && known < router_rows ? known : router_rows;
}

void cpl_fit_router(cpl_layer_builder *f)
{
    cpl_moe_layer *layer     = f->layer;
    layer->router_transposed = is_turned(f);
    int64_t rows             = layer->router_transposed ? f->rows.cols : f->rows.rows;
    layer->d                 = layer->router_transposed ? f->rows.rows : f->rows.cols;
    const cpl_stored *weight = layer->router.weight;
    if (weight->n_slices > 1 && weight->shape[0] == n_known(f)) rows = weight->shape[0];
    layer->n          = n_of_extra(f, rows);
    layer->extra_rows = rows - layer->n;
}

static bool check_n(cpl_layer_builder *f)
{
    int64_t known = n_known(f), n = f->layer->n;
    bool more = cpl_fit_flag(f, CPL_FLAG_VISION_HALF) ||
                cpl_moe_config_flag(f->r->config, CPL_FLAG_ZERO_EXPERTS);
    if (cpl_gate_each(f) && !check_experts(f, n)) return false;
    if (!cpl_gate_each(f) && !f->gates.stacked) return true; /* flat: the width decides */
    if (known == n || (known > n && more)) return true;
    const cpl_stored *router = f->layer->router.weight;
    CPL_FAULT(f, "%s: router %s is %s, but %s has %" PRId64 " experts", router->path, router->name,
              CPL_SIZES(f, router), f->first[0]->tensor->name, known);
    return false;
}

/* ---- the gates' orientation and D ---- */

/* Returns whether the rows of a gate may be columns of its tensor. */
static bool may_turn(const cpl_layer_builder *f)
{
    return f->gates.stacked || cpl_fit_flag(f, CPL_FLAG_TRANSPOSED);
}

/* Returns whether the gates may read a vector of this width. */
static bool gates_read(const cpl_layer_builder *f, int64_t width)
{
    return f->gates.cols == width || (f->gates.rows == width && may_turn(f));
}

/* Adds the fault that gates and router differ in width. `beside` says why no projection stands
 * between them. */
static bool misfit(cpl_layer_builder *f, const char *beside)
{
    const cpl_stored *gate = f->all[0].weight;
    CPL_FAULT(f, "%s: tensor %s is %s, but the rows of router %s have %" PRId64 " numbers%s",
              gate->path, gate->name, CPL_SIZES(f, gate), f->layer->router.weight->name,
              f->layer->d, beside);
    return false;
}

/* Returns whether the tensor, which has no known name, may be the projection. */
static bool may_project(const cpl_layer_builder *f, const cpl_stored *tensor, int64_t l)
{
    const char *suffix = tensor->name + strlen(f->layer->prefix);
    cpl_name_match known;
    return tensor->rank == 2 && tensor->shape[1] == f->layer->d &&
           (l ? tensor->shape[0] == l : gates_read(f, tensor->shape[0])) &&
           cpl_name_is_text(tensor->name) && !cpl_name_is_mtp(tensor->name) &&
           cpl_name_is_routed(suffix) && !strstr(suffix, "experts.") &&
           !cpl_name_patterns_find(&known, f->r->patterns, suffix);
}

/* Finds the projection by its shape. l is 0 if the config does not give it. */
static bool find_projection(cpl_layer_builder *f, int64_t l)
{
    const cpl_stored *found = NULL;
    for (int64_t i = 0; i < f->names->n_tensors; i++) {
        const cpl_stored *tensor = f->names->tensors[i];
        if (!may_project(f, tensor, l)) continue;
        if (found)
            return misfit(f, CPL_SAY(f, ", and %s and %s may both be the projection between them",
                                     found->name, tensor->name));
        found = tensor;
    }
    if (!found)
        return misfit(f, CPL_SAY(f, ", and the layer has no projection [%" PRId64 ",%" PRId64 "]",
                                 l ? l : f->gates.cols, f->layer->d));
    const cpl_matrix_parts parts  = {.weight = found,
                                     .config = f->r->config,
                                     .pool   = f->r->pool,
                                     .out    = &f->layer->projection,
                                     .shape  = &f->down};
    f->fault                      = cpl_matrix_make(&parts);
    f->layer->l                   = found->shape[0];
    f->layer->projection_by_shape = true;
    return !f->fault;
}

/* Sets l from the projection with a known name. If the router reads its output too, as in
 * OLMo-core, the projection does not lie between router and gates. */
static bool fit_named_projection(cpl_layer_builder *f)
{
    const cpl_stored *named = f->layer->projection.weight, *gate = f->all[0].weight;
    const bool is_read = !f->down.stacked && gates_read(f, f->down.rows);
    if (is_read && f->down.cols == f->layer->d) {
        f->layer->l = f->down.rows;
        return true;
    }
    if (is_read && f->down.rows == f->layer->d) {
        f->layer->projection = (cpl_stored_matrix){0};
        return true;
    }
    CPL_FAULT(f,
              "%s: the projection %s is %s: it does not lead from the %" PRId64
              " numbers of the rows of router %s to tensor %s, which is %s",
              gate->path, named->name, CPL_SIZES(f, named), f->layer->d,
              f->layer->router.weight->name, gate->name, CPL_SIZES(f, gate));
    return false;
}

bool cpl_fit_projection(cpl_layer_builder *f)
{
    const int64_t d = f->layer->d;
    int64_t l       = cpl_moe_config_number(f->r->config, CPL_CONFIG_LATENT, f->layer->layer, NULL);
    f->layer->l     = d;
    if (f->layer->projection.weight) return fit_named_projection(f);
    if (!gates_read(f, l)) l = 0; /* shapes are the authority */
    return f->gates.cols == d || (!l && gates_read(f, d)) || find_projection(f, l);
}

/* ---- a stack, or gate and up, with two axes of length l ---- */

/* Returns whether `beside` is the down projection of the experts. It is [D,l] if gate and up are in
 * columns, else [l,D]. */
static bool is_down(const cpl_layer_builder *f, const cpl_stored *beside, bool *columns)
{
    int64_t l = f->layer->l, D = l / 2;
    if (beside->rank != 2 + f->gates.stacked || l % 2) return false;
    if (f->gates.stacked && beside->shape[0] != f->gates.n) return false;
    if (!cpl_name_is_text(beside->name) || cpl_name_is_mtp(beside->name)) return false;
    const int64_t *last = beside->shape + f->gates.stacked;
    *columns            = last[0] == D && last[1] == l;
    return *columns || (last[0] == l && last[1] == D);
}

/* Sets says[0] to a tensor that shows that the rows of a gate are rows, says[1] to a tensor that
 * shows that they are columns. Such tensors are the scales, if there is one for each row or column,
 * and the down projection in the module of gate and up. */
static void find_signs(const cpl_layer_builder *f, const cpl_stored *says[2])
{
    const cpl_stored_matrix *m = &f->all[0];
    const char *name           = f->first[0]->tensor->name;
    size_t module              = (size_t)(f->first[0]->end - name);
    bool columns;
    if (m->scale && (m->block_rows == 1) != (m->block_cols == 1))
        says[m->block_cols == 1] = m->scale;
    while (module > 0 && name[module - 1] != '.') module--;
    if (!cpl_gate_pattern(f)->pair) return;
    for (int64_t i = 0; i < f->names->n_tensors; i++) {
        const cpl_stored *beside = f->names->tensors[i];
        if (strncmp(beside->name, name, module) == 0 && is_down(f, beside, &columns))
            says[columns] = beside;
    }
}

static bool square_is_columns(cpl_layer_builder *f)
{
    const cpl_stored *gate = f->all[0].weight, *says[2] = {NULL, NULL};
    if (f->r->config->is_gguf || cpl_gate_pattern(f)->half == CPL_HALF_SECOND) return false;
    find_signs(f, says);
    bool open = !says[0] && !says[1];
    if (open && !cpl_gate_pattern(f)->pair && cpl_family_is_listed(f)) return false;
    if (says[0] && says[1])
        CPL_REFUSE(f,
                   "%s: tensor %s is square: by %s the rows of a gate are among its rows, by %s "
                   "among its columns",
                   gate->path, gate->name, says[0]->name, says[1]->name);
    if (open)
        CPL_REFUSE(f,
                   "%s: tensor %s is square, and %s says whether the rows of a gate are among its "
                   "rows or its columns",
                   gate->path, gate->name,
                   cpl_gate_pattern(f)->pair ? "no down projection beside it"
                                             : "neither a known family nor scales for each row");
    return says[1] != NULL;
}

static bool set_orientation(cpl_layer_builder *f)
{
    int64_t A = f->gates.rows, B = f->gates.cols, l = f->layer->l;
    bool columns = A == l && may_turn(f);
    if (columns && B == l)
        columns = f->gates.stacked || cpl_gate_pattern(f)->pair
                      ? square_is_columns(f)
                      : f->layer->router_transposed && !cpl_fit_flag(f, CPL_FLAG_VISION_HALF);
    if (!columns && B != l) return misfit(f, "");
    if (columns && f->all[0].format > CPL_FORMAT_LAST_PLAIN) {
        CPL_FAULT(f,
                  "%s: tensor %s: numbers stored in blocks (%s) across the rows of a gate are not "
                  "read",
                  f->all[0].weight->path, f->all[0].weight->name, f->all[0].weight->type_name);
        return false;
    }
    f->layer->layout = columns ? CPL_GATE_COLUMNS : CPL_GATE_ROWS;
    f->layer->width  = columns ? B : A;
    return true;
}

/* Sets the width of the gates in a flat tensor [n A,d], which is n matrices. */
static bool set_flat_width(cpl_layer_builder *f)
{
    if (f->gates.stacked || cpl_gate_each(f)) return true;
    if (f->layer->width % f->layer->n == 0) {
        f->layer->width /= f->layer->n;
        return true;
    }
    CPL_FAULT(f,
              "%s: tensor %s has %" PRId64 " rows, which %" PRId64 " experts cannot share evenly",
              f->all[0].weight->path, f->all[0].weight->name, f->layer->width, f->layer->n);
    return false;
}

static bool set_D(cpl_layer_builder *f)
{
    cpl_moe_layer *layer = f->layer;
    bool pair = cpl_gate_pattern(f)->pair, is_own = f->gate < f->r->patterns->own;
    if (pair && layer->width % 2 != 0) {
        CPL_FAULT(f, "%s: tensor %s holds gate and up and yet has an odd width of %" PRId64,
                  f->all[0].weight->path, f->all[0].weight->name, layer->width);
        return false;
    }
    layer->D           = pair ? layer->width / 2 : layer->width;
    layer->interleaved = cpl_gate_pattern(f)->half == CPL_HALF_IN_TURNS && is_own;
    layer->second      = cpl_gate_pattern(f)->half == CPL_HALF_SECOND;
    if (!pair && cpl_gate_each(f) && layer->layout == CPL_GATE_ROWS)
        layer->layout = CPL_GATE_PER_EXPERT;
    return true;
}

bool cpl_fit_gates(cpl_layer_builder *f)
{
    return check_n(f) && set_orientation(f) && set_flat_width(f) && set_D(f);
}
