/* test_families.c - the map of MoE layers from names, shapes and config: the cases of cases.txt,
 * which cover every family of the table, and the time that a large header takes. */
#include "inspect/families/families.h"

#include "inspect/families/internal.h"
#include "inspect/families/moe_case.h"
#include "support/files.h"
#include "support/scarce.h"

static moe_list list;

/* ---- the cases of cases.txt ---- */

typedef struct moe_case {
    cpl_text names, config, tensors;
    cpl_text map;   /* the expected map, or ... */
    cpl_text parts; /* ... the expected parts of the error, a line each */
    bool is_gguf;
} moe_case;

static void free_case(moe_case *one)
{
    cpl_text *const all[] = {&one->names, &one->config, &one->tensors, &one->map, &one->parts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cpl_text_free(all[i]);
    *one = (moe_case){0};
}

/* Appends the line without the first `skip` characters. */
static void append_line(cpl_text *text, const char *line, size_t skip)
{
    cpl_text_printf(text, "%s\n", line + skip);
}

static void add_line(moe_case *one, const char *line)
{
    if (strncmp(line, "case ", 5) == 0)
        cpl_text_printf(&one->names, "%s ", line + 5);
    else if (strncmp(line, "config ", 7) == 0)
        append_line(&one->config, line, 7);
    else if (strncmp(line, "gguf ", 5) == 0)
        append_line(&one->config, line, 5), one->is_gguf = true;
    else if (strncmp(line, "= ", 2) == 0)
        append_line(&one->map, line, 2);
    else if (strncmp(line, "! ", 2) == 0)
        append_line(&one->parts, line, 2);
    else
        append_line(&one->tensors, line, 0);
}

/* Returns the text with `name` in place of every $, or NULL if empty. The caller frees `out`. */
static const char *with_name(cpl_text *out, const cpl_text *text, const char *name)
{
    for (const char *at = text->length ? text->bytes : ""; *at; at++)
        if (*at == '$')
            cpl_text_printf(out, "%s", name);
        else
            cpl_text_char(out, *at);
    return text->length ? out->bytes : NULL;
}

/* Returns whether the map is refused: its faults contain each of the parts. */
static bool is_refused(const cpl_moe_map *map, const char *parts)
{
    int64_t lines = 0;
    char part[512];
    for (int length; sscanf(parts, "%511[^\n]\n%n", part, &length) == 1; parts += length) {
        bool found = false;
        for (int64_t i = 0; i < map->n_faults; i++) found |= strstr(map->faults[i], part) != NULL;
        if (!found) return false;
        lines++;
    }
    return lines == map->n_faults && map->n_layers == 0;
}

/* Returns 1 and prints the difference if the case does not give the expected result. */
static int check_case(const moe_case *one, const char *name)
{
    cpl_moe_map map;
    cpl_text text = {0}, config = {0}, wanted = {0};
    moe_list_read(&list, one->tensors.length ? one->tensors.bytes : "");
    cpl_status status =
        moe_map_of(&map, &list, with_name(&config, &one->config, name), one->is_gguf);
    if (status == CPL_OK) moe_map_text(&text, &map);
    const char *map_wanted = with_name(&wanted, &one->map, name);
    bool right             = map_wanted ? status == CPL_OK && strcmp(text.bytes, map_wanted) == 0
                                        : status == CPL_ERR_INPUT && is_refused(&map, one->parts.bytes);
    for (int64_t i = 0; i < map.n_layers; i++)
        right = right && (map.layers[i].n_matrices > 0) == (map.layers[i].matrices != NULL);
    if (!right)
        print_error("%s:\n%swanted:\n%s\n", name, status == CPL_OK ? text.bytes : cpl_last_error(),
                    map_wanted ? map_wanted : one->parts.bytes);
    cpl_moe_map_free(&map);
    cpl_text_free(&text);
    cpl_text_free(&config);
    cpl_text_free(&wanted);
    return !right;
}

/* Calls `check` for each name of each case in the file and returns the sum of its results. */
static int each_case(int (*check)(const moe_case *, const char *name))
{
    cpl_text file = read_bytes("tests/inspect/families/cases.txt");
    moe_case one  = {0};
    int sum       = 0;
    char line[2048], name[64];
    for (const char *at = file.bytes, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        snprintf(line, sizeof line, "%.*s", (int)(end - at), at);
        if (*line && *line != '#') add_line(&one, line);
        if ((*line && end[1]) || !one.names.length) continue;
        const char *names = one.names.bytes;
        for (int length; sscanf(names, "%63s %n", name, &length) == 1; names += length)
            sum += check(&one, name);
        free_case(&one);
    }
    cpl_text_free(&file);
    return sum;
}

TEST(every_case)
{
    assert_int_equal(each_case(check_case), 0);
}

/* ---- sentences ---- */

static const char olmoe_layer[] =
    "model.layers.{0-1}.mlp.gate.weight BF16 6,32;"
    "model.layers.{0-1}.mlp.experts.{0-5}.gate_proj.weight BF16 20,32";

TEST(config_and_shapes)
{
    cpl_moe_map map;
    assert_ok(moe_map_read(&map, &list,
                           "{\"model_type\":\"olmoe\",\"num_experts\":8,\"hidden_size\":32,"
                           "\"intermediate_size\":[20,24]}",
                           olmoe_layer, false));
    assert_int_equal(map.n_notes, 2);
    assert_string_equal(map.notes[0], "config.json says num_experts is 8, but the tensors of "
                                      "model.layers.0. say 6 (so in 1 more layers): the tensors "
                                      "are believed");
    assert_string_equal(map.notes[1],
                        "config.json says intermediate_size is 24, but the tensors of "
                        "model.layers.1. say 20: the tensors are believed");
    cpl_moe_map_free(&map);
    assert_ok(moe_map_read(&map, &list,
                           "{\"model_type\":\"olmoe\",\"num_experts\":6,\"hidden_size\":32,"
                           "\"intermediate_size\":56,\"moe_intermediate_size\":20}",
                           olmoe_layer, false));
    assert_int_equal(map.n_notes, 0);
    cpl_moe_map_free(&map);
}

/* The configuration has more experts a token than the router has rows. Identity experts count. */
TEST(K_and_the_router)
{
    cpl_moe_map map;
    assert_ok(moe_map_read(&map, &list, "{\"model_type\":\"olmoe\",\"num_experts_per_tok\":7}",
                           olmoe_layer, false));
    assert_int_equal(map.n_notes, 1);
    assert_string_equal(map.notes[0], "config.json says num_experts_per_tok is 7, but the router "
                                      "of model.layers.0. has only 6 rows (so in 1 more layers)");
    cpl_moe_map_free(&map);
    assert_ok(moe_map_read(&map, &list, "{\"model_type\":\"olmoe\",\"num_experts_per_tok\":6}",
                           olmoe_layer, false));
    assert_int_equal(map.n_notes, 0);
    cpl_moe_map_free(&map);
    assert_ok(moe_map_read(&map, &list,
                           "{\"model_type\":\"longcat_flash\",\"n_routed_experts\":6,"
                           "\"moe_topk\":8}",
                           "model.layers.0.mlp.router.classifier.weight BF16 9,32;"
                           "model.layers.0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32",
                           false));
    assert_int_equal(map.n_notes, 0);
    assert_string_equal(map.layers[0].note, "3 rows of the router for identity experts, which have "
                                            "no weights, are left out");
    cpl_moe_map_free(&map);
}

TEST(guesses_and_notes)
{
    cpl_moe_map map;
    assert_ok(moe_map_read(&map, &list, "{\"model_type\":\"brand_new\"}", olmoe_layer, false));
    assert_string_equal(map.guess, "the model_type brand_new is not known: by names and shapes "
                                   "mlp.gate is taken for the router and "
                                   "mlp.experts.{e}.gate_proj for the experts' gates");
    assert_string_equal(map.title, "brand_new");
    cpl_moe_map_free(&map);
    assert_ok(moe_map_read(&map, &list, NULL, olmoe_layer, false));
    assert_string_equal(map.title, "family not given");
    assert_string_equal(map.guess, "no config.json: by names and shapes mlp.gate is taken for the "
                                   "router and mlp.experts.{e}.gate_proj for the experts' gates");
    cpl_moe_map_free(&map);
    assert_ok(moe_map_read(&map, &list, "{\"num_experts\":6}", olmoe_layer, false));
    assert_memory_equal(map.guess, "no model_type in config.json: by", 32);
    cpl_moe_map_free(&map);
    assert_ok(moe_map_read(&map, &list, "{\"model_type\":\"nemotron_h\"}",
                           "layers.0.mixer.gate.weight BF16 6,32;"
                           "layers.0.mixer.experts.{0-5}.up_proj.weight BF16 20,32",
                           false));
    assert_string_equal(map.layers[0].note,
                        "its experts have no gate: their one input matrix is measured");
    assert_string_equal(map.title, "Nemotron-H-MoE");
    cpl_moe_map_free(&map);
}

/* The error has three faults, and the map all of them. */
TEST(many_faults)
{
    cpl_moe_map map;
    assert_fails(CPL_ERR_INPUT, "layer model.layers.2. has experts",
                 moe_map_read(&map, &list, "{\"model_type\":\"odd\"}",
                              "model.layers.{0-4}.mlp.experts.{0-5}.w1.weight BF16 20,32", false));
    assert_non_null(strstr(cpl_last_error(), "; faults that are not shown: 2"));
    assert_null(strstr(cpl_last_error(), "model.layers.3"));
    assert_int_equal(map.n_faults, 5);
    assert_int_equal(map.n_layers, 0);
    cpl_moe_map_free(&map);
}

/* The error begins with the fault that refuses the map, after other faults too. */
TEST(the_fault_that_refuses)
{
    cpl_moe_map map;
    assert_fails(CPL_ERR_INPUT,
                 "case: model.layers.4.mlp.gate.weight and model.layers.4.mlp.router",
                 moe_map_read(&map, &list, "{\"model_type\":\"odd\"}",
                              "model.layers.{0-4}.mlp.gate.weight BF16 6,32;"
                              "model.layers.{0-4}.mlp.experts.{0-1}.gate_proj.weight BF16 20,32;"
                              "model.layers.{0-4}.mlp.experts.{3-5}.gate_proj.weight BF16 20,32;"
                              "model.layers.4.mlp.router.weight BF16 6,32",
                              false));
    cpl_moe_map_free(&map);
}

/* The fault of a stored tensor is a fault of its own layer alone. */
TEST(stored_faults)
{
    cpl_moe_map map;
    moe_list_read(&list, olmoe_layer);
    for (int64_t i = 0; i < list.count; i++)
        if (strstr(list.names[i], "layers.1.mlp.experts.4")) {
            list.all[i].fault = "the shard is missing";
            list.all[i].rank  = -1;
        }
    assert_ok(moe_map_of(&map, &list, "{\"model_type\":\"olmoe\"}", false));
    assert_int_equal(map.n_layers, 2);
    assert_null(map.layers[0].fault);
    assert_string_equal(map.layers[1].fault, "the shard is missing");
    assert_int_equal(map.n_faults, 1);
    assert_string_equal(map.faults[0], map.layers[1].fault);
    cpl_moe_map_free(&map);
}

/* Grok-2 has slices with equal names, joined along the rows. The router is whole in each. */
TEST(slices)
{
    enum { N = 3, SLICES = 2 };
    cpl_moe_map map;
    const char *names[N + 1] = {"model.layers.0.block_sparse_moe.experts.0.w1.weight",
                                "model.layers.0.block_sparse_moe.experts.1.w1.weight",
                                "model.layers.0.block_sparse_moe.experts.2.w1.weight",
                                "model.layers.0.block_sparse_moe.gate.weight"};
    list.count               = 0;
    for (int i = 0; i <= N; i++)
        for (int s = 0; s < SLICES; s++) {
            moe_add(&list, names[i], "BF16", i < N ? (s ? "8,32" : "12,32") : "3,32");
            list.all[list.count - 1].slice    = s;
            list.all[list.count - 1].n_slices = SLICES;
        }
    assert_ok(moe_map_of(&map, &list, "{\"model_type\":\"git\"}", false));
    assert_null(map.layers[0].fault);
    assert_int_equal(map.layers[0].n, N);
    assert_int_equal(map.layers[0].D, 20);
    assert_int_equal(map.layers[0].extra_rows, 0);
    cpl_moe_map_free(&map);
    assert_ok(moe_map_of(&map, &list, "{\"model_type\":\"mixtral\"}", false));
    assert_non_null(strstr(map.layers[0].fault, "slices in 2 files"));
    cpl_moe_map_free(&map);
}

/* A flat router in slices is no matrix, and stays one fault. */
TEST(flat_slices)
{
    cpl_moe_map map;
    list.count = 0;
    moe_add(&list, "blocks.0.feed_forward_moe.experts.mlp.w1", "BF16", "120,32");
    for (int s = 0; s < 2; s++) {
        moe_add(&list, "blocks.0.feed_forward_moe.router.weight", "BF16", "192");
        list.all[list.count - 1].slice    = s;
        list.all[list.count - 1].n_slices = 2;
    }
    assert_ok(moe_map_of(&map, &list, "{}", false));
    assert_non_null(strstr(map.layers[0].fault, "slices in 2 files"));
    cpl_moe_map_free(&map);
}

/* ---- the table, time, memory ---- */

/* Checks names of tensors: words between dots, with a * before the first or one {e} for the number
 * of an expert. A gate's name may have a layout after a colon. */
static void check_tensor_names(const char *names, const char *const *layouts)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    char word[64];
    for (const char *at = names + strspn(names, " "); sscanf(at, "%63s", word) == 1;) {
        const char *c = word + (*word == '*');
        int experts   = 0;
        while (*c && *c != ':') {
            size_t length = strspn(c, letters);
            if (strncmp(c, "{e}", 3) == 0) length = 3, experts++;
            if (!length) fail_msg("%s is no name of a tensor", word);
            c += length;
            if (*c == '.' && c[1]) c++;
        }
        const char *const *layout = layouts;
        while (*layout && strcmp(c, *layout) != 0) layout++;
        if (!*layout) fail_msg("%s: %s is no layout", word, c);
        assert_true(experts <= 1);
        at += strlen(word);
        at += strspn(at, " ");
    }
}

