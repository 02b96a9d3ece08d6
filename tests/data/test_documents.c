/* test_documents.c - documents from every kind of file, good and bad. */
#include "data/documents.h"

#include "base/arena.h"
#include "base/rng.h"
#include "support/files.h"

SCRATCH_FOLDER(folder);

/* Lists all documents of a file as lines "<line>|<id>|<source>|<text>\n". */
static cpl_status list(const char *path, const cpl_document_settings *settings, const cpl_log *log,
                       cpl_text *out, cpl_document_counts *counts)
{
    cpl_documents *documents = NULL;
    cpl_document doc;
    bool more         = true;
    cpl_status status = CPL_OK;
    cpl_text_clear(out);
    cpl_text_append(out, "", 0);
    CPL_TRY(cpl_documents_open(&documents, path, settings, log));
    for (;;) {
        CPL_TRY_DONE(cpl_documents_next(documents, &doc, &more));
        if (!more) break;
        cpl_text_printf(out, "%lld|%s|%s|", (long long)doc.line, doc.id, doc.source);
        cpl_text_append(out, doc.text, doc.length);
        cpl_text_char(out, '\n');
    }
done:
    if (counts) *counts = cpl_documents_counts(documents);
    cpl_documents_close(documents);
    return status;
}

static const char *file(const char *name, const char *content)
{
    const char *path = in_folder(folder, name);
    write_string(path, content);
    return path;
}

static void expect(const char *path, const cpl_document_settings *settings, const char *want)
{
    cpl_text got = {0};
    assert_ok(list(path, settings, NULL, &got, NULL));
    assert_string_equal(got.bytes, want);
    cpl_text_free(&got);
}

TEST(json_lines)
{
    cpl_document_settings s = cpl_document_defaults();
    s.default_source        = "none";
    expect(file("a.jsonl", "{\"id\":\"x\",\"text\":\" one \",\"source\":\"web\"}\r\n"
                           "\n"
                           "{\"text\":\"two\",\"id\":7}\n"
                           "{\"text\":\"\xE2\x80\x83\\u001c\",\"id\":8}\n"
                           "{\"text\":\"last\",\"id\":9}"),
           &s, "1|x|web|one\n3|7|none|two\n5|9|none|last\n");
}

TEST(json_ids)
{
    char want[1024];
    cpl_document_settings s = cpl_document_defaults();
    const char *path        = file("ids.jsonl", "{\"text\":\"t\",\"id\":null}\n");
    snprintf(want, sizeof want, "1|%s:1|%s|t\n", path, strrchr(folder, '/') + 1);
    expect(path, &s, want);
    s.text_field   = "raw.body";
    s.source_field = "raw.from";
    expect(
        file("nested.jsonl", "{\"raw\":{\"from\":\"f\",\"body\":\"b\"},\"id\":\"i\",\"text\":1}"),
        &s, "1|i|f|b\n");
}

TEST(by_content)
{
    cpl_document_settings s = cpl_document_defaults();
    s.default_source        = "d";
    expect(file("odd.name", "\xEF\xBB\xBF\n {\"text\":\"t\",\"id\":\"i\"}\n"), &s, "2|i|d|t\n");
    char want[1024];
    const char *path = file("prose", "\xEF\xBB\xBFplain\n{text}\n");
    snprintf(want, sizeof want, "1|%s:1|d|plain\n{text}\n", path);
    expect(path, &s, want);
}

static void texts(const char *content, cpl_split_choice split, const char *want)
{
    char seen[512]          = "";
    cpl_document_settings s = cpl_document_defaults();
    cpl_documents *d        = NULL;
    cpl_document doc;
    bool more = true;
    s.split   = split;
    assert_ok(cpl_documents_open(&d, file("texts.txt", content), &s, NULL));
    for (;;) {
        assert_ok(cpl_documents_next(d, &doc, &more));
        if (!more) break;
        sprintf(seen + strlen(seen), "%lld[%.*s]", (long long)doc.line, (int)doc.length, doc.text);
    }
    cpl_documents_close(d);
    assert_string_equal(seen, want);
}

