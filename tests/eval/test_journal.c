/* test_journal.c - the journal of answered questions: resuming, lines that are cut or wrong, files
 * that are not a journal or are open in another process. */
#include "eval/journal.h"

#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "io/file.h"
#include "support/files.h"

static const char *path; /* a journal in a fresh folder for each test */
static json_t *settings; /* settings of the evaluation that began the journal */

static int make_place(void **state)
{
    (void)state;
    path     = in_folder(scratch_folder(), "out.json.partial");
    settings = json_pack("{s:s,s:i}", "model", "m", "limit", 3);
    return settings ? 0 : -1;
}

static int drop_settings(void **state)
{
    (void)state;
    json_decref(settings);
    return 0;
}
TESTS_DO(before_each, make_place);
TESTS_DO(after_each, drop_settings);

static void assert_holds(const char *want)
{
    cpl_text bytes = read_bytes(path);
    cpl_text_char(&bytes, '\0');
    assert_string_equal(bytes.bytes, want);
    cpl_text_free(&bytes);
}

static void add(cpl_eval_journal *r, const char *key, json_t *id, int pred)
{
    json_t *sample = json_pack("{s:o,s:i}", "id", id, "pred", pred);
    assert_ok(cpl_eval_journal_add(r, key, "0f", sample));
    json_decref(sample);
}

static int pred_of(const cpl_eval_journal *r, const char *key, const char *id)
{
    const char *sum;
    const json_t *sample = cpl_eval_journal_find(r, key, id, &sum);
    assert_string_equal(sum, sample ? "0f" : "");
    return sample ? (int)json_integer_value(json_object_get(sample, "pred")) : -1;
}

/* Two lines as the journal writes them, made before the tests. */
static char begun[128], first[128];

/* Writes an object as a line, with its check sum. */
static void seal(char line[128], const char *object)
{
    snprintf(line, 128, "%.*s,\"xxh3\":\"%016llx\"}\n", (int)strlen(object) - 1, object,
             (unsigned long long)XXH3_64bits(object, strlen(object)));
}

static int seal_lines(void **state)
{
    (void)state;
    seal(begun, "{\"settings\":{\"model\":\"m\",\"limit\":3}}");
    seal(first, "{\"task\":\"copa\",\"question\":\"0f\",\"sample\":{\"id\":0,\"pred\":1}}");
    return 0;
}
TESTS_DO(before_all, seal_lines);

/* A journal is begun, closed and resumed: its answers are found, and new answers added. */
TEST(going_on)
{
    cpl_eval_journal r;
    assert_ok(cpl_eval_journal_open(&r, path, settings, false));
    assert_int_equal(r.count, 0);
    add(&r, "copa", json_integer(0), 1);
    add(&r, "mmlu", json_string("law/2"), 3);
    cpl_eval_journal_close(&r);
    assert_ok(cpl_eval_journal_open(&r, path, settings, false));
    assert_int_equal(r.count, 2);
    assert_int_equal(pred_of(&r, "copa", "0"), 1);
    assert_int_equal(pred_of(&r, "mmlu", "law/2"), 3);
    assert_int_equal(pred_of(&r, "copa", "1"), -1);
    add(&r, "copa", json_integer(1), 2);
    cpl_eval_journal_close(&r);
    assert_ok(cpl_eval_journal_open(&r, path, settings, false));
    assert_int_equal(r.count, 3);
    assert_int_equal(pred_of(&r, "copa", "1"), 2);
    cpl_eval_journal_close(&r);
    assert_ok(cpl_eval_journal_open(&r, path, settings, true));
    assert_int_equal(r.count, 0);
    assert_holds(begun);
    assert_ok(cpl_eval_journal_remove(&r));
    assert_false(cpl_path_exists(path));
}

/* An interruption cuts the last line at any byte, also if it is the first line. */
TEST(cut_lines)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", begun, first);
    for (size_t n = 0; n <= strlen(whole); n++) {
        cpl_eval_journal r;
        write_bytes(path, whole, n);
        assert_ok(cpl_eval_journal_open(&r, path, settings, false));
        assert_int_equal(r.count, n == strlen(whole));
        cpl_eval_journal_close(&r);
        assert_holds(n == strlen(whole) ? whole : begun);
    }
}

