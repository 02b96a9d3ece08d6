/* test_inspect_fuzz.c - damaged checkpoints of safetensors through all of inspection.
 *
 * Method: every layout of layout_list.h; each round changes names, shapes, number formats, numbers,
 *         the settings or the index of one of them (layout_damage.h) so that the files themselves
 *         mostly stay
 * whole, sometimes a few bytes too, and inspects what came of it, with sanitizers. */
#include <sys/stat.h>

#include "inspect/families/layout_list.h"
#include "inspect/inspect_fuzz.h"
#include "inspect/layout_damage.h"

enum { N_LAYOUTS = sizeof layouts / sizeof *layouts, N_NEAR = 6 };

/* Blocks and words of several numbers where a gate may be turned or shared: some of these are
 * refused as they stand, and a step away from what must not be read. */
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
    fuzz_write(in(folder, "model.safetensors.index.json"), &c->index);
}

/* All of it into the fresh folder; now and then a shard is not there, or not whole. */
static void write_changed(fuzz *f, changed *c, const char *folder)
{
    char name[64];
    const bool damaged = fuzz_below(f, 8) == 0, missing = fuzz_below(f, 12) == 0;
    const int which = (int)fuzz_below(f, (size_t)c->shards);
    for (int s = 0; s < c->shards; s++)
        if (s != which || !missing || c->shards == 1)
            write_shard(
                f, c,
                in(folder, c->shards > 1 ? shard_name(s, c->shards, name) : "model.safetensors"), s,
                s == which && damaged);
    if (c->shards > 1) write_index(f, c, folder);
    if (fuzz_below(f, 32)) fuzz_write(in(folder, "config.json"), &c->config);
}

/* ---- what there is to change ---- */

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