TEST(plain_text)
{
    const char *t = "\xEF\xBB\xBF one\ntwo\r\n\r\n \t\nthree\n\n\nfour";
    texts(t, CPL_SPLIT_FILE, "1[one\ntwo\r\n\r\n \t\nthree\n\n\nfour]");
    texts(t, CPL_SPLIT_LINE, "1[one]2[two]5[three]8[four]");
    texts(t, CPL_SPLIT_BLANK_LINE, "1[one\ntwo]2[three]3[four]");
    texts("a<|endoftext|>\n<|endoftext|>\n b <|endoftext|<|endoftext|>", CPL_SPLIT_SEPARATOR,
          "1[a]3[b <|endoftext|]");
    texts("", CPL_SPLIT_FILE, "");
    texts(" \n\n ", CPL_SPLIT_BLANK_LINE, "");
    texts("x\xFFy\xE2\x82", CPL_SPLIT_FILE, "1[x\xEF\xBF\xBDy\xEF\xBF\xBD]");
}

/* A separator may lie across the places where the reader refills its buffer. */
TEST(far_separators)
{
    cpl_text text = {0}, got = {0};
    cpl_document_settings s = cpl_document_defaults();
    cpl_document_counts counts;
    for (int shift = 0; shift < 30; shift++) {
        cpl_text_clear(&text);
        for (int i = 0; i < (1 << 18) - 15 + shift; i++) cpl_text_char(&text, 'a');
        cpl_text_printf(&text, "<|endoftext|>b");
        s.split = CPL_SPLIT_SEPARATOR;
        assert_ok(list(file("far.txt", text.bytes), &s, NULL, &got, &counts));
        assert_int_equal(counts.documents, 2);
        assert_int_equal(counts.text_bytes, (1 << 18) - 15 + shift + 1);
    }
    cpl_text_free(&text);
    cpl_text_free(&got);
}

static const char *const bad_lines = "{\"text\":\"1\",\"id\":1}\n"
                                     "no json\n"
                                     "{\"text\":5}\n"
                                     "{\"txt\":\"\"}\n"
                                     "{\"text\":\"\\ud800\",\"id\":5}\n"
                                     "{\"text\":\"6\",\"id\":6}\n"
                                     "[]\n[]\n"
                                     "{\"text\":\"9\",\"id\":9";

TEST(bad_are_skipped)
{
    cpl_text got = {0}, said = {0};
    cpl_log log             = log_into(&said);
    cpl_document_settings s = cpl_document_defaults();
    cpl_document_counts c;
    s.default_source = "d";
    assert_ok(list(file("bad.jsonl", bad_lines), &s, &log, &got, &c));
    assert_string_equal(got.bytes, "1|1|d|1\n6|6|d|6\n");
    assert_int_equal(c.documents, 2);
    assert_int_equal(c.bad, 7);
    assert_int_equal(c.lone_surrogates, 1);
    assert_non_null(strstr(said.bytes, "bad.jsonl: line 2: not a JSON object"));
    assert_non_null(strstr(said.bytes, "line 3: \"text\" is not a string"));
    assert_non_null(strstr(said.bytes, "line 4: the object has no \"text\""));
    assert_null(strstr(said.bytes, "line 8"));
    assert_non_null(strstr(said.bytes, "7 documents could not be used, 2 of them not listed"));
    s.lone_surrogate = CPL_SURROGATE_REPLACE;
    assert_ok(list(in_folder(folder, "bad.jsonl"), &s, NULL, &got, &c));
    assert_string_equal(got.bytes, "1|1|d|1\n5|5|d|\xEF\xBF\xBD\n6|6|d|6\n");
    assert_int_equal(c.repaired, 1);
    cpl_text_free(&got);
    cpl_text_free(&said);
}

TEST(bad_stops)
{
    cpl_text got            = {0};
    cpl_document_settings s = cpl_document_defaults();
    s.bad                   = CPL_BAD_STOP;
    assert_fails(CPL_ERR_INPUT, "stop.jsonl: line 2: not a JSON object",
                 list(file("stop.jsonl", bad_lines), &s, NULL, &got, NULL));
    cpl_text_free(&got);
}

