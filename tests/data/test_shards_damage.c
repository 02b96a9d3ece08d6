/* test_shards_damage.c - metadata that does not fit, damaged files, and every allocation
 * failing. */
#include "base/arena.h"
#include "base/rng.h"
#include "data/shards_case.h"

TEST(bad_companions)
{
    const char *out           = in_folder(folder, "companions");
    cpl_shard_writer *writer  = open_writer(out, false);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = unknown();
    int32_t pieces[8];
    add(writer, "1", "a", 3, 1);
    add(writer, "2", "b", 3, 1);
    finish(writer);
    write_bytes(in_folder(out, "part-0-00000.sources.u8"), "\0", 1);
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_fails(CPL_ERR_INPUT, "more documents than its sources",
                 cpl_shards_piece_labels(shards, 0, 4, pieces));
    write_bytes(in_folder(out, "part-0-00000.sources.u8"), "\0\5", 2);
    assert_fails(CPL_ERR_INPUT, "has the source 5", cpl_shards_piece_labels(shards, 0, 4, pieces));
    cpl_shards_close(shards);
    static const char *const rows[][2] = {{"0,4,a,b,1\r\n4,9,c,d,2\r\n", "row 2 does not follow"},
                                          {"0,4,a,b,1\r\n", "end at token 4, the token file has 8"},
                                          {"0,4,\"a,b,1\r\n", "row 1 has a quote"},
                                          {"x\r\n", "row 1 does not begin with two numbers"},
                                          {"1,4,a,b,1\r\n", "row 1 does not follow"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_string(in_folder(out, "part-0-00000.csv.gz"), rows[i][0]);
        assert_fails(CPL_ERR_INPUT, rows[i][1], open_one(&shards, out, &options, NULL));
    }
    write_string(in_folder(out, "part-0-00000.sources.tsv"), "1\ta\n");
    assert_fails(CPL_ERR_INPUT, "line 1 does not begin", open_one(&shards, out, &options, NULL));
    write_string(in_folder(out, "part-0-00000.sources.tsv"), "");
    assert_fails(CPL_ERR_INPUT, "it names 0 sources", open_one(&shards, out, &options, NULL));
    write_string(in_folder(out, "shards.json"),
                 "{\"dtype\": \"float\", \"vocab_size\": 2, \"eos_token_id\": 1}");
    assert_fails(CPL_ERR_INPUT, "dtype must be", open_one(&shards, out, &options, NULL));
    write_string(in_folder(out, "shards.json"),
                 "{\"dtype\": \"uint16\", \"vocab_size\": 2, \"eos_token_id\": 2}");
    assert_fails(CPL_ERR_INPUT, "eos_token_id", open_one(&shards, out, &options, NULL));
    write_string(in_folder(out, "shards.json"), "{\"dtype\": ");
    assert_fails(CPL_ERR_INPUT, "shards.json", open_one(&shards, out, &options, NULL));
}

/* A file of a written folder is changed or cut: a sentence or a data set, never a crash. */
TEST(mutations)
{
    static const char *const names[] = {
        "part-0-00000.npy",        "part-0-00000.csv.gz", "part-0-00000.sources.tsv",
        "part-0-00000.sources.u8", "shards.json",         "numpy.npy"};
    char out[512];
    snprintf(out, sizeof out, "%s/mutations", folder);
    cpl_shard_writer *writer  = open_writer(out, false);
    cpl_shard_options options = unknown();
    cpl_rng_key key           = {.seed = 5, .stream = CPL_STREAM_TEST};
    uint64_t draw             = 0;
    int refused               = 0;
    for (int i = 0; i < 9; i++) add(writer, "id \"q\"", i % 2 ? "a" : "b", 3 + i, i);
    finish(writer);
    cpl_text real =
        numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }  \n", "123456", 6);
    write_bytes(in_folder(out, "numpy.npy"), real.bytes, real.length);
    cpl_text_free(&real);
    for (int round = 0; round < 900; round++) {
        const char *path = in_folder(out, names[round % 6]);
        cpl_text whole   = read_bytes(path);
        uint32_t r       = cpl_rng_u32(&key, draw++);
        size_t at        = r % whole.length;
        char keep        = whole.bytes[at];
        whole.bytes[at]  = (char)(r >> 24);
        write_bytes(path, whole.bytes, r >> 20 & 1 ? at : whole.length);
        whole.bytes[at]    = keep;
        cpl_shards *shards = NULL;
        cpl_text report    = {0};
        cpl_status status  = open_one(&shards, out, &options, NULL);
        if (status == CPL_OK) status = cpl_shards_describe(shards, 1000, &report);
        for (int64_t f = 0; status == CPL_OK && f < shards->n_files; f++) {
            int32_t labels[512], ids[512];
            if (shards->file[f].n_tokens > 512) continue;
            status = cpl_shards_piece_labels(shards, f, 2, labels);
            if (status == CPL_OK)
                status = cpl_shards_read(shards, f, 0, shards->file[f].n_tokens, ids);
        }
        refused += status != CPL_OK;
        assert_true(status == CPL_OK || status == CPL_ERR_INPUT || status == CPL_ERR_IO);
        cpl_text_free(&report);
        cpl_shards_close(shards);
        write_bytes(path, whole.bytes, whole.length);
        cpl_text_free(&whole);
    }
    assert_in_range(refused, 300, 899);
}

TEST(no_memory)
{
    cpl_document_counts none = {0};
    cpl_status status        = CPL_ERR_MEMORY;
    int64_t n                = 0;
    char name[32];
    int32_t ids[3] = {1, 2, 3}, pieces[4];
    while (status != CPL_OK) {
        snprintf(name, sizeof name, "memory-%lld", (long long)++n);
        cpl_shard_writer_settings s = {
            .folder = in_folder(folder, name), .vocab_size = 9, .eos = 0};
        cpl_document a = {.id = "i", .source = "a", .path = "p", .line = 1}, b = a;
        cpl_shard_writer *writer  = NULL;
        cpl_shards *shards        = NULL;
        cpl_shard_options options = unknown();
        b.source                  = "b";
        cpl_alloc_fail_at(n);
        status = cpl_shard_writer_open(&writer, &s);
        if (status == CPL_OK) status = cpl_shard_writer_add(writer, &a, ids, 3);
        if (status == CPL_OK) status = cpl_shard_writer_add(writer, &b, ids, 3);
        if (status == CPL_OK) status = cpl_shard_writer_finish(writer, &none);
        cpl_shard_writer_close(writer);
        if (status == CPL_OK) status = open_one(&shards, s.folder, &options, NULL);
        if (status == CPL_OK) status = cpl_shards_piece_labels(shards, 0, 2, pieces);
        cpl_alloc_fail_at(0);
        cpl_shards_close(shards);
        if (status != CPL_OK && status != CPL_ERR_MEMORY)
            fail_msg("%lld: %s", (long long)n, cpl_last_error());
    }
    assert_true(n > 30);
    assert_int_equal(pieces[3], 1);
}
