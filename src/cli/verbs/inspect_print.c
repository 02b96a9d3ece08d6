/* inspect_print.c - see internal.h */
#include "cli/verbs/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/terminal/output.h"
#include "inspect/show/show.h"

/* ---- the expected cost ---- */

static const char *duration(char out[32], double seconds)
{
    if (!(seconds < 1e7))
        snprintf(out, 32, "-");
    else if (seconds < 9.5)
        snprintf(out, 32, "%.1f s", seconds > 0.1 ? seconds : 0.1);
    else if (seconds < 100)
        snprintf(out, 32, "%.0f s", seconds);
    else
        snprintf(out, 32, "%.1f min", seconds / 60);
    return out;
}

/* Prints the bytes to fetch from a server, the requests, and the bytes fetched in addition. */
static void print_requests(const cpl_inspect_cost *cost)
{
    char bytes[32], all[32], kept[32], shared[32];
    const cpl_origin_plan *plan = &cost->reading;
    fprintf(stderr, ": %s of %s to fetch in %lld request%s (after %lld for names and shapes)",
            cpl_text_bytes(bytes, plan->bytes), cpl_text_bytes(all, cost->files_bytes),
            (long long)plan->n_requests, plan->n_requests == 1 ? "" : "s",
            (long long)plan->n_requests_made);
    if (plan->kept_bytes > 0)
        fprintf(stderr, ", %s more from the cache", cpl_text_bytes(kept, plan->kept_bytes));
    if (cost->shared_bytes > 0)
        fprintf(stderr, "; %s are up projections that lie among the gates and come along",
                cpl_text_bytes(shared, cost->shared_bytes));
}

void cpl_inspect_print_cost(const cpl_coupling_report *r, const cpl_inspect_cost *cost,
                            double base_bytes)
{
    char bytes[32], whole[48] = "", of[32], memory[32], rows[32], time[32];
    cpl_output_words(stderr, r->path);
    if (r->options.sample > 0)
        snprintf(whole, sizeof whole, " of %s", cpl_text_bytes(of, cost->whole_bytes));
    if (r->options.origin)
        print_requests(cost);
    else
        fprintf(stderr, ": %s%s to read", cpl_text_bytes(bytes, cost->bytes), whole);
    fprintf(stderr, ", %.3g FLOPs, about %s on %d thread%s%s; at most %s of memory", cost->flops,
            duration(time, cost->seconds), cost->n_threads, cost->n_threads == 1 ? "" : "s",
            r->options.origin ? " without the fetching" : "",
            cpl_text_bytes(memory, base_bytes + cost->memory_bytes));
    if (cost->rows_bytes > 0)
        fprintf(stderr, ", then %s for --rows", cpl_text_bytes(rows, cost->rows_bytes));
    fputc('\n', stderr);
}

/* ---- one checkpoint ---- */

static cpl_status print_table(const cpl_coupling_report *r, cpl_inspect_table table)
{
    cpl_pool pool = {0};
    cpl_grid grid = {0};
    return cpl_output_grid(cpl_inspect_grid(&grid, &pool, r, table), &grid, &pool);
}

/* Facts that hold for many layers are printed once, with the layers. */
static void print_range(const cpl_coupling_report *r, int64_t first, int64_t last)
{
    const cpl_moe_layer *from = r->layers[first].at, *to = r->layers[last].at;
    cpl_output_words(stdout, from->part);
    if (*from->part) putchar(' ');
    if (first == last)
        printf("layer %lld", (long long)from->layer);
    else
        printf("layers %lld to %lld", (long long)from->layer, (long long)to->layer);
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_shape(const cpl_layer_report *a, const cpl_layer_report *b)
{
    return a->at->n == b->at->n && a->at->d == b->at->d && a->at->D == b->at->D &&
           a->at->K == b->at->K && !a->fault == !b->fault && same_text(a->at->note, b->at->note) &&
           same_text(a->at->part, b->at->part) && a->at->comparable == b->at->comparable &&
           a->at->biased == b->at->biased && a->at->extra_rows == b->at->extra_rows;
}

/* Prints the shape of a layer. The note names the router's rows that are left out. */
static void print_shape(const cpl_layer_report *l)
{
    const cpl_moe_layer *at = l->at;
    printf(": %lld expert%s (chance: %.3g %%), ", (long long)at->n, at->n == 1 ? "" : "s",
           100.0 / (double)at->n);
    if (at->K) printf("%lld per token, ", (long long)at->K);
    printf("d = %lld, ", (long long)at->d);
    if (at->projection.weight) printf("l = %lld, ", (long long)at->l);
    printf("D = %lld", (long long)at->D);
    if (at->biased) printf("; biases are left out");
    if (!at->comparable)
        printf("; router and experts read differently normalised vectors: no M, no ERC");
    if (!at->note) return;
    fputs("; ", stdout);
    cpl_output_words(stdout, at->note);
}

static void print_shapes(const cpl_coupling_report *r)
{
    for (int64_t first = 0, i = 1; i <= r->n_layers; i++) {
        if (i < r->n_layers && same_shape(&r->layers[first], &r->layers[i]) &&
            r->layers[i].at->layer == r->layers[i - 1].at->layer + 1)
            continue;
        if (!r->layers[first].fault) {
            print_range(r, first, i - 1);
            print_shape(&r->layers[first]);
            putchar('\n');
        }
        first = i;
    }
}

static void print_left_out(const cpl_coupling_report *r)
{
    for (int64_t i = 0; i < r->n_layers; i++) {
        if (!r->layers[i].fault) continue;
        print_range(r, i, i);
        printf(" %s: ", r->layers[i].skipped ? "is left out" : "could not be read");
        cpl_output_sentence(stdout, "", r->layers[i].fault);
    }
    if (r->map.n_dense)
        printf("%lld layer%s without routed experts\n", (long long)r->map.n_dense,
               r->map.n_dense == 1 ? "" : "s");
    if (r->map.n_mtp)
        printf("%lld multi-token-prediction layer%s left out\n", (long long)r->map.n_mtp,
               r->map.n_mtp == 1 ? "" : "s");
}

/* Prints the number of rows read of each gate. Layers of equal shape share the line. */
static void print_sample(const cpl_coupling_report *r)
{
    const cpl_layer_report *before = NULL;
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *l = &r->layers[i];
        if (l->fault || !l->sample || (before && before->at->D == l->at->D)) continue;
        if (l->sample->plan.whole)
            printf("sample: all %lld rows of every gate are read: figures are exact\n",
                   (long long)l->at->D);
        else
            printf("sample: %lld of the %lld rows of every gate, in %lld blocks, seed %llu\n",
                   (long long)l->sample->rows, (long long)l->at->D,
                   (long long)l->sample->plan.n_read, (unsigned long long)r->options.seed);
        before = l;
    }
}

