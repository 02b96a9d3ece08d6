/* worker.c - the memory of one thread of an inspection, and estimates of memory and time. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "inspect/internal.h"

/* ---- work ---- */

/* A single expert cannot be compared with other experts. */
bool cpl_inspect_reads_twice(const cpl_coupling_report *r, const cpl_moe_layer *at)
{
    return r->options.silhouette && at->n > 1;
}

double cpl_coupling_read_bytes(const cpl_coupling_report *r, const cpl_layer_report *l)
{
    if (cpl_sample_applies(l)) return cpl_sample_bytes(r, l);
    return (double)cpl_layer_bytes(l->at) * (cpl_inspect_reads_twice(r, l->at) ? 2 : 1);
}

double cpl_coupling_flops(const cpl_coupling_report *r, const cpl_layer_report *l)
{
    const cpl_moe_layer *at = l->at;
    const double n = (double)at->n, rows = n * (double)at->D, d = (double)at->d;
    const double once = 2 * n * rows * (double)at->l;
    if (cpl_sample_applies(l))
        return once * (double)l->sample->plan.n_read / (double)l->sample->plan.n_blocks;
    if (!cpl_inspect_reads_twice(r, at)) return once;
    return once + 2 * rows * d * (n + (at->projection.weight ? 2 * (double)at->l : 0));
}

/* ---- memory ---- */

int64_t cpl_inspect_worker_rows(const cpl_moe_layer *at)
{
    int64_t rows = cpl_cpu_on_host()->response.rows(at->l);
    return rows < at->D ? rows : at->D;
}

static size_t larger_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t scratch_of(const cpl_coupling_report *r, const cpl_moe_layer *at)
{
    const cpl_host_ops *ops = cpl_cpu_on_host();
    const size_t norms      = r->options.lambda ? ops->spectral_bytes(at->D, at->l) : 0;
    const int64_t widest    = at->l > at->d ? at->l : at->d;
    return larger_of(larger_of(ops->response.scratch_bytes(), ops->figures_bytes(at->n, widest)),
                     norms);
}

/* Returns the bytes of a cpl_latent, and of work with it: the projection as stored, or rows [n,d] or
 * noisy rows [n,l] beside V. */
static size_t latent_bytes(const cpl_coupling_report *report, const cpl_moe_layer *at)
{
    const size_t n = (size_t)at->n, d = (size_t)at->d, l = (size_t)at->l;
    const size_t norm = at->latent_norm.weight ? 1 : 0, noisy = report->options.noisy ? 1 : 0;
    const size_t numbers = l * d + n * l * (1 + noisy) + norm * (l + n * l + n * d);
    if (!at->projection.weight) return 0;
    return numbers * sizeof(float) + (size_t)cpl_router_bytes(at) +
           norm * cpl_cpu_on_host()->response.packed_bytes(at->n, at->l);
}

/* Takes the largest of every piece over the layers. */
cpl_inspect_worker_needs cpl_inspect_worker_needs_of(const cpl_coupling_report *r)
{
    cpl_inspect_worker_needs most_of = {0};
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_moe_layer *at = r->layers[l].at;
        const size_t n = (size_t)at->n, d = (size_t)at->d, width = (size_t)at->l;
        if (r->layers[l].fault) continue;
        most_of.gate = larger_of(most_of.gate, cpl_gate_bytes(at));
        most_of.rows =
            larger_of(most_of.rows, (size_t)cpl_inspect_worker_rows(at) * width * sizeof(float));
        if (r->options.lambda)
            most_of.whole = larger_of(most_of.whole, (size_t)at->D * width * sizeof(float));
        most_of.squares = larger_of(most_of.squares, 2 * n * sizeof(double));
        if (cpl_inspect_reads_twice(r, at)) {
            const size_t rows = (size_t)cpl_inspect_worker_rows(at);
            most_of.sum       = larger_of(most_of.sum, d * sizeof(double));
            most_of.products  = larger_of(most_of.products, rows * n * sizeof(float));
            if (at->projection.weight)
                most_of.wide = larger_of(most_of.wide, rows * d * sizeof(float));
        }
        most_of.scratch = larger_of(most_of.scratch, scratch_of(r, at));
        most_of.router  = larger_of(most_of.router, n * larger_of(d, width) * sizeof(float));
        most_of.latent  = larger_of(most_of.latent, latent_bytes(r, at));
        most_of.centred =
            larger_of(most_of.centred, n * (n + 2) * sizeof(float) + n * sizeof(double));
        if (cpl_sample_applies(&r->layers[l]))
            most_of.sums = larger_of(most_of.sums, cpl_sample_memory(r, &r->layers[l]));
        most_of.packed =
            larger_of(most_of.packed, cpl_cpu_on_host()->response.packed_bytes(at->n, at->l));
    }
    return most_of;
}

