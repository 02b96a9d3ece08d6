/* test_shard_whole.c - folders of token files that are not whole, and folders of other programs. */
#include <sys/stat.h>
#include <unistd.h>

#include "data/shards_case.h"

/* Writes a data set of two sources, a file each, into a fresh folder. */
static const char *two_sources(char out[512], const char *name)
{
    char command[600];
    snprintf(out, 512, "%s/%s", folder, name);
    snprintf(command, sizeof command, "rm -rf %s", out);
    assert_int_equal(system(command), 0);
    cpl_shard_writer *writer = open_writer(out, true);
    add(writer, "1", "a", 4, 1);
    add(writer, "2", "b", 6, 1);
    finish(writer);
    return out;
}

/* Opens `path`, which must work, and returns how often it warned of data that is not whole. */
static int warnings(const char *path, int64_t n_files)
{
    cpl_shard_options options = unknown();
    cpl_shards *shards        = NULL;
    cpl_text said             = {0};
    cpl_log log               = log_into(&said);
    int n                     = 0;
    assert_ok(open_one(&shards, path, &options, &log));
    assert_int_equal(shards->n_files, n_files);
    for (const char *at = said.bytes; at && (at = strstr(at, "may not be whole")); at++) n++;
    cpl_shards_close(shards);
    cpl_text_free(&said);
    return n;
}

static void refused(const char *sentence, const char *path)
{
    cpl_shard_options options = unknown();
    cpl_shards *shards        = NULL;
    assert_fails(CPL_ERR_INPUT, sentence, open_one(&shards, path, &options, NULL));
}

TEST(parts_missing)
{
    char out[512], part[600], pattern[600];
    two_sources(out, "whole");
    snprintf(part, sizeof part, "%s/b/part-0-00000.npy", out);
    snprintf(pattern, sizeof pattern, "%s/*/part*.npy", out);
    assert_int_equal(warnings(out, 2), 0);
    assert_int_equal(warnings(in_folder(out, "b/"), 1), 0);
    assert_int_equal(warnings(part, 1), 0);
    assert_int_equal(warnings(pattern, 2), 0);
    write_bytes(part, "\1\0\2\0", 4);
    write_string(in_folder(out, "b/part-0-00000.csv.gz"), "0,2,a,b,1\r\n");
    refused("b/part-0-00000.npy: has 2 tokens, ", out);
    refused("shards.json says 7", part);
    refused("shards.json says 7", pattern);
    assert_int_equal(unlink(part), 0);
    refused("b/part-0-00000.npy: is missing, ", out);
    refused("lists it with 7 tokens", out);
    assert_int_equal(warnings(pattern, 1), 0); /* the pattern chooses one file */
    assert_int_equal(warnings(in_folder(out, "a"), 1), 0);
    assert_int_equal(mkdir(part, 0777), 0);
    refused("b/part-0-00000.npy: is not a regular file", out);
    assert_int_equal(rmdir(part), 0);
    two_sources(out, "whole");
    write_bytes(in_folder(out, "a/more.npy"), "\1\0", 2); /* another program's file is no sign */
    assert_int_equal(warnings(out, 3), 0);
}

/* A file that cannot be a part is named at once, also where no list names it. */
TEST(parts_of_other_kinds)
{
    char out[512], link[600], pattern[600];
    two_sources(out, "kinds");
    snprintf(link, sizeof link, "%s/a/more.npy", out);
    snprintf(pattern, sizeof pattern, "%s/a/m*.npy", out);
    assert_int_equal(mkfifo(link, 0666), 0);
    refused("more.npy: is not a regular file", out);
    refused("more.npy: is not a regular file", pattern);
    unlink(link);
    assert_int_equal(symlink("/dev/zero", link), 0);
    refused("more.npy: is not a regular file", out);
    unlink(link);
    assert_int_equal(symlink("nowhere", link), 0);
    refused("more.npy: is a symbolic link to a file that does not exist", out);
    refused("more.npy: ", pattern);
    unlink(link);
    assert_int_equal(symlink("part-0-00000.npy", link), 0);
    assert_int_equal(warnings(out, 3), 0);
}

TEST(encode_was_ended)
{
    char out[512], index[600], left[600];
    two_sources(out, "ended");
    snprintf(index, sizeof index, "%s/shards.json", out);
    snprintf(left, sizeof left, "%s/b/part-0-00001.npy.tmp-17-1", out);
    write_string(left, "");
    assert_int_equal(warnings(out, 2), 0); /* covered by the index */
    assert_int_equal(unlink(index), 0);
    refused("part-0-00001.npy.tmp-17-1: is a file that `tokenize encode` did not finish", out);
    assert_int_equal(unlink(left), 0);
    assert_int_equal(warnings(out, 2), 1);
    assert_int_equal(warnings(in_folder(out, "a"), 1), 1);
    write_string(index, "{\"dtype\": \"uint16\", \"vocab_size\": 300, \"eos_token_id\": 0}");
    assert_int_equal(warnings(out, 2), 0); /* another program's file, without a list */
}

/* Dolma's tool writes no index, so a part of its output is a data set too. */
TEST(other_programs)
{
    char out[512], command[600];
    snprintf(out, sizeof out, "%s/dolma", folder);
    snprintf(command, sizeof command, "mkdir -p %s", out);
    assert_int_equal(system(command), 0);
    write_bytes(in_folder(out, "part-0-00002.npy"), "\1\0\0\0", 4);
    write_bytes(in_folder(out, "part-0-00005.npy"), "\1\0\0\0", 4);
    write_string(in_folder(out, "part-0-00002.csv.gz"), "0,2,a,b,1\r\n");
    cpl_shard_options options = unknown();
    cpl_shards *shards        = NULL;
    cpl_text said             = {0};
    cpl_log log               = log_into(&said);
    assert_ok(open_one(&shards, out, &options, &log));
    assert_int_equal(shards->n_files, 2);
    assert_int_equal(said.length, 0);
    cpl_shards_close(shards);
    cpl_text_free(&said);
}
