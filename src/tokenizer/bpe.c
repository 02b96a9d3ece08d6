/* bpe.c - trains byte-level BPE: counts words and joins pairs (see tokenizer.h).
 *
 * The words are stored as ids in one array. Each word shrinks in place when a pair is joined. A
 * join changes only the words that hold the pair, and the counts of neighbouring pairs. */
#include "tokenizer/bpe.h"

#include <string.h>

#include "base/arena.h"
#include "io/file.h"

enum { BATCH = 64 /* words */ };

static const char padding[] = "<|padding|>";

static cpl_status check_settings(const cpl_bpe_settings *settings, const char *eos)
{
    if (settings->vocab_size < CPL_BPE_LEAST || settings->vocab_size > CPL_BPE_MOST)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "a vocabulary of %lld is out of bounds: %d (256 bytes and 2 special tokens) "
            "to %d",
            (long long)settings->vocab_size, CPL_BPE_LEAST, CPL_BPE_MOST);
    if (settings->min_frequency < 1)
        return CPL_FAIL(CPL_ERR_INPUT, "the least frequency of a pair is 1 or more, not %lld",
                        (long long)settings->min_frequency);
    size_t length = strlen(eos);
    for (size_t i = 0; i < length; i++)
        if (eos[i] <= ' ' || eos[i] > '~') length = 0;
    if (length < 2 || length > CPL_BPE_EOS_MOST || strcmp(eos, padding) == 0)
        return CPL_FAIL(
            CPL_ERR_INPUT,
            "the separator \"%.100s\" is not 2 to %d ASCII characters without space, or "
            "is %s",
            eos, CPL_BPE_EOS_MOST, padding);
    return CPL_OK;
}

/* Adds the initial tokens, in the order of their ids. */
static cpl_status add_first_tokens(cpl_bpe_trainer *trainer)
{
    uint32_t id;
    int16_t byte_of[CPL_ALPHABET_POINTS];
    cpl_tokenizer_alphabet_bytes(byte_of);
    for (uint32_t i = 0; i < CPL_BPE_SPECIALS; i++) {
        const cpl_added *special = trainer->special + i;
        CPL_TRY(cpl_tally_number(&trainer->tokens, trainer->contents + special->start,
                                 special->length, &id));
    }
    for (int point = 0; point < CPL_ALPHABET_POINTS; point++) {
        char byte = (char)byte_of[point];
        if (byte_of[point] >= 0) CPL_TRY(cpl_tally_number(&trainer->tokens, &byte, 1, &id));
    }
    return CPL_OK;
}

static void set_specials(cpl_bpe_trainer *trainer, const char *eos)
{
    uint32_t length = (uint32_t)strlen(eos);
    memcpy(trainer->contents, eos, length + 1);
    memcpy(trainer->contents + length + 1, padding, sizeof padding);
    trainer->settings.eos   = trainer->contents;
    trainer->special[0]     = (cpl_added){0, length, 0, true};
    trainer->special[1]     = (cpl_added){length + 1, sizeof padding - 1, 1, true};
    trainer->specials.at    = trainer->special;
    trainer->specials.count = CPL_BPE_SPECIALS;
    cpl_added_index(&trainer->specials, trainer->contents);
}

cpl_status cpl_bpe_init(cpl_bpe_trainer **out, const cpl_bpe_settings *settings)
{
    *out            = NULL;
    const char *eos = settings->eos ? settings->eos : "<|endoftext|>";
    CPL_TRY(check_settings(settings, eos));
    cpl_bpe_trainer *trainer = cpl_alloc(sizeof *trainer);
    if (!trainer) return CPL_ERR_MEMORY;
    memset(trainer, 0, sizeof *trainer);
    trainer->settings = *settings;
    set_specials(trainer, eos);
    cpl_status status = add_first_tokens(trainer);
    if (status == CPL_OK)
        *out = trainer;
    else
        cpl_bpe_free(trainer);
    return status;
}

