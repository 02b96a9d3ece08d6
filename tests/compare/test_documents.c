/* test_documents.c - pairs of runs document by document and question by question, against what
 * is worked out here. */
#include "base/arena.h"
#include "base/rng.h"
#include "compare/compare_case.h"
#include "compare/internal.h"

/* ---- documents ---- */

enum { DOCUMENTS = 400 };

static double a_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static double bytes_of(int d)
{
    return 200 + (d * 37) % 300;
}

/* nll of document `d` in run `r` */
static double nll_of(int d, int r)
{
    uint64_t state = (uint64_t)(d * 8 + r + 1);
    a_number(&state);
    return bytes_of(d) * (0.8 + 0.1 * (d % 7) + 0.05 * a_number(&state) - 0.02 * (r >= 3));
}

static void write_documents(const char *folder, int r, int first, int last, bool packed)
{
    cpl_text text = {0}, gz = {0};
    cpl_text_printf(&text, "{\"step\":20,\"window\":64,\"documents\":[");
    for (int d = first; d < last; d++)
        cpl_text_printf(&text,
                        "%s{\"source\":\"%s\",\"id\":\"d%d\",\"bytes\":%g,\"tokens\":9,"
                        "\"nll\":%.17g}",
                        d > first ? "," : "", d % 3 ? "a" : "b", d, bytes_of(d), nll_of(d, r));
    cpl_text_append(&text, "]}", 2);
    append_gzip(&gz, text.bytes, text.length);
    if (packed)
        write_bytes(in_folder(folder, "documents.json.gz"), gz.bytes, gz.length);
    else
        write_bytes(in_folder(folder, "documents.json"), text.bytes, text.length);
    cpl_text_free(&text);
    cpl_text_free(&gz);
}

static void line_up_documents(lined_up *l)
{
    const char *root = scratch_folder(), *folders[6];
    for (int r = 0; r < 6; r++) {
        folders[r] = write_run(root, &six[r]);
        /* the baseline lacks the first two, the others the last three */
        write_documents(folders[r], r, r < 3 ? 2 : 0, r < 3 ? DOCUMENTS : DOCUMENTS - 3, r % 2);
    }
    line_up_folders(l, folders, 6, NULL);
}

static void bits_per_byte_are_of_the_same_documents(void **state)
{
    (void)state;
    lined_up l;
    line_up_documents(&l);
    const cpl_document_difference *d = &l.c.pairings[0].documents;
    double base[2] = {0}, other[2] = {0}, bytes[2] = {0};
    for (int i = 2; i < DOCUMENTS - 3; i++) {
        bytes[i % 3 == 0] += bytes_of(i);
        for (int r = 0; r < 3; r++) base[i % 3 == 0] += nll_of(i, r) / 3;
        for (int r = 3; r < 6; r++) other[i % 3 == 0] += nll_of(i, r) / 3;
    }
    assert_int_equal(d->n_pairs, 3);
    assert_int_equal(d->step, 20);
    assert_int_equal(d->only_base, 3);
    assert_int_equal(d->only_other, 2);
    assert_int_equal(d->n_sets, 3);
    assert_int_equal(d->sets[0].n, DOCUMENTS - 5);
    assert_near(d->sets[0].base, (base[0] + base[1]) / log(2) / (bytes[0] + bytes[1]), 1e-12);
    assert_near(d->sets[0].other, (other[0] + other[1]) / log(2) / (bytes[0] + bytes[1]), 1e-12);
    for (int s = 0; s < 2; s++) {
        assert_string_equal(d->sets[s + 1].source, s ? "b" : "a");
        assert_near(d->sets[s + 1].difference, (other[s] - base[s]) / log(2) / bytes[s], 1e-12);
        assert_near(d->sets[s + 1].bytes, bytes[s], 0);
    }
    release(&l);
}

/* Of many documents the interval is that of a normal distribution with the deviation of a ratio of
 * sums. */
static void the_bootstrap_is_near_the_analytic_interval(void **state)
{
    (void)state;
    lined_up l;
    line_up_documents(&l);
    const cpl_document_set *set = &l.c.pairings[0].documents.sets[0];
    double bytes = 0, squares = 0;
    const double n = DOCUMENTS - 5;
    for (int i = 2; i < DOCUMENTS - 3; i++) {
        double delta = 0;
        for (int r = 0; r < 3; r++) delta += (nll_of(i, r + 3) - nll_of(i, r)) / 3 / log(2);
        bytes += bytes_of(i);
        squares += pow(delta - set->difference * bytes_of(i), 2);
    }
    const double sd = sqrt(squares * n / (n - 1)) / bytes;
    assert_near(set->high - set->low, 2 * 1.96 * sd, 0.1 * 2 * 1.96 * sd);
    assert_near((set->high + set->low) / 2, set->difference, 0.3 * sd);
    assert_true(set->low < set->difference && set->difference < set->high);
    release(&l);
}

