/* report.c - opens a checkpoint for inspection, estimates the cost, and closes it. measure.c
 * measures its layers, rows.c reads the rows. */
#include "inspect/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/memory.h"
#include "base/text.h"
#include "inspect/internal.h"
#include "io/file.h"
#include "store/run_dir.h"

/* ---- choice of layers ---- */

static bool is_chosen(const cpl_inspect_options *o, int64_t layer)
{
    if (!o->layers) return true;
    for (int64_t i = 0; i < o->n_layers; i++)
        if (o->layers[i] == layer) return true;
    return false;
}

static cpl_status check_choice(const cpl_coupling_report *r)
{
    for (int64_t i = 0; r->options.layers && i < r->options.n_layers; i++) {
        bool there = false;
        for (int64_t l = 0; l < r->map.n_layers; l++)
            there = there || r->map.layers[l].layer == r->options.layers[i];
        if (!there)
            return CPL_FAIL(CPL_ERR_INPUT, "%s: layer %lld has no routed experts, or is not there",
                            r->path, (long long)r->options.layers[i]);
    }
    return CPL_OK;
}

static cpl_status choose_layers(cpl_coupling_report *r)
{
    CPL_TRY(check_choice(r));
    r->layers = cpl_alloc((size_t)r->map.n_layers * sizeof *r->layers);
    if (!r->layers) return CPL_ERR_MEMORY;
    memset(r->layers, 0, (size_t)r->map.n_layers * sizeof *r->layers);
    for (int64_t l = 0; l < r->map.n_layers; l++)
        if (is_chosen(&r->options, r->map.layers[l].layer))
            r->layers[r->n_layers++].at = &r->map.layers[l];
    return CPL_OK;
}

/* Fails with the faults of the chosen layers, of which there must be one or more. */
static cpl_status fail_chosen(const cpl_coupling_report *r)
{
    const char **faults = cpl_alloc((size_t)r->n_layers * sizeof *faults);
    int64_t n           = 0;
    if (!faults) return CPL_ERR_MEMORY;
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_moe_layer *at = r->layers[l].at;
        if (!at->skip && at->fault) faults[n++] = at->fault;
    }
    const cpl_status status = cpl_moe_faults_fail(faults, n);
    cpl_free(faults);
    return status;
}

/* Judges layers before a weight is read. With keep_going a fault is stored as its layer's
 * sentence. */
static cpl_status judge_layers(cpl_coupling_report *r)
{
    int64_t sound = 0;
    for (int64_t l = 0; l < r->n_layers; l++) {
        cpl_layer_report *layer = &r->layers[l];
        const char *why         = layer->at->skip ? layer->at->skip : layer->at->fault;
        layer->skipped          = layer->at->skip != NULL;
        if (!why) {
            sound++;
            continue;
        }
        if (!layer->skipped && !r->options.keep_going) return fail_chosen(r);
        layer->fault = cpl_text_copy(why);
        if (!layer->fault) return CPL_ERR_MEMORY;
    }
    if (sound == 0)
        return CPL_FAIL(CPL_ERR_INPUT, "%s: none of its %lld MoE layers can be measured: %s",
                        r->path, (long long)r->n_layers, r->layers[0].fault);
    return CPL_OK;
}

/* ---- costs ---- */

/* Returns the memory that is kept until the report is closed: tables of tensors, and the figures
 * of every layer. */
static double kept_bytes(const cpl_coupling_report *r)
{
    double sum = r->table_bytes + (r->options.origin ? r->options.origin->memory_bytes : 0);
    for (int64_t l = 0; l < r->n_layers; l++) {
        double n = (double)r->layers[l].at->n;
        if (!r->layers[l].fault) sum += 4 * n * n + 2 * n * n + 40 * n;
    }
    return sum;
}

static void add_work(cpl_inspect_cost *cost, const cpl_coupling_report *r)
{
    for (int64_t l = 0; l < r->n_layers; l++) {
        const cpl_moe_layer *at = r->layers[l].at;
        if (r->layers[l].fault) continue;
        cost->bytes += cpl_coupling_read_bytes(r, &r->layers[l]);
        cost->whole_bytes += (double)cpl_layer_bytes(at);
        cost->flops += cpl_coupling_flops(r, &r->layers[l]);
    }
}

