/* test_shards.c - token files written, read, and in the forms that others write.
 *
 * Reference: the token files that the Dolma tool's format asks for, made of corpus-mini with the
 * reference tokenizer. Their ids, cut at their metadata, go through our writer together with the
 * documents of our reader: every byte must come back. */
#include "data/shards.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/rng.h"
#include "data/shard_writer.h"
#include "io/paths.h"
#include "support/files.h"

static const char *folder;

static cpl_shard_options unknown(void)
{
    return (cpl_shard_options){.eos = -1};
}

static cpl_status open_one(cpl_shards **shards, const char *path, const cpl_shard_options *options,
                           const cpl_log *log)
{
    return cpl_shards_open(shards, &path, 1, options, log);
}

static void same_content(const char *got_path, const char *want_path)
{
    cpl_text got = read_plain(got_path), want = read_plain(want_path);
    assert_int_equal(got.length, want.length);
    assert_memory_equal(got.bytes, want.bytes, want.length);
    cpl_text_free(&got);
    cpl_text_free(&want);
}

/* ---- the reference files ---- */

/* Writes the documents below corpus/split with the ids of reference/split. */
static void rewrite(const char *corpus, const char *reference, const char *split,
                    int64_t vocab_size, int64_t eos, const char *out)
{
    char inputs[600], npy[600];
    const char *input[] = {inputs};
    snprintf(inputs, sizeof inputs, "%s/%s", corpus, split);
    snprintf(npy, sizeof npy, "%s/%s/part-0-00000.npy", reference, split);
    cpl_shard_writer_settings s = {.folder         = out,
                                   .vocab_size     = vocab_size,
                                   .eos            = eos,
                                   .source_root    = corpus,
                                   .tokenizer_path = "a \"path\"\n"};
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
    same_content(in_folder(out, "part-0-00000.npy"), npy);
    memcpy(npy + strlen(npy) - 3, "csv.gz", 7);
    same_content(in_folder(out, "part-0-00000.csv.gz"), npy);
}

/* What was written of the validation documents reads as a data set that explains itself. */
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

