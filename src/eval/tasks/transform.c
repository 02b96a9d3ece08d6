/* transform.c - see transform.h: chains of transformations; they themselves are transform_texts.c */
#include "eval/tasks/transform.h"

#include "base/lookup.h"
#include "eval/tasks/transform_internal.h"

typedef enum wants { NOTHING, TEXT, PAIR } wants;

struct cpl_transform_kind {
    const char *name;
    wants argument;
    cpl_text_transform *text; /* two of the three are NULL */
    cpl_parse_transform *list;
    cpl_parse_sieve *sieve;
};

static const cpl_transform_kind kinds[] = {
#define CPL_TRANSFORM(name, wants, what) {#name, wants, cpl_transform_##name, NULL, NULL},
#define CPL_SPLITTER(name, what)         {#name, NOTHING, NULL, cpl_transform_##name, NULL},
#define CPL_SIEVE(name, what)            {#name, TEXT, NULL, NULL, cpl_transform_##name},
#include "eval/tasks/transforms.def"
#undef CPL_TRANSFORM
#undef CPL_SPLITTER
#undef CPL_SIEVE
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static cpl_status find_kind(const cpl_transform_kind **kind, const char *name)
{
    const char *names[N_KINDS];
    size_t index;
    for (int i = 0; i < N_KINDS; i++) names[i] = kinds[i].name;
    CPL_TRY(cpl_lookup(&index, "transformation", name, names, N_KINDS));
    *kind = &kinds[index];
    return CPL_OK;
}

static cpl_status parse_one(cpl_transform *transform, cpl_pool *pool, cpl_span text)
{
    size_t colon     = cpl_span_find_byte(text, 0, ':');
    size_t end       = colon == CPL_NOWHERE ? text.length : colon;
    const char *name = cpl_pool_copy(pool, text.bytes, end);
    *transform       = (cpl_transform){0};
    CPL_TRY(cpl_pool_status(pool));
    CPL_TRY(find_kind(&transform->kind, name));
    wants argument = transform->kind->argument;
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
        if (list && at[i].kind->list)
            return CPL_FAIL(CPL_ERR_INPUT, "%s wants a text, not a list", at[i].kind->name);
        list |= at[i].kind->list != NULL;
        if (bar != CPL_NOWHERE) text = cpl_span_part(text, bar + 1, text.length);
    }
    return CPL_OK;
}

bool cpl_chain_makes_list(const cpl_chain *chain)
{
    for (int64_t i = 0; i < chain->count; i++)
        if (chain->at[i].kind->list) return true;
    return false;
}

static cpl_status apply_to_text(json_t **out, const cpl_transform *how, const json_t *value)
{
    cpl_span text     = {json_string_value(value), json_string_length(value)};
    cpl_text made     = {0};
    cpl_status status = CPL_OK;
    if (how->kind->sieve)
        return CPL_FAIL(CPL_ERR_INPUT, "%s wants a list, not a text", how->kind->name);
    if (how->kind->list) {
        *out   = json_array();
        status = *out ? how->kind->list(*out, text) : CPL_FAIL(CPL_ERR_MEMORY, "out of memory");
    } else {
        status = how->kind->text(&made, text, how);
        if (status == CPL_OK) status = cpl_text_status(&made);
        if (status == CPL_OK) *out = json_stringn(made.bytes ? made.bytes : "", made.length);
        if (status == CPL_OK && !*out)
            status = CPL_FAIL(CPL_ERR_INPUT, "%s leaves what is no UTF-8", how->kind->name);
    }
    cpl_text_free(&made);
    if (status == CPL_OK) return CPL_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}

static cpl_status apply_to_list(json_t **out, const cpl_transform *how, const json_t *value)
{
    size_t i;
    const json_t *item;
    cpl_status status = CPL_OK;
    const size_t kept = how->kind->sieve ? how->kind->sieve(value, how) : json_array_size(value);
    *out              = json_array();
    if (!*out) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for a list");
    for (i = 0; i < kept; i++) {
        json_t *made = NULL;
        item         = json_array_get(value, i);
        if (how->kind->sieve)
            made = json_incref((json_t *)(uintptr_t)item);
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
