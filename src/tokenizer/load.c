/* load.c - finds, reads and frees tokenizer files (see tokenizer.h). */
#include "tokenizer/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"

/* ---- the parts of a tokenizer.json ----
 *
 * A part that changes the ids of no text is accepted. A part that changes ids and is unknown here
 * is refused by its name (docs/formats.md, "Tokenizers"). A Sequence stands for its members. */

typedef struct reading {
    cpl_tokenizer *t;
    const char *path;
    bool is_split, is_bytes; /* true if pre_tokenizer's Split and ByteLevel were read */
} reading;

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* Returns the "type" of a part, or "(none)" without this string. */
static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "(none)";
}

static bool is_type(const json_t *part, const char *type)
{
    return strcmp(type_of(part), type) == 0;
}

/* Records a warning about a part that changes no ids but is ignored. */
static void ignore(const reading *r, const char *part, const char *type, const char *instead)
{
    cpl_text *to = &r->t->ignored;
    if (to->length == 0) cpl_text_printf(to, "%s", r->path);
    cpl_text_printf(to, "%s %s%s is ignored, and %s", to->length == strlen(r->path) ? ":" : ";",
                    part, type, instead);
}

static cpl_status refuse(const reading *r, const char *name, const json_t *part, const char *why)
{
    return CPL_FAIL(CPL_ERR_INPUT, "%s: %s %s is not supported%s", r->path, name, type_of(part),
                    why);
}

typedef cpl_status take_part(reading *r, const json_t *part);

/* Calls `take` for the part, or for each member of a Sequence, listed under `key`. */
static cpl_status take_each(reading *r, const json_t *part, const char *key, take_part *take)
{
    size_t i;
    json_t *member;
    if (is_absent(part)) return CPL_OK;
    if (!is_type(part, "Sequence")) return take(r, part);
    json_array_foreach(json_object_get(part, key), i, member)
    {
        CPL_TRY(take_each(r, member, key, take));
    }
    return CPL_OK;
}

/* Returns whether a normalizer leaves every text unchanged: Strip and BertNormalizer with all
 * switches off, and Replace of a text by itself. */
static bool is_idle(const json_t *part)
{
    const json_t *pattern = json_object_get(json_object_get(part, "pattern"), "String");
    const char *content   = json_string_value(json_object_get(part, "content"));
    const char *key;
    json_t *value;
    bool is_on = false;
    if (is_type(part, "Replace")) return content && *content && is_text(pattern, content);
    json_object_foreach((json_t *)part, key, value)
    {
        is_on = is_on || json_is_true(value);
    }
    return !is_on && (is_type(part, "Strip") || is_type(part, "BertNormalizer"));
}

static cpl_status take_normalizer(reading *r, const json_t *part)
{
    if (is_idle(part)) return CPL_OK;
    if (!is_type(part, "NFC")) return refuse(r, "normalizer", part, "; NFC and null are");
    r->t->nfc = true;
    return CPL_OK;
}

/* Returns whether a Split makes each match a word, for a pattern that covers the whole text. */
static bool makes_words(const json_t *split)
{
    static const char *const behaviors[] = {"Isolated", "MergedWithPrevious", "MergedWithNext"};
    const json_t *behavior               = json_object_get(split, "behavior");
    for (size_t i = 0; i < sizeof behaviors / sizeof *behaviors; i++)
        if (is_text(behavior, behaviors[i])) return true;
    return is_text(behavior, "Removed") && json_is_true(json_object_get(split, "invert"));
}

/* Reads a Split. The known patterns cover the whole text and do not split their own words, so a
 * pattern may occur twice. */
