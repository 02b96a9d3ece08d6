/* test_document_loss.c - documents cut into windows, and their losses: the same in any batch and in
 * a single forward pass a document. Limits and bad input are tested too. */
#include "infer/document_loss.h"

#include <float.h>

#include "infer/reader_case.h"
#include "io/json.h"
#include "parallel/threads.h"
#include "support/plain_pass.h"

/* ---- texts ---- */

static cpl_tokenizer *tokenizer(void)
{
    cpl_tokenizer *t = NULL;
    assert_ok(cpl_tokenizer_load(&t, golden_path("tokenizers/small.json")));
    return t;
}

static cpl_texts read_texts(const char *path, const cpl_texts_options *options)
{
    cpl_texts texts;
    cpl_tokenizer *t = tokenizer();
    assert_ok(cpl_texts_read(&texts, &path, 1, t, options, NULL));
    cpl_tokenizer_free(t);
    return texts;
}

/* The text of one document is encoded as a whole. Its first token comes behind <eos>. */
TEST(a_document_begins_behind_eos)
{
    const char *path = in_folder(scratch_folder(), "a.txt");
    write_string(path, "the cat sat on the mat");
    cpl_texts_options options = cpl_texts_defaults();
    cpl_tokenizer *t          = tokenizer();
    cpl_encoder *encoder      = NULL;
    cpl_ids ids               = {0};
    assert_ok(cpl_encoder_init(&encoder, t, false));
    assert_ok(cpl_encoder_append(encoder, &ids, "the cat sat on the mat", 22));
    for (int64_t eos = -1; eos < 1; eos++) {
        options.eos     = eos;
        cpl_texts texts = read_texts(path, &options);
        assert_int_equal(texts.n_documents, 1);
        assert_int_equal(texts.documents[0].bytes, 22);
        assert_int_equal(texts.n_predictions, eos < 0 ? ids.count - 1 : ids.count);
        for (int64_t k = 0; k < texts.n_predictions; k++) {
            int64_t at = eos < 0 ? k + 1 : k;
            assert_int_equal(cpl_texts_target(&texts, 0, k), ids.at[at]);
            assert_int_equal(cpl_texts_input(&texts, 0, k), at ? ids.at[at - 1] : eos);
        }
        cpl_texts_free(&texts);
    }
    cpl_ids_free(&ids);
    cpl_encoder_free(encoder);
    cpl_tokenizer_free(t);
}

/* Every prediction stands in exactly one window, and no window is longer than asked. */
TEST(windows_cover_everything_once)
{
    cpl_texts_options options = cpl_texts_defaults();
    options.eos               = 0;
    cpl_texts texts           = read_texts(reader_text(30), &options);
    assert_int_equal(texts.n_documents, 60);
    assert_int_equal(texts.sources.count, 2);
    for (int64_t length = 1; length < 60; length += 7) {
        int64_t count, before = length;
        cpl_window *windows;
        char *seen = calloc(1, (size_t)texts.n_predictions);
        assert_ok(cpl_texts_windows(&windows, &count, &texts, length, length));
        for (int64_t i = 0; i < count; i++) {
            const cpl_texts_document *d = &texts.documents[windows[i].document];
            assert_true(windows[i].length >= 1 && windows[i].length <= before);
            assert_true(windows[i].first + windows[i].length <= d->predictions);
            assert_int_equal(windows[i].first % length, 0);
            before = windows[i].length;
            for (int64_t k = 0; k < windows[i].length; k++)
                assert_int_equal(seen[d->place + windows[i].first + k]++, 0);
        }
        for (int64_t i = 0; i < texts.n_predictions; i++) assert_int_equal(seen[i], 1);
        free(seen);
        cpl_free(windows);
    }
    cpl_texts_free(&texts);
}

static int64_t predictions_of(const cpl_texts *texts, int64_t source)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < texts->n_documents; i++)
        if (texts->documents[i].source == source) sum += texts->documents[i].predictions;
    return sum;
}

