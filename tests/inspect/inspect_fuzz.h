/* inspect_fuzz.h - damaged checkpoints through all of inspection: opened, measured, told as JSON.
 * Always a status with a sentence, or a report whose every layer has figures or a reason; never a
 * crash, a leak, more memory than was allowed, or a wait without end. */
#ifndef CPL_TESTS_INSPECT_INSPECT_FUZZ_H
#define CPL_TESTS_INSPECT_INSPECT_FUZZ_H

#include <math.h>

#include "base/arena.h"
#include "fuzz.h"
#include "inspect/report.h"
#include "inspect/show/show.h"
#include "io/file.h"

enum {
    ROUNDS        = 500,
    MOST_MEMORY   = 1 << 25, /* of an inspection */
    MEMORY_BESIDE = 1 << 23  /* what names and settings of so small files may take */
};

static const double MOST_SECONDS = 20; /* of the processor, for one inspection */

static inline const char *in(const char *folder, const char *name)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline double processor_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline cpl_inspect_options any_options(fuzz *f)
{
    static const int64_t layers[] = {0, 1};
    cpl_inspect_options o         = {.alphas = {1, 2}, .n_alphas = 2};
    o.memory_bytes                = MOST_MEMORY;
    o.n_threads                   = 1 + (int)fuzz_below(f, 2);
    o.noisy                       = fuzz_below(f, 4) == 0;
    o.rows                        = fuzz_below(f, 32) == 0;
    if (fuzz_below(f, 8) == 0) o.layers = layers, o.n_layers = 1 + (int64_t)fuzz_below(f, 2);
    return o;
}

/* Every layer has figures, or a reason why not. */
static inline void check_report(const cpl_coupling_report *r)
{
    int64_t measured = 0;
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_layer_report *layer = &r->layers[l];
        const cpl_moe_layer *at       = layer->at;
        measured += !layer->fault;
        if (layer->fault) {
            assert_true(*layer->fault && !layer->has_M);
            continue;
        }
        assert_false(layer->skipped || at->skip || at->fault);
        assert_true(at->n >= 1 && at->d >= 1 && at->D >= 1);
        assert_true(layer->has_M == at->comparable);
        assert_true(isfinite(layer->erc[0]) && isfinite(layer->chance.kappa_diagonal));
        for (int64_t i = 0; i < at->n; i++) {
            assert_true(isfinite(layer->eps[i]) && isfinite(layer->gate_norm[i]));
            assert_true(isfinite(layer->router_norm[i]));
            for (int64_t j = 0; j < i; j++)
                assert_true(isfinite(layer->cosine[i * (i - 1) / 2 + j]));
            for (int64_t j = 0; j < at->n; j++) assert_true(layer->M[i * at->n + j] >= 0);
        }
    }
    assert_int_equal(measured, r->n_measured);
    assert_true(!r->options.rows || r->rows.file || r->layers[r->rows.index].fault);
}

static inline void check_json(const cpl_coupling_report *r)
{
    json_t *json = cpl_coupling_json(r, 1), *value;
    size_t i, count = 0;
    assert_non_null(json);
    static const char *const lists[] = {"layers", "skipped", "faulty"};
    for (int k = 0; k < 3; k++) json_array_foreach(json_object_get(json, lists[k]), i, value)
        {
            count++;
            assert_true(k == 0 || json_string_length(json_object_get(value, "reason")) > 0);
        }
    assert_int_equal(count, r->n_layers);
    assert_true(json_string_length(json_object_get(json, "verdict")) > 0);
    json_decref(json);
}

/* Inspects, within bounds of time and memory; returns how many layers have figures, -1 on failure.
 */
static inline int64_t inspect(const char *path, const cpl_inspect_options *options)
{
    cpl_coupling_report report;
    cpl_inspect_cost cost;
    const int64_t held = cpl_alloc_in_use();
    const double began = processor_clock();
    int64_t measured   = -1;
    (void)cpl_alloc_peak();
    cpl_status status = cpl_inspect_open(&report, &cost, path, options, NULL);
    if (status == CPL_OK) {
        assert_true(cost.memory_bytes <= options->memory_bytes && cost.bytes >= 0);
        status = cpl_inspect_run(&report);
        if (status == CPL_OK) {
            check_report(&report);
            check_json(&report);
            measured = report.n_measured;
        }
        cpl_inspect_close(&report);
    }
    if (status != CPL_OK && strlen(cpl_last_error()) < 10) fail_msg("no sentence for %d", status);
    assert_true(cpl_alloc_peak() - held <= MOST_MEMORY + MEMORY_BESIDE);
    assert_int_equal(cpl_alloc_in_use(), held);
    if (processor_clock() - began > MOST_SECONDS) fail_msg("%s takes too long", path);
    return measured;
}

typedef struct outcomes {
    int64_t rounds, refused, partly, whole; /* what came of the rounds, with keep_going */
} outcomes;

/* Both ways: what one thread at a time says without a fault is said with keep_going too. */
static inline void inspect_twice(fuzz *f, const char *path, outcomes *to)
{
    cpl_inspect_options options = any_options(f);
    const int64_t strict        = inspect(path, &options);
    options.keep_going          = true;
    const int64_t kept          = inspect(path, &options);
    assert_true(strict <= kept);
    to->rounds++;
    to->refused += kept < 0;
    to->partly += kept >= 0 && strict < 0;
    to->whole += strict >= 0;
}

static inline void tell(const char *what, const outcomes *o)
{
    print_message("%-12s %lld rounds: %lld refused, %lld in part, %lld without a fault\n", what,
                  (long long)o->rounds, (long long)o->refused, (long long)o->partly,
                  (long long)o->whole);
    if (!fuzz_is_alone()) assert_true(o->refused && o->partly && o->whole);
}

/* Which round it is, for whoever finds the folder after a crash. */
static inline void note_round(const char *folder, int64_t round)
{
    FILE *out = fopen(in(folder, "round"), "w");
    fprintf(out, "COUPLET_FUZZ_ROUND=%lld\n", (long long)round);
    fclose(out);
}

#endif /* CPL_TESTS_INSPECT_INSPECT_FUZZ_H */
