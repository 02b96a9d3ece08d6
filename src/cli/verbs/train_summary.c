/* train_summary.c - see internal.h */
#include "cli/verbs/internal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "cli/terminal/output.h"
#include "io/file.h"
#include "io/json.h"
#include "io/stream.h"
#include "tensor/figures.h"

enum { LINE_BYTES = 1 << 24 }; /* largest length of a line of metrics.jsonl */

/* ---- reading ---- */

static cpl_status load_start(json_t **out, const char *run)
{
    char *path = cpl_path_join(run, "start.json");
    if (!path) return CPL_ERR_MEMORY;
    cpl_status status = cpl_json_load(out, path);
    cpl_free(path);
    return status;
}

/* Sets `*out` to the last line that has an evaluation, if there is one. */
static cpl_status find_last(json_t **out, cpl_pieces *lines)
{
    for (cpl_piece line;;) {
        CPL_TRY(cpl_pieces_next(lines, &line));
        if (line.end) return CPL_OK;
        json_t *object = line.too_long ? NULL : json_loadb(line.bytes, line.length, 0, NULL);
        if (json_object_get(object, "val_loss")) {
            json_decref(*out);
            *out = json_incref(object);
        }
        json_decref(object);
    }
}

static cpl_status load_end(json_t **out, const char *run)
{
    cpl_stream *stream = NULL;
    cpl_pieces lines   = {0};
    char *path         = cpl_path_join(run, "metrics.jsonl");
    cpl_status status  = path ? CPL_OK : CPL_ERR_MEMORY;
    CPL_TRY_DONE(status);
    CPL_TRY_DONE(cpl_stream_open(&stream, path, CPL_ZSTD_WINDOW_LOG));
    CPL_TRY_DONE(cpl_pieces_init(&lines, stream, "\n", LINE_BYTES));
    CPL_TRY_DONE(find_last(out, &lines));
    if (!*out) status = CPL_FAIL(CPL_ERR_INPUT, "%s: no line with an evaluation", path);
done:
    cpl_pieces_free(&lines);
    cpl_stream_close(stream);
    cpl_free(path);
    return status;
}

/* ---- printing ---- */

enum { POWER = -1 }; /* digits of a value that spans many powers of ten: the coupling loss */

static void print_cell(const json_t *number, int width, int digits)
{
    if (!json_is_number(number))
        printf("%*s", width, "-");
    else if (digits == POWER)
        printf("%*.1e", width, json_number_value(number));
    else
        printf("%*.*f", width, digits, json_number_value(number));
}

static const json_t *of_layer(const json_t *line, const char *key, size_t layer)
{
    const char *old       = cpl_figure_old_name(key); /* for runs begun by an older version */
    const json_t *numbers = json_object_get(line, key);
    if (!numbers && old) numbers = json_object_get(line, old);
    return json_array_get(numbers, layer);
}

static void print_with_spread(const json_t *line, const char *mean, const char *sd, size_t layer)
{
    print_cell(of_layer(line, mean, layer), 9, 3);
    printf(" +-");
    print_cell(of_layer(line, sd, layer), 6, 3);
}

/* Prints the load of a layer's experts, the last cells of a line. */
static void print_load(const json_t *line, size_t layer)
{
    print_cell(of_layer(line, "load_max", layer), 8, 2);
    print_cell(of_layer(line, "dead_experts", layer), 5, 0);
    putchar('\n');
}

/* Prints two values in columns of ten, the last cells of a line. */
static void print_pair(const json_t *before, const json_t *after)
{
    print_cell(before, 10, 4);
    print_cell(after, 10, 4);
    putchar('\n');
}

static void print_losses(const json_t *start, const json_t *end)
{
    const char *label;
    json_t *after;
    json_t *before = json_object_get(start, "val_loss_by_source");
    if (!json_object_size(before)) return;
    printf("\nHeld-out loss (nats per token)\n%-24s%10s%10s\n", "source", "before", "after");
    json_object_foreach(json_object_get(end, "val_loss_by_source"), label, after)
    {
        cpl_output_name(stdout, label, 24);
        print_pair(json_object_get(before, label), after);
    }
    printf("%-24s", "all");
    print_pair(json_object_get(start, "val_loss"), json_object_get(end, "val_loss"));
}

static void print_layers(const json_t *start, const json_t *end)
{
    size_t layers = json_array_size(json_object_get(end, "erc_clean"));
    printf(
        "\nCoupling of router and experts (clean router rows; load: largest share over the mean)\n"
        "%-6s%19s%18s%19s%19s%13s\n%-6s%9s%10s%9s%9s%19s%19s%8s%5s\n",
        "", "ERC", "eps", "|R|", "|W_g|", "load", "layer", "before", "after", "before", "after",
        "after", "after", "max", "dead");
    for (size_t l = 0; l < layers; l++) {
        printf("%-6zu", l);
        print_cell(of_layer(start, "erc_clean", l), 9, POWER);
        print_cell(of_layer(end, "erc_clean", l), 10, POWER);
        print_cell(of_layer(start, "eps_mean", l), 9, 3);
        print_cell(of_layer(end, "eps_mean", l), 9, 3);
        print_with_spread(end, "router_norm_mean", "router_norm_std", l);
        print_with_spread(end, "gate_norm_mean", "gate_norm_std", l);
        print_load(end, l);
    }
}

/* Prints the load of the experts, for a model without a router. */
static void print_loads(const json_t *end)
{
    size_t layers = json_array_size(json_object_get(end, "load_max"));
    printf("\nLoad of the experts (largest share over the mean)\n%-6s%8s%5s\n", "layer", "max",
           "dead");
    for (size_t l = 0; l < layers; l++) {
        printf("%-6zu", l);
        print_load(end, l);
    }
}

cpl_status cpl_train_summary_print(const char *run, const cpl_log *log)
{
    json_t *start = NULL, *end = NULL;
    cpl_status status = CPL_OK;
    if (load_start(&start, run) != CPL_OK) /* the run is complete without this file */
        cpl_log_warn(log, "the figures before the first step are left out: %s", cpl_last_error());
    CPL_TRY_DONE(load_end(&end, run));
    print_losses(start, end);
    if (json_object_get(end, "erc_clean"))
        print_layers(start, end);
    else
        print_loads(end);
done:
    json_decref(start);
    json_decref(end);
    return status;
}
