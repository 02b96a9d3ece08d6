/* test_run_record.c - runs as read from their folders: whole, compressed, damaged, gone on, of
 * other versions, and what is no run. */
#include "compare/run_record.h"

#include <fcntl.h>
#include <sys/file.h>

#include "base/arena.h"
#include "compare/run_case.h"

static const run_case plain = {.name = "plain", .seed = 3, .last = 6, .steps = 6, .alpha = 1};

static cpl_run_record opened(const char *folder)
{
    cpl_run_record run;
    assert_ok(cpl_run_record_open(&run, folder));
    return run;
}

/* Puts these bytes in the place of the metrics. */
static void replace_metrics(const char *folder, const char *bytes)
{
    write_string(in_folder(folder, "metrics.jsonl"), bytes);
}

static void figures_are_those_of_the_lines(void **state)
{
    (void)state;
    cpl_run_record run = opened(write_run(scratch_folder(), &plain));
    assert_string_equal(run.name, "plain");
    assert_int_equal(run.n_lines, 6);
    assert_int_equal(run.steps, 6);
    assert_false(run.in_progress);
    assert_int_equal(run.n_damaged + run.n_repeated, 0);
    assert_null(run.data);
    assert_false(run.has_start);
    for (int i = 0; i < 6; i++) {
        const cpl_run_line *line = &run.lines[i];
        assert_int_equal(line->step, i + 1);
        assert_near(line->tokens, (i + 1) * CASE_TOKENS, 0);
        assert_near(line->values[CPL_RUN_LOSS], case_loss(&plain, i + 1), 1e-12);
        assert_near(line->values[CPL_RUN_EPS],
                    (case_eps(&plain, i + 1, 0) + case_eps(&plain, i + 1, 1)) / 2, 1e-12);
        assert_near(line->layers[CPL_RUN_EPS * CASE_LAYERS + 1], case_eps(&plain, i + 1, 1), 1e-12);
        assert_near(line->values[CPL_RUN_ALPHA_MIN], 2, 0); /* of the layer that has one */
        assert_true(isnan(line->values[CPL_RUN_ERC]));
        assert_true(isnan(line->values[CPL_RUN_GRAD_NORM]));
        assert_int_equal(cpl_run_evaluated(line), (i + 1) % CASE_EVERY == 0);
    }
    assert_near(cpl_run_val_loss(&run, &run.lines[5], "b"), case_val(&plain, 6) + 0.5, 1e-12);
    assert_true(isnan(cpl_run_val_loss(&run, &run.lines[4], "b")));
    assert_true(isnan(cpl_run_val_loss(&run, &run.lines[5], "c")));
    cpl_run_record_close(&run);
}

static void lines_are_found_by_tokens(void **state)
{
    (void)state;
    cpl_run_record run = opened(write_run(scratch_folder(), &plain));
    assert_null(cpl_run_line_before(&run, 99));
    assert_int_equal(cpl_run_line_before(&run, 100)->step, 1);
    assert_int_equal(cpl_run_line_before(&run, 399)->step, 3);
    assert_int_equal(cpl_run_line_before(&run, 1e9)->step, 6);
    assert_null(cpl_run_line_at(&run, 399));
    assert_int_equal(cpl_run_line_at(&run, 400)->step, 4);
    cpl_run_record_close(&run);
}

static void compressed_metrics_are_read(void **state)
{
    (void)state;
    for (int zstd = 0; zstd < 2; zstd++) {
        const char *folder = write_run(scratch_folder(), &plain);
        cpl_text bytes = read_bytes(in_folder(folder, "metrics.jsonl")), packed = {0};
        assert_int_equal(unlink(in_folder(folder, "metrics.jsonl")), 0);
        if (zstd)
            append_zstd(&packed, bytes.bytes, bytes.length, 20);
        else
            append_gzip(&packed, bytes.bytes, bytes.length);
        write_bytes(in_folder(folder, zstd ? "metrics.jsonl.zst" : "metrics.jsonl.gz"),
                    packed.bytes, packed.length);
        cpl_run_record run = opened(folder);
        assert_int_equal(run.n_lines, 6);
        assert_near(run.lines[5].values[CPL_RUN_LOSS], case_loss(&plain, 6), 1e-12);
        cpl_run_record_close(&run);
        cpl_text_free(&bytes);
        cpl_text_free(&packed);
    }
}