/* Every source has an even share of a budget. A small source leaves its rest to the others. */
TEST(a_budget_is_shared_evenly)
{
    cpl_text text             = {0};
    const char *path          = in_folder(scratch_folder(), "docs.jsonl");
    cpl_texts_options options = cpl_texts_defaults();
    reader_documents(&text, "one", 40, 1);
    reader_documents(&text, "small", 1, 4);
    reader_documents(&text, "two", 40, 2);
    write_string(path, text.bytes);
    cpl_text_free(&text);
    options.eos        = 0;
    cpl_texts all      = read_texts(path, &options);
    int64_t small      = predictions_of(&all, 1);
    options.max_tokens = 2 * small + 301;
    cpl_texts some     = read_texts(path, &options);
    assert_int_equal(some.n_predictions, options.max_tokens);
    assert_int_equal(predictions_of(&some, 1), small);
    assert_int_equal(predictions_of(&some, 0), (options.max_tokens - small) / 2);
    for (int64_t i = 1; i < some.n_documents; i++)
        assert_int_equal(some.documents[i].place,
                         some.documents[i - 1].place + some.documents[i - 1].predictions);
    for (int64_t k = 0; k < some.documents[0].predictions; k++)
        assert_int_equal(cpl_texts_target(&some, 0, k), cpl_texts_target(&all, 0, k));
    options.max_tokens = all.n_predictions + 5;
    cpl_texts whole    = read_texts(path, &options);
    assert_int_equal(whole.n_predictions, all.n_predictions);
    cpl_texts_free(&all);
    cpl_texts_free(&some);
    cpl_texts_free(&whole);
}

TEST(documents_of_a_source_can_be_limited)
{
    cpl_texts_options options = cpl_texts_defaults();
    options.eos               = 0;
    options.max_documents     = 3;
    cpl_texts texts           = read_texts(reader_text(10), &options);
    static const char *want[] = {"one0", "one1", "one2", "two0", "two1", "two2"};
    assert_int_equal(texts.n_documents, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(texts.documents[i].id, want[i]);
    cpl_texts_free(&texts);
}

/* ---- losses ---- */

static cpl_document_losses losses_of(const char *folder, const char *path,
                                     cpl_reader_options reading)
{
    cpl_document_losses losses;
    cpl_texts_options options = cpl_texts_defaults();
    assert_ok(cpl_document_losses_of(&losses, folder, &path, 1, &reading, &options, NULL));
    return losses;
}

/* Returns the sum of -ln p of a window's predictions, in double, from a pass of it alone. */
static double plain_nll(model_case *m, const int32_t *ids, const int32_t *target, int64_t count)
{
    const int64_t vocab = m->model.config.vocab_size;
    float *logits       = plain_logits(&m->model, ids, count);
    double nll          = 0;
    for (int64_t t = 0; t < count; t++) {
        double sum = 0;
        for (int64_t v = 0; v < vocab; v++) sum += exp((double)logits[t * vocab + v]);
        nll += log(sum) - (double)logits[t * vocab + target[t]];
    }
    free(logits);
    return nll;
}

static double plain_document(model_case *m, const cpl_texts *texts, int64_t document,
                             int64_t window)
{
    double nll = 0;
    int32_t ids[64], target[64];
    assert_true(window <= 64);
    for (int64_t at = 0, all = texts->documents[document].predictions; at < all; at += window) {
        int64_t count = all - at < window ? all - at : window;
        for (int64_t k = 0; k < count; k++) {
            ids[k]    = cpl_texts_input(texts, document, at + k);
            target[k] = cpl_texts_target(texts, document, at + k);
        }
        nll += plain_nll(m, ids, target, count);
    }
    return nll;
}

/* Compares losses within the rounding of sums: c eps (ln V + nll of a token) a token. */
static void assert_same_loss(const cpl_document_loss *got, double want)
{
    assert_near(got->nll, want, 64 * (double)FLT_EPSILON * (want + 6 * (double)got->tokens));
}

TEST(losses_are_those_of_one_document_at_a_time)
{
    cpl_model_settings c = reader_config();
    model_case *m        = model_empty(&c, 32);
    const char *folder = reader_folder(&c, 5), *path = reader_text(12);
    cpl_texts_options options = cpl_texts_defaults();
    cpl_hf *hf                = NULL;
    options.eos               = 0;
    cpl_texts texts           = read_texts(path, &options);
    assert_ok(cpl_hf_open(&hf, folder, NULL));
    assert_ok(cpl_hf_load(hf, &m->model));
    cpl_document_losses losses =
        losses_of(folder, path, (cpl_reader_options){.window = 32, .n_threads = 2});
    assert_int_equal(losses.count, 24);
    assert_int_equal(losses.step, -1);
    assert_int_equal(losses.window, 32);
    for (int64_t i = 0; i < losses.count; i++) {
        assert_string_equal(losses.at[i].id, texts.documents[i].id);
        assert_string_equal(losses.at[i].source, i < 12 ? "one" : "two");
        assert_int_equal(losses.at[i].bytes, texts.documents[i].bytes);
        assert_int_equal(losses.at[i].tokens, texts.documents[i].predictions);
        assert_same_loss(&losses.at[i], plain_document(m, &texts, i, 32));
    }
    cpl_document_losses_free(&losses);
    cpl_texts_free(&texts);
    cpl_hf_close(hf);
    model_gone(m);
}

TEST(batches_do_not_matter)
{
    static const int64_t batches[] = {1, 33, 100, 4096};
    cpl_model_settings c           = reader_config();
    const char *folder = reader_folder(&c, 6), *path = reader_text(20);
    cpl_reader_options reading = {.window = 24, .batch_tokens = 24, .n_threads = 1};
    cpl_document_losses alone  = losses_of(folder, path, reading);
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        reading.batch_tokens     = batches[b];
        cpl_document_losses many = losses_of(folder, path, reading);
        for (int64_t i = 0; i < alone.count; i++) assert_same_loss(&many.at[i], alone.at[i].nll);
        cpl_document_losses_free(&many);
    }
    cpl_document_losses_free(&alone);
}

