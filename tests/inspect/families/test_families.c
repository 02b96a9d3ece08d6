/* test_families.c - the map of MoE layers from names, shapes and config: every family of the table,
 * what is refused, and how long a large header takes. */
#include "inspect/families/families.h"

#include "base/arena.h"
#include "inspect/families/families_each.h"
#include "inspect/families/families_others.h"
#include "inspect/families/families_stacked.h"
#include "inspect/families/internal.h"
#include "inspect/families/moe_case.h"

static moe_list list;

#define CASES(list)                                                                                \
    {                                                                                              \
        list, sizeof list / sizeof *list                                                           \
    }

static const struct {
    const families_case *list;
    size_t count;
} cases[] = {CASES(cases_each), CASES(cases_stacked), CASES(cases_others)};

static int check_case(const families_case *one, cpl_text *text)
{
    cpl_moe_map map;
    cpl_status status = moe_map_read(&map, &list, one->config, one->tensors, one->is_gguf);
    cpl_text_clear(text);
    if (status == CPL_OK) moe_map_text(text, &map);
    for (int64_t i = 0; status == CPL_OK && i < map.n_layers; i++)
        assert_true((map.layers[i].n_matrices > 0) == (map.layers[i].matrices != NULL));
    int wrong = status != CPL_OK || strcmp(text->bytes, one->map) != 0;
    if (wrong)
        print_error("%s:\n%swanted:\n%s\n", one->name,
                    status == CPL_OK ? text->bytes : cpl_last_error(), one->map);
    if (status == CPL_OK) cpl_moe_map_free(&map);
    return wrong;
}

TEST(every_family)
{
    cpl_text text = {0};
    int wrong     = 0;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (size_t i = 0; i < cases[k].count; i++) wrong += check_case(&cases[k].list[i], &text);
    cpl_text_free(&text);
    assert_int_equal(wrong, 0);
}

/* ---- what is refused ---- */

#define ROUTER "model.layers.0.mlp.gate.weight BF16 6,32;"
#define GATES  "model.layers.0.mlp.experts.{0-5}.gate_proj"