static void a_cut_compressed_file_has_its_beginning(void **state)
{
    (void)state;
    run_case long_one  = plain;
    long_one.last      = 4000;
    long_one.steps     = 4000;
    const char *folder = write_run(scratch_folder(), &long_one);
    cpl_text bytes = read_bytes(in_folder(folder, "metrics.jsonl")), packed = {0};
    assert_int_equal(unlink(in_folder(folder, "metrics.jsonl")), 0);
    append_gzip(&packed, bytes.bytes, bytes.length);
    write_bytes(in_folder(folder, "metrics.jsonl.gz"), packed.bytes, packed.length / 2);
    cpl_run_record run = opened(folder);
    assert_non_null(run.cut);
    assert_non_null(strstr(run.cut, "metrics.jsonl.gz"));
    assert_true(run.n_lines > 1000 && run.n_lines < 3000);
    assert_near(run.lines[999].values[CPL_RUN_LOSS], case_loss(&long_one, 1000), 1e-9);
    cpl_run_record_close(&run);
    write_bytes(in_folder(folder, "metrics.jsonl.gz"), packed.bytes, 40);
    assert_fails(CPL_ERR_INPUT, "no line of its metrics could be read",
                 cpl_run_record_open(&run, folder));
    cpl_text_free(&bytes);
    cpl_text_free(&packed);
}

static void damaged_lines_are_counted(void **state)
{
    (void)state;
    const char *folder = write_run(scratch_folder(), &plain);
    replace_metrics(folder, "{\"step\":1,\"loss\":5}\n"
                            "not JSON\n"
                            "\n"
                            "[1, 2]\n"
                            "{\"loss\":4}\n"
                            "{\"step\":2,\"loss\":4,\"eps_mean\":[3,null],\"val_loss\":null}\n"
                            "{\"step\":3,\"loss\":3}\r\n"
                            "{\"step\":4,\"lo");
    cpl_run_record run = opened(folder);
    assert_int_equal(run.n_lines, 3);
    assert_int_equal(run.n_damaged, 4);
    assert_near(run.lines[2].tokens, 3 * CASE_TOKENS, 0); /* by data.batch_tokens */
    assert_near(run.lines[1].values[CPL_RUN_EPS], 3, 0);
    assert_true(isnan(run.lines[1].values[CPL_RUN_VAL_LOSS]));
    assert_true(run.in_progress);
    cpl_run_record_close(&run);
}

/* None of them takes the place of the good line of its step. */
static void a_line_without_its_figures_is_damage(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"step\":2}",
        "{\"step\":2,\"tokens\":200}",
        "{\"step\":2,\"tokens\":200,\"val_loss\":3}",
        "{\"step\":2,\"tokens\":200,\"loss\":null}",
        "{\"step\":2,\"tokens\":200,\"loss\":\"abc\"}",
        "{\"step\":2,\"tokens\":200,\"loss\":3,\"eps_mean\":[\"a\"]}",
        "{\"step\":2,\"tokens\":200,\"loss\":3,\"eps_mean\":3}",
        "{\"step\":2,\"tokens\":200,\"loss\":3,\"balance\":[1]}",
        "{\"step\":2,\"tokens\":200,\"loss\":3,\"val_loss_by_source\":[1]}",
        "{\"step\":2,\"tokens\":200,\"loss\":3,\"val_loss_by_source\":{\"a\":\"b\"}}",
        "{\"step\":2,\"tokens\":null,\"loss\":3}",
        "{\"step\":2,\"tokens\":\"200\",\"loss\":3}",
        "{\"step\":2,\"tokens\":201,\"loss\":3}",
        "{\"step\":2,\"tokens\":20000,\"loss\":3}",
        "{\"step\":2.5,\"tokens\":250,\"loss\":3}",
        "{\"step\":null,\"tokens\":200,\"loss\":3}",
    };
    const char *folder = write_run(scratch_folder(), &plain);
    cpl_text good      = read_bytes(in_folder(folder, "metrics.jsonl"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cpl_text text = {0};
        cpl_text_printf(&text, "%.*s%s\n", (int)good.length, good.bytes, bad[i]);
        replace_metrics(folder, text.bytes);
        cpl_run_record run = opened(folder);
        assert_int_equal(run.n_lines, 6);
        assert_int_equal(run.n_damaged, 1);
        assert_int_equal(run.n_repeated, 0);
        assert_near(run.lines[1].values[CPL_RUN_LOSS], case_loss(&plain, 2), 1e-12);
        cpl_run_record_close(&run);
        cpl_text_free(&text);
    }
    cpl_text_free(&good);
}

