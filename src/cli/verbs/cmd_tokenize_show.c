/* cmd_tokenize_show.c - couplet tokenize show: prints the contents of token shards. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/arguments/flags.h"
#include "cli/terminal/output.h"
#include "data/shards.h"
#include "tokenizer/tokenizer.h"

enum { SAMPLE_TOKENS = 48 };

/* Prints text on one line, with control characters escaped. */
static void print_escaped(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c < 0x20 || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

static cpl_status print_text(const cpl_tokenizer *tokenizer, const int32_t *ids, int64_t count)
{
    cpl_text raw = {0}, text = {0};
    cpl_status status = CPL_OK;
    CPL_TRY_DONE(cpl_tokenizer_decode(tokenizer, &raw, ids, count, false));
    cpl_utf8_repair(&text, raw.bytes ? raw.bytes : "", raw.length);
    CPL_TRY_DONE(cpl_text_status(&text));
    fputs("    ", stdout);
    print_escaped(text.bytes ? text.bytes : "", text.length);
    putchar('\n');
done:
    cpl_text_free(&raw);
    cpl_text_free(&text);
    return status;
}

static void print_ids(const int32_t *ids, int64_t count)
{
    fputs("   ", stdout);
    for (int64_t i = 0; i < count; i++) printf(" %ld", (long)ids[i]);
    putchar('\n');
}

/* Prints one sample, the tokens of a file from `first` on: as text if there is a tokenizer, else as
 * ids. */
static cpl_status print_sample(const cpl_shards *shards, int64_t file, int64_t first,
                               const cpl_tokenizer *tokenizer)
{
    int32_t ids[SAMPLE_TOKENS];
    int64_t left = shards->file[file].n_tokens - first;
    int64_t now  = left < SAMPLE_TOKENS ? left : SAMPLE_TOKENS;
    CPL_TRY(cpl_shards_read(shards, file, first, now, ids));
    printf("  %s, token %lld\n", shards->file[file].path, (long long)first);
    if (tokenizer) return print_text(tokenizer, ids, now);
    print_ids(ids, now);
    return CPL_OK;
}

/* Prints `count` samples, spread evenly over all tokens. */
static cpl_status print_samples(const cpl_shards *shards, int64_t count,
                                const cpl_tokenizer *tokenizer)
{
    if (count > shards->n_tokens) count = shards->n_tokens;
    if (count > 0) printf("samples\n");
    for (int64_t i = 0; i < count; i++) {
        int64_t at = shards->n_tokens / count * i, file = 0;
        while (at >= shards->file[file].n_tokens) at -= shards->file[file++].n_tokens;
        CPL_TRY(print_sample(shards, file, at, tokenizer));
    }
    return CPL_OK;
}

static cpl_status show(const cpl_shards *shards, const cpl_arguments *args,
                       const cpl_tokenizer *tokenizer)
{
    cpl_text text    = {0};
    cpl_status found = cpl_shards_describe(shards, cpl_flag_int(args, "--look-at"), &text);
    CPL_TRY(cpl_output_text(found, &text));
    return print_samples(shards, cpl_flag_int(args, "--samples"), tokenizer);
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_log log               = cpl_output_log(stderr);
    cpl_tokenizer *tokenizer  = NULL;
    cpl_shards *shards        = NULL;
    cpl_status status         = CPL_OK;
    const char *path          = cpl_flag_text(args, "--tokenizer");
    cpl_shard_options options = {.eos = -1};
    options.type              = (cpl_token_type_choice)cpl_flag_int(args, "--type");
    if (path) CPL_TRY_DONE(cpl_tokenizer_load_given(&tokenizer, path));
    if (tokenizer) options.vocab_size = cpl_tokenizer_vocab_size(tokenizer);
    CPL_TRY_DONE(cpl_shards_open(&shards, args->words, args->n_words, &options, &log));
    CPL_TRY_DONE(show(shards, args, tokenizer));
done:
    cpl_shards_close(shards);
    cpl_tokenizer_free(tokenizer);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--tokenizer", FILE, "T.json",
             "Show samples as text and check ids against this tokenizer."),
    CPL_FLAG("--type", CHOICE, "TYPE", "Item type of shards that do not specify it.",
             .default_value = "auto", .unit = "auto|uint16|uint32"),
    CPL_FLAG("--look-at", INT, "N",
             "Use the first N tokens to detect the end-of-text id and the item type.",
             .default_value = "4000000", .low = 1, .high = 1e15, .unit = "tokens"),
    CPL_FLAG("--samples", INT, "N", "Number of samples, spread evenly over all tokens.",
             .default_value = "3", .low = 0, .high = 1000000, .unit = "samples"),
};

const cpl_verb cpl_verb_tokenize_show = {
    .name    = "tokenize show",
    .summary = "show the contents of token shards",
    .usage   = "DIR_OR_FILE...",
    .about = "Prints files, items, tokens, documents and tokens of each source, candidates for the "
             "end-of-text id and whether the item type is plausible, and samples.\n"
             "Reads shards of couplet tokenize encode, OLMo, Dolma, nanoGPT and llm.c.",
    .least = 1,
    .most  = -1,
    CPL_VERB_FLAGS(flags),
    .run = run,
};
