/* path.c - see scope.h */
#include "eval/tasks/scope.h"

#include <stdlib.h>
#include <string.h>

/* "name", "name[]" or "name[3]" */
static cpl_status parse_step(cpl_path_step *step, cpl_pool *pool, cpl_span text)
{
    size_t bracket = cpl_span_find_byte(text, 0, '[');
    size_t end     = bracket == CPL_NOWHERE ? text.length : bracket;
    if (end == 0) return CPL_FAIL(CPL_ERR_INPUT, "a member without a name");
    *step = (cpl_path_step){.member = cpl_pool_copy(pool, text.bytes, end)};
    if (bracket == CPL_NOWHERE) return CPL_OK;
    cpl_span inside = cpl_span_part(text, bracket + 1, text.length);
    if (cpl_span_equal(inside, cpl_span_of("]"))) {
        step->then = CPL_STEP_LIST;
        return CPL_OK;
    }
    step->then = CPL_STEP_ITEM;
    size_t at  = 0;
    for (; at < inside.length && at < 6 && inside.bytes[at] >= '0' && inside.bytes[at] <= '9'; at++)
        step->item = 10 * step->item + inside.bytes[at] - '0';
    if (at == 0 || at + 1 != inside.length || inside.bytes[at] != ']')
        return CPL_FAIL(CPL_ERR_INPUT, "behind a name stands [] or [0], [1], ...");
    return CPL_OK;
}

static cpl_status parse_steps(cpl_path *path, cpl_pool *pool, cpl_span text)
{
    size_t most = 1;
    for (size_t i = 0; i < text.length; i++) most += text.bytes[i] == '.';
    cpl_path_step *steps = cpl_pool_take(pool, most * sizeof *steps);
    if (!steps) return cpl_pool_status(pool);
    path->steps = steps;
    int lists   = 0;
    for (bool last = false; !last;) {
        size_t dot = cpl_span_find_byte(text, 0, '.');
        size_t end = dot == CPL_NOWHERE ? text.length : dot;
        last       = dot == CPL_NOWHERE;
        CPL_TRY(parse_step(&steps[path->n_steps], pool, cpl_span_part(text, 0, end)));
        lists += steps[path->n_steps++].then == CPL_STEP_LIST;
        if (!last) text = cpl_span_part(text, dot + 1, text.length);
    }
    if (lists > 1) return CPL_FAIL(CPL_ERR_INPUT, "[] stands twice");
    return CPL_OK;
}

cpl_status cpl_path_parse(cpl_path *path, cpl_pool *pool, const char *text)
{
    cpl_span span = cpl_span_of(text);
    size_t bar    = cpl_span_find_byte(span, 0, '|');
    *path         = (cpl_path){.written = text};
    if (bar != CPL_NOWHERE) {
        CPL_TRY(cpl_chain_parse(&path->chain, pool, cpl_span_part(span, bar + 1, span.length)));
        span = cpl_span_part(span, 0, bar);
    }
    path->may_lack = span.length && span.bytes[span.length - 1] == '?';
    if (path->may_lack) span.length--;
    CPL_TRY(parse_steps(path, pool, span));
    bool list = false;
    for (int64_t i = 0; i < path->n_steps; i++) list |= path->steps[i].then == CPL_STEP_LIST;
    if (list && cpl_chain_makes_list(&path->chain))
        return CPL_FAIL(CPL_ERR_INPUT, "a list cannot be made a list");
    return cpl_pool_status(pool);
}

bool cpl_path_makes_list(const cpl_path *path)
{
    for (int64_t i = 0; i < path->n_steps; i++)
        if (path->steps[i].then == CPL_STEP_LIST) return true;
    return cpl_chain_makes_list(&path->chain);
}

/* A new string, NULL where the value is no text. A number is written as short as it can be. */
static json_t *as_text(const json_t *value)
{
    char number[64] = "";
    if (json_is_string(value)) return json_incref((json_t *)(uintptr_t)value);
    if (json_is_boolean(value)) return json_string(json_is_true(value) ? "true" : "false");
    if (json_is_integer(value))
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    if (json_is_real(value))
        for (int digits = 15; digits <= 17; digits++) {
            snprintf(number, sizeof number, "%.*g", digits, json_real_value(value));
            if (strtod(number, NULL) == json_real_value(value)) break;
        }
    return *number ? json_string(number) : NULL;
}

static const json_t *member(const json_t *value, const cpl_path_step *step)
{
    value = json_object_get(value, step->member);
    if (step->then == CPL_STEP_ITEM) value = json_array_get(value, (size_t)step->item);
    return value;
}

/* The value at steps [from, n_steps), of which none is a list: a new text, or NULL. */
static json_t *text_at(const cpl_path *path, int64_t from, const json_t *value)
{
    for (int64_t i = from; value && i < path->n_steps; i++) value = member(value, &path->steps[i]);
    return as_text(value);
}

/* The texts of the list at `step`; a value that is no list counts as a list of one. */
static json_t *list_at(const cpl_path *path, int64_t step, const json_t *value)
{
    size_t n     = json_is_array(value) ? json_array_size(value) : 1;
    json_t *list = value && !json_is_null(value) ? json_array() : NULL;
    for (size_t i = 0; list && i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        json_t *text       = text_at(path, step + 1, item);
        if (text && json_array_append_new(list, text) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

static json_t *raw_value(const cpl_path *path, const json_t *row)
{
    const json_t *value = row;
    for (int64_t i = 0; value && i < path->n_steps; i++) {
        value = member(value, &path->steps[i]);
        if (path->steps[i].then == CPL_STEP_LIST) return list_at(path, i, value);
    }
    return as_text(value);
}

/* Whether there is nothing, or null, so that `?` applies. */
static bool is_lacking(const cpl_path *path, const json_t *row)
{
    for (int64_t i = 0; row && i < path->n_steps; i++) {
        row = member(row, &path->steps[i]);
        if (path->steps[i].then == CPL_STEP_LIST) break;
    }
    return !row || json_is_null(row);
}

cpl_status cpl_path_value(json_t **value, const cpl_path *path, const json_t *row)
{
    json_t *raw = raw_value(path, row);
    *value      = NULL;
    if (!raw && path->may_lack && is_lacking(path, row))
        raw = cpl_path_makes_list(path) && !cpl_chain_makes_list(&path->chain) ? json_array()
                                                                               : json_string("");
    if (!raw) return CPL_OK;
    cpl_status status = cpl_chain_apply(value, &path->chain, raw);
    json_decref(raw);
    return status;
}
