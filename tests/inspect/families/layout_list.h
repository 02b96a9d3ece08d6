/* layout_list.h - the layouts of docs/formats.md, "Published MoE checkpoints", one by one. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_LAYOUT_LIST_H
#define CPL_TESTS_INSPECT_FAMILIES_LAYOUT_LIST_H

#include "inspect/families/layouts.h"

#define CONFIG(type, more) "{\"model_type\":\"" type "\"" more "}"
#define FP8                                                                                        \
    ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[16,24]},"           \
    "\"num_experts_per_tok\":2"
#define FLOATS                                                                                     \
    ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"                \
    "\"float-quantized\"},\"num_experts_per_tok\":2"
#define INT4                                                                                       \
    ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"                \
    "\"pack-quantized\",\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":4,\"group_size\":16}}" \
    "}},\"num_experts_per_tok\":2"
#define MXFP4                                                                                      \
    ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"                \
    "\"mxfp4-pack-quantized\"},\"num_experts_per_token\":2"
#define K2    ",\"num_experts_per_tok\":2"
#define LAYER "model.layers.%d."
#define OLMOE LAYER, "mlp.gate", "mlp.experts.%d.gate_proj"
#define FUSED LAYER, "mlp.gate", "mlp.experts.gate_up_proj"
#define OSS   LAYER, "mlp.router", "mlp.experts.gate_up_proj"

#define SIZES(width, expert) .n = 6, .d = (width), .D = (expert), .K = 2

static const layout layouts[] = {
    {"per expert", CONFIG("olmoe", K2), OLMOE, EACH, AS_BF16, SIZES(40, 28)},
    {"f32", CONFIG("olmoe", K2), OLMOE, EACH, AS_F32, SIZES(40, 28)},
    {"f16", CONFIG("olmoe", K2), OLMOE, EACH, AS_F16, SIZES(40, 28)},
    {"in shards", CONFIG("olmoe", K2), OLMOE, EACH, AS_BF16, SIZES(40, 28), .shards = 3},
    {"mixtral", CONFIG("mixtral", K2), "model.layers.%d.", "block_sparse_moe.gate",
     "block_sparse_moe.experts.%d.w1", EACH, AS_BF16, SIZES(40, 28)},
    {"prefixes", CONFIG("olmoe", K2), "language_model.model.blocks.%d.", "mlp.gate",
     "mlp.experts.%d.gate_proj", EACH, AS_BF16, SIZES(40, 28),
     .others = "vision_tower.layers.0.mlp.gate.weight mtp.0.mlp.gate.weight"},
    {"text_config and a dense layer before",
     CONFIG("qwen3_5_moe", ",\"text_config\":{\"num_experts_per_tok\":2,\"num_hidden_layers\":3}"),
     "model.language_model.layers.%d.", "mlp.gate", "mlp.experts.%d.gate_proj", EACH, AS_BF16,
     SIZES(40, 28), .first = 1, .others = "model.language_model.layers.0.mlp.gate_proj.weight"},
    {"multi-token prediction", CONFIG("deepseek_v3", K2 ",\"num_hidden_layers\":2"), OLMOE, EACH,
     AS_BF16, SIZES(40, 28),
     .others = "model.layers.2.mlp.gate.weight model.layers.2.mlp.experts.0.gate_proj.weight"},
    {"lists in the config",
     CONFIG("hunyuan_v1_moe", ",\"moe_topk\":[3,2,2],\"num_experts\":[6,6,6]"), LAYER,
     "mlp.gate.wg", "mlp.experts.%d.gate_proj", EACH, AS_BF16, SIZES(40, 28), .first = 1},
    {"rows", CONFIG("granitemoe", K2), LAYER, "block_sparse_moe.router.layer",
     "block_sparse_moe.input_linear", ROWS, AS_BF16, SIZES(40, 28)},
    {"rows, 2D == d", CONFIG("qwen3_5_moe", K2), FUSED, ROWS, AS_BF16, SIZES(40, 20)},
    {"columns", CONFIG("qwen3_vl_moe", K2), FUSED, COLUMNS, AS_BF16, SIZES(40, 28)},
    {"columns, 2D == d", CONFIG("qwen3_vl_moe", K2), FUSED, COLUMNS, AS_BF16, SIZES(40, 20)},
    {"rows, 2D == d, of the same family", CONFIG("qwen3_vl_moe", K2), FUSED, ROWS, AS_BF16,
     SIZES(40, 20)},
    {"all transposed, 2D == d", CONFIG("ernie4_5_moe", ",\"moe_k\":2"), "ernie.layers.%d.",
     "mlp.gate", "mlp.experts.%d.up_gate_proj", EACH_PAIR_TURNED, AS_BF16, SIZES(40, 20),
     .router_turned = true},
    {"columns of Llama-4, 2D == d", CONFIG("llama4", K2), LAYER, "feed_forward.router",
     "feed_forward.experts.gate_up_proj", COLUMNS, AS_BF16, SIZES(40, 20)},
    {"columns of Aria", CONFIG("aria_text", K2), LAYER, "mlp.router", "mlp.experts.fc1", COLUMNS,
     AS_BF16, SIZES(40, 28)},
    {"columns taking turns", CONFIG("gpt_oss", K2), OSS, COLUMNS_ALTERNATE, AS_BF16, SIZES(40, 28)},
    {"columns taking turns, 2D == d", CONFIG("gpt_oss", K2), OSS, COLUMNS_ALTERNATE, AS_BF16,
     SIZES(40, 20)},
    {"columns in halves under the same names", CONFIG("openai_privacy_filter", K2), OSS, COLUMNS,
     AS_BF16, SIZES(40, 28)},
    {"rows taking turns, extra rows", CONFIG("inkling_mm_model", K2), "model.llm.layers.%d.",
     "mlp.gate", "mlp.experts.w13_weight", ROWS_ALTERNATE, AS_BF16, SIZES(40, 28), .extra = 2},
    {"zero experts", CONFIG("longcat_flash", ",\"moe_topk\":2,\"n_routed_experts\":6"), LAYER,
     "mlp.router.classifier", "mlp.experts.%d.gate_proj", EACH, AS_BF16, SIZES(40, 28), .extra = 3},
    {"apart", CONFIG("step3p7", K2), LAYER, "moe.gate", "moe.gate_proj", APART, AS_BF16,
     SIZES(40, 28), .others = "model.layers.0.moe.up_proj.weight"},
    {"flat", CONFIG("dbrx", ",\"ffn_config\":{\"moe_top_k\":2}"), "transformer.blocks.%d.",
     "ffn.router.layer", "ffn.experts.mlp.w1", FLAT, AS_BF16, SIZES(40, 28)},
    {"router transposed, halves for text and pictures",
     CONFIG("ernie4_5_vl_moe", ",\"moe_k\":2,\"moe_intermediate_size\":[28,24]"), OLMOE, EACH,
     AS_BF16, SIZES(40, 28), .router_turned = true, .vision = 6},
    {"all transposed", CONFIG("ernie4_5_moe", ",\"moe_k\":2"), "ernie.layers.%d.", "mlp.gate",
     "mlp.experts.%d.up_gate_proj", EACH_PAIR_TURNED, AS_BF16, SIZES(40, 28),
     .router_turned = true},
    {"all transposed, not fused", CONFIG("ernie4_5_moe", ",\"moe_k\":2"), OLMOE, EACH_TURNED,
     AS_BF16, SIZES(40, 28), .router_turned = true},
    {"slices", CONFIG("git", K2), LAYER, "block_sparse_moe.gate", "block_sparse_moe.experts.%d.w1",
     EACH, AS_BF16, SIZES(40, 28), .cut = 12},
    {"slices, the router whole in each", CONFIG("git", K2), LAYER, "block_sparse_moe.gate",
     "block_sparse_moe.experts.%d.w1", EACH, AS_BF16, SIZES(40, 28), .cut = 12,
     .router_in_each = true},
    {"unlisted", CONFIG("brand_new", K2), OLMOE, EACH, AS_BF16, SIZES(40, 28)},

    {"f8 in blocks, the last ones partial", CONFIG("deepseek_v3", FP8), OLMOE, EACH, AS_F8_BLOCKS,
     SIZES(40, 28), .block_rows = 16, .block_cols = 24},
    {"f8, scales in bf16", CONFIG("deepseek_v3", FP8), OLMOE, EACH, AS_F8_BF16, SIZES(40, 28),
     .block_rows = 16, .block_cols = 24},
    {"f8, scales as exponents", CONFIG("minimax_m2", FP8), LAYER, "block_sparse_moe.gate",
     "block_sparse_moe.experts.%d.w1", EACH, AS_F8_U8, SIZES(40, 28), .block_rows = 16,
     .block_cols = 24},
    {"f8 of DeepSeek-V4", CONFIG("deepseek_v4", FP8), "layers.%d.", "ffn.gate", "ffn.experts.%d.w1",
     EACH, AS_F8_E8M0, SIZES(40, 28), .block_rows = 16, .block_cols = 24},
    {"f8 rows", CONFIG("qwen3_5_moe", FP8), FUSED, ROWS, AS_F8_STACKED, SIZES(40, 28),
     .block_rows = 16, .block_cols = 24},
    {"f8 columns", CONFIG("llama4", FP8), LAYER, "feed_forward.router",
     "feed_forward.experts.gate_up_proj", COLUMNS, AS_F8_STACKED, SIZES(40, 28), .block_rows = 16,
     .block_cols = 24},
    {"f8 columns taking turns", CONFIG("gpt_oss", FP8), OSS, COLUMNS_ALTERNATE, AS_F8_STACKED,
     SIZES(40, 28), .block_rows = 16, .block_cols = 24},
    {"f8 rows taking turns", CONFIG("inkling2", FP8), LAYER, "mlp.gate", "mlp.experts.w13_weight",
     ROWS_ALTERNATE, AS_F8_STACKED, SIZES(40, 28), .block_rows = 16, .block_cols = 24},
    {"f8 a channel", CONFIG("glm4_moe", FLOATS), OLMOE, EACH, AS_F8_CHANNEL, SIZES(40, 28)},
    {"f8 a column", CONFIG("llama4", FLOATS), LAYER, "feed_forward.router",
     "feed_forward.experts.gate_up_proj", COLUMNS, AS_F8_COLUMN, SIZES(40, 28)},
    {"f8 a column, 2D == d", CONFIG("gpt_oss", FLOATS), OSS, COLUMNS_ALTERNATE, AS_F8_COLUMN,
     SIZES(40, 20)},
    {"f8 a tensor", CONFIG("glm4_moe", FLOATS), OLMOE, EACH, AS_F8_TENSOR, SIZES(40, 28)},
    {"mxfp4", CONFIG("gpt_oss", K2), OSS, ROWS_ALTERNATE, AS_MXFP4, SIZES(64, 28)},
    {"mxfp4, 2D == d", CONFIG("gpt_oss", K2), OSS, ROWS_ALTERNATE, AS_MXFP4, SIZES(64, 32)},
    {"mxfp4, flattened", CONFIG("gpt_oss", K2), OSS, ROWS_ALTERNATE, AS_MXFP4_FLAT, SIZES(64, 28)},
    {"mxfp4, packed", CONFIG("kimi_k3", MXFP4), LAYER, "block_sparse_moe.gate",
     "block_sparse_moe.experts.%d.w1", EACH, AS_MXFP4_PACKED, SIZES(64, 28)},
    {"f4 of DeepSeek-V4", CONFIG("deepseek_v4", FP8), "layers.%d.", "ffn.gate", "ffn.experts.%d.w1",
     EACH, AS_F4, SIZES(64, 28)},
    {"int4", CONFIG("kimi_k2", INT4), OLMOE, EACH, AS_INT4, SIZES(44, 28), .block_cols = 16},
};

#endif /* CPL_TESTS_INSPECT_FAMILIES_LAYOUT_LIST_H */
