/* test_tokens.c - documents into shards: equal bytes for any number of threads, and no leak where
 * memory ends. */
#include "data/tokens.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "base/arena.h"
#include "base/rng.h"
#include "check.h"
#include "data/shards.h"
#include "support/files.h"

enum { N_DOCUMENTS = 700, MOST_WORDS = 60 }; /* documents in more than two batches */

static const char *const words[] = {"the", "cat", "sat",          "on",
                                    "a",   "mat", "h\xc3\xa4tte", "\xf0\x9f\x99\x82"};

/* Returns document i: some words, chosen by its number. */
static cpl_text text_of(uint64_t i)
{
    cpl_text text   = {0};
    cpl_rng_key key = {.seed = 5, .step = i, .stream = CPL_STREAM_TEST};
    uint64_t count  = 1 + cpl_rng_u32(&key, 0) % MOST_WORDS;
    for (uint64_t w = 1; w <= count; w++)
        cpl_text_printf(&text, "%s%s", w > 1 ? " " : "", words[cpl_rng_u32(&key, w) % 8]);
    return text;
}

typedef struct world {
    const char *folder;
    char documents[128];
    cpl_tokenizer *tokenizer;
    cpl_data_settings settings;
    char *input;
    cpl_strings inputs;
} world;

static void write_documents(world *w)
{
    cpl_text all = {0};
    for (uint64_t i = 0; i < N_DOCUMENTS; i++) {
        cpl_text text = text_of(i);
        cpl_text_printf(&all, "{\"id\": \"%d\", \"source\": \"s%d\", \"text\": \"%s\"}\n", (int)i,
                        (int)i % 3, text.bytes);
        cpl_text_free(&text);
    }
    snprintf(w->documents, sizeof w->documents, "%s/d.jsonl", w->folder);
    write_bytes(w->documents, all.bytes, all.length);
    cpl_text_free(&all);
}

static void make_tokenizer(world *w)
{
    char path[128];
    cpl_bpe_trainer *trainer;
    cpl_bpe_settings settings = {.vocab_size = 280, .min_frequency = 1};
    snprintf(path, sizeof path, "%s/T.json", w->folder);
    assert_ok(cpl_bpe_init(&trainer, &settings));
    for (uint64_t i = 0; i < N_DOCUMENTS; i++) {
        cpl_text text = text_of(i);
        assert_ok(cpl_bpe_add(trainer, text.bytes, text.length));
        cpl_text_free(&text);
    }
    assert_ok(cpl_bpe_train(trainer, NULL));
    assert_ok(cpl_bpe_write(trainer, path));
    cpl_bpe_free(trainer);
    assert_ok(cpl_tokenizer_load(&w->tokenizer, path));
}

static void open_world(world *w)
{
    w->folder = scratch_folder();
    write_documents(w);
    make_tokenizer(w);
    assert_ok(cpl_settings_init(&w->settings, &cpl_section_data, 1));
    w->input  = w->documents;
    w->inputs = (cpl_strings){&w->input, 1};
}

static void close_world(world *w)
{
    cpl_settings_free(&w->settings, &cpl_section_data, 1);
    cpl_tokenizer_free(w->tokenizer);
}

/* Makes the shards in `folder`, a new folder of the name out<number>. */
static cpl_status make(world *w, char folder[160], int number, int n_threads, cpl_tokens_made *made)
{
    cpl_tokens_job job =
        LIST(.inputs = &w->inputs, .settings = &w->settings, .tokenizer = w->tokenizer,
             .tokenizer_path = "T.json", .folder = folder, .n_threads = n_threads);
    snprintf(folder, 160, "%s/out%d", w->folder, number);
    return cpl_tokens_make(&job, made);
}

static cpl_text shard_of(const char *folder)
{
    char path[200];
    snprintf(path, sizeof path, "%s/part-0-00000.npy", folder);
    return read_bytes(path);
}

