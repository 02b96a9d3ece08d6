/* run_lines.c - the lines of a run's metrics, into its record; see internal.h */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/stats/statistics.h"
#include "compare/internal.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "io/stream.h"
#include "tensor/figures.h"

static double number_of(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* ---- a line ---- */

/* The member of figure f, in older files under its old key; NULL: none. */
static json_t *figure_of(const json_t *object, int f)
{
    const char *key = cpl_run_figures[f].key, *old = cpl_figure_old_name(key);
    json_t *member = json_object_get(object, key);
    return member || !old ? member : json_object_get(object, old);
}

static int64_t layers_of(const json_t *object)
{
    size_t most = 0;
    for (int f = 0; f < CPL_RUN_FIGURES; f++) {
        const size_t n = json_array_size(figure_of(object, f));
        if (cpl_run_figures[f].of == CPL_RUN_OF_LAYERS && n > most) most = n;
    }
    return (int64_t)most;
}

static bool take_figures(cpl_run_record *run, cpl_run_line *line, const json_t *object)
{
    const int64_t L = line->n_layers = layers_of(object);
    line->layers = cpl_pool_take(&run->pool, (size_t)(CPL_RUN_FIGURES * L) * sizeof(double));
    if (!line->layers) return false;
    for (int f = 0; f < CPL_RUN_FIGURES; f++) {
        const json_t *member = figure_of(object, f);
        double *layers       = line->layers + f * L;
        for (int64_t l = 0; l < L; l++) layers[l] = number_of(json_array_get(member, (size_t)l));
        line->values[f] = cpl_run_figures[f].of == CPL_RUN_OF_LAYERS ? cpl_spread_of(layers, L).mean
                                                                     : number_of(member);
    }
    return true;
}

static cpl_status know_source(cpl_strings *sources, const char *label)
{
    for (int64_t i = 0; i < sources->count; i++)
        if (strcmp(sources->at[i], label) == 0) return CPL_OK;
    return cpl_paths_add(sources, label);
}

static bool take_sources(cpl_run_record *run, cpl_run_line *line, const json_t *losses)
{
    const char *label;
    json_t *value, *all = (json_t *)losses;
    json_object_foreach(all, label, value)
    {
        if (know_source(&run->sources, label) != CPL_OK) return false;
    }
    line->n_sources = run->sources.count;
    line->sources   = cpl_pool_take(&run->pool, (size_t)line->n_sources * sizeof(double));
    if (!line->sources) return false;
    for (int64_t i = 0; i < line->n_sources; i++)
        line->sources[i] = number_of(json_object_get(losses, run->sources.at[i]));
    return true;
}

/* ---- what is no line ---- */

static bool is_number_or_null(const json_t *value)
{
    return json_is_number(value) || json_is_null(value);
}

/* Whether it is null, or an array or object (`type`) of numbers and nulls. */
static bool holds_numbers(json_t *values, json_type type)
{
    size_t i;
    const char *key;
    json_t *value;
    json_array_foreach(values, i, value)
    {
        if (!is_number_or_null(value)) return false;
    }
    json_object_foreach(values, key, value)
    {
        if (!is_number_or_null(value)) return false;
    }
    return json_is_null(values) || json_typeof(values) == type;
}

/* Whether the figures are what a step has: a loss, null if it was not finite, some figure that
 * is a number, and none that is something else. */
static bool has_figures(const json_t *object)
{
    bool any        = false;
    json_t *sources = json_object_get(object, "val_loss_by_source");
    for (int f = 0; f < CPL_RUN_FIGURES; f++) {
        if (cpl_run_figures[f].of == CPL_RUN_OF_RUN) continue;
        json_t *member    = figure_of(object, f);
        const bool layers = cpl_run_figures[f].of == CPL_RUN_OF_LAYERS;
        if (member && !(layers ? holds_numbers(member, JSON_ARRAY) : is_number_or_null(member)))
            return false;
        any = any || json_is_number(member);
    }
    return any && json_object_get(object, "loss") &&
           (!sources || holds_numbers(sources, JSON_OBJECT));
}

/* Tokens of the step; NaN: the line gives wrong ones, or there is no source for them. */
static double tokens_of(const json_t *object, double step, double batch_tokens)
{
    const json_t *member = json_object_get(object, "tokens");
    const double want = step * batch_tokens, said = member ? number_of(member) : want;
    return isnan(want) || fabs(said - want) < 0.5 ? said : (double)NAN;
}

static cpl_status take_line(cpl_run_record *run, cpl_run_line *line, const json_t *object)
{
    if (take_figures(run, line, object) &&
        take_sources(run, line, json_object_get(object, "val_loss_by_source")))
        return cpl_pool_status(&run->pool);
    return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the metrics of %s", run->folder);
}

/* ---- the file ---- */

static cpl_status append_line(cpl_run_record *run, const cpl_run_line *line)
{
    if (run->n_lines == run->line_capacity) {
        const int64_t capacity = run->line_capacity ? 2 * run->line_capacity : 256;
        cpl_run_line *more     = cpl_realloc(run->lines, (size_t)capacity * sizeof *more);
        if (!more) return CPL_ERR_MEMORY;
        run->lines         = more;
        run->line_capacity = capacity;
    }
    run->lines[run->n_lines++] = *line;
    return CPL_OK;
}

static cpl_status read_object(cpl_run_record *run, const json_t *object, double batch_tokens)
{
    cpl_run_line line = {0};
    const double step = number_of(json_object_get(object, "step"));
    line.tokens       = tokens_of(object, step, batch_tokens);
    if (!(step >= 0 && step < 0x1p53 && step == floor(step) && line.tokens >= 0 &&
          line.tokens < 1e18 && has_figures(object))) {
        run->n_damaged++;
        return CPL_OK;
    }
    line.step = (int64_t)step;
    CPL_TRY(take_line(run, &line, object));
    return append_line(run, &line);
}

static bool is_blank(const cpl_piece *piece)
{
    for (size_t i = 0; i < piece->length; i++)
        if (!memchr(" \t\r", piece->bytes[i], 3)) return false;
    return true;
}

static cpl_status read_piece(cpl_run_record *run, const cpl_piece *piece, double batch_tokens)
{
    if (!piece->too_long && is_blank(piece)) return CPL_OK;
    json_t *object    = piece->too_long ? NULL : json_loadb(piece->bytes, piece->length, 0, NULL);
    cpl_status status = CPL_OK;
    if (json_is_object(object))
        status = read_object(run, object, batch_tokens);
    else
        run->n_damaged++;
    json_decref(object);
    return status;
}

/* A compressed file that is cut has the lines before the cut. */
static cpl_status read_pieces(cpl_run_record *run, cpl_pieces *pieces, double batch_tokens)
{
    for (;;) {
        cpl_piece piece;
        cpl_status status = cpl_pieces_next(pieces, &piece);
        if (status == CPL_ERR_MEMORY || status == CPL_ERR_IO) return status;
        if (status != CPL_OK) {
            run->cut = cpl_pool_printf(&run->pool, "%s", cpl_last_error());
            return CPL_OK;
        }
        if (piece.end) return CPL_OK;
        CPL_TRY(read_piece(run, &piece, batch_tokens));
    }
}

/* The place of the step among the lines: of the first that is not below it. */
static int64_t place_of(const cpl_run_record *run, int64_t n, int64_t step)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (run->lines[middle].step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Brings the lines, in the order of the file, into the order of steps; of several lines of a step
 * the last one stays. */
static void sort_steps(cpl_run_record *run)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < run->n_lines; i++) {
        const cpl_run_line line = run->lines[i];
        const int64_t at        = place_of(run, kept, line.step);
        if (at < kept && run->lines[at].step == line.step) {
            run->n_repeated++;
        } else {
            memmove(run->lines + at + 1, run->lines + at, (size_t)(kept - at) * sizeof line);
            kept++;
        }
        run->lines[at] = line;
    }
    run->n_lines = kept;
}