void cpl_bpe_free(cpl_bpe_trainer *trainer)
{
    if (!trainer) return;
    cpl_tally_free(&trainer->words);
    cpl_tally_free(&trainer->tokens);
    cpl_text_free(&trainer->repaired);
    cpl_text_free(&trainer->normal);
    cpl_nfc_free(&trainer->nfc);
    cpl_pairs_free(&trainer->pairs);
    cpl_free(trainer->merges);
    cpl_free(trainer);
}

int64_t cpl_bpe_vocab_size(const cpl_bpe_trainer *trainer)
{
    return trainer->tokens.count;
}

static cpl_status count_words(cpl_bpe_trainer *trainer, const char *text, size_t length)
{
    size_t ends[BATCH], at = 0, start = 0;
    if (trainer->settings.nfc && !cpl_nfc_is_plain(text, length)) {
        cpl_text_clear(&trainer->normal);
        CPL_TRY(cpl_nfc_append(&trainer->nfc, &trainer->normal, text, length));
        text   = trainer->normal.bytes;
        length = trainer->normal.length;
    }
    while (at < length) {
        size_t n = cpl_split(CPL_SPLIT_GPT2, text, length, &at, ends, BATCH);
        for (size_t i = 0; i < n; start = ends[i++]) {
            uint32_t word;
            CPL_TRY(cpl_tally_number(&trainer->words, text + start, ends[i] - start, &word));
            trainer->words.at[word].count++;
        }
    }
    return CPL_OK;
}

cpl_status cpl_bpe_add(cpl_bpe_trainer *trainer, const char *text, size_t length)
{
    const cpl_added *hit;
    size_t start = 0;
    CPL_ASSERT(!trainer->trained);
    if (!cpl_unicode_is_utf8(text, length)) {
        cpl_text_clear(&trainer->repaired);
        (void)cpl_utf8_repair(&trainer->repaired, text, length);
        CPL_TRY(cpl_text_status(&trainer->repaired));
        text   = trainer->repaired.bytes;
        length = trainer->repaired.length;
    }
    for (size_t at; start < length; start = at + hit->length) {
        at = cpl_added_find(&trainer->specials, text, length, start, &hit);
        CPL_TRY(count_words(trainer, text + start, at - start));
        if (!hit) break;
    }
    return CPL_OK;
}

/* The words as ids: word w is ids[start[w] ... start[w] + length[w] - 1]. */
typedef struct spelling {
    int32_t *ids;
    size_t *start, *length;
} spelling;

static void spelling_free(spelling *s)
{
    cpl_free(s->ids);
    cpl_free(s->start);
    cpl_free(s->length);
}

static cpl_status spelling_init(spelling *s, const cpl_bpe_trainer *trainer)
{
    const cpl_tally *words = &trainer->words;
    int32_t id_of[256];
    for (uint32_t id = CPL_BPE_SPECIALS; id < CPL_BPE_LEAST; id++) {
        size_t start                                             = trainer->tokens.at[id].start;
        id_of[(unsigned char)trainer->tokens.bytes.bytes[start]] = (int32_t)id;
    }
    s->ids    = cpl_alloc(words->bytes.length * sizeof *s->ids);
    s->start  = cpl_alloc(words->count * sizeof *s->start);
    s->length = cpl_alloc(words->count * sizeof *s->length);
    if (!s->ids || !s->start || !s->length) return CPL_ERR_MEMORY;
    for (size_t i = 0; i < words->bytes.length; i++)
        s->ids[i] = id_of[(unsigned char)words->bytes.bytes[i]];
    for (uint32_t w = 0; w < words->count; w++) {
        s->start[w]  = words->at[w].start;
        s->length[w] = words->at[w].length;
    }
    return CPL_OK;
}

static cpl_status count_pairs(cpl_bpe_trainer *trainer, const spelling *s)
{
    for (uint32_t w = 0; w < trainer->words.count; w++) {
        const int32_t *ids = s->ids + s->start[w];
        for (size_t i = 0; i + 1 < s->length[w]; i++)
            CPL_TRY(cpl_pairs_add(&trainer->pairs, (cpl_pair){ids[i], ids[i + 1]},
                                  trainer->words.at[w].count, w));
    }
    return cpl_pairs_offer(&trainer->pairs);
}

