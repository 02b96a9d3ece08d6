/* tsne_plot.c - the paper's t-SNE figure: rows of W_g of the experts i with i mod stride = 0 of
 * one layer, at most 8 experts and CPL_TSNE_MOST_POINTS rows, thinned by even strides. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/text.h"
#include "inspect/internal.h"
#include "inspect/tsne.h"

enum { MOST_EXPERTS = 8, LEAST_POINTS = 4 };

/* ---- which rows ---- */

static cpl_layer_report *layer_by_number(const cpl_coupling_report *r, int64_t number)
{
    for (int64_t l = 0; l < r->n_layers; l++)
        if (r->layers[l].at->layer == number && !r->layers[l].fault) return &r->layers[l];
    return NULL;
}

static cpl_layer_report *middle_layer(const cpl_coupling_report *r)
{
    int64_t sound = 0, passed = 0;
    for (int64_t l = 0; l < r->n_layers; l++) sound += !r->layers[l].fault;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (!r->layers[l].fault && passed++ == sound / 2) return &r->layers[l];
    return NULL;
}

/* The one that was chosen; NULL if it turned out to be damaged, and was left out. */
static const cpl_moe_layer *layer_of(const cpl_coupling_report *r)
{
    const cpl_layer_report *layer = &r->layers[r->picture.index];
    return layer->fault ? NULL : layer->at;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Every so many-th of the `count` experts with i mod stride = 0, so that at most 8 remain. */
static int64_t expert_step(int64_t n, int64_t stride)
{
    return stride * divide_up(divide_up(n, stride), MOST_EXPERTS);
}

static int64_t default_stride(int64_t n)
{
    return n / MOST_EXPERTS > 1 ? n / MOST_EXPERTS : 1;
}

cpl_status cpl_tsne_plot_choose(cpl_coupling_report *r)
{
    cpl_tsne_plot *p        = &r->picture;
    int64_t wanted          = r->options.picture_layer;
    cpl_layer_report *layer = wanted < 0 ? middle_layer(r) : layer_by_number(r, wanted);
    if (!layer)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: layer %lld, chosen for t-SNE, has no figures", r->path,
                        (long long)wanted);
    const int64_t n = layer->at->n, D = layer->at->D;
    const int64_t stride     = r->options.picture_stride;
    p->layer                 = layer->at->layer;
    p->index                 = layer - r->layers;
    r->options.picture_layer = p->layer;
    p->stride                = expert_step(n, stride > 0 ? stride : default_stride(n));
    p->n_experts             = divide_up(n, p->stride);
    p->every                 = divide_up(p->n_experts * D, CPL_TSNE_MOST_POINTS);
    p->n_points              = p->n_experts * divide_up(D, p->every);
    p->iterations            = r->options.iterations;
    while (p->n_points > CPL_TSNE_MOST_POINTS)
        p->n_points = p->n_experts * divide_up(D, ++p->every);
    if (p->n_points >= LEAST_POINTS) return CPL_OK;
    p->n_points = 0;
    p->fault    = cpl_text_copy("t-SNE needs at least 4 rows");
    return p->fault ? CPL_OK : CPL_ERR_MEMORY;
}

/* ---- cost ---- */

double cpl_tsne_plot_bytes(const cpl_coupling_report *r)
{
    const cpl_moe_layer *at = layer_of(r);
    const int64_t d = at->d, N = r->picture.n_points;
    return (double)cpl_tsne_bytes(N, d) + (double)N * (double)(d + 3) * 4 +
           (double)cpl_gate_bytes(at) + (double)d * 4;
}

double cpl_tsne_plot_seconds(const cpl_coupling_report *r, int n_threads)
{
    const double seconds_a_pair = 2e-9, N = (double)r->picture.n_points;
    return N * N * (double)r->picture.iterations * seconds_a_pair / n_threads;
}

cpl_status cpl_tsne_plot_pieces(cpl_source_pieces *pieces, const cpl_coupling_report *r)
{
    const cpl_moe_layer *at = r->picture.n_points ? layer_of(r) : NULL;
    for (int64_t e = 0; at && e < at->n; e += r->picture.stride)
        CPL_TRY(cpl_gate_rows_pieces(pieces, at, e, 0, at->D));
    return CPL_OK;
}