static cpl_status take_split(reading *r, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const char *regex     = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal   = json_string_value(json_object_get(pattern, "String"));
    cpl_split_kind kind;
    if (literal)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the pattern of pre_tokenizer Split is a String, which is searched for "
                        "letter by letter, and not a Regex: \"%.200s\"",
                        r->path, literal);
    if (!regex || !cpl_split_known(regex, &kind) || (r->is_split && kind != r->t->split))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the pattern of pre_tokenizer Split is none of the supported ones "
                        "(GPT-2's and OLMo 2's, one of them per file): %.200s",
                        r->path, regex ? regex : "(none)");
    if (!makes_words(part))
        return refuse(r, "pre_tokenizer", part,
                      " with this behavior, which does not make each match of the pattern a word; "
                      "Isolated does, and Removed with invert true");
    r->is_split = true;
    r->t->split = kind;
    return CPL_OK;
}

/* Reads a part of pre_tokenizer. No part may follow a ByteLevel, since it would see the byte-level
 * alphabet. ByteLevel uses GPT-2's pattern unless use_regex is false. */
static cpl_status take_pre_tokenizer(reading *r, const json_t *part)
{
    const bool prefix = json_is_true(json_object_get(part, "add_prefix_space"));
    const bool cuts   = !json_is_false(json_object_get(part, "use_regex"));
    if (r->is_bytes) return refuse(r, "pre_tokenizer", part, " after ByteLevel");
    if (is_type(part, "Split")) return take_split(r, part);
    if (!is_type(part, "ByteLevel"))
        return refuse(r, "pre_tokenizer", part, "; ByteLevel, and Split before it, are");
    if (!r->is_split && !cuts)
        return refuse(r, "pre_tokenizer", part, " with use_regex false without a Split before it");
    if (r->is_split && cuts && r->t->split != CPL_SPLIT_GPT2)
        return refuse(r, "pre_tokenizer", part, " with use_regex true after another pattern");
    if (r->is_split && prefix)
        return refuse(r, "pre_tokenizer", part, " with add_prefix_space true after a Split");
    r->is_bytes        = true;
    r->t->prefix_space = prefix;
    return CPL_OK;
}

/* Returns whether a TemplateProcessing gives the text once, and only special tokens without ids. */
static bool is_text_alone(const json_t *part)
{
    const json_t *tokens = json_object_get(part, "special_tokens");
    size_t i, texts = 0;
    json_t *piece;
    json_array_foreach(json_object_get(part, "single"), i, piece)
    {
        const json_t *text    = json_object_get(json_object_get(piece, "Sequence"), "id");
        const json_t *special = json_object_get(json_object_get(piece, "SpecialToken"), "id");
        const json_t *token   = json_object_get(tokens, json_string_value(special));
        const json_t *ids     = json_object_get(token, "ids");
        const bool is_text_a  = is_text(text, "A");
        if (!is_text_a && (!json_is_array(ids) || json_array_size(ids) > 0)) return false;
        texts += is_text_a;
    }
    return texts == 1;
}

static cpl_status take_post_processor(reading *r, const json_t *part)
{
    if (is_type(part, "ByteLevel")) return CPL_OK;
    if (is_type(part, "TemplateProcessing") && is_text_alone(part)) return CPL_OK;
    return refuse(r, "post_processor", part,
                  ", since it changes the ids of a text: set it to null if the model was trained "
                  "without that");
}

static cpl_status take_decoder(reading *r, const json_t *part)
{
    if (!is_type(part, "ByteLevel") && !is_type(part, "Fuse"))
        ignore(r, "decoder ", type_of(part), "ids become text as with ByteLevel");
    return CPL_OK;
}

/* Checks the model. unk_token, fuse_unk and byte_fallback may be ignored, since the vocabulary has
 * every byte (tokens.c) and no character is unknown. */
static cpl_status check_model(const json_t *model, const char *path)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout              = json_object_get(model, "dropout");
    if (json_object_get(model, "type") && !is_type(model, "BPE"))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: a model of type %s is not supported; BPE is", path,
                        type_of(model));
    if (!is_absent(dropout) && (!json_is_number(dropout) || json_number_value(dropout) != 0))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: model.dropout is not supported; set it to null", path);
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (!is_absent(affix) && !is_text(affix, ""))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: model.%s is not supported; set it to null", path,
                            affixes[i]);
    }
    return CPL_OK;
}

