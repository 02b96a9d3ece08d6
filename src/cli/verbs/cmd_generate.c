/* cmd_generate.c - couplet generate: text from a model, shown as it comes. */
#include <stdio.h>
#include <string.h>

#include "app/plan_run.h"
#include "cli/arguments/configure.h"
#include "cli/terminal/output.h"
#include "infer/generate.h"
#include "io/file.h"
#include "store/hf.h"
#include "tokenizer/tokenizer.h"

enum {
    MOST_PROMPT_BYTES = 1 << 28,
    CHUNK             = 256, /* largest number of prompt tokens computed at once */
};

/* Holds the state of one call; empty if all zero. */
typedef struct work {
    const cpl_arguments *args;
    cpl_hf *hf;
    cpl_tokenizer *tokenizer;
    cpl_text prompt;
    cpl_ids ids; /* ids of the prompt */
    cpl_generate_settings settings;
    cpl_backend backend;
    cpl_model model;
    cpl_generator generator;
    cpl_text waiting, shown; /* bytes not shown yet, and bytes being shown, made well-formed */
    const char *stop;        /* --stop: a text that ends the generation; may be NULL */
    bool stopped;            /* the stop text has been generated */
    cpl_status heard;        /* status of showing the tokens */
} work;

/* ---- before the model ---- */

static int64_t eos_of(const work *w)
{
    int64_t eos = cpl_hf_tokens_of(w->hf)->eos;
    return eos >= 0 ? eos : cpl_tokenizer_eos(w->tokenizer);
}

/* Reads the prompt as bytes and ids. An empty prompt becomes the end-of-text token. */
static cpl_status read_prompt(work *w)
{
    const char *given    = cpl_flag_text(w->args, "--prompt");
    const char *file     = cpl_flag_text(w->args, "--prompt-file");
    cpl_encoder *encoder = NULL;
    int32_t eos          = (int32_t)eos_of(w);
    if (file)
        CPL_TRY(cpl_file_read_given(&w->prompt, file, MOST_PROMPT_BYTES));
    else if (strcmp(given, "-") == 0)
        CPL_TRY(cpl_output_read_input(&w->prompt, MOST_PROMPT_BYTES));
    else
        cpl_text_append(&w->prompt, given, strlen(given));
    CPL_TRY(cpl_text_status(&w->prompt));
    CPL_TRY(cpl_encoder_init(&encoder, w->tokenizer, false));
    const char *bytes = w->prompt.bytes ? w->prompt.bytes : "";
    cpl_status status = cpl_encoder_append(encoder, &w->ids, bytes, w->prompt.length);
    cpl_encoder_free(encoder);
    if (status != CPL_OK || w->ids.count > 0 || eos < 0) return status;
    cpl_ids_free(&w->ids);
    w->ids.at = cpl_alloc(sizeof eos);
    if (!w->ids.at) return CPL_ERR_MEMORY;
    w->ids.at[0] = eos;
    w->ids.count = w->ids.capacity = 1;
    return CPL_OK;
}

/* Limits the number of new tokens to the rest of the context. cpl_generator_fits refuses a prompt
 * that fills the context. */
static cpl_status set_length(work *w, const cpl_log *log)
{
    const cpl_model_settings *config = cpl_hf_config(w->hf);
    cpl_generate_settings *s         = &w->settings;
    const int64_t room               = config->max_positions - w->ids.count;
    const int64_t left               = room > 0 ? room : 1;
    s->max_tokens                    = cpl_flag_int(w->args, "--tokens");
    if (cpl_flag_given(w->args, "--tokens") && s->max_tokens > left)
        cpl_log_warn(log,
                     "--tokens %lld is cut to %lld, for which the model's context of %lld tokens "
                     "(max_position_embeddings) has room after the prompt",
                     (long long)s->max_tokens, (long long)left, (long long)config->max_positions);
    if (s->max_tokens > left) s->max_tokens = left;
    s->temperature = (float)cpl_flag_number(w->args, "--temperature");
    s->top_p       = (float)cpl_flag_number(w->args, "--top-p");
    s->seed        = (uint64_t)cpl_flag_int(w->args, "--seed");
    s->eos         = cpl_flag_given(w->args, "--ignore-eos") ? -1 : eos_of(w);
    s->n_ids       = cpl_tokenizer_vocab_size(w->tokenizer);
    if (s->eos >= 0)
        s->extra_stop_ids = (cpl_stop_ids){cpl_hf_tokens_of(w->hf)->extra_eos,
                                           cpl_hf_tokens_of(w->hf)->n_extra_eos};
    return cpl_generator_fits(config, w->ids.count + s->max_tokens);
}

