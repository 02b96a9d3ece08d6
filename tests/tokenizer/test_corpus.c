/* test_corpus.c - from compressed documents to token shards: documents, tokenizer and writer
 * together.
 *
 * Reference: tests/golden/data/tokenized-small, made with the reference tokenizers, byte for byte,
 * and the SHA-256 of the token streams of larger files. The further tests compare the larger
 * data. */
#include "base/arena.h"
#include "data/documents.h"
#include "data/shard_writer.h"
#include "data/shards.h"
#include "io/paths.h"
#include "support/files.h"
#include "support/sha256.h"
#include "tokenizer/tokenizer.h"

static const char *const OLMO = "allenai_gpt-neox-olmo-dolma-v1_5";
SCRATCH_FOLDER(folder);

static void encode_file(cpl_shard_writer *writer, cpl_encoder *encoder, const char *path,
                        cpl_document_counts *counts)
{
    cpl_document_settings settings = cpl_document_defaults();
    cpl_documents *documents       = NULL;
    cpl_document document;
    cpl_ids ids = {0};
    bool more   = true;
    assert_ok(cpl_documents_open(&documents, path, &settings, NULL));
    for (;;) {
        assert_ok(cpl_documents_next(documents, &document, &more));
        if (!more) break;
        ids.count = 0;
        assert_ok(cpl_encoder_append(encoder, &ids, document.text, document.length));
        assert_ok(cpl_shard_writer_add(writer, &document, ids.at, ids.count));
    }
    cpl_document_counts met = cpl_documents_counts(documents);
    cpl_document_counts_add(counts, &met);
    cpl_documents_close(documents);
    cpl_ids_free(&ids);
}

/* Encodes every document below `input` into `out`. */
static void encode(const char *tokenizer_path, const char *root, const char *input, const char *out)
{
    cpl_tokenizer *tokenizer   = NULL;
    cpl_encoder *encoder       = NULL;
    cpl_shard_writer *writer   = NULL;
    cpl_document_counts counts = {0};
    cpl_strings paths;
    assert_ok(cpl_tokenizer_load(&tokenizer, tokenizer_path));
    assert_ok(cpl_encoder_init(&encoder, tokenizer, false));
    cpl_shard_writer_settings settings = {.folder      = out,
                                          .source_root = root,
                                          .vocab_size  = cpl_tokenizer_vocab_size(tokenizer),
                                          .eos         = cpl_tokenizer_eos(tokenizer)};
    assert_ok(cpl_shard_writer_open(&writer, &settings));
    assert_ok(cpl_documents_expand(&paths, &input, 1));
    for (int64_t i = 0; i < paths.count; i++) encode_file(writer, encoder, paths.at[i], &counts);
    assert_ok(cpl_shard_writer_finish(writer, &counts));
    cpl_shard_writer_close(writer);
    cpl_paths_free(&paths);
    cpl_encoder_free(encoder);
    cpl_tokenizer_free(tokenizer);
}

/* Returns the path of the whole tokenizer, or of the small form in the checkout. */
static const char *tokenizer_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s.json",
             further ? shared_path("data/tokenizers") : golden_path("tokenizers"), name);
    return path;
}

static void small_corpus(const char *tokenizer, const char *reference)
{
    static const char *const splits[] = {"validation", "train"};
    char root[512], want[600];
    snprintf(root, sizeof root, "%s",
             further ? shared_path("data/corpus-mini") : golden_path("data/corpus-mini"));
    snprintf(want, sizeof want, "%s/%s",
             further ? shared_path("data/tokenized-mini") : golden_path("data/tokenized-small"),
             reference);
    for (int i = 0; i < 1 + further; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s-%s", reference, splits[i]);
        const char *out = in_folder(folder, name);
        encode(tokenizer, root, in_folder(root, splits[i]), out);
        const char *expected = in_folder(want, splits[i]);
        assert_same_files(in_folder(out, "part-0-00000.npy"),
                          in_folder(expected, "part-0-00000.npy"));
        assert_same_files(in_folder(out, "part-0-00000.csv.gz"),
                          in_folder(expected, "part-0-00000.csv.gz"));
    }
}

TEST_ANY(olmo)
{
    small_corpus(tokenizer_path(OLMO), "gpt-neox-olmo-dolma-v1_5");
}

TEST_ANY(gpt2)
{
    small_corpus(tokenizer_path("gpt2"), "gpt2");
}

/* Compares a shard of the larger corpus with its line of reference-counts.tsv. */
TEST_ANY(larger_shard)
{
    char sum[65];
    const char *out   = in_folder(folder, "code");
    const char *table = further ? shared_path("data/tokenizers/reference-counts.tsv")
                                : golden_path("tokenizers/reference-counts.tsv");
    encode(tokenizer_path(OLMO), NULL, "data/validation/code-0000.jsonl.zst", out);
    cpl_text tokens = read_plain(in_folder(out, "part-0-00000.npy"));
    cpl_text counts = read_plain(table);
    sha256_of(sum, tokens.bytes, tokens.length);
    const char *line =
        strstr(counts.bytes, further ? "gpt-neox-olmo-dolma-v1_5\tcorpus/validation/code-0000"
                                     : "gpt-neox-olmo-dolma-v1_5\tdata/validation/code-0000");
    assert_non_null(line);
    assert_non_null(strstr(line, sum));
    assert_true(strstr(line, sum) < strchr(line, '\n'));
    cpl_text_free(&tokens);
    cpl_text_free(&counts);
}
