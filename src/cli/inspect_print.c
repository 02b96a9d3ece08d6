/* inspect_print.c - see inspect_print.h */
#include "cli/inspect_print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "inspect/verdict.h"

enum { BAR_CELLS = 20 };

/* ---- before and while ---- */

static const char *duration(char out[32], double seconds)
{
    if (!(seconds < 1e7))
        snprintf(out, 32, "-");
    else if (seconds < 9.5)
        snprintf(out, 32, "%.1f s", seconds);
    else if (seconds < 100)
        snprintf(out, 32, "%.0f s", seconds);
    else
        snprintf(out, 32, "%.1f min", seconds / 60);
    return out;
}

void cpl_inspect_print_cost(const cpl_coupling_report *r, const cpl_inspect_cost *cost,
                            double base_bytes)
{
    char bytes[32], memory[32], picture[32], time[32];
    cpl_output_words(stderr, r->path);
    fprintf(stderr, ": %s to read, %.3g FLOPs, about %s on %d thread%s; at most %s of memory",
            cpl_text_bytes(bytes, cost->bytes), cost->flops, duration(time, cost->seconds),
            cost->n_threads, cost->n_threads == 1 ? "" : "s",
            cpl_text_bytes(memory, base_bytes + cost->memory_bytes));
    if (cost->picture_bytes > 0)
        fprintf(stderr, ", then %s for t-SNE", cpl_text_bytes(picture, cost->picture_bytes));
    fputc('\n', stderr);
}

static void print_progress(const cpl_inspect_progress *p)
{
    char read[32], all[32], left[32];
    const char *bytes = cpl_text_bytes(read, p->bytes_read);
    duration(left, p->seconds_left);
    if (p->layer >= 0)
        fprintf(stderr, "layer %lld  %s of %s  %s left", (long long)p->layer, bytes,
                cpl_text_bytes(all, p->bytes), left);
    else
        fprintf(stderr, "t-SNE  step %lld of %lld  %s left", (long long)p->iteration,
                (long long)p->iterations, left);
}

static double share_done(const cpl_inspect_progress *p)
{
    if (p->layer < 0) return p->iterations ? (double)p->iteration / (double)p->iterations : 0;
    return p->bytes > 0 ? p->bytes_read / p->bytes : 0;
}

static void draw_bar(const cpl_inspect_progress *p)
{
    const int full = (int)(BAR_CELLS * share_done(p));
    cpl_terminal_erase_line(stderr);
    fputc('[', stderr);
    for (int i = 0; i < BAR_CELLS; i++) fputc(i < full ? '=' : i == full ? '>' : ' ', stderr);
    fputs("] ", stderr);
    print_progress(p);
}

void cpl_inspect_bar_watch(void *ctx, const cpl_inspect_progress *p)
{
    static const double often = 0.1, seldom = 10; /* seconds between two drawings, two lines */
    cpl_inspect_bar *bar = ctx;
    if (!bar->begun) bar->terminal = isatty(STDERR_FILENO);
    bar->begun = true;
    if (p->seconds < bar->last) bar->last = 0; /* the next checkpoint */
    if (p->seconds - bar->last < (bar->terminal ? often : seldom)) return;
    bar->last = p->seconds;
    if (bar->terminal) {
        draw_bar(p);
        bar->drawn = true;
    } else {
        print_progress(p);
        fputc('\n', stderr);
    }
    fflush(stderr);
}

void cpl_inspect_bar_clear(cpl_inspect_bar *bar)
{
    if (bar->drawn) cpl_terminal_erase_line(stderr);
    bar->drawn = false;
    bar->last  = 0;
    fflush(stderr);
}

/* ---- cells ---- */

static void cell(double value, int width, int digits)
{
    if (isnan(value))
        printf("%*s", width, "-");
    else if (isinf(value))
        printf("%*s", width, value > 0 ? "inf" : "-inf");
    else if (fabs(value) >= 1e6)
        printf("%*.2g", width, value);
    else
        printf("%*.*f", width, digits, value);
}

/* Three digits, as short as may be: what depends on the scale of weights. */
static void cell_scaled(double value, int width)
{
    char digits[32];
    const double size = fabs(value);
    if (!isfinite(value) || value == 0) {
        cell(value, width, 0);
    } else if (size >= 1e-3 && size < 1e5) {
        const int decimals = 2 - (int)floor(log10(size));
        printf("%*.*f", width, decimals < 0 ? 0 : decimals > 4 ? 4 : decimals, value);
    } else {
        snprintf(digits, sizeof digits, "%.1e", value);
        char *exponent = strchr(digits, 'e') + 2; /* behind its sign */
        if (*exponent == '0') memmove(exponent, exponent + 1, strlen(exponent));
        printf("%*s", width, digits);
    }
}

static void percent(double share, int width)
{
    cell(100 * share, width, 1);
}

