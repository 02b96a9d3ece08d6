/* test_inspect_fuzz.c - damaged checkpoints through all of inspection: opened, measured, written as
 * JSON. The result is always a status with a sentence, or a report whose every layer has figures or
 * a reason. It is never a crash, a leak, more memory than was allowed, or an endless wait.
 *
 * Method: every layout of layout_list.h. Each round changes names, shapes, number formats, numbers,
 *         the settings or the index of one of them (layout_damage.h). The files themselves mostly
 *         stay whole, but sometimes a few bytes change too. The result is inspected with
 *         sanitizers. Then words, numbers and bytes of two GGUF files are changed. */
#include <math.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "fuzz.h"
#include "inspect/families/layout_list.h"
#include "inspect/layout_damage.h"
#include "inspect/report.h"
#include "inspect/show/show.h"
#include "io/file.h"

enum {
    ROUNDS        = 500,
    MOST_MEMORY   = 1 << 25, /* bytes of one inspection */
    MEMORY_BESIDE = 1 << 23  /* bytes that names and settings of files of this size may take */
};

static const double MOST_SECONDS = 20; /* processor time of one inspection */

static double processor_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static cpl_inspect_options any_options(fuzz *f)
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

/* Checks that every layer has figures or the reason why it has none. */
static void check_report(const cpl_coupling_report *r)
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

static void check_json(const cpl_coupling_report *r)
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

/* Inspects within bounds of time and memory. Returns the number of layers with figures, or -1. */
static int64_t inspect(const char *path, const cpl_inspect_options *options)
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
    int64_t rounds, refused, partly, whole; /* results of the rounds, with keep_going */
} outcomes;

/* Inspects with and without keep_going: keep_going loses no figures. */
static void inspect_twice(fuzz *f, const char *path, outcomes *to)
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

static void tell(const char *what, const outcomes *o)
{
    print_message("%-12s %lld rounds: %lld refused, %lld in part, %lld without a fault\n", what,
                  (long long)o->rounds, (long long)o->refused, (long long)o->partly,
                  (long long)o->whole);
    if (!fuzz_is_alone()) assert_true(o->refused && o->partly && o->whole);
}

/* Writes the number of the round into the folder, for a reader who finds it after a crash. */
static void note_round(const char *folder, int64_t round)
{
    FILE *out = fopen(in_folder(folder, "round"), "w");
    fprintf(out, "COUPLET_FUZZ_ROUND=%lld\n", (long long)round);
    fclose(out);
}

/* ---- layouts of safetensors files ---- */

enum { N_LAYOUTS = sizeof layouts / sizeof *layouts, N_NEAR = 6 };

/* Layouts with blocks and words of several numbers, in which a gate may be transposed or shared.
 * Some are refused as they stand, and differ by one step from layouts that must not be read. */
static const layout near_layouts[N_NEAR] = {
    {"mxfp4 in columns", CONFIG("llama4", K2), LAYER, "feed_forward.router",
     "feed_forward.experts.gate_up_proj", COLUMNS, AS_MXFP4, SIZES(64, 32)},
    {"f4 transposed", CONFIG("ernie4_5_moe", FP8), OLMOE, EACH_TURNED, AS_F4, SIZES(64, 32),
     .router_turned = true},
    {"int4 transposed", CONFIG("ernie4_5_moe", INT4), OLMOE, EACH_TURNED, AS_INT4, SIZES(48, 32),
     .block_cols = 16, .router_turned = true},
    {"int4 rows", CONFIG("qwen3_5_moe", INT4), FUSED, ROWS, AS_INT4, SIZES(48, 32),
     .block_cols = 16},
    {"f8 flat", CONFIG("dbrx", FP8), "transformer.blocks.%d.", "ffn.router.layer",
     "ffn.experts.mlp.w1", FLAT, AS_F8_STACKED, SIZES(40, 28), .block_rows = 16, .block_cols = 24},
    {"f8 pair transposed", CONFIG("ernie4_5_moe", FP8), "ernie.layers.%d.", "mlp.gate",
     "mlp.experts.%d.up_gate_proj", EACH_PAIR_TURNED, AS_F8_BLOCKS, SIZES(40, 28), .block_rows = 16,
     .block_cols = 24, .router_turned = true},
};