/* ---- the model ---- */

static cpl_status load_model(work *w, const cpl_configuration *c, const cpl_log *log)
{
    const cpl_model_settings *config = cpl_hf_config(w->hf);
    bool chosen                      = cpl_configuration_gives(c, "compute.dtype");
    int64_t capacity                 = w->ids.count + w->settings.max_tokens;
    CPL_TRY(cpl_backend_open(&w->backend, c->settings.compute.device,
                             chosen ? cpl_dtype_chosen(c->settings.compute.dtype) : CPL_F32,
                             (int)c->settings.compute.threads));
    cpl_backend_tell(&w->backend, log);
    double needs = (double)cpl_model_bytes(config, w->backend.compute, capacity) +
                   (double)cpl_generator_bytes(config, capacity, CHUNK);
    CPL_TRY(cpl_backend_fits(&w->backend, needs, "this model"));
    CPL_TRY(cpl_model_init(&w->model, &w->backend, config, capacity));
    CPL_TRY(cpl_hf_load(w->hf, &w->model));
    return cpl_generator_init(&w->generator, &w->model, capacity, CHUNK);
}

/* ---- showing ---- */

/* Prints the first `length` waiting bytes, ill-formed sequences as U+FFFD. */
static cpl_status show(work *w, size_t length)
{
    cpl_text_clear(&w->shown);
    cpl_utf8_repair(&w->shown, w->waiting.bytes, length);
    CPL_TRY(cpl_text_status(&w->shown));
    fwrite(w->shown.bytes, 1, w->shown.length, stdout);
    memmove(w->waiting.bytes, w->waiting.bytes + length, w->waiting.length - length);
    w->waiting.length -= length;
    return cpl_output_check();
}

/* Returns true if the waiting bytes hold the stop text. Sets `*ready` to the offset of the stop
 * text, or else to the number of bytes that cannot be part of it. */
static bool find_stop(const work *w, size_t *ready)
{
    const size_t length = strlen(w->stop), waiting = w->waiting.length;
    for (size_t at = 0; at < waiting; at++) {
        const size_t left = waiting - at < length ? waiting - at : length;
        if (memcmp(w->waiting.bytes + at, w->stop, left) != 0) continue;
        if (at < *ready || left == length) *ready = at;
        return left == length;
    }
    return false;
}

static cpl_status take_token(work *w, int32_t id)
{
    CPL_TRY(cpl_tokenizer_decode(w->tokenizer, &w->waiting, &id, 1, false));
    if (w->waiting.length == 0) return CPL_OK;
    size_t ready = cpl_tokenizer_utf8_prefix(w->waiting.bytes, w->waiting.length);
    if (w->stop) w->stopped = find_stop(w, &ready);
    if (w->stopped) w->waiting.length = ready;
    return ready > 0 ? show(w, ready) : CPL_OK;
}

static bool on_token(void *ctx, int32_t id)
{
    work *w  = ctx;
    w->heard = take_token(w, id);
    return w->heard == CPL_OK && !w->stopped;
}

static cpl_status speak_once(work *w)
{
    w->stopped = false;
    if (!cpl_flag_given(w->args, "--only-new")) {
        cpl_text_append(&w->waiting, w->prompt.bytes, w->prompt.length);
        CPL_TRY(cpl_text_status(&w->waiting));
        if (w->waiting.length > 0) CPL_TRY(show(w, w->waiting.length));
    }
    CPL_TRY(cpl_generate(&w->generator, w->ids.at, w->ids.count, &w->settings, on_token, w, NULL));
    CPL_TRY(w->heard);
    if (w->waiting.length > 0) CPL_TRY(show(w, w->waiting.length));
    putchar('\n');
    return CPL_OK;
}

/* Prints the samples. Sample i, counted from 0, is the text that --seed S+i gives. */
static cpl_status speak(work *w)
{
    const int64_t n = cpl_flag_int(w->args, "--samples");
    for (int64_t i = 0; i < n; i++, w->settings.seed++) {
        if (n > 1)
            printf("%s--- sample %lld of %lld, seed %llu ---\n", i ? "\n" : "", (long long)i + 1,
                   (long long)n, (unsigned long long)w->settings.seed);
        CPL_TRY(speak_once(w));
    }
    return CPL_OK;
}

