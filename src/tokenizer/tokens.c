/* tokens.c - reads vocabulary, added tokens and merges from JSON (see internal.h). */
#include <string.h>

#include "base/arena.h"
#include "tokenizer/internal.h"
#include "tokenizer/unicode.h"

static cpl_status check_id(const json_t *id, const char *name, const char *path)
{
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value > CPL_TOKEN_MAX_ID)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the id of token \"%.100s\" is not a number from 0 to %d", path, name,
                        CPL_TOKEN_MAX_ID);
    return CPL_OK;
}

static void keep_larger(int64_t *largest, const json_t *id)
{
    if (json_integer_value(id) > *largest) *largest = json_integer_value(id);
}

/* Checks every id and finds the largest. */
static cpl_status find_last_id(int64_t *last, json_t *vocab, const json_t *added, const char *path)
{
    const char *name;
    json_t *value;
    size_t i;
    *last = -1;
    json_object_foreach(vocab, name, value)
    {
        CPL_TRY(check_id(value, name, path));
        keep_larger(last, value);
    }
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content || !*content)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: added_tokens[%zu] has no content", path, i);
        CPL_TRY(check_id(json_object_get(value, "id"), content, path));
        keep_larger(last, json_object_get(value, "id"));
    }
    return CPL_OK;
}

/* Appends the bytes that the characters of `name` represent, or the bytes of `name` itself if a
 * character represents no byte. */
static void append_name_bytes(cpl_text *out, const char *name,
                              const int16_t byte_of[CPL_ALPHABET_POINTS])
{
    const unsigned char *s = (const unsigned char *)name;
    size_t start = out->length, length = strlen(name);
    for (size_t at = 0; at < length;) {
        int n;
        uint32_t point = cpl_unicode_next(s + at, &n);
        if (point >= CPL_ALPHABET_POINTS || byte_of[point] < 0) {
            if (!out->failed) out->length = start;
            cpl_text_append(out, name, length);
            return;
        }
        cpl_text_char(out, (char)byte_of[point]);
        at += (size_t)n;
    }
}

static void close_token(cpl_tokenizer *t, cpl_token *token, size_t start)
{
    token->start   = (uint32_t)start;
    token->length  = (uint32_t)(t->bytes.length - start);
    token->present = true;
}

static cpl_status read_vocab(cpl_tokenizer *t, json_t *vocab, const char *path)
{
    int16_t byte_of[CPL_ALPHABET_POINTS];
    cpl_tokenizer_alphabet_bytes(byte_of);
    const char *name;
    json_t *value;
    json_object_foreach(vocab, name, value)
    {
        cpl_token *token = t->tokens + json_integer_value(value);
        if (token->present)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: two tokens have the id %lld; one is \"%.100s\"",
                            path, (long long)json_integer_value(value), name);
        size_t start = t->bytes.length;
        append_name_bytes(&t->bytes, name, byte_of);
        close_token(t, token, start);
    }
    return cpl_text_status(&t->bytes);
}

/* Sets the ids of single bytes. Only bytes that never occur in UTF-8 may lack a token, as 13 do in
 * GPT-NeoX's vocabulary. */
static cpl_status read_byte_ids(cpl_tokenizer *t, const json_t *vocab, const char *path)
{
    uint32_t point_of[256];
    cpl_tokenizer_alphabet_points(point_of);
    for (int b = 0; b < 256; b++) {
        char name[5]                             = {0};
        name[cpl_utf8_encode(point_of[b], name)] = '\0';
        const json_t *id                         = json_object_get(vocab, name);
        t->merges.byte_id[b]                     = id ? (int32_t)json_integer_value(id) : -1;
        bool in_utf8                             = b <= 0xBF || (b >= 0xC2 && b <= 0xF4);
        if (!id && in_utf8)
            return CPL_FAIL(CPL_ERR_INPUT,
                            "%s: the vocabulary has no token for the byte %02x, so not every text "
                            "can be encoded",
                            path, (unsigned)b);
    }
    return CPL_OK;
}

/* Checks the id of an added token, which Hugging Face's library ignores. A token of the vocabulary
 * keeps its id. Other added tokens, `*beyond` so far, follow the vocabulary in order. */
