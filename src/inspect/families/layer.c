#include "inspect/families/internal.h"

#include <inttypes.h>
#include <string.h>

/* ---- choice of names ---- */

/* Returns the likeliest pattern, or -1. With `alone` only patterns that are used without a gate
 * count. */
static int choose_pattern(cpl_layer_builder *f, cpl_name_role role, bool alone)
{
    static const char *const words[] = {"router", "gate", "projection", "norm"};
    const cpl_name_match *best       = NULL;
    for (int64_t i = 0; i < f->names->n_matches; i++) {
        const cpl_name_match *match     = &f->names->matches[i];
        const cpl_name_pattern *pattern = &f->r->patterns->all[match->pattern];
        if (pattern->role != role || (pattern->half == CPL_HALF_ALONE) != alone ||
            !cpl_name_match_holds_numbers(match))
            continue;
        if (best && match->pattern != best->pattern && !cpl_family_is_listed(f))
            CPL_REFUSE(f, "%s: %s and %s: nothing says which of the two is the %s", f->r->path,
                       best->tensor->name, match->tensor->name, words[role]);
        if (!best) best = match;
    }
    return best ? best->pattern : -1;
}

static void choose_patterns(cpl_layer_builder *f)
{
    f->router = choose_pattern(f, CPL_NAME_ROUTER, false);
    f->gate   = choose_pattern(f, CPL_NAME_GATE, false);
    if (f->gate < 0) f->gate = choose_pattern(f, CPL_NAME_GATE, true);
    f->projection = choose_pattern(f, CPL_NAME_PROJECTION, false);
}

/* Returns the matches of a pattern, which follow one another, and sets their count. */
static const cpl_name_match *matches_of(const cpl_layer_builder *f, int pattern, int64_t *count)
{
    int64_t i = 0;
    while (i < f->names->n_matches && f->names->matches[i].pattern != pattern) i++;
    *count = 0;
    while (i + *count < f->names->n_matches && f->names->matches[i + *count].pattern == pattern)
        ++*count;
    return &f->names->matches[i];
}

static bool has_bias(const cpl_layer_builder *f, int pattern)
{
    int64_t count;
    const cpl_name_match *matches = matches_of(f, pattern, &count);
    for (int64_t i = 0; i < count; i++)
        if (matches[i].ending == CPL_ENDING_BIAS) return true;
    return false;
}

/* ---- the down projection beside the first gate ---- */

/* Returns whether `name` is `gate` with a 2 in place of a 1 (w2, linear_fc2), or with "down" in
 * place of "up_gate" (w_down). */
static bool names_down(const char *gate, const char *name)
{
    static const char pair[] = "up_gate", down[] = "down";
    const size_t n_pair = sizeof pair - 1, n_down = sizeof down - 1;
    while (*gate && *gate == *name) gate++, name++;
    if (*gate == '1' && *name == '2') return strcmp(gate + 1, name + 1) == 0;
    return strncmp(gate, pair, n_pair) == 0 && strncmp(name, down, n_down) == 0 &&
           strcmp(gate + n_pair, name + n_down) == 0;
}

/* Returns the down projection beside the first gate, or NULL. */
static const cpl_stored *find_down(const cpl_layer_builder *f)
{
    const char *gate = f->first[0]->tensor->name;
    for (int64_t i = 0; i < f->names->n_tensors; i++) {
        const cpl_stored *tensor = f->names->tensors[i];
        if (tensor->rank > 1 && names_down(gate, tensor->name)) return tensor;
    }
    return NULL;
}

/* Sets the form of the gates and flat_n. A pair [2D,d] stands beside [d,D] or [D,d]; [D,d] beside
 * one of the two has no gate. OLMo-core stores a router as [n d], gates as [n D,d] or [n d,D], and
 * w2 as [n D,d]. */
static void read_down(cpl_layer_builder *f)
{
    int64_t count;
    const cpl_stored *router = matches_of(f, f->router, &count)->tensor;
    const cpl_stored *gate = f->first[0]->tensor, *down = find_down(f);
    f->form = f->r->patterns->all[f->gate];
    if (gate->rank < 2) return;
    const int64_t rows = gate->shape[gate->rank - 2], cols = gate->shape[gate->rank - 1];
    const int64_t last   = down ? down->shape[down->rank - 1] : cols;
    const int64_t height = down ? down->shape[down->rank - 2] : 0;
    if (f->form.pair && down &&
        ((height == cols && last == rows) || (height == rows && last == cols))) {
        f->form.pair = false;
        f->form.half = CPL_HALF_ALONE;
    }
    if (router->rank != 1 || last < 1 || router->n_elements < last) return;
    if (gate->rank == 2 && !down && rows == router->n_elements) return; /* [n D,d] or [n d,D] */
    const int64_t n = gate->rank == 3 ? gate->shape[0] : router->n_elements / last;
    if (n > 0 && router->n_elements % n == 0 && (gate->rank == 3 || rows % n == 0)) f->flat_n = n;
}

