/* cmd_inspect.c - couplet inspect: the agreement of router and experts in published checkpoints. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/provenance.h"
#include "base/arena.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/arguments/configure.h"
#include "cli/arguments/flags.h"
#include "cli/arguments/output_paths.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/output.h"
#include "cli/terminal/ranks.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/internal.h"
#include "inspect/show/show.h"
#include "io/file.h"
#include "report/view.h"
#include "store/run_dir.h"

static const double LARGEST_ALPHA = 1e6;

/* Holds the state of one call; empty if all zero. */
typedef struct work {
    const cpl_arguments *args;
    cpl_inspect_options options;
    int64_t *layers;              /* numbers of --layers; owned */
    cpl_coupling_report *reports; /* (n) owned */
    int64_t n;
    cpl_inspect_remotes remotes;
    double base_bytes; /* bytes of the program itself: code, libraries, stacks of threads */
    int64_t lost;      /* checkpoints that could not be opened or read, with --keep-going */
    char reason[1024]; /* error of the first of these checkpoints */
    bool dry_run;      /* --dry-run: stops after all checkpoints are opened */
    bool routed;       /* --text: adds the routing report */
    const char *text;
    cpl_routing_options routing_options;
    cpl_routing_report routing;
    char *device;     /* compute.device, for --text; owned */
    cpl_group *world; /* ranks that share --text; NULL: one process */
    double timeout_s; /* seconds after which a silent rank counts as lost */
} work;

/* ---- flags ---- */

/* Reads --memory, which limits the whole process: its present memory and its threads' memory
 * count. */
static cpl_status read_memory(work *w, const char *memory)
{
    const double libraries = 0x1p23, a_thread = 0x1p19; /* measured bytes, rounded up */
    char base[32];
    w->base_bytes           = cpl_memory_resident() + libraries + a_thread * w->options.n_threads;
    w->options.memory_bytes = (double)INFINITY;
    if (!memory) return CPL_OK;
    CPL_TRY(cpl_parse_bytes(&w->options.memory_bytes, "--memory", memory));
    w->options.memory_bytes -= w->base_bytes;
    if (w->options.memory_bytes > 0) return CPL_OK;
    return CPL_FAIL(CPL_ERR_MEMORY, "--memory %s: not enough memory: the program alone takes %s",
                    memory, cpl_text_bytes(base, w->base_bytes));
}

/* Reads threads, the device of --text, and the timeout of a silent rank. */
static cpl_status read_settings(work *w)
{
    cpl_configuration c;
    CPL_TRY(cpl_configure(&c, NULL, w->args));
    const int64_t given = c.settings.compute.threads, threads = given ? given : cpl_ranks_threads();
    w->options.n_threads = threads ? (int)threads : cpl_cpu_count();
    w->timeout_s         = c.settings.dist.timeout;
    w->device            = cpl_text_copy(c.settings.compute.device);
    cpl_configuration_free(&c);
    return w->device ? CPL_OK : CPL_ERR_MEMORY;
}