/* Sets `before` of every line to the one before it in the longest row of lines that ends there and
 * whose tokens rise, -1 none; returns the last line of the longest row of all. `ends[k]` is the
 * line with the fewest tokens that ends a row of k + 1. */
static int64_t find_rising(int64_t *before, int64_t *ends, const cpl_run_line *lines, int64_t n)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t low = 0, high = longest;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (lines[ends[middle]].tokens < lines[i].tokens)
                low = middle + 1;
            else
                high = middle;
        }
        before[i] = low ? ends[low - 1] : -1;
        ends[low] = i;
        if (low == longest) longest++;
    }
    return longest ? ends[longest - 1] : -1;
}

/* Leaves out the fewest lines without which tokens rise with the steps. */
static cpl_status drop_falling(cpl_run_record *run)
{
    const size_t n  = (size_t)run->n_lines;
    int64_t *before = cpl_alloc((2 * n + 1) * sizeof *before), at = run->n_lines;
    if (!before)
        return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the metrics of %s", run->folder);
    for (int64_t i = find_rising(before, before + n, run->lines, run->n_lines); i >= 0;
         i         = before[i])
        run->lines[--at] = run->lines[i];
    run->n_damaged += at;
    run->n_lines -= at;
    if (at) memmove(run->lines, run->lines + at, (size_t)run->n_lines * sizeof *run->lines);
    cpl_free(before);
    return CPL_OK;
}