static const cpl_family *wanted_family;

/* Returns 1 if the map of the case is of the wanted family. */
static int is_of_family(const moe_case *one, const char *name)
{
    char word[64];
    if (!one->map.length || sscanf(one->map.bytes, "%63s", word) != 1) return 0;
    return cpl_name_in_words(wanted_family->model_types, *word == '$' ? name : word);
}

TEST(rows_of_the_table)
{
    static const char *const none[] = {"", NULL}, *const any[] = {"",    ":GD", ":UD",
                                                                  ":DG", ":D",  NULL};
    for (int64_t i = 0; i < cpl_n_families; i++) {
        const cpl_family *one = &cpl_families[i];
        check_tensor_names(one->router, none);
        check_tensor_names(one->gate, any);
        assert_true(one->flags < 2u * CPL_FLAG_NO_CONFIG); /* the last flag */
        wanted_family = one;
        assert_true(*one->router);
        if (*one->model_types && !each_case(is_of_family)) fail_msg("no case is of %s", one->title);
        for (int64_t k = 0; k < i; k++) {
            char word[64];
            for (const char *at = one->model_types; sscanf(at, "%63s", word) == 1;) {
                char inside[128], words[512];
                snprintf(inside, sizeof inside, " %s ", word);
                snprintf(words, sizeof words, " %s ", cpl_families[k].model_types);
                if (strstr(words, inside)) fail_msg("%s is in two rows", word);
                at += strspn(at, " ") + strlen(word);
            }
        }
    }
}

