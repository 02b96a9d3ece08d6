/* test_tokenizer.c - the published tokenizers against the reference implementation: vectors, whole
 * shards, decoding. The checkout has small forms of them, with their first merges
 * (tests/golden/tokenizers/make_tokenizers.py). The further tests use the whole tokenizers. */
#include <jansson.h>

#include "support/files.h"
#include "support/sha256.h"
#include "tokenizer/internal.h"

/* Returns the path of a file beside the tokenizers, valid until the next call. */
static const char *beside(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s",
             further ? shared_path("data/tokenizers") : golden_path("tokenizers"), name);
    return path;
}

static cpl_tokenizer *load_published(const char *name)
{
    cpl_tokenizer *t;
    assert_ok(cpl_tokenizer_load(&t, beside(name)));
    return t;
}

/* Checks the ids of one line of a vectors file, and their text if the tokenizer does not
 * normalise. */
static void check_vector(cpl_encoder *e, const cpl_tokenizer *t, const json_t *line, int number)
{
    const json_t *text = json_object_get(line, "text"), *want = json_object_get(line, "ids");
    const char *bytes = json_string_value(text);
    size_t length     = json_string_length(text);
    cpl_ids ids       = {0};
    cpl_text back     = {0};
    assert_ok(cpl_encoder_append(e, &ids, bytes, length));
    bool same = ids.count == (int64_t)json_array_size(want);
    for (int64_t i = 0; same && i < ids.count; i++)
        same = ids.at[i] == json_integer_value(json_array_get(want, (size_t)i));
    if (!same) fail_msg("vector %d differs: \"%s\"", number, bytes);
    assert_ok(cpl_tokenizer_decode(t, &back, ids.at, ids.count, false));
    if (!t->nfc) {
        assert_int_equal(back.length, length);
        if (length) assert_memory_equal(back.bytes, bytes, length);
    }
    cpl_text_free(&back);
    cpl_ids_free(&ids);
}

/* Checks the lines of a file of vectors, or with `only` one tokenizer's. Returns their number. */
static int check_vectors(const cpl_tokenizer *t, const char *path, const char *only)
{
    cpl_encoder *e;
    char *line = NULL;
    size_t capacity;
    int number = 0, checked = 0;
    assert_ok(cpl_encoder_init(&e, t, false));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (getline(&line, &capacity, file) > 0) {
        json_t *vector = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(vector);
        const char *name = json_string_value(json_object_get(vector, "tokenizer"));
        number++;
        if (!only || (name && strcmp(name, only) == 0)) {
            check_vector(e, t, vector, number);
            checked++;
        }
        json_decref(vector);
    }
    free(line);
    fclose(file);
    cpl_encoder_free(e);
    return checked;
}

/* The size and the end-of-text id of the small form, and of the whole tokenizer. */
typedef struct ids_of {
    int64_t vocab_size;
    int32_t eos;
} ids_of;

static const ids_of olmo_ids[]   = {{1771, 1770}, {50280, 50279}};
static const ids_of pii_ids[]    = {{1771, 0}, {50280, 0}};
static const ids_of gpt2_ids[]   = {{1757, 1756}, {50257, 50256}};
static const ids_of dolma2_ids[] = {{1778, 1757}, {100278, 100257}};

static void check_family(const char *tokenizer, const char *name, const ids_of *ids,
                         bool normalizes)
{
    char vectors[256];
    snprintf(vectors, sizeof vectors, "vectors-%s.jsonl", name);
    cpl_tokenizer *t = load_published(tokenizer);
    assert_int_equal(cpl_tokenizer_vocab_size(t), ids[further].vocab_size);
    assert_int_equal(cpl_tokenizer_eos(t), ids[further].eos);
    assert_int_equal(cpl_tokenizer_id(t, "<|endoftext|>"), ids[further].eos);
    assert_int_equal(t->nfc, normalizes);
    assert_int_equal(check_vectors(t, beside(vectors), NULL), 655);
    if (further) check_vectors(t, beside("published-vectors.jsonl"), name);
    cpl_tokenizer_free(t);
}

TEST_ANY(olmo_v1_5_encodes_as_its_vectors_say)
{
    check_family("allenai_gpt-neox-olmo-dolma-v1_5.json", "allenai_gpt-neox-olmo-dolma-v1_5",
                 olmo_ids, true);
}

TEST_ANY(neox_pii_encodes_as_its_vectors_say)
{
    check_family("allenai_eleuther-ai-gpt-neox-20b-pii-special.json",
                 "allenai_eleuther-ai-gpt-neox-20b-pii-special", pii_ids, true);
}

TEST_ANY(gpt2_encodes_as_its_vectors_say)
{
    check_family("gpt2.json", "gpt2", gpt2_ids, false);
}

TEST_ANY(gpt2_in_its_own_form_is_the_same)
{
    check_family("gpt2-openai", "gpt2", gpt2_ids, false);
    check_family("gpt2-openai/encoder.json", "gpt2", gpt2_ids, false);
    check_family("gpt2-openai/vocab.bpe", "gpt2", gpt2_ids, false);
}

TEST_ANY(dolma2_encodes_as_its_vectors_say)
{
    check_family("allenai_dolma2.json", "allenai_dolma2", dolma2_ids, false);
}