static cpl_status check_place(const cpl_tokenizer *t, const json_t *vocab, const char *content,
                              int64_t id, int64_t *beyond, const char *path)
{
    const json_t *named = json_object_get(vocab, content);
    int64_t wanted =
        named ? json_integer_value(named) : (int64_t)json_object_size(vocab) + (*beyond)++;
    if (id != wanted)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: added token \"%.100s\" has the id %lld, but Hugging Face's tokenizers "
                        "gives it %lld%s: write that id into the file",
                        path, content, (long long)id, (long long)wanted,
                        named ? ", its id in the vocabulary"
                              : " (added tokens follow the vocabulary, in the order of the file)");
    if (t->tokens[id].added || (t->tokens[id].present && !named))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: two tokens have the id %lld; one is \"%.100s\"", path,
                        (long long)id, content);
    return CPL_OK;
}

/* Refuses a token that is listed twice. Hugging Face's library ignores the second entry, which
 * changes the ids of later tokens. */
static cpl_status check_once(json_t *seen, const char *content, const char *path)
{
    if (json_object_get(seen, content))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: added token \"%.100s\" is listed twice: keep one of its entries", path,
                        content);
    return json_object_set_new(seen, content, json_true()) == 0 ? CPL_OK : CPL_ERR_MEMORY;
}

static cpl_status check_switches(const json_t *entry, const char *content, const char *path)
{
    static const char *const names[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < 3; i++)
        if (json_is_true(json_object_get(entry, names[i])))
            return CPL_FAIL(CPL_ERR_INPUT, "%s: added token \"%.100s\": %s is not supported", path,
                            content, names[i]);
    return CPL_OK;
}

/* Adds the token `id` to the set that its "normalized" selects. In normalised text the normalised
 * content is searched. */
static cpl_status add_to_set(cpl_tokenizer *t, cpl_nfc *nfc, const json_t *entry, int64_t id)
{
    const cpl_token *token = t->tokens + id;
    bool normalized        = json_is_true(json_object_get(entry, "normalized"));
    cpl_added_set *set     = normalized ? &t->normalized : &t->raw;
    cpl_added *added       = set->at + set->count++;
    *added                 = (cpl_added){token->start, token->length, (int32_t)id, token->special};
    if (!normalized || !t->nfc) return CPL_OK;
    const char *content = json_string_value(json_object_get(entry, "content"));
    added->start        = (uint32_t)t->bytes.length;
    CPL_TRY(cpl_nfc_append(nfc, &t->bytes, content, strlen(content)));
    added->length = (uint32_t)(t->bytes.length - added->start);
    return CPL_OK;
}

static cpl_status read_added(cpl_tokenizer *t, cpl_nfc *nfc, const json_t *vocab,
                             const json_t *entry, int64_t *beyond, const char *path)
{
    const char *content = json_string_value(json_object_get(entry, "content"));
    int64_t id          = json_integer_value(json_object_get(entry, "id"));
    CPL_TRY(check_place(t, vocab, content, id, beyond, path));
    CPL_TRY(check_switches(entry, content, path));
    cpl_token *token = t->tokens + id;
    size_t start     = t->bytes.length;
    cpl_text_append(&t->bytes, content, strlen(content));
    close_token(t, token, start);
    token->added   = true;
    token->special = json_is_true(json_object_get(entry, "special"));
    if (strcmp(content, "<|endoftext|>") == 0) t->eos = (int32_t)id;
    CPL_TRY(cpl_text_status(&t->bytes));
    return add_to_set(t, nfc, entry, id);
}

static cpl_status read_all_added(cpl_tokenizer *t, const json_t *vocab, const json_t *added,
                                 const char *path)
{
    cpl_status status = CPL_OK;
    cpl_nfc nfc       = {0};
    json_t *seen      = NULL;
    int64_t beyond    = 0;
    size_t n          = json_array_size(added);
    if (n == 0) return CPL_OK;
    t->raw.at        = cpl_alloc(n * sizeof *t->raw.at);
    t->normalized.at = cpl_alloc(n * sizeof *t->normalized.at);
    if (!t->raw.at || !t->normalized.at) return CPL_ERR_MEMORY;
    seen = json_object();
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(added, i);
        CPL_TRY_DONE(check_once(seen, json_string_value(json_object_get(entry, "content")), path));
        CPL_TRY_DONE(read_added(t, &nfc, vocab, entry, &beyond, path));
    }
