/* test_tokenizer_small.c - a small kept tokenizer: its ids, refused files, and bytes that are not
 * UTF-8. The tokenizer is tests/golden/tokenizers/small.json, trained on small.txt beside it
 * (test_tokenizer_train.c). */
#include <jansson.h>
#include <utf8proc.h>

#include "base/rng.h"
#include "support/files.h"
#include "tokenizer/tokenizer.h"

static const char *small(void)
{
    return golden_path("tokenizers/small.json");
}

static json_t *small_json(void)
{
    json_t *root = json_load_file(small(), 0, NULL);
    assert_non_null(root);
    return root;
}

static const char *write_json(json_t *root)
{
    static char path[100];
    snprintf(path, sizeof path, "%s/tokenizer.json", scratch_folder());
    assert_int_equal(json_dump_file(root, path, 0), 0);
    return path;
}

typedef struct coder {
    cpl_tokenizer *t;
    cpl_encoder *e;
    cpl_ids ids;
} coder;

static coder open_coder(const char *path)
{
    coder c = {.ids = {0}};
    assert_ok(cpl_tokenizer_load(&c.t, path));
    assert_ok(cpl_encoder_init(&c.e, c.t, false));
    return c;
}

static void close_coder(coder *c)
{
    cpl_ids_free(&c->ids);
    cpl_encoder_free(c->e);
    cpl_tokenizer_free(c->t);
}

/* Returns a coder that has encoded the text. */
static coder encoded(const char *path, const char *text)
{
    coder c = open_coder(path);
    assert_ok(cpl_encoder_append(c.e, &c.ids, text, strlen(text)));
    return c;
}

static void assert_same_ids(const cpl_ids *got, const cpl_ids *want)
{
    assert_int_equal(got->count, want->count);
    assert_memory_equal(got->at, want->at, (size_t)got->count * sizeof *got->at);
}

TEST(known_text_gives_known_tokens)
{
    coder c        = encoded(small(), "The water\n\n  100");
    cpl_text shown = {0};
    for (int64_t i = 0; i < c.ids.count; i++) {
        assert_ok(cpl_tokenizer_decode(c.t, &shown, c.ids.at + i, 1, false));
        cpl_text_char(&shown, '/');
    }
    assert_string_equal(shown.bytes, "The/ water/\n/\n/ / 100/");
    cpl_text_free(&shown);
    close_coder(&c);
}

