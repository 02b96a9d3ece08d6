/* test_bpe.c - training: by hand, and against counting all pairs anew each time; encoding with the
 * trained tokenizer against joining pairs one by one. */
#include "check.h"

#include "base/rng.h"
#include "base/text.h"
#include "io/file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"

static cpl_bpe_trainer *train(int64_t vocab_size, int64_t least, const char *const *documents,
                              size_t count)
{
    cpl_bpe_settings settings = {.vocab_size = vocab_size, .min_frequency = least, .nfc = true};
    cpl_bpe_trainer *trainer;
    cpl_log quiet = {0};
    assert_ok(cpl_bpe_init(&trainer, &settings));
    for (size_t i = 0; i < count; i++)
        assert_ok(cpl_bpe_add(trainer, documents[i], strlen(documents[i])));
    assert_ok(cpl_bpe_train(trainer, &quiet));
    return trainer;
}

static cpl_tokenizer *write_and_load(const cpl_bpe_trainer *trainer)
{
    char path[100];
    cpl_tokenizer *t;
    snprintf(path, sizeof path, "%s/tokenizer.json", scratch_folder());
    assert_ok(cpl_bpe_write(trainer, path));
    assert_ok(cpl_tokenizer_load(&t, path));
    return t;
}

static void encode(const cpl_tokenizer *t, cpl_ids *ids, const char *text)
{
    cpl_encoder *e;
    assert_ok(cpl_encoder_init(&e, t, false));
    ids->count = 0;
    assert_ok(cpl_encoder_append(e, ids, text, strlen(text)));
    cpl_encoder_free(e);
}

/* Words: "ab" once, " ab" twice, " abc" once. Pairs: a b 4 times, then " " + ab 3 times, then
 * " ab" + c once. */
TEST(three_joins_by_hand)
{
    const char *documents[]  = {"ab ab<|endoftext|>", " ab abc"};
    cpl_bpe_trainer *trainer = train(261, 1, documents, 2);
    cpl_tokenizer *t         = write_and_load(trainer);
    cpl_ids ids              = {0};
    assert_int_equal(cpl_bpe_vocab_size(trainer), 261);
    assert_int_equal(cpl_tokenizer_vocab_size(t), 261);
    assert_int_equal(cpl_tokenizer_eos(t), 0);
    assert_int_equal(cpl_tokenizer_id(t, "<|padding|>"), 1);
    assert_int_equal(cpl_tokenizer_id(t, "!"), 2);
    assert_int_equal(cpl_tokenizer_id(t, "a"), 2 + 'a' - '!');
    assert_int_equal(cpl_tokenizer_id(t, "ab"), 258);
    assert_int_equal(cpl_tokenizer_id(t, " ab"), 259);
    assert_int_equal(cpl_tokenizer_id(t, " abc"), 260);
    assert_int_equal(cpl_tokenizer_id(t, "abc"), -1);
    encode(t, &ids, "ab abc<|endoftext|>cab");
    const int32_t want[] = {258, 260, 0, 2 + 'c' - '!', 258};
    assert_int_equal(ids.count, 5);
    assert_memory_equal(ids.at, want, sizeof want);
    cpl_ids_free(&ids);
    cpl_tokenizer_free(t);
    cpl_bpe_free(trainer);
}

static void count_warnings(void *ctx, cpl_log_level level, const char *sentence)
{
    if (level == CPL_LOG_WARN && strstr(sentence, "261 tokens, not 300")) ++*(int *)ctx;
}

TEST(training_ends_where_pairs_are_rare)
{
    int warnings              = 0;
    cpl_log log               = {count_warnings, &warnings};
    cpl_bpe_settings settings = {.vocab_size = 300, .min_frequency = 2};
    cpl_bpe_trainer *trainer;
    assert_ok(cpl_bpe_init(&trainer, &settings));
    assert_ok(cpl_bpe_add(trainer, "abcd abcd xy", 12)); /* ab, abc or cd, abcd; not " abcd", xy */
    assert_ok(cpl_bpe_train(trainer, &log));
    assert_int_equal(cpl_bpe_vocab_size(trainer), 261);
    assert_int_equal(warnings, 1);
    cpl_bpe_free(trainer);
}