static void the_bootstrap_is_the_same_twice(void **state)
{
    (void)state;
    double delta[50], bytes[50], low[3], high[3];
    uint64_t numbers = 7;
    for (int i = 0; i < 50; i++) {
        delta[i] = a_number(&numbers) - 0.4;
        bytes[i] = 100 + i;
    }
    for (int i = 0; i < 3; i++)
        assert_ok(cpl_compare_interval(&low[i], &high[i], delta, bytes, 50, (uint32_t)(i == 2)));
    assert_true(low[0] == low[1] && high[0] == high[1]);
    assert_true(low[0] != low[2]); /* another set draws other documents */
    /* one resample by hand: the first draws are those of the generator */
    double drawn[CPL_BOOTSTRAP_RESAMPLES];
    for (uint64_t k = 0; k < CPL_BOOTSTRAP_RESAMPLES; k++) {
        const cpl_rng_key key = {.step = k, .stream = CPL_STREAM_BOOTSTRAP};
        double sum = 0, size = 0;
        for (uint64_t i = 0; i < 50; i++) {
            const int at = (int)((double)cpl_rng_u32(&key, i) / 4294967296.0 * 50);
            sum += delta[at];
            size += bytes[at];
        }
        drawn[k] = sum / size;
    }
    assert_near(low[0], cpl_quantile(drawn, CPL_BOOTSTRAP_RESAMPLES, 0.025), 1e-15);
    assert_near(high[0], cpl_quantile(drawn, CPL_BOOTSTRAP_RESAMPLES, 0.975), 1e-15);
}

static void documents_of_other_steps_are_not_compared(void **state)
{
    (void)state;
    const char *folders[2];
    write_pair(folders);
    write_string(in_folder(folders[0], "documents.json"),
                 "{\"step\":20,\"window\":64,\"documents\":[{\"source\":\"a\",\"id\":\"x\","
                 "\"bytes\":10,\"tokens\":3,\"nll\":5}]}");
    lined_up l;
    line_up_folders(&l, folders, 2, NULL);
    assert_int_equal(l.c.pairings[0].documents.n_pairs, 0); /* one has none: nothing to tell */
    assert_int_equal(l.c.warnings.count, 0);
    release(&l);
    static const char *const bad[][2] = {
        {"{\"step\":10,\"window\":64,\"documents\":[]}", "of different steps or windows"},
        {"{\"step\":20,\"window\":32,\"documents\":[]}", "of different steps or windows"},
        {"{\"step\":20,\"window\":64,\"documents\":[]}", "no document in common"},
        {"{\"step\":20,\"window\":64,\"documents\":[{\"source\":\"a\",\"id\":\"x\","
         "\"bytes\":11,\"nll\":5}]}",
         "no document in common"}, /* other bytes are another document */
        {"{\"step\":", "documents.json: line 1"},
    };
    for (int i = 0; i < 5; i++) {
        write_string(in_folder(folders[1], "documents.json"), bad[i][0]);
        line_up_folders(&l, folders, 2, NULL);
        assert_int_equal(l.c.pairings[0].documents.n_pairs, 0);
        assert_true(warns(&l.c, bad[i][1]));
        release(&l);
    }
}

/* ---- questions ---- */

/* Questions 0 .. n-1 are right where `is` says so; question 3 is left out by the second side. */
static void write_questions(const char *folder, const char *is, bool other)
{
    cpl_text text = {0};
    cpl_text_printf(&text, "{\"settings\":{},\"results\":{\"ranked\":{\"metrics\":{\"acc_norm\":0,"
                           "\"acc\":0},\"samples\":[");
    for (int i = 0; is[i]; i++)
        if (i != 3 || !other)
            cpl_text_printf(&text, "%s{\"id\":%d,\"correct\":{\"acc\":0,\"acc_norm\":%c}}",
                            i ? "," : "", i, is[i]);
    cpl_text_printf(&text,
                    "]},\"%s\":{\"metrics\":{\"exact_match\":1},\"samples\":[{\"id\":\"q/0\","
                    "\"correct\":1}]},\"written\":{\"metrics\":{\"exact_match,b\":0,"
                    "\"exact_match,a\":0},\"samples\":[{\"id\":\"w\",\"correct\":{\"a\":0,"
                    "\"b\":1}}]}}}",
                    other ? "theirs" : "ours");
    write_bytes(in_folder(folder, "questions.json"), text.bytes, text.length);
    cpl_text_free(&text);
}

