/* transform.c - see scope.h: the transformations, and chains of them */
#include "eval/tasks/scope.h"

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

/* What stands before a text's first occurrence. */
static cpl_status before(cpl_span *part, cpl_span text, const char *mark)
{
    size_t at;
    CPL_TRY(find(&at, text, mark));
    *part = cpl_span_part(text, 0, at);
    return CPL_OK;
}

/* What stands behind a text's first occurrence. */
static cpl_status after(cpl_span *part, cpl_span text, const char *mark)
{
    size_t at;
    CPL_TRY(find(&at, text, mark));
    *part = cpl_span_part(text, at + strlen(mark), text.length);
    return CPL_OK;
}

/* The same, or all. */
static cpl_status behind(cpl_span *part, cpl_span text, const char *mark)
{
    *part = text;
    return cpl_span_find(text, 0, mark) == CPL_NOWHERE ? CPL_OK : after(part, text, mark);
}

/* All of it, if something stands behind a text's last occurrence. */
static cpl_status holding(cpl_span *part, cpl_span text, const char *mark)
{
    size_t at;
    CPL_TRY(find(&at, text, mark));
    at    = cpl_span_find_last(text, mark) + strlen(mark);
    *part = text;
    if (cpl_words_strip(cpl_span_part(text, at, text.length)).length) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "nothing stands behind its \"%.100s\"", mark);
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

/* A text becomes its part, stripped, in other cases, and then the substitutions are made in it; a PAIR
 * is one too. NULL: not. */
struct cpl_transform_kind {
    const char *name;
    wants argument;
    cpl_status (*part)(cpl_span *part, cpl_span text, const char *mark);
    cpl_span (*strip)(cpl_span text);
    void (*cases)(cpl_text *out, cpl_span text);
    cpl_substitution steps[MOST_STEPS]; /* up to one that is all zero */
    const char *first, *mark; /* a list of what stands behind `first` and behind each `mark`, whose
                                 letter goes on from B to Z; NULL: a text */
    bool unpads;              /* a list, whose last members are left out as long as they are TEXT */
};

#define BRACKETS "\\[[^]\\n]*+(*SKIP)\\]" /* with what stands in them, on one line */

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
    {"replace", PAIR, .part = NULL},
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

/* "(A) one (B) two": from the left, each mark in its turn. */
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

/* How many members of a list it keeps, from the first. */
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
                        argument == NOTHING ? "takes nothing behind it"
                                            : "wants a text behind it: \":TEXT\"");
    if (argument == NOTHING) return CPL_OK;
    cpl_span rest = cpl_span_part(text, colon + 1, text.length);
    size_t equals = argument == PAIR ? cpl_span_find_byte(rest, 0, '=') : rest.length;
    if (equals == CPL_NOWHERE || equals == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s wants a text behind it: \"%s\"", name,
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
            return CPL_FAIL(CPL_ERR_INPUT, "%s wants a text, not a list", at[i].kind->name);
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
        return CPL_FAIL(CPL_ERR_INPUT, "%s wants a list, not a text", how->kind->name);
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