static cpl_status check_use(work *w)
{
    const cpl_arguments *args = w->args;
    w->stop                   = cpl_flag_text(args, "--stop");
    CPL_TRY(cpl_flags_exclude(args, "--prompt", "--prompt-file"));
    if (!cpl_flag_given(args, "--prompt") && !cpl_flag_given(args, "--prompt-file"))
        return CPL_FAIL(CPL_ERR_USAGE, "generate needs --prompt TEXT or --prompt-file FILE");
    if (w->stop && !*w->stop)
        return CPL_FAIL(CPL_ERR_USAGE, "--stop needs a text that is not empty");
    return CPL_OK;
}

static void close_work(work *w)
{
    cpl_generator_free(&w->generator);
    cpl_model_free(&w->model);
    cpl_backend_free(&w->backend);
    cpl_ids_free(&w->ids);
    cpl_text_free(&w->prompt);
    cpl_text_free(&w->waiting);
    cpl_text_free(&w->shown);
    cpl_tokenizer_free(w->tokenizer);
    cpl_hf_close(w->hf);
}

static cpl_status run(const cpl_arguments *args)
{
    cpl_status status = CPL_OK;
    work w            = {.args = args};
    cpl_log log       = cpl_output_log(stderr);
    cpl_configuration c;
    CPL_TRY(check_use(&w));
    CPL_TRY(cpl_configure(&c, NULL, args));
    CPL_TRY_DONE(cpl_hf_open(&w.hf, args->words[0], &log));
    CPL_TRY_DONE(cpl_hf_load_tokenizer(&w.tokenizer, NULL, w.hf, cpl_flag_text(args, "--tokenizer"),
                                       "--tokenizer"));
    cpl_tokenizer_warn(w.tokenizer, &log);
    CPL_TRY_DONE(read_prompt(&w));
    CPL_TRY_DONE(set_length(&w, &log));
    CPL_TRY_DONE(load_model(&w, &c, &log));
    CPL_TRY_DONE(speak(&w));
done:
    close_work(&w);
    cpl_configuration_free(&c);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG("--prompt", TEXT, "TEXT", "The text to continue; - reads it from the standard input."),
    CPL_FLAG("--prompt-file", FILE, "FILE",
             "Continue the text of this file, including its last line end."),
    CPL_FLAG("--tokens", INT, "N",
             "Maximum number of new tokens; the model's context is a further limit.",
             .default_value = "128", .low = 0, .high = 16777216, .unit = "tokens"),
    CPL_FLAG("--temperature", NUMBER, "T",
             "Divides the logits before a token is sampled; 0: always the most likely token.",
             .default_value = "1", .low = 0, .high = 1000),
    CPL_FLAG("--top-p", NUMBER, "P",
             "Sample from the smallest set of most likely tokens that has this probability.",
             .default_value = "1", .low = 1e-6, .high = 1),
    CPL_FLAG("--seed", INT, "S", "The same seed and prompt give the same text.",
             .default_value = "0", .low = 0, .high = 1e15),
    CPL_FLAG("--samples", INT, "N",
             "Number of texts, each after a line with its number and its seed: S, S+1, ...",
             .default_value = "1", .low = 1, .high = 1e6, .unit = "samples"),
    CPL_FLAG("--stop", TEXT, "TEXT",
             "Stop string: ends the new text where it occurs; it is not shown."),
    CPL_FLAG("--tokenizer", FILE, "T.json",
             "The tokenizer; default: the model's own tokenizer.json."),
    CPL_SWITCH("--only-new", "Do not show the prompt before the new text."),
    CPL_SWITCH("--ignore-eos", "Continue after the model's end-of-text token."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_generate = {
    .name    = "generate",
    .summary = "continue a text",
    .usage   = "MODEL_DIR --prompt TEXT [--tokens N --temperature T --top-p P --seed S]\n"
               "MODEL_DIR --prompt-file FILE [--samples N --stop TEXT ...]",
    .about =
        "MODEL_DIR is an OLMoE directory in Hugging Face's layout, a checkpoint, or the folder "
        "of a run, whose last checkpoint is then used.\n"
        "Prints the prompt and then the new text while it is generated. Products are in f32 "
        "unless --set compute.dtype says otherwise. An empty prompt begins a new document.",
    .least = 1,
    .most  = 1,
    CPL_VERB_FLAGS(flags),
    .settings = "compute.device compute.dtype",
    .run      = run,
};
