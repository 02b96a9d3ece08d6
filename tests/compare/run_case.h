/* run_case.h - invented runs in folders, every figure of which a test can work out again. */
#ifndef CPL_TESTS_COMPARE_RUN_CASE_H
#define CPL_TESTS_COMPARE_RUN_CASE_H

#include <math.h>
#include <sys/stat.h>

#include "check.h"
#include "compare/run_record.h"
#include "support/files.h"

enum { CASE_LAYERS = 2, CASE_TOKENS = 100, CASE_EVERY = 2, CASE_RUNS = 16 };

typedef struct run_case {
    const char *name;
    int seed;
    double weight, alpha, shift; /* `shift` is added to every loss */
    int last, steps;             /* logged, and asked for */
    const char *train;           /* data.train; NULL: [/some/where/docs] */
    const char *more;            /* further lines of config.yaml; NULL: none */
    bool no_eval;
} run_case;

/* Not smooth in the step, so that a mean over other steps than wanted is another number. */
static inline double case_loss(const run_case *of, int step)
{
    return 6 - 0.1 * step + of->shift + 0.03 * of->seed + 0.02 * ((step * 7) % 5);
}

static inline double case_val(const run_case *of, int step)
{
    return case_loss(of, step) + 0.25;
}

static inline double case_eps(const run_case *of, int step, int layer)
{
    return 0.5 + 0.01 * step - 0.1 * layer + of->alpha / 8;
}

static inline double case_speed(const run_case *of, int step)
{
    return 1000 + 100 * of->seed + 10 * (step % 3);
}

static inline void case_line(cpl_text *out, const run_case *of, int step)
{
    cpl_text_printf(out,
                    "{\"step\":%d,\"tokens\":%d,\"loss\":%.17g,\"erc\":null,\"balance\":1.5,"
                    "\"tokens_per_s\":%.17g,\"memory_bytes\":%d,\"eps_mean\":[%.17g,%.17g],"
                    "\"alpha_min\":[2,null]",
                    step, step * CASE_TOKENS, case_loss(of, step), case_speed(of, step),
                    1048576 * (3 + step % 4), case_eps(of, step, 0), case_eps(of, step, 1));
    if (!of->no_eval && step % CASE_EVERY == 0)
        cpl_text_printf(out,
                        ",\"val_loss\":%.17g,\"val_loss_by_source\":{\"a\":%.17g,\"b\":%.17g},"
                        "\"erc_clean\":[0.5,0.25]",
                        case_val(of, step), case_val(of, step) - 0.5, case_val(of, step) + 0.5);
    cpl_text_append(out, "}\n", 2);
}

static inline void case_config(cpl_text *out, const run_case *of)
{
    cpl_text_printf(out,
                    "model:\n    vocab_size: 300\ndata:\n    train: %s\n    batch_tokens: %d\n"
                    "    seed: unset\ntrain:\n    steps: %d\n    seed: %d\nerc:\n    weight: %g\n"
                    "    alpha: %g\n%s",
                    of->train ? of->train : "[/some/where/docs]", CASE_TOKENS, of->steps, of->seed,
                    of->weight, of->alpha, of->more ? of->more : "");
}

/* Makes ROOT/name with its two files; the folder's path in a static buffer, 16 in turn. */
__attribute__((unused)) static const char *write_run(const char *root, const run_case *of)
{
    static char paths[CASE_RUNS][512];
    static int turn;
    char *folder  = paths[turn = (turn + 1) % CASE_RUNS];
    cpl_text text = {0};
    snprintf(folder, sizeof paths[0], "%s/%s", root, of->name);
    assert_int_equal(mkdir(folder, 0777), 0);
    case_config(&text, of);
    write_bytes(in_folder(folder, "config.yaml"), text.bytes, text.length);
    cpl_text_clear(&text);
    for (int step = 1; step <= of->last; step++) case_line(&text, of, step);
    write_bytes(in_folder(folder, "metrics.jsonl"), text.bytes ? text.bytes : "", text.length);
    cpl_text_free(&text);
    return folder;
}

#endif /* CPL_TESTS_COMPARE_RUN_CASE_H */