/* ---- files ---- */

TEST(written)
{
    char web[] = "web", a[] = "a", quoted[] = "b\"c", line[] = "docs/x.jsonl:7";
    cpl_document_loss all[]    = {{web, a, 10, 3, 7.0 / 3}, {quoted, line, 1, 1, 0.25}};
    cpl_document_losses losses = {.step = 500, .window = 64, .at = all, .count = 2};
    const char *path           = in_folder(scratch_folder(), "documents.json");
    json_t *file;
    assert_ok(cpl_document_losses_write(&losses, path));
    assert_ok(cpl_json_load(&file, path));
    assert_int_equal(json_integer_value(json_object_get(file, "step")), 500);
    assert_int_equal(json_integer_value(json_object_get(file, "window")), 64);
    const json_t *documents = json_object_get(file, "documents");
    assert_int_equal(json_array_size(documents), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *d = json_array_get(documents, i);
        assert_string_equal(json_string_value(json_object_get(d, "source")), all[i].source);
        assert_string_equal(json_string_value(json_object_get(d, "id")), all[i].id);
        assert_int_equal(json_integer_value(json_object_get(d, "bytes")), all[i].bytes);
        assert_int_equal(json_integer_value(json_object_get(d, "tokens")), all[i].tokens);
        assert_true(json_number_value(json_object_get(d, "nll")) == all[i].nll);
    }
    json_decref(file);
    losses.step = -1;
    assert_ok(cpl_document_losses_write(&losses, path));
    assert_ok(cpl_json_load(&file, path));
    assert_true(json_is_null(json_object_get(file, "step")));
    json_decref(file);
}