static void questions_are_counted_both_ways(void **state)
{
    (void)state;
    const char *folders[2];
    write_pair(folders);
    write_questions(folders[0], "111000000000", false);
    write_questions(folders[1], "100111111000", true);
    lined_up l;
    line_up_folders(&l, folders, 2, NULL);
    const cpl_run_pair *pair = &l.c.pairings[0].pairs[0];
    assert_int_equal(pair->n_tasks, 2); /* tasks of one side alone are none */
    const cpl_question_table *t = &pair->tasks[0];
    assert_string_equal(t->task, "ranked");
    assert_string_equal(t->metric, "acc_norm"); /* the first of "metrics" */
    assert_int_equal(t->both, 1);
    assert_int_equal(t->only_base, 2);
    assert_int_equal(t->only_other, 5);
    assert_int_equal(t->neither, 3);
    assert_int_equal(t->left_out, 1);
    assert_near(t->p, 0.453125, 1e-12); /* binomtest(2, 7) */
    assert_string_equal(pair->tasks[1].metric, "b");
    assert_int_equal(pair->tasks[1].both, 1);
    assert_near(pair->tasks[1].p, 1, 0);
    release(&l);
}

/* Twice two questions asked four times: one run leads in the first, nobody in the second. */
static void askings_of_a_question_count_once(void **state)
{
    (void)state;
    static const char *const right[] = {"11111100", "00001010"};
    const char *folders[2];
    write_pair(folders);
    for (int side = 0; side < 2; side++) {
        cpl_text text = {0};
        cpl_text_printf(&text, "{\"results\":{\"mmlu\":{\"samples\":[");
        for (int i = 0; i < 8; i++)
            cpl_text_printf(&text, "%s{\"id\":\"law#1/%d#%d\",\"correct\":%c}", i ? "," : "", i / 4,
                            i % 4, right[side][i]);
        cpl_text_printf(&text, "]}}}");
        write_bytes(in_folder(folders[side], "questions.json"), text.bytes, text.length);
        cpl_text_free(&text);
    }
    lined_up l;
    line_up_folders(&l, folders, 2, NULL);
    const cpl_question_table *t = &l.c.pairings[0].pairs[0].tasks[0];
    assert_int_equal(t->only_base, 5);
    assert_int_equal(t->only_other, 1);
    assert_near(t->p, 1, 1e-12); /* one question against none, not five against one: 0.21875 */
    release(&l);
}

static void questions_of_another_shape_are_told(void **state)
{
    (void)state;
    const char *folders[2];
    write_pair(folders);
    write_questions(folders[0], "1110", false);
    static const char *const bad[][2] = {
        {"[]", "erc-s0/questions.json: it is no object"},
        {"{\"result\":{}}", "questions.json: its member results is no object"},
        {"{\"results\":[]}", "questions.json: its member results is no object"},
        {"{\"results\":{\"ranked\":{\"sample\":[]}}}", "its task ranked has no array samples"},
        {"{\"results\":{\"ranked\":[]}}", "its task ranked has no array samples"},
        {"{\"results\":{\"ranked\":{\"samples\":[1,{\"id\":1,\"correct\":1},{\"id\":2}]}}}",
         "2 of the samples of its task ranked have no id"},
        {"{\"results\":", "questions.json: line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lined_up l;
        write_string(in_folder(folders[1], "questions.json"), bad[i][0]);
        line_up_folders(&l, folders, 2, NULL);
        assert_true(warns(&l.c, bad[i][1]));
        release(&l);
    }
}

static void memory_that_is_not_there_is_told(void **state)
{
    (void)state;
    const char *root = scratch_folder();
    cpl_run_record runs[2];
    const cpl_compare_options options = {.group_by = NULL};
    for (int i = 0; i < 2; i++) {
        const char *folder = write_run(root, &six[i * 4]);
        write_documents(folder, i * 4, 0, 30, false);
        write_questions(folder, "10101", false);
        assert_ok(cpl_run_record_open(&runs[i], folder));
    }
    const int64_t held = cpl_alloc_in_use();
    int failed         = 0;
    for (int64_t n = 1; n < 60; n++) {
        cpl_compare c;
        cpl_text out = {0};
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_compare_open(&c, runs, 2, &options);
        if (status == CPL_OK) status = cpl_compare_text(&out, &c);
        cpl_alloc_fail_at(0);
        failed += status == CPL_ERR_MEMORY;
        cpl_text_free(&out);
        cpl_compare_close(&c);
        assert_int_equal(cpl_alloc_in_use(), held);
    }
    assert_true(failed > 10);
    for (int i = 0; i < 2; i++) cpl_run_record_close(&runs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_per_byte_are_of_the_same_documents),
        cmocka_unit_test(the_bootstrap_is_near_the_analytic_interval),
        cmocka_unit_test(the_bootstrap_is_the_same_twice),
        cmocka_unit_test(documents_of_other_steps_are_not_compared),
        cmocka_unit_test(questions_are_counted_both_ways),
        cmocka_unit_test(askings_of_a_question_count_once),
        cmocka_unit_test(questions_of_another_shape_are_told),
        cmocka_unit_test(memory_that_is_not_there_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
