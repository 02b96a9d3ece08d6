/* test_parts.c - every part that Hugging Face's tokenizers can write into a tokenizer.json, against
 * the ids that this library makes with it (tests/golden/tokenizers/parts.jsonl, made by
 * make_parts.py beside it). A part that is read gives exactly these ids. A part that is refused
 * changes ids and is named. */
#include "check.h"

#include <jansson.h>

#include "tokenizer/tokenizer.h"

enum { LONGEST_LINE = 1 << 16 };

/* Returns the digest of make_parts.py: FNV-1a over the ids of all texts. */
static uint64_t digest(const cpl_tokenizer *t, const char *name)
{
    static char line[LONGEST_LINE];
    char path[100];
    uint64_t hashed = 0xCBF29CE484222325u;
    cpl_encoder *e;
    cpl_ids ids = {0};
    snprintf(path, sizeof path, "tokenizers/vectors-%s.jsonl", name);
    FILE *file = fopen(golden_path(path), "r");
    assert_non_null(file);
    assert_ok(cpl_encoder_init(&e, t, false));
    while (fgets(line, sizeof line, file)) {
        json_t *vector     = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(vector, "text");
        ids.count          = 0;
        assert_ok(cpl_encoder_append(e, &ids, json_string_value(text), json_string_length(text)));
        for (int64_t i = 0; i <= ids.count; i++)
            hashed = (hashed ^ (i < ids.count ? (uint64_t)ids.at[i] : UINT32_MAX)) * 0x100000001B3u;
        json_decref(vector);
    }
    fclose(file);
    cpl_ids_free(&ids);
    cpl_encoder_free(e);
    return hashed;
}

/* Writes the tokenizer with the part in its place, or added to the list there. Sets its last
 * key. */
static void put_part(const char *to, const char *name, const json_t *line, const char **key)
{
    char path[100];
    snprintf(path, sizeof path, "tokenizers/%s.json", name);
    json_t *root = json_load_file(golden_path(path), 0, NULL), *part = root, *where;
    size_t i;
    *key = "";
    json_array_foreach(json_object_get(line, "at"), i, where)
    {
        if (i > 0) part = json_object_get(part, *key);
        *key = json_string_value(where);
    }
    json_t *value = json_object_get(line, "value"), *list = json_object_get(part, *key);
    if (json_is_array(list))
        json_array_extend(list, value);
    else if (**key)
        json_object_set(part, *key, value);
    assert_int_equal(json_dump_file(root, to, 0), 0);
    json_decref(root);
}

/* Returns whether the part is read. `plain` are the ids without it. */
static bool check_part(const json_t *line, const char *plain)
{
    char path[100], hex[17];
    const char *name = json_string_value(json_object_get(line, "of")), *key;
    const char *want = json_string_value(json_object_get(line, "ids"));
    cpl_tokenizer *t;
    snprintf(path, sizeof path, "%s/tokenizer.json", scratch_folder());
    put_part(path, name, line, &key);
    if (cpl_tokenizer_load(&t, path) == CPL_OK) {
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)digest(t, name));
        cpl_tokenizer_free(t);
        if (!want || strcmp(want, hex) != 0) fail_msg("other ids with %s", json_dumps(line, 0));
        return true;
    }
    char expected[40];
    snprintf(expected, sizeof expected, "%s",
             strcmp(key, "added_tokens") == 0 ? "added token" : key);
    if (!strstr(cpl_last_error(), expected)) fail_msg("not named: %s", cpl_last_error());
    if (want && strcmp(want, plain) == 0) fail_msg("changes nothing: %s", cpl_last_error());
    return false;
}

TEST(parts_give_the_ids_of_the_library_or_are_refused)
{
    static char line[LONGEST_LINE];
    json_t *plain = json_object();
    int n_read = 0, n_refused = 0;
    FILE *file = fopen(golden_path("tokenizers/parts.jsonl"), "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *part     = json_loads(line, JSON_ALLOW_NUL, NULL);
        const char *name = json_string_value(json_object_get(part, "of"));
        if (json_array_size(json_object_get(part, "at")) == 0)
            json_object_set(plain, name, json_object_get(part, "ids"));
        bool is_read = check_part(part, json_string_value(json_object_get(plain, name)));
        n_read += is_read;
        n_refused += !is_read;
        json_decref(part);
    }
    fclose(file);
    json_decref(plain);
    print_message("%d read, %d refused\n", n_read, n_refused);
    assert_true(n_read > 50 && n_refused > 50);
}