/* Replaces the pair `before` by `after` in the counts, for the neighbour on one side of a join. */
static cpl_status change_neighbour(cpl_pairs *pairs, cpl_pair before, cpl_pair after, int64_t count,
                                   uint32_t word)
{
    CPL_TRY(cpl_pairs_add(pairs, before, -count, word));
    return cpl_pairs_add(pairs, after, count, word);
}

static cpl_status join_in_word(cpl_bpe_trainer *trainer, spelling *s, uint32_t w, cpl_pair pair,
                               int32_t joined)
{
    int32_t *ids = s->ids + s->start[w];
    size_t n = s->length[w], kept = 0;
    int64_t count = trainer->words.at[w].count;
    for (size_t i = 0; i < n;) {
        if (i + 1 >= n || ids[i] != pair.left || ids[i + 1] != pair.right) {
            ids[kept++] = ids[i++];
            continue;
        }
        if (kept > 0) {
            int32_t left = ids[kept - 1];
            CPL_TRY(change_neighbour(&trainer->pairs, (cpl_pair){left, pair.left},
                                     (cpl_pair){left, joined}, count, w));
        }
        if (i + 2 < n) {
            int32_t right = ids[i + 2];
            CPL_TRY(change_neighbour(&trainer->pairs, (cpl_pair){pair.right, right},
                                     (cpl_pair){joined, right}, count, w));
        }
        ids[kept++] = joined;
        i += 2;
    }
    s->length[w] = kept;
    return CPL_OK;
}

/* Sets the id of a joined pair: a new id, or the id of an existing token with an equal text. */
static cpl_status joined_id(cpl_bpe_trainer *trainer, cpl_pair pair, uint32_t *id)
{
    const cpl_tally_entry *left  = trainer->tokens.at + pair.left;
    const cpl_tally_entry *right = trainer->tokens.at + pair.right;
    cpl_text both                = {0};
    cpl_text_append(&both, trainer->tokens.bytes.bytes + left->start, left->length);
    cpl_text_append(&both, trainer->tokens.bytes.bytes + right->start, right->length);
    cpl_status status = cpl_text_status(&both);
    if (status == CPL_OK) status = cpl_tally_number(&trainer->tokens, both.bytes, both.length, id);
    cpl_text_free(&both);
    return status;
}

static cpl_status note_merge(cpl_bpe_trainer *trainer, cpl_pair pair)
{
    CPL_TRY(
        cpl_tally_grow(&trainer->merges, &trainer->merge_capacity, trainer->n_merges, sizeof pair));
    trainer->merges[trainer->n_merges++] = pair;
    return CPL_OK;
}

/* Joins the best pair everywhere. Sets *finished if no pair is frequent enough. */
static cpl_status join_best(cpl_bpe_trainer *trainer, spelling *s, bool *finished)
{
    cpl_pairs *pairs = &trainer->pairs;
    cpl_pair pair;
    uint32_t id, number = cpl_pairs_take(pairs, trainer->settings.min_frequency, &pair);
    *finished = number == CPL_NO_PAIR;
    if (*finished) return CPL_OK;
    CPL_TRY(joined_id(trainer, pair, &id));
    if (!pairs->state[number].joined) CPL_TRY(note_merge(trainer, pair));
    pairs->state[number].joined = true;
    uint32_t at                 = pairs->state[number].first;
    pairs->state[number].first  = CPL_NO_PAIR;
    for (; at != CPL_NO_PAIR; at = pairs->words[at].next)
        CPL_TRY(join_in_word(trainer, s, pairs->words[at].word, pair, (int32_t)id));
    pairs->tally.at[number].count = 0;
    return cpl_pairs_offer(pairs);
}

cpl_status cpl_bpe_train(cpl_bpe_trainer *trainer, const cpl_log *log)
{
    spelling s        = {0};
    bool finished     = false;
    cpl_status status = CPL_OK;
    CPL_ASSERT(!trainer->trained);
    trainer->trained = true;
    if (trainer->words.count == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "the input has no text to train a tokenizer on");
    CPL_TRY_DONE(spelling_init(&s, trainer));
    CPL_TRY_DONE(count_pairs(trainer, &s));
    while (!finished && trainer->tokens.count < trainer->settings.vocab_size)
        CPL_TRY_DONE(join_best(trainer, &s, &finished));
    if (finished)
        cpl_log_warn(log,
                     "the vocabulary has %u tokens, not %lld: no further pair occurs %lld times in "
                     "the text",
                     trainer->tokens.count, (long long)trainer->settings.vocab_size,
                     (long long)trainer->settings.min_frequency);
done:
    cpl_pairs_free(&trainer->pairs);
    spelling_free(&s);
    return status;
}

