/* row_coverage.c - how often do the intervals and bounds of `couplet inspect --sample` hold, and
 * what do they say?
 *
 * usage:   row_coverage LAYERS [CHECKPOINT ...]        (make intervals)
 * Does:    draws samples of layers, at every share of score.c, as `inspect --sample` draws them, and
 *          compares what they give with the figures of all rows. Without CHECKPOINT these are LAYERS
 *          random layers of each kind (fewer of the large ones, with SAMPLES of each); with it LAYERS
 *          samples of the layers of each checkpoint.
 * Prints:  the tables of docs/sampling.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "inspect/report.h"
#include "score.h"

enum { SAMPLES = 4 }; /* of each layer, where there are fewer layers */

static const cover_kind kinds[] = {
    {"random", 16, 64, 1024, 0, 0, false, 0, 1},
    {"random, 64 experts", 64, 64, 512, 0, 0, false, 0, 4},
    {"weakly coupled, router rows with a common part", 16, 64, 1024, 0.5, 0.3, false, 1, 1},
    {"coupled", 16, 64, 1024, 3, 0.3, false, 0, 1},
    {"coupled, few experts", 8, 16, 1024, 1.5, 0, false, 0, 1},
    {"coupled, more rows", 16, 64, 4096, 3, 0.3, false, 0, 4},
    {"rows of gates sorted by norm", 16, 64, 1024, 0, 0.3, true, 0, 1},
    {"norms of rows lognormal with 0.5", 16, 64, 1024, 0, 0.5, false, 2, 1},
    {"norms of rows lognormal with 1", 16, 64, 1024, 1, 1, false, 0, 1},
    {"the same, sorted by norm", 16, 64, 1024, 1, 1, true, 0, 1},
    {"64 experts, coupled with 0.7", 64, 64, 512, 0.7, 0.3, false, 0, 10},
    {"64 experts, coupled with 1", 64, 64, 512, 1, 0.3, false, 0, 10},
    {"64 experts, coupled with 2", 64, 64, 512, 2, 0.3, false, 0, 10},
    {"64 experts, coupled with 3", 64, 64, 512, 3, 0.3, false, 0, 10},
    {"256 experts, coupled with 0.7", 256, 64, 512, 0.7, 0.3, false, 0, 50},
    {"256 experts, coupled with 1", 256, 64, 512, 1, 0.3, false, 0, 50},
    {"256 experts, coupled with 2", 256, 64, 512, 2, 0.3, false, 0, 50},
    {"256 experts, coupled with 3", 256, 64, 512, 3, 0.3, false, 0, 50},
};

static void try_kind(const cover_kind *k, int64_t wanted, cpl_text lines[2])
{
    const int64_t layers = (wanted + k->fewer - 1) / k->fewer;
    cover_score s        = cover_score_new(layers, k->fewer > 1 ? SAMPLES : 1);
    printf("\nn = %d, d = %d, D = %d", (int)k->n, (int)k->d, (int)k->D);
#pragma omp parallel for schedule(dynamic)
    for (int64_t r = 0; r < layers; r++) {
        cover_layer l = cover_layer_random(k, (uint64_t)r + 1);
        cover_score_layer(&s, r, &l);
        cover_layer_free(&l);
    }
    cover_score_print(&s, lines, k->name);
    cover_score_free(&s);
}

static void try_checkpoint(const char *path, int64_t wanted, cpl_text lines[2])
{
    const cpl_inspect_options options = {.n_threads = 1, .memory_bytes = (double)INFINITY};
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    cover_ok(cpl_inspect_open(&report, &cost, path, &options, NULL));
    cover_score s = cover_score_new(report.n_layers, wanted / report.n_layers);
    printf("\n%s: n = %d, d = %d, D = %d", path, (int)report.layers[0].at->n,
           (int)report.layers[0].at->d, (int)report.layers[0].at->D);
    for (int64_t k = 0; k < report.n_layers; k++) {
        cover_layer l = cover_layer_read(report.layers[k].at);
        cover_score_layer(&s, k, &l);
        cover_layer_free(&l);
    }
    cover_score_print(&s, lines, report.name);
    cover_score_free(&s);
    cpl_inspect_close(&report);
}

int main(int argc, char **argv)
{
    const int64_t layers = argc > 1 ? atoll(argv[1]) : 0;
    cpl_text lines[2]    = {0};
    if (layers < 1) {
        fprintf(stderr, "usage: row_coverage LAYERS [CHECKPOINT ...]\n");
        return 2;
    }
    for (int k = 2; k < argc; k++) try_checkpoint(argv[k], layers, lines);
    for (size_t k = 0; argc < 3 && k < sizeof kinds / sizeof *kinds; k++)
        try_kind(&kinds[k], layers, lines);
    cover_score_print_last(lines);
    for (int k = 0; k < 2; k++) cpl_text_free(&lines[k]);
    return 0;
}