TEST(long_lines)
{
    enum { LONG = 10 << 20 };
    cpl_text line = {0}, got = {0};
    cpl_document_settings s = cpl_document_defaults();
    cpl_document_counts c;
    s.default_source = "d";
    cpl_text_printf(&line, "{\"id\":1,\"text\":\"");
    for (int i = 0; i < LONG; i++) cpl_text_char(&line, (char)('a' + i % 26));
    cpl_text_printf(&line, "\"}\n{\"id\":2,\"text\":\"b\"}\n");
    const char *path = file("long.jsonl", line.bytes);
    assert_ok(list(path, &s, NULL, &got, &c));
    assert_int_equal(c.text_bytes, LONG + 1);
    s.max_line_bytes = 1 << 20;
    assert_ok(list(path, &s, NULL, &got, &c));
    assert_string_equal(got.bytes, "2|2|d|b\n");
    assert_int_equal(c.bad, 1);
    cpl_text_free(&line);
    cpl_text_free(&got);
}

/* The documents before the damage may be read. The end of the file must not be reported. */
TEST(cut_files)
{
    cpl_text lines = {0}, gz = {0}, got = {0};
    cpl_document_settings s = cpl_document_defaults();
    for (int i = 0; i < 50; i++)
        cpl_text_printf(&lines, "{\"id\":%d,\"text\":\"t%d\"}\n", i, i * i);
    append_gzip(&gz, lines.bytes, lines.length);
    const char *path = in_folder(folder, "cut.jsonl.gz");
    for (size_t length = 0; length <= gz.length; length++) {
        write_bytes(path, gz.bytes, length);
        if (length == gz.length)
            assert_ok(list(path, &s, NULL, &got, NULL));
        else
            assert_fails(CPL_ERR_INPUT, "truncated", list(path, &s, NULL, &got, NULL));
    }
    cpl_text_free(&lines);
    cpl_text_free(&gz);
    cpl_text_free(&got);
}

TEST(settings_checked)
{
    cpl_documents *d        = NULL;
    const char *path        = file("x.txt", "x");
    cpl_document_settings s = cpl_document_defaults();
    s.id_field              = "text";
    assert_fails(CPL_ERR_INPUT, "must differ", cpl_documents_open(&d, path, &s, NULL));
    s           = cpl_document_defaults();
    s.split     = CPL_SPLIT_SEPARATOR;
    s.separator = "";
    assert_fails(CPL_ERR_INPUT, "empty separator", cpl_documents_open(&d, path, &s, NULL));
    s                 = cpl_document_defaults();
    s.zstd_window_log = 32;
    assert_fails(CPL_ERR_INPUT, "10 to 31", cpl_documents_open(&d, path, &s, NULL));
    assert_null(d);
}

/* Whatever the bytes are, reading ends with documents of well-formed text or with a sentence. */
TEST(mutations)
{
    cpl_rng_key key         = {.seed = 3, .stream = CPL_STREAM_TEST};
    cpl_document_settings s = cpl_document_defaults();
    cpl_text file_bytes[3] = {{0}, {0}, {0}}, repaired = {0};
    const char *names[3] = {"m.jsonl", "m.jsonl.gz", "m.jsonl.zst"};
    uint64_t draw        = 0;
    for (int i = 0; i < 20; i++)
        cpl_text_printf(&file_bytes[0],
                        "{\"id\":\"%d\",\"text\":\"\\u00e9t\xC3\xA9%d\",\"s\":{}}\n", i, i);
    append_gzip(&file_bytes[1], file_bytes[0].bytes, file_bytes[0].length);
    append_zstd(&file_bytes[2], file_bytes[0].bytes, file_bytes[0].length, 0);
    for (int round = 0; round < 3000; round++) {
        cpl_text *whole  = &file_bytes[round % 3];
        const char *path = in_folder(folder, names[round % 3]);
        uint32_t r       = cpl_rng_u32(&key, draw++);
        size_t at        = r % whole->length;
        char keep        = whole->bytes[at];
        whole->bytes[at] = (char)(r >> 24);
        write_bytes(path, whole->bytes, whole->length);
        whole->bytes[at] = keep;
        cpl_documents *d = NULL;
        cpl_document doc;
        bool more         = true;
        s.split           = (cpl_split_choice)(round % 4);
        cpl_status status = cpl_documents_open(&d, path, &s, NULL);
        while (status == CPL_OK && more) {
            status = cpl_documents_next(d, &doc, &more);
            if (status != CPL_OK || !more) continue;
            cpl_text_clear(&repaired);
            assert_int_equal(cpl_utf8_repair(&repaired, doc.text, doc.length), 0);
        }
        assert_true(status == CPL_OK || status == CPL_ERR_INPUT);
        cpl_documents_close(d);
    }
    for (int i = 0; i < 3; i++) cpl_text_free(&file_bytes[i]);
    cpl_text_free(&repaired);
}

