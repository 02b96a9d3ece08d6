/* merges.c - the list of merges of a tokenizer file (see load.h). */
#include <string.h>

#include "tokenizer/load.h"

/* What is needed to read one merge after the other. */
typedef struct reader {
    cpl_tokenizer *t;
    const json_t *vocab;
    const char *path;
    cpl_text left, right; /* joined to `left` after its id is known */
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

/* A merge written "a b", with exactly one space. */
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

static void reader_free(reader *r)
{
    cpl_text_free(&r->left);
    cpl_text_free(&r->right);
}

cpl_status cpl_tokenizer_read_merges(cpl_tokenizer *t, const json_t *vocab, const json_t *merges,
                                     const char *path)
{
    reader r          = {.t = t, .vocab = vocab, .path = path};
    cpl_status status = CPL_OK;
    if (!json_is_array(merges))
        return CPL_FAIL(CPL_ERR_INPUT, "%s: model.merges is not a list", path);
    CPL_TRY(cpl_merges_init(&t->merges, (uint32_t)json_array_size(merges)));
    for (size_t i = 0; i < json_array_size(merges); i++)
        CPL_TRY_DONE(add_entry(&r, json_array_get(merges, i), i));
    status = cpl_merges_finish(&t->merges);
done:
    reader_free(&r);
    return status;
}

/* The length of the line at `at`, without its end; sets where the next one begins. */
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
    for (; at < lines->length; at = next) {
        size_t length = line_at(lines, at, &next);
        if (length == 0) continue;
        CPL_TRY_DONE(add_spaced(&r, lines->bytes + at, length, rank++));
    }
    status = cpl_merges_finish(&t->merges);
done:
    reader_free(&r);
    return status;
}
