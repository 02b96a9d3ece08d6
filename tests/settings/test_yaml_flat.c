/* test_yaml_flat.c - configurations of any version as names and texts. */
#include "settings/yaml.h"

#include "check.h"
#include "support/files.h"

static void assert_text(const cpl_yaml_flat *flat, const char *name, const char *want)
{
    const char *text = cpl_yaml_flat_get(flat, name);
    if (!text) fail_msg("%s is not there", name);
    assert_string_equal(text, want);
}

static cpl_yaml_flat parsed(const char *yaml)
{
    cpl_yaml_flat flat;
    assert_ok(cpl_yaml_flat_parse(&flat, "c.yaml", yaml, strlen(yaml)));
    return flat;
}

TEST(every_value_keeps_its_text)
{
    cpl_yaml_flat flat =
        parsed("# a comment\nnew_section:\n    unheard_of: 1e-3\n    quoted: \"a: b\"\n"
               "data:\n    train: [/a/b, 'c, d']\n    weights: {web: 2, books: 0.5}\n"
               "    nothing:\n    deep: [[1, 2], {x: y}]\n    empty: []\nalone: yes\n"
               "block:\n    list:\n        - one\n        - two\n");
    assert_int_equal(flat.count, 9);
    assert_text(&flat, "new_section.unheard_of", "1e-3");
    assert_text(&flat, "new_section.quoted", "a: b");
    assert_text(&flat, "data.train", "[/a/b, \"c, d\"]");
    assert_text(&flat, "data.weights", "{web: 2, books: 0.5}");
    assert_text(&flat, "data.nothing", "");
    assert_text(&flat, "data.deep", "[[1, 2], {x: y}]");
    assert_text(&flat, "data.empty", "[]");
    assert_text(&flat, "alone", "yes");
    assert_text(&flat, "block.list", "[one, two]");
    assert_null(cpl_yaml_flat_get(&flat, "data"));
    assert_string_equal(flat.pairs[0].name, "new_section.unheard_of");
    cpl_yaml_flat_free(&flat);
}

TEST(the_last_of_two_counts)
{
    cpl_yaml_flat flat = parsed("a:\n    b: 1\n    b: 2\n");
    assert_text(&flat, "a.b", "2");
    cpl_yaml_flat_free(&flat);
}

TEST(nothing_is_an_empty_list)
{
    cpl_yaml_flat flat = parsed("");
    assert_int_equal(flat.count, 0);
    cpl_yaml_flat_free(&flat);
}

TEST(what_is_no_configuration_is_told)
{
    char deep[400];
    static const struct {
        const char *yaml, *sentence;
    } bad[] = {
        {"a: [1, 2", "c.yaml:"},
        {"- a\n- b\n", "c.yaml:1:1: a configuration is made of sections"},
        {"a: &x 1\nb: *x\n", "c.yaml:2:4: aliases"},
        {"[a, b]: 1\n", "a name is expected"},
    };
    cpl_yaml_flat flat;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(CPL_ERR_INPUT, bad[i].sentence,
                     cpl_yaml_flat_parse(&flat, "c.yaml", bad[i].yaml, strlen(bad[i].yaml)));
        assert_int_equal(flat.count, 0);
    }
    memset(deep, '[', sizeof deep);
    memcpy(deep, "a: ", 3);
    assert_fails(CPL_ERR_INPUT, "nested too deep",
                 cpl_yaml_flat_parse(&flat, "c.yaml", deep, sizeof deep));
    assert_fails(CPL_ERR_IO, "none.yaml", cpl_yaml_flat_read(&flat, "/none.yaml"));
}
