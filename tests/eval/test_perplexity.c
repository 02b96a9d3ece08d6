/* test_perplexity.c - losses of overlapping windows against single windows, totals by source. */
#include "eval/perplexity.h"

#include <math.h>

#include "infer/lm_batch.h"
#include "infer/reader_case.h"

typedef struct bench {
    cpl_reader reader;
    cpl_texts texts;
} bench;

static void open_bench(bench *b, const char *folder, const char *text, int64_t window,
                       int64_t stride)
{
    const cpl_reader_options o = {
        .window = window, .stride = stride, .batch_tokens = 90, .n_threads = 2};
    cpl_texts_options options = cpl_texts_defaults();
    assert_ok(cpl_reader_open(&b->reader, folder, &o, NULL));
    options.eos = b->reader.eos;
    assert_ok(cpl_texts_read(&b->texts, &text, 1, b->reader.tokenizer, &options, NULL));
}

static void close_bench(bench *b)
{
    cpl_texts_free(&b->texts);
    cpl_reader_close(&b->reader);
}

/* Returns the loss of a document: its first window, then `stride` more tokens at a time, each after
 * the window - stride tokens before them. */
static double asked_nll(bench *b, cpl_lm_batch *batch, int64_t document, int64_t window,
                        int64_t stride)
{
    int32_t ids[200];
    const int64_t all = b->texts.documents[document].predictions;
    double nll        = 0;
    for (int64_t at = 0, n; at < all; at += n) {
        n = at == 0 ? window : stride;
        if (n > all - at) n = all - at;
        int64_t first = at + n - window;
        if (first < 0) first = 0;
        if (stride == window) first = at;
        ids[0] = cpl_texts_input(&b->texts, document, first);
        for (int64_t k = first; k < at + n; k++)
            ids[k - first + 1] = cpl_texts_target(&b->texts, document, k);
        cpl_lm_request one = {ids, at + n - first + 1, n, 0};
        assert_ok(cpl_lm_batch_score(batch, &one, 1, NULL, NULL));
        nll -= one.log_prob;
    }
    return nll;
}

TEST(as_each_window_by_itself)
{
    static const int64_t sizes[][2] = {{20, 20}, {20, 7}, {20, 1}, {1, 1}, {33, 32}, {60, 10}};
    cpl_model_settings config       = reader_config();
    const char *folder = reader_folder(&config, 3), *text = reader_text(6);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bench b;
        cpl_perplexity p = {0};
        cpl_lm_batch batch;
        const int64_t window = sizes[i][0], stride = sizes[i][1];
        open_bench(&b, folder, text, window, stride);
        assert_ok(cpl_document_losses_measure(&p.losses, &b.reader, &b.texts));
        assert_int_equal(p.losses.window, window);
        assert_int_equal(p.losses.stride, stride);
        assert_ok(
            cpl_lm_batch_init(&batch, &b.reader.model, &(cpl_lm_batch_settings){.window = window}));
        for (int64_t d = 0; d < b.texts.n_documents; d++) {
            const double want = asked_nll(&b, &batch, d, window, stride);
            assert_near(p.losses.at[d].nll, want, 1e-4 * (1 + want));
            assert_int_equal(p.losses.at[d].tokens, b.texts.documents[d].predictions);
        }
        cpl_lm_batch_free(&batch);
        cpl_perplexity_free(&p);
        close_bench(&b);
    }
}

/* Every prediction is made once, in windows of the greatest possible length. */
TEST(windows_go_on_by_the_stride)
{
    cpl_model_settings config = reader_config();
    bench b;
    open_bench(&b, reader_folder(&config, 3), reader_text(30), 20, 0);
    assert_int_equal(b.reader.stride, 20);
    for (int64_t length = 1; length < 50; length += 7)
        for (int64_t stride = 1; stride <= length; stride += 1 + stride / 3) {
            int64_t count;
            cpl_window *windows;
            char *seen = calloc(1, (size_t)b.texts.n_predictions);
            assert_ok(cpl_texts_windows(&windows, &count, &b.texts, length, stride));
            for (int64_t i = 0; i < count; i++) {
                const cpl_window *w         = &windows[i];
                const cpl_texts_document *d = &b.texts.documents[w->document];
                assert_true(w->first >= 0 && w->first + w->length <= d->predictions);
                assert_true(w->overlap >= 0 && w->overlap < w->length && w->length <= length);
                if (w->first > 0 && stride < length) {
                    assert_int_equal(w->length, length);
                    assert_true(w->length - w->overlap <= stride);
                } else {
                    assert_int_equal(w->overlap, 0);
                }
                for (int64_t k = w->overlap; k < w->length; k++)
                    assert_int_equal(seen[d->place + w->first + k]++, 0);
            }
            for (int64_t i = 0; i < b.texts.n_predictions; i++) assert_int_equal(seen[i], 1);
            free(seen);
            cpl_free(windows);
        }
    close_bench(&b);
}