/* Refuses flags that have no meaning for a part of the rows or need all rows. */
static cpl_status check_sample(const cpl_arguments *a)
{
    static const struct {
        const char *flag, *why;
    } refused[] = {
        {"--silhouette", "silhouettes are of all rows of every gate"},
        {"--lambda", "the largest singular value of a gate is of all of its rows"},
        {"--rows", "it takes rows of whole gates"},
        {"--text", "the whole model is read for it"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (cpl_flag_given(a, refused[i].flag))
            return CPL_FAIL(CPL_ERR_USAGE, "--sample goes without %s: %s", refused[i].flag,
                            refused[i].why);
    return CPL_OK;
}

static cpl_status read_sample(work *w)
{
    const char *text = cpl_flag_text(w->args, "--sample");
    char *end        = NULL;
    if (!text) return CPL_OK;
    double share = strtod(text, &end);
    if (end != text && *end == '%') {
        share /= 100;
        end++;
    }
    if (end == text || *end || !(share > 0 && share < 1))
        return CPL_FAIL(
            CPL_ERR_USAGE,
            "--sample %s: must be a share of the rows above 0 and below 1, such as 2%% or 0.02",
            text);
    w->options.sample = share;
    return check_sample(w->args);
}

static cpl_status read_options(work *w)
{
    const cpl_arguments *a = w->args;
    CPL_TRY(read_settings(w));
    cpl_inspect_options *o = &w->options;
    const char *layers = cpl_flag_text(a, "--layers"), *memory = cpl_flag_text(a, "--memory");
    CPL_TRY(cpl_parse_numbers(o->alphas, &o->n_alphas, CPL_NULL_MODEL_MAX_ALPHAS, "--alpha",
                              cpl_flag_text(a, "--alpha"), 0, LARGEST_ALPHA));
    if (layers) CPL_TRY(cpl_parse_ranges(&w->layers, &o->n_layers, "--layers", layers));
    o->layers     = w->layers;
    o->noisy      = cpl_flag_given(a, "--noise");
    o->silhouette = cpl_flag_given(a, "--silhouette");
    o->lambda     = cpl_flag_given(a, "--lambda");
    o->text       = cpl_flag_given(a, "--text");
    if (o->noisy) o->noise_seed = (uint64_t)cpl_flag_int(a, "--noise");
    CPL_TRY(read_memory(w, memory));
    o->keep_going = cpl_flag_given(a, "--keep-going");
    o->rows       = cpl_flag_given(a, "--rows");
    o->seed       = (uint64_t)cpl_flag_int(a, "--seed");
    if (o->rows && a->n_words > 1)
        return CPL_FAIL(CPL_ERR_USAGE,
                        "--rows takes one CHECKPOINT: its file holds the rows of one");
    CPL_TRY(read_sample(w));
    o->progress = cpl_inspect_bar_progress;
    w->dry_run  = cpl_flag_given(a, "--dry-run");
    return cpl_routing_options_of(&w->routed, &w->routing_options, &w->text, a, o);
}

/* ---- work ---- */

/* Leaves out a checkpoint that failed, if --keep-going is given and others can be reported. */
static cpl_status leave_out(work *w, cpl_status status)
{
    if (status == CPL_OK || status == CPL_ERR_MEMORY || w->args->n_words == 1 ||
        !w->options.keep_going)
        return status;
    if (w->lost++ == 0) snprintf(w->reason, sizeof w->reason, "%s", cpl_last_error());
    cpl_output_sentence(stderr, "left out: ", cpl_last_error());
    return CPL_OK;
}

/* Warns if a checkpoint of a run differs from the checkpoint that was saved. A large checkpoint, or
 * any with --sample or --dry-run, is not checked, since the check reads far more than routers and
 * gates. --text reads and checks the whole model. */
static cpl_status check_sums(const work *w, const char *path)
{
    static const int64_t most_bytes = INT64_C(1) << 30;
    const cpl_log log               = cpl_output_log(stderr);
    char *folder                    = NULL;
    if (w->routed || w->dry_run || w->options.sample > 0 || cpl_remote_is(path) ||
        !cpl_path_is_folder(path))
        return CPL_OK;
    cpl_status status = cpl_run_dir_resolve(&folder, path);
    if (status == CPL_OK) status = cpl_run_dir_verify_model(folder, most_bytes);
    cpl_free(folder);
    if (status == CPL_OK || status == CPL_ERR_MEMORY) return status;
    cpl_log_warn(&log, "%s", cpl_last_error());
    return CPL_OK;
}

/* Opens the checkpoint of word `i`, local or on a server, as the report number w->n. */
static cpl_status open_one(work *w, cpl_inspect_cost *cost, int i)
{
    cpl_inspect_options o = w->options;
    const char *path;
    CPL_TRY(cpl_inspect_remotes_open(&w->remotes, &o, &path, i));
    CPL_TRY(cpl_inspect_open(&w->reports[w->n], cost, path, &o, NULL));
    const char *notice = w->reports[w->n].files->notice;
    if (notice && !w->routed) cpl_log_warn(&w->remotes.log, "%s", notice);
    return CPL_OK;
}

/* Opens all checkpoints and prints the cost of each, before any is read. */
static cpl_status open_all(work *w)
{
    for (int i = 0; i < w->args->n_words; i++) {
        cpl_inspect_cost cost;
        cpl_status status = open_one(w, &cost, i);
        if (status != CPL_OK) {
            CPL_TRY(leave_out(w, status));
            continue;
        }
        cpl_inspect_print_cost(&w->reports[w->n], &cost, w->base_bytes);
        w->remotes.n_requests += cost.reading.n_requests;
        w->n++;
        CPL_TRY(check_sums(w, w->args->words[i]));
    }
    return CPL_OK;
}

static cpl_status run_all(work *w)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < w->n; i++) {
        cpl_status status = cpl_inspect_run(&w->reports[i]);
        cpl_terminal_clear_line();
        if (status != CPL_OK) {
            CPL_TRY(leave_out(w, status));
            cpl_inspect_close(&w->reports[i]);
            continue;
        }
        if (kept < i) {
            w->reports[kept] = w->reports[i];
            memset(&w->reports[i], 0, sizeof w->reports[i]);
        }
        kept++;
    }
    w->n = kept;
    return kept || !w->lost ? CPL_OK : CPL_FAIL(CPL_ERR_INPUT, "%s", w->reason);
}

