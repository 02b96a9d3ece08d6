/* test_shard_writer.c - token files written: byte for byte those of the reference, with their rows
 * and labels; remains of a killed writer; refused documents.
 *
 * Reference: the token files that the Dolma tool's format defines, made of corpus-mini with the
 * reference tokenizer. Their ids, cut at their metadata, go through our writer together with the
 * documents of our reader: the bytes must equal the reference. */
#include "data/internal.h"
#include "data/shard_writer.h"

#include <unistd.h>

#include "data/shards_case.h"
#include "io/paths.h"

/* ---- the reference files ---- */

/* Writes the documents below corpus/split with the ids of reference/split. */
static void rewrite(const char *corpus, const char *reference, const char *split,
                    int64_t vocab_size, int64_t eos, const char *out)
{
    char inputs[600], npy[600];
    const char *input[] = {inputs};
    snprintf(inputs, sizeof inputs, "%s/%s", corpus, split);
    snprintf(npy, sizeof npy, "%s/%s/part-0-00000.npy", reference, split);
    cpl_shard_writer_settings s = LIST(.folder = out, .vocab_size = vocab_size, .eos = eos,
                                       .source_root = corpus, .tokenizer_path = "a \"path\"\n");
    cpl_document_settings ds    = cpl_document_defaults();
    cpl_document_counts counts  = {0};
    cpl_shard_options options   = {.eos = eos, .vocab_size = vocab_size};
    cpl_shard_writer *writer    = NULL;
    cpl_shards *shards          = NULL;
    cpl_shard_rows rows;
    cpl_strings paths;
    bool present = false, more = true;
    int64_t start = 0, end = 0;
    assert_ok(open_one(&shards, npy, &options, NULL));
    assert_ok(cpl_shard_rows_open(&rows, npy, shards->file[0].n_tokens, &present));
    assert_true(present);
    assert_ok(cpl_documents_expand(&paths, input, 1));
    assert_int_equal(paths.count, 6);
    assert_ok(cpl_shard_writer_open(&writer, &s));
    for (int64_t i = 0; i < paths.count; i++) {
        cpl_documents *documents = NULL;
        cpl_document document;
        assert_ok(cpl_documents_open(&documents, paths.at[i], &ds, NULL));
        for (;;) {
            assert_ok(cpl_documents_next(documents, &document, &more));
            if (!more) break;
            assert_ok(cpl_shard_rows_next(&rows, &start, &end, &more));
            assert_true(more);
            int32_t *ids = malloc((size_t)(end - start) * sizeof *ids);
            assert_ok(cpl_shards_read(shards, 0, start, end - start, ids));
            assert_int_equal(ids[end - start - 1], eos);
            assert_ok(cpl_shard_writer_add(writer, &document, ids, end - start - 1));
            free(ids);
        }
        cpl_document_counts c = cpl_documents_counts(documents);
        cpl_document_counts_add(&counts, &c);
        cpl_documents_close(documents);
    }
    assert_ok(cpl_shard_rows_next(&rows, &start, &end, &more));
    assert_false(more);
    assert_int_equal(cpl_shard_writer_tokens(writer), shards->n_tokens);
    assert_ok(cpl_shard_writer_finish(writer, &counts));
    cpl_shard_writer_close(writer);
    cpl_shard_rows_close(&rows);
    cpl_paths_free(&paths);
    cpl_shards_close(shards);
    assert_same_files(in_folder(out, "part-0-00000.npy"), npy);
    memcpy(npy + strlen(npy) - 3, "csv.gz", 7);
    assert_same_files(in_folder(out, "part-0-00000.csv.gz"), npy);
}

