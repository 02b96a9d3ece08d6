/* test_shards.c - token files read in all their forms: labels, item types, ends of text, label
 * masks. */
#include "data/shards.h"

#include "base/rng.h"
#include "data/shards_case.h"

/* ---- labels ---- */

TEST(many_labels)
{
    const char *out           = in_folder(folder, "many");
    cpl_shard_writer *writer  = open_writer(out, false);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = unknown();
    char label[16];
    int32_t pieces[500];
    for (int i = 0; i < 500; i++) {
        snprintf(label, sizeof label, "s%03d", (i * 7) % 500 % 400);
        add(writer, "x", label, 3, 1);
    }
    finish(writer);
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_int_equal(shards->labels.count, 400);
    assert_ok(cpl_shards_piece_labels(shards, 0, 4, pieces));
    for (int i = 0; i < 500; i++) assert_int_equal(pieces[i], (i * 7) % 500 % 400);
    cpl_shards_close(shards);
}

/* Checks the label of most tokens of every piece, counted token by token. */
TEST(piece_labels)
{
    enum { DOCUMENTS = 60, LABELS = 3, MOST = DOCUMENTS * 9 };
    static const char *const names[LABELS] = {"a", "b", "c"};
    const char *out                        = in_folder(folder, "pieces");
    cpl_shard_writer *writer               = open_writer(out, false);
    cpl_shards *shards                     = NULL;
    cpl_shard_options options              = unknown();
    cpl_rng_key key                        = {.seed = 2, .stream = CPL_STREAM_TEST};
    int label_of[MOST];
    int32_t got[MOST];
    int64_t n = 0;
    for (int i = 0; i < DOCUMENTS; i++) {
        uint32_t r = cpl_rng_u32(&key, (uint64_t)i);
        int label = (int)(r % LABELS), length = 1 + (int)(r >> 8) % 8;
        add(writer, "x", names[label], length, 1);
        for (int k = 0; k <= length; k++) label_of[n++] = label;
    }
    finish(writer);
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_int_equal(shards->n_tokens, n);
    for (int64_t piece = 1; piece < 40; piece++) {
        assert_ok(cpl_shards_piece_labels(shards, 0, piece, got));
        for (int64_t p = 0; p < n / piece; p++) {
            int count[LABELS] = {0}, best = 0;
            for (int64_t i = p * piece; i < (p + 1) * piece; i++) count[label_of[i]]++;
            for (int k = 1; k < LABELS; k++)
                if (count[k] > count[best]) best = k;
            assert_int_equal(got[p], best);
        }
    }
    cpl_shards_close(shards);
}

/* ---- foreign forms ---- */

/* Opens `bytes` as a file. It must have `n` tokens 1, 2, 3, ..., or be refused with a sentence. */
static void foreign(cpl_text bytes, const char *name, int64_t n, const char *sentence)
{
    cpl_shards *shards        = NULL;
    cpl_shard_options options = unknown();
    const char *path          = in_folder(folder, name);
    int32_t ids[8];
    write_bytes(path, bytes.bytes, bytes.length);
    if (sentence) {
        assert_fails(CPL_ERR_INPUT, sentence, open_one(&shards, path, &options, NULL));
        assert_non_null(strstr(cpl_last_error(), name));
    } else {
        assert_ok(open_one(&shards, path, &options, NULL));
        assert_int_equal(shards->n_tokens, n);
        assert_ok(cpl_shards_read(shards, 0, 0, n, ids));
        for (int32_t i = 0; i < n; i++) assert_int_equal(ids[i], i + 1);
        cpl_shards_close(shards);
    }
    cpl_text_free(&bytes);
}

TEST(numpy_files)
{
    static const char two[] = "\1\0\2\0\3\0", four[] = "\1\0\0\0\2\0\0\0", one[] = "\1\2\3\4",
                      eight[] = "\1\0\0\0\0\0\0\0";
    static const struct {
        const char *name;
        int version;
        const char *type, *order, *shape, *data;
        size_t length;       /* bytes of the data */
        int64_t n;           /* tokens */
        const char *refusal; /* NULL: the file is read */
    } files[] = {
        {"v1.npy", 1, "<u2", "False", "(3,)", two, 6, 3, NULL},
        {"v2.npy", 2, "<u4", "False", "(2,)", four, 8, 2, NULL},
        {"v3.npy", 3, "<u4", "False", "(2,)", four, 8, 2, NULL},
        {"u1.npy", 1, "|u1", "False", "(4,)", one, 4, 4, NULL},
        {"u8.npy", 1, "<u8", "False", "(1,)", eight, 8, 1, NULL},
        {"short.npy", 1, "<u2", "False", "(4,)", two, 6, 0, "does not fit"},
        {"two.npy", 1, "<u2", "False", "(3, 1)", two, 6, 0, "does not fit"},
        {"float.npy", 1, "<f4", "False", "(2,)", four, 8, 0, "'<f4'"},
        {"big.npy", 1, ">u2", "False", "(3,)", two, 6, 0, "'>u2'"},
        {"fortran.npy", 1, "<u2", "True", "(3,)", two, 6, 0, "plain array"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char head[100];
        snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n",
                 files[i].type, files[i].order, files[i].shape);
        foreign(numpy(files[i].version, head, files[i].data, files[i].length), files[i].name,
                files[i].n, files[i].refusal);
    }
    cpl_text cut = numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }\n", two, 6);
    cut.length   = 40;
    foreign(cut, "cut.npy", 0, "does not fit");
}

