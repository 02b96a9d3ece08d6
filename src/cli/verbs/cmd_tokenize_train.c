/* cmd_tokenize_train.c - couplet tokenize train: a byte-level BPE out of documents. */
#include <stdio.h>
#include <string.h>

#include "cli/arguments/configure.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "data/tokens.h"
#include "io/paths.h"
#include "tokenizer/tokenizer.h"

static cpl_status add_file(cpl_bpe_trainer *trainer, cpl_document_counts *counts, const char *path,
                           const cpl_document_settings *settings, const cpl_log *log)
{
    cpl_documents *documents = NULL;
    cpl_document document    = {0};
    bool more                = true;
    cpl_status status        = CPL_OK;
    CPL_TRY(cpl_documents_open(&documents, path, settings, log));
    for (;;) {
        CPL_TRY_DONE(cpl_documents_next(documents, &document, &more));
        if (!more) break;
        CPL_TRY_DONE(cpl_bpe_add(trainer, document.text, document.length));
    }
    cpl_document_counts here = cpl_documents_counts(documents);
    cpl_document_counts_add(counts, &here);
done:
    cpl_documents_close(documents);
    return status;
}

static cpl_status add_files(cpl_bpe_trainer *trainer, cpl_document_counts *counts,
                            const cpl_arguments *args, const cpl_configuration *c,
                            const cpl_log *log)
{
    cpl_document_settings settings = cpl_tokens_reading(&c->settings.data);
    cpl_strings paths              = {0};
    cpl_status status              = CPL_OK;
    CPL_TRY_DONE(cpl_documents_expand(&paths, args->words, args->n_words));
    for (int64_t i = 0; i < paths.count; i++) {
        CPL_TRY_DONE(add_file(trainer, counts, paths.at[i], &settings, log));
        cpl_bar_files(NULL, i + 1, paths.count);
    }
done:
    cpl_terminal_clear_line();
    cpl_paths_free(&paths);
    return status;
}

static cpl_status train(const cpl_arguments *args, const cpl_configuration *c)
{
    cpl_log log                = cpl_output_log(stderr);
    cpl_bpe_trainer *trainer   = NULL;
    cpl_document_counts counts = {0};
    cpl_status status          = CPL_OK;
    const char *out            = cpl_flag_text(args, "--out");
    cpl_bpe_settings settings  = {.vocab_size    = cpl_flag_int(args, "--vocab-size"),
                                  .min_frequency = cpl_flag_int(args, "--min-frequency"),
                                  .nfc           = cpl_flag_given(args, "--nfc"),
                                  .eos           = cpl_flag_text(args, "--eos")};
    CPL_TRY(cpl_bpe_init(&trainer, &settings));
    CPL_TRY_DONE(add_files(trainer, &counts, args, c, &log));
    CPL_TRY_DONE(cpl_bpe_train(trainer, &log));
    CPL_TRY_DONE(cpl_bpe_write(trainer, out));
    printf("documents: %lld, bytes of text: %lld; left out: %lld bad documents, %lld empty ones; "
           "repaired: %lld sequences\n",
           (long long)counts.documents, (long long)counts.text_bytes, (long long)counts.bad,
           (long long)counts.empty, (long long)counts.repaired);
    printf("%lld tokens in %s\n", (long long)cpl_bpe_vocab_size(trainer), out);
done:
    cpl_bpe_free(trainer);
    return status;
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_configuration c;
    CPL_TRY(cpl_output_paths_check(args, "model"));
    CPL_TRY(cpl_configure(&c, NULL, args));
    cpl_status status = train(args, &c);
    cpl_configuration_free(&c);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--vocab-size", INT, "N",
             "Number of tokens, including special tokens and single bytes.", .low = 258,
             .high = 1000000, .unit = "tokens", .required = true),
    CPL_FLAG("--out", FILE, "T.json", "The tokenizer.json to write.", .required = true),
    CPL_FLAG_ROW_OVERWRITE,
    CPL_FLAG("--min-frequency", INT, "N", "Do not merge pairs that occur less often.",
             .default_value = "2", .low = 1, .high = 1e15, .unit = "times"),
    CPL_SWITCH("--nfc", "Normalise text to NFC before it is encoded, as the GPT-NeoX family does."),
    CPL_FLAG("--eos", TEXT, "TEXT", "The token between documents.",
             .default_value = "<|endoftext|>"),
#include "cli/arguments/documents_flags.def"
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_tokenize_train = {
    .name    = "tokenize train",
    .summary = "train a byte-level BPE tokenizer on documents",
    .usage   = "--vocab-size N --out T.json INPUT...",
    .about =
        "INPUT is a file, folder or pattern of documents, as for couplet tokenize encode. The "
        "same documents give the same tokenizer, in any order. The file is a tokenizer.json that "
        "Hugging Face's tokenizers can also read.",
    .least = 1,
    .most  = -1,
    CPL_VERB_FLAGS(flags),
    .settings = CPL_SETTINGS_DOCUMENTS,
    .run      = run,
};