static void reference_validation(void **state)
{
    (void)state;
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

/* The same documents as another tokenizer's ids. */
static void reference_gpt2(void **state)
{
    (void)state;
    rewrite(golden_path("data/corpus-mini"), golden_path("data/tokenized-small/gpt2"), "validation",
            1757, 1756, in_folder(folder, "validation-gpt2"));
}

static void reference_train(void **state)
{
    (void)state;
    char corpus[512];
    snprintf(corpus, sizeof corpus, "%s", shared_path("data/corpus-mini"));
    rewrite(corpus, shared_path("data/tokenized-mini/gpt-neox-olmo-dolma-v1_5"), "train", 50280,
            50279, in_folder(folder, "train-neox"));
    rewrite(corpus, shared_path("data/tokenized-mini/gpt2"), "train", 50257, 50256,
            in_folder(folder, "train-gpt2"));
}

/* ---- the writer ---- */

static void add(cpl_shard_writer *writer, const char *id, const char *source, int64_t n_ids,
                int32_t first)
{
    int32_t ids[64];
    cpl_document document = {.id = id, .source = source, .path = "in/file,1.jsonl", .line = n_ids};
    for (int64_t i = 0; i < n_ids; i++) ids[i] = first + (int32_t)i;
    assert_ok(cpl_shard_writer_add(writer, &document, ids, n_ids));
}

static void files_and_rows(void **state)
{
    (void)state;
    const char *out             = in_folder(folder, "deep/er");
    cpl_shard_writer_settings s = {.folder     = out,
                                   .writer     = 3,
                                   .n_writers  = 12,
                                   .max_tokens = 10,
                                   .vocab_size = 100000,
                                   .eos        = 9};
    cpl_document_counts none    = {0};
    cpl_shard_writer *writer    = NULL;
    assert_ok(cpl_shard_writer_open(&writer, &s));
    add(writer, "plain", "b", 5, 70000);
    add(writer, "nothing", "b", 0, 0);
    add(writer, "a \"quoted\", id\r\nof two lines", "a\tb", 3, 7); /* ends in 9, the EOS */
    add(writer, "over", "b", 1, 1);
    add(writer, "giant", "b", 30, 100);
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
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

static void by_source(void **state)
{
    (void)state;
    const char *out             = in_folder(folder, "by-source");
    cpl_shard_writer_settings s = {.folder = out, .by_source = true, .vocab_size = 300, .eos = 0};
    cpl_document_counts none    = {0};
    cpl_shard_writer *writer    = NULL;
    cpl_shards *shards          = NULL;
    cpl_shard_options options   = unknown();
    assert_ok(cpl_shard_writer_open(&writer, &s));
    add(writer, "1", "web", 4, 1);
    add(writer, "2", "../evil", 5, 1);
    add(writer, "3", "web", 6, 1);
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
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

/* What a writer that was killed left is refused or removed, in the folders of sources too. */
static void old_parts(void **state)
{
    (void)state;
    const char *out             = in_folder(folder, "old");
    cpl_shard_writer_settings s = {
        .folder = out, .by_source = true, .max_tokens = 5, .vocab_size = 300};
    cpl_document_counts none  = {0};
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
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
    assert_int_equal(unlink(in_folder(out, "shards.json")), 0); /* as a kill leaves it */
    write_string(in_folder(out, "notes.txt"), "kept");
    assert_fails(CPL_ERR_INPUT, "already", cpl_shard_writer_open(&writer, &s));
    s.replace = true;
    assert_ok(cpl_shard_writer_open(&writer, &s));
    add(writer, "x", "web", 3, 1);
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_int_equal(shards->n_tokens, 4);
    assert_int_equal(access(in_folder(out, "notes.txt"), R_OK), 0);
    cpl_shards_close(shards);
}

/* ---- a folder that is not whole ---- */

/* A data set of two sources, a file each, in a fresh folder. */
static const char *two_sources(char out[512], const char *name)
{
    char command[600];
    cpl_document_counts none = {0};
    cpl_shard_writer *writer = NULL;
    snprintf(out, 512, "%s/%s", folder, name);
    snprintf(command, sizeof command, "rm -rf %s", out);
    assert_int_equal(system(command), 0);
    cpl_shard_writer_settings s = {.folder = out, .by_source = true, .vocab_size = 300, .eos = 0};
    assert_ok(cpl_shard_writer_open(&writer, &s));
    add(writer, "1", "a", 4, 1);
    add(writer, "2", "b", 6, 1);
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
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

static void parts_missing(void **state)
{
    (void)state;
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
    assert_int_equal(warnings(pattern, 1), 0); /* what the user chose */
    assert_int_equal(warnings(in_folder(out, "a"), 1), 0);
    assert_int_equal(mkdir(part, 0777), 0);
    refused("b/part-0-00000.npy: is not a regular file", out);
    assert_int_equal(rmdir(part), 0);
    two_sources(out, "whole");
    write_bytes(in_folder(out, "a/more.npy"), "\1\0", 2); /* somebody else's file is no sign */
    assert_int_equal(warnings(out, 3), 0);
}

/* What cannot be a part is named at once, also where nothing lists it. */
static void parts_of_other_kinds(void **state)
{
    (void)state;
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

static void encode_was_ended(void **state)
{
    (void)state;
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
    assert_int_equal(warnings(out, 2), 0); /* somebody else's, without a list */
}

/* Dolma's tool writes no index, and a part of what it wrote is a data set too. */
static void other_programs(void **state)
{
    (void)state;
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

static void many_labels(void **state)
{
    (void)state;
    const char *out             = in_folder(folder, "many");
    cpl_shard_writer_settings s = {.folder = out, .vocab_size = 300, .eos = 0};
    cpl_document_counts none    = {0};
    cpl_shard_writer *writer    = NULL;
    cpl_shards *shards          = NULL;
    cpl_shard_options options   = unknown();
    char label[16];
    int32_t pieces[500];
    assert_ok(cpl_shard_writer_open(&writer, &s));
    for (int i = 0; i < 500; i++) {
        snprintf(label, sizeof label, "s%03d", (i * 7) % 500 % 400);
        add(writer, "x", label, 3, 1);
    }
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
    assert_ok(open_one(&shards, out, &options, NULL));
    assert_int_equal(shards->labels.count, 400);
    assert_ok(cpl_shards_piece_labels(shards, 0, 4, pieces));
    for (int i = 0; i < 500; i++) assert_int_equal(pieces[i], (i * 7) % 500 % 400);
    cpl_shards_close(shards);
}

/* The label of most tokens of every piece, counted token by token. */
static void piece_labels(void **state)
{
    (void)state;
    enum { DOCUMENTS = 60, LABELS = 3, MOST = DOCUMENTS * 9 };
    static const char *const names[LABELS] = {"a", "b", "c"};
    const char *out                        = in_folder(folder, "pieces");
    cpl_shard_writer_settings s            = {.folder = out, .vocab_size = 300, .eos = 0};
    cpl_document_counts none               = {0};
    cpl_shard_writer *writer               = NULL;
    cpl_shards *shards                     = NULL;
    cpl_shard_options options              = unknown();
    cpl_rng_key key                        = {.seed = 2, .stream = CPL_STREAM_TEST};
    int label_of[MOST];
    int32_t got[MOST];
    int64_t n = 0;
    assert_ok(cpl_shard_writer_open(&writer, &s));
    for (int i = 0; i < DOCUMENTS; i++) {
        uint32_t r = cpl_rng_u32(&key, (uint64_t)i);
        int label = (int)(r % LABELS), length = 1 + (int)(r >> 8) % 8;
        add(writer, "x", names[label], length, 1);
        for (int k = 0; k <= length; k++) label_of[n++] = label;
    }
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
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

static void writer_refuses(void **state)
{
    (void)state;
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
    cpl_shard_writer_close(writer); /* given up: nothing must be left */
    assert_int_equal(access(in_folder(folder, "refused"), F_OK), -1);
}

/* ---- foreign forms ---- */

static void put16(cpl_text *out, unsigned id)
{
    cpl_text_char(out, (char)id);
    cpl_text_char(out, (char)(id >> 8));
}

static cpl_text numpy(int version, const char *dictionary, const char *data, size_t length)
{
    cpl_text out  = {0};
    size_t header = strlen(dictionary);
    cpl_text_append(&out, "\x93NUMPY", 6);
    cpl_text_char(&out, (char)version);
    cpl_text_char(&out, 0);
    put16(&out, (unsigned)header);
    if (version > 1) put16(&out, 0);
    cpl_text_append(&out, dictionary, header);
    cpl_text_append(&out, data, length);
    return out;
}

/* Opens `bytes` as a file; expects `n` tokens 1, 2, 3, ... or, with a sentence, a refusal. */
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

static void numpy_files(void **state)
{
    (void)state;
    static const char two[] = "\1\0\2\0\3\0", four[] = "\1\0\0\0\2\0\0\0", one[] = "\1\2\3\4";
    foreign(numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }  \n", two, 6),
            "v1.npy", 3, NULL);
    foreign(numpy(2, "{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }\n", four, 8),
            "v2.npy", 2, NULL);
    foreign(numpy(3, "{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }\n", four, 8),
            "v3.npy", 2, NULL);
    foreign(numpy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }\n", one, 4),
            "u1.npy", 4, NULL);
    foreign(numpy(1, "{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }\n",
                  "\1\0\0\0\0\0\0\0", 8),
            "u8.npy", 1, NULL);
    foreign(numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }\n", two, 6),
            "short.npy", 0, "does not fit");
    foreign(numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 1), }\n", two, 6),
            "two.npy", 0, "does not fit");
    foreign(numpy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", four, 8),
            "float.npy", 0, "'<f4'");
    foreign(numpy(1, "{'descr': '>u2', 'fortran_order': False, 'shape': (3,), }\n", two, 6),
            "big.npy", 0, "'>u2'");
    foreign(numpy(1, "{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }\n", two, 6),
            "fortran.npy", 0, "plain array");
    cpl_text cut = numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }\n", two, 6);
    cut.length   = 40;
    foreign(cut, "cut.npy", 0, "does not fit");
}

static void llm_c_files(void **state)
{
    (void)state;
    for (int32_t version = 1; version <= 2; version++)
        for (int32_t count = 3; count <= 4; count++) {
            cpl_text out      = {0};
            int32_t head[256] = {20240520, version, count};
            cpl_text_append(&out, head, sizeof head);
            for (unsigned i = 1; i <= 3; i++) put16(&out, i);
            foreign(out, "llm.bin", 3, version > 1 ? "version 2" : count > 3 ? "do not fit" : NULL);
        }
}

static void flat_files(void **state)
{
    (void)state;
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

static void doubtful_type(void **state)
{
    (void)state;
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

static void doubtful_eos(void **state)
{
    (void)state;
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

static void masks(void **state)
{
    (void)state;
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

/* ---- metadata that does not fit ---- */

static void bad_companions(void **state)
{
    (void)state;
    const char *out             = in_folder(folder, "companions");
    cpl_shard_writer_settings s = {.folder = out, .vocab_size = 300, .eos = 0};
    cpl_document_counts none    = {0};
    cpl_shard_writer *writer    = NULL;
    cpl_shards *shards          = NULL;
    cpl_shard_options options   = unknown();
    int32_t pieces[8];
    assert_ok(cpl_shard_writer_open(&writer, &s));
    add(writer, "1", "a", 3, 1);
    add(writer, "2", "b", 3, 1);
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
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

/* One of the files of a written folder changed or cut: a sentence or a data set, never a crash. */
static void mutations(void **state)
{
    (void)state;
    static const char *const names[] = {
        "part-0-00000.npy",        "part-0-00000.csv.gz", "part-0-00000.sources.tsv",
        "part-0-00000.sources.u8", "shards.json",         "numpy.npy"};
    char out[512];
    snprintf(out, sizeof out, "%s/mutations", folder);
    cpl_shard_writer_settings s = {.folder = out, .vocab_size = 300, .eos = 0};
    cpl_document_counts none    = {0};
    cpl_shard_writer *writer    = NULL;
    cpl_shard_options options   = unknown();
    cpl_rng_key key             = {.seed = 5, .stream = CPL_STREAM_TEST};
    uint64_t draw               = 0;
    int refused                 = 0;
    assert_ok(cpl_shard_writer_open(&writer, &s));
    for (int i = 0; i < 9; i++) add(writer, "id \"q\"", i % 2 ? "a" : "b", 3 + i, i);
    assert_ok(cpl_shard_writer_finish(writer, &none));
    cpl_shard_writer_close(writer);
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

static void no_memory(void **state)
{
    (void)state;
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

int main(int n_arguments, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_validation),
        cmocka_unit_test(reference_gpt2),
        cmocka_unit_test(files_and_rows),
        cmocka_unit_test(by_source),
        cmocka_unit_test(old_parts),
        cmocka_unit_test(parts_missing),
        cmocka_unit_test(parts_of_other_kinds),
        cmocka_unit_test(encode_was_ended),
        cmocka_unit_test(other_programs),
        cmocka_unit_test(many_labels),
        cmocka_unit_test(piece_labels),
        cmocka_unit_test(writer_refuses),
        cmocka_unit_test(numpy_files),
        cmocka_unit_test(llm_c_files),
        cmocka_unit_test(flat_files),
        cmocka_unit_test(doubtful_type),
        cmocka_unit_test(doubtful_eos),
        cmocka_unit_test(masks),
        cmocka_unit_test(bad_companions),
        cmocka_unit_test(mutations),
        cmocka_unit_test(no_memory),
    };
    const struct CMUnitTest further_tests[] = {cmocka_unit_test(reference_train)};
    folder                                  = scratch_folder();
    return run_groups(n_arguments, arguments, tests, further_tests, NULL, NULL);
}
