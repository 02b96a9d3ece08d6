/* test_cache.c - ranges kept in a folder: they are found again by file, tag and range alone. */
#include "check.h"
#include "io/file.h"
#include "io/paths.h"
#include "remote/cache.h"
#include "support/files.h"

enum { BYTES = 1000 };

static cpl_fetch_file a_file(void)
{
    static char path[] = "hf://a/b/c", url[] = "https://host/c";
    return (cpl_fetch_file){
        .path = path, .url = url, .known = true, .length = 5000, .tag = "\"one\""};
}

static unsigned char stored[BYTES], loaded[BYTES];

TEST(kept)
{
    static char other_url[] = "https://host/d";
    const char *folder      = scratch_folder();
    cpl_fetch_file file     = a_file(), other;
    for (int i = 0; i < BYTES; i++) stored[i] = (unsigned char)(i * 7);
    assert_false(cpl_cache_has(folder, &file, 100, 100 + BYTES));
    assert_ok(cpl_cache_store(folder, &file, 100, 100 + BYTES, stored));
    assert_true(cpl_cache_has(folder, &file, 100, 100 + BYTES));
    assert_true(cpl_cache_load(folder, &file, 100, 100 + BYTES, loaded));
    assert_memory_equal(stored, loaded, BYTES);
    assert_false(cpl_cache_has(folder, &file, 101, 100 + BYTES));
    other = file;
    strcpy(other.tag, "\"two\"");
    assert_false(cpl_cache_has(folder, &other, 100, 100 + BYTES));
    other = file;
    strcpy(other.linked, "\"x\"");
    assert_false(cpl_cache_has(folder, &other, 100, 100 + BYTES));
    other     = file;
    other.url = other_url;
    assert_false(cpl_cache_has(folder, &other, 100, 100 + BYTES));
    other        = file;
    other.tag[0] = '\0'; /* without a tag, it cannot be told from another version */
    assert_ok(cpl_cache_store(folder, &other, 0, BYTES, stored));
    assert_false(cpl_cache_has(folder, &other, 0, BYTES));
}

TEST(damaged)
{
    const char *folder  = scratch_folder();
    cpl_fetch_file file = a_file();
    cpl_strings names;
    cpl_text text = {0};
    assert_ok(cpl_cache_store(folder, &file, 0, BYTES, stored));
    assert_ok(cpl_folder_list(&names, folder));
    assert_int_equal(names.count, 1);
    const char *path = in_folder(folder, names.at[0]);
    assert_ok(cpl_file_read(&text, path, 1 << 20));
    for (size_t at = 0; at < text.length; at++) {
        text.bytes[at] ^= 1;
        assert_ok(cpl_file_write_atomic(path, text.bytes, text.length));
        if (cpl_cache_load(folder, &file, 0, BYTES, loaded)) fail_msg("byte %zu is not seen", at);
        text.bytes[at] ^= 1;
        at += at > 200 && at + 50 < text.length ? 29 : 0;
    }
    assert_ok(cpl_file_write_atomic(path, text.bytes, text.length - 1));
    assert_false(cpl_cache_load(folder, &file, 0, BYTES, loaded));
    assert_ok(cpl_file_write_atomic(path, text.bytes, text.length));
    assert_true(cpl_cache_load(folder, &file, 0, BYTES, loaded));
    assert_fails(CPL_ERR_IO, "cannot be written",
                 cpl_cache_store("/nonexistent/folder", &file, 0, BYTES, stored));
    cpl_text_free(&text);
    cpl_paths_free(&names);
}
