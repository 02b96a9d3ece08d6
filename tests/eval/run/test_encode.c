/* test_encode.c - contexts and continuations as ids: lm-eval's treatment of white space at the
 * border, tokens that reach over it, empty texts, windows. */
#include "eval/run/kinds.h"

#include "base/arena.h"
#include "check.h"

enum { EOS = 0 }; /* the id of small.json */

typedef struct bench {
    cpl_tokenizer *tokenizer;
    cpl_encoding encoding;
    cpl_encoded out;
} bench;

static void open_bench(bench *b, int64_t eos)
{
    memset(b, 0, sizeof *b);
    assert_ok(cpl_tokenizer_load(&b->tokenizer, golden_path("tokenizers/small.json")));
    assert_ok(cpl_encode_open(&b->encoding, b->tokenizer, eos, 0));
}

static void close_bench(bench *b)
{
    cpl_encode_close(&b->encoding);
    cpl_tokenizer_free(b->tokenizer);
}

static cpl_status pair(bench *b, const char *context, const char *continuation, cpl_joining joining,
                       int64_t window)
{
    return cpl_encode_pair(&b->encoding, &b->out, context, continuation, joining, window);
}

/* Checks that the ids from `first` on are those of `text`, without the first `left_out`, to the
 * end. */
static void check_ids(bench *b, int64_t first, const char *text, int64_t left_out)
{
    cpl_ids want = {0};
    assert_ok(cpl_encoder_append(b->encoding.encoder, &want, text, strlen(text)));
    assert_int_equal(b->encoding.ids.count - first, want.count - left_out);
    assert_memory_equal(b->encoding.ids.at + first, want.at + left_out,
                        (size_t)(want.count - left_out) * sizeof *want.at);
    cpl_ids_free(&want);
}

static int64_t count_of(bench *b, const char *text)
{
    cpl_ids ids = {0};
    assert_ok(cpl_encoder_append(b->encoding.encoder, &ids, text, strlen(text)));
    const int64_t count = ids.count;
    cpl_ids_free(&ids);
    return count;
}

/* Checks the tokens of the context, the scored tokens, and the whole text if encoded at once. */
static void check_joint(bench *b, const char *context, const char *bare, const char *continuation)
{
    char whole[200];
    const int64_t first = b->encoding.ids.count, n = count_of(b, bare);
    snprintf(whole, sizeof whole, "%s%s", context, continuation);
    assert_ok(pair(b, context, continuation, CPL_JOIN_JOINT, 100));
    assert_int_equal(b->out.first, first);
    assert_int_equal(b->out.context, n);
    assert_int_equal(b->out.scored, count_of(b, whole) - n);
    assert_int_equal(b->out.length, b->out.context + b->out.scored);
    assert_int_equal(b->out.cut, 0);
    check_ids(b, first + n, whole, n);
    b->encoding.ids.count = first + n;
    check_ids(b, first, bare, 0);
    b->encoding.ids.count = first + b->out.length;
}

TEST(white_space_goes_over)
{
    bench b;
    open_bench(&b, EOS);
    check_joint(&b, "the cat", "the cat", " sat on");
    check_joint(&b, "the cat ", "the cat", "sat on");
    check_joint(&b, "the cat \n\t ", "the cat", "sat on");
    check_joint(&b, " the cat\xE3\x80\x80\xC2\xA0", " the cat", "sat");    /* U+3000 U+00A0 */
    check_joint(&b, "the cat\xE2\x80\x8B", "the cat\xE2\x80\x8B", " sat"); /* U+200B is no space */
    check_joint(&b, "the cat ", "the cat", "");
    close_bench(&b);
}

TEST(separate_texts_stay_as_they_are)
{
    bench b;
    open_bench(&b, EOS);
    const int64_t context = count_of(&b, "the cat  "), scored = count_of(&b, " sat on");
    assert_ok(pair(&b, "the cat  ", " sat on", CPL_JOIN_SEPARATE, 100));
    assert_int_equal(b.out.context, context);
    assert_int_equal(b.out.scored, scored);
    check_ids(&b, context, " sat on", 0);
    b.encoding.ids.count = context;
    check_ids(&b, 0, "the cat  ", 0);
    close_bench(&b);
}

/* A token may reach over the border. The context keeps its own tokens, and that number of tokens is
 * left out of the whole text. If no token is left, the pair cannot be scored. */