/* Checks that the written validation documents are read as a data set with labels. */
static void reads_back(const char *out)
{
    static const char *const labels[] = {"books", "code", "encyclopedia", "qa", "science", "web"};
    cpl_shard_options options         = unknown();
    cpl_shards *shards                = NULL;
    cpl_text said = {0}, report = {0};
    cpl_log log = log_into(&said);
    assert_ok(open_one(&shards, out, &options, &log));
    assert_int_equal(shards->n_files, 1);
    assert_int_equal(shards->n_tokens, 35506);
    assert_int_equal(shards->eos, 50279);
    assert_int_equal(shards->vocab_size, 50280);
    assert_int_equal(shards->labels.count, 6);
    for (int64_t i = 0; i < 6; i++) {
        assert_string_equal(shards->labels.at[i], labels[i]);
        assert_int_equal(cpl_shards_find_label(shards, labels[i]), i);
    }
    assert_int_equal(cpl_shards_find_label(shards, "none"), -1);
    assert_ok(cpl_shards_describe(shards, 1 << 22, &report));
    assert_non_null(strstr(report.bytes, "6391 tokens         11 documents"));
    assert_non_null(strstr(report.bytes, "50279 62 times"));
    assert_non_null(strstr(report.bytes, "The item type is likely."));
    assert_int_equal(said.length, 0);
    cpl_text_free(&report);
    cpl_text_free(&said);
    cpl_shards_close(shards);
}

TEST(reference_validation)
{
    char corpus[512], reference[512];
    const char *out = in_folder(folder, "validation");
    snprintf(corpus, sizeof corpus, "%s", golden_path("data/corpus-mini"));
    snprintf(reference, sizeof reference, "%s",
             golden_path("data/tokenized-mini/gpt-neox-olmo-dolma-v1_5"));
    rewrite(corpus, reference, "validation", 50280, 50279, out);
    reads_back(out);
    cpl_text json = read_bytes(in_folder(out, "shards.json"));
    assert_non_null(strstr(json.bytes, "\"tokenizer\": \"a \\\"path\\\"\\u000a\""));
    assert_non_null(strstr(json.bytes, "\"documents\": 62"));
    assert_non_null(strstr(json.bytes, "\"text_bytes\": 143245"));
    cpl_text_free(&json);
}

/* The documents are written with the ids of another tokenizer. */
TEST(reference_gpt2)
{
    rewrite(golden_path("data/corpus-mini"), golden_path("data/tokenized-small/gpt2"), "validation",
            1757, 1756, in_folder(folder, "validation-gpt2"));
}

TEST_FURTHER(reference_train)
{
    char corpus[512];
    snprintf(corpus, sizeof corpus, "%s", shared_path("data/corpus-mini"));
    rewrite(corpus, shared_path("data/tokenized-mini/gpt-neox-olmo-dolma-v1_5"), "train", 50280,
            50279, in_folder(folder, "train-neox"));
    rewrite(corpus, shared_path("data/tokenized-mini/gpt2"), "train", 50257, 50256,
            in_folder(folder, "train-gpt2"));
}

/* ---- the writer ---- */

TEST(files_and_rows)
{
    const char *out             = in_folder(folder, "deep/er");
    cpl_shard_writer_settings s = LIST(.folder = out, .writer = 3, .n_writers = 12,
                                       .max_tokens = 10, .vocab_size = 100000, .eos = 9);
    cpl_shard_writer *writer    = NULL;
    assert_ok(cpl_shard_writer_open(&writer, &s));
    add(writer, "plain", "b", 5, 70000);
    add(writer, "nothing", "b", 0, 0);
    add(writer, "a \"quoted\", id\r\nof two lines", "a\tb", 3, 7); /* ends in 9, the EOS */
    add(writer, "over", "b", 1, 1);
    add(writer, "giant", "b", 30, 100);
    finish(writer);
    cpl_text rows = read_plain(in_folder(out, "part-03-00000.csv.gz"));
    assert_string_equal(rows.bytes,
                        "0,6,plain,\"in/file,1.jsonl\",5\r\n"
                        "6,9,\"a \"\"quoted\"\", id\r\nof two lines\",\"in/file,1.jsonl\",3\r\n");
    cpl_text_free(&rows);
    cpl_text labels = read_bytes(in_folder(out, "part-03-00000.sources.tsv"));
    assert_string_equal(labels.bytes, "0\tb\n1\ta b\n");
    cpl_text_free(&labels);
    cpl_text numbers = read_bytes(in_folder(out, "part-03-00000.sources.u8"));
    assert_int_equal(numbers.length, 2);
    assert_memory_equal(numbers.bytes, "\0\1", 2);
    cpl_text_free(&numbers);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = {.eos = 9, .vocab_size = 100000};
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_int_equal(shards->n_files, 3);
    assert_int_equal(shards->file[0].n_tokens, 9);
    assert_int_equal(shards->file[1].n_tokens, 2);
    assert_int_equal(shards->file[2].n_tokens, 31);
    int32_t ids[9], want[9] = {70000, 70001, 70002, 70003, 70004, 9, 7, 8, 9};
    assert_ok(cpl_shards_read(shards, 0, 0, 9, ids));
    assert_memory_equal(ids, want, sizeof want);
    cpl_shards_close(shards);
    assert_fails(CPL_ERR_INPUT, "already", cpl_shard_writer_open(&writer, &s));
    s.writer = 4;
    assert_ok(cpl_shard_writer_open(&writer, &s));
    cpl_shard_writer_close(writer);
}