/* A step whose loss was not finite has been made. */
static void a_loss_that_was_not_finite_is_no_damage(void **state)
{
    (void)state;
    const char *folder = write_run(scratch_folder(), &plain);
    replace_metrics(folder, "{\"step\":1,\"tokens\":100,\"loss\":null,\"skipped\":1}\n");
    cpl_run_record run = opened(folder);
    assert_int_equal(run.n_damaged, 0);
    assert_true(isnan(run.lines[0].values[CPL_RUN_LOSS]));
    cpl_run_record_close(&run);
}

static void a_line_of_zeros_is_damage(void **state)
{
    (void)state;
    static const char bytes[] = "{\"step\":1,\"loss\":5}\n\0\0\0\0\n \t\r\n";
    const char *folder        = write_run(scratch_folder(), &plain);
    write_bytes(in_folder(folder, "metrics.jsonl"), bytes, sizeof bytes - 1);
    cpl_run_record run = opened(folder);
    assert_int_equal(run.n_lines, 1);
    assert_int_equal(run.n_damaged, 1);
    cpl_run_record_close(&run);
}

/* Without data.batch_tokens the lines tell each other. */
static void tokens_that_fall_are_damage(void **state)
{
    (void)state;
    static const double tokens[] = {100, 200, 30000, 400, 500, 40, 700, 700};
    const char *folder           = write_run(scratch_folder(), &plain);
    cpl_text text                = {0};
    write_string(in_folder(folder, "config.yaml"), "train:\n    steps: 8\n");
    for (int i = 0; i < 8; i++)
        cpl_text_printf(&text, "{\"step\":%d,\"tokens\":%g,\"loss\":%d}\n", i + 1, tokens[i], i);
    replace_metrics(folder, text.bytes);
    cpl_run_record run = opened(folder);
    assert_int_equal(run.n_lines, 5);
    assert_int_equal(run.n_damaged, 3);
    static const int steps[] = {1, 2, 4, 5};
    for (int i = 0; i < 4; i++) assert_int_equal(run.lines[i].step, steps[i]);
    assert_near(run.lines[4].tokens, 700, 0);
    cpl_run_record_close(&run);
    cpl_text_free(&text);
}

static void the_last_line_of_a_step_counts(void **state)
{
    (void)state;
    static const int steps[] = {1, 2, 3, 4, 3, 4, 4, 7, 5};
    static const int want[] = {1, 2, 3, 4, 5, 7}, from[] = {0, 1, 4, 6, 8, 7};
    const char *folder = write_run(scratch_folder(), &plain);
    cpl_text text      = {0};
    for (int i = 0; i < 9; i++) cpl_text_printf(&text, "{\"step\":%d,\"loss\":%d}\n", steps[i], i);
    replace_metrics(folder, text.bytes);
    cpl_run_record run = opened(folder);
    assert_int_equal(run.n_lines, 6);
    assert_int_equal(run.n_repeated, 3);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(run.lines[i].step, want[i]);
        assert_near(run.lines[i].values[CPL_RUN_LOSS], from[i], 0);
    }
    cpl_run_record_close(&run);
    cpl_text_free(&text);
}