static const layout *layout_of_round(int64_t round)
{
    const int64_t at = round % (N_LAYOUTS + N_NEAR);
    return at < N_LAYOUTS ? &layouts[at] : &near_layouts[at - N_LAYOUTS];
}

/* ---- files ---- */

static void add_header(cpl_text *header, const changed *c, int shard)
{
    unsigned long long at = 0;
    const char *comma     = "{";
    for (int i = shard; i < c->files.count; i += c->shards) {
        const layout_tensor *t = &c->files.all[i];
        cpl_text_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", comma, t->name,
                        cpl_safetensors_dtype_name(t->dtype));
        for (int k = 0; k < t->rank; k++)
            cpl_text_printf(header, "%s%lld", k ? "," : "", (long long)t->shape[k]);
        cpl_text_printf(header, "],\"data_offsets\":[%llu,%llu]}", at, at + t->bytes);
        at += t->bytes;
        comma = ",";
    }
    cpl_text_printf(header, "%s}", *comma == '{' ? "{" : "");
    while (header->length % 8) cpl_text_char(header, ' ');
}

static void write_shard(fuzz *f, const changed *c, const char *path, int shard, bool damaged)
{
    cpl_text header = {0}, file = {0};
    add_header(&header, c, shard);
    uint64_t length = header.length;
    cpl_text_append(&file, &length, 8);
    cpl_text_append(&file, header.bytes, header.length);
    for (int i = shard; i < c->files.count; i += c->shards)
        cpl_text_append(&file, c->files.all[i].data, c->files.all[i].bytes);
    if (damaged) fuzz_once(f, &file);
    fuzz_write(path, &file);
    cpl_text_free(&header);
    cpl_text_free(&file);
}

static const char *shard_name(int shard, int shards, char out[64])
{
    snprintf(out, 64, "model-%05d-of-%05d.safetensors", shard + 1, shards);
    return out;
}

