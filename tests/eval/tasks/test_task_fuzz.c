/* test_task_fuzz.c - task files that are damaged, or of another shape; memory that runs out. */
#include "base/arena.h"
#include "eval/prompts/questions.h"
#include "eval/run/runner.h"
#include "eval/tasks/task_parts.h"
#include "fuzz.h"
#include "settings/settings.h"
#include "settings/yaml_tree.h"

TEST(test_fuzz)
{
    cpl_text file = {0};
    int64_t good = 0, bad = 0;
    for (fuzz f = fuzz_start(12, 3000); fuzz_next(&f);) {
        const cpl_task_text *text = &cpl_task_texts[f.round % cpl_n_task_texts];
        const cpl_text whole = {.bytes = (char *)(uintptr_t)text->bytes, .length = text->length};
        cpl_task *task;
        fuzz_damage(&f, &file, &whole);
        cpl_status status =
            cpl_task_parse(&task, "t.yaml", file.bytes, file.length, cpl_request_kinds);
        if (status != CPL_OK) assert_non_null(strstr(cpl_last_error(), "t.yaml"));
        good += status == CPL_OK;
        bad += status != CPL_OK;
        cpl_task_free(task);
    }
    if (!fuzz_is_alone()) assert_true(good > 0 && bad > 0);
    cpl_text_free(&file);
}

/* Returns a value to replace another of the tree: of another kind, or from another place. */
static json_t *other_value(fuzz *f, json_t *root)
{
    static const char *const values[] = {"[]",          "{}",   "\"x\"",   "[[\"x\"]]",
                                         "{\"x\": []}", "\"\"", "\"file\""};
    size_t i                          = fuzz_below(f, 9);
    if (i < 7) return json_loads(values[i], JSON_DECODE_ANY, NULL);
    const char *key;
    json_t *value;
    size_t wanted = fuzz_below(f, json_object_size(root));
    json_object_foreach(root, key, value) if (wanted-- == 0) return json_deep_copy(value);
    return json_array();
}

/* Descends at random, and replaces or removes a value there. */
static void change_shape(fuzz *f, json_t *root)
{
    json_t *at = root;
    for (;;) {
        size_t size = json_is_array(at) ? json_array_size(at) : json_object_size(at);
        if (!size) return;
        size_t i       = fuzz_below(f, size);
        void *iterator = json_is_object(at) ? json_object_iter(at) : NULL;
        for (size_t k = 0; iterator && k < i; k++) iterator = json_object_iter_next(at, iterator);
        json_t *below = iterator ? json_object_iter_value(iterator) : json_array_get(at, i);
        size_t inside = json_is_array(below) ? json_array_size(below) : json_object_size(below);
        if (inside && fuzz_below(f, 4)) {
            at = below;
            continue;
        }
        if (!iterator)
            json_array_set_new(at, i, other_value(f, root));
        else if (fuzz_below(f, 3))
            json_object_iter_set_new(at, iterator, other_value(f, root));
        else
            json_object_del(at, json_object_iter_key(iterator));
        return;
    }
}

/* Asks the questions of a task that was read, which works or fails with a sentence. */
static void ask_all(const cpl_task *task)
{
    const cpl_questions_options options = {
        .data = "data/eval", .limit = 1, .shots = CPL_UNSET, .max_tokens = CPL_UNSET};
    for (int64_t i = 0; task && i < task->n_profiles; i++) {
        cpl_questions q;
        if (task->profiles[i].forms.count) continue;
        if (cpl_questions_read(&q, task, &task->profiles[i], &options) == CPL_OK)
            cpl_questions_free(&q);
        else
            assert_true(*cpl_last_error());
    }
}

/* Files of another shape are written as JSON, which is YAML too. */
TEST(test_shapes)
{
    int64_t good = 0, bad = 0;
    for (fuzz f = fuzz_start(14, 1200); fuzz_next(&f);) {
        const cpl_task_text *text = &cpl_task_texts[f.round % cpl_n_task_texts];
        cpl_yaml_tree tree;
        cpl_task *task;
        assert_ok(cpl_yaml_tree_parse(&tree, "t", text->bytes, text->length));
        for (size_t n = 1 + fuzz_below(&f, 2); n; n--) change_shape(&f, tree.root);
        char *file        = json_dumps(tree.root, JSON_INDENT(1));
        cpl_status status = cpl_task_parse(&task, "t.yaml", file, strlen(file), cpl_request_kinds);
        if (status != CPL_OK && !strstr(cpl_last_error(), "t.yaml:"))
            fail_msg("round %lld: %s", (long long)f.round, cpl_last_error());
        good += status == CPL_OK;
        bad += status != CPL_OK;
        ask_all(task);
        cpl_task_free(task);
        free(file);
        cpl_yaml_tree_free(&tree);
    }
    if (!fuzz_is_alone()) assert_true(good > 0 && bad > 0);
}

TEST(test_memory)
{
    for (int64_t n = 1;; n++) {
        cpl_task *task;
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_task_parse(&task, "t", cpl_task_texts[9].bytes,
                                           cpl_task_texts[9].length, cpl_request_kinds);
        cpl_alloc_fail_at(0);
        cpl_task_free(task);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
    }
}