static void print_head(const cpl_coupling_report *r)
{
    const char *guess = r->map.guess ? r->map.guess : "unlisted family";
    cpl_output_words(stdout, r->path);
    fputs(": ", stdout);
    cpl_output_words(stdout, r->map.title && *r->map.title ? r->map.title : r->map.family);
    if (r->map.guessed) {
        fputs(" (a guess: ", stdout);
        cpl_output_words(stdout, guess);
        putchar(')');
    }
    putchar('\n');
    print_shapes(r);
    print_left_out(r);
    for (int64_t i = 0; i < r->map.n_notes; i++)
        cpl_output_sentence(stdout, "note: ", r->map.notes[i]);
    if (r->options.noisy)
        printf("note: M is that of noisy proxies, seed %llu\n",
               (unsigned long long)r->options.noise_seed);
    print_sample(r);
}

/* Prints a sentence that explains an infinite alpha_min, if a layer has one. */
static void print_infinite(const cpl_coupling_report *r)
{
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *l = &r->layers[i];
        if (l->fault || !l->has_M || !isinf(l->ratios.most)) continue;
        print_range(r, i, i);
        printf(": alpha_min is infinite: a router row and its own expert give exactly 0, so no "
               "alpha makes ERC 0 (rows %lld and %lld)\n",
               (long long)l->ratios.most_row, (long long)l->ratios.most_column);
    }
}

static cpl_status print_agreement(const cpl_coupling_report *r)
{
    if (r->options.sample > 0) return print_table(r, CPL_TABLE_SAMPLE);
    CPL_TRY(print_table(r, CPL_TABLE_AGREEMENT));
    return r->options.noisy ? CPL_OK : print_table(r, CPL_TABLE_CENTRED);
}

cpl_status cpl_inspect_print(const cpl_coupling_report *r)
{
    cpl_text verdict = {0};
    print_head(r);
    CPL_TRY(print_agreement(r));
    CPL_TRY(print_table(r, CPL_TABLE_RAW));
    if (r->options.silhouette) CPL_TRY(print_table(r, CPL_TABLE_CLUSTERS));
    print_infinite(r);
    cpl_coupling_verdict(&verdict, r);
    putchar('\n');
    return cpl_output_verdict(&verdict);
}

/* ---- several checkpoints ---- */

cpl_status cpl_inspect_print_compare(const cpl_coupling_report *reports, int64_t count)
{
    cpl_pool pool = {0};
    cpl_grid grid = {0};
    printf("\nSide by side: means over layers, free of the scale of the weights");
    if (!(reports[0].options.sample > 0)) printf("; ERC at alpha %g", reports[0].options.alphas[0]);
    putchar('\n');
    for (int64_t i = 0; i < count; i++) {
        const char *words = cpl_coupling_state_of(&reports[i]).words;
        printf("  (%lld) ", (long long)i + 1);
        cpl_output_words(stdout, reports[i].path);
        printf("%s%s\n", words ? ": " : "", words ? words : "");
    }
    return cpl_output_grid(cpl_inspect_grid_compare(&grid, &pool, reports, count), &grid, &pool);
}