done:
    json_decref(seen);
    cpl_nfc_free(&nfc);
    return status;
}

cpl_status cpl_tokenizer_read_tokens(cpl_tokenizer *t, json_t *vocab, const json_t *added,
                                     const char *path)
{
    int64_t last;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: model.vocab is missing", path);
    CPL_TRY(find_last_id(&last, vocab, added, path));
    t->tokens = cpl_alloc((size_t)(last + 1) * sizeof *t->tokens);
    if (!t->tokens) return CPL_ERR_MEMORY;
    memset(t->tokens, 0, (size_t)(last + 1) * sizeof *t->tokens);
    t->vocab_size = last + 1;
    CPL_TRY(read_vocab(t, vocab, path));
    CPL_TRY(read_byte_ids(t, vocab, path));
    CPL_TRY(read_all_added(t, vocab, added, path));
    cpl_added_index(&t->raw, t->bytes.bytes);
    cpl_added_index(&t->normalized, t->bytes.bytes);
    return CPL_OK;
}

/* ---- merges ---- */

/* The state of reading merges. */
typedef struct reader {
    cpl_tokenizer *t;
    const json_t *vocab;
    const char *path;
    cpl_text left, right; /* appended to `left` after the id of `left` is known */
} reader;

static cpl_status token_id(const reader *r, const cpl_text *name, size_t rank, int32_t *id)
{
    const json_t *value = json_object_get(r->vocab, name->bytes);
    if (!value)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: merge %zu: \"%.100s\" is not in the vocabulary",
                        r->path, rank, name->bytes);
    *id = (int32_t)json_integer_value(value);
    return CPL_OK;
}

/* Adds the merge of r->left and r->right. */
static cpl_status add_merge(reader *r, size_t rank)
{
    int32_t left = 0, right = 0, both = 0;
    CPL_TRY(cpl_text_status(&r->left));
    CPL_TRY(cpl_text_status(&r->right));
    if (r->left.length == 0 || r->right.length == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: merge %zu is not two tokens", r->path, rank);
    CPL_TRY(token_id(r, &r->left, rank, &left));
    CPL_TRY(token_id(r, &r->right, rank, &right));
    cpl_text_append(&r->left, r->right.bytes, r->right.length);
    CPL_TRY(cpl_text_status(&r->left));
    CPL_TRY(token_id(r, &r->left, rank, &both));
    cpl_merges_add(&r->t->merges, left, right, (int32_t)rank, both);
    return CPL_OK;
}

static void set_text(cpl_text *text, const char *bytes, size_t length)
{
    cpl_text_clear(text);
    cpl_text_append(text, bytes, length);
}

/* Adds a merge written "a b", with exactly one space. */
static cpl_status add_spaced(reader *r, const char *pair, size_t length, size_t rank)
{
    const char *space = memchr(pair, ' ', length);
    size_t n          = space ? (size_t)(space - pair) : length;
    if (!space || memchr(space + 1, ' ', length - n - 1))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: merge %zu is not two tokens with one space between",
                        r->path, rank);
    set_text(&r->left, pair, n);
    set_text(&r->right, space + 1, length - n - 1);
    return add_merge(r, rank);
}

static cpl_status add_entry(reader *r, const json_t *entry, size_t rank)
{
    if (json_is_string(entry))
        return add_spaced(r, json_string_value(entry), json_string_length(entry), rank);
    const json_t *left = json_array_get(entry, 0), *right = json_array_get(entry, 1);
    if (json_array_size(entry) != 2 || !json_is_string(left) || !json_is_string(right))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: merge %zu is not two tokens", r->path, rank);
    set_text(&r->left, json_string_value(left), json_string_length(left));
    set_text(&r->right, json_string_value(right), json_string_length(right));
    return add_merge(r, rank);
}