/* ---- making it ---- */

typedef struct watcher {
    cpl_coupling_report *report;
    double began, tsne_began;
} watcher;

static void show_progress(void *ctx, int64_t iteration, double kl)
{
    const watcher *w             = ctx;
    const cpl_inspect_options *o = &w->report->options;
    const double now             = cpl_seconds_now();
    cpl_inspect_progress p       = {.path       = w->report->path,
                                    .layer      = -1,
                                    .bytes_read = w->report->bytes_read,
                                    .bytes      = w->report->bytes_read,
                                    .iteration  = iteration,
                                    .iterations = o->iterations,
                                    .seconds    = now - w->began};
    (void)kl;
    p.seconds_left = iteration > 0
                         ? (now - w->tsne_began) * ((double)o->iterations / (double)iteration - 1)
                         : (double)NAN;
    if (o->progress) o->progress(o->ctx, &p);
}

/* x [N,d] and the expert of every row. */
static cpl_status read_rows(cpl_coupling_report *r, float *x)
{
    cpl_tsne_plot *p        = &r->picture;
    const cpl_moe_layer *at = layer_of(r);
    cpl_gate gate           = {0};
    cpl_status status       = CPL_OK;
    int64_t row             = 0;
    for (int64_t e = 0; e < at->n && status == CPL_OK; e += p->stride) {
        status = cpl_gate_load(&gate, at, e);
        for (int64_t c = 0; c < at->D && status == CPL_OK; c += p->every, row++) {
            cpl_gate_rows((cpl_matrix){x + row * at->d, 1, at->d}, &gate, c);
            p->expert[row] = (int32_t)e;
        }
    }
    r->bytes_read += (double)gate.read_bytes;
    cpl_gate_free(&gate);
    CPL_ASSERT(status != CPL_OK || row == p->n_points);
    return status;
}

static cpl_status embed(cpl_coupling_report *r, float *x, double began)
{
    cpl_tsne_plot *p   = &r->picture;
    const int64_t d    = layer_of(r)->d;
    watcher w          = {r, began, cpl_seconds_now()};
    cpl_tsne_options o = {.perplexity = r->options.perplexity,
                          .iterations = r->options.iterations,
                          .seed       = r->options.seed,
                          .n_threads  = cpl_cpu_threads(r->options.n_threads),
                          .progress   = show_progress,
                          .ctx        = &w};
    cpl_tsne_result result;
    CPL_TRY(read_rows(r, x));
    CPL_TRY(cpl_tsne(p->y, &result, (cpl_matrix){x, p->n_points, d}, &o));
    p->kl         = result.kl;
    p->perplexity = result.perplexity_used;
    return CPL_OK;
}

/* No picture, because this failed. */
static cpl_status leave_out(cpl_tsne_plot *p, const char *reason)
{
    cpl_free(p->y);
    cpl_free(p->expert);
    p->y        = NULL;
    p->expert   = NULL;
    p->n_points = 0;
    p->lost     = true;
    p->fault    = cpl_text_copy(reason);
    return p->fault ? CPL_OK : CPL_ERR_MEMORY;
}

cpl_status cpl_tsne_plot_make(cpl_coupling_report *r, double began)
{
    cpl_tsne_plot *p = &r->picture;
    const size_t N   = (size_t)p->n_points;
    if (!layer_of(r)) return leave_out(p, "the layer of the t-SNE picture could not be read");
    float *x          = cpl_alloc(N * (size_t)layer_of(r)->d * sizeof(float));
    p->y              = cpl_alloc(N * 2 * sizeof(float));
    p->expert         = cpl_alloc(N * sizeof(int32_t));
    cpl_status status = x && p->y && p->expert ? embed(r, x, began) : CPL_ERR_MEMORY;
    cpl_free(x);
    return status == CPL_OK || status == CPL_ERR_MEMORY ? status : leave_out(p, cpl_last_error());
}