static const struct {
    const char *config, *tensors, *part;
} refused[] = {
    {NULL, "", "no MoE layers: there are no tensors"},
    {"{\"model_type\":\"llama\"}", "model.layers.0.mlp.gate_proj.weight BF16 56,32",
     "no MoE layers: no tensor is a router's"},
    {"{\"model_type\":\"odd\"}",
     "model.layers.0.moe.choose.weight BF16 6,32;model.layers.0.moe.expert_a BF16 6,20,32",
     "model.layers.0.moe.expert_a looks like one; model_type odd"},
    {"{\"model_type\":\"odd\"}",
     "model.layers.0.chooser.weight BF16 6,32;model.layers.0.mlp.experts.{0-5}.w1.weight BF16 "
     "20,32",
     "no router under a known name; it has chooser.weight"},
    {NULL,
     "base_model.model.model.layers.0.mlp.gate.lora_A.weight F32 4,32;"
     "base_model.model.model.layers.0.mlp.gate.lora_B.weight F32 6,4",
     "holds a LoRA adapter (base_model.model.model.layers.0.mlp.gate.lora_A.weight) and no model"},
    {"{\"model_type\":\"odd\"}", ROUTER "model.layers.0.mlp.experts.gate_up_proj BF16 6,32,32",
     "is square, and no down projection beside it says whether the rows of a gate"},
    {"{\"model_type\":\"gpt_oss\"}",
     "model.layers.0.mlp.router.weight BF16 6,32;"
     "model.layers.0.mlp.experts.gate_up_proj BF16 6,32,32;"
     "model.layers.0.mlp.experts.down_proj BF16 6,32,32",
     "gate_up_proj is square, and no down projection beside it"},
    {NULL, ROUTER "model.layers.0.mlp.experts.w1 BF16 6,32,32",
     "w1 is square, and neither a known family nor scales for each row says"},
    {"{\"model_type\":\"qwen3_vl_moe\",\"transformers_version\":\"5.0.0\"}",
     ROUTER "model.layers.0.mlp.experts.gate_up_proj F8_E4M3 6,32,32;"
            "model.layers.0.mlp.experts.gate_up_proj_scale F32 6,1,32;"
            "model.layers.0.mlp.experts.down_proj F8_E4M3 6,32,16",
     "gate_up_proj is square: by model.layers.0.mlp.experts.down_proj the rows of a gate are among "
     "its rows, by model.layers.0.mlp.experts.gate_up_proj_scale among its columns"},
    {"{}",
     "model.layers.0.mlp.router.weight BF16 6,32;model.layers.0.mlp.router.bias BF16 6;"
     "model.layers.0.mlp.experts.gate_up_proj BF16 6,32,40",
     "without model_type"},
    {NULL,
     "model.layers.0.mlp.router.weight BF16 6,32;"
     "model.layers.0.mlp.experts.gate_up_proj BF16 6,40,32",
     "without model_type"},
    {"{\"model_type\":\"gpt_oss_finetune\"}",
     "model.layers.0.mlp.router.weight BF16 6,32;model.layers.0.mlp.router.bias BF16 6;"
     "model.layers.0.mlp.experts.gate_up_proj BF16 6,32,40",
     "tensor model.layers.0.mlp.experts.gate_up_proj: the model_type gpt_oss_finetune is not "
     "known, and in gpt-oss gate and up alternate"},
    {"{\"model_type\":\"odd\"}",
     "model.layers.0.mlp.router.weight BF16 6,32;"
     "model.layers.0.mlp.experts.gate_up_proj_blocks U8 6,40,1,16;"
     "model.layers.0.mlp.experts.gate_up_proj_scales U8 6,40,1",
     "in gpt-oss gate and up alternate"},
    {"{\"model_type\":\"odd\"}", ROUTER "model.layers.0.mlp.experts.w13_weight BF16 6,40,32",
     "in Inkling gate and up alternate"},
    {"{\"model_type\":\"odd\"}",
     ROUTER "model.layers.0.mlp.router.weight BF16 6,32;" GATES ".weight BF16 20,32",
     "case: model.layers.0.mlp.gate.weight and model.layers.0.mlp.router.weight: nothing says "
     "which of the two is the router"},
    {"{\"model_type\":\"olmoe\",\"num_hidden_layers\":2}",
     "model.layers.2.mlp.gate.weight BF16 6,32;"
     "model.layers.2.mlp.experts.{0-5}.gate_proj.weight BF16 20,32",
     "none below the 2 layers"},
    {"{\"model_type\":\"olmoe\",\"quantization_config\":{\"quant_method\":\"gptq\"}}",
     ROUTER GATES ".qweight I32 4,20", "by gptq"},
    {"{\"model_type\":\"olmoe\",\"quantization_config\":{\"quant_method\":\"awq\"}}",
     ROUTER GATES ".qweight I32 4,20", "by awq"},
    {"{\"model_type\":\"olmoe\",\"quantization_config\":{\"load_in_4bit\":true}}",
     ROUTER GATES ".weight U8 320,1", "by bitsandbytes"},
    {"{\"model_type\":\"olmoe\",\"text_config\":{\"quantization_config\":{\"quant_method\":"
     "\"modelopt\"}}}",
     ROUTER GATES ".weight U8 20,16", "by modelopt"},
    {"{\"model_type\":\"olmoe\",\"quantization_config\":{\"quant_method\":\"vptq\"}}",
     ROUTER GATES ".weight BF16 20,32", "by vptq"},
    {"{\"model_type\":\"olmoe\",\"quantization_config\":{\"quant_method\":"
     "\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\"}}",
     ROUTER GATES ".weight_packed U8 20,16", "nvfp4-pack-quantized"},
    {"{\"model_type\":\"olmoe\",\"quantization_config\":{\"quant_method\":"
     "\"compressed-tensors\",\"config_groups\":{\"a\":{\"format\":\"int-quantized\"}}}}",
     ROUTER GATES ".weight I8 20,32", "int-quantized"},
    {"{\"model_type\":\"olmoe\",\"quantization_config\":{\"quant_method\":"
     "\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"a\":{"
     "\"weights\":{\"num_bits\":4,\"group_size\":32}}}}}",
     ROUTER GATES ".weight_packed I32 20,4;" GATES ".weight_scale BF16 20,1;" GATES
                  ".weight_zero_point I32 3,1",
     "zero points"},
    {"{\"model_type\":\"olmoe\"}", ROUTER GATES ".qweight I32 4,20;" GATES ".scales F16 1,20",
     "gptq or awq"},
    {"{\"model_type\":\"qwen3_moe\",\"quantization\":{\"group_size\":64,\"bits\":4}}",
     ROUTER "model.layers.0.mlp.switch_mlp.gate_proj.weight U32 6,20,4;"
            "model.layers.0.mlp.switch_mlp.gate_proj.scales F16 6,20,1;"
            "model.layers.0.mlp.switch_mlp.gate_proj.biases F16 6,20,1",
     "weights quantised by MLX are not read"},
};

TEST(refusals)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cpl_moe_map map;
        assert_fails(CPL_ERR_INPUT, refused[i].part,
                     moe_map_read(&map, &list, refused[i].config, refused[i].tensors, false));
        assert_null(map.memory);
    }
}