/* Frees the texts of the reader and finishes the merges. Returns `status` if it is a failure. */
static cpl_status reader_end(reader *r, cpl_status status)
{
    cpl_text_free(&r->left);
    cpl_text_free(&r->right);
    return status == CPL_OK ? cpl_merges_finish(&r->t->merges) : status;
}

cpl_status cpl_tokenizer_read_merges(cpl_tokenizer *t, const json_t *vocab, const json_t *merges,
                                     const char *path)
{
    reader r          = {.t = t, .vocab = vocab, .path = path};
    cpl_status status = CPL_OK;
    if (!json_is_array(merges))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: model.merges is not a list", path);
    CPL_TRY(cpl_merges_init(&t->merges, (uint32_t)json_array_size(merges)));
    for (size_t i = 0; i < json_array_size(merges) && status == CPL_OK; i++)
        status = add_entry(&r, json_array_get(merges, i), i);
    return reader_end(&r, status);
}

/* Returns the length of the line at `at`, without its end. Sets *next to the next line. */
static size_t line_at(const cpl_text *lines, size_t at, size_t *next)
{
    const char *start = lines->bytes + at, *end = memchr(start, '\n', lines->length - at);
    size_t length = end ? (size_t)(end - start) : lines->length - at;
    *next         = at + length + (end != NULL);
    return length > 0 && start[length - 1] == '\r' ? length - 1 : length;
}

static size_t count_lines(const cpl_text *lines)
{
    size_t count = 1;
    for (size_t i = 0; i < lines->length; i++) count += lines->bytes[i] == '\n';
    return count;
}

cpl_status cpl_tokenizer_read_merge_lines(cpl_tokenizer *t, const json_t *vocab,
                                          const cpl_text *lines, const char *path)
{
    static const char version[] = "#version";
    reader r                    = {.t = t, .vocab = vocab, .path = path};
    cpl_status status           = CPL_OK;
    size_t at = 0, next, rank = 0;
    CPL_TRY(cpl_merges_init(&t->merges, (uint32_t)count_lines(lines)));
    if (lines->length >= strlen(version) && memcmp(lines->bytes, version, strlen(version)) == 0)
        (void)line_at(lines, 0, &at);
    for (; at < lines->length && status == CPL_OK; at = next) {
        size_t length = line_at(lines, at, &next);
        if (length > 0) status = add_spaced(&r, lines->bytes + at, length, rank++);
    }
    return reader_end(&r, status);
}

/* ---- words that are tokens ---- */

/* Returns whether a text can have the token as a word: the pattern does not split it. */
static bool is_word(const cpl_tokenizer *t, const cpl_token *token)
{
    const char *bytes = t->bytes.bytes + token->start;
    size_t at         = 0, end;
    return token->present && (!token->added || token->special) &&
           cpl_utf8_is(bytes, token->length) &&
           cpl_split(t->split, bytes, token->length, &at, &end, 1) == 1 && at == token->length;
}

cpl_status cpl_tokenizer_check_words(const cpl_tokenizer *t, const char *path)
{
    cpl_status status         = CPL_OK;
    cpl_merge_scratch scratch = {0};
    int32_t *ids              = cpl_alloc(t->bytes.length * sizeof *ids);
    if (!ids) return CPL_ERR_MEMORY;
    for (int64_t id = 0; id < t->vocab_size && status == CPL_OK; id++) {
        const cpl_token *token = t->tokens + id;
        const char *word       = t->bytes.bytes + token->start;
        size_t count           = 1;
        if (!is_word(t, token)) continue;
        status = cpl_merge_word(&t->merges, &scratch, word, token->length, ids, &count);
        if (status == CPL_OK && (count != 1 || ids[0] != id))
            status = CPL_FAIL(CPL_ERR_INPUT,
                              "%s: model.ignore_merges true is supported only if merges make every "
                              "token: no merges make the token \"%.*s\"",
                              path, token->length < 100 ? (int)token->length : 100, word);
    }
    cpl_merge_scratch_free(&scratch);
    cpl_free(ids);
    return status;
}
