/* cmd_tokenize_encode.c - couplet tokenize encode: documents into token shards, or the standard
 * input into ids on one line. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/stop.h"
#include "cli/arguments/configure.h"
#include "cli/arguments/flags.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/output.h"
#include "cli/terminal/ranks.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/terminal.h"
#include "data/tokens.h"
#include "parallel/gather.h"
#include "tokenizer/tokenizer.h"

enum { MOST_INPUT_BYTES = 0x7fffffff };

/* ---- ids of the standard input ---- */

static cpl_status print_ids(const cpl_ids *ids)
{
    for (int64_t i = 0; i < ids->count; i++) printf(i ? " %ld" : "%ld", (long)ids->at[i]);
    putchar('\n');
    return cpl_output_check();
}

static cpl_status encode_input(const cpl_tokenizer *tokenizer, bool special_as_text)
{
    cpl_text text        = {0};
    cpl_ids ids          = {0};
    cpl_encoder *encoder = NULL;
    cpl_status status    = CPL_OK;
    CPL_TRY_DONE(cpl_encoder_init(&encoder, tokenizer, special_as_text));
    CPL_TRY_DONE(cpl_output_read_input(&text, MOST_INPUT_BYTES));
    CPL_TRY_DONE(cpl_encoder_append(encoder, &ids, text.bytes ? text.bytes : "", text.length));
    CPL_TRY_DONE(print_ids(&ids));
    if (cpl_encoder_repaired(encoder) > 0)
        fprintf(stderr, "warning: %lld ill-formed sequences of UTF-8 were encoded as U+FFFD\n",
                (long long)cpl_encoder_repaired(encoder));
done:
    cpl_encoder_free(encoder);
    cpl_ids_free(&ids);
    cpl_text_free(&text);
    return status;
}

/* ---- shards ---- */

static void print_summary(const cpl_tokens_made *made, double seconds, const char *folder)
{
    const cpl_document_counts *c = &made->counts;
    double megabytes             = (double)c->text_bytes / 1e6;
    printf(
        "files: %lld, documents: %lld, bytes of text: %lld, tokens: %lld (%.3f bytes per token)\n",
        (long long)made->n_files, (long long)c->documents, (long long)c->text_bytes,
        (long long)made->tokens, (double)c->text_bytes / (double)made->tokens);
    printf("left out: %lld bad documents, %lld empty ones; repaired: %lld sequences\n",
           (long long)c->bad, (long long)c->empty, (long long)c->repaired);
    printf("%.2f s, %.1f MB/s; shards in %s\n", seconds, megabytes / (seconds > 0 ? seconds : 1e-9),
           folder);
}

static cpl_status encode_files(const cpl_arguments *args, const cpl_configuration *c,
                               const cpl_tokenizer *tokenizer, cpl_group *world)
{
    cpl_log log        = cpl_ranks_log(stderr);
    cpl_strings inputs = {(char **)(void *)args->words, args->n_words};
    cpl_tokens_made made;
    cpl_tokens_job job = {
        .folder                   = cpl_flag_text(args, "--out"),
        .inputs                   = &inputs,
        .settings                 = &c->settings.data,
        .tokenizer                = tokenizer,
        .tokenizer_path           = cpl_flag_text(args, "--tokenizer"),
        .source_root              = cpl_flag_text(args, "--root"),
        .replace                  = cpl_flag_given(args, "--overwrite"),
        .by_source                = cpl_flag_given(args, "--by-source"),
        .lone_surrogates_replaced = cpl_flag_given(args, "--replace-surrogates"),
        .n_threads                = (int)c->settings.compute.threads,
        .progress                 = cpl_bar_files,
        .log                      = &log,
        .group                    = world,
    };
    double begin = cpl_seconds_now();
    cpl_tokenizer_warn(tokenizer, &log);
    cpl_status status = cpl_tokens_make(&job, &made);
    if (!cpl_gather_is_first(world)) return status;
    cpl_terminal_clear_line();
    if (status == CPL_OK) print_summary(&made, cpl_seconds_now() - begin, job.folder);
    return status;
}