/* Returns the tensor with an axis of n experts, if it is flat. */
static const cpl_stored *with_experts(const cpl_layer_builder *f, const cpl_stored *tensor)
{
    if (!f->flat_n || tensor->rank > 2 || tensor->n_slices > 1) return tensor;
    cpl_stored *whole = cpl_pool_take(f->r->pool, sizeof *whole);
    if (!whole) return tensor;
    *whole = *tensor;
    memmove(whole->shape + 1, tensor->shape, (size_t)tensor->rank * sizeof *whole->shape);
    whole->shape[0] = f->flat_n;
    whole->shape[1] /= f->flat_n;
    whole->rank++;
    return whole;
}

/* ---- matrices ---- */

static void add_part(cpl_matrix_parts *parts, const cpl_name_match *match)
{
    if (match->tensor->slice > 0) return; /* part of slice 0 */
    if (match->ending == CPL_ENDING_WEIGHT) parts->weight = match->tensor;
    if (match->ending == CPL_ENDING_BLOCKS) parts->blocks = match->tensor;
    if (match->ending == CPL_ENDING_PACKED) parts->packed = match->tensor;
    if (match->ending == CPL_ENDING_GRID || match->ending == CPL_ENDING_SCALE) {
        parts->scale = match->tensor;
        parts->grid  = match->ending == CPL_ENDING_GRID;
    }
}

static void refuse_method(cpl_layer_builder *f, const cpl_name_match *match)
{
    if (match->ending == CPL_ENDING_METHOD)
        CPL_REFUSE(f, "%s: tensor %s: weights quantised by %s are not read", match->tensor->path,
                   match->tensor->name, match->method);
}

/* Makes the matrix of the matches [0, count), which are of one pattern and expert. */
static bool make_matrix(cpl_layer_builder *f, cpl_stored_matrix *out, cpl_matrix_shape *shape,
                        const cpl_name_match *matches, int64_t count, int64_t d)
{
    cpl_matrix_parts parts = {
        .config = f->r->config, .d = d, .pool = f->r->pool, .out = out, .shape = shape};
    for (int64_t i = 0; i < count; i++) {
        refuse_method(f, &matches[i]);
        add_part(&parts, &matches[i]);
    }
    if (f->refused) return false;
    if (parts.weight && (matches->pattern == f->router || matches->pattern == f->gate))
        parts.weight = with_experts(f, parts.weight);
    if (!parts.weight && !parts.blocks && !parts.packed) {
        CPL_FAULT(f, "%s: there is %s, but not the weights that belong to it",
                  matches->tensor->path, matches->tensor->name);
        return false;
    }
    const char *fault = cpl_matrix_make(&parts);
    if (fault && !f->fault) f->fault = fault;
    return !fault;
}

static bool read_router(cpl_layer_builder *f)
{
    int64_t count;
    const cpl_name_match *matches = matches_of(f, f->router, &count);
    if (!make_matrix(f, &f->layer->router, &f->rows, matches, count, 0)) return false;
    if (!f->rows.stacked) return true;
    CPL_FAULT(f, "%s: tensor %s is %s, no matrix of router rows", matches->tensor->path,
              matches->tensor->name, CPL_SIZES(f, f->layer->router.weight));
    return false;
}

/* Finds the first match of each expert. The matrices are made when d is known. */
static bool list_gates(cpl_layer_builder *f)
{
    int64_t count;
    const cpl_name_match *matches = matches_of(f, f->gate, &count);
    f->all                        = cpl_pool_take(f->r->pool, (size_t)count * sizeof *f->all);
    f->first = cpl_pool_take(f->r->pool, (size_t)(count + 1) * sizeof *f->first);
    if (!f->all || !f->first) return false;
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || matches[i].expert != matches[i - 1].expert)
            f->first[f->n_all++] = &matches[i];
    f->first[f->n_all] = matches + count;
    return true;
}

static int64_t matches_of_expert(const cpl_layer_builder *f, int64_t i)
{
    return f->first[i + 1] - f->first[i];
}

/* Reads all gates but the first. Each must be like the first. */
static bool read_other_gates(cpl_layer_builder *f, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        cpl_matrix_shape shape;
        if (!make_matrix(f, &f->all[i], &shape, f->first[i], matches_of_expert(f, i), f->layer->l))
            return false;
        if (shape.rows == f->gates.rows && shape.cols == f->gates.cols && !shape.stacked) continue;
        const cpl_stored *a = f->all[i].weight, *b = f->all[0].weight;
        CPL_FAULT(f, "%s: tensor %s is %s, but %s is %s", a->path, a->name, CPL_SIZES(f, a),
                  b->name, CPL_SIZES(f, b));
        return false;
    }
    return true;
}

