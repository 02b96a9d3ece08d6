/* test_yaml_tree.c - a YAML file as a tree, with places; refused files; damaged files. */
#include "base/arena.h"
#include "fuzz.h"
#include "settings/yaml_tree.h"

static const char sample[] = "task: arc # comment\n"
                             "sets: [3b, '15b']\n"
                             "splits:\n"
                             "    test: {files: [a.jsonl, b.jsonl]}\n"
                             "    dev: \"x\\ty\"\n"
                             "nothing:\n"
                             "text: |\n"
                             "    one\n"
                             "    two\n";

static const json_t *at(const json_t *from, const char *key)
{
    const json_t *value = json_object_get(from, key);
    if (!value) fail_msg("there is no %s", key);
    return value;
}

static void check_place(const cpl_yaml_tree *tree, const json_t *value, const char *place)
{
    assert_fails(CPL_ERR_INPUT, place, cpl_yaml_tree_fail(tree, value, "%s", "wrong"));
}

TEST(test_values)
{
    cpl_yaml_tree tree;
    assert_ok(cpl_yaml_tree_parse(&tree, "f.yaml", sample, strlen(sample)));
    json_t *want = json_loads("{\"task\": \"arc\", \"sets\": [\"3b\", \"15b\"], \"splits\": "
                              "{\"test\": {\"files\": [\"a.jsonl\", \"b.jsonl\"]}, \"dev\": "
                              "\"x\\ty\"}, \"nothing\": \"\", \"text\": \"one\\ntwo\\n\"}",
                              0, NULL);
    assert_true(json_equal(tree.root, want));
    json_decref(want);
    check_place(&tree, tree.root, "f.yaml:1:1: wrong");
    check_place(&tree, at(tree.root, "task"), "f.yaml:1:1: wrong");
    check_place(&tree, json_array_get(at(tree.root, "sets"), 1), "f.yaml:2:12: wrong");
    check_place(&tree, at(at(tree.root, "splits"), "dev"), "f.yaml:5:5: wrong");
    check_place(&tree, NULL, "f.yaml:1:1: wrong");
    assert_fails(CPL_ERR_INPUT, "f.yaml:5:10: wrong",
                 cpl_yaml_tree_fail_value(&tree, at(at(tree.root, "splits"), "dev"), "wrong"));
    assert_true(cpl_yaml_tree_find(&tree, at(tree.root, "task"))->plain);
    assert_false(cpl_yaml_tree_find(&tree, json_array_get(at(tree.root, "sets"), 1))->plain);
    assert_string_equal(cpl_yaml_tree_text(&tree, "splits", "dev"), "x\ty");
    assert_null(cpl_yaml_tree_text(&tree, "splits", "test"));
    assert_null(cpl_yaml_tree_text(&tree, "task", "dev"));
    json_t *made = json_object();
    check_place(&tree, made, "f.yaml:1:1: wrong");
    assert_ok(cpl_yaml_tree_same_place(&tree, made, at(at(tree.root, "splits"), "dev")));
    check_place(&tree, made, "f.yaml:5:5: wrong");
    check_place(&tree, at(at(tree.root, "splits"), "dev"), "f.yaml:5:5: wrong");
    json_decref(made);
    assert_fails(CPL_ERR_INPUT, "f.yaml:6:1: there is no x",
                 cpl_yaml_tree_place(&tree, at(tree.root, "nothing"),
                                     CPL_FAIL(CPL_ERR_INPUT, "there is no x")));
    assert_int_equal(cpl_yaml_tree_place(&tree, tree.root, CPL_OK), CPL_OK);
    cpl_yaml_tree_free(&tree);
    cpl_yaml_tree_free(&tree);
}