/* Ends all ranks with the exit code of a signal that one rank received. */
static void stop_all(cpl_group *world)
{
    const int own      = cpl_stop_signal();
    int64_t signals[2] = {own != 0, own}; /* number of ranks with a signal, and sum of the signals'
                                             numbers */
    if (!world) return;
    cpl_group_sum_i64(world, signals, 2);
    if (signals[0] > 0 && own == 0) cpl_stop_request((int)(signals[1] / signals[0]));
}

/* The ranks of a launcher share the documents. */
static cpl_status encode_over_ranks(const cpl_arguments *args, cpl_configuration *c,
                                    cpl_tokenizer **tokenizer)
{
    cpl_group *world = NULL;
    if (c->settings.compute.threads == 0) c->settings.compute.threads = cpl_ranks_threads();
    CPL_TRY(cpl_signals_listen()); /* so that an interrupted encode removes its files */
    CPL_TRY(cpl_ranks_begin(&world));
    CPL_TRY(cpl_ranks_watch(c->settings.dist.timeout));
    cpl_status status = cpl_tokenizer_load_given(tokenizer, cpl_flag_text(args, "--tokenizer"));
    CPL_TRY(cpl_gather_status(world, status));
    status = encode_files(args, c, *tokenizer, world);
    if (status == CPL_ERR_STOPPED) stop_all(world);
    return status;
}

static cpl_status encode_ids(const cpl_arguments *args, const cpl_configuration *c,
                             cpl_tokenizer **tokenizer)
{
    CPL_TRY(cpl_ranks_refuse("tokenize encode --ids"));
    CPL_TRY(cpl_tokenizer_load_given(tokenizer, cpl_flag_text(args, "--tokenizer")));
    const cpl_log log = cpl_output_log(stderr);
    cpl_tokenizer_warn(*tokenizer, &log);
    return encode_input(*tokenizer, c->settings.data.special_as_text);
}