TEST(llm_c_files)
{
    for (int32_t version = 1; version <= 2; version++)
        for (int32_t count = 3; count <= 4; count++) {
            cpl_text out      = {0};
            int32_t head[256] = {20240520, version, count};
            cpl_text_append(&out, head, sizeof head);
            for (unsigned i = 1; i <= 3; i++) put16(&out, i);
            foreign(out, "llm.bin", 3, version > 1 ? "version 2" : count > 3 ? "do not fit" : NULL);
        }
}

TEST(flat_files)
{
    cpl_text out = {0}, said = {0};
    cpl_log log               = log_into(&said);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = {.eos = -1, .vocab_size = 50280};
    int32_t id                = 0;
    const char *path          = in_folder(folder, "flat.bin");
    for (unsigned i = 0; i < 200; i++) put16(&out, i < 199 ? i : 60000);
    write_bytes(path, out.bytes, out.length);
    assert_ok(open_one(&shards, path, &options, &log));
    assert_int_equal(shards->n_tokens, 200);
    assert_string_equal(shards->labels.at[0], strrchr(folder, '/') + 1);
    assert_ok(cpl_shards_read(shards, 0, 198, 1, &id));
    assert_int_equal(id, 198);
    assert_fails(CPL_ERR_INPUT, "token 199 is the id 60000",
                 cpl_shards_read(shards, 0, 199, 1, &id));
    cpl_shards_close(shards);
    options.type = CPL_TOKEN_UINT32;
    write_bytes(path, out.bytes, 398);
    assert_fails(CPL_ERR_INPUT, "398 bytes", open_one(&shards, path, &options, &log));
    options.type = CPL_TOKEN_AUTO;
    write_bytes(path, out.bytes, 399);
    assert_fails(CPL_ERR_INPUT, "399 bytes", open_one(&shards, path, &options, &log));
    write_bytes(path, "", 0);
    assert_ok(open_one(&shards, path, &options, &log));
    assert_int_equal(shards->n_tokens, 0);
    cpl_shards_close(shards);
    assert_int_equal(said.length, 0);
    cpl_text_free(&out);
    cpl_text_free(&said);
}

TEST(doubtful_type)
{
    cpl_text out = {0}, said = {0};
    cpl_log log               = log_into(&said);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = unknown();
    const char *path          = in_folder(folder, "wide.npy");
    for (unsigned i = 0; i < 500; i++) {
        put16(&out, (i * 7919 + 1000) & 0xFFFF);
        put16(&out, i & 1);
    }
    write_bytes(path, out.bytes, out.length);
    assert_ok(open_one(&shards, path, &options, &log));
    assert_int_equal(shards->n_tokens, 500);
    assert_int_equal(said.length, 0);
    cpl_shards_close(shards);
    options.type = CPL_TOKEN_UINT16;
    assert_ok(open_one(&shards, path, &options, &log));
    assert_non_null(strstr(said.bytes, "as if it were uint32"));
    cpl_text_clear(&said);
    assert_ok(cpl_shards_describe(shards, 1000, &said));
    assert_non_null(strstr(said.bytes, "uint32 read as uint16"));
    cpl_shards_close(shards);
    cpl_text_free(&out);
    cpl_text_free(&said);
}

TEST(doubtful_eos)
{
    cpl_text out = {0}, said = {0};
    cpl_log log               = log_into(&said);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = {.eos = 0, .vocab_size = 50280};
    const char *path          = in_folder(folder, "eos.npy");
    for (unsigned i = 0; i < 100; i++) put16(&out, i % 10 ? 100 + i : 50279);
    write_bytes(path, out.bytes, out.length);
    assert_ok(open_one(&shards, path, &options, &log));
    assert_non_null(
        strstr(said.bytes, "id 0 does not occur in the first 100 tokens, 50279 does (10"));
    cpl_shards_close(shards);
    cpl_text_clear(&said);
    path = golden_path("data/tokenized-mini/gpt-neox-olmo-dolma-v1_5/validation");
    assert_ok(open_one(&shards, path, &options, &log));
    assert_non_null(strstr(said.bytes, "documents end in the id 50279, the end-of-text id is 0"));
    cpl_shards_close(shards);
    cpl_text_free(&out);
    cpl_text_free(&said);
}

TEST(masks)
{
    cpl_shards *shards = NULL;
    uint8_t mask[4]    = {0};
    write_bytes(in_folder(folder, "m.npy"), "\1\0\2\0\3\0\4\0", 8);
    write_bytes(in_folder(folder, "m.mask"), "\1\0\1\2", 4);
    write_bytes(in_folder(folder, "m.short"), "\1\0\1", 3);
    const char *names[]       = {in_folder(folder, "m.mask")};
    cpl_shard_options options = {.eos = -1, .masks = names, .n_masks = 1};
    assert_ok(open_one(&shards, in_folder(folder, "m.npy"), &options, NULL));
    assert_ok(cpl_shards_read_mask(shards, 0, 0, 3, mask));
    assert_memory_equal(mask, "\1\0\1", 3);
    assert_fails(CPL_ERR_INPUT, "byte 3 is 2", cpl_shards_read_mask(shards, 0, 1, 3, mask));
    cpl_shards_close(shards);
    names[0] = in_folder(folder, "m.short");
    assert_fails(CPL_ERR_INPUT, "3 bytes of label mask for the 4 tokens",
                 open_one(&shards, in_folder(folder, "m.npy"), &options, NULL));
    options.n_masks = 2;
    assert_fails(CPL_ERR_INPUT, "2 label masks for 1",
                 open_one(&shards, in_folder(folder, "m.npy"), &options, NULL));
}