/* Reads all parts of a tokenizer.json except tokens and merges. */
static cpl_status take_parts(cpl_tokenizer *t, const json_t *root, const char *path)
{
    reading r = {.t = t, .path = path};
    CPL_TRY(check_model(json_object_get(root, "model"), path));
    CPL_TRY(take_each(&r, json_object_get(root, "normalizer"), "normalizers", take_normalizer));
    CPL_TRY(
        take_each(&r, json_object_get(root, "pre_tokenizer"), "pretokenizers", take_pre_tokenizer));
    if (!r.is_bytes)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: pre_tokenizer has no ByteLevel, and only byte-level BPE is supported",
                        path);
    CPL_TRY(
        take_each(&r, json_object_get(root, "post_processor"), "processors", take_post_processor));
    if (!is_absent(json_object_get(root, "truncation")))
        ignore(&r, "truncation", "", "texts keep all of their ids");
    if (!is_absent(json_object_get(root, "padding")))
        ignore(&r, "padding", "", "texts get no further ids");
    CPL_TRY(take_each(&r, json_object_get(root, "decoder"), "decoders", take_decoder));
    return cpl_text_status(&t->ignored);
}

/* ---- files ---- */

static cpl_status read_tokenizer_json(cpl_tokenizer *t, const json_t *root, const char *path)
{
    const json_t *model = json_object_get(root, "model");
    json_t *vocab       = json_object_get(model, "vocab");
    CPL_TRY(take_parts(t, root, path));
    CPL_TRY(cpl_tokenizer_read_tokens(t, vocab, json_object_get(root, "added_tokens"), path));
    CPL_TRY(cpl_tokenizer_read_merges(t, vocab, json_object_get(model, "merges"), path));
    if (!json_is_true(json_object_get(model, "ignore_merges"))) return CPL_OK;
    return cpl_tokenizer_check_words(t, path);
}

/* Sets `out` to the first of the NULL-terminated `names` that exists in `folder`, or to "". */
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

/* Refuses a file of added tokens, which Transformers before version 5 wrote beside a pair. */
static cpl_status refuse_added(const char *merges_path)
{
    static const char *const names[] = {"added_tokens.json", NULL};
    const char *name                 = base_name(merges_path);
    cpl_text added                   = {0};
    const bool bare                  = name == merges_path;
    find_in(&added, bare ? "." : merges_path, bare ? 1 : (size_t)(name - merges_path - 1), names);
    cpl_status status = cpl_text_status(&added);
    if (status == CPL_OK && added.length > 0)
        status =
            CPL_FAIL(CPL_ERR_INPUT,
                     "%s: added tokens in a file of their own are not read: load the folder with "
                     "AutoTokenizer of Transformers and save it, which writes a tokenizer.json",
                     added.bytes);
    cpl_text_free(&added);
    return status;
}

/* Reads GPT-2's two files. `vocab` is the content of the first file. Its entry <|endoftext|>
 * becomes an added special token. */
static cpl_status read_gpt2_pair(cpl_tokenizer *t, json_t *vocab, const char *path,
                                 const char *merges_path)
{
    cpl_text lines    = {0};
    json_t *added     = NULL;
    const json_t *end = json_object_get(vocab, "<|endoftext|>");
    cpl_status status = refuse_added(merges_path);
    if (status == CPL_OK) status = cpl_file_read(&lines, merges_path, CPL_TOKEN_FILE_MAX);
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

/* Reads the JSON at `path`: a tokenizer.json, or a vocabulary whose merges are at `merges_path`. */
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

static bool is_merges_name(const char *name)
{
    return strcmp(name, merges_names[0]) == 0 || strcmp(name, merges_names[1]) == 0;
}

/* Sets the one or two files that the user's path names. `merges` is "" for one file. */
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
                        "%s: has neither tokenizer.json nor encoder.json with vocab.bpe", path);
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