TEST(tokens_reach_over)
{
    bench b;
    open_bench(&b, EOS);
    assert_int_equal(count_of(&b, "ing"), 1);
    assert_int_equal(count_of(&b, "in"), 1);
    assert_ok(pair(&b, "in", "g cat", CPL_JOIN_JOINT, 100));
    assert_int_equal(b.out.context, 1);
    assert_int_equal(b.out.scored, count_of(&b, "ing cat") - 1);
    check_ids(&b, 1, "ing cat", 1);
    b.encoding.ids.count = 1;
    check_ids(&b, 0, "in", 0);
    assert_fails(CPL_ERR_INPUT, "\"g\" has no token of its own",
                 pair(&b, "in", "g", CPL_JOIN_JOINT, 100));
    assert_fails(CPL_ERR_INPUT, "\"\" has no token", pair(&b, "in", "", CPL_JOIN_JOINT, 100));
    assert_fails(CPL_ERR_INPUT, "\"\" has no token", pair(&b, "in", "", CPL_JOIN_SEPARATE, 100));
    close_bench(&b);
}

TEST(nothing_in_front)
{
    bench b;
    open_bench(&b, EOS);
    for (int joining = 0; joining < 2; joining++) {
        b.encoding.ids.count = 0;
        assert_ok(pair(&b, "", "the cat", joining ? CPL_JOIN_JOINT : CPL_JOIN_SEPARATE, 100));
        assert_int_equal(b.encoding.ids.at[0], EOS);
        assert_int_equal(b.out.context, 1);
        check_ids(&b, 1, "the cat", 0);
    }
    b.encoding.ids.count = 0;
    assert_ok(pair(&b, " \n", "the cat", CPL_JOIN_JOINT, 100));
    assert_int_equal(b.encoding.ids.at[0], EOS);
    check_ids(&b, 1, " \nthe cat", 0);
    b.encoding.ids.count = 0;
    assert_ok(pair(&b, "<|endoftext|>", "the cat", CPL_JOIN_JOINT, 100)); /* a special token */
    assert_int_equal(b.encoding.ids.at[0], EOS);
    check_ids(&b, 1, "the cat", 0);
    b.encoding.eos = -1;
    assert_fails(CPL_ERR_INPUT, "its context is empty", pair(&b, "", "a", CPL_JOIN_JOINT, 100));
    assert_fails(CPL_ERR_INPUT, "its context is empty",
                 cpl_encode_prompt(&b.encoding, &b.out, "", 3));
    close_bench(&b);
}

/* After other texts, in all windows: the last ids stay, and the counts are those of the whole. */
TEST(windows_cut_the_beginning)
{
    const char *context = "the cat sat on the mat and then", *continuation = " ran far away";
    const char *whole = "the cat sat on the mat and then ran far away";
    bench b;
    open_bench(&b, EOS);
    const int64_t n = count_of(&b, whole), own = count_of(&b, context), scored = n - own;
    for (int64_t window = scored; window < n + 3; window++) {
        b.encoding.ids.count = 0;
        assert_ok(pair(&b, "a", " b", CPL_JOIN_JOINT, 100));
        const int64_t before = b.encoding.ids.count;
        assert_ok(pair(&b, context, continuation, CPL_JOIN_JOINT, window));
        assert_int_equal(b.out.context, own);
        assert_int_equal(b.out.scored, scored);
        assert_int_equal(b.out.cut, n > window + 1 ? n - window - 1 : 0);
        assert_int_equal(b.out.length, n - b.out.cut);
        check_ids(&b, before, whole, b.out.cut);
    }
    char sentence[80];
    snprintf(sentence, sizeof sentence, "has %lld tokens, but the window is %lld",
             (long long)scored, (long long)(scored - 1));
    assert_fails(CPL_ERR_INPUT, sentence,
                 pair(&b, context, continuation, CPL_JOIN_JOINT, scored - 1));
    for (int64_t room = 1; room < n + 2; room++) {
        b.encoding.ids.count = 0;
        assert_ok(cpl_encode_prompt(&b.encoding, &b.out, whole, room));
        assert_int_equal(b.out.context, n);
        assert_int_equal(b.out.scored, 0);
        assert_int_equal(b.out.cut, room < n ? n - room : 0);
        check_ids(&b, 0, whole, b.out.cut);
    }
    close_bench(&b);
}

TEST(no_memory)
{
    for (int64_t nth = 1;; nth++) {
        bench b;
        open_bench(&b, EOS);
        cpl_alloc_fail_at(nth);
        cpl_status status = pair(&b, "", "the cat", CPL_JOIN_JOINT, 100);
        if (status == CPL_OK) status = pair(&b, "the cat", " sat", CPL_JOIN_JOINT, 100);
        cpl_alloc_fail_at(0);
        close_bench(&b);
        if (status == CPL_OK) {
            assert_true(nth > 2);
            return;
        }
        assert_int_equal(status, CPL_ERR_MEMORY);
    }
}
