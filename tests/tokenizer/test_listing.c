/* test_listing.c - tokens and merges of a loaded tokenizer as texts, against its file. */
#include "tokenizer/listing.h"

#include <jansson.h>

#include "base/arena.h"
#include "check.h"

static const char *const published[] = {"small.json", "gpt2.json", "allenai_dolma2.json",
                                        "allenai_gpt-neox-olmo-dolma-v1_5.json",
                                        "allenai_eleuther-ai-gpt-neox-20b-pii-special.json"};

static const char *file_of(size_t i)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", golden_path("tokenizers"), published[i]);
    return path;
}

static void assert_spells(const cpl_tokenizer *t, int64_t id, const char *want)
{
    cpl_text text = {0};
    cpl_tokenizer_spell(&text, t, id);
    assert_ok(cpl_text_status(&text));
    assert_string_equal(text.bytes ? text.bytes : "", want);
    cpl_text_free(&text);
}

static void check_tokens(const cpl_tokenizer *t, json_t *root)
{
    const char *name;
    json_t *id, *entry;
    size_t i;
    json_object_foreach(json_object_get(json_object_get(root, "model"), "vocab"), name, id)
    {
        assert_spells(t, json_integer_value(id), name);
        assert_int_not_equal(cpl_tokenizer_kind_of(t, json_integer_value(id)), CPL_TOKEN_ABSENT);
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, entry)
    {
        const int64_t its  = json_integer_value(json_object_get(entry, "id"));
        const bool special = json_is_true(json_object_get(entry, "special"));
        assert_spells(t, its, json_string_value(json_object_get(entry, "content")));
        assert_int_equal(cpl_tokenizer_kind_of(t, its),
                         special ? CPL_TOKEN_SPECIAL : CPL_TOKEN_ADDED);
    }
}

static void check_merges(const cpl_tokenizer *t, const json_t *list)
{
    cpl_token_pair *merges;
    int64_t count;
    assert_ok(cpl_tokenizer_list_merges(&merges, &count, t));
    assert_int_equal(count, json_array_size(list));
    for (int64_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        cpl_text pair = {0}, want = {0};
        cpl_tokenizer_spell(&pair, t, merges[i].left);
        cpl_text_char(&pair, ' ');
        cpl_tokenizer_spell(&pair, t, merges[i].right);
        if (json_is_array(entry))
            cpl_text_printf(&want, "%s %s", json_string_value(json_array_get(entry, 0)),
                            json_string_value(json_array_get(entry, 1)));
        else
            cpl_text_printf(&want, "%s", json_string_value(entry));
        assert_string_equal(pair.bytes, want.bytes);
        assert_int_equal(merges[i].rank, i);
        cpl_text_free(&pair);
        cpl_text_free(&want);
    }
    cpl_free(merges);
}

TEST(what_the_file_says)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        cpl_tokenizer *t;
        json_t *root = json_load_file(file_of(i), 0, NULL);
        assert_non_null(root);
        assert_ok(cpl_tokenizer_load(&t, file_of(i)));
        check_tokens(t, root);
        check_merges(t, json_object_get(json_object_get(root, "model"), "merges"));
        const cpl_tokenizer_traits traits = cpl_tokenizer_traits_of(t);
        assert_int_equal(traits.nfc, json_is_object(json_object_get(root, "normalizer")));
        assert_int_equal(traits.split,
                         strstr(published[i], "dolma2") ? CPL_SPLIT_DOLMA2 : CPL_SPLIT_GPT2);
        assert_false(traits.prefix_space);
        cpl_tokenizer_free(t);
        json_decref(root);
    }
}

TEST(ids_without_a_token)
{
    cpl_tokenizer *t;
    assert_ok(cpl_tokenizer_load(&t, file_of(0)));
    const int64_t outside[] = {-1, cpl_tokenizer_vocab_size(t), INT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(cpl_tokenizer_kind_of(t, outside[i]), CPL_TOKEN_ABSENT);
        assert_spells(t, outside[i], "");
    }
    cpl_tokenizer_free(t);
}
