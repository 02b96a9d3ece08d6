/* test_paths.c - files, folders and patterns become one sorted list. */
#include "io/paths.h"

#include <sys/stat.h>

#include "base/arena.h"
#include "support/files.h"

static const char *folder;

static void make(const char *name)
{
    write_string(in_folder(folder, name), "x");
}

static void make_folder(const char *name)
{
    assert_int_equal(mkdir(in_folder(folder, name), 0777), 0);
}

static int make_tree(void **state)
{
    (void)state;
    folder = scratch_folder();
    make_folder("set");
    make_folder("set/documents");
    make_folder("set/documents/deep");
    make_folder("set/attributes");
    make_folder("set/.hidden");
    make_folder("empty");
    make("set/b.jsonl");
    make("set/a.json.gz");
    make("set/README.md");
    make("set/.c.jsonl");
    make("set/documents/z.jsonl.zst");
    make("set/documents/deep/y.txt");
    make("set/attributes/z.jsonl.zst");
    make("set/.hidden/h.jsonl");
    return symlink(".", in_folder(folder, "set/loop"));
}

/* Compares the list with `want`: names below the folder, separated by blanks. */
static void expect(const char *const *inputs, int64_t n, const char *want)
{
    cpl_strings paths = {0};
    cpl_text seen     = {0};
    assert_ok(cpl_documents_expand(&paths, inputs, n));
    for (int64_t i = 0; i < paths.count; i++)
        cpl_text_printf(&seen, "%s%s", i ? " " : "", paths.at[i] + strlen(folder) + 1);
    assert_string_equal(seen.bytes, want);
    cpl_paths_free(&paths);
    cpl_text_free(&seen);
}

TEST(folders)
{
    const char *set[] = {in_folder(folder, "set/")};
    expect(set, 1, "set/a.json.gz set/b.jsonl set/documents/deep/y.txt set/documents/z.jsonl.zst");
    const char *asked[] = {in_folder(folder, "set/attributes")};
    expect(asked, 1, "set/attributes/z.jsonl.zst");
}

TEST(mixtures)
{
    const char *inputs[] = {in_folder(folder, "set/README.md"), in_folder(folder, "set/*.json*"),
                            in_folder(folder, "set/b.jsonl"), in_folder(folder, "set/doc*")};
    expect(inputs, 4,
           "set/README.md set/a.json.gz set/b.jsonl set/documents/deep/y.txt "
           "set/documents/z.jsonl.zst");
}

TEST(nothing)
{
    cpl_strings paths   = {0};
    const char *missing = in_folder(folder, "missing.jsonl");
    const char *empty   = in_folder(folder, "empty");
    const char *pattern = in_folder(folder, "*.none");
    assert_fails(CPL_ERR_INPUT, missing, cpl_documents_expand(&paths, &missing, 1));
    assert_fails(CPL_ERR_INPUT, "no document files", cpl_documents_expand(&paths, &empty, 1));
    assert_fails(CPL_ERR_INPUT, "no document files", cpl_documents_expand(&paths, &pattern, 1));
    assert_int_equal(paths.count, 0);
}

TEST(many)
{
    cpl_strings paths = {0};
    char name[16];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%03d", (i * 37) % 100 / 2);
        assert_ok(cpl_paths_add(&paths, name));
    }
    cpl_paths_sort(&paths);
    assert_int_equal(paths.count, 50);
    assert_string_equal(paths.at[0], "000");
    assert_string_equal(paths.at[49], "049");
    cpl_paths_free(&paths);
}

TEST(no_memory)
{
    const char *set   = in_folder(folder, "set");
    cpl_status status = CPL_ERR_MEMORY;
    int64_t n         = 0;
    while (status != CPL_OK) {
        cpl_strings paths = {0};
        cpl_alloc_fail_at(++n);
        status = cpl_documents_expand(&paths, &set, 1);
        cpl_alloc_fail_at(0);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
        assert_int_equal(paths.count, status == CPL_OK ? 4 : 0);
        cpl_paths_free(&paths);
    }
    assert_true(n > 4);
}

TESTS_DO(before_all, make_tree);