cpl_status cpl_run_lines_read(cpl_run_record *run, const char *path, double batch_tokens)
{
    cpl_stream *stream = NULL;
    cpl_pieces pieces  = {0};
    cpl_status status  = CPL_OK;
    CPL_TRY_DONE(cpl_stream_open(&stream, path, CPL_ZSTD_WINDOW_LOG));
    cpl_stream_limit(stream, CPL_RUN_METRICS_BYTES);
    CPL_TRY_DONE(cpl_pieces_init(&pieces, stream, "\n", CPL_RUN_LINE_BYTES));
    CPL_TRY_DONE(read_pieces(run, &pieces, batch_tokens));
    sort_steps(run);
    CPL_TRY_DONE(drop_falling(run));
    if (run->n_lines == 0 && run->cut)
        status = CPL_FAIL(CPL_ERR_INPUT, "%s: no line of its metrics could be read: %s",
                          run->folder, run->cut);
    else if (run->n_lines == 0 && run->n_damaged)
        status =
            CPL_FAIL(CPL_ERR_INPUT,
                     "%s: none of the %lld lines of its metrics has a step, its tokens and a loss",
                     run->folder, (long long)run->n_damaged);
done:
    cpl_pieces_free(&pieces);
    cpl_stream_close(stream);
    return status;
}

/* A member that is a text; NULL: it is none, or empty. */
static const char *text_of(cpl_run_record *run, const json_t *object, const char *key)
{
    const json_t *member = json_object_get(object, key);
    const size_t length  = json_string_length(member);
    return length ? cpl_pool_copy(&run->pool, json_string_value(member), length) : NULL;
}

cpl_status cpl_run_lines_start(cpl_run_record *run, const char *path)
{
    json_t *object    = NULL;
    cpl_status status = CPL_OK;
    CPL_TRY(cpl_json_load(&object, path));
    if (!json_is_object(object)) {
        json_decref(object);
        return CPL_FAIL(CPL_ERR_INPUT, "%s: is no JSON object", path);
    }
    run->data      = text_of(run, object, "data");
    run->held_out  = text_of(run, object, "held_out");
    run->tokenizer = text_of(run, object, "tokenizer");
    status         = take_line(run, &run->start, object);
    for (int f = 0; f < CPL_RUN_FIGURES; f++)
        if (!cpl_run_figures[f].at_start) run->start.values[f] = (double)NAN;
    run->has_start = status == CPL_OK;
    json_decref(object);
    return status;
}