/* Continues without a coupling table if the model has no router rows: such a model still has a
 * routing report. For any other model the failure to make the table remains a failure. */
static cpl_status without_table(work *w, const cpl_log *log)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", cpl_last_error());
    CPL_TRY(cpl_reader_load(&w->routing.reader));
    if (cpl_routing_has_router(&w->routing.reader.model.master.layer[0]))
        return CPL_FAIL(CPL_ERR_INPUT, "%s", reason);
    cpl_log_warn(log, "no coupling table: %s", reason);
    return CPL_OK;
}

/* Reads the text first, so that its faults are reported before any work. */
static cpl_status open_routed(work *w)
{
    const cpl_log log = cpl_ranks_log(stderr);
    cpl_routing_cost cost;
    CPL_TRY(cpl_routing_open(&w->routing, &cost, w->args->words[0], &w->routing_options, &log));
    if (!cpl_gather_is_first(w->world)) return CPL_OK;
    cpl_status status = open_all(w);
    if (status == CPL_ERR_INPUT) status = without_table(w, &log);
    if (status == CPL_OK) cpl_routing_print_cost(&w->routing, &cost);
    return status;
}

/* The ranks share the reading of the text, and rank 0 makes the coupling table. */
static cpl_status inspect_routed(work *w)
{
    const cpl_log log = cpl_ranks_log(stderr);
    cpl_status status = open_routed(w);
    if (status == CPL_OK && cpl_gather_is_first(w->world)) status = run_all(w);
    CPL_TRY(cpl_gather_status(w->world, status));
    return cpl_routing_run(&w->routing, &log);
}

static cpl_status inspect_all(work *w)
{
    const size_t count = (size_t)w->args->n_words;
    w->reports         = cpl_alloc(count * sizeof *w->reports);
    if (w->reports) memset(w->reports, 0, count * sizeof *w->reports);
    if (!w->reports) return CPL_ERR_MEMORY;
    if (w->routed) return inspect_routed(w);
    CPL_TRY(open_all(w));
    if (w->dry_run) return w->n || !w->lost ? CPL_OK : CPL_FAIL(CPL_ERR_INPUT, "%s", w->reason);
    CPL_TRY(cpl_inspect_remotes_limit(&w->remotes));
    return run_all(w);
}

/* ---- results ---- */

