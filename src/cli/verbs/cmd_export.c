/* cmd_export.c - couplet export: a model in the form that llama.cpp reads. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/arguments/flags.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/output.h"
#include "store/gguf_export.h"

/* Formats of the words of --type, in their order. */
static const cpl_format types[] = {CPL_FORMAT_F32, CPL_FORMAT_BF16, CPL_FORMAT_F16,
                                   CPL_FORMAT_Q8_0};

/* Sets `name` to the last part of the model's path, with ill-formed UTF-8 repaired. */
static cpl_status name_model(cpl_text *name, const char *path)
{
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--) {
    }
    cpl_utf8_repair(name, path + begin, end - begin);
    return cpl_text_status(name);
}

static void describe(const cpl_arguments *args, const cpl_gguf_export *done)
{
    char size[32];
    printf("%s: %lld tensors in %s, %s, architecture %s of llama.cpp\n",
           cpl_flag_text(args, "--gguf"), (long long)done->n_tensors, cpl_flag_text(args, "--type"),
           cpl_text_bytes(size, (double)done->bytes), done->architecture);
    if (done->n_kept)
        printf("%lld of them in f16: their rows are no multiple of 32\n", (long long)done->n_kept);
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_hf *hf               = NULL;
    cpl_tokenizer *tokenizer = NULL;
    cpl_gguf_export written;
    cpl_text name          = {0};
    cpl_status status      = CPL_OK;
    const cpl_log log      = cpl_output_log(stderr);
    const cpl_format type  = types[cpl_flag_int(args, "--type")];
    const char *const file = cpl_flag_text(args, "--gguf");
    CPL_TRY(cpl_output_paths_outside(args));
    CPL_TRY(cpl_output_paths_check(args, ""));
    CPL_TRY_DONE(cpl_hf_open(&hf, args->words[0], &log));
    CPL_TRY_DONE(cpl_hf_load_tokenizer(&tokenizer, NULL, hf, cpl_flag_text(args, "--tokenizer"),
                                       "--tokenizer"));
    CPL_TRY_DONE(name_model(&name, args->words[0]));
    CPL_TRY_DONE(cpl_gguf_export_write(&written, hf, tokenizer, file, type, name.bytes, &log));
    describe(args, &written);
done:
    cpl_text_free(&name);
    cpl_tokenizer_free(tokenizer);
    cpl_hf_close(hf);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--gguf", FILE, "FILE", "Write the model as a GGUF file for llama.cpp.",
             .required = true),
    CPL_FLAG("--type", CHOICE, "TYPE",
             "How the matrices are stored; norms, biases and the router stay f32. q8_0: 8 bits and "
             "a scale for 32 numbers.",
             .default_value = "f32", .unit = "f32|bf16|f16|q8_0"),
    CPL_FLAG("--tokenizer", FILE, "T.json",
             "The tokenizer; default: the model's own tokenizer.json."),
    CPL_FLAG_ROW_OVERWRITE,
};

const cpl_verb cpl_verb_export = {
    .name    = "export",
    .summary = "hand a model over to llama.cpp",
    .usage   = "MODEL_DIR --gguf FILE [--type f32|bf16|f16|q8_0]",
    .about =
        "--gguf writes weights and tokenizer of an OLMoE directory in Hugging Face's layout, of a "
        "checkpoint, or of the last checkpoint of a run. The architecture is olmoe, or minimax-m2 "
        "where the routing weights are renormalised (norm_topk_prob). A model that llama.cpp does "
        "not compute is refused.",
    .least = 1,
    .most  = 1,
    CPL_VERB_FLAGS(flags),
    .run = run,
};
