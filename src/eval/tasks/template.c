/* template.c - see scope.h: transformations, chains of them, paths and templates */
#include "eval/tasks/scope.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "eval/grade/grading.h"
#include "eval/grade/words.h"

/* ---- a part of a text ---- */

static cpl_status find(size_t *at, cpl_span text, const char *mark)
{
    *at = cpl_span_find(text, 0, mark);
    if (*at == CPL_NOWHERE) return CPL_FAIL(CPL_ERR_INPUT, "it holds no \"%.100s\"", mark);
    return CPL_OK;
}

/* Sets `*part` to the text before the first `mark`. Fails without a `mark`. */
static cpl_status before(cpl_span *part, cpl_span text, const char *mark)
{
    size_t at;
    CPL_TRY(find(&at, text, mark));
    *part = cpl_span_part(text, 0, at);
    return CPL_OK;
}

/* Sets `*part` to the text after the first `mark`. Fails without a `mark`. */
static cpl_status after(cpl_span *part, cpl_span text, const char *mark)
{
    size_t at;
    CPL_TRY(find(&at, text, mark));
    *part = cpl_span_part(text, at + strlen(mark), text.length);
    return CPL_OK;
}

/* Sets `*part` to the text after the first `mark`, or to the whole text without a `mark`. */
static cpl_status behind(cpl_span *part, cpl_span text, const char *mark)
{
    *part = text;
    return cpl_span_find(text, 0, mark) == CPL_NOWHERE ? CPL_OK : after(part, text, mark);
}

/* Sets `*part` to the whole text. Fails without text after the last `mark`. */
static cpl_status holding(cpl_span *part, cpl_span text, const char *mark)
{
    size_t at;
    CPL_TRY(find(&at, text, mark));
    at    = cpl_span_find_last(text, mark) + strlen(mark);
    *part = text;
    if (cpl_words_strip(cpl_span_part(text, at, text.length)).length) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "there is no text after its \"%.100s\"", mark);
}

static cpl_status boxed(cpl_span *part, cpl_span text, const char *mark)
{
    (void)mark;
    if (cpl_filter_last_boxed(part, text)) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "it holds no \\boxed");
}

/* ---- the list ---- */

typedef enum wants { NOTHING, TEXT, PAIR } wants;

enum { MOST_STEPS = 4 };

/* A transformation takes a part of a text, strips it, changes its cases, and makes the
 * substitutions in it. NULL leaves out a step. A PAIR is a substitution too. */
struct cpl_transform_kind {
    const char *name;
    wants argument;
    cpl_status (*part)(cpl_span *part, cpl_span text, const char *mark);
    cpl_span (*strip)(cpl_span text);
    void (*cases)(cpl_text *out, cpl_span text);
    cpl_substitution steps[MOST_STEPS]; /* ended by an all-zero step */
    const char *first, *mark; /* makes a list of the texts after `first` and after each `mark`,
                                 whose letter runs from B to Z; NULL: makes a text */
    bool unpads;              /* true if the last members of a list that equal TEXT are left out */
};

#define BRACKETS "\\[[^]\\n]*+(*SKIP)\\]" /* brackets with their content, on one line */