static void write_index(fuzz *f, changed *c, const char *folder)
{
    char name[64];
    const size_t moved = fuzz_below(f, 8) ? SIZE_MAX : fuzz_below(f, (size_t)c->files.count);
    cpl_text_clear(&c->index);
    cpl_text_printf(&c->index, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (int i = 0; i < c->files.count; i++)
        cpl_text_printf(&c->index, "%s\"%s\":\"%s\"", i ? "," : "", c->files.all[i].name,
                        shard_name(((size_t)i == moved ? i + 1 : i) % c->shards, c->shards, name));
    cpl_text_printf(&c->index, "}}");
    if (fuzz_below(f, 8) == 0) fuzz_once(f, &c->index);
    fuzz_write(in_folder(folder, "model.safetensors.index.json"), &c->index);
}

/* Writes the changed case into the fresh folder. Now and then a shard is missing or cut. */
static void write_changed(fuzz *f, changed *c, const char *folder)
{
    char name[64];
    const bool damaged = fuzz_below(f, 8) == 0, missing = fuzz_below(f, 12) == 0;
    const int which = (int)fuzz_below(f, (size_t)c->shards);
    for (int s = 0; s < c->shards; s++)
        if (s != which || !missing || c->shards == 1)
            write_shard(f, c,
                        in_folder(folder, c->shards > 1 ? shard_name(s, c->shards, name)
                                                        : "model.safetensors"),
                        s, s == which && damaged);
    if (c->shards > 1) write_index(f, c, folder);
    if (fuzz_below(f, 32)) fuzz_write(in_folder(folder, "config.json"), &c->config);
}

/* ---- the changed parts ---- */

static void copy_layout(changed *c, const layout *t)
{
    memset(c, 0, sizeof *c);
    for (int l = 0; l < LAYOUT_LAYERS; l++) layout_add_layer(t, &c->files, l);
    layout_add_others(t, &c->files);
    c->shards = t->shards ? t->shards : 1;
    cpl_text_append(&c->config, t->config, strlen(t->config));
}

static void free_changed(changed *c)
{
    for (int i = 0; i < c->files.count; i++) free(c->files.all[i].data);
    cpl_text_free(&c->config);
    cpl_text_free(&c->index);
}

/* ---- inspecting it ---- */

static void fresh_folder(const char *folder)
{
    cpl_folder_remove(folder);
    assert_int_equal(mkdir(folder, 0700), 0);
}

TEST(damaged_layouts)
{
    outcomes all       = {0};
    changed *c         = malloc(sizeof *c);
    const char *folder = scratch_folder();
    char checkpoint[128];
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", folder);
    print_message("the damaged files are in %s\n", folder);
    for (fuzz f = fuzz_start(71, ROUNDS); fuzz_next(&f);) {
        note_round(folder, f.round);
        fresh_folder(checkpoint);
        copy_layout(c, layout_of_round(f.round));
        for (size_t n = 1 + fuzz_below(&f, 3) / (1 + fuzz_below(&f, 2)); n; n--)
            change_something(&f, c);
        write_changed(&f, c, checkpoint);
        inspect_twice(&f, checkpoint, &all);
        free_changed(c);
    }
    tell("safetensors", &all);
    free(c);
    cpl_folder_remove(folder);
}

/* ---- GGUF ---- */

/* Changes the numbers after a tensor's name in a GGUF file: the axes, the type or the place. */
static void change_gguf_entry(fuzz *f, cpl_text *file)
{
    static const uint64_t hard[] = {0, 1, 2, 3, 4, 5, 6, 8, 12, 14, 30, 32, 256, 512, 1ull << 40};
    size_t count = 0, chosen = 0;
    for (size_t i = 0; i + 64 < file->length; i++)
        if (memcmp(file->bytes + i, "blk.", 4) == 0 && fuzz_below(f, ++count) == 0) chosen = i;
    if (!count) return;
    const size_t at = chosen + fuzz_below(f, 64);
    uint64_t number = hard[fuzz_below(f, sizeof hard / sizeof *hard)];
    if (fuzz_below(f, 2)) {
        memcpy(file->bytes + at - at % 4, &number, 4);
    } else {
        while (chosen + 64 < file->length && (file->bytes[chosen] & 0xe0)) chosen++;
        memcpy(file->bytes + chosen + 4 * fuzz_below(f, 9), &number, 4);
    }
}

/* Replaces a word by another of its length. */
static void change_gguf_word(fuzz *f, cpl_text *file)
{
    static const char *const words[][2] = {
        {"ffn_gate_exps", "ffn_down_exps"}, {"blk.0.", "blk.1."}, {"blk.1.", "blk.3."},
        {"ffn_gate_inp", "ffn_gate_inq"},   {"llama", "olmoe"},   {"deepseek2", "qwen3moe."},
        {"expert_count", "expert_cuont"},   {"blk.2.", "blk.1."}, {"_exps", "_shxp"}};
    const char *const *pair = words[fuzz_below(f, sizeof words / sizeof *words)];
    const size_t length     = strlen(pair[0]);
    for (size_t i = 0; i + length < file->length; i++)
        if (memcmp(file->bytes + i, pair[0], length) == 0 && fuzz_below(f, 3))
            memcpy(file->bytes + i, pair[1], length);
}

static void write_gguf(fuzz *f, const cpl_text *whole, const char *path)
{
    cpl_text file = {0};
    cpl_text_append(&file, whole->bytes, whole->length);
    for (size_t n = 1 + fuzz_below(f, 2); n; n--) switch (fuzz_below(f, 4)) {
        case 0:
            fuzz_once(f, &file);
            break;
        case 1:
            change_gguf_word(f, &file);
            break;
        default:
            change_gguf_entry(f, &file);
            break;
        }
    fuzz_write(path, &file);
    cpl_text_free(&file);
}

TEST(damaged_gguf)
{
    static const char *const names[] = {"gguf/moe/deepseek2.gguf", "gguf/moe/llama.gguf"};
    outcomes all                     = {0};
    cpl_text whole[2]                = {{0}, {0}};
    const char *folder               = scratch_folder();
    print_message("the damaged files are in %s\n", folder);
    for (int i = 0; i < 2; i++) assert_ok(cpl_file_read(&whole[i], golden_path(names[i]), 1 << 20));
    for (fuzz f = fuzz_start(72, ROUNDS / 4); fuzz_next(&f);) {
        note_round(folder, f.round);
        write_gguf(&f, &whole[f.round % 2], in_folder(folder, "model.gguf"));
        inspect_twice(&f, in_folder(folder, "model.gguf"), &all);
    }
    tell("GGUF", &all);
    for (int i = 0; i < 2; i++) cpl_text_free(&whole[i]);
    cpl_folder_remove(folder);
}