static void a_run_in_progress_is_known(void **state)
{
    (void)state;
    const char *root   = scratch_folder();
    run_case begun     = plain;
    begun.name         = "begun";
    begun.steps        = 7;
    cpl_run_record run = opened(write_run(root, &begun));
    assert_true(run.in_progress);
    cpl_run_record_close(&run);
    const char *folder = write_run(root, &plain);
    write_string(in_folder(folder, "lock"), "");
    int lock = open(in_folder(folder, "lock"), O_RDWR);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    run = opened(folder);
    assert_true(run.in_progress);
    cpl_run_record_close(&run);
    close(lock);
    run = opened(folder);
    assert_false(run.in_progress);
    cpl_run_record_close(&run);
}

static void what_stands_beside_is_read(void **state)
{
    (void)state;
    const char *folder = write_run(scratch_folder(), &plain);
    write_string(in_folder(folder, "start.json"),
                 "{\"step\":0,\"tokens\":0,\"loss\":0,\"val_loss\":8.5,\"eps_mean\":[0.25,0.75],"
                 "\"val_loss_by_source\":{\"c\":9},\"balance\":0}");
    assert_int_equal(mkdir(in_folder(folder, "step-000004"), 0777), 0);
    assert_int_equal(mkdir(in_folder(folder, "step-000006"), 0777), 0);
    write_string(in_folder(folder, "step-000004/state.json"), "{\"data\":\"old\"}");
    write_string(in_folder(folder, "step-000006/state.json"), "{\"data\":\"abcd\"}");
    write_string(in_folder(folder, "step-000006/tokenizer.json"), "{}");
    cpl_run_record run = opened(folder);
    assert_true(run.has_start);
    assert_near(run.start.values[CPL_RUN_VAL_LOSS], 8.5, 0);
    assert_near(run.start.values[CPL_RUN_EPS], 0.5, 0);
    assert_true(isnan(run.start.values[CPL_RUN_LOSS])); /* only a step has it */
    assert_true(isnan(run.start.values[CPL_RUN_BALANCE]));
    assert_near(cpl_run_val_loss(&run, &run.start, "c"), 9, 0);
    assert_string_equal(run.data, "abcd");
    assert_int_equal(strlen(run.tokenizer), 16);
    cpl_run_record_close(&run);
    assert_int_equal(symlink("step-000004", in_folder(folder, "last")), 0);
    run = opened(folder);
    assert_string_equal(run.data, "old");
    cpl_run_record_close(&run);
    write_string(in_folder(folder, "start.json"),
                 "{\"data\":\"a1\",\"held_out\":\"b2\",\"tokenizer\":\"c3\"}");
    run = opened(folder);
    assert_string_equal(run.data, "a1"); /* before what a checkpoint says */
    assert_string_equal(run.held_out, "b2");
    assert_string_equal(run.tokenizer, "c3");
    cpl_run_record_close(&run);
    write_string(in_folder(folder, "start.json"), "{\"data\":1,\"held_out\":null}");
    run = opened(folder);
    assert_string_equal(run.data, "old");
    assert_null(run.held_out);
    cpl_run_record_close(&run);
    for (int i = 0; i < 2; i++) {
        write_string(in_folder(folder, "start.json"), i ? "[1]" : "{\"step\":");
        assert_fails(CPL_ERR_INPUT, "start.json", cpl_run_record_open(&run, folder));
    }
}

static void a_run_that_has_just_begun_has_no_lines(void **state)
{
    (void)state;
    const char *folder = write_run(scratch_folder(), &plain);
    for (int i = 0; i < 2; i++) {
        replace_metrics(folder, "");
        if (i) assert_int_equal(unlink(in_folder(folder, "metrics.jsonl")), 0);
        cpl_run_record run = opened(folder);
        assert_int_equal(run.n_lines, 0);
        assert_null(cpl_run_last(&run));
        assert_null(cpl_run_line_before(&run, 1e9));
        assert_true(run.in_progress);
        cpl_run_record_close(&run);
    }
}

