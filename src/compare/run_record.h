/* run_record.h - a run as read from its folder: settings, metrics, and the files next to them.
 *
 * Room:     compare; reads, writes nothing.
 * Files:    RUN/config.yaml, RUN/metrics.jsonl (or .jsonl.gz, .jsonl.zst), and, if present,
 *           RUN/start.json and the state.json and tokenizer.json of a checkpoint. Settings and
 *           members of other versions are kept or passed over, never an error.
 * Damage:   lines without a step, its tokens and a loss (a number, or null if it was not finite),
 *           lines with a figure of another type, and lines whose tokens are not those of their
 *           step are counted and passed over. If a step has several lines, the last sound line
 *           counts; lines are in the order of steps, and tokens rise with them.
 * Numbers:  NaN is a figure that a line has not, or has as null. */
#ifndef CPL_COMPARE_RUN_RECORD_H
#define CPL_COMPARE_RUN_RECORD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "settings/yaml.h"

/* Bounds of metrics.jsonl when it is read: of a line, of the file when it is decompressed. */
enum { CPL_RUN_LINE_BYTES = 1 << 24 };
#define CPL_RUN_METRICS_BYTES (UINT64_C(1) << 36)

#define CPL_RUN_FIGURE(name, ...) CPL_RUN_##name,
typedef enum cpl_run_figure_name {
#include "compare/run_figures.def"
    CPL_RUN_FIGURES
} cpl_run_figure_name;
#undef CPL_RUN_FIGURE

typedef enum cpl_run_of { CPL_RUN_OF_STEP, CPL_RUN_OF_LAYERS, CPL_RUN_OF_RUN } cpl_run_of;
typedef enum cpl_run_how {
    CPL_RUN_HOW_AT,
    CPL_RUN_HOW_LOSS,
    CPL_RUN_HOW_TENTH,
    CPL_RUN_HOW_MEDIAN,
    CPL_RUN_HOW_MOST,
    CPL_RUN_HOW_EQUAL_TIME,
    CPL_RUN_HOW_TOKENS
} cpl_run_how;
typedef enum cpl_run_curve {
    CPL_RUN_CURVE_NONE,
    CPL_RUN_CURVE_PLAIN,
    CPL_RUN_CURVE_LOG,
    CPL_RUN_CURVE_LOSS,
    CPL_RUN_CURVE_SHARE
} cpl_run_curve;

/* One of run_figures.def. */
typedef struct cpl_run_figure {
    const char *key;
    cpl_run_of of;
    cpl_run_how how;
    bool at_start;
    cpl_run_curve curve;
    const char *file, *label;
    int digits;
    const char *help;
} cpl_run_figure;

extern const cpl_run_figure cpl_run_figures[CPL_RUN_FIGURES];

/* A logged step. */
typedef struct cpl_run_line {
    int64_t step;
    double tokens;
    double values[CPL_RUN_FIGURES]; /* of LAYERS: the mean over the layers that have a number */
    double *layers;                 /* [CPL_RUN_FIGURES,n_layers]; of others: NaN */
    int64_t n_layers;
    double *sources;   /* (n_sources) validation loss by cpl_run_record.sources */
    int64_t n_sources; /* those known when the line was read; of later ones it has none */
} cpl_run_line;

typedef struct cpl_run_record {
    const char *folder; /* as named */
    const char *name;   /* the last part of the folder's own path */
    cpl_yaml_flat settings;
    cpl_run_line *lines; /* (n_lines) steps rise; none of a run that has just begun */
    int64_t n_lines, line_capacity;
    cpl_run_line start; /* of start.json, at 0 tokens */
    bool has_start;
    cpl_strings sources; /* labels of held-out text in the order they first came */
    int64_t n_damaged;   /* lines that could not be used */
    int64_t n_repeated;  /* lines in whose place a later one of the same step came */
    const char *cut;     /* why the file could not be read to its end; NULL: it could */
    /* Of start.json; else, the held-out text excepted, of a checkpoint. NULL: neither has it. */
    const char *data;      /* fingerprint of the training data */
    const char *held_out;  /* hash of the tokens of the held-out text */
    const char *tokenizer; /* hash of tokenizer.json */
    const char *duplicate; /* as the folder was named once more; NULL: it was not */
    int64_t steps;         /* train.steps; -1 unknown */
    bool in_progress;
    cpl_pool pool;
} cpl_run_record;

/* Reads the run in `folder`; one that has logged no step yet has no lines. CPL_ERR_INPUT: it is no
 * run, or has lines of which none can be used; the sentence names the folder. After a failure `run`
 * is closed. */
CPL_NODISCARD cpl_status cpl_run_record_open(cpl_run_record *run, const char *folder);
void cpl_run_record_close(cpl_run_record *run); /* all zero is allowed */

/* Reads the runs of `n_folders` folders into `runs`, which has room for so many and is all zero,
 * and sets `*n`: a folder that is there twice, by whatever path, is read once and has `duplicate`.
 * After a failure those that were read are still open. */
CPL_NODISCARD cpl_status cpl_run_records_open(cpl_run_record *runs, int64_t *n,
                                              const char *const *folders, int64_t n_folders);

/* The last line; NULL: no step has been logged yet. */
const cpl_run_line *cpl_run_last(const cpl_run_record *run);

/* The last line at or before so many tokens, or exactly at them; NULL: none. */
const cpl_run_line *cpl_run_line_before(const cpl_run_record *run, double tokens);
const cpl_run_line *cpl_run_line_at(const cpl_run_record *run, double tokens);

/* Validation loss, of the source with this label or (NULL) of all; NaN if the line has none. */
double cpl_run_val_loss(const cpl_run_record *run, const cpl_run_line *line, const char *source);

/* Whether the line has an evaluation. */
bool cpl_run_evaluated(const cpl_run_line *line);

/* Sets `files` to RUN/`name` of two runs, or if that does not exist RUN/`name`.gz or .zst. NULL:
 * none of them exists, or it cannot be read, or `fault` (NULL: no test) finds a fault; then
 * `*reason`, from the pool, says why. The caller gives both back with json_decref.
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_run_files(json_t *files[2], const char **reason, cpl_pool *pool,
                                       const cpl_run_record *const runs[2], const char *name,
                                       const char *(*fault)(cpl_pool *pool, const json_t *file));

#endif /* CPL_COMPARE_RUN_RECORD_H */