/* A file that is not a journal is left unchanged. */
TEST(other_files)
{
    static const char *const others[] = {"my notes, one line", "my notes\nof two lines",
                                         "{\"task\":1}\n", "\n{\"settings\":{}}\n"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        for (int fresh = 0; fresh < 2; fresh++) {
            cpl_eval_journal r;
            write_string(path, others[i]);
            assert_fails(CPL_ERR_INPUT, "is not the record of an evaluation",
                         cpl_eval_journal_open(&r, path, settings, fresh));
            assert_holds(others[i]);
        }
}

TEST(wrong_lines)
{
    static const char *const objects[] = {"{\"task\":\"copa\"}",
                                          "{\"task\":\"copa\",\"sample\":{\"pred\":1}}"};
    char lines[5][128]                 = {"{\"task\":\"copa\",\"sam\n", "[]\n", "{}\n"};
    for (int i = 0; i < 2; i++) seal(lines[3 + i], objects[i]);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        cpl_eval_journal r;
        char whole[1024];
        snprintf(whole, sizeof whole, "%s%s%s%s", begun, first, lines[i], first);
        write_string(path, whole);
        assert_fails(CPL_ERR_INPUT, "out.json.partial: line 3",
                     cpl_eval_journal_open(&r, path, settings, false));
        assert_fails(CPL_ERR_INPUT, ": remove the file, or begin anew with --overwrite",
                     cpl_eval_journal_open(&r, path, settings, false));
        assert_holds(whole);
        assert_ok(cpl_eval_journal_open(&r, path, settings, true));
        cpl_eval_journal_close(&r);
    }
}

/* No changed byte is read as an answer. */
TEST(damaged_lines)
{
    for (size_t i = 0; i + 1 < strlen(first); i++) {
        cpl_eval_journal r;
        char whole[256];
        snprintf(whole, sizeof whole, "%s%s", begun, first);
        whole[strlen(begun) + i] ^= 1;
        write_string(path, whole);
        assert_fails(CPL_ERR_INPUT, "out.json.partial: line 2",
                     cpl_eval_journal_open(&r, path, settings, false));
    }
}

TEST(other_settings)
{
    cpl_eval_journal r;
    json_object_set_new(settings, "limit", json_integer(4));
    write_string(path, begun);
    assert_fails(CPL_ERR_INPUT, "(limit was 3 and is 4 now): --overwrite begins anew",
                 cpl_eval_journal_open(&r, path, settings, false));
}

/* A model and a tokenizer at other places are equal: only their contents are compared. */
TEST(other_places)
{
    static const char *const lines[] = {
        "{\"model\": \"m\", \"tokenizer\": {\"path\": \"t\", \"xxh3\": \"0f\"}}",
        "{\"model\": \"n\", \"tokenizer\": {\"path\": \"u\", \"xxh3\": \"0f\"}}",
        "{\"model\": \"m\", \"tokenizer\": {\"path\": \"t\", \"xxh3\": \"1f\"}}"};
    for (int i = 0; i < 3; i++) {
        json_t *now = json_loads(lines[i], 0, NULL);
        cpl_eval_journal r;
        cpl_status status = cpl_eval_journal_open(&r, path, now, false);
        if (i < 2)
            assert_ok(status);
        else
            assert_fails(CPL_ERR_INPUT, "(tokenizer was {\"xxh3\":\"0f\"} and is {\"xxh3\":\"1f\"}",
                         status);
        cpl_eval_journal_close(&r);
        json_decref(now);
    }
}

/* A file that cannot be removed is named. */
TEST(no_removal)
{
    cpl_eval_journal r;
    assert_ok(cpl_eval_journal_open(&r, path, settings, false));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_fails(CPL_ERR_IO, "out.json.partial: cannot be removed, though the results are written",
                 cpl_eval_journal_remove(&r));
    assert_int_equal(rmdir(path), 0);
}

/* Two evaluations never write to one file. */
TEST(open_elsewhere)
{
    cpl_eval_journal r, second;
    assert_ok(cpl_eval_journal_open(&r, path, settings, false));
    add(&r, "copa", json_integer(0), 1);
    for (int fresh = 0; fresh < 2; fresh++)
        assert_fails(CPL_ERR_INPUT, "out.json.partial: another evaluation is writing to it",
                     cpl_eval_journal_open(&second, path, settings, fresh));
    cpl_eval_journal_close(&r);
    assert_ok(cpl_eval_journal_open(&second, path, settings, false));
    assert_int_equal(second.count, 1);
    cpl_eval_journal_close(&second);
}

TEST(no_place)
{
    cpl_eval_journal r;
    assert_fails(CPL_ERR_IO, "/nowhere/x.partial: cannot be opened",
                 cpl_eval_journal_open(&r, "/nowhere/x.partial", settings, false));
}