TEST(a_large_header)
{
    enum { LAYERS = 60, EXPERTS = 256, PER = 6, COUNT = LAYERS * (EXPERTS * PER + 1) };
    enum { WIDTH = 7168, GATE = 2048, BLOCK = 128 };
    char gate[2 * MOE_MAX_NAME];
    static const char *const leaves[PER] = {
        "gate_proj.weight",           "up_proj.weight",           "down_proj.weight",
        "gate_proj.weight_scale_inv", "up_proj.weight_scale_inv", "down_proj.weight_scale_inv"};
    cpl_stored *all            = calloc(COUNT, sizeof *all);
    char(*names)[MOE_MAX_NAME] = calloc(COUNT, sizeof *names);
    int64_t count              = 0;
    for (int l = 0; l < LAYERS; l++)
        for (int e = 0; e <= EXPERTS; e++)
            for (int p = 0; p < (e < EXPERTS ? PER : 1); p++) {
                bool scale = p >= 3, router = e == EXPERTS;
                if (router)
                    snprintf(names[count], MOE_MAX_NAME, "model.layers.%d.mlp.gate.weight", l);
                else
                    snprintf(names[count], MOE_MAX_NAME, "model.layers.%d.mlp.experts.%d.%s", l, e,
                             leaves[p]);
                all[count] =
                    (cpl_stored){.name      = names[count],
                                 .type_name = scale || router ? "F32" : "F8_E4M3",
                                 .format    = scale || router ? CPL_FORMAT_F32 : CPL_FORMAT_F8_E4M3,
                                 .rank      = 2,
                                 .shape     = {router  ? EXPERTS
                                               : scale ? GATE / BLOCK
                                                       : GATE,
                                           scale ? WIDTH / BLOCK : WIDTH},
                                 .n_elements = 2,
                                 .n_slices   = 1,
                                 .path       = "case"};
                count++;
            }
    json_t *config = json_pack("{s:s,s:{s:s}}", "model_type", "deepseek_v3", "quantization_config",
                               "quant_method", "fp8");
    const cpl_moe_document document = {config, false, "case"};
    cpl_moe_map map;
    assert_ok(cpl_moe_map_make(&map, all, count, &document));
    assert_int_equal(map.n_layers, LAYERS);
    for (int l = 0; l < LAYERS; l++) {
        const cpl_moe_layer *layer = &map.layers[l];
        assert_null(layer->fault);
        assert_int_equal(layer->layer, l);
        assert_int_equal(layer->n, EXPERTS);
        assert_int_equal(layer->d, WIDTH);
        assert_int_equal(layer->D, GATE);
        assert_int_equal(layer->n_matrices, EXPERTS);
        for (int e = 0; e < EXPERTS; e++) {
            snprintf(gate, sizeof gate, "model.layers.%d.mlp.experts.%d.gate_proj.weight", l, e);
            assert_string_equal(layer->matrices[e].weight->name, gate);
            strcat(gate, "_scale_inv");
            assert_string_equal(layer->matrices[e].scale->name, gate);
        }
    }
    cpl_moe_map_free(&map);
    json_decref(config);
    free(all);
    free(names);
}

TEST(no_memory)
{
    cpl_moe_map map;
    scarce s = {0};
    while (scarce_begin(&s))
        scarce_end(&s, moe_map_read(&map, &list, "{\"model_type\":\"odd\",\"num_experts\":7}",
                                    olmoe_layer, false));
    assert_true(s.nth > 4);
    cpl_moe_map_free(&map);
}
