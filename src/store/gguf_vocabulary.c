/* gguf_vocabulary.c - writes a tokenizer as metadata of a GGUF file, see gguf_export.h. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/file.h"
#include "io/json.h"
#include "store/internal.h"
#include "tokenizer/listing.h"

enum { LONGEST_TEMPLATE = 1 << 20 }; /* bytes */

#define KEY_TEMPLATE "tokenizer.chat_template"

/* Values of tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5 };

static int32_t type_of(cpl_token_kind kind)
{
    static const int32_t types[] = {[CPL_TOKEN_ABSENT]  = TYPE_UNUSED,
                                    [CPL_TOKEN_NORMAL]  = TYPE_NORMAL,
                                    [CPL_TOKEN_ADDED]   = TYPE_USER_DEFINED,
                                    [CPL_TOKEN_SPECIAL] = TYPE_CONTROL};
    return types[kind];
}

/* Returns llama.cpp's name of the pre-tokenizer, from src/llama-vocab.cpp. The name depends on the
 * pattern only. llama.cpp's two names of GPT-2's pattern are equivalent. */
static const char *pre_of(cpl_tokenizer_traits traits)
{
    if (traits.split == CPL_SPLIT_DOLMA2) return "dbrx";
    return traits.nfc ? "olmo" : "gpt-2";
}

/* ---- tokens ---- */

/* Appends the texts of all rows, each with a NUL. */
static cpl_status spell_all(cpl_text *out, const cpl_tokenizer *t, int64_t rows)
{
    for (int64_t id = 0; id < rows; id++) {
        if (cpl_tokenizer_kind_of(t, id) == CPL_TOKEN_ABSENT)
            cpl_text_printf(out, "[PAD%lld]", (long long)id);
        else
            cpl_tokenizer_spell(out, t, id);
        cpl_text_char(out, '\0');
    }
    return cpl_text_status(out);
}

/* Checks that texts of tokens differ and contain no NUL: llama.cpp fails an assertion otherwise. */
static cpl_status check_unique(const cpl_text *texts, int64_t rows, const char *folder)
{
    cpl_status status = CPL_OK;
    const char *text = texts->bytes, *end = texts->bytes + texts->length;
    const char **all = cpl_alloc((size_t)rows * sizeof *all);
    if (!all) return CPL_ERR_MEMORY;
    for (int64_t id = 0; id < rows; id++, text += strlen(text) + 1) all[id] = text;
    if (text != end)
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: a token of the tokenizer has a NUL in it", folder);
    qsort((void *)all, (size_t)rows, sizeof *all, cpl_order_strings);
    for (int64_t i = 1; i < rows && status == CPL_OK; i++)
        if (strcmp(all[i - 1], all[i]) == 0)
            status = CPL_FAIL(CPL_ERR_INPUT,
                              "%s: two tokens of the tokenizer have the text \"%.100s\", which "
                              "llama.cpp does not allow",
                              folder, all[i]);
    cpl_free((void *)all);
    return status;
}

static cpl_status put_tokens(cpl_gguf_writer *w, const cpl_tokenizer *t, int64_t rows,
                             const char *folder)
{
    cpl_text texts    = {0};
    cpl_status status = spell_all(&texts, t, rows);
    if (status == CPL_OK) status = check_unique(&texts, rows, folder);
    if (status == CPL_OK) {
        cpl_gguf_writer_array(w, "tokenizer.ggml.tokens", CPL_GGUF_STRING, rows);
        const char *text = texts.bytes;
        for (int64_t id = 0; id < rows; id++, text += strlen(text) + 1)
            cpl_gguf_writer_add_string(w, text, strlen(text));
        cpl_gguf_writer_array(w, "tokenizer.ggml.token_type", CPL_GGUF_I32, rows);
        for (int64_t id = 0; id < rows; id++)
            cpl_gguf_writer_add_i32(w, type_of(cpl_tokenizer_kind_of(t, id)));
    }
    cpl_text_free(&texts);
    return status;
}

/* ---- merges ---- */

/* Writes "left right". Refuses parts with a space (added tokens), since llama.cpp splits at it. */
static cpl_status spell_merge(cpl_text *out, const cpl_tokenizer *t, cpl_token_pair merge,
                              const char *folder)
{
    cpl_text_clear(out);
    cpl_tokenizer_spell(out, t, merge.left);
    const size_t left = out->length;
    cpl_text_char(out, ' ');
    cpl_tokenizer_spell(out, t, merge.right);
    CPL_TRY(cpl_text_status(out));
    if (memchr(out->bytes, ' ', left) || memchr(out->bytes + left + 1, ' ', out->length - left - 1))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: merge %d of the tokenizer, \"%.100s\", joins a token with a space in "
                        "its text, which a GGUF file cannot represent",
                        folder, merge.rank, out->bytes);
    return CPL_OK;
}

static cpl_status put_merges(cpl_gguf_writer *w, const cpl_tokenizer *t, const char *folder)
{
    cpl_text text          = {0};
    cpl_token_pair *merges = NULL;
    cpl_status status      = CPL_OK;
    int64_t count          = 0;
    CPL_TRY_DONE(cpl_tokenizer_list_merges(&merges, &count, t));
    cpl_gguf_writer_array(w, "tokenizer.ggml.merges", CPL_GGUF_STRING, count);
    for (int64_t i = 0; i < count; i++) {
        CPL_TRY_DONE(spell_merge(&text, t, merges[i], folder));
        cpl_gguf_writer_add_string(w, text.bytes, text.length);
    }
done:
    cpl_text_free(&text);
    cpl_free(merges);
    return status;
}

