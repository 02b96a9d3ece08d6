/* evaluation_case.h - tasks of a few rows, and a tiny model with random weights. */
#ifndef CPL_TESTS_EVAL_EVALUATION_CASE_H
#define CPL_TESTS_EVAL_EVALUATION_CASE_H

#include "eval/evaluation.h"
#include "eval/prompts/questions_case.h"
#include "support/tiny_world.h"

enum { CASE_WINDOW = 40 };

/* A ranked task, with a profile of two forms. It wrongly claims a set of the paper. */
static const char ranked_task[] =
    "task: ranked\ntitle: Ranked ones\nsource: example.org\nsets: [3b]\nchance: 50\n"
    "splits: {a: a.jsonl}\nfields: {q: q, o: \"o[]\", g: g}\nchoices: o\n"
    "gold: {value: g, among: numbers}\n"
    "profiles:\n"
    "  p: {split: a, context: \"{q}\", scores: [acc, acc_norm]}\n"
    "  both: {split: a, forms: [one, two]}\n"
    "  both/one: {like: p}\n"
    "  both/two: {like: p, context: \"Q: {q}\"}\n";

static const char ranked_rows[] =
    "{\"q\": \"the stone\", \"o\": [\"a\", \"mill\"], \"g\": \"0\"}\n"
    "{\"q\": \"the mill\", \"o\": [\"he\", \"the\"], \"g\": \"1\"}\n"
    "{\"q\": \"a mill\", \"o\": [\"stone\", \"hat\"], \"g\": \"1\"}\n";

/* A task that a generated text answers. */
static const char written_task[] = "task: written\nsplits: {b: b.jsonl}\nfields: {q: q, t: t}\n"
                                   "profiles: {w: {split: b, ask: generate, context: \"{q}\", "
                                   "target: \"{t}\", max_gen_toks: 4}}\n";

static const char written_rows[] = "{\"q\": \"the stone\", \"t\": \"mill\"}\n"
                                   "{\"q\": \"a stone\", \"t\": \"hat\"}\n";

typedef struct evaluation_case {
    char folder[64]; /* holds task files, and DATA/TASK/ */
    world w;
    cpl_tokenizer *tokenizer;
    cpl_lm_batch batch;
    cpl_eval_runner runner;
    cpl_selection selection;
    cpl_questions_options options;
    cpl_evaluation evaluation;
} evaluation_case;

static inline void case_put(const evaluation_case *c, const char *task, const char *name,
                            const char *bytes)
{
    put_file(c->folder, task, name, bytes);
}

/* Writes a task file and selects its task. */
static inline void case_select(evaluation_case *c, const char *name, const char *bytes,
                               const char *profile)
{
    const char *file                    = in_folder(c->folder, name);
    const cpl_selection_options options = {.files = &file, .n_files = 1, .profile = profile};
    write_string(file, bytes);
    assert_ok(cpl_selection_add(&c->selection, &options));
}

/* Begins a new selection, with the built-in tasks alone. */
static inline void case_deselect(evaluation_case *c)
{
    cpl_selection_free(&c->selection);
    assert_ok(cpl_selection_init(&c->selection, cpl_request_kinds));
}

static inline void case_open(evaluation_case *c)
{
    cpl_model_settings config = tiny();
    memset(c, 0, sizeof *c);
    snprintf(c->folder, sizeof c->folder, "%s", scratch_folder());
    config.vocab_size    = 384; /* the size of small.json */
    config.max_positions = CASE_WINDOW;
    open_world(&c->w, config, CPL_F32);
    assert_ok(cpl_tokenizer_load(&c->tokenizer, golden_path("tokenizers/small.json")));
    assert_ok(
        cpl_lm_batch_init(&c->batch, &c->w.model, &(cpl_lm_batch_settings){.window = CASE_WINDOW}));
    c->runner = (cpl_eval_runner){
        .batch = &c->batch, .tokenizer = c->tokenizer, .window = CASE_WINDOW, .eos = 0};
    c->options = options_of(c->folder);
    assert_ok(cpl_selection_init(&c->selection, cpl_request_kinds));
    case_put(c, "ranked", "a.jsonl", ranked_rows);
    case_put(c, "written", "b.jsonl", written_rows);
}

/* Opens a case with a ranked task and a written task. */
static inline void case_open_both(evaluation_case *c)
{
    case_open(c);
    case_select(c, "r.yaml", ranked_task, NULL);
    case_select(c, "w.yaml", written_task, NULL);
}

static inline cpl_status case_look(evaluation_case *c)
{
    return cpl_evaluation_open(&c->evaluation, &c->selection, &c->options, CASE_WINDOW,
                               c->tokenizer);
}

static inline void case_close(evaluation_case *c)
{
    cpl_evaluation_close(&c->evaluation);
    cpl_selection_free(&c->selection);
    cpl_lm_batch_free(&c->batch);
    cpl_tokenizer_free(c->tokenizer);
    close_world(&c->w);
}

#endif /* CPL_TESTS_EVAL_EVALUATION_CASE_H */