/* Takes as many threads as requested, or fewer if memory allows no more. */
static cpl_status set_threads(cpl_inspect_cost *cost, cpl_coupling_report *r)
{
    const double there = fmin(r->options.memory_bytes, cpl_memory_available());
    int threads        = r->options.n_threads;
    char needs[32], has[32];
    while (threads > 1 && kept_bytes(r) + cpl_coupling_work_bytes(r, threads) > there) threads--;
    cost->memory_bytes = kept_bytes(r) + cpl_coupling_work_bytes(r, threads);
    cost->n_threads = r->options.n_threads = threads;
    if (cost->memory_bytes <= there) return cpl_cpu_start(cpl_cpu_threads(threads));
    return CPL_FAIL(CPL_ERR_MEMORY,
                    "%s: not enough memory: one thread needs %s for the largest layer, and "
                    "%s is what it may take",
                    r->path, cpl_text_bytes(needs, cost->memory_bytes), cpl_text_bytes(has, there));
}

static cpl_status set_rows(cpl_inspect_cost *cost, cpl_coupling_report *r)
{
    const double there = fmin(r->options.memory_bytes, cpl_memory_available());
    char needs[32], has[32];
    if (!r->options.rows) return CPL_OK;
    cpl_inspect_rows_choose(r);
    cost->rows_bytes = cpl_inspect_rows_bytes(r);
    if (kept_bytes(r) + cost->rows_bytes <= there) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY,
                    "%s: not enough memory: %lld rows of gates take %s beside the figures, and %s "
                    "is what all may take",
                    r->path, (long long)r->rows.count, cpl_text_bytes(needs, cost->rows_bytes),
                    cpl_text_bytes(has, there));
}

/* ---- bytes to read ---- */

/* Adds rows [first, first + rows) of the gate of expert j. */
static cpl_status add_rows(cpl_source_pieces *pieces, cpl_inspect_cost *cost,
                           const cpl_moe_layer *at, int64_t j, int64_t first, int64_t rows)
{
    cost->shared_bytes += (double)cpl_gate_rows_shared_bytes(at, j, first, rows);
    return cpl_gate_rows_pieces(pieces, at, j, first, rows);
}

static cpl_status add_sample(cpl_source_pieces *pieces, cpl_inspect_cost *cost,
                             const cpl_coupling_report *r, const cpl_layer_report *l, int64_t j)
{
    for (int64_t k = 0, rows; k < l->sample->plan.n_read; k++) {
        const int64_t first = cpl_sample_block(r, l, j, k, &rows);
        CPL_TRY(add_rows(pieces, cost, l->at, j, first, rows));
    }
    return CPL_OK;
}

static cpl_status add_layer(cpl_source_pieces *pieces, cpl_inspect_cost *cost,
                            const cpl_coupling_report *r, const cpl_layer_report *l)
{
    const int times = cpl_inspect_reads_twice(r, l->at) ? 2 : 1;
    CPL_TRY(cpl_router_pieces(pieces, l->at));
    for (int time = 0; time < times; time++)
        for (int64_t j = 0; j < l->at->n; j++)
            CPL_TRY(cpl_sample_applies(l) ? add_sample(pieces, cost, r, l, j)
                                          : add_rows(pieces, cost, l->at, j, 0, l->at->D));
    return CPL_OK;
}

static double file_bytes(const cpl_coupling_report *r)
{
    double sum = 0;
    for (int64_t i = 0; i < r->files->n_parts; i++) {
        const cpl_stored_part *part = &r->files->parts[i];
        if (part->gguf) sum += (double)part->gguf->source->length;
        if (part->safetensors) sum += (double)part->safetensors->source->length;
    }
    return sum;
}

/* Passes the places that will be read to the origin of the files, in the order in which
 * measure.c and rows.c read them, and sets cost->reading and shared_bytes. Local files need no
 * plan. CPL_ERR_MEMORY. */
static cpl_status plan_reading(cpl_inspect_cost *cost, const cpl_coupling_report *r)
{
    cpl_source_pieces pieces = {0};
    cpl_status status        = CPL_OK;
    cost->files_bytes        = file_bytes(r);
    if (!r->options.origin) return CPL_OK;
    for (int64_t l = 0; l < r->n_layers; l++)
        if (!r->layers[l].fault) CPL_TRY_DONE(add_layer(&pieces, cost, r, &r->layers[l]));
    CPL_TRY_DONE(cpl_inspect_rows_pieces(&pieces, r));
    status = cpl_origin_plan_set(r->options.origin, &cost->reading, &pieces);
done:
    cpl_source_pieces_free(&pieces);
    return status;
}

