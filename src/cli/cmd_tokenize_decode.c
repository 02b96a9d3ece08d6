/* cmd_tokenize_decode.c - couplet tokenize decode: ids on the standard input into their text. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/flags.h"
#include "cli/terminal/input.h"
#include "cli/terminal/output.h"
#include "tokenizer/tokenizer.h"

enum { MOST_INPUT_BYTES = 0x7fffffff, LARGEST_ID = 0x7fffffff };

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

static cpl_status no_id(const cpl_text *text, size_t at)
{
    size_t end = at;
    while (end < text->length && !is_blank(text->bytes[end]) && end - at < 40) end++;
    return CPL_FAIL(CPL_ERR_INPUT, "the standard input, byte %zu: \"%.*s\" is no token id", at + 1,
                    (int)(end - at), text->bytes + at);
}

/* Reads the number at *at, which stands before a blank or the end. */
static cpl_status read_id(const cpl_text *text, size_t *at, int32_t *id)
{
    size_t begin  = *at;
    int64_t value = 0;
    while (*at < text->length && !is_blank(text->bytes[*at])) {
        char c = text->bytes[*at];
        if (c < '0' || c > '9') return no_id(text, begin);
        value = 10 * value + (c - '0');
        if (value > LARGEST_ID) return no_id(text, begin);
        ++*at;
    }
    *id = (int32_t)value;
    return CPL_OK;
}

/* `ids` has room for one id in two bytes. */
static cpl_status read_ids(cpl_ids *ids, const cpl_text *text)
{
    for (size_t at = 0; at < text->length;) {
        if (is_blank(text->bytes[at])) {
            at++;
            continue;
        }
        CPL_TRY(read_id(text, &at, &ids->at[ids->count]));
        ids->count++;
    }
    return CPL_OK;
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_tokenizer *tokenizer = NULL;
    cpl_text text = {0}, out = {0};
    cpl_ids ids       = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_tokenizer_load_given(&tokenizer, cpl_flag_text(args, "--tokenizer")));
    CPL_TRY_DONE(cpl_input_read(&text, MOST_INPUT_BYTES));
    ids.capacity = (int64_t)(text.length / 2 + 1);
    ids.at       = cpl_alloc((size_t)ids.capacity * sizeof *ids.at);
    if (!ids.at) CPL_TRY_DONE(CPL_ERR_MEMORY);
    CPL_TRY_DONE(read_ids(&ids, &text));
    CPL_TRY_DONE(cpl_tokenizer_decode(tokenizer, &out, ids.at, ids.count,
                                      cpl_flag_on(args, "--skip-special")));
    if (out.length > 0) fwrite(out.bytes, 1, out.length, stdout);
    status = cpl_output_check();
done:
    cpl_ids_free(&ids);
    cpl_text_free(&text);
    cpl_text_free(&out);
    cpl_tokenizer_free(tokenizer);
    return status;
}

static const cpl_flag flags[] = {
    {.name       = "--tokenizer",
     .kind       = CPL_FLAG_FILE,
     .value_name = "T.json",
     .help       = "The tokenizer.",
     .required   = true},
    {.name = "--skip-special",
     .kind = CPL_FLAG_SWITCH,
     .help = "Omit special tokens such as <|endoftext|>."},
};

const cpl_verb cpl_verb_tokenize_decode = {
    .name    = "tokenize decode",
    .summary = "convert ids to text",
    .usage   = "--tokenizer T.json < IDS",
    .about =
        "Reads decimal ids, separated by blanks or line ends, from the standard input and writes "
        "their bytes, nothing else. A tokenizer that normalises to NFC returns the NFC form of "
        "the encoded text.",
    .least   = 0,
    .most    = 0,
    .flags   = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run     = run,
};