static const cpl_transform_kind kinds[] = {
    {"strip", NOTHING, .strip = cpl_words_strip},
    {"lstrip", NOTHING, .strip = cpl_words_lstrip},
    {"lower", NOTHING, .cases = cpl_words_lower},
    {"capitalize", NOTHING, .cases = cpl_words_capitalize},
    {"uncapitalize", NOTHING, .cases = cpl_words_uncapitalize},
    {"without_last", NOTHING, .steps = {{"", "(?s).\\z", ""}}},
    {"spaces", NOTHING, .steps = {{"_", NULL, " "}}},
    {"slug", NOTHING, .cases = cpl_words_lower,
     .steps = {{"&", NULL, "and"}, {"", "[-\\x1C-\\x1F]|(?!\\x{180E})\\s", "_"}}},
    {"before", TEXT, .part = before},
    {"after", TEXT, .part = after},
    {"behind", TEXT, .part = behind},
    {"holding", TEXT, .part = holding},
    {.name = "replace", .argument = PAIR},
    {"hellaswag", NOTHING, .strip = cpl_words_strip,
     .steps = {{" [title]", NULL, ". "}, {"[", BRACKETS, ""}, {"  ", NULL, " "}}},
    {"hellaswag_olmes", NOTHING, .strip = cpl_words_strip,
     .steps = {{" [title]", "\\.? \\[title]", ". "}, {"[", BRACKETS, ""}, {"  ", NULL, " "}}},
    {"boxed", NOTHING, .part = boxed},
    {"options", NOTHING, .first = "(A) ", .mark = " (B) "},
    {"lines", NOTHING, .first = "A. ", .mark = "\nB. "},
    {"unpadded", TEXT, .unpads = true},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static cpl_status make_text(cpl_text *out, const cpl_transform *how, cpl_span text, cpl_text *spare)
{
    const cpl_transform_kind *kind = how->kind;
    const cpl_substitution pair    = {how->first, NULL, how->second};
    size_t n                       = 0;
    if (kind->part) CPL_TRY(kind->part(&text, text, how->first));
    if (kind->strip) text = kind->strip(text);
    if (kind->cases)
        kind->cases(out, text);
    else
        cpl_text_append(out, text.bytes, text.length);
    while (n < MOST_STEPS && kind->steps[n].with) n++;
    cpl_regex_substitute(out, kind->steps, n, spare);
    cpl_regex_substitute(out, &pair, kind->argument == PAIR, spare);
    CPL_TRY(cpl_text_status(out));
    return cpl_text_status(spare);
}

static cpl_status append_part(json_t *out, cpl_span text, size_t from, size_t end)
{
    json_t *part = json_stringn(text.bytes + from, end - from);
    if (json_array_append_new(out, part))
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list of options");
    return CPL_OK;
}

/* Makes a list of a text such as "(A) one (B) two". The marks are searched in order. */
static cpl_status make_list(json_t *out, const cpl_transform_kind *kind, cpl_span text)
{
    char mark[8];
    size_t from = strlen(kind->first), at;
    if (!cpl_span_is_at(text, 0, kind->first))
        return CPL_FAIL(CPL_ERR_INPUT, "it begins with no \"%s\"", kind->first);
    snprintf(mark, sizeof mark, "%s", kind->mark);
    for (char *letter = strchr(mark, 'B'); *letter <= 'Z'; ++*letter) {
        if ((at = cpl_span_find(text, from, mark)) == CPL_NOWHERE) break;
        CPL_TRY(append_part(out, text, from, at));
        from = at + strlen(mark);
    }
    return append_part(out, text, from, text.length);
}

/* Returns the number of members of a list, from the first, that a transformation keeps. */
static size_t kept_of(const json_t *list, const cpl_transform *how)
{
    size_t kept = json_array_size(list);
    while (how->kind->unpads && kept > 0 &&
           strcmp(json_string_value(json_array_get(list, kept - 1)), how->first) == 0)
        kept--;
    return kept;
}

/* ---- chains ---- */

static cpl_status parse_one(cpl_transform *transform, cpl_pool *pool, cpl_span text)
{
    size_t index, colon = cpl_span_find_byte(text, 0, ':');
    size_t end       = colon == CPL_NOWHERE ? text.length : colon;
    const char *name = cpl_pool_copy(pool, text.bytes, end);
    *transform       = (cpl_transform){0};
    CPL_TRY(cpl_pool_status(pool));
    CPL_TRY(cpl_lookup_in(&index, "transformation", name, kinds, N_KINDS, sizeof *kinds));
    transform->kind = &kinds[index];
    wants argument  = kinds[index].argument;
    if ((argument == NOTHING) != (colon == CPL_NOWHERE))
        return CPL_FAIL(CPL_ERR_INPUT, "%s %s", name,
                        argument == NOTHING ? "takes nothing after it"
                                            : "needs a text after it: \":TEXT\"");
    if (argument == NOTHING) return CPL_OK;
    cpl_span rest = cpl_span_part(text, colon + 1, text.length);
    size_t equals = argument == PAIR ? cpl_span_find_byte(rest, 0, '=') : rest.length;
    if (equals == CPL_NOWHERE || equals == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s needs a text after it: \"%s\"", name,
                        argument == PAIR ? ":TEXT=WITH" : ":TEXT");
    transform->first = cpl_pool_copy(pool, rest.bytes, equals);
    if (argument == PAIR)
        transform->second = cpl_pool_copy(pool, rest.bytes + equals + 1, rest.length - equals - 1);
    return cpl_pool_status(pool);
}

cpl_status cpl_chain_parse(cpl_chain *chain, cpl_pool *pool, cpl_span text)
{
    int64_t count = 1;
    for (size_t i = 0; i < text.length; i++) count += text.bytes[i] == '|';
    cpl_transform *at = cpl_pool_take(pool, (size_t)count * sizeof *at);
    if (!at) return cpl_pool_status(pool);
    *chain    = (cpl_chain){at, count};
    bool list = false;
    for (int64_t i = 0; i < count; i++) {
        size_t bar = cpl_span_find_byte(text, 0, '|');
        size_t end = bar == CPL_NOWHERE ? text.length : bar;
        CPL_TRY(parse_one(&at[i], pool, cpl_span_part(text, 0, end)));
        if (list && at[i].kind->mark)
            return CPL_FAIL(CPL_ERR_INPUT, "%s needs a text, not a list", at[i].kind->name);
        list |= at[i].kind->mark != NULL;
        if (bar != CPL_NOWHERE) text = cpl_span_part(text, bar + 1, text.length);
    }
    return CPL_OK;
}

bool cpl_chain_makes_list(const cpl_chain *chain)
{
    for (int64_t i = 0; i < chain->count; i++)
        if (chain->at[i].kind->mark) return true;
    return false;
}

static cpl_status apply_to_text(json_t **out, const cpl_transform *how, const json_t *value)
{
    cpl_span text = {json_string_value(value), json_string_length(value)};
    cpl_text made = {0}, spare = {0};
    cpl_status status = CPL_OK;
    if (how->kind->unpads)
        return CPL_FAIL(CPL_ERR_INPUT, "%s needs a list, not a text", how->kind->name);
    if (how->kind->mark) {
        *out = json_array();
        status =
            *out ? make_list(*out, how->kind, text) : CPL_FAIL(CPL_ERR_MEMORY, "out of memory");
    } else {
        status = make_text(&made, how, text, &spare);
        if (status == CPL_OK) *out = json_stringn(made.bytes ? made.bytes : "", made.length);
        if (status == CPL_OK && !*out)
            status = CPL_FAIL(CPL_ERR_INPUT, "%s leaves what is no UTF-8", how->kind->name);
    }
    cpl_text_free(&made);
    cpl_text_free(&spare);
    if (status == CPL_OK) return CPL_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}

static cpl_status apply_to_list(json_t **out, const cpl_transform *how, const json_t *value)
{
    cpl_status status = CPL_OK;
    const size_t kept = kept_of(value, how);
    *out              = json_array();
    if (!*out) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
    for (size_t i = 0; i < kept; i++) {
        json_t *made = NULL, *item = json_array_get(value, i);
        if (how->kind->unpads)
            made = json_incref(item);
        else
            CPL_TRY_DONE(apply_to_text(&made, how, item));
        if (json_array_append_new(*out, made))
            CPL_TRY_DONE(CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list"));
    }
    return CPL_OK;
done:
    json_decref(*out);
    *out = NULL;
    return status;
}

cpl_status cpl_chain_apply(json_t **out, const cpl_chain *chain, json_t *value)
{
    json_t *now = json_incref(value);
    for (int64_t i = 0; i < chain->count; i++) {
        json_t *made            = NULL;
        const cpl_transform *it = &chain->at[i];
        cpl_status status =
            json_is_array(now) ? apply_to_list(&made, it, now) : apply_to_text(&made, it, now);
        json_decref(now);
        if (status != CPL_OK) return status;
        now = made;
    }
    *out = now;
    return CPL_OK;
}

/* ---- paths ---- */

/* Parses "name", "name[]" or "name[3]". */
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
        return CPL_FAIL(CPL_ERR_INPUT, "after a name comes [] or [0], [1], ...");
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
    path->list = lists > 0;
    if (lists > 1) return CPL_FAIL(CPL_ERR_INPUT, "[] is there twice");
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
    if (path->list && cpl_chain_makes_list(&path->chain))
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "the path is a list ([]) and so is the result of its transformations: take one away");
    return cpl_pool_status(pool);
}