/* Returns all figures, or NULL without memory. The caller frees them. */
static json_t *json_of(const work *w)
{
    json_t *json = w->routed && w->n == 0 ? json_object() : cpl_coupling_json(w->reports, w->n);
    if (!w->routed || json_object_set_new(json, "routing", cpl_routing_json(&w->routing)) == 0)
        return json;
    json_decref(json);
    return NULL;
}

static cpl_status print_all(const work *w)
{
    for (int64_t i = 0; i < w->n; i++) {
        if (i) putchar('\n');
        CPL_TRY(cpl_inspect_print(&w->reports[i]));
    }
    if (w->n > 1) CPL_TRY(cpl_inspect_print_compare(w->reports, w->n));
    if (w->routed && w->n) putchar('\n');
    return w->routed ? cpl_routing_print(&w->routing) : CPL_OK;
}

/* Makes the table that the page shows without scripts. */
static cpl_status main_table(const work *w, cpl_grid *grid, cpl_pool *pool)
{
    if (w->n > 1) return cpl_inspect_grid_compare(grid, pool, w->reports, w->n);
    if (w->n == 1)
        return cpl_inspect_grid(grid, pool, w->reports,
                                w->options.sample > 0 ? CPL_TABLE_SAMPLE : CPL_TABLE_AGREEMENT);
    return cpl_routing_grid(grid, pool, &w->routing, CPL_TABLE_CHOICES);
}

static void put_verdicts(const work *w, cpl_text *title, cpl_text *verdicts)
{
    cpl_text_printf(title, w->n ? "Router and experts: " : "Routing: %s", w->routing.path);
    for (int64_t i = 0; i < w->n; i++)
        cpl_text_printf(title, "%s%s", i ? ", " : "", w->reports[i].name);
    if (w->routed) cpl_routing_verdict(verdicts, &w->routing);
    for (int64_t i = 0; i < w->n; i++) {
        if (verdicts->length) cpl_text_char(verdicts, '\n');
        if (w->n > 1) /* the headings of the table's columns */
            cpl_text_printf(verdicts, "(%lld) %s:\n", (long long)i + 1, w->reports[i].name);
        cpl_coupling_verdict(verdicts, &w->reports[i]);
    }
    verdicts->failed = verdicts->failed || title->failed;
}

/* Writes the page. `report` is the object of --json, to which this adds the maps. */
static cpl_status write_page(const work *w, json_t *report, const char *path)
{
    const cpl_arguments *a = w->args;
    cpl_text page = {0}, title = {0}, verdicts = {0};
    cpl_pool pool     = {0};
    json_t *made      = NULL;
    cpl_grid grid     = {0};
    cpl_status status = cpl_coupling_maps(report, w->reports, w->n);
    put_verdicts(w, &title, &verdicts);
    if (status == CPL_OK) status = cpl_text_status(&verdicts);
    if (status == CPL_OK) status = main_table(w, &grid, &pool);
    if (status == CPL_OK)
        status = cpl_provenance(&made, a->given, a->n_given, a->words, a->n_words);
    const cpl_view view = {.kind      = w->n ? "inspect" : "routing",
                           .title     = title.bytes,
                           .report    = report,
                           .made      = made,
                           .sentences = verdicts.bytes,
                           .main      = &grid};
    if (status == CPL_OK) status = cpl_view_page(&page, &view);
    if (status == CPL_OK) status = cpl_output_file(path, page.bytes, page.length);
    json_decref(made);
    cpl_pool_free(&pool);
    cpl_text_free(&page);
    cpl_text_free(&title);
    cpl_text_free(&verdicts);
    return status;
}

static cpl_status write_rows(const work *w, const char *path)
{
    const cpl_coupling_report *r = w->n ? w->reports : NULL;
    if (r && r->rows.file) return cpl_output_file(path, r->rows.file, r->rows.bytes);
    return CPL_FAIL(CPL_ERR_INPUT, "%s: no rows of gates are written: %s", path,
                    r ? r->layers[r->rows.index].fault : "there is no coupling table");
}

