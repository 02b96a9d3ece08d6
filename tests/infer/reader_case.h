/* reader_case.h - small models on disk with a tokenizer, and texts of invented words, for the tests
 * of readers of text. */
#ifndef CPL_TESTS_INFER_READER_CASE_H
#define CPL_TESTS_INFER_READER_CASE_H

#include "infer/reader.h"
#include "store/hf.h"
#include "store/model_case.h"

enum { READER_VOCAB = 384 }; /* tokens of golden/tokenizers/small.json, whose <eos> is 0 */

static inline cpl_model_settings reader_config(void)
{
    cpl_model_settings c = small_config();
    c.vocab_size         = READER_VOCAB;
    c.init_std           = 0.3;
    return c;
}

/* Writes the model as an OLMoE directory. With `eos` -1 the directory names no <eos>. */
static inline void reader_save(const char *folder, model_case *m, int64_t eos, bool tokenizer)
{
    cpl_hf_tokens tokens = {.pad = 1, .bos = -1, .eos = eos};
    assert_ok(cpl_hf_save(folder, &m->model, &tokens,
                          tokenizer ? golden_path("tokenizers/small.json") : NULL));
}

static inline const char *reader_folder(const cpl_model_settings *config, uint64_t seed)
{
    const char *folder = scratch_folder();
    model_case *m      = model_drawn(config, seed);
    reader_save(folder, m, 0, true);
    model_gone(m);
    return folder;
}

/* Appends `count` documents of the source `name`, of 1 to 40 words, as JSON lines to `text`. */
static inline void reader_documents(cpl_text *text, const char *name, int count, uint64_t seed)
{
    static const char *const words[] = {"the", "cat",  "sat",  "on",   "a",    "mat",
                                        "and", "then", "ran",  "far",  "away", "from",
                                        "its", "own",  "tail", "again"};
    cpl_rng_key key                  = {.seed = seed, .stream = CPL_STREAM_TEST};
    uint64_t at                      = 0;
    for (int i = 0; i < count; i++) {
        int length = 1 + (int)(cpl_rng_u32(&key, at++) % 40);
        cpl_text_printf(text, "{\"id\": \"%s%d\", \"source\": \"%s\", \"text\": \"", name, i, name);
        for (int k = 0; k < length; k++)
            cpl_text_printf(text, "%s%s", k ? " " : "", words[cpl_rng_u32(&key, at++) % 16]);
        cpl_text_printf(text, "\"}\n");
    }
}

/* Writes a file of two sources, "one" and "two", and returns its path. */
static inline const char *reader_text(int count)
{
    cpl_text text    = {0};
    const char *path = in_folder(scratch_folder(), "docs.jsonl");
    reader_documents(&text, "one", count, 1);
    reader_documents(&text, "two", count, 2);
    write_string(path, text.bytes);
    cpl_text_free(&text);
    return path;
}

#endif /* CPL_TESTS_INFER_READER_CASE_H */