static void name_layer(const cpl_layer_report *l)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s%lld", l->at->part, *l->at->part ? " " : "",
             (long long)l->at->layer);
    cpl_output_name(stdout, name, 10);
}

/* ---- one checkpoint ---- */

static void print_agreement(const cpl_coupling_report *r)
{
    char alpha[32];
    snprintf(alpha, sizeof alpha, "alpha %g", r->options.alphas[0]);
    printf("\nAgreement, free of the scale of the weights\n"
           "%-10s%16s%7s%15s%7s%20s%31s\n%-10s%8s%8s%7s%7s%8s%7s%10s%10s%7s%7s%7s%10s\n",
           "", "kappa", "", "% own largest", "% as-", "ERC / mean diagonal", "M_ij / diagonal",
           "layer", "own", "others", "z", "row", "column", "signed", alpha, "random", "50 %",
           "90 %", "99 %", "alpha_min");
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *l = &r->layers[i];
        const cpl_null_model *c   = &l->chance;
        if (l->fault || !l->has_M) continue;
        name_layer(l);
        cell(c->kappa_diagonal, 8, 4);
        cell(c->kappa_off_diagonal, 8, 4);
        cell(c->z, 7, 2);
        percent(c->kappa_row_top1, 7);
        percent(c->kappa_column_top1, 8);
        percent(c->assignment_own, 7);
        cell_scaled(l->erc[0] / l->figures.m_diagonal, 10);
        cell_scaled(c->erc_mean[0] / l->figures.m_diagonal, 10);
        cell(l->ratios.q50, 7, 2);
        cell(l->ratios.q90, 7, 2);
        cell(l->ratios.q99, 7, 2);
        cell(l->ratios.most, 10, 2);
        putchar('\n');
    }
}

static void with_spread(double mean, double sd)
{
    cell_scaled(mean, 8);
    printf("+-");
    cell_scaled(sd, 6);
}

static void print_alphas(const cpl_inspect_options *o)
{
    for (int a = 0; a < o->n_alphas; a++) {
        char alpha[32];
        snprintf(alpha, sizeof alpha, "a=%g", o->alphas[a]);
        printf("%8s", alpha);
    }
}

static void print_norms(const cpl_coupling_figures *f)
{
    cell(f->eps_mean, 7, 3);
    cell(f->eps_min, 6, 3);
    cell(f->eps_max, 6, 3);
    with_spread(f->router_norm_mean, f->router_norm_std);
    with_spread(f->gate_norm_mean, f->gate_norm_std);
    cell(f->router_cos, 7, 3);
}

static void print_raw(const cpl_coupling_report *r)
{
    const cpl_inspect_options *o = &r->options;
    printf("\nRaw figures: ERC and norms depend on the scale of the weights, so they cannot be "
           "compared\nbetween models; eps says how far router rows are apart, and without coupling "
           "nothing more\n%-10s%*s%12s%19s%16s%16s%7s\n%-10s",
           "", 8 * o->n_alphas, "ERC", "% of pairs", "eps", "|R|", "|W_g|", "mean", "layer");
    print_alphas(o);
    printf("%12s%7s%6s%6s%16s%16s%7s\n", "violated", "mean", "min", "max", "mean +- sd",
           "mean +- sd", "|cos|");
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *l = &r->layers[i];
        if (l->fault) continue;
        name_layer(l);
        for (int a = 0; a < o->n_alphas; a++) cell_scaled(l->has_M ? l->erc[a] : (double)NAN, 8);
        cell(l->has_M ? 100 * l->ratios.violated : (double)NAN, 12, 1);
        print_norms(&l->figures);
        putchar('\n');
    }
}

/* Where they were asked for. */
static void print_silhouettes(const cpl_coupling_report *r)
{
    printf("\nSpecialisation: silhouettes of the rows of W_g, the experts being the clusters, by "
           "cosine\ndistance; 1: rows of an expert point one way, 0: as near to another expert, "
           "below: nearer\n%-10s%10s%12s%12s\n%-10s%10s%12s%12s\n",
           "", "mean of", "expert with", "expert with", "layer", "rows", "the least", "the most");
    for (int64_t i = 0; i < r->n_layers; i++) {
        const cpl_layer_report *l = &r->layers[i];
        double least = NAN, most = NAN;
        if (l->fault) continue;
        for (int64_t j = 0; j < l->at->n; j++) {
            least = fmin(least, l->silhouettes[j]);
            most  = fmax(most, l->silhouettes[j]);
        }
        name_layer(l);
        cell(l->silhouette, 10, 4);
        cell(least, 12, 4);
        cell(most, 12, 4);
        putchar('\n');
    }
}

/* What is true of many layers is said once, with the layers. */
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