/* ---- ids ---- */

static void put_id(cpl_gguf_writer *w, const char *key, int64_t id, int64_t rows)
{
    if (id >= 0 && id < rows) cpl_gguf_writer_u32(w, key, id);
}

/* Writes the ids of special tokens. Without these keys llama.cpp uses GPT-2's id 11. */
static void put_ids(cpl_gguf_writer *w, const cpl_tokenizer *t, int64_t rows,
                    const cpl_hf_tokens *tokens, const cpl_log *log)
{
    const int64_t eos = tokens->eos >= 0 ? tokens->eos : cpl_tokenizer_eos(t);
    if (eos < 0 || eos >= rows)
        cpl_log_warn(
            log,
            "no end-of-text id of the model is among its %lld rows: llama.cpp will take id "
            "11 for it",
            (long long)rows);
    put_id(w, "tokenizer.ggml.bos_token_id", tokens->bos, rows);
    put_id(w, "tokenizer.ggml.eos_token_id", eos, rows);
    put_id(w, "tokenizer.ggml.padding_token_id", tokens->pad, rows);
    if (tokens->n_extra_eos) put_id(w, "tokenizer.ggml.eot_token_id", tokens->extra_eos[0], rows);
    if (tokens->n_extra_eos > 1)
        cpl_log_warn(log,
                     "the model names %lld end-of-text ids: a GGUF file has places for two, the "
                     "others do not end a text in llama.cpp",
                     (long long)tokens->n_extra_eos + 1);
    cpl_gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    cpl_gguf_writer_bool(w, "tokenizer.ggml.add_eos_token", false);
}

/* ---- the chat template ---- */

static cpl_status put_template_file(cpl_gguf_writer *w, const char *path, const cpl_log *log)
{
    cpl_text text     = {0};
    cpl_status status = cpl_file_read(&text, path, LONGEST_TEMPLATE);
    if (status == CPL_OK && text.length > 0) {
        if (cpl_utf8_is(text.bytes, text.length) && strlen(text.bytes) == text.length)
            cpl_gguf_writer_string(w, KEY_TEMPLATE, text.bytes);
        else
            cpl_log_warn(log, "%s: is no UTF-8, or has a NUL: the file has no chat template", path);
    }
    cpl_text_free(&text);
    return status;
}

/* Returns the template named "default" in a list of {"name": ..., "template": ...}, or NULL. */
static const char *default_of(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *name  = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(one, "template"));
    }
    return NULL;
}

static cpl_status put_template_of(cpl_gguf_writer *w, const char *path, const cpl_log *log)
{
    json_t *config = NULL;
    CPL_TRY(cpl_json_load(&config, path));
    const json_t *given = json_object_get(config, "chat_template");
    const char *text    = json_is_array(given) ? default_of(given) : json_string_value(given);
    if (text)
        cpl_gguf_writer_string(w, KEY_TEMPLATE, text);
    else if (given && !json_is_null(given))
        cpl_log_warn(
            log,
            "%s: chat_template is neither a text nor a list with one named \"default\": the "
            "file has no chat template",
            path);
    if (text && json_array_size(given) > 1)
        cpl_log_warn(log, "%s: of %zu chat templates the file has the one named \"default\"", path,
                     json_array_size(given));
    json_decref(config);
    return CPL_OK;
}

/* Writes the template of chat_template.jinja or else of tokenizer_config.json, as Transformers
 * does. Most models have no template. */
static cpl_status put_template(cpl_gguf_writer *w, const char *folder, const cpl_log *log)
{
    char *file        = cpl_path_join(folder, "chat_template.jinja");
    char *config      = cpl_path_join(folder, "tokenizer_config.json");
    cpl_status status = file && config ? CPL_OK : CPL_ERR_MEMORY;
    if (status == CPL_OK && cpl_path_exists(file))
        status = put_template_file(w, file, log);
    else if (status == CPL_OK && cpl_path_exists(config))
        status = put_template_of(w, config, log);
    cpl_free(file);
    cpl_free(config);
    return status;
}

cpl_status cpl_gguf_vocabulary_put(cpl_gguf_writer *w, const cpl_tokenizer *t, const cpl_hf *hf,
                                   const cpl_log *log)
{
    const int64_t rows                = cpl_hf_config(hf)->vocab_size;
    const char *const folder          = cpl_hf_folder(hf);
    const cpl_tokenizer_traits traits = cpl_tokenizer_traits_of(t);
    if (traits.prefix_space)
        return CPL_FAIL(CPL_ERR_INPUT,
                        "%s: the tokenizer puts a space before a text (add_prefix_space), and "
                        "llama.cpp has no pre-tokenizer of this kind that does",
                        folder);
    cpl_gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    cpl_gguf_writer_string(w, "tokenizer.ggml.pre", pre_of(traits));
    CPL_TRY(put_tokens(w, t, rows, folder));
    CPL_TRY(put_merges(w, t, folder));
    put_ids(w, t, rows, cpl_hf_tokens_of(hf), log);
    CPL_TRY(put_template(w, folder, log));
    if (traits.nfc)
        cpl_log_warn(log, "the tokenizer converts texts to NFC, which llama.cpp does not: give it "
                          "texts that are NFC already, as most are");
    return CPL_OK;
}