/* Refuses names for which only a listed model type decides the layout. They are the names of
 * gpt-oss and its kin, whose gate and up rows alternate. Without any model type similar names are
 * refused too. */
static void refuse_untold_halves(cpl_layer_builder *f)
{
    const cpl_moe_config *config = f->r->config;
    if (config->is_gguf || cpl_family_is_listed(f) || !cpl_gate_pattern(f)->pair) return;
    const cpl_stored *gate = f->all[0].weight;
    const cpl_family *kin =
        cpl_name_patterns_in_turns(&f->r->patterns->all[f->router], cpl_gate_pattern(f));
    bool alike = has_bias(f, f->router) || strstr(gate->name, "w13_weight");
    if (config->model_type && kin)
        CPL_REFUSE(f,
                   "%s: tensor %s: the model_type %s is not known, and in %s gate and up "
                   "alternate under these names: it is not known whether they do so here or are "
                   "two halves",
                   gate->path, gate->name, config->model_type, kin->title);
    else if (!config->model_type && (kin || alike))
        CPL_REFUSE(f,
                   "%s: tensor %s: without model_type in a config.json it is not known whether "
                   "gate and up are two halves or alternate",
                   gate->path, gate->name);
}

static bool read_first_gate(cpl_layer_builder *f)
{
    int64_t d = f->rows.cols; /* for a router [n,d]; packed gates have no width of their own */
    if (!make_matrix(f, &f->all[0], &f->gates, f->first[0], matches_of_expert(f, 0), d))
        return false;
    if (!f->gates.stacked || !cpl_gate_each(f)) return true;
    CPL_FAULT(f, "%s: tensor %s is %s, no matrix", f->all[0].weight->path, f->all[0].weight->name,
              CPL_SIZES(f, f->all[0].weight));
    return false;
}

/* ---- latent experts ---- */

static bool read_projection(cpl_layer_builder *f)
{
    int64_t count;
    if (f->projection < 0) return true;
    const cpl_name_match *matches = matches_of(f, f->projection, &count);
    return make_matrix(f, &f->layer->projection, &f->down, matches, count, f->rows.cols);
}

/* Reads the norm of W_l x, if there is one. */
static bool read_norm(cpl_layer_builder *f)
{
    cpl_moe_layer *layer = f->layer;
    const int norm       = choose_pattern(f, CPL_NAME_NORM, false);
    int64_t count;
    if (norm < 0 || !layer->projection.weight) return true;
    const cpl_stored *weight = matches_of(f, norm, &count)->tensor;
    layer->latent_norm       = (cpl_stored_matrix){.weight = weight, .format = weight->format};
    layer->latent_eps        = cpl_moe_config_real(f->r->config, CPL_CONFIG_EPS);
    if (weight->fault)
        f->fault = weight->fault;
    else if (weight->rank != 1 || weight->shape[0] != layer->l ||
             weight->format > CPL_FORMAT_LAST_PLAIN)
        CPL_FAULT(f, "%s: tensor %s is %s %s, no norm of the %" PRId64 " numbers of %s",
                  weight->path, weight->name, weight->type_name, CPL_SIZES(f, weight), layer->l,
                  layer->projection.weight->name);
    else if (layer->latent_eps < 0)
        CPL_FAULT(f, "%s: the norm %s needs rms_norm_eps, which config.json lacks", weight->path,
                  weight->name);
    return !f->fault;
}

/* Returns a note on latent experts, with names after the layer's number. */
static const char *note_of_projection(cpl_layer_builder *f)
{
    const cpl_moe_layer *layer = f->layer;
    const size_t prefix        = strlen(layer->prefix);
    const char *norm           = "";
    if (!layer->projection.weight) return norm;
    if (layer->latent_norm.weight)
        norm = CPL_SAY(f, " and %s normalises", layer->latent_norm.weight->name + prefix);
    return CPL_SAY(f, "its experts are latent: they read %" PRId64 " numbers, which %s%s makes%s",
                   layer->l, layer->projection.weight->name + prefix,
                   layer->projection_by_shape ? " (found by its shape)" : "", norm);
}

/* ---- the whole layer ---- */