/* Rows of the router that are left out stand in the note. */
static void print_shape(const cpl_layer_report *l)
{
    const cpl_moe_layer *at = l->at;
    printf(": %lld expert%s (chance: %.3g %%), ", (long long)at->n, at->n == 1 ? "" : "s",
           100.0 / (double)at->n);
    if (at->K) printf("%lld a token, ", (long long)at->K);
    printf("d = %lld, D = %lld", (long long)at->d, (long long)at->D);
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
}

/* Where alpha_min is infinite, one sentence says so. */
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

static bool any_M(const cpl_coupling_report *r)
{
    for (int64_t i = 0; i < r->n_layers; i++)
        if (!r->layers[i].fault && r->layers[i].has_M) return true;
    return false;
}

cpl_status cpl_inspect_print(const cpl_coupling_report *r)
{
    cpl_text verdict = {0};
    print_head(r);
    if (any_M(r)) print_agreement(r);
    if (r->n_measured) print_raw(r);
    if (r->n_measured && r->options.silhouette) print_silhouettes(r);
    print_infinite(r);
    if (r->picture.fault) cpl_output_sentence(stdout, "no t-SNE: ", r->picture.fault);
    cpl_coupling_verdict(&verdict, r);
    printf("\n%s\n", verdict.bytes ? verdict.bytes : "");
    cpl_status status = cpl_text_status(&verdict);
    cpl_text_free(&verdict);
    return status;
}

/* ---- several ---- */

/* A figure of a layer, for the table of means. */
typedef struct row {
    const char *name;
    double (*of)(const cpl_layer_report *l);
    double factor;
    bool asked; /* only where silhouettes were asked for; also of layers without M */
} row;

static double kappa_own(const cpl_layer_report *l)
{
    return l->chance.kappa_diagonal;
}
static double kappa_others(const cpl_layer_report *l)
{
    return l->chance.kappa_off_diagonal;
}
static double z_of(const cpl_layer_report *l)
{
    return l->chance.z;
}
static double rows_own(const cpl_layer_report *l)
{
    return l->chance.kappa_row_top1;
}
static double columns_own(const cpl_layer_report *l)
{
    return l->chance.kappa_column_top1;
}
static double assigned(const cpl_layer_report *l)
{
    return l->chance.assignment_own;
}
static double by_chance(const cpl_layer_report *l)
{
    return 1.0 / (double)l->at->n;
}
static double relative_erc(const cpl_layer_report *l)
{
    return l->erc[0] / l->figures.m_diagonal;
}
static double relative_chance(const cpl_layer_report *l)
{
    return l->chance.erc_mean[0] / l->figures.m_diagonal;
}
static double violated(const cpl_layer_report *l)
{
    return l->ratios.violated;
}
static double cosine(const cpl_layer_report *l)
{
    return l->figures.router_cos;
}
static double silhouette(const cpl_layer_report *l)
{
    return l->silhouette;
}

static const row rows[] = {
    {"kappa, own pairs", kappa_own, 1, false},
    {"kappa, other pairs", kappa_others, 1, false},
    {"z of own against random pairings", z_of, 1, false},
    {"% of rows whose own is largest", rows_own, 100, false},
    {"% of columns whose own is largest", columns_own, 100, false},
    {"% of the best assignment that is own", assigned, 100, false},
    {"% of these by chance", by_chance, 100, false},
    {"ERC / mean diagonal", relative_erc, 1, false},
    {"the same under random pairings", relative_chance, 1, false},
    {"% of pairs violated at alpha 1", violated, 100, false},
    {"mean |cos| of router rows", cosine, 1, false},
    {"silhouette of the rows of W_g", silhouette, 1, true},
};

static double mean_over_layers(const cpl_coupling_report *r, const row *figure)
{
    double sum    = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < r->n_layers; i++) {
        if (r->layers[i].fault || !(r->layers[i].has_M || figure->asked)) continue;
        sum += figure->of(&r->layers[i]);
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

enum { COMPARE_WIDTH = 10 };

void cpl_inspect_print_compare(const cpl_coupling_report *reports, int64_t count)
{
    printf("\nSide by side: means over layers, free of the scale of the weights; ERC at alpha %g\n",
           reports[0].options.alphas[0]);
    for (int64_t i = 0; i < count; i++) {
        printf("  (%lld) ", (long long)i + 1);
        cpl_output_sentence(stdout, "", reports[i].path);
    }
    printf("%-38s", "");
    for (int64_t i = 0; i < count; i++) {
        char number[32];
        snprintf(number, sizeof number, "(%lld)", (long long)i + 1);
        printf("%*s", COMPARE_WIDTH, number);
    }
    putchar('\n');
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (rows[k].asked && !reports[0].options.silhouette) continue;
        printf("%-38s", rows[k].name);
        for (int64_t i = 0; i < count; i++)
            cell(rows[k].factor * mean_over_layers(&reports[i], &rows[k]), COMPARE_WIDTH,
                 rows[k].factor > 1 ? 1 : 4);
        putchar('\n');
    }
}