/* ---- opening and closing ---- */

/* Returns the last part of a path. For a checkpoint of a run the part before it comes first:
 * "run/step-000100". */
static char *name_of(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    if (begin > 1 && strncmp(path + begin, "step-", 5) == 0)
        for (begin--; begin > 0 && path[begin - 1] != '/';) begin--;
    if (begin == end) return cpl_text_copy(path);
    char *name = cpl_alloc(end - begin + 1);
    if (!name) return NULL;
    memcpy(name, path + begin, end - begin);
    name[end - begin] = 0;
    return name;
}

/* Opens the files. The folder of a run is resolved to its last checkpoint. */
static cpl_status open_files(cpl_coupling_report *r, const cpl_log *log)
{
    const double there = fmin(r->options.memory_bytes, cpl_memory_available());
    char *folder       = NULL;
    if (r->options.origin || !cpl_path_is_folder(r->path))
        return cpl_stored_open(&r->files, r->options.origin, r->path, there, log);
    CPL_TRY(cpl_run_dir_resolve(&folder, r->path));
    cpl_status status = cpl_stored_open(&r->files, NULL, folder, there, log);
    cpl_free(folder);
    return status;
}

/* Returns the bytes of names, shapes and layers. The bytes of an index, which another library
 * holds, are an estimate. */
static double table_bytes(const cpl_coupling_report *r, int64_t held_before)
{
    const double of_index = r->files->n_parts > 1 ? 300 : 0; /* bytes a tensor */
    return (double)(cpl_alloc_in_use() - held_before) + of_index * (double)r->files->count;
}

static cpl_status open_parts(cpl_coupling_report *r, cpl_inspect_cost *cost, const cpl_log *log)
{
    const int64_t held = cpl_alloc_in_use();
    r->name            = name_of(r->path);
    if (!r->name) return CPL_ERR_MEMORY;
    CPL_TRY(open_files(r, log));
    const cpl_moe_document document = {r->files->config, r->files->is_gguf, r->files->path};
    CPL_TRY(cpl_moe_map_make(&r->map, r->files->tensors, r->files->count, &document));
    CPL_TRY(choose_layers(r));
    CPL_TRY(judge_layers(r));
    CPL_TRY(cpl_sample_open(r));
    r->table_bytes = table_bytes(r, held);
    add_work(cost, r);
    CPL_TRY(set_threads(cost, r));
    CPL_TRY(set_rows(cost, r));
    CPL_TRY(plan_reading(cost, r));
    return cpl_inspect_cost_of(cost, r);
}

cpl_status cpl_inspect_open(cpl_coupling_report *report, cpl_inspect_cost *cost, const char *path,
                            const cpl_inspect_options *options, const cpl_log *log)
{
    CPL_ASSERT(options->n_threads >= 1 && options->n_alphas >= 0);
    *report = (cpl_coupling_report){.path = cpl_text_copy(path), .options = *options};
    *cost   = (cpl_inspect_cost){0};
    if (!report->path) return CPL_ERR_MEMORY;
    cpl_status status = open_parts(report, cost, log);
    if (status != CPL_OK) cpl_inspect_close(report);
    return status;
}

static void free_layer(cpl_layer_report *layer)
{
    cpl_free(layer->fault);
    cpl_free(layer->M);
    cpl_free(layer->eps);
    cpl_free(layer->router_norm);
    cpl_free(layer->input_norm);
    cpl_free(layer->gate_norm);
    cpl_free(layer->cosine);
    cpl_free(layer->assigned);
    cpl_free(layer->sample);
    cpl_free(layer->silhouettes);
}

void cpl_inspect_close(cpl_coupling_report *r)
{
    for (int64_t l = 0; l < r->n_layers; l++) free_layer(&r->layers[l]);
    cpl_free(r->layers);
    cpl_free(r->rows.file);
    cpl_moe_map_free(&r->map);
    cpl_stored_close(r->files);
    cpl_free(r->path);
    cpl_free(r->name);
    memset(r, 0, sizeof *r);
}