/* Returns a note on the router's rows after the rows of its experts. */
static const char *note_of_extra(cpl_layer_builder *f)
{
    int64_t rows = f->layer->extra_rows;
    if (!rows) return "";
    const char *whose = cpl_moe_config_flag(f->r->config, CPL_FLAG_ZERO_EXPERTS)
                            ? "identity experts, which have no weights,"
                            : "shared experts";
    return CPL_SAY(f, "%" PRId64 " row%s of the router for %s %s left out", rows,
                   rows == 1 ? "" : "s", whose, rows == 1 ? "is" : "are");
}

static void set_note(cpl_layer_builder *f)
{
    const bool gateless       = cpl_gate_pattern(f)->half == CPL_HALF_ALONE;
    const char *const notes[] = {
        gateless ? "its experts have no gate: their one input matrix is measured" : "",
        note_of_extra(f), note_of_projection(f)};
    const char *note = NULL;
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (*notes[i]) note = note ? CPL_SAY(f, "%s; %s", note, notes[i]) : notes[i];
    f->layer->note = note;
}

static void fill_figures(cpl_layer_builder *f)
{
    cpl_moe_layer *layer = f->layer;
    if (!list_gates(f)) return;
    read_down(f);
    if (!read_router(f) || !read_projection(f) || !read_first_gate(f)) return;
    cpl_fit_router(f);
    if (!cpl_fit_projection(f) || !read_norm(f) || !cpl_fit_gates(f)) return;
    const int64_t n_matrices = cpl_gate_each(f) ? layer->n : 1;
    if (!read_other_gates(f, n_matrices)) return;
    refuse_untold_halves(f);
    layer->matrices   = f->all;
    layer->n_matrices = n_matrices;
    layer->biased =
        has_bias(f, f->gate) || (layer->projection.weight && has_bias(f, f->projection)) ||
        (has_bias(f, f->router) && !cpl_moe_config_flag(f->r->config, CPL_FLAG_CHOICE_BIAS));
    set_note(f);
}

/* Names up to three matrices of the layer that may be its router or experts by other names. */
static const char *names_there(cpl_layer_builder *f)
{
    enum { MOST = 3 };
    const char *names = "";
    int64_t count     = 0;
    for (int64_t i = 0; i < f->names->n_tensors; i++) {
        const cpl_stored *tensor = f->names->tensors[i];
        const char *suffix       = tensor->name + strlen(f->layer->prefix);
        cpl_name_match known;
        if (tensor->rank < 2 || !cpl_name_is_text(tensor->name) || cpl_name_is_mtp(tensor->name) ||
            !cpl_name_is_routed(suffix) || cpl_name_patterns_find(&known, f->r->patterns, suffix) ||
            (f->router < 0 && strstr(suffix, "expert")))
            continue;
        if (count++ < MOST) names = CPL_SAY(f, "%s%s%s", names, *names ? ", " : "", suffix);
    }
    if (!count) return "no other matrix that could be one";
    return count <= MOST ? names : CPL_SAY(f, "%s and %" PRId64 " more", names, count - MOST);
}

/* Fills in a layer with a router or with experts only. */
static void fill_half(cpl_layer_builder *f, bool *is_moe)
{
    int64_t count;
    const cpl_name_match *matches = matches_of(f, f->router >= 0 ? f->router : f->gate, &count);
    for (int64_t i = 0; i < count; i++) refuse_method(f, &matches[i]);
    const bool router = f->router >= 0;
    if (router) *is_moe = f->router < f->r->patterns->own;
    CPL_FAULT(f, "%s: layer %s has %s%s%s, but no %s under a known name; it has %s",
              matches->tensor->path, f->layer->prefix, router ? "the router " : "experts (",
              matches->tensor->name, router ? "" : ")", router ? "experts" : "router",
              names_there(f));
    *is_moe |= f->refused;
    f->refused |= !router && !cpl_family_is_listed(f);
}

bool cpl_moe_layer_fill(cpl_moe_layer *layer, int patterns_used[2],
                        const cpl_layer_reading *reading, const cpl_layer_names *names)
{
    cpl_layer_builder f = {.r = reading, .names = names, .layer = layer};
    bool is_moe         = true;
    choose_patterns(&f);
    patterns_used[0] = f.router;
    patterns_used[1] = f.gate;
    if (f.router < 0 && f.gate < 0 && !names->unmeasured) return false;
    layer->K          = cpl_moe_config_number(reading->config, CPL_CONFIG_K, layer->layer, NULL);
    layer->comparable = !cpl_moe_config_flag(reading->config, CPL_FLAG_NOT_COMPARABLE);
    layer->skip       = names->unmeasured;
    if (!layer->skip && f.router >= 0 && f.gate >= 0)
        fill_figures(&f);
    else if (!layer->skip)
        fill_half(&f, &is_moe);
    layer->fault   = f.fault;
    layer->refused = f.refused;
    return is_moe;
}