static void a_folder_named_twice_is_read_once(void **state)
{
    (void)state;
    const char *root = scratch_folder();
    run_case other   = plain;
    other.name       = "other";
    char dotted[600];
    cpl_run_record runs[4] = {0};
    int64_t n              = 0;
    const char *one = write_run(root, &plain), *two = write_run(root, &other);
    snprintf(dotted, sizeof dotted, "%s/../plain/", two);
    assert_int_equal(symlink(two, in_folder(root, "link")), 0);
    const char *const folders[] = {one, two, dotted, in_folder(root, "link")};
    assert_ok(cpl_run_records_open(runs, &n, folders, 4));
    assert_int_equal(n, 2);
    assert_string_equal(runs[0].duplicate, dotted);
    assert_string_equal(runs[1].duplicate, folders[3]);
    for (int i = 0; i < 2; i++) cpl_run_record_close(&runs[i]);
    const char *const fails[] = {one, "/no/such", two};
    assert_fails(CPL_ERR_INPUT, "no such folder", cpl_run_records_open(runs, &n, fails, 3));
    for (int i = 0; i < n; i++) cpl_run_record_close(&runs[i]);
}

static void what_is_no_run_is_told(void **state)
{
    (void)state;
    const char *root = scratch_folder(), *folder;
    cpl_run_record run;
    assert_fails(CPL_ERR_INPUT, "no such folder", cpl_run_record_open(&run, "/no/such"));
    assert_fails(CPL_ERR_INPUT, "has no config.yaml", cpl_run_record_open(&run, root));
    assert_int_equal(mkdir(in_folder(root, "step-000010"), 0777), 0);
    folder = in_folder(root, "step-000010");
    write_string(in_folder(folder, "config.json"), "{}");
    assert_fails(CPL_ERR_INPUT, "is a model directory, not a run",
                 cpl_run_record_open(&run, folder));
    write_string(in_folder(folder, "state.json"), "{}");
    assert_fails(CPL_ERR_INPUT, "is a checkpoint, not a run", cpl_run_record_open(&run, folder));
    folder = write_run(root, &plain);
    replace_metrics(folder, "x\ny\n");
    assert_fails(CPL_ERR_INPUT, "none of the 2 lines", cpl_run_record_open(&run, folder));
    assert_non_null(strstr(cpl_last_error(), folder));
    write_string(in_folder(folder, "config.yaml"), "train: [");
    assert_fails(CPL_ERR_INPUT, "config.yaml:", cpl_run_record_open(&run, folder));
}

static void memory_that_is_not_there_is_told(void **state)
{
    (void)state;
    const char *folder = write_run(scratch_folder(), &plain);
    const int64_t held = cpl_alloc_in_use();
    int failed         = 0;
    for (int64_t n = 1; n < 400; n++) {
        cpl_run_record run;
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_run_record_open(&run, folder);
        cpl_alloc_fail_at(0);
        failed += status == CPL_ERR_MEMORY;
        if (status == CPL_OK) cpl_run_record_close(&run);
        assert_int_equal(cpl_alloc_in_use(), held);
    }
    assert_true(failed > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_the_lines),
        cmocka_unit_test(lines_are_found_by_tokens),
        cmocka_unit_test(compressed_metrics_are_read),
        cmocka_unit_test(a_cut_compressed_file_has_its_beginning),
        cmocka_unit_test(damaged_lines_are_counted),
        cmocka_unit_test(a_line_without_its_figures_is_damage),
        cmocka_unit_test(a_loss_that_was_not_finite_is_no_damage),
        cmocka_unit_test(a_line_of_zeros_is_damage),
        cmocka_unit_test(tokens_that_fall_are_damage),
        cmocka_unit_test(the_last_line_of_a_step_counts),
        cmocka_unit_test(a_run_in_progress_is_known),
        cmocka_unit_test(what_stands_beside_is_read),
        cmocka_unit_test(a_run_that_has_just_begun_has_no_lines),
        cmocka_unit_test(a_folder_named_twice_is_read_once),
        cmocka_unit_test(what_is_no_run_is_told),
        cmocka_unit_test(memory_that_is_not_there_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
