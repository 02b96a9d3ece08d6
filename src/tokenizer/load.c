/* load.c - finds, reads and frees tokenizer files (see tokenizer.h). */
#include "tokenizer/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"

/* ---- what a tokenizer.json must hold (see internal.h) ---- */

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

/* Checks that part `name` is of this type, or absent if that is allowed. */
static cpl_status check_type(const json_t *root, const char *name, const char *type, bool or_absent,
                             const char *path)
{
    const json_t *part = json_object_get(root, name);
    if (is_type(part, type) || (or_absent && is_absent(part))) return CPL_OK;
    return CPL_FAIL(CPL_ERR_INPUT, "%s: %s %s is not supported; %s %s", path, name, type_of(part),
                    type, or_absent ? "and null are" : "is");
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
    CPL_TRY(check_type(root, "post_processor", "ByteLevel", true, path));
    return check_type(root, "decoder", "ByteLevel", false, path);
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

/* Reads everything in a tokenizer.json except tokens and merges, sets the switches of `t`
 * accordingly, and refuses other kinds than byte-level BPE. `path` is for the errors. */
static cpl_status check(cpl_tokenizer *t, const json_t *root, const char *path)
{
    CPL_TRY(check_model(json_object_get(root, "model"), path));
    CPL_TRY(check_type(root, "normalizer", "NFC", true, path));
    t->nfc = !is_absent(json_object_get(root, "normalizer"));
    CPL_TRY(check_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), path));
    return check_ends(root, path);
}

/* ---- files ---- */

static cpl_status read_tokenizer_json(cpl_tokenizer *t, const json_t *root, const char *path)
{
    const json_t *model = json_object_get(root, "model");
    json_t *vocab       = json_object_get(model, "vocab");
    CPL_TRY(check(t, root, path));
    CPL_TRY(cpl_tokenizer_read_tokens(t, vocab, json_object_get(root, "added_tokens"), path));
    return cpl_tokenizer_read_merges(t, vocab, json_object_get(model, "merges"), path);
}

/* GPT-2's form: `vocab` is the whole first file. It lists <|endoftext|> like any other entry; that
 * is an added special token. */
static cpl_status read_gpt2_pair(cpl_tokenizer *t, json_t *vocab, const char *path,
                                 const char *merges_path)
{
    cpl_text lines    = {0};
    json_t *added     = NULL;
    const json_t *end = json_object_get(vocab, "<|endoftext|>");
    cpl_status status = cpl_file_read(&lines, merges_path, CPL_TOKEN_FILE_MAX);
    if (status != CPL_OK) goto done;
    t->hash = XXH3_64bits_withSeed(lines.bytes ? lines.bytes : "", lines.length, t->hash);
    if (json_is_integer(end))
        added = json_pack("[{s:s,s:I,s:b}]", "content", "<|endoftext|>", "id",
                          json_integer_value(end), "special", 1);
    CPL_TRY_DONE(cpl_tokenizer_read_tokens(t, vocab, added, path));
    CPL_TRY_DONE(cpl_tokenizer_read_merge_lines(t, vocab, &lines, merges_path));
done:
    json_decref(added);
    cpl_text_free(&lines);
    return status;
}

/* `path` holds JSON: a tokenizer.json, or a vocabulary whose merges are at `merges_path`. */
static cpl_status read_json(cpl_tokenizer *t, const char *path, const char *merges_path, bool given)
{
    cpl_text text = {0};
    json_t *root  = NULL;
    cpl_status status =
        (given ? cpl_file_read_given : cpl_file_read)(&text, path, CPL_TOKEN_FILE_MAX);
    if (status != CPL_OK) goto done;
    t->hash = XXH3_64bits(text.bytes ? text.bytes : "", text.length);
    CPL_TRY_DONE(cpl_json_parse(&root, text.bytes ? text.bytes : "", text.length, path));
    cpl_text_free(&text);
    if (json_is_object(json_object_get(root, "model")))
        status = read_tokenizer_json(t, root, path);
    else if (merges_path)
        status = read_gpt2_pair(t, root, path, merges_path);
    else
        status = CPL_FAIL(CPL_ERR_INPUT,
                          "%s: no tokenizer.json (it has no \"model\"), and no vocab.bpe or "
                          "merges.txt is in its folder",
                          path);
done:
    json_decref(root);
    cpl_text_free(&text);
    return status;
}

/* Sets `out` to the first of the NULL-terminated `names` that is in `folder`, "" if none is. */
static void find_in(cpl_text *out, const char *folder, size_t folder_length,
                    const char *const *names)
{
    for (; *names; names++) {
        struct stat info;
        cpl_text_clear(out);
        cpl_text_printf(out, "%.*s/%s", (int)folder_length, folder, *names);
        if (!out->failed && stat(out->bytes, &info) == 0 && S_ISREG(info.st_mode)) return;
    }
    cpl_text_clear(out);
}

static const char *const tokenizer_names[] = {"tokenizer.json", NULL};
static const char *const vocab_names[]     = {"encoder.json", "vocab.json", NULL};
static const char *const merges_names[]    = {"vocab.bpe", "merges.txt", NULL};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_merges_name(const char *name)
{
    return strcmp(name, merges_names[0]) == 0 || strcmp(name, merges_names[1]) == 0;
}

/* Sets the one or two files that the user's path names: `merges` is "" if there is none. */
static cpl_status find_files(cpl_text *json, cpl_text *merges, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) return CPL_FAIL(CPL_ERR_IO, "%s: %s", path, strerror(errno));
    bool folder       = S_ISDIR(info.st_mode);
    const char *name  = base_name(path);
    const char *where = folder || name > path ? path : ".";
    size_t length     = folder || name == path ? strlen(where) : (size_t)(name - path - 1);
    find_in(merges, where, length, merges_names);
    if (folder) find_in(json, where, length, tokenizer_names);
    if ((folder && json->length == 0) || is_merges_name(name)) {
        find_in(json, where, length, vocab_names);
    } else if (!folder) {
        cpl_text_append(json, path, strlen(path));
    }
    if (is_merges_name(name)) {
        cpl_text_clear(merges);
        cpl_text_append(merges, path, strlen(path));
    }
    CPL_TRY(cpl_text_status(json));
    CPL_TRY(cpl_text_status(merges));
    if (json->length == 0)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: neither tokenizer.json nor encoder.json with vocab.bpe is there",
                        path);
    return CPL_OK;
}

static cpl_status load(cpl_tokenizer **out, const char *path, bool given)
{
    cpl_text json = {0}, merges = {0};
    *out             = NULL;
    cpl_tokenizer *t = cpl_alloc(sizeof *t);
    if (!t) return CPL_ERR_MEMORY;
    memset(t, 0, sizeof *t);
    t->eos            = -1;
    cpl_status status = find_files(&json, &merges, path);
    if (status != CPL_OK) goto done;
    CPL_TRY_DONE(read_json(t, json.bytes, merges.length ? merges.bytes : NULL, given));
done:
    cpl_text_free(&json);
    cpl_text_free(&merges);
    if (status == CPL_OK)
        *out = t;
    else
        cpl_tokenizer_free(t);
    return status;
}

cpl_status cpl_tokenizer_load(cpl_tokenizer **out, const char *path)
{
    return load(out, path, false);
}

cpl_status cpl_tokenizer_load_given(cpl_tokenizer **out, const char *path)
{
    return load(out, path, true);
}