TEST(settings_out_of_bounds_are_refused)
{
    cpl_bpe_trainer *trainer;
    cpl_log quiet          = {0};
    cpl_bpe_settings small = {.vocab_size = 257, .min_frequency = 1};
    cpl_bpe_settings large = {.vocab_size = 1000001, .min_frequency = 1};
    cpl_bpe_settings never = {.vocab_size = 300};
    cpl_bpe_settings eos   = {.vocab_size = 300, .min_frequency = 1, .eos = "two words"};
    cpl_bpe_settings same  = {.vocab_size = 300, .min_frequency = 1, .eos = "<|padding|>"};
    assert_fails(CPL_ERR_INPUT, "257", cpl_bpe_init(&trainer, &small));
    assert_null(trainer);
    assert_fails(CPL_ERR_INPUT, "1000001", cpl_bpe_init(&trainer, &large));
    assert_fails(CPL_ERR_INPUT, "frequency", cpl_bpe_init(&trainer, &never));
    assert_fails(CPL_ERR_INPUT, "two words", cpl_bpe_init(&trainer, &eos));
    assert_fails(CPL_ERR_INPUT, "<|padding|>", cpl_bpe_init(&trainer, &same));
    small.vocab_size = 258;
    assert_ok(cpl_bpe_init(&trainer, &small));
    assert_ok(cpl_bpe_add(trainer, "", 0));
    assert_fails(CPL_ERR_INPUT, "no text", cpl_bpe_train(trainer, &quiet));
    assert_fails(CPL_ERR_IO, "/nowhere/", cpl_bpe_write(trainer, "/nowhere/tokenizer.json"));
    cpl_bpe_free(trainer);
}

TEST(the_small_tokenizer_is_what_its_text_gives)
{
    char path[100];
    cpl_text text = {0}, want = {0}, got = {0};
    assert_ok(cpl_file_read(&text, golden_path("tokenizers/small.txt"), 1 << 20));
    const char *documents[]  = {text.bytes};
    cpl_bpe_trainer *trainer = train(384, 2, documents, 1);
    snprintf(path, sizeof path, "%s/small.json", scratch_folder());
    assert_ok(cpl_bpe_write(trainer, path));
    assert_ok(cpl_file_read(&got, path, 1 << 20));
    assert_ok(cpl_file_read(&want, golden_path("tokenizers/small.json"), 1 << 20));
    assert_string_equal(got.bytes, want.bytes);
    cpl_bpe_free(trainer);
    cpl_text_free(&text);
    cpl_text_free(&want);
    cpl_text_free(&got);
}

/* Makes random words of few letters, so that texts repeat and a token arises in several ways. */
static void random_text(cpl_text *text, const cpl_rng_key *key, uint64_t *draw, size_t words)
{
    cpl_text_clear(text);
    for (size_t w = 0; w < words; w++) {
        uint32_t letters = 1 + cpl_rng_u32(key, (*draw)++) % 4;
        uint32_t length  = 1 + cpl_rng_u32(key, (*draw)++) % 12;
        if (w) cpl_text_char(text, ' ');
        for (uint32_t i = 0; i < length; i++)
            cpl_text_char(text, (char)('a' + cpl_rng_u32(key, (*draw)++) % letters));
    }
}

static uint32_t id_of_text(const cpl_bpe_trainer *trainer, const char *bytes, size_t length)
{
    for (uint32_t id = 0; id < trainer->tokens.count; id++) {
        const cpl_tally_entry *entry = trainer->tokens.at + id;
        if (entry->length == length &&
            memcmp(trainer->tokens.bytes.bytes + entry->start, bytes, length) == 0)
            return id;
    }
    fail_msg("no token for %.*s", (int)length, bytes);
    return 0;
}

/* Returns the id of the text of two tokens. */
static int32_t both(const cpl_bpe_trainer *trainer, cpl_pair pair)
{
    char bytes[1000];
    const cpl_tally_entry *l = trainer->tokens.at + pair.left, *r = trainer->tokens.at + pair.right;
    memcpy(bytes, trainer->tokens.bytes.bytes + l->start, l->length);
    memcpy(bytes + l->length, trainer->tokens.bytes.bytes + r->start, r->length);
    return (int32_t)id_of_text(trainer, bytes, l->length + r->length);
}

enum { NAIVE_WORDS = 60, NAIVE_LENGTH = 16 };

/* Spells all words anew by joining `pair` at every place. */
static void join_all(int32_t ids[NAIVE_WORDS][NAIVE_LENGTH], int *length, int words, cpl_pair pair,
                     int32_t id)
{
    for (int w = 0; w < words; w++) {
        int kept = 0;
        for (int i = 0; i < length[w]; i++) {
            bool hit = i + 1 < length[w] && ids[w][i] == pair.left && ids[w][i + 1] == pair.right;
            ids[w][kept++] = hit ? id : ids[w][i];
            i += hit;
        }
        length[w] = kept;
    }
}

static int64_t occurrences(int32_t ids[NAIVE_WORDS][NAIVE_LENGTH], const int *length, int words,
                           cpl_pair pair)
{
    int64_t count = 0;
    for (int w = 0; w < words; w++)
        for (int i = 0; i + 1 < length[w]; i++)
            count += ids[w][i] == pair.left && ids[w][i + 1] == pair.right;
    return count;
}

/* Finds the best pair by the rule, counting every pair of every word. Returns its count, or 0. */
static int64_t best_pair(int32_t ids[NAIVE_WORDS][NAIVE_LENGTH], const int *length, int words,
                         cpl_pair *best)
{
    int64_t most = 0;
    for (int w = 0; w < words; w++)
        for (int i = 0; i + 1 < length[w]; i++) {
            cpl_pair pair = {ids[w][i], ids[w][i + 1]};
            int64_t count = occurrences(ids, length, words, pair);
            bool earlier =
                pair.left < best->left || (pair.left == best->left && pair.right < best->right);
            if (count < most || (count == most && !earlier)) continue;
            most  = count;
            *best = pair;
        }
    return most;
}