/* ---- sentences ---- */

static const char olmoe_layer[] = ROUTER GATES ".weight BF16 20,32;"
                                               "model.layers.1.mlp.gate.weight BF16 6,32;"
                                               "model.layers.1.mlp.experts.{0-5}.gate_proj.weight "
                                               "BF16 20,32";

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

/* More experts a token than the router has rows; rows of identity experts count. */
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
                           "model.layers.0.mlp.router.classifier.weight BF16 9,32;" GATES
                           ".weight BF16 20,32",
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

/* What stored.h says of a tensor is its layer's fault, and of no other. */
TEST(stored_faults)
{
    cpl_moe_map map;
    json_t *config = json_pack("{s:s}", "model_type", "olmoe");
    moe_list_read(&list, olmoe_layer);
    for (int64_t i = 0; i < list.count; i++)
        if (strstr(list.names[i], "layers.1.mlp.experts.4")) {
            list.all[i].fault = "the shard is missing";
            list.all[i].rank  = -1;
        }
    cpl_stored_files files = moe_files(list.all, list.count, config, false);
    assert_ok(cpl_moe_map_make(&map, &files));
    assert_int_equal(map.n_layers, 2);
    assert_null(map.layers[0].fault);
    assert_string_equal(map.layers[1].fault, "the shard is missing");
    cpl_moe_map_free(&map);
    json_decref(config);
}

/* Grok-2: slices of one name, joined along the rows; the router whole in each. */
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
    json_t *config         = json_pack("{s:s}", "model_type", "git");
    cpl_stored_files files = moe_files(list.all, list.count, config, false);
    assert_ok(cpl_moe_map_make(&map, &files));
    assert_null(map.layers[0].fault);
    assert_int_equal(map.layers[0].n, N);
    assert_int_equal(map.layers[0].D, 20);
    assert_int_equal(map.layers[0].extra_rows, 0);
    cpl_moe_map_free(&map);
    json_object_set_new(config, "model_type", json_string("mixtral"));
    assert_ok(cpl_moe_map_make(&map, &files));
    assert_non_null(strstr(map.layers[0].fault, "slices in 2 files"));
    cpl_moe_map_free(&map);
    json_decref(config);
}

/* ---- the table, time, memory ---- */

/* Names between dots, with a * before the first or one {e} for the number of an expert; a gate's
 * name may have a mark behind it. */
static void check_tensor_names(const char *names, const char *marks)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
    char word[64];
    for (const char *at = names + strspn(names, " "); sscanf(at, "%63s", word) == 1;) {
        const char *c = word + (*word == '*');
        int experts   = 0;
        while (*c && !(strchr(marks, *c) && !c[1])) {
            size_t length = strspn(c, letters);
            if (strncmp(c, "{e}", 3) == 0) length = 3, experts++;
            if (!length) fail_msg("%s is no name of a tensor", word);
            c += length;
            if (*c == '.' && c[1]) c++;
        }
        assert_true(experts <= 1);
        at += strlen(word);
        at += strspn(at, " ");
    }
}

/* Whether a map of the cases is of this family. */
static bool has_case(const cpl_family *family)
{
    char word[64];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (size_t i = 0; i < cases[k].count; i++)
            if (sscanf(cases[k].list[i].map, "%63s", word) == 1 &&
                cpl_name_in_words(family->model_types, word))
                return true;
    return false;
}

TEST(rows_of_the_table)
{
    for (int64_t i = 0; i < cpl_n_families; i++) {
        const cpl_family *one = &cpl_families[i];
        check_tensor_names(one->router, "");
        check_tensor_names(one->gate, "+-");
        assert_true(one->flags < 2u * CPL_FLAG_NO_CONFIG); /* the last one */
        if (i + 1 < cpl_n_families) {
            assert_true(*one->model_types && *one->title && *one->router);
            if (!has_case(one)) fail_msg("no case is of %s", one->title);
        }
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
    cpl_stored_files files = moe_files(all, count, config, false);
    cpl_moe_map map;
    assert_ok(cpl_moe_map_make(&map, &files));
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
    cpl_status status = CPL_ERR_MEMORY;
    int nth           = 0;
    while (status != CPL_OK) {
        cpl_alloc_fail_at(++nth);
        status = moe_map_read(&map, &list, "{\"model_type\":\"odd\",\"num_experts\":7}",
                              olmoe_layer, false);
        cpl_alloc_fail_at(0);
        assert_true(status == CPL_OK || status == CPL_ERR_MEMORY);
    }
    assert_true(nth > 4);
    cpl_moe_map_free(&map);
}