bool cpl_path_makes_list(const cpl_path *path)
{
    return path->list || cpl_chain_makes_list(&path->chain);
}

/* Returns a new string, or NULL for other values than texts, booleans and numbers. A number is
 * written in its shortest form. */
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

/* Returns the value after the steps from `*step`, up to a step that is a list, or NULL if it is
 * missing. Sets `*step` to that step. */
static const json_t *walk(const cpl_path *path, int64_t *step, const json_t *value)
{
    for (; value && *step < path->n_steps; ++*step) {
        const cpl_path_step *at = &path->steps[*step];
        value                   = json_object_get(value, at->member);
        if (at->then == CPL_STEP_ITEM) value = json_array_get(value, (size_t)at->item);
        if (at->then == CPL_STEP_LIST) break;
    }
    return value;
}

/* Returns the texts of the list at `step`, or NULL. A value that is no list is the only member. */
static json_t *list_at(const cpl_path *path, int64_t step, const json_t *value)
{
    size_t n     = json_is_array(value) ? json_array_size(value) : 1;
    json_t *list = value && !json_is_null(value) ? json_array() : NULL;
    for (size_t i = 0; list && i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        int64_t rest       = step + 1;
        json_t *text       = as_text(walk(path, &rest, item));
        if (text && json_array_append_new(list, text) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

cpl_status cpl_path_value(json_t **value, const cpl_path *path, const json_t *row)
{
    int64_t step        = 0;
    const json_t *there = walk(path, &step, row);
    json_t *raw         = step < path->n_steps ? list_at(path, step, there) : as_text(there);
    *value              = NULL;
    if (!raw && path->may_lack && (!there || json_is_null(there)))
        raw = path->list ? json_array() : json_string("");
    if (!raw) return CPL_OK;
    cpl_status status = cpl_chain_apply(value, &path->chain, raw);
    json_decref(raw);
    return status;
}

/* ---- templates ---- */

static cpl_status parse_name(cpl_template_part *piece, cpl_pool *pool, cpl_span inner)
{
    size_t bar = cpl_span_find_byte(inner, 0, '|'), end = bar == CPL_NOWHERE ? inner.length : bar;
    if (end == 0) return CPL_FAIL(CPL_ERR_INPUT, "{} holds no name; a brace is written {{ or }}");
    piece->name = cpl_pool_copy(pool, inner.bytes, end);
    if (bar == CPL_NOWHERE) return CPL_OK;
    CPL_TRY(cpl_chain_parse(&piece->chain, pool, cpl_span_part(inner, bar + 1, inner.length)));
    if (cpl_chain_makes_list(&piece->chain))
        return CPL_FAIL(CPL_ERR_INPUT, "{%.*s} makes a list, and a text is needed",
                        (int)inner.length, inner.bytes);
    return CPL_OK;
}

/* Parses the piece that begins at `*at`, and sets `*at` after it. */
static cpl_status parse_piece(cpl_template_part *piece, cpl_pool *pool, cpl_span text, size_t *at)
{
    char c = text.bytes[*at], following = *at + 1 < text.length ? text.bytes[*at + 1] : '\0';
    if (c == '{' && following != '{') {
        size_t close = cpl_span_find_byte(text, *at, '}');
        if (close == CPL_NOWHERE)
            return CPL_FAIL(CPL_ERR_INPUT, "\"{\" is not closed; a brace is written {{ or }}");
        cpl_span inner = cpl_span_part(text, *at + 1, close);
        *at            = close + 1;
        return parse_name(piece, pool, inner);
    }
    if (c == '}' && following != '}')
        return CPL_FAIL(CPL_ERR_INPUT, "\"}\" closes nothing; a brace is written {{ or }}");
    size_t from = *at, end = from + 1;
    *at += c == '{' || c == '}' ? 2 : 1;
    for (; *at == end && end < text.length && text.bytes[end] != '{' && text.bytes[end] != '}';
         end++)
        *at = end + 1;
    piece->text   = cpl_pool_copy(pool, text.bytes + from, end - from);
    piece->length = end - from;
    return CPL_OK;
}

cpl_status cpl_template_parse(cpl_template *t, cpl_pool *pool, const char *text)
{
    cpl_span span = cpl_span_of(text);
    size_t most   = 1;
    for (size_t i = 0; i < span.length; i++)
        if (text[i] == '{' || text[i] == '}') most += 2;
    cpl_template_part *pieces = cpl_pool_take(pool, most * sizeof *pieces);
    int64_t count             = 0;
    if (!pieces) return cpl_pool_status(pool);
    for (size_t at = 0; at < span.length;) CPL_TRY(parse_piece(&pieces[count++], pool, span, &at));
    *t = (cpl_template){pieces, count};
    return cpl_pool_status(pool);
}

bool cpl_template_names(const cpl_template *t, const char *name)
{
    for (int64_t i = 0; i < t->count; i++)
        if (t->pieces[i].name && strcmp(t->pieces[i].name, name) == 0) return true;
    return false;
}

bool cpl_template_is_name(const cpl_template *t)
{
    return t->count == 1 && t->pieces[0].name;
}