static cpl_status show_all(const work *w)
{
    const char *json = cpl_flag_text(w->args, "--json"), *html = cpl_flag_text(w->args, "--html");
    const char *rows  = cpl_flag_text(w->args, "--rows");
    json_t *data      = NULL;
    cpl_status status = CPL_OK;
    if (!json || strcmp(json, "-") != 0) CPL_TRY(print_all(w));
    if (json || html) data = json_of(w);
    if ((json || html) && !data) return CPL_FAIL(CPL_ERR_MEMORY, "out of memory for the report");
    if (json)
        CPL_TRY_DONE(
            cpl_output_json(json_incref(data), "the report", json, JSON_REAL_PRECISION(9)));
    if (html) CPL_TRY_DONE(write_page(w, data, html));
    if (rows) CPL_TRY_DONE(write_rows(w, rows));
    cpl_output_paths_describe(w->args);
done:
    json_decref(data);
    return status;
}

/* Fails if a checkpoint or layer was left out (--keep-going). It is called after the report. */
static cpl_status check_faults(const work *w)
{
    int64_t faulty    = 0;
    const char *first = NULL;
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t l = 0; l < w->reports[i].n_layers; l++) {
            const cpl_layer_report *layer = &w->reports[i].layers[l];
            if (!layer->fault || layer->skipped) continue;
            if (faulty++ == 0) first = layer->fault;
        }
    if (w->lost)
        return CPL_FAIL(CPL_ERR_INPUT, "%lld checkpoint%s left out; the first: %s",
                        (long long)w->lost, w->lost == 1 ? "" : "s", w->reason);
    if (faulty)
        return CPL_FAIL(CPL_ERR_INPUT, "%lld layer%s could not be read; the first: %s",
                        (long long)faulty, faulty == 1 ? "" : "s", first);
    return CPL_OK;
}

static cpl_status check_outputs(const cpl_arguments *args)
{
    CPL_TRY(cpl_inspect_remotes_check_cache(args));
    CPL_TRY(cpl_output_paths_outside(args));
    return cpl_output_paths_check(args, "layers checkpoints routing");
}

static cpl_status show_and_judge(work *w)
{
    if (w->dry_run) return CPL_OK;
    CPL_TRY(show_all(w));
    return check_faults(w);
}

static cpl_status inspect(work *w)
{
    if (!w->routed) CPL_TRY(cpl_ranks_refuse("inspect without --text"));
    if (w->routed) CPL_TRY(cpl_inspect_remotes_refuse_text(w->args));
    if (w->routed) CPL_TRY(cpl_ranks_begin(&w->world));
    CPL_TRY(cpl_ranks_watch(w->timeout_s));
    const bool first                 = cpl_gather_is_first(w->world);
    w->routing_options.reader.group  = w->world;
    w->routing_options.reader.device = w->device;
    CPL_TRY(cpl_gather_status(w->world, first ? check_outputs(w->args) : CPL_OK));
    CPL_TRY(inspect_all(w));
    return cpl_gather_status(w->world, first ? show_and_judge(w) : CPL_OK);
}

static cpl_status run(const cpl_arguments *args)
{
    work w            = {.args = args, .remotes = {.args = args, .log = cpl_output_log(stderr)}};
    cpl_status status = read_options(&w);
    if (status == CPL_OK) status = inspect(&w);
    cpl_ranks_end(status);
    for (int64_t i = 0; w.reports && i < args->n_words; i++) cpl_inspect_close(&w.reports[i]);
    cpl_inspect_remotes_close(&w.remotes);
    cpl_routing_close(&w.routing);
    cpl_free(w.reports);
    cpl_free(w.layers);
    cpl_free(w.device);
    return status;
}