TEST(sums_by_source)
{
    cpl_model_settings config  = reader_config();
    const cpl_reader_options o = {.window = 16, .stride = 5, .n_threads = 1};
    cpl_texts_options options  = cpl_texts_defaults();
    cpl_perplexity p           = {0};
    const char *folder = reader_folder(&config, 5), *text = reader_text(7);
    assert_ok(cpl_document_losses_of(&p.losses, folder, &text, 1, &o, &options, NULL));
    assert_ok(cpl_perplexity_add_up(&p));
    assert_int_equal(p.n_rows, 3);
    assert_string_equal(p.rows[0].source, "one");
    assert_string_equal(p.rows[1].source, "two");
    assert_null(p.rows[2].source);
    double nll[3]     = {0};
    int64_t tokens[3] = {0}, bytes[3] = {0};
    for (int64_t i = 0; i < p.losses.count; i++) {
        const cpl_document_loss *d = &p.losses.at[i];
        for (int r = strcmp(d->source, "two") == 0; r < 3; r += 2 - (r == 1)) {
            nll[r] += d->nll;
            tokens[r] += d->tokens;
            bytes[r] += d->bytes;
        }
    }
    for (int r = 0; r < 3; r++) {
        const cpl_perplexity_row *row = &p.rows[r];
        assert_int_equal(row->documents, r < 2 ? 7 : 14);
        assert_int_equal(row->tokens, tokens[r]);
        assert_int_equal(row->bytes, bytes[r]);
        assert_near(row->nll, nll[r], 1e-9);
        assert_near(row->per_token, nll[r] / tokens[r], 1e-12);
        assert_near(row->value, exp(nll[r] / tokens[r]), 1e-6);
        assert_near(row->bits, nll[r] / log(2) / bytes[r], 1e-12);
    }
    json_t *json = cpl_perplexity_json(&p);
    const char *source;
    json_int_t stride;
    double perplexity;
    assert_int_equal(json_unpack(json, "{s:n, s:i, s:I, s:[{s:s, s:F}, {}, {s:n}]}", "step",
                                 "window", &(int){0}, "stride", &stride, "sources", "source",
                                 &source, "perplexity", &perplexity, "source"),
                     0);
    assert_int_equal(stride, 5);
    assert_string_equal(source, "one");
    assert_near(perplexity, p.rows[0].value, 1e-9);
    json_decref(json);
    cpl_perplexity_free(&p);
}

TEST(refusals)
{
    cpl_model_settings config = reader_config();
    cpl_reader reader;
    cpl_reader_options o = {.window = 16, .stride = 17};
    const char *folder   = reader_folder(&config, 5);
    assert_fails(CPL_ERR_INPUT, "a stride of 17 tokens is not between 1 and the window of 16",
                 cpl_reader_open(&reader, folder, &o, NULL));
    o.stride = -1;
    assert_fails(CPL_ERR_INPUT, "a stride of -1", cpl_reader_open(&reader, folder, &o, NULL));
}

TEST(no_memory)
{
    cpl_model_settings config = reader_config();
    bench b;
    cpl_perplexity p = {0};
    open_bench(&b, reader_folder(&config, 5), reader_text(2), 16, 4);
    assert_ok(cpl_reader_load(&b.reader));
    for (int64_t nth = 1;; nth++) {
        cpl_alloc_fail_at(nth);
        cpl_status status = cpl_document_losses_measure(&p.losses, &b.reader, &b.texts);
        if (status == CPL_OK) status = cpl_perplexity_add_up(&p);
        cpl_alloc_fail_at(0);
        if (status == CPL_OK) {
            assert_true(nth > 8);
            break;
        }
        assert_int_equal(status, CPL_ERR_MEMORY);
        assert_null(p.rows);
        cpl_perplexity_free(&p);
    }
    cpl_perplexity_free(&p);
    close_bench(&b);
}
