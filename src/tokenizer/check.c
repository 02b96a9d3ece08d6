/* check.c - what a tokenizer.json asks for, and the refusal of other kinds than byte-level
 * BPE (see load.h). */
#include <string.h>

#include "tokenizer/load.h"

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

/* The "type" of a part; "(none)" if it has no such string. */
static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "(none)";
}

static bool is_type(const json_t *part, const char *type)
{
    return strcmp(type_of(part), type) == 0;
}

static cpl_status check_normalizer(cpl_tokenizer *t, const json_t *part, const char *path)
{
    t->nfc = !is_absent(part);
    if (t->nfc && !is_type(part, "NFC"))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: normalizer %s is not supported; NFC and null are", path,
                        type_of(part));
    return CPL_OK;
}

static cpl_status check_split(cpl_tokenizer *t, const json_t *part, const char *path)
{
    const char *pattern =
        json_string_value(json_object_get(json_object_get(part, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    bool invert          = json_is_true(json_object_get(part, "invert"));
    if (!pattern || !cpl_split_known(pattern, &t->split))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the pattern of pre_tokenizer Split is none of the supported ones "
                        "(GPT-2's and OLMo 2's): %.200s",
                        path, pattern ? pattern : "(no Regex)");
    bool removed  = behavior && strcmp(behavior, "Removed") == 0 && invert;
    bool isolated = behavior && strcmp(behavior, "Isolated") == 0 && !invert;
    if (!removed && !isolated)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: pre_tokenizer Split with behavior %s and invert %s is not supported; "
                        "Removed with true and Isolated with false are",
                        path, behavior ? behavior : "(none)", invert ? "true" : "false");
    return CPL_OK;
}

/* `use_regex` may be absent, which means true. */
static cpl_status check_byte_level(cpl_tokenizer *t, const json_t *part, bool use_regex,
                                   const char *path)
{
    const json_t *given = json_object_get(part, "use_regex");
    if (!is_type(part, "ByteLevel") || json_is_false(given) == use_regex)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "%s: pre_tokenizer %s%s is not supported; ByteLevel, or a Sequence of Split "
            "and ByteLevel with use_regex false, are",
            path, type_of(part), json_is_false(given) ? " with use_regex false" : "");
    t->prefix_space = json_is_true(json_object_get(part, "add_prefix_space"));
    return CPL_OK;
}

static cpl_status check_pre_tokenizer(cpl_tokenizer *t, const json_t *part, const char *path)
{
    t->split = CPL_SPLIT_GPT2;
    if (!is_type(part, "Sequence")) return check_byte_level(t, part, true, path);
    const json_t *parts = json_object_get(part, "pretokenizers");
    if (json_array_size(parts) != 2 || !is_type(json_array_get(parts, 0), "Split"))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: only a pre_tokenizer Sequence of Split and ByteLevel is supported",
                        path);
    CPL_TRY(check_split(t, json_array_get(parts, 0), path));
    CPL_TRY(check_byte_level(t, json_array_get(parts, 1), false, path));
    if (t->prefix_space)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: add_prefix_space after a Split is not supported", path);
    return CPL_OK;
}

/* Parts that would change the ids or the text but have no counterpart here. */
static cpl_status check_ends(const json_t *root, const char *path)
{
    static const char *const absent[] = {"truncation", "padding"};
    for (size_t i = 0; i < 2; i++)
        if (!is_absent(json_object_get(root, absent[i])))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: %s is not supported; set it to null", path,
                            absent[i]);
    const json_t *post = json_object_get(root, "post_processor");
    if (!is_absent(post) && !is_type(post, "ByteLevel"))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: post_processor %s is not supported; ByteLevel and null are", path,
                        type_of(post));
    const json_t *decoder = json_object_get(root, "decoder");
    if (!is_type(decoder, "ByteLevel"))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: decoder %s is not supported; ByteLevel is", path,
                        type_of(decoder));
    return CPL_OK;
}

static cpl_status check_model(const json_t *model, const char *path)
{
    if (json_object_get(model, "type") && !is_type(model, "BPE"))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: a model of type %s is not supported; BPE is", path,
                        type_of(model));
    if (!is_absent(json_object_get(model, "dropout")))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: model.dropout is not supported; set it to null", path);
    static const char *const switches[] = {"byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < 2; i++)
        if (json_is_true(json_object_get(model, switches[i])))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: model.%s true is not supported", path, switches[i]);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (!is_absent(affix) && (!json_is_string(affix) || json_string_length(affix) > 0))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: model.%s is not supported; set it to null", path,
                            affixes[i]);
    }
    return CPL_OK;
}

cpl_status cpl_tokenizer_check(cpl_tokenizer *t, const json_t *root, const char *path)
{
    CPL_TRY(check_model(json_object_get(root, "model"), path));
    CPL_TRY(check_normalizer(t, json_object_get(root, "normalizer"), path));
    CPL_TRY(check_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), path));
    return check_ends(root, path);
}