/* Returns the number of layers that may be in work at the same time. */
static double layers_at_once(const cpl_coupling_report *r, int n_threads)
{
    int64_t least = INT64_MAX;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (!r->layers[l].fault && r->layers[l].at->n < least) least = r->layers[l].at->n;
    return 2.0 + (double)(n_threads - 1) / (double)least;
}

/* Returns the memory of cpl_null_model_of and cpl_null_model_ratios_of while they work: kappa,
 * sorted lines with their sums, quantiles. */
static double chance_bytes(const cpl_coupling_report *r)
{
    double n = 0;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (!r->layers[l].fault) n = fmax(n, (double)r->layers[l].at->n);
    return 48 * n * (n + 2);
}

double cpl_coupling_work_bytes(const cpl_coupling_report *r, int n_threads)
{
    const cpl_inspect_worker_needs m = cpl_inspect_worker_needs_of(r);
    const double matrices            = (r->options.noisy ? 3 : 1) + (r->options.silhouette ? 1 : 0);
    const double shared =
        (double)m.router * matrices + (double)(m.packed + m.latent + m.centred + m.sums);
    const double own =
        (double)(m.gate + m.rows + m.wide + m.whole + m.squares + m.sum + m.products + m.scratch);
    return n_threads * (own + chance_bytes(r)) +
           fmin(layers_at_once(r, n_threads), (double)n_threads) * shared;
}

void *cpl_inspect_piece(bool *failed, size_t bytes)
{
    void *piece = bytes ? cpl_alloc(bytes) : NULL;
    *failed     = *failed || (bytes && !piece);
    return piece;
}

cpl_status cpl_inspect_worker_init(cpl_inspect_worker *h, const cpl_inspect_worker_needs *m)
{
    bool failed = false;
    h->rows     = cpl_inspect_piece(&failed, m->rows);
    h->wide     = cpl_inspect_piece(&failed, m->wide);
    h->squares  = cpl_inspect_piece(&failed, m->squares);
    h->whole    = cpl_inspect_piece(&failed, m->whole);
    h->sum      = cpl_inspect_piece(&failed, m->sum);
    h->products = cpl_inspect_piece(&failed, m->products);
    h->scratch  = cpl_inspect_piece(&failed, m->scratch);
    return failed ? CPL_ERR_MEMORY : CPL_OK;
}

void cpl_inspect_worker_free(cpl_inspect_worker *h)
{
    cpl_gate_free(&h->gate);
    cpl_free(h->rows);
    cpl_free(h->wide);
    cpl_free(h->whole);
    cpl_free(h->squares);
    cpl_free(h->sum);
    cpl_free(h->products);
    cpl_free(h->scratch);
}

/* ---- numbers that are too large ---- */

cpl_status cpl_inspect_too_large(const cpl_moe_layer *at, int64_t row, const char *with,
                                 int64_t number)
{
    const cpl_stored *router = at->router.weight;
    return CPL_FAIL(
        CPL_ERR_INPUT,
        "%s: tensor %s: the product of router row %lld and %s %lld is no finite number: "
        "the values of one of them are far too large for weights",
        router->path, router->name, (long long)row, with, (long long)number);
}

/* ---- estimates ---- */

enum { SAMPLE_BYTES = 1 << 25 };
static const double SAMPLE_SECONDS = 0.1;

/* Returns the first layer that will be measured. */
static const cpl_layer_report *first_layer(const cpl_coupling_report *r)
{
    for (int64_t l = 0; l < r->n_layers; l++)
        if (!r->layers[l].fault) return &r->layers[l];
    return NULL;
}

/* Returns the seconds that one thread takes for a FLOP, from at most `to_come` FLOPs of products of
 * the layer's shape. */
