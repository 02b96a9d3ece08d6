/* test_tokenizer_fuzz.c - damaged tokenizer files and failing allocations: always a status, never a
 * crash, a leak or an incomplete object. */
#include "check.h"

#include <jansson.h>

#include "base/arena.h"
#include "base/text.h"
#include "fuzz.h"
#include "io/file.h"
#include "tokenizer/tokenizer.h"

enum { DAMAGED = 2000, ALLOCATIONS = 5000 };

static const char text[] = "The wheel turns; cafe\xCC\x81 \xFF 100<|endoftext|>  water, "
                           "ababababababababababababababababababababababababababababababab.";

/* Encodes and decodes with any tokenizer that was loaded. */
static cpl_status use(const cpl_tokenizer *t)
{
    cpl_encoder *e    = NULL;
    cpl_ids ids       = {0};
    cpl_text back     = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_encoder_init(&e, t, false));
    CPL_TRY_DONE(cpl_encoder_append(e, &ids, text, strlen(text)));
    for (int64_t i = 0; i < ids.count; i++)
        assert_true(ids.at[i] >= 0 && ids.at[i] < cpl_tokenizer_vocab_size(t));
    CPL_TRY_DONE(cpl_tokenizer_decode(t, &back, ids.at, ids.count, false));
done:
    cpl_text_free(&back);
    cpl_ids_free(&ids);
    cpl_encoder_free(e);
    return status;
}

TEST(damaged_files_never_crash)
{
    char path[100];
    int64_t loaded = 0, refused = 0;
    cpl_text whole = {0}, file = {0};
    assert_ok(cpl_file_read(&whole, golden_path("tokenizers/small.json"), 1 << 20));
    snprintf(path, sizeof path, "%s/tokenizer.json", scratch_folder());
    for (fuzz f = fuzz_start(51, DAMAGED); fuzz_next(&f);) {
        cpl_tokenizer *t;
        fuzz_damage(&f, &file, &whole);
        fuzz_write(path, &file);
        if (cpl_tokenizer_load(&t, path) == CPL_OK) {
            if (loaded++ % 8 == 0) assert_ok(use(t));
            cpl_tokenizer_free(t);
        } else {
            refused++;
            assert_null(t);
            assert_true(strlen(cpl_last_error()) > 0);
        }
    }
    if (!fuzz_is_alone()) assert_true(loaded > 0 && refused > 0);
    cpl_text_free(&whole);
    cpl_text_free(&file);
}

/* Returns the small tokenizer with parts that few files have. */
static const char *file_with_rare_parts(void)
{
    static char path[100];
    if (path[0]) return path;
    json_t *root = json_load_file(golden_path("tokenizers/small.json"), 0, NULL);
    json_object_set_new(root, "truncation", json_object());
    json_object_set_new(root, "decoder", json_pack("{s:s}", "type", "WordPiece"));
    json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_true());
    snprintf(path, sizeof path, "%s/rare.json", scratch_folder());
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return path;
}

static cpl_status load_and_use(void)
{
    cpl_tokenizer *t;
    cpl_status status = cpl_tokenizer_load(&t, file_with_rare_parts());
    if (status == CPL_OK) status = use(t);
    cpl_tokenizer_free(t);
    return status;
}

static cpl_status train_and_write(void)
{
    static char path[100];
    cpl_bpe_settings settings = {.vocab_size = 270, .min_frequency = 1, .nfc = true};
    cpl_bpe_trainer *trainer  = NULL;
    cpl_log quiet             = {0};
    if (!path[0]) snprintf(path, sizeof path, "%s/trained.json", scratch_folder());
    cpl_status status = cpl_bpe_init(&trainer, &settings);
    if (status == CPL_OK) status = cpl_bpe_add(trainer, text, strlen(text));
    if (status == CPL_OK) status = cpl_bpe_train(trainer, &quiet);
    if (status == CPL_OK) status = cpl_bpe_write(trainer, path);
    cpl_bpe_free(trainer);
    return status;
}

/* Fails the first allocation, the second, ... until the work has no more of them. */
static void fail_each(cpl_status (*work)(void))
{
    int64_t before = cpl_alloc_count();
    assert_ok(work());
    int64_t needed = cpl_alloc_count() - before;
    assert_in_range(needed, 5, ALLOCATIONS);
    for (int64_t nth = 1; nth <= needed; nth++) {
        cpl_alloc_fail_at(nth);
        cpl_status status = work();
        cpl_alloc_fail_at(0);
        assert_int_equal(status, CPL_ERR_MEMORY);
        assert_true(strlen(cpl_last_error()) > 0);
    }
}

TEST(every_allocation_may_fail)
{
    (void)file_with_rare_parts();
    fail_each(load_and_use);
    fail_each(train_and_write);
}