/* ---- writing tokenizer.json ---- */

/* Appends a token as spelled in the file: the content of a special token, else its bytes in the
 * byte-level alphabet. Escapes the two characters that JSON requires (the alphabet has no control
 * characters). */
static void append_name(cpl_text *out, const cpl_bpe_trainer *trainer, int32_t id,
                        const uint32_t point_of[256])
{
    const cpl_tally_entry *entry = trainer->tokens.at + id;
    const char *bytes            = trainer->tokens.bytes.bytes + entry->start;
    for (size_t i = 0; i < entry->length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        char utf8[4];
        if (byte == '"' || byte == '\\') cpl_text_char(out, '\\');
        cpl_text_append(out, utf8, (size_t)cpl_utf8_encode(point_of[byte], utf8));
    }
}

static void append_added(cpl_text *out, const cpl_bpe_trainer *trainer,
                         const uint32_t point_of[256])
{
    for (int32_t id = 0; id < CPL_BPE_SPECIALS; id++) {
        cpl_text_printf(out, "%s\n    {\"id\": %d, \"content\": \"", id ? "," : "", id);
        append_name(out, trainer, id, point_of);
        cpl_text_printf(out, "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                             "\"normalized\": false, \"special\": true}");
    }
}

static void append_vocab(cpl_text *out, const cpl_bpe_trainer *trainer,
                         const uint32_t point_of[256])
{
    for (uint32_t id = 0; id < trainer->tokens.count; id++) {
        cpl_text_printf(out, "%s\n      \"", id ? "," : "");
        append_name(out, trainer, (int32_t)id, point_of);
        cpl_text_printf(out, "\": %u", id);
    }
}

static void append_merges(cpl_text *out, const cpl_bpe_trainer *trainer,
                          const uint32_t point_of[256])
{
    for (size_t i = 0; i < trainer->n_merges; i++) {
        cpl_text_printf(out, "%s\n      \"", i ? "," : "");
        append_name(out, trainer, trainer->merges[i].left, point_of);
        cpl_text_char(out, ' ');
        append_name(out, trainer, trainer->merges[i].right, point_of);
        cpl_text_char(out, '"');
    }
}

static void append_json(cpl_text *out, const cpl_bpe_trainer *trainer)
{
    static const char byte_level[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": true}";
    uint32_t point_of[256];
    cpl_tokenizer_alphabet_points(point_of);
    cpl_text_printf(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
                         "  \"padding\": null,\n  \"added_tokens\": [");
    append_added(out, trainer, point_of);
    cpl_text_printf(out, "\n  ],\n  \"normalizer\": %s,\n",
                    trainer->settings.nfc ? "{\"type\": \"NFC\"}" : "null");
    cpl_text_printf(out,
                    "  \"pre_tokenizer\": %s,\n  \"post_processor\": %s,\n  \"decoder\": %s,\n",
                    byte_level, byte_level, byte_level);
    cpl_text_printf(out, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
                         "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
                         "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
                         "    \"byte_fallback\": false,\n    \"vocab\": {");
    append_vocab(out, trainer, point_of);
    cpl_text_printf(out, "\n    },\n    \"merges\": [");
    append_merges(out, trainer, point_of);
    cpl_text_printf(out, "\n    ]\n  }\n}\n");
}

cpl_status cpl_bpe_write(const cpl_bpe_trainer *trainer, const char *path)
{
    cpl_text json = {0};
    append_json(&json, trainer);
    cpl_status status = cpl_text_status(&json);
    if (status == CPL_OK) status = cpl_file_write_atomic(path, json.bytes, json.length);
    cpl_text_free(&json);
    return status;
}
