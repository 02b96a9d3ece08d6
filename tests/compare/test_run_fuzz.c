/* test_run_fuzz.c - damaged runs: configuration, metrics plain and compressed, start.json,
 * documents, questions. Always a sentence, or a comparison that can be shown in every form; never a
 * crash or a leak.
 *
 * Method: two good runs that pair; each round damages one file of the second and lines both up. */
#include "base/arena.h"
#include "compare/compare_case.h"
#include "fuzz.h"
#include "io/file.h"

enum { ROUNDS = 600, TARGETS = 6 };

static const char *const names[TARGETS] = {"config.yaml", "metrics.jsonl",  "metrics.jsonl.gz",
                                           "start.json",  "documents.json", "questions.json"};

static const run_case good[] = {
    {.name = "good", .seed = 0, .alpha = 1, .last = 6, .steps = 6},
    {.name  = "hurt",
     .seed  = 0,
     .alpha = 2,
     .last  = 6,
     .steps = 6,
     .more  = "    layers: [1, \"2\"]\n"},
};

static void add_files(const char *folder)
{
    cpl_text bytes = read_bytes(in_folder(folder, "metrics.jsonl")), packed = {0};
    append_gzip(&packed, bytes.bytes, bytes.length);
    write_bytes(in_folder(folder, "metrics.jsonl.gz"), packed.bytes, packed.length);
    write_string(in_folder(folder, "start.json"),
                 "{\"step\":0,\"tokens\":0,\"val_loss\":8.5,\"eps_mean\":[0.25,0.75],"
                 "\"val_loss_by_source\":{\"a\":9}}");
    write_string(in_folder(folder, "documents.json"),
                 "{\"step\":6,\"window\":8,\"documents\":[{\"source\":\"a\",\"id\":\"x\","
                 "\"bytes\":10,\"tokens\":3,\"nll\":5},{\"source\":\"b\",\"id\":7,\"bytes\":20,"
                 "\"tokens\":3,\"nll\":15.5}]}");
    write_string(in_folder(folder, "questions.json"),
                 "{\"results\":{\"quiz\":{\"metrics\":{\"acc\":1},\"samples\":[{\"id\":0,"
                 "\"correct\":{\"acc\":1}},{\"id\":\"q\",\"correct\":{\"acc\":0}}]}}}");
    cpl_text_free(&bytes);
    cpl_text_free(&packed);
}

/* Everything that can be made of a comparison; the page, which takes longest, now and then. */
static void show(const cpl_compare *c, bool page)
{
    cpl_text out = {0};
    json_t *json = cpl_compare_json(c);
    assert_non_null(json);
    json_decref(json);
    assert_ok(cpl_compare_text(&out, c));
    if (page) {
        json_t *data = page_data(c);
        assert_ok(cpl_compare_page(&out, c, data));
        json_decref(data);
    }
    cpl_text_free(&out);
}

/* Whether the damaged run could be lined up. */
static bool try(const cpl_run_record *whole, const char *folder, bool page)
{
    const cpl_compare_options options = {.default_value = standard};
    cpl_run_record runs[2]            = {*whole};
    cpl_compare c;
    const cpl_status status = cpl_run_record_open(&runs[1], folder);
    if (status != CPL_OK) {
        assert_true(status == CPL_ERR_INPUT || status == CPL_ERR_IO);
        assert_true(strlen(cpl_last_error()) > 10);
        return false;
    }
    assert_ok(cpl_compare_open(&c, runs, 2, &options));
    show(&c, page);
    cpl_compare_close(&c);
    cpl_run_record_close(&runs[1]);
    return true;
}

static void damaged_runs(void **state)
{
    (void)state;
    const char *root = scratch_folder(), *hurt = NULL;
    cpl_text whole[TARGETS], file              = {0};
    int64_t read[TARGETS] = {0}, refused[TARGETS] = {0};
    cpl_run_record kept;
    for (int i = 0; i < 2; i++) {
        const char *folder = write_run(root, &good[i]);
        add_files(folder);
        if (i == 0) assert_ok(cpl_run_record_open(&kept, folder));
        hurt = folder;
    }
    for (int t = 0; t < TARGETS; t++) whole[t] = read_bytes(in_folder(hurt, names[t]));
    const int64_t held = cpl_alloc_in_use();
    for (fuzz f = fuzz_start(11, ROUNDS); fuzz_next(&f);) {
        const int t = (int)(f.round % TARGETS);
        fuzz_damage(&f, &file, &whole[t]);
        fuzz_write(in_folder(hurt, names[t]), &file);
        if (t == 2) unlink(in_folder(hurt, "metrics.jsonl")); /* the plain one comes first */
        const int64_t before = cpl_alloc_in_use();
        if (try(&kept, hurt, f.round % 24 < TARGETS))
            read[t]++;
        else
            refused[t]++;
        assert_int_equal(cpl_alloc_in_use(), before);
        fuzz_write(in_folder(hurt, names[t]), &whole[t]);
        if (t == 2) fuzz_write(in_folder(hurt, names[1]), &whole[1]);
    }
    for (int t = 0; t < TARGETS; t++) {
        print_message("%-18s %lld read, %lld refused\n", names[t], (long long)read[t],
                      (long long)refused[t]);
        if (!fuzz_is_alone()) assert_true(read[t] && (refused[t] || t == 1 || t > 2));
        cpl_text_free(&whole[t]);
    }
    cpl_text_free(&file);
    assert_true(cpl_alloc_in_use() < held);
    cpl_run_record_close(&kept);
    cpl_folder_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
