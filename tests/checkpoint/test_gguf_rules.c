/* test_gguf_rules.c - every rule of the GGUF format, and sizes that the file cannot hold.
 *
 * Method: files built here field by field, each with one fault. */
#include "checkpoint/gguf_case.h"

TEST(known_mistakes_are_named)
{
    cpl_gguf *g;
#define BYTES(text) only(text, sizeof(text) - 1)
    BYTES("");
    refuses("no GGUF file");
    BYTES("GGUF");
    refuses("the head");
    BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    refuses("Git LFS pointer");
    BYTES("tjgg\1\0\0\0and so on, as it was before");
    refuses("convert the model again");
    BYTES("\x10\0\0\0\0\0\0\0{\"a\":{}}       ");
    refuses("safetensors");
    BYTES("<!DOCTYPE html><html>");
    refuses("web page");
    BYTES("PK\x03\x04 and so on");
    refuses("PyTorch");
    const struct {
        uint32_t version;
        const char *says;
    } versions[] = {{0, "version 0"}, {1, "version 1"}, {4, "version 4"}, {3u << 24, "big-endian"}};
    for (size_t i = 0; i < 4; i++) {
        head(0, 0);
        memcpy(file.bytes + 4, &versions[i].version, 4);
        refuses(versions[i].says);
    }
    head(0, 0);
    accepts();
    file.bytes[4] = 2;
    accepts();
    assert_fails(CPL_ERR_IO, "No such file",
                 cpl_gguf_open(&g, NULL, "/no/such.gguf", (double)INFINITY));
    assert_fails(CPL_ERR_INPUT, "not a regular file",
                 cpl_gguf_open(&g, NULL, "/tmp", (double)INFINITY));
}

TEST(counts_that_the_file_cannot_hold)
{
    const uint64_t counts[] = {1, 1ull << 32, 1ull << 60, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        head(counts[i], 0);
        refuses("the table of tensors announces");
        head(0, counts[i]);
        refuses("the metadata announces");
        head(0, 1);
        u64(counts[i] + (i == 0 ? 100 : 0)); /* length of a key */
        cpl_text_append(&file, "0123456789", 10);
        refuses("continues for");
        pair("s", STRING);
        u64(counts[i]);
        refuses("continues for");
        for (uint32_t type = U8; type <= F64; type++) {
            pair("a", ARRAY);
            u32(type);
            u64(counts[i]);
            refuses("the metadata");
        }
    }
}

TEST(rules_of_the_metadata)
{
    head(0, 1);
    string("");
    u32(U32), u64(0);
    refuses("empty");
    pair("\xff", U32);
    u32(1);
    refuses("not UTF-8");
    head(0, 1);
    u64(2), cpl_text_append(&file, "a\0", 2), u32(U32), u32(1);
    refuses("not UTF-8");
    head(0, 3);
    for (int i = 0; i < 3; i++) string(i == 1 ? "b" : "a"), u32(U32), u32(1);
    refuses("a occurs twice");
    pair("a", 13);
    u64(0);
    refuses("no known type");
    pair("a", ARRAY);
    u32(13), u64(0);
    refuses("no known type");
    pair("a", U64);
    u32(0);
    refuses("continues for 8 bytes, the file for 4");
    pair("a", STRING);
    u64(1), cpl_text_char(&file, '\xff');
    cpl_gguf *g = opens();
    assert_int_equal(json_object_size(g->metadata), 0);
    cpl_gguf_close(g);
}

/* Arrays in arrays are skipped down to a certain depth. Values behind them are read. */
TEST(nested_arrays)
{
    for (int depth = 1; depth <= 6; depth++) {
        head(0, 2);
        string("deep"), u32(ARRAY);
        for (int i = 1; i < depth; i++) u32(ARRAY), u64(1);
        u32(STRING), u64(2), string("x"), string("");
        string("behind"), u32(U32), u32(5);
        if (depth > 4) {
            refuses("too deep");
            continue;
        }
        cpl_gguf *g = opens();
        assert_null(json_object_get(g->metadata, "deep"));
        assert_int_equal(json_integer_value(json_object_get(g->metadata, "behind")), 5);
        cpl_gguf_close(g);
    }
}

TEST(alignments)
{
    const uint32_t bad[] = {0, 3, 48, UINT32_MAX}, good[] = {1, 2, 64, 4096};
    for (size_t i = 0; i < 4; i++) {
        pair("general.alignment", U32);
        u32(bad[i]);
        refuses("power of two");
        head(2, 1);
        string("general.alignment"), u32(U32), u32(good[i]);
        tensor("a", 1, DIMS(3), 24, 0);
        tensor("b", 1, DIMS(1), 24, good[i] < 4 ? 4 - (good[i] == 1) : good[i]);
        while (file.length % good[i]) cpl_text_char(&file, 0);
        size_t begins = file.length;
        for (size_t k = 0; k < good[i] + 4; k++) cpl_text_char(&file, 0);
        cpl_gguf *g = opens();
        assert_int_equal(g->entries[0].offset, begins);
        cpl_gguf_close(g);
    }
    pair("general.alignment", U64);
    u64(32);
    refuses("must be a u32");
    pair("general.alignment", ARRAY);
    u32(U32), u64(1), u32(32);
    refuses("must be a u32");
    pair("general.alignment", STRING);
    string("32");
    refuses("must be a u32");
}