/* Strips the white space with which documents of this corpus begin and end. */
static void strip(const char **text, size_t *length)
{
    while (*length && strchr(" \t\n\r\v\f", (*text)[0])) ++*text, --*length;
    while (*length && strchr(" \t\n\r\v\f", (*text)[*length - 1])) --*length;
}

/* Encodes the documents of a shard one after the other, each followed by the separator. */
static void encode_shard(cpl_encoder *e, cpl_ids *ids, const char *path, int32_t eos)
{
    cpl_text lines = read_plain(path);
    for (size_t at = 0; at < lines.length;) {
        const char *begin = lines.bytes + at, *end = memchr(begin, '\n', lines.length - at);
        size_t n     = end ? (size_t)(end - begin) : lines.length - at;
        json_t *line = json_loadb(begin, n, JSON_ALLOW_NUL, NULL);
        assert_non_null(line);
        const char *text = json_string_value(json_object_get(line, "text"));
        size_t size      = json_string_length(json_object_get(line, "text"));
        strip(&text, &size);
        assert_ok(cpl_encoder_append(e, ids, text, size));
        if (size && ids->at[ids->count - 1] != eos) {
            assert_true(ids->count < ids->capacity);
            ids->at[ids->count++] = eos;
        }
        json_decref(line);
        at += n + 1;
    }
    cpl_text_free(&lines);
}

static void check_shard(cpl_encoder *e, const char *shard, int32_t eos, long long tokens,
                        const char *want)
{
    char larger[300], hex[65];
    cpl_ids ids = {0};
    sha256 sum;
    snprintf(larger, sizeof larger, "data/%s", shard);
    encode_shard(e, &ids, further ? shared_path(larger) : shard, eos);
    assert_int_equal(ids.count, tokens);
    sha256_init(&sum);
    for (int64_t i = 0; i < ids.count; i++)
        sha256_add(&sum, (uint8_t[2]){(uint8_t)ids.at[i], (uint8_t)(ids.at[i] >> 8)}, 2);
    sha256_finish(&sum, hex);
    assert_string_equal(hex, want);
    cpl_ids_free(&ids);
}

/* Checks the rows of reference-counts.tsv for one tokenizer and the shards whose names begin with
 * `prefix`. Returns their number. */
static int check_shards(const char *tokenizer, const char *name, const char *prefix)
{
    cpl_tokenizer *t = load_published(tokenizer);
    cpl_encoder *e;
    char row[512], row_name[100], shard[200], want[100];
    long long documents, bytes, tokens;
    int checked = 0;
    FILE *file  = fopen(beside("reference-counts.tsv"), "r");
    assert_non_null(file);
    assert_ok(cpl_encoder_init(&e, t, false));
    while (fgets(row, sizeof row, file)) {
        if (sscanf(row, "%99s %199s %lld %lld %lld %99s", row_name, shard, &documents, &bytes,
                   &tokens, want) != 6)
            continue;
        if (strcmp(row_name, name) != 0 || strncmp(shard, prefix, strlen(prefix)) != 0) continue;
        check_shard(e, shard, cpl_tokenizer_eos(t), tokens, want);
        checked++;
    }
    fclose(file);
    cpl_encoder_free(e);
    cpl_tokenizer_free(t);
    return checked;
}

TEST_ANY(shards_encode_as_recorded)
{
    const char *prefix = !further ? "" : getenv("COUPLET_ALL_SHARDS") ? "corpus" : "corpus-mini";
    assert_true(check_shards("allenai_gpt-neox-olmo-dolma-v1_5.json", "gpt-neox-olmo-dolma-v1_5",
                             prefix) >= 12);
    assert_true(check_shards("gpt2.json", "gpt2", prefix) >= 12);
}

TEST_ANY(special_tokens_can_be_plain_text)
{
    cpl_tokenizer *t         = load_published("allenai_gpt-neox-olmo-dolma-v1_5.json");
    const int32_t eos        = olmo_ids[further].eos;
    static const char text[] = "a<|endoftext|>b  c";
    cpl_encoder *with, *without;
    cpl_ids ids    = {0};
    cpl_text shown = {0};
    assert_ok(cpl_encoder_init(&with, t, false));
    assert_ok(cpl_encoder_init(&without, t, true));
    assert_ok(cpl_encoder_append(with, &ids, text, strlen(text)));
    assert_int_equal(ids.count, 5);
    assert_int_equal(ids.at[1], eos);
    assert_ok(cpl_tokenizer_decode(t, &shown, ids.at, ids.count, true));
    assert_string_equal(shown.bytes, "ab  c");
    ids.count = 0;
    cpl_text_clear(&shown);
    assert_ok(cpl_encoder_append(without, &ids, text, strlen(text)));
    assert_true(ids.count > 5);
    for (int64_t i = 0; i < ids.count; i++) assert_int_not_equal(ids.at[i], eos);
    assert_int_equal(ids.at[ids.count - 2], eos - 3); /* two spaces are no special token */
    assert_ok(cpl_tokenizer_decode(t, &shown, ids.at, ids.count, true));
    assert_string_equal(shown.bytes, text);
    cpl_text_free(&shown);
    cpl_ids_free(&ids);
    cpl_encoder_free(with);
    cpl_encoder_free(without);
    cpl_tokenizer_free(t);
}
