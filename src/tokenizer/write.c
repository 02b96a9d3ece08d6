/* write.c - a trained tokenizer as tokenizer.json (see tokenizer.h). */
#include "io/file.h"
#include "tokenizer/internal.h"
#include "tokenizer/train.h"

/* A token as a file spells it: the content of a special one, else its bytes in the byte-level
 * alphabet; with the two characters escaped that JSON asks for (the alphabet has no controls). */
static void append_name(cpl_text *out, const cpl_bpe_trainer *trainer, int32_t id,
                        const uint32_t point_of[256])
{
    const cpl_tally_entry *entry = trainer->tokens.at + id;
    const char *bytes            = trainer->tokens.bytes.bytes + entry->start;
    for (size_t i = 0; i < entry->length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        char utf8[4];
        if (byte == '"' || byte == '\\') cpl_text_char(out, '\\');
        cpl_text_append(out, utf8, (size_t)cpl_utf8_encode(point_of[byte], utf8));
    }
}

static void append_added(cpl_text *out, const cpl_bpe_trainer *trainer,
                         const uint32_t point_of[256])
{
    for (int32_t id = 0; id < CPL_BPE_SPECIALS; id++) {
        cpl_text_printf(out, "%s\n    {\"id\": %d, \"content\": \"", id ? "," : "", id);
        append_name(out, trainer, id, point_of);
        cpl_text_printf(out, "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                             "\"normalized\": false, \"special\": true}");
    }
}

static void append_vocab(cpl_text *out, const cpl_bpe_trainer *trainer,
                         const uint32_t point_of[256])
{
    for (uint32_t id = 0; id < trainer->tokens.count; id++) {
        cpl_text_printf(out, "%s\n      \"", id ? "," : "");
        append_name(out, trainer, (int32_t)id, point_of);
        cpl_text_printf(out, "\": %u", id);
    }
}

static void append_merges(cpl_text *out, const cpl_bpe_trainer *trainer,
                          const uint32_t point_of[256])
{
    for (size_t i = 0; i < trainer->n_merges; i++) {
        cpl_text_printf(out, "%s\n      \"", i ? "," : "");
        append_name(out, trainer, trainer->merges[i].left, point_of);
        cpl_text_char(out, ' ');
        append_name(out, trainer, trainer->merges[i].right, point_of);
        cpl_text_char(out, '"');
    }
}

static void append_json(cpl_text *out, const cpl_bpe_trainer *trainer)
{
    static const char byte_level[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": true}";
    uint32_t point_of[256];
    cpl_alphabet_points(point_of);
    cpl_text_printf(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
                         "  \"padding\": null,\n  \"added_tokens\": [");
    append_added(out, trainer, point_of);
    cpl_text_printf(out, "\n  ],\n  \"normalizer\": %s,\n",
                    trainer->settings.nfc ? "{\"type\": \"NFC\"}" : "null");
    cpl_text_printf(out,
                    "  \"pre_tokenizer\": %s,\n  \"post_processor\": %s,\n  \"decoder\": %s,\n",
                    byte_level, byte_level, byte_level);
    cpl_text_printf(out, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
                         "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
                         "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
                         "    \"byte_fallback\": false,\n    \"vocab\": {");
    append_vocab(out, trainer, point_of);
    cpl_text_printf(out, "\n    },\n    \"merges\": [");
    append_merges(out, trainer, point_of);
    cpl_text_printf(out, "\n    ]\n  }\n}\n");
}

cpl_status cpl_bpe_write(const cpl_bpe_trainer *trainer, const char *path)
{
    cpl_text json = {0};
    append_json(&json, trainer);
    cpl_status status = cpl_text_status(&json);
    if (status == CPL_OK) status = cpl_file_write_atomic(path, json.bytes, json.length);
    cpl_text_free(&json);
    return status;
}