TEST(no_memory)
{
    cpl_text said           = {0};
    cpl_document_settings s = cpl_document_defaults();
    const char *path =
        file("memory.jsonl", "{\"text\":\"a\",\"meta\":{}}\n{\"text\":\"b\",\"id\":2}\n");
    cpl_status status = CPL_ERR_MEMORY;
    int64_t n         = 0;
    while (status != CPL_OK) {
        cpl_documents *d = NULL;
        cpl_document doc;
        bool more = true;
        cpl_alloc_fail_at(++n);
        status = cpl_documents_open(&d, path, &s, NULL);
        while (status == CPL_OK && more) status = cpl_documents_next(d, &doc, &more);
        cpl_alloc_fail_at(0);
        if (status == CPL_OK) assert_int_equal(cpl_documents_counts(d).documents, 2);
        cpl_documents_close(d);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
    }
    assert_true(n > 8);
    cpl_text_free(&said);
}

/* Checks documents and text bytes of a shard, as its SOURCES states them. */
static void count(const char *path, int64_t documents, int64_t bytes, const char *source)
{
    cpl_document_settings s = cpl_document_defaults();
    cpl_documents *d        = NULL;
    cpl_document doc;
    bool more = true;
    s.strip   = false;
    s.bad     = CPL_BAD_STOP;
    assert_ok(cpl_documents_open(&d, path, &s, NULL));
    for (;;) {
        assert_ok(cpl_documents_next(d, &doc, &more));
        if (!more) break;
        assert_string_equal(doc.source, source);
        assert_int_equal(doc.line, cpl_documents_counts(d).documents);
    }
    cpl_document_counts c = cpl_documents_counts(d);
    assert_int_equal(c.documents, documents);
    assert_int_equal(c.text_bytes, bytes);
    assert_int_equal(c.repaired + c.empty + c.bad, 0);
    cpl_documents_close(d);
}

TEST(small_corpus)
{
    count(golden_path("data/corpus-mini/validation/books-0000.json.gz"), 2, 27890, "books");
    count(golden_path("data/corpus-mini/validation/code-0000.jsonl.zst"), 11, 23181, "code");
    count(golden_path("data/corpus-mini/validation/encyclopedia-0000.json.gz"), 10, 22590,
          "encyclopedia");
    count(golden_path("data/corpus-mini/validation/qa-0000.jsonl.zst"), 11, 25081, "qa");
    count(golden_path("data/corpus-mini/validation/science-0000.jsonl.zst"), 24, 22226, "science");
    count(golden_path("data/corpus-mini/validation/web-0000.json.gz"), 4, 22277, "web");
}

TEST(corpus)
{
    count("data/train/books-0000.json.gz", 165, 3041337, "books");
    count("data/train/code-0001.jsonl.zst", 622, 2608673, "code");
    count("data/train/encyclopedia-0000.json.gz", 900, 2798267, "encyclopedia");
    count("data/train/science-0001.jsonl.zst", 1897, 2912607, "science");
    count("data/validation/qa-0000.jsonl.zst", 79, 199967, "qa");
    count("data/validation/web-0000.json.gz", 29, 209501, "web");
}