static double product_speed(cpl_inspect_worker *h, const cpl_moe_layer *at, void *packed, float *R,
                            double to_come)
{
    const cpl_host_ops *ops = cpl_cpu_on_host();
    const int64_t rows      = cpl_inspect_worker_rows(at);
    double norm = 0, began = 0, flops = 0, seconds = 0;
    for (int64_t i = 0; i < at->n * at->l; i++) R[i] = (float)(i % 17) - 8;
    for (int64_t i = 0; i < rows * at->l; i++) h->rows[i] = (float)(i % 13) - 6;
    memset(h->squares, 0, 2 * (size_t)at->n * sizeof(double));
    ops->response.pack(packed, (cpl_matrix){R, at->n, at->l});
    began = cpl_seconds_now();
    do {
        ops->response.add(h->squares, h->squares + at->n, &norm, packed, at->n,
                          (cpl_matrix){h->rows, rows, at->l}, h->scratch);
        flops += 2.0 * (double)at->n * (double)rows * (double)at->l;
        seconds = cpl_seconds_now() - began;
    } while (seconds < SAMPLE_SECONDS && flops < to_come);
    return seconds / flops;
}

/* Loads the rows of the gate of expert j that will be measured. */
static cpl_status load_measured(cpl_gate *gate, const cpl_coupling_report *r,
                                const cpl_layer_report *l, int64_t j)
{
    if (!cpl_sample_applies(l)) return cpl_gate_load(gate, l->at, j);
    for (int64_t k = 0, rows; k < l->sample->plan.n_read; k++) {
        const int64_t first = cpl_sample_block(r, l, j, k, &rows);
        CPL_TRY(cpl_gate_load_rows(gate, l->at, j, first, rows));
    }
    return CPL_OK;
}

/* Returns the seconds that reading a byte takes. A damaged gate ends the reading here, and is
 * reported when it is measured. */
static double read_speed(cpl_inspect_worker *h, const cpl_coupling_report *r,
                         const cpl_layer_report *l)
{
    const double began = cpl_seconds_now();
    double seconds     = 0;
    for (int64_t j = 0; j < l->at->n && h->gate.read_bytes < SAMPLE_BYTES; j++) {
        if (load_measured(&h->gate, r, l, j) != CPL_OK) break;
        seconds = cpl_seconds_now() - began;
        if (seconds > SAMPLE_SECONDS) break;
    }
    return h->gate.read_bytes > 0 ? seconds / (double)h->gate.read_bytes : 0;
}

/* Guesses the seconds of pairings, assignment and quantiles of all layers, which grow with n^2. */
static double chance_seconds(const cpl_coupling_report *r, double threads)
{
    const double seconds_a_pair = 1.5e-6;
    double pairs                = 0;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (!r->layers[l].fault) pairs += (double)r->layers[l].at->n * (double)r->layers[l].at->n;
    return seconds_a_pair * pairs / threads;
}

/* Guesses the seconds of the spectral norms: a random gate is read 56 times. */
static double spectral_seconds(const cpl_coupling_report *r, double threads)
{
    const double seconds_a_weight = 6e-8;
    double weights                = 0;
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_moe_layer *at = r->layers[l].at;
        if (!r->layers[l].fault) weights += (double)at->n * (double)at->D * (double)at->l;
    }
    return r->options.lambda ? seconds_a_weight * weights / threads : 0;
}

cpl_status cpl_inspect_cost_of(cpl_inspect_cost *cost, const cpl_coupling_report *r)
{
    const cpl_layer_report *first    = first_layer(r);
    const cpl_inspect_worker_needs m = cpl_inspect_worker_needs_of(r);
    cpl_inspect_worker h             = {0};
    cpl_status status                = cpl_inspect_worker_init(&h, &m);
    void *packed                     = cpl_alloc(m.packed);
    float *R                         = cpl_alloc(m.router);
    if (status == CPL_OK && packed && R) {
        const double threads = cost->n_threads;
        const double product = product_speed(&h, first->at, packed, R, cost->flops);
        cost->seconds        = cost->flops * product / threads;
        if (!r->options.origin) cost->seconds += cost->bytes * read_speed(&h, r, first);
        cost->seconds += chance_seconds(r, threads) + spectral_seconds(r, threads);
    } else {
        status = CPL_ERR_MEMORY;
    }
    cpl_free(packed);
    cpl_free(R);
    cpl_inspect_worker_free(&h);
    return status;
}