TEST(names_of_tensors)
{
    char name[65] = {0};
    memset(name, 'n', 64);
    head(1, 0);
    tensor(name, 1, DIMS(1), 24, 0), data(1);
    refuses("63 at most");
    name[63] = 0;
    head(1, 0);
    tensor(name, 1, DIMS(1), 24, 0), data(1);
    accepts();
    head(1, 0);
    tensor("", 1, DIMS(1), 24, 0), data(1);
    refuses("empty");
    head(1, 0);
    tensor("\xc3", 1, DIMS(1), 24, 0), data(1);
    refuses("not UTF-8");
    head(3, 0);
    tensor("a", 1, DIMS(1), 24, 0), tensor("b", 1, DIMS(1), 24, 32);
    tensor("a", 1, DIMS(1), 24, 64), data(65);
    refuses("a occurs twice");
}

TEST(shapes_and_sizes)
{
    one(5, DIMS(1, 1, 1, 1, 1), 0, 0, 4);
    refuses("tensor a.weight: it has more than 4 dimensions");
    one(1, DIMS(1ull << 63), 24, 0, 4);
    refuses("overflow");
    one(2, DIMS(1ull << 40, 1ull << 40), 24, 0, 4);
    refuses("overflow");
    one(2, DIMS(1ull << 31, 1ull << 32), 24, 0, 4);
    refuses("overflow");
    one(1, DIMS(1ull << 62), 0, 0, 4); /* 2^64 bytes */
    refuses("overflow");
    one(1, DIMS(1ull << 61), 0, 0, 4);
    refuses("after the end of the file");
    one(2, DIMS(33, 32), 8, 0, 34 * 33);
    refuses("its rows have 33 numbers, which is no multiple of the 32 of a block of Q8_0");
    one(2, DIMS(128, 2), 12, 0, 144);
    refuses("no multiple of the 256");
    one(0, DIMS(0), 8, 0, 34);
    refuses("its rows have 1 numbers");
    one(1, DIMS(3), 0, 0, 11);
    refuses("tensor a.weight ends 1 bytes after the end of the file");
    one(0, DIMS(0), 0, 0, 4);
    accepts();
    one(2, DIMS(5, 0), 0, 0, 0);
    accepts();
    one(2, DIMS(64, 3), 8, 0, 2 * 3 * 34 + 1000); /* bytes behind the data belong to no tensor */
    cpl_gguf *g = opens();
    assert_int_equal(g->entries[0].shape[0], 3);
    assert_int_equal(g->entries[0].shape[1], 64);
    assert_int_equal(g->entries[0].bytes, 2 * 3 * 34);
    cpl_gguf_close(g);
}

TEST(offsets)
{
    two(0, 32, 24, 34);
    accepts();
    two(0, 32, 24, 33);
    refuses("tensor b ends 1 bytes after");
    const uint64_t seconds[] = {0, 10, 31, 33, 64, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < 7; i++) {
        two(0, seconds[i], 24, 1000);
        refuses("invalid offset: tensor b");
    }
    two(32, 64, 24, 1000);
    refuses("invalid offset: tensor a");
    two(32, 0, 24, 1000);
    refuses("invalid offset: tensor a");
}

/* A type that the reader does not name does not hide the other tensors. */
TEST(unknown_types)
{
    char byte;
    two(0, 96, 31, 98);
    cpl_gguf *g = opens();
    assert_string_equal(g->entries[0].type_name, "type 31");
    assert_int_equal(g->entries[0].format, CPL_FORMAT_OTHER);
    assert_int_equal(g->entries[0].bytes, 96);
    assert_string_equal(g->entries[1].name, "b");
    assert_ok(read_tensor(g, &g->entries[1], &byte, 1, 1));
    assert_int_equal(byte, 97);
    cpl_gguf_close(g);
    two(0, 97, 31, 1000);
    refuses("invalid offset: tensor b");
    two(0, 1ull << 62, 31, 1000);
    refuses("after the end of the file");
    one(1, DIMS(10), 4294967295u, 0, 77);
    g = opens();
    assert_string_equal(g->entries[0].type_name, "type 4294967295");
    assert_int_equal(g->entries[0].bytes, 77);
    cpl_gguf_close(g);
}