TEST(by_source)
{
    const char *out           = in_folder(folder, "by-source");
    cpl_shard_writer *writer  = open_writer(out, true);
    cpl_shards *shards        = NULL;
    cpl_shard_options options = unknown();
    add(writer, "1", "web", 4, 1);
    add(writer, "2", "../evil", 5, 1);
    add(writer, "3", "web", 6, 1);
    finish(writer);
    assert_int_equal(access(in_folder(out, "%2E.%2Fevil/part-0-00000.npy"), R_OK), 0);
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_int_equal(shards->n_files, 2);
    assert_int_equal(shards->labels.count, 2);
    assert_string_equal(shards->labels.at[0], "../evil");
    assert_int_equal(shards->file[0].n_tokens, 6);
    assert_int_equal(shards->file[1].n_tokens, 12);
    assert_int_equal(shards->file[1].label[0], 1);
    cpl_shards_close(shards);
}

/* The remains of a killed writer are refused or removed, in the folders of sources too. */
TEST(old_parts)
{
    const char *out             = in_folder(folder, "old");
    cpl_shard_writer_settings s = {
        .folder = out, .by_source = true, .max_tokens = 5, .vocab_size = 300};
    cpl_shard_writer *writer  = NULL;
    cpl_shards *shards        = NULL;
    cpl_shard_options options = unknown();
    assert_ok(cpl_shard_writer_open(&writer, &s));
    for (int i = 0; i < 3; i++) add(writer, "x", "web", 4, 1);
    cpl_shard_writer_close(
        writer); /* two parts were complete: a writer that gave up removes them */
    assert_int_equal(access(out, F_OK), -1);
    assert_ok(cpl_shard_writer_open(&writer, &s));
    for (int i = 0; i < 3; i++) add(writer, "x", "web", 4, 1);
    finish(writer);
    assert_int_equal(unlink(in_folder(out, "shards.json")), 0); /* the state after a kill */
    write_string(in_folder(out, "notes.txt"), "kept");
    assert_fails(CPL_ERR_INPUT, "already", cpl_shard_writer_open(&writer, &s));
    s.replace = true;
    assert_ok(cpl_shard_writer_open(&writer, &s));
    add(writer, "x", "web", 3, 1);
    finish(writer);
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_int_equal(shards->n_tokens, 4);
    assert_int_equal(access(in_folder(out, "notes.txt"), R_OK), 0);
    cpl_shards_close(shards);
}

TEST(writer_refuses)
{
    cpl_shard_writer *writer    = NULL;
    cpl_shard_writer_settings s = {.folder = in_folder(folder, "refused"), .vocab_size = 0};
    assert_fails(CPL_ERR_INPUT, "vocabulary of 0", cpl_shard_writer_open(&writer, &s));
    s.vocab_size = 10;
    s.eos        = 10;
    assert_fails(CPL_ERR_INPUT, "end-of-text id 10", cpl_shard_writer_open(&writer, &s));
    s.eos    = 9;
    s.folder = "/proc/nowhere";
    assert_fails(CPL_ERR_IO, "/proc/nowhere", cpl_shard_writer_open(&writer, &s));
    s.folder = in_folder(folder, "refused");
    assert_ok(cpl_shard_writer_open(&writer, &s));
    int32_t ids[2]        = {3, 10};
    cpl_document document = {.id = "i", .source = "s", .path = "p.jsonl", .line = 7};
    assert_fails(CPL_ERR_INPUT, "document 7 has the id 10",
                 cpl_shard_writer_add(writer, &document, ids, 2));
    assert_ok(cpl_shard_writer_add(writer, &document, ids, 1));
    cpl_shard_writer_close(writer); /* the writer gives up: no file must be left */
    assert_int_equal(access(in_folder(folder, "refused"), F_OK), -1);
}