static const cpl_flag flags[] = {
    CPL_FLAG_ROWS_PLACES("Also write all figures as JSON; - prints them instead of the tables.",
                         "Write a self-contained page with charts."),
    CPL_FLAG("--alpha", TEXT, "LIST", "Values of alpha at which ERC is given.",
             .default_value = "1,2,3,4,5"),
    CPL_FLAG("--layers", TEXT, "LIST",
             "Only these layers, such as 0,5-7, by the numbers in the names of the tensors."),
    CPL_FLAG(
        "--noise", INT, "SEED",
        "Compute M from noisy proxies, as in training, drawn with this seed; default: from the "
        "router rows without noise.",
        .low = 0, .high = 9e15),
    CPL_SWITCH(
        "--silhouette",
        "Compute how well the rows of each expert's gate form a cluster; reads the gates twice, "
        "and takes more than twice as long."),
    CPL_SWITCH(
        "--lambda",
        "Compute how much of the most that its gate can answer to a router row of its norm the "
        "row makes it answer, |R_i W_i| / (|R_i| |W_i|_2); takes several times as long as the "
        "rest."),
    CPL_FLAG(
        "--sample", TEXT, "SHARE",
        "Read about this share of the rows of every gate, such as 2% or 0.02, in 4 blocks, and "
        "give means with their standard errors, without a verdict."),
    CPL_FLAG_ROW_THREADS,
    CPL_FLAG("--memory", TEXT, "SIZE", "Never use more memory than this, such as 512M or 4G."),
    CPL_SWITCH("--dry-run", "Open the checkpoints, print what reading them takes, and stop there."),
    CPL_FLAG("--cache", FOLDER, "DIR",
             "Keep what is read from servers in this folder, so that an interrupted inspection "
             "goes on; default: nothing is kept."),
    CPL_SWITCH("--yes", "Make more than 20,000 requests to servers if it takes that many."),
    CPL_SWITCH("--keep-going",
               "Report the intact layers of a damaged checkpoint; the exit code is still 1."),
    CPL_FLAG("--rows", FILE, "FILE.npy",
             "Write rows of the gates of the middle layer (of --layers), of at most 8 experts and "
             "4096 rows, for python -m couplet.plot --tsne."),
    CPL_FLAG("--seed", INT, "SEED",
             "Seed of the random pairings for the comparison with chance, and of --sample.",
             .default_value = "1", .low = 0, .high = 9e15),
    CPL_FLAG_ROWS_ROUTING,
    CPL_FLAG_ROW_SET,
};

const cpl_verb cpl_verb_inspect = {
    .name       = "inspect",
    .afar       = true,
    .over_ranks = true,
    .summary    = "report how well router rows and experts of an MoE checkpoint are aligned",
    .usage      = "CHECKPOINT [CHECKPOINT ...] [--json FILE] [--html FILE] [...]",
    .about =
        "A checkpoint is a folder in the Hugging Face layout, a .safetensors file or a .gguf "
        "file of a known family, or of one whose tensors allow only one interpretation. Only "
        "routers and the gates of the experts are read; nothing is written next to them.\n"
        "It may lie on a server: hf://OWNER/NAME[@REVISION][/FOLDER or /FILE] of a hub of models, "
        "or the URL https://... of a folder or of a file. Then only the bytes of routers and gates "
        "are fetched, and a line says before how many (docs/inspection.md, \"From afar\").\n"
        "M[i,j] = |R_i . W_g^j| is how strongly router row i excites expert j. ERC is the "
        "coupling loss of these weights; alpha_min is the smallest alpha at which it is 0. kappa "
        "= M / (|R| |W|) is free of scale, and z is the number of standard deviations by which "
        "the experts' own kappa exceeds that of random pairings.\n"
        "With --text the model of one OLMoE folder or run reads that text, and a second report "
        "describes its routing: load, pairs of experts, domains, whether the choice agrees with "
        "the experts' responses |x W_g|, and, for a run, how early the routing became stable. "
        "Under mpirun or srun the ranks share the "
        "reading of that text (docs/parallel.md).\n"
        "A checkpoint without MoE layers, or with damaged weights, ends with exit code 1.",
    .least = 1,
    .most  = -1,
    CPL_VERB_FLAGS(flags),
    .settings = "compute.device dist.timeout",
    .run      = run,
};