static cpl_status check_use(const cpl_arguments *args)
{
    static const char *const of_ids[] = {"--ids", "--tokenizer", "--special-as-text",
                                         "data.special_as_text", "--out"};
    bool ids                          = cpl_flag_given(args, "--ids");
    if (ids) CPL_TRY(cpl_flags_only(args, "--ids", of_ids, sizeof of_ids / sizeof *of_ids));
    if (ids && (args->n_words > 0 || cpl_flag_given(args, "--out")))
        return CPL_FAIL(CPL_ERR_USAGE,
                        "--ids reads the standard input and takes neither an INPUT nor --out");
    if (!ids && !cpl_flag_given(args, "--out"))
        return CPL_FAIL(CPL_ERR_USAGE, "couplet tokenize encode needs --out DIR, or --ids");
    if (!ids && args->n_words == 0)
        return CPL_FAIL(CPL_ERR_USAGE, "couplet tokenize encode needs an INPUT");
    return CPL_OK;
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_configuration c;
    cpl_tokenizer *tokenizer = NULL;
    CPL_TRY(check_use(args));
    CPL_TRY(cpl_configure(&c, NULL, args));
    cpl_status status = cpl_flag_given(args, "--ids") ? encode_ids(args, &c, &tokenizer)
                                                      : encode_over_ranks(args, &c, &tokenizer);
    cpl_ranks_end(status);
    cpl_tokenizer_free(tokenizer);
    cpl_configuration_free(&c);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--tokenizer", FILE, "T.json", "The tokenizer.", .required = true),
    CPL_FLAG("--out", FOLDER, "DIR", "Folder for the shards; created if it does not exist."),
    CPL_FLAG_ROW_OVERWRITE,
    CPL_SWITCH("--ids", "Encode the standard input unchanged and print the ids on one line."),
    CPL_SWITCH("--by-source", "Create a folder below DIR for each source."),
    CPL_FLAG("--root", FOLDER, "DIR", "Remove this prefix from the paths in the metadata."),
    CPL_SWITCH("--special-as-text", "Encode special tokens in a document as plain text.",
               .setting = "data.special_as_text=true"),
    CPL_SWITCH(
        "--replace-surrogates",
        "Replace a lone surrogate in JSON by U+FFFD; otherwise such a document is bad (Dolma)."),
    CPL_FLAG("--eos", INT, "ID",
             "The id that ends a document; default: the tokenizer's <|endoftext|>.", .low = 0,
             .high = 16777215, .setting = "data.eos"),
#include "cli/arguments/documents_flags.def"
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_tokenize_encode = {
    .name       = "tokenize encode",
    .over_ranks = true,
    .summary    = "encode documents to token shards, or the standard input to ids",
    .usage      = "--tokenizer T.json --out DIR INPUT...\n--tokenizer T.json --ids < TEXT",
    .about =
        "INPUT is a file, folder or pattern of documents: JSON lines (.jsonl, .json) or plain "
        "text (.txt), also followed by .gz or .zst. The same inputs give the same bytes, with "
        "any number of threads.\n"
        "Shards are flat little-endian arrays of ids as in OLMo, with a list of their documents "
        "and sources in companion files. A failed or interrupted encode removes what it wrote. A "
        "summary of what was read, written and skipped is printed at the end.\n"
        "Under mpirun or srun the ranks share the encoding and rank 0 writes the same bytes "
        "(docs/parallel.md).",
    .most = -1,
    CPL_VERB_FLAGS(flags),
    .settings = CPL_SETTINGS_DOCUMENTS " dist.timeout",
    .run      = run,
};

/* ---- couplet tokenize decode: ids on the standard input into their text ---- */

enum { LARGEST_ID = 0x7fffffff };

static cpl_status no_id(const cpl_text *text, size_t at)
{
    size_t end = at;
    while (end < text->length && !isspace((unsigned char)text->bytes[end]) && end - at < 40) end++;
    return CPL_FAIL(CPL_ERR_INPUT, "the standard input, byte %zu: \"%.*s\" is no token id", at + 1,
                    (int)(end - at), text->bytes + at);
}

/* Reads numbers between blanks. `ids` has room for one number in two bytes of text. */
static cpl_status read_ids(cpl_ids *ids, const cpl_text *text)
{
    for (size_t at = 0; at < text->length; at++) {
        const size_t begin = at;
        int64_t value      = 0;
        for (; at < text->length && !isspace((unsigned char)text->bytes[at]); at++) {
            const int digit = text->bytes[at] - '0';
            value           = 10 * value + digit;
            if (digit < 0 || digit > 9 || value > LARGEST_ID) return no_id(text, begin);
        }
        if (at > begin) ids->at[ids->count++] = (int32_t)value;
    }
    return CPL_OK;
}

static cpl_status run_decode(const cpl_arguments *args)
{
    cpl_tokenizer *tokenizer = NULL;
    cpl_text text = {0}, out = {0};
    cpl_ids ids       = {0};
    const cpl_log log = cpl_output_log(stderr);
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_tokenizer_load_given(&tokenizer, cpl_flag_text(args, "--tokenizer")));
    cpl_tokenizer_warn(tokenizer, &log);
    CPL_TRY_DONE(cpl_output_read_input(&text, MOST_INPUT_BYTES));
    ids.capacity = (int64_t)(text.length / 2 + 1);
    ids.at       = cpl_alloc((size_t)ids.capacity * sizeof *ids.at);
    if (!ids.at) CPL_TRY_DONE(CPL_ERR_MEMORY);
    CPL_TRY_DONE(read_ids(&ids, &text));
    CPL_TRY_DONE(cpl_tokenizer_decode(tokenizer, &out, ids.at, ids.count,
                                      cpl_flag_given(args, "--skip-special")));
    status = cpl_output_text(CPL_OK, &out);
done:
    cpl_ids_free(&ids);
    cpl_text_free(&text);
    cpl_text_free(&out);
    cpl_tokenizer_free(tokenizer);
    return status;
}

static const cpl_flag decode_flags[] = {
    CPL_FLAG("--tokenizer", FILE, "T.json", "The tokenizer.", .required = true),
    CPL_SWITCH("--skip-special", "Omit special tokens such as <|endoftext|>."),
};

const cpl_verb cpl_verb_tokenize_decode = {
    .name    = "tokenize decode",
    .summary = "convert ids to text",
    .usage   = "--tokenizer T.json < IDS",
    .about =
        "Reads decimal ids, separated by blanks or line ends, from the standard input and writes "
        "their bytes, nothing else. A tokenizer that normalises to NFC returns the NFC form of "
        "the encoded text.",
    .most = 0,
    CPL_VERB_FLAGS(decode_flags),
    .run = run_decode,
};