/* Random text is decoded to its NFC, in whatever order words enter the cache. */
TEST(decoding_gives_the_composed_text)
{
    cpl_rng_key key = {.seed = 41, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    coder c         = open_coder(small());
    cpl_text text = {0}, back = {0};
    for (int i = 0; i < 3000; i++) {
        cpl_text_clear(&text);
        cpl_text_clear(&back);
        c.ids.count = 0;
        for (uint32_t n = 1 + cpl_rng_u32(&key, draw++) % 60; n > 0; n--) {
            static const uint32_t range[][2] = {{1, 0x7F},      {1, 0x7F},       {0x80, 0x380},
                                                {0x300, 0x40},  {0x1E00, 0x200}, {0x3000, 0xA000},
                                                {0x1F600, 0x40}};
            const uint32_t *from             = range[cpl_rng_u32(&key, draw++) % 7];
            uint32_t point                   = from[0] + cpl_rng_u32(&key, draw++) % from[1];
            char bytes[4];
            cpl_text_append(&text, bytes, (size_t)cpl_utf8_encode(point, bytes));
        }
        assert_ok(cpl_encoder_append(c.e, &c.ids, text.bytes, text.length));
        assert_ok(cpl_tokenizer_decode(c.t, &back, c.ids.at, c.ids.count, false));
        utf8proc_uint8_t *want = NULL;
        ssize_t length = utf8proc_map((utf8proc_uint8_t *)text.bytes, (ssize_t)text.length, &want,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_int_equal(back.length, length);
        assert_memory_equal(back.bytes, want, length);
        free(want);
    }
    assert_int_equal(cpl_encoder_repaired(c.e), 0);
    cpl_text_free(&text);
    cpl_text_free(&back);
    close_coder(&c);
}

static void check_round_trip(coder *c, const char *text, size_t length)
{
    cpl_text back = {0};
    c->ids.count  = 0;
    assert_ok(cpl_encoder_append(c->e, &c->ids, text, length));
    assert_ok(cpl_tokenizer_decode(c->t, &back, c->ids.at, c->ids.count, false));
    assert_int_equal(back.length, length);
    assert_memory_equal(back.bytes, text, length);
    cpl_text_free(&back);
}

/* Words that differ only in NULs at the end, and more words than the cache holds, are encoded in
 * two rounds: kept words must equal those made anew. */
TEST(kept_words_are_not_mixed_up)
{
    enum { WORDS = 150000 };
    coder c = open_coder(small());
    for (size_t n = 1; n < 40; n++) {
        static const char zeros[40] = ".";
        check_round_trip(&c, zeros, n);
        assert_int_equal(c.ids.count, n);
    }
    for (int i = 0; i < 2 * WORDS; i++) {
        char word[40];
        int length = snprintf(word, sizeof word, " %d", i % WORDS);
        check_round_trip(&c, word, (size_t)length);
    }
    for (size_t length = 1; length < 40; length++) /* few tokens, one byte differs */
        for (size_t at = 0; at < 2 * length; at++) {
            char word[40];
            memset(word, '-', sizeof word);
            word[at % length] = '|';
            check_round_trip(&c, word, length);
        }
    close_coder(&c);
}

TEST(bytes_that_are_no_utf8_become_the_replacement)
{
    static const char bad[] = "a\xFFwater\xE2\x82 \xED\xA0\x80!";
    static const char good[] =
        "a\xEF\xBF\xBDwater\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD!";
    coder got = encoded(small(), bad), want = encoded(small(), good);
    assert_int_equal(cpl_encoder_repaired(want.e), 0);
    assert_int_equal(cpl_encoder_repaired(got.e), 5);
    assert_same_ids(&got.ids, &want.ids);
    close_coder(&got);
    close_coder(&want);
}

/* The tokens are also given as GPT-2's pair of files, and with merges as arrays of two. */
TEST(other_forms_of_the_file_give_the_same)
{
    char path[100];
    static const char text[] = "The wheel turned, they'd say, 100 times.<|endoftext|>";
    json_t *root = small_json(), *model = json_object_get(root, "model"), *entry;
    size_t i;
    coder want         = encoded(small(), text);
    const char *folder = scratch_folder();
    snprintf(path, sizeof path, "%s/encoder.json", folder);
    assert_int_equal(json_dump_file(json_object_get(model, "vocab"), path, JSON_ENSURE_ASCII), 0);
    snprintf(path, sizeof path, "%s/merges.txt", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#version: 0.2\n");
    json_t *arrays = json_array();
    json_array_foreach(json_object_get(model, "merges"), i, entry)
    {
        const char *pair = json_string_value(entry), *space = strchr(pair, ' ');
        fprintf(file, "%s\n", pair);
        json_array_append_new(arrays, json_pack("[s%s]", pair, (size_t)(space - pair), space + 1));
    }
    fclose(file);
    coder got = encoded(folder, text);
    assert_same_ids(&got.ids, &want.ids);
    close_coder(&got);
    snprintf(path, sizeof path, "%s/added_tokens.json", folder);
    json_t *added = json_pack("{s:i}", "<pad>", 384);
    assert_int_equal(json_dump_file(added, path, 0), 0);
    json_decref(added);
    cpl_tokenizer *t;
    assert_fails(CPL_ERR_INPUT, "added_tokens.json: added tokens", cpl_tokenizer_load(&t, folder));
    assert_int_equal(remove(path), 0);
    json_object_set_new(model, "merges", arrays);
    got = encoded(write_json(root), text);
    assert_same_ids(&got.ids, &want.ids);
    json_decref(root);
    close_coder(&got);
    close_coder(&want);
}

TEST(a_space_is_put_in_front_where_asked)
{
    static const char *const texts[] = {"water<|endoftext|>the", " water<|endoftext|>the"};
    json_t *root                     = small_json();
    json_object_set_new(json_object_get(root, "pre_tokenizer"), "add_prefix_space", json_true());
    const char *path = write_json(root);
    coder want       = encoded(small(), " water<|endoftext|> the");
    for (int i = 0; i < 2; i++) {
        coder got = encoded(path, texts[i]);
        assert_same_ids(&got.ids, &want.ids);
        close_coder(&got);
    }
    json_decref(root);
    close_coder(&want);
}

/* A file with one changed member, and a part of the sentence that refuses it. */
typedef struct refusal {
    const char *where, *member, *json, *sentence;
} refusal;

static const refusal refusals[] = {
    {"", "normalizer", "7", "normalizer"},
    {"", "pre_tokenizer", "null", "pre_tokenizer"},
    {"", "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x+\"}}", "x+"},
    {"", "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"String\": \"x+\"}}",
     "is a String, which is searched for letter by letter, and not a Regex: \"x+\""},
    {"", "post_processor", "{\"type\": \"TemplateProcessing\"}", "TemplateProcessing"},
    {"model", "type", "\"Unigram\"", "Unigram"},
    {"model", "dropout", "\"0\"", "dropout"},
    {"model", "vocab", "{}", "model.vocab is missing"},
    {"model", "vocab", "[]", "model.vocab is missing"},
    {"model", "vocab", "{\"a\": 0}", "byte 00"},
    {"model", "vocab", "{\"a\": 0, \"b\": 0}", "two tokens"},
    {"model", "vocab", "{\"a\": -1}", "\"a\""},
    {"model", "vocab", "{\"a\": 4194304}", "4194303"},
    {"model", "vocab", "{\"a\": 1.5}", "\"a\""},
    {"model", "merges", "null", "merges"},
    {"model", "merges", "[\"a b c\"]", "merge 0"},
    {"model", "merges", "[\"ab\"]", "merge 0"},
    {"model", "merges", "[\" a\"]", "merge 0"},
    {"model", "merges", "[[\"a\"]]", "merge 0"},
    {"model", "merges", "[\"z q\"]", "merge 0: \"zq\""},
    {"", "added_tokens", "[{\"id\": 5}]", "added_tokens[0]"},
    {"", "added_tokens", "[{\"id\": 5, \"content\": \"new\"}]", "\"new\" has the id 5"},
    {"", "added_tokens", "[{\"id\": 900, \"content\": \"!\"}]",
     "gives it 2, its id in the vocabulary"},
    {"", "added_tokens",
     "[{\"id\": 385, \"content\": \"b c\"}, {\"id\": 384, \"content\": \"a b\"}]",
     "\"b c\" has the id 385, but Hugging Face's tokenizers gives it 384"},
    {"", "added_tokens",
     "[{\"id\": 384, \"content\": \"b c\"}, {\"id\": 385, \"content\": \"b c\"}]",
     "\"b c\" is listed twice"},
    {"", "added_tokens", "[{\"content\": \"new\"}]", "\"new\""},
    {"", "added_tokens", "[{\"id\": 384, \"content\": \"new\", \"lstrip\": true}]", "lstrip"},
    {"", "added_tokens", "[{\"id\": 384, \"content\": \"new\", \"single_word\": true}]",
     "single_word"},
};

TEST(what_is_not_implemented_is_refused_by_name)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = refusals + i;
        cpl_tokenizer *t;
        json_t *root  = small_json();
        json_t *part  = *r->where ? json_object_get(root, r->where) : root;
        json_t *value = json_loads(r->json, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        json_object_set_new(part, r->member, value);
        const char *path = write_json(root);
        assert_fails(CPL_ERR_INPUT, r->sentence, cpl_tokenizer_load(&t, path));
        assert_non_null(strstr(cpl_last_error(), path));
        assert_null(t);
        json_decref(root);
    }
}

TEST(what_is_ignored_is_told_once)
{
    cpl_text told     = {0};
    const cpl_log log = log_into(&told);
    cpl_tokenizer *t;
    json_t *root = small_json();
    json_object_set_new(root, "truncation", json_pack("{s:i}", "max_length", 2));
    json_object_set_new(root, "padding", json_pack("{s:s}", "strategy", "BatchLongest"));
    json_object_set_new(root, "decoder", json_pack("{s:s}", "type", "WordPiece"));
    const char *path = write_json(root), *line;
    assert_ok(cpl_tokenizer_load(&t, path));
    cpl_tokenizer_warn(t, &log);
    assert_int_equal(strncmp(told.bytes, "warn: ", 6), 0);
    assert_int_equal(strncmp(told.bytes + 6, path, strlen(path)), 0);
    assert_string_equal(told.bytes + 6 + strlen(path),
                        ": truncation is ignored, and texts keep all of their ids; padding is "
                        "ignored, and texts get no further ids; decoder WordPiece is ignored, and "
                        "ids become text as with ByteLevel\n");
    cpl_tokenizer_free(t);
    assert_ok(cpl_tokenizer_load(&t, small()));
    cpl_tokenizer_warn(t, &log);
    line = strchr(told.bytes, '\n');
    assert_string_equal(line, "\n");
    cpl_tokenizer_free(t);
    cpl_text_free(&told);
    json_decref(root);
}

/* " be" is a token and a word, but no merge makes it. */
TEST(ignored_merges_matter_for_a_token_that_they_do_not_make)
{
    cpl_tokenizer *t;
    json_t *root = small_json(), *model = json_object_get(root, "model");
    json_t *merges = json_object_get(model, "merges");
    json_object_set_new(model, "ignore_merges", json_true());
    assert_ok(cpl_tokenizer_load(&t, write_json(root)));
    cpl_tokenizer_free(t);
    assert_string_equal(json_string_value(json_array_get(merges, json_array_size(merges) - 1)),
                        "\u0120b e");
    json_array_remove(merges, json_array_size(merges) - 1);
    assert_fails(CPL_ERR_INPUT, "no merges make the token \" be\"",
                 cpl_tokenizer_load(&t, write_json(root)));
    json_object_del(model, "ignore_merges");
    assert_ok(cpl_tokenizer_load(&t, write_json(root)));
    cpl_tokenizer_free(t);
    json_decref(root);
}

TEST(files_that_are_none_are_told)
{
    cpl_tokenizer *t;
    assert_fails(CPL_ERR_IO, "/nowhere", cpl_tokenizer_load(&t, "/nowhere"));
    assert_fails(CPL_ERR_INPUT, "encoder.json", cpl_tokenizer_load(&t, scratch_folder()));
    assert_fails(CPL_ERR_INPUT, "small.txt",
                 cpl_tokenizer_load(&t, golden_path("tokenizers/small.txt")));
    json_t *root     = json_pack("{s:i}", "a", 1);
    const char *path = write_json(root);
    assert_fails(CPL_ERR_INPUT, "merges.txt", cpl_tokenizer_load(&t, path));
    json_decref(root);
}

TEST(ids_without_tokens)
{
    cpl_tokenizer *t;
    cpl_text out = {0};
    json_t *root = small_json(), *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    assert_int_equal(json_integer_value(json_object_get(vocab, "\u0120be")), 383);
    json_object_set_new(vocab, "\u0120be", json_integer(500));
    json_array_append_new(
        added, json_pack("{s:i,s:s,s:b}", "id", 384, "content", "caf\u00e9  x", "normalized", 1));
    assert_ok(cpl_tokenizer_load(&t, write_json(root)));
    assert_int_equal(cpl_tokenizer_vocab_size(t), 501);
    assert_int_equal(cpl_tokenizer_id(t, "caf\u00e9  x"), 384);
    assert_ok(cpl_tokenizer_decode(t, &out, (int32_t[]){499, 384, 0, 450, 1}, 5, true));
    assert_string_equal(out.bytes, "caf\u00e9  x");
    assert_fails(CPL_ERR_INPUT, "position 1",
                 cpl_tokenizer_decode(t, &out, (int32_t[]){0, 501}, 2, 0));
    assert_fails(CPL_ERR_INPUT, "-1", cpl_tokenizer_decode(t, &out, (int32_t[]){-1}, 1, false));
    assert_string_equal(out.bytes, "caf\u00e9  x");
    /* the decomposed spelling is found too, as the token is looked for after normalisation */
    cpl_encoder *e;
    cpl_ids ids = {0};
    assert_ok(cpl_encoder_init(&e, t, false));
    assert_ok(cpl_encoder_append(e, &ids, "cafe\u0301  x", 9));
    assert_int_equal(ids.count, 1);
    assert_int_equal(ids.at[0], 384);
    cpl_ids_free(&ids);
    cpl_encoder_free(e);
    cpl_text_free(&out);
    cpl_tokenizer_free(t);
    json_decref(root);
}

TEST(incomplete_ends_are_held_back)
{
    static const char text[]    = "a\u00e9\u20ac\U0001F600";
    static const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t n = 0; n < sizeof text; n++)
        assert_int_equal(cpl_tokenizer_utf8_prefix(text, n), whole[n]);
    assert_int_equal(cpl_tokenizer_utf8_prefix("\x80\x80\x80\x80", 4), 4);
    assert_int_equal(cpl_tokenizer_utf8_prefix("a\xFF", 2), 2);
    assert_int_equal(cpl_tokenizer_utf8_prefix("a\xC0", 2), 2);
    assert_int_equal(cpl_tokenizer_utf8_prefix("a\xED\xA0", 3), 3);
    assert_int_equal(cpl_tokenizer_utf8_prefix("a\xF4\x90", 3), 3);
    assert_int_equal(cpl_tokenizer_utf8_prefix("a\xF4\x8F", 3), 1);
}

TEST(hash_tells_files_apart)
{
    cpl_tokenizer *a, *b;
    json_t *root = small_json();
    assert_ok(cpl_tokenizer_load(&a, small()));
    assert_ok(cpl_tokenizer_load(&b, write_json(root)));
    assert_true(cpl_tokenizer_hash(a) != cpl_tokenizer_hash(b));
    cpl_tokenizer_free(b);
    assert_ok(cpl_tokenizer_load(&b, small()));
    assert_true(cpl_tokenizer_hash(a) == cpl_tokenizer_hash(b));
    cpl_tokenizer_free(a);
    cpl_tokenizer_free(b);
    json_decref(root);
}