static bool contains(const cpl_pair *merges, size_t n, cpl_pair pair)
{
    for (size_t i = 0; i < n; i++)
        if (merges[i].left == pair.left && merges[i].right == pair.right) return true;
    return false;
}

TEST(merges_are_those_of_counting_anew)
{
    cpl_rng_key key = {.seed = 31, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    cpl_text text   = {0};
    for (int t = 0; t < 40; t++) {
        int32_t ids[NAIVE_WORDS][NAIVE_LENGTH];
        int length[NAIVE_WORDS] = {0}, words = 0;
        random_text(&text, &key, &draw, NAIVE_WORDS);
        const char *documents[]  = {text.bytes};
        cpl_bpe_trainer *trainer = train(258 + 40, 2, documents, 1);
        for (size_t i = 0; i < text.length; i++) {
            words += text.bytes[i] == ' ';
            ids[words][length[words]++] = (int32_t)id_of_text(trainer, text.bytes + i, 1);
        }
        words++;
        size_t n = 0;
        cpl_pair best;
        while (n < trainer->n_merges && best_pair(ids, length, words, &best) >= 2) {
            if (!contains(trainer->merges, n, best)) {
                assert_int_equal(trainer->merges[n].left, best.left);
                assert_int_equal(trainer->merges[n].right, best.right);
                n++;
            }
            join_all(ids, length, words, best, both(trainer, best));
        }
        assert_int_equal(n, trainer->n_merges);
        cpl_bpe_free(trainer);
    }
    cpl_text_free(&text);
}

/* Joins the pair of lowest rank, the leftmost of equal ranks, one at a time. */
static int64_t join_one_by_one(const cpl_bpe_trainer *trainer, int32_t *ids, int64_t n)
{
    for (;;) {
        size_t best = trainer->n_merges;
        int64_t at  = 0;
        for (int64_t i = 0; i + 1 < n; i++)
            for (size_t r = 0; r < best; r++)
                if (trainer->merges[r].left == ids[i] && trainer->merges[r].right == ids[i + 1]) {
                    best = r;
                    at   = i;
                }
        if (best == trainer->n_merges) return n;
        ids[at] = both(trainer, trainer->merges[best]);
        memmove(ids + at + 1, ids + at + 2, (size_t)(n - at - 2) * sizeof *ids);
        n--;
    }
}

/* One word has 1 to 300 letters: short words, cached words, and words that need the heap. */
TEST(words_encode_as_joined_one_by_one)
{
    cpl_rng_key key = {.seed = 32, .stream = CPL_STREAM_TEST};
    uint64_t draw   = 0;
    cpl_text text   = {0};
    cpl_ids got     = {0};
    for (int t = 0; t < 8; t++) {
        random_text(&text, &key, &draw, 400);
        const char *documents[]  = {text.bytes};
        cpl_bpe_trainer *trainer = train(258 + 90, 1, documents, 1);
        cpl_tokenizer *tokenizer = write_and_load(trainer);
        cpl_encoder *e;
        assert_ok(cpl_encoder_init(&e, tokenizer, false));
        for (int w = 0; w < 150; w++) {
            char word[301];
            int32_t want[300];
            int64_t n        = 1 + cpl_rng_u32(&key, draw++) % (w % 4 ? 40 : 300);
            uint32_t letters = 1 + cpl_rng_u32(&key, draw++) % 4;
            for (int64_t i = 0; i < n; i++) {
                word[i] = (char)('a' + cpl_rng_u32(&key, draw++) % letters);
                want[i] = (int32_t)id_of_text(trainer, word + i, 1);
            }
            word[n]   = '\0';
            n         = join_one_by_one(trainer, want, n);
            got.count = 0;
            assert_ok(cpl_encoder_append(e, &got, word, (size_t)strlen(word)));
            assert_int_equal(got.count, n);
            assert_memory_equal(got.at, want, (size_t)n * sizeof *want);
        }
        cpl_encoder_free(e);
        cpl_tokenizer_free(tokenizer);
        cpl_bpe_free(trainer);
    }
    cpl_ids_free(&got);
    cpl_text_free(&text);
}

TEST(order_of_documents_does_not_matter)
{
    const char *documents[] = {"one two three two", "three one four one", "five five two"};
    const char *others[]    = {documents[2], documents[0], documents[1]};
    cpl_bpe_trainer *a      = train(290, 1, documents, 3);
    cpl_bpe_trainer *b      = train(290, 1, others, 3);
    assert_int_equal(a->n_merges, b->n_merges);
    assert_memory_equal(a->merges, b->merges, a->n_merges * sizeof *a->merges);
    cpl_bpe_free(a);
    cpl_bpe_free(b);
}