TEST(threads_change_nothing)
{
    world w;
    char folder[160];
    cpl_tokens_made one, made;
    open_world(&w);
    assert_ok(make(&w, folder, 1, 1, &one));
    assert_int_equal(one.counts.documents, N_DOCUMENTS);
    cpl_text want = shard_of(folder);
    assert_int_equal(want.length, 2 * one.tokens);
    for (int n_threads = 2; n_threads < 6; n_threads++) {
        assert_ok(make(&w, folder, n_threads, n_threads, &made));
        cpl_text got = shard_of(folder);
        assert_int_equal(got.length, want.length);
        assert_memory_equal(got.bytes, want.bytes, want.length);
        cpl_text_free(&got);
    }
    cpl_text_free(&want);
    close_world(&w);
}

/* The shards hold one document after the other, each followed by the end-of-text id. */
TEST(holds_the_documents_in_order)
{
    world w;
    char folder[160];
    cpl_tokens_made made;
    cpl_encoder *encoder;
    cpl_ids ids = {0};
    open_world(&w);
    assert_ok(make(&w, folder, 1, 3, &made));
    cpl_text got = shard_of(folder);
    assert_ok(cpl_encoder_init(&encoder, w.tokenizer, false));
    int64_t at = 0;
    for (uint64_t i = 0; i < N_DOCUMENTS; i++) {
        cpl_text text = text_of(i);
        ids.count     = 0;
        assert_ok(cpl_encoder_append(encoder, &ids, text.bytes, text.length));
        for (int64_t k = 0; k <= ids.count; k++, at++) {
            const unsigned char *item = (const unsigned char *)got.bytes + 2 * at;
            int32_t want              = k < ids.count ? ids.at[k] : cpl_tokenizer_eos(w.tokenizer);
            assert_int_equal(item[0] + 256 * item[1], want);
        }
        cpl_text_free(&text);
    }
    assert_int_equal(at, made.tokens);
    cpl_encoder_free(encoder);
    cpl_ids_free(&ids);
    cpl_text_free(&got);
    close_world(&w);
}

/* Every allocation fails once, in other threads too: the call returns a sentence. */
TEST(runs_out_of_memory_in_words)
{
    world w;
    char folder[160];
    cpl_tokens_made made;
    cpl_status status = CPL_ERR_MEMORY;
    int n             = 1;
    open_world(&w);
    for (; status == CPL_ERR_MEMORY; n = n < 60 ? n + 1 : n + n / 3) {
        cpl_alloc_fail_at(n);
        status = make(&w, folder, 100 + n, 2, &made);
        cpl_alloc_fail_at(0);
        if (status != CPL_OK) assert_true(strlen(cpl_last_error()) > 0);
    }
    assert_ok(status);
    assert_true(n > 100);
    close_world(&w);
}

/* A process that may not start a second thread gets an error, before OpenMP ends it. */
TEST(runs_out_of_threads_in_words)
{
    world w;
    int ended = 0;
    open_world(&w);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char folder[160];
        cpl_tokens_made made;
        const struct rlimit one = {1, 1};
        if (geteuid() == 0 && setuid(65534) != 0) _exit(3); /* root has no limit */
        if (setrlimit(RLIMIT_NPROC, &one) != 0) _exit(4);
        const cpl_status status = make(&w, folder, 1, 3, &made);
        _exit(status == CPL_ERR_MEMORY && strstr(cpl_last_error(), "1 of 3 threads") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    close_world(&w);
}

TEST(refuses_in_words)
{
    world w;
    char folder[160], empty[160];
    cpl_tokens_made made;
    open_world(&w);
    w.settings.eos = 5000;
    assert_int_equal(make(&w, folder, 1, 1, &made), CPL_ERR_INPUT);
    w.settings.eos = CPL_UNSET;
    snprintf(empty, sizeof empty, "%s/e.jsonl", w.folder);
    write_string(empty, "{\"text\": \"  \"}\n");
    w.input = empty;
    assert_fails(CPL_ERR_INPUT, "the corpus is empty", make(&w, folder, 2, 1, &made));
    close_world(&w);
}