TEST(bad_input_has_sentences)
{
    cpl_model_settings c = reader_config();
    const char *folder = reader_folder(&c, 5), *bare = scratch_folder(), *few;
    const char *path = reader_text(2), *blank = in_folder(scratch_folder(), "blank.txt");
    const char *missing       = "/nowhere/at/all.jsonl";
    cpl_texts_options options = cpl_texts_defaults();
    cpl_reader_options usual = {.n_threads = 1}, wide = {.window = 65, .n_threads = 1};
    cpl_document_losses l;
    model_case *m = model_drawn(&c, 1);
    reader_save(bare, m, 0, false);
    assert_fails(CPL_ERR_INPUT, "has no tokenizer.json",
                 cpl_document_losses_of(&l, bare, &path, 1, &usual, &options, NULL));
    assert_fails(CPL_ERR_INPUT, "context of 64",
                 cpl_document_losses_of(&l, folder, &path, 1, &wide, &options, NULL));
    write_string(blank, " \n ");
    assert_fails(CPL_ERR_INPUT, "no text in the 1 file",
                 cpl_document_losses_of(&l, folder, &blank, 1, &usual, &options, NULL));
    assert_int_not_equal(cpl_document_losses_of(&l, folder, &missing, 1, &usual, &options, NULL),
                         CPL_OK);
    assert_non_null(strstr(cpl_last_error(), missing));
    m->be.ops->fill(&m->be, cpl_tensor_range(m->model.master.norm, 0, 1), NAN);
    reader_save(bare, m, 0, true);
    assert_fails(CPL_ERR_INPUT, "is not finite",
                 cpl_document_losses_of(&l, bare, &path, 1, &usual, &options, NULL));
    model_gone(m);
    c.vocab_size = 100;
    few          = reader_folder(&c, 5);
    assert_fails(CPL_ERR_INPUT, "ids up to 383",
                 cpl_document_losses_of(&l, few, &path, 1, &usual, &options, NULL));
}

/* The text has one token, and no <eos> from which the token is predicted. */
TEST(a_single_token_needs_an_eos)
{
    const char *path          = in_folder(scratch_folder(), "a.txt");
    cpl_texts_options options = cpl_texts_defaults();
    cpl_tokenizer *t          = tokenizer();
    cpl_texts texts;
    write_string(path, "a");
    assert_fails(CPL_ERR_INPUT, "no document has a token to predict",
                 cpl_texts_read(&texts, &path, 1, t, &options, NULL));
    options.eos = 0;
    assert_ok(cpl_texts_read(&texts, &path, 1, t, &options, NULL));
    assert_int_equal(texts.n_predictions, 1);
    cpl_texts_free(&texts);
    cpl_tokenizer_free(t);
}

/* ---- several ranks ---- */

enum { MOST_RANKS = 5 };

/* One rank, run as a thread. */
typedef struct rank {
    const char *folder, *path;
    cpl_document_losses losses;
    cpl_status status;
} rank;

/* Options with windows and batches so short that a document is in several batches. */
static const cpl_reader_options short_batches = {
    .window = 5, .stride = 3, .batch_tokens = 40, .n_threads = 1};

static void run_rank(void *context, cpl_group *world)
{
    rank *r                    = context;
    cpl_reader_options reading = short_batches;
    cpl_texts_options options  = cpl_texts_defaults();
    reading.group              = world;
    r->status =
        cpl_document_losses_of(&r->losses, r->folder, &r->path, 1, &reading, &options, NULL);
}

/* Losses of several ranks equal the losses of one process to the bit. */
TEST(ranks_do_not_matter)
{
    static const int sizes[] = {2, 3, MOST_RANKS};
    cpl_model_settings c     = reader_config();
    const char *folder = reader_folder(&c, 7), *path = reader_text(20);
    cpl_document_losses single = losses_of(folder, path, short_batches);
    for (int s = 0; s < 3; s++) {
        rank r[MOST_RANKS];
        for (int i = 0; i < sizes[s]; i++) r[i] = (rank){.folder = folder, .path = path};
        cpl_thread_ranks_run(sizes[s], run_rank, r, sizeof *r);
        for (int i = 0; i < sizes[s]; i++) {
            assert_int_equal(r[i].status, CPL_OK);
            assert_int_equal(r[i].losses.count, single.count);
            for (int64_t d = 0; d < single.count; d++)
                assert_true(r[i].losses.at[d].nll == single.at[d].nll);
            cpl_document_losses_free(&r[i].losses);
        }
    }
    cpl_document_losses_free(&single);
}