TEST(test_empty)
{
    cpl_yaml_tree tree;
    assert_ok(cpl_yaml_tree_parse(&tree, "f", "# nothing\n", 10));
    assert_string_equal(json_string_value(tree.root), "");
    cpl_yaml_tree_free(&tree);
    assert_ok(cpl_yaml_tree_parse(&tree, "f", NULL, 0));
    cpl_yaml_tree_free(&tree);
}

TEST(test_refused)
{
    static const struct {
        const char *bytes, *sentence;
    } all[] = {
        {"a: 1\na: 2\n", "f:2:1: a is given twice"},
        {"a: &x 1\n", "f:1:4: anchors (&x) are not used here"},
        {"a: *x\n", "f:1:4: aliases (*x) are not used here"},
        {"a: !!int 1\n", "f:1:4: tags (tag:yaml.org,2002:int) are not used here"},
        {"a: 1\n---\nb: 2\n", "f:2:1: a second document begins here"},
        {"a: [1, 2\n", "f:2:1: "},
        {"a: \"x\\0y\"\n", "f:1:4: a text holds a NUL character"},
        {"[a]: 1\n", "f:1:1: a name is expected here"},
        {"a: \xff\n", "f: byte 3: "},
        {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]\n", "f:1:17: more than 16 levels"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cpl_yaml_tree tree;
        assert_fails(CPL_ERR_INPUT, all[i].sentence,
                     cpl_yaml_tree_parse(&tree, "f", all[i].bytes, strlen(all[i].bytes)));
        assert_null(tree.root);
    }
}

TEST(test_file)
{
    cpl_yaml_tree tree;
    char path[128];
    cpl_text text = {0};
    snprintf(path, sizeof path, "%s/a.yaml", scratch_folder());
    assert_int_not_equal(cpl_yaml_tree_read(&tree, path), CPL_OK);
    cpl_text_printf(&text, "a: [b]\n");
    fuzz_write(path, &text);
    assert_ok(cpl_yaml_tree_read(&tree, path));
    assert_int_equal(json_array_size(at(tree.root, "a")), 1);
    check_place(&tree, at(tree.root, "a"), "/a.yaml:1:1: wrong");
    cpl_yaml_tree_free(&tree);
    while (text.length <= 16 << 20) cpl_text_printf(&text, "# %0*d\n", 60000, 0);
    fuzz_write(path, &text);
    assert_int_not_equal(cpl_yaml_tree_read(&tree, path), CPL_OK);
    assert_non_null(strstr(cpl_last_error(), "a.yaml"));
    cpl_text_free(&text);
}

/* Any bytes give a tree or a sentence with the file's name. */
TEST(test_fuzz)
{
    cpl_text whole = {0}, file = {0};
    int64_t good = 0, bad = 0;
    cpl_text_append(&whole, sample, strlen(sample));
    for (fuzz f = fuzz_start(11, 4000); fuzz_next(&f);) {
        cpl_yaml_tree tree;
        fuzz_damage(&f, &file, &whole);
        cpl_status status = cpl_yaml_tree_parse(&tree, "f.yaml", file.bytes, file.length);
        if (status != CPL_OK) assert_non_null(strstr(cpl_last_error(), "f.yaml"));
        good += status == CPL_OK;
        bad += status != CPL_OK;
        cpl_yaml_tree_free(&tree);
    }
    if (!fuzz_is_alone()) assert_true(good > 0 && bad > 0);
    cpl_text_free(&whole);
    cpl_text_free(&file);
}

/* If the n-th call of cpl_alloc fails, the parser returns CPL_ERR_MEMORY, and no memory leaks. */
TEST(test_memory)
{
    for (int64_t n = 1;; n++) {
        cpl_yaml_tree tree;
        cpl_alloc_fail_at(n);
        cpl_status status = cpl_yaml_tree_parse(&tree, "f", sample, strlen(sample));
        cpl_alloc_fail_at(0);
        cpl_yaml_tree_free(&tree);
        if (status == CPL_OK) break;
        assert_int_equal(status, CPL_ERR_MEMORY);
    }
}
