/* families_cases.h - the families of src/inspect/families/families.def, then their exceptions: names and
 * shapes as those families store them, and the map that must come out. Unless a case says otherwise
 * n = 6, d = 32, D = 20, K = 2; the dense width is 56. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_FAMILIES_CASES_H
#define CPL_TESTS_INSPECT_FAMILIES_FAMILIES_CASES_H

#include <stdbool.h>

typedef struct families_case {
    const char *name, *config, *tensors, *map;
    bool is_gguf;
} families_case;

#define L            "model.layers."
#define EACH_GATE(l) /* router and experts as most families have them */                           \
    L l ".mlp.gate.weight BF16 6,32;" L l ".mlp.experts.{0-5}.gate_proj.weight BF16 20,32;" L l    \
        ".mlp.experts.{0-5}.up_proj.weight BF16 20,32;" L l                                        \
        ".mlp.experts.{0-5}.down_proj.weight BF16 32,20;"
#define DENSE(l)                                                                                   \
    L l ".mlp.gate_proj.weight BF16 56,32;" L l ".mlp.up_proj.weight BF16 56,32;" L l              \
        ".mlp.down_proj.weight BF16 32,56;"
#define ATTENTION(l)                                                                               \
    L l ".self_attn.q_proj.weight BF16 32,32;" L l ".self_attn.gate.weight BF16 4,32;" L l         \
        ".input_layernorm.weight BF16 32;"
#define W123(block, l)                                                                             \
    L l "." block ".experts.{0-5}.w1.weight BF16 20,32;" L l "." block                             \
        ".experts.{0-5}.w3.weight BF16 20,32;" L l "." block                                       \
        ".experts.{0-5}.w2.weight BF16 32,20;"
#define SHARED(l, name)                                                                            \
    L l ".mlp." name ".gate_proj.weight BF16 24,32;" L l ".mlp." name                              \
        ".down_proj.weight BF16 32,24;"
#define TYPE(type)   "{\"model_type\":\"" type "\",\"num_hidden_layers\":2,\"num_experts_per_tok\":2}"
#define EACH(family) family " 0 0\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. 6 32 20 2 each\n"
#define LIKE_OLMOE(type)                                                                           \
    {                                                                                              \
        type, TYPE(type), EACH_GATE("{0-1}") ATTENTION("{0-1}"), EACH(type), false                 \
    }

static const families_case families_cases[] = {
    {"mixtral",
     "{\"model_type\":\"mixtral\",\"num_local_experts\":6,\"num_experts_per_tok\":2,"
     "\"hidden_size\":32,\"intermediate_size\":20,\"num_hidden_layers\":2}",
     L "{0-1}.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "{0-1}")
         ATTENTION("{0-1}") "model.embed_tokens.weight BF16 64,32;lm_head.weight BF16 64,32",
     EACH("mixtral"), false},
    {"mixtral re-saved", TYPE("mixtral"),
     L "{0-1}.mlp.gate.weight BF16 6,32;" L "{0-1}.mlp.experts.gate_up_proj BF16 6,40,32;" L
       "{0-1}.mlp.experts.down_proj BF16 6,32,20",
     "mixtral 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\nmodel.layers.1. 6 32 20 2 rows of 40\n",
     false},
    LIKE_OLMOE("olmoe"),
    LIKE_OLMOE("flex_olmo"),
    LIKE_OLMOE("llada_moe"),
    {"qwen2_moe",
     "{\"model_type\":\"qwen2_moe\",\"num_hidden_layers\":3,\"num_experts_per_tok\":2}",
     EACH_GATE("{1-2}") DENSE("0") SHARED("{1-2}", "shared_expert") L
     "{1-2}.mlp.shared_expert_gate.weight BF16 1,32",
     "qwen2_moe 1 0\nmodel.layers.1. 6 32 20 2 each\nmodel.layers.2. 6 32 20 2 each\n", false},
    LIKE_OLMOE("qwen3_moe"),
    {"qwen3_moe in f8",
     "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":1,\"num_experts_per_tok\":2,"
     "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[16,24]}}",
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight F8_E4M3 20,32;" L
       "0.mlp.experts.{0-5}.gate_proj.weight_scale_inv BF16 2,2",
     "qwen3_moe 0 0\nmodel.layers.0. 6 32 20 2 each F8_E4M3 by BF16 16,24\n", false},
    {"qwen3_next", TYPE("qwen3_next"),
     EACH_GATE("{0-1}")
         SHARED("{0-1}", "shared_expert") "mtp.layers.0.mlp.gate.weight BF16 6,32;"
                                          "mtp.layers.0.mlp.experts.{0-5}.gate_proj.weight BF16 "
                                          "20,32;mtp.fc.weight BF16 32,64",
     "qwen3_next 0 1\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"qwen3_vl_moe",
     "{\"model_type\":\"qwen3_vl_moe\",\"text_config\":{\"model_type\":\"qwen3_vl_moe_text\","
     "\"num_experts_per_tok\":2,\"num_hidden_layers\":1,\"num_experts\":6}}",
     "model.language_model.layers.0.mlp.gate.weight BF16 6,32;"
     "model.language_model.layers.0.mlp.experts.gate_up_proj BF16 6,32,40;"
     "model.language_model.layers.0.mlp.experts.down_proj BF16 6,20,32;"
     "model.visual.blocks.0.mlp.gate.weight BF16 6,32",
     "qwen3_vl_moe 0 0\nmodel.language_model.layers.0. 6 32 20 2 columns of 40\n", false},
    {"qwen3_vl_moe square, version 4",
     "{\"model_type\":\"qwen3_vl_moe\",\"transformers_version\":\"4.57.0\"}",
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,32,32",
     "qwen3_vl_moe 0 0\nmodel.layers.0. 6 32 16 0 columns of 32\n", false},
    {"qwen3_vl_moe square, version 5",
     "{\"model_type\":\"qwen3_vl_moe\",\"transformers_version\":\"5.0.0.dev0\"}",
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,32,32",
     "qwen3_vl_moe 0 0\nmodel.layers.0. 6 32 16 0 rows of 32\n", false},
    {"qwen3_vl_moe in rows", TYPE("qwen3_vl_moe"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "qwen3_vl_moe 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"qwen3_omni_moe",
     "{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"text_config\":{"
     "\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"num_experts\":6}},"
     "\"talker_config\":{\"text_config\":{\"num_experts_per_tok\":3}}}",
     "thinker." L "0.mlp.gate.weight BF16 6,32;thinker." L
     "0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32;talker." L
     "0.mlp.gate.weight BF16 8,16;talker." L "0.mlp.experts.{0-7}.gate_proj.weight BF16 12,16;"
     "thinker.audio_tower.layers.0.fc1.weight BF16 4,4",
     "qwen3_omni_moe 0 0\nthinker.model.layers.0. 6 32 20 2 each\n", false},
    {"qwen3_5_moe", "{\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"num_experts_per_tok\":2}}",
     "model.language_model.layers.0.mlp.gate.weight BF16 6,32;"
     "model.language_model.layers.0.mlp.experts.gate_up_proj BF16 6,40,32;"
     "model.language_model.layers.1.mlp.gate.weight BF16 6,32;"
     "model.language_model.layers.1.mlp.experts.gate_up_proj BF16 6,32,32",
     "qwen3_5_moe 0 0\nmodel.language_model.layers.0. 6 32 20 2 rows of 40\n"
     "model.language_model.layers.1. 6 32 16 2 rows of 32\n",
     false},
    {"qwen3_5_moe per expert", TYPE("qwen3_5_moe_text"), EACH_GATE("{0-1}"),
     EACH("qwen3_5_moe_text"), false},
    {"deepseek", TYPE("deepseek"), EACH_GATE("1") DENSE("0") SHARED("1", "shared_experts"),
     "deepseek 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    LIKE_OLMOE("deepseek_v2"),
    {"deepseek_v3",
     "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":3,\"num_experts_per_tok\":2,"
     "\"n_routed_experts\":6,\"quantization_config\":{\"quant_method\":\"fp8\"}}",
     DENSE("0") L "{1-3}.mlp.gate.weight BF16 6,32;" L
                  "{1-3}.mlp.gate.e_score_correction_bias F32 6;" L
                  "{1-3}.mlp.experts.{0-5}.gate_proj.weight F8_E4M3 20,32;" L
                  "{1-3}.mlp.experts.{0-5}.gate_proj.weight_scale_inv F32 1,1;" L
                  "3.eh_proj.weight BF16 32,64;" SHARED("{1-3}", "shared_experts"),
     "deepseek_v3 1 1\nmodel.layers.1. 6 32 20 2 each F8_E4M3 by F32 20,32\n"
     "model.layers.2. 6 32 20 2 each F8_E4M3 by F32 20,32\n",
     false},
    LIKE_OLMOE("deepseek_v32"),
    LIKE_OLMOE("kimi_k2"),
    {"kimi_k2 in four bits",
     "{\"model_type\":\"kimi_k2\",\"num_experts_per_tok\":2,\"quantization_config\":{"
     "\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{"
     "\"group_0\":{\"weights\":{\"num_bits\":4,\"group_size\":16,\"symmetric\":true}}}}}",
     L "0.mlp.gate.weight BF16 6,44;" L "0.mlp.experts.{0-5}.gate_proj.weight_packed I32 20,6;" L
       "0.mlp.experts.{0-5}.gate_proj.weight_scale BF16 20,3;" L
       "0.mlp.experts.{0-5}.gate_proj.weight_shape I64 2",
     "kimi_k2 0 0\nmodel.layers.0. 6 44 20 2 each INT4_WORD by BF16 1,16\n", false},
    {"glm4_moe", TYPE("glm4_moe"), EACH_GATE("{1-2}") DENSE("0"),
     "glm4_moe 1 1\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"glm4_moe in f8 per channel",
     "{\"model_type\":\"glm4_moe\",\"quantization_config\":{\"quant_method\":"
     "\"compressed-tensors\",\"format\":\"float-quantized\"}}",
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight F8_E4M3 20,32;" L
       "0.mlp.experts.{0-5}.gate_proj.weight_scale BF16 20,1",
     "glm4_moe 0 0\nmodel.layers.0. 6 32 20 0 each F8_E4M3 by BF16 1,32\n", false},
    {"glm4_moe in f8 per tensor",
     "{\"model_type\":\"glm4_moe\",\"quantization_config\":{\"quant_method\":"
     "\"compressed-tensors\",\"format\":\"float-quantized\"}}",
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight F8_E4M3 20,32;" L
       "0.mlp.experts.{0-5}.gate_proj.weight_scale F32 1",
     "glm4_moe 0 0\nmodel.layers.0. 6 32 20 0 each F8_E4M3 by F32 20,32\n", false},
    {"glm4_moe in f8 per block",
     "{\"model_type\":\"glm4_moe\",\"quantization_config\":{\"quant_method\":"
     "\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"g\":{\"weights\":"
     "{\"num_bits\":8,\"strategy\":\"block\",\"block_structure\":[8,16]}}}}}",
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight F8_E4M3 20,32;" L
       "0.mlp.experts.{0-5}.gate_proj.weight_scale F32 3,2",
     "glm4_moe 0 0\nmodel.layers.0. 6 32 20 0 each F8_E4M3 by F32 8,16\n", false},
    LIKE_OLMOE("dots1"),
    {"gpt_oss", "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":1,\"experts_per_token\":2}",
     L "0.mlp.router.weight BF16 6,32;" L "0.mlp.router.bias BF16 6;" L
       "0.mlp.experts.gate_up_proj BF16 6,32,40;" L "0.mlp.experts.gate_up_proj_bias BF16 6,40;" L
       "0.mlp.experts.down_proj BF16 6,20,32",
     "gpt_oss 0 0\nmodel.layers.0. 6 32 20 2 columns of 40 interleaved biased\n", false},
    {"gpt_oss square", TYPE("gpt_oss"),
     L "0.mlp.router.linear.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,32,32",
     "gpt_oss 0 0\nmodel.layers.0. 6 32 16 2 columns of 32 interleaved\n", false},
    {"gpt_oss as published",
     "{\"model_type\":\"gpt_oss\",\"num_experts_per_tok\":2,"
     "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}",
     L "{0-1}.mlp.router.weight BF16 6,32;" L "{0-1}.mlp.router.bias BF16 6;" L
       "0.mlp.experts.gate_up_proj_blocks U8 6,40,1,16;" L
       "0.mlp.experts.gate_up_proj_scales U8 6,40,1;" L
       "1.mlp.experts.gate_up_proj_blocks U8 6,32,16;" L
       "1.mlp.experts.gate_up_proj_scales U8 6,32,1;" L
       "{0-1}.mlp.experts.down_proj_bias BF16 6,32",
     "gpt_oss 0 0\nmodel.layers.0. 6 32 20 2 rows of 40 interleaved biased F4_PAIR by F8_E8M0 "
     "1,32\n"
     "model.layers.1. 6 32 16 2 rows of 32 interleaved biased F4_PAIR by F8_E8M0 1,32\n",
     false},
    {"phimoe", TYPE("phimoe"),
     L "0.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "0") L
     "1.block_sparse_moe.gate.weight BF16 6,32;" W123("mlp", "1"),
     EACH("phimoe"), false},
    {"phimoe re-saved", TYPE("phimoe"),
     L "0.mlp.router.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "phimoe 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"granitemoe", TYPE("granitemoe"),
     L "0.block_sparse_moe.router.layer.weight BF16 6,32;" L
       "0.block_sparse_moe.input_linear.weight BF16 6,40,32;" L
       "0.block_sparse_moe.output_linear.weight BF16 6,32,20;" L
       "0.shared_mlp.input_linear.weight BF16 48,32",
     "granitemoe 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"granitemoe_swa", TYPE("granitemoe_swa"),
     L "0.block_sparse_moe.router.weight BF16 6,32;" L
       "0.block_sparse_moe.experts.gate_up_proj BF16 6,40,32",
     "granitemoe_swa 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"jetmoe", TYPE("jetmoe"),
     L "0.mlp.router.layer.weight BF16 6,32;" L "0.mlp.input_linear.weight BF16 6,40,32;" L
       "0.mlp.output_linear.weight BF16 6,32,20;" L "0.mlp.bias BF16 32;" L
       "0.self_attention.experts.router.layer.weight BF16 6,32;" L
       "0.self_attention.experts.input_linear.weight BF16 6,16,32",
     "jetmoe 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"dbrx",
     "{\"model_type\":\"dbrx\",\"d_model\":32,\"n_layers\":1,\"ffn_config\":{"
     "\"moe_num_experts\":6,\"moe_top_k\":2,\"ffn_hidden_size\":20}}",
     "transformer.blocks.0.ffn.router.layer.weight BF16 6,32;"
     "transformer.blocks.0.ffn.experts.mlp.w1 BF16 120,32;"
     "transformer.blocks.0.ffn.experts.mlp.v1 BF16 120,32;"
     "transformer.blocks.0.ffn.experts.mlp.w2 BF16 120,32",
     "dbrx 0 0\ntransformer.blocks.0. 6 32 20 2 rows\n", false},
    {"jamba", TYPE("jamba"),
     L "1.feed_forward.router.weight BF16 6,32;" L
       "1.feed_forward.experts.{0-5}.gate_proj.weight BF16 20,32;" L
       "0.feed_forward.gate_proj.weight BF16 56,32",
     "jamba 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"mini-jamba", TYPE("jamba"),
     L "1.moe.router.weight BF16 6,32;" L "1.moe.experts.{0-5}.gate_proj.weight BF16 20,32",
     "jamba 0 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"llama4",
     "{\"model_type\":\"llama4\",\"text_config\":{\"num_experts_per_tok\":1,"
     "\"num_local_experts\":6,\"intermediate_size\":20,\"num_hidden_layers\":3}}",
     "language_model." L "{1-2}.feed_forward.router.weight BF16 6,32;language_model." L
     "1.feed_forward.experts.gate_up_proj BF16 6,32,40;language_model." L
     "2.feed_forward.experts.gate_up_proj BF16 6,32,32;language_model." L
     "0.feed_forward.gate_proj.weight BF16 56,32;language_model." L
     "1.feed_forward.shared_expert.gate_proj.weight BF16 20,32;"
     "vision_model.model.layers.0.mlp.fc1.weight BF16 4,4",
     "llama4 1 0\nlanguage_model.model.layers.1. 6 32 20 1 columns of 40\n"
     "language_model.model.layers.2. 6 32 16 1 columns of 32\n",
     false},
    {"minimax_text_01", TYPE("minimax_text_01"),
     L "{0-1}.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "{0-1}"),
     EACH("minimax_text_01"), false},
    {"minimax_m2", TYPE("minimax_m2"),
     L "{0-1}.block_sparse_moe.gate.weight F32 6,32;" L
       "{0-1}.block_sparse_moe.e_score_correction_bias F32 6;" W123("block_sparse_moe", "{0-1}"),
     EACH("minimax_m2"), false},
    {"ernie4_5_moe",
     "{\"model_type\":\"ernie4_5_moe\",\"moe_k\":2,\"moe_num_experts\":6,"
     "\"moe_intermediate_size\":20,\"hidden_size\":32}",
     EACH_GATE("1") DENSE("0") L "1.mlp.moe_statics.e_score_correction_bias F32 1,6",
     "ernie4_5_moe 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"ernie4_5_moe of Paddle", "{\"model_type\":\"ernie4_5_moe\",\"moe_k\":2}",
     "ernie.layers.{0-1}.mlp.gate.weight F32 32,6;"
     "ernie.layers.0.mlp.experts.{0-5}.up_gate_proj.weight BF16 32,40;"
     "ernie.layers.0.mlp.experts.{0-5}.down_proj.weight BF16 20,32;"
     "ernie.layers.1.mlp.experts.{0-5}.up_gate_proj.weight BF16 32,32",
     "ernie4_5_moe 0 0\nernie.layers.0. 6 32 20 2 columns of 40 in 6 turned\n"
     "ernie.layers.1. 6 32 16 2 columns of 32 in 6 turned\n",
     false},
    {"ernie4_5_moe transposed, not fused", "{\"model_type\":\"ernie4_5_moe\",\"moe_k\":2}",
     L "{0-1}.mlp.gate.weight F32 32,6;" L "0.mlp.experts.{0-5}.gate_proj.weight BF16 32,20;" L
       "1.mlp.experts.{0-5}.gate_proj.weight BF16 32,32",
     "ernie4_5_moe 0 0\nmodel.layers.0. 6 32 20 2 columns in 6 turned\n"
     "model.layers.1. 6 32 32 2 columns in 6 turned\n",
     false},
    {"hunyuan_v1_moe",
     "{\"model_type\":\"hunyuan_v1_moe\",\"num_experts\":[6,6],\"moe_topk\":[2,1],"
     "\"moe_intermediate_size\":[20,20]}",
     L "{0-1}.mlp.gate.wg.weight F32 6,32;" L
       "{0-1}.mlp.experts.{0-5}.gate_proj.weight BF16 20,32;" SHARED("{0-1}", "shared_mlp"),
     "hunyuan_v1_moe 0 0\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. 6 32 20 1 each\n", false},
    {"grok-1", TYPE("grok-1"),
     "transformer.decoder_layer.0.router.weight BF16 6,32;"
     "transformer.decoder_layer.0.moe.{0-5}.linear.weight BF16 20,32;"
     "transformer.decoder_layer.0.moe.{0-5}.linear_v.weight BF16 20,32;"
     "transformer.decoder_layer.0.moe.{0-5}.linear_1.weight BF16 32,20",
     "grok-1 0 0\ntransformer.decoder_layer.0. 6 32 20 2 each\n", false},
    {"grok-1, another port", TYPE("grok-1"),
     L "0.moe_block.gate.weight BF16 6,32;" L
       "0.moe_block.experts.{0-5}.linear.weight BF16 20,32;" L
       "0.moe_block.experts.{0-5}.linear_v.weight BF16 20,32",
     "grok-1 0 0\nmodel.layers.0. 6 32 20 2 each\n", false},
    {"grok-2 in one slice", TYPE("git"),
     L "{0-1}.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "{0-1}")
         DENSE("{0-1}"),
     EACH("git"), false},
    {"deepseek_v4",
     "{\"model_type\":\"deepseek_v4\",\"num_experts_per_tok\":2,\"n_routed_experts\":6,"
     "\"num_hidden_layers\":3,\"quantization_config\":{\"quant_method\":\"fp8\"}}",
     "layers.{0-2}.ffn.gate.weight BF16 6,64;layers.{1-2}.ffn.gate.bias F32 6;"
     "layers.0.ffn.gate.tid2eid I64 64,2;layers.{0-1}.ffn.experts.{0-5}.w1.weight I8 20,32;"
     "layers.{0-1}.ffn.experts.{0-5}.w1.scale F8_E8M0 20,2;"
     "layers.2.ffn.experts.{0-5}.w1.weight F8_E4M3 20,64;"
     "layers.2.ffn.experts.{0-5}.w1.scale F8_E8M0 1,1;"
     "layers.{0-2}.ffn.shared_experts.w1.weight F8_E4M3 20,64;"
     "mtp.0.ffn.gate.weight BF16 6,64;mtp.1.ffn.gate.weight BF16 6,64",
     "deepseek_v4 0 2\nlayers.0. skip hash-routed: a fixed table chooses the experts\n"
     "layers.1. 6 64 20 2 each F4_PAIR by F8_E8M0 1,32\n"
     "layers.2. 6 64 20 2 each F8_E4M3 by F8_E8M0 20,64\n",
     false},
    {"deepseek_v4 re-saved", TYPE("deepseek_v4"),
     L "{0-1}.ffn.gate.weight BF16 6,32;" W123("ffn", "{0-1}") L "0.ffn.gate.tid2eid I64 64,2",
     "deepseek_v4 0 0\nmodel.layers.0. skip hash-routed: a fixed table chooses the experts\n"
     "model.layers.1. 6 32 20 2 each\n",
     false},
    {"longcat_flash",
     "{\"model_type\":\"longcat_flash\",\"n_routed_experts\":6,\"zero_expert_num\":3,"
     "\"moe_topk\":2,\"expert_ffn_hidden_size\":20,\"num_layers\":2}",
     L "{0-1}.mlp.router.classifier.weight F32 9,32;" L
       "{0-1}.mlp.router.e_score_correction_bias F32 9;" L
       "0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32;" L
       "1.mlp.experts.{0-8}.gate_proj.weight BF16 20,32;" L
       "{0-1}.mlps.{0-1}.gate_proj.weight BF16 56,32",
     "longcat_flash 0 0\nmodel.layers.0. 6 32 20 2 each extra 3\n"
     "model.layers.1. 6 32 20 2 each extra 3\n",
     false},
    {"longcat_flash, stacked",
     "{\"model_type\":\"longcat_flash\",\"n_routed_experts\":6,\"moe_topk\":2}",
     L "0.mlp.router.classifier.weight F32 9,32;" L "0.mlp.experts.gate_up_proj BF16 9,40,32;" L
       "0.mlp.experts.down_proj BF16 6,32,20",
     "longcat_flash 0 0\nmodel.layers.0. 6 32 20 2 rows of 40 extra 3\n", false},
    {"lfm2_moe", TYPE("lfm2_moe"),
     L "1.feed_forward.gate.weight BF16 6,32;" L "1.feed_forward.expert_bias F32 6;" W123(
         "feed_forward", "1") L "0.feed_forward.w1.weight BF16 56,32",
     "lfm2_moe 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    LIKE_OLMOE("bailing_moe"),
    {"bailing_moe_v2", TYPE("bailing_moe_v2"),
     EACH_GATE("1") DENSE("0") L "1.mlp.gate.expert_bias F32 6;" SHARED("1", "shared_experts"),
     "bailing_moe_v2 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"arctic", TYPE("arctic"),
     L "1.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "1") L
     "{0-1}.residual_mlp.w1.weight BF16 32,32;" L "0.block_sparse_moe.mlp.w1.weight BF16 56,32",
     "arctic 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"afmoe", TYPE("afmoe"),
     L "1.mlp.router.gate.weight BF16 6,32;" L "1.mlp.expert_bias F32 6;" L
       "1.mlp.experts.{0-5}.gate_proj.weight BF16 20,32;" DENSE("0"),
     "afmoe 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"gemma4",
     "{\"model_type\":\"gemma4\",\"text_config\":{\"top_k_experts\":2,\"num_hidden_layers\":2}}",
     "model.language_model.layers.{0-1}.router.proj.weight BF16 6,32;"
     "model.language_model.layers.{0-1}.router.scale BF16 32;"
     "model.language_model.layers.{0-1}.router.per_expert_scale BF16 6;"
     "model.language_model.layers.0.experts.gate_up_proj BF16 6,40,32;"
     "model.language_model.layers.1.experts.gate_up_proj BF16 6,32,32;"
     "model.language_model.layers.{0-1}.mlp.gate_proj.weight BF16 56,32",
     "gemma4 0 0\nmodel.language_model.layers.0. 6 32 20 2 rows of 40 incomparable\n"
     "model.language_model.layers.1. 6 32 16 2 rows of 32 incomparable\n",
     false},
    {"diffusion_gemma", TYPE("diffusion_gemma"),
     L "0.router.proj.weight BF16 6,32;" L "0.experts.gate_up_proj BF16 6,40,32",
     "diffusion_gemma 0 0\nmodel.layers.0. 6 32 20 2 rows of 40 incomparable\n", false},
    {"mistral's own",
     "{\"dim\":32,\"n_layers\":2,\"moe\":{\"num_experts\":6,"
     "\"num_experts_per_tok\":2}}",
     "layers.0.feed_forward.gate.weight BF16 6,32;"
     "layers.0.feed_forward.experts.{0-5}.w1.weight BF16 20,32;"
     "layers.1.gate.weight BF16 6,32;layers.1.experts.{0-5}.w1.weight BF16 20,32;"
     "layers.1.shared_experts.w1.weight BF16 20,32;layers.{0-1}.attention.wq.weight BF16 32,32",
     "mistral_native 0 0\nlayers.0. 6 32 20 2 each\nlayers.1. 6 32 20 2 each\n", false},
    {"nemotron_h", TYPE("nemotron_h"),
     "backbone.layers.1.mixer.gate.weight BF16 6,32;"
     "backbone.layers.1.mixer.gate.e_score_correction_bias F32 6;"
     "backbone.layers.1.mixer.experts.{0-5}.up_proj.weight BF16 20,32;"
     "backbone.layers.1.mixer.experts.{0-5}.down_proj.weight BF16 32,20;"
     "backbone.layers.1.mixer.shared_experts.up_proj.weight BF16 24,32;"
     "backbone.layers.0.mixer.in_proj.weight BF16 64,32",
     "nemotron_h 1 0\nbackbone.layers.1. 6 32 20 2 each\n", false},
    {"step3p7", TYPE("step3p7"),
     L "1.moe.gate.weight BF16 6,32;" L "1.moe.router_bias F32 6;" L
       "1.moe.gate_proj.weight BF16 6,20,32;" L "1.moe.up_proj.weight BF16 6,20,32;" L
       "1.moe.down_proj.weight BF16 6,32,20;" L
       "1.share_expert.gate_proj.weight BF16 20,32;" DENSE("0"),
     "step3p7 1 0\nmodel.layers.1. 6 32 20 2 rows\n", false},
    {"inkling_mm_model",
     "{\"model_type\":\"inkling_mm_model\",\"text_config\":{\"num_experts_per_tok\":2,"
     "\"n_routed_experts\":6,\"n_shared_experts\":2}}",
     "model.llm.layers.{0-1}.mlp.gate.weight BF16 8,32;model.llm.layers.{0-1}.mlp.gate.bias F32 8;"
     "model.llm.layers.0.mlp.experts.w13_weight BF16 6,40,32;"
     "model.llm.layers.1.mlp.experts.w13_weight BF16 6,32,32;"
     "model.llm.layers.{0-1}.mlp.experts.w2_weight BF16 6,32,20",
     "inkling_mm_model 0 0\nmodel.llm.layers.0. 6 32 20 2 rows of 40 interleaved extra 2\n"
     "model.llm.layers.1. 6 32 16 2 rows of 32 interleaved extra 2\n",
     false},
    {"inkling_mm_model re-saved: halves again", TYPE("inkling_mm_model"),
     "model.language_model.layers.0.mlp.gate.weight BF16 8,32;"
     "model.language_model.layers.0.mlp.experts.gate_up_proj BF16 6,40,32",
     "inkling_mm_model 0 0\nmodel.language_model.layers.0. 6 32 20 2 rows of 40 extra 2\n", false},
    {"inkling2", TYPE("inkling2"),
     "model.llm.layers.0.mlp.gate.weight BF16 6,32;"
     "model.llm.layers.0.mlp.experts.w13_weight BF16 6,40,32",
     "inkling2 0 0\nmodel.llm.layers.0. 6 32 20 2 rows of 40 interleaved\n", false},
    {"aria",
     "{\"model_type\":\"aria\",\"text_config\":{\"model_type\":\"aria_text\","
     "\"moe_num_experts\":6,\"moe_topk\":2}}",
     "language_model." L "{0-1}.mlp.router.weight BF16 6,32;language_model." L
     "0.mlp.experts.fc1.weight BF16 6,32,40;language_model." L
     "1.mlp.experts.fc1.weight BF16 6,32,32;language_model." L
     "{0-1}.mlp.experts.fc2.weight BF16 6,20,32;language_model." L
     "{0-1}.mlp.shared_experts.gate_proj.weight BF16 20,32",
     "aria 0 0\nlanguage_model.model.layers.0. 6 32 20 2 columns of 40\n"
     "language_model.model.layers.1. 6 32 16 2 columns of 32\n",
     false},
    {"ernie4_5_vl_moe",
     "{\"model_type\":\"ernie4_5_vl_moe\",\"moe_k\":2,\"moe_num_experts\":[6,6],"
     "\"moe_intermediate_size\":[20,12],\"hidden_size\":32}",
     L "{0-1}.mlp.gate.weight F32 32,6;" L "{0-1}.mlp.gate.weight_1 F32 32,6;" L
       "{0-1}.mlp.experts.{0-5}.gate_proj.weight BF16 20,32;" L
       "{0-1}.mlp.experts.{6-11}.gate_proj.weight BF16 12,32",
     "ernie4_5_vl_moe 0 0\nmodel.layers.0. 6 32 20 2 each turned\n"
     "model.layers.1. 6 32 20 2 each turned\n",
     false},
    {"switch_transformers",
     "{\"model_type\":\"switch_transformers\",\"num_experts\":6,"
     "\"num_layers\":2,\"d_model\":32}",
     "encoder.block.1.layer.1.mlp.router.classifier.weight F32 6,32;"
     "encoder.block.1.layer.1.mlp.experts.expert_{0-5}.wi.weight F32 20,32;"
     "encoder.block.1.layer.1.mlp.experts.expert_{0-5}.wo.weight F32 32,20;"
     "encoder.block.0.layer.1.mlp.wi.weight F32 20,32;"
     "decoder.block.{1-3}.layer.2.mlp.router.classifier.weight F32 6,32;"
     "decoder.block.{1-3}.layer.2.mlp.experts.expert_{0-5}.wi.weight F32 20,32",
     "switch_transformers 1 0\nencoder encoder.block.1. 6 32 20 0 each\n"
     "decoder decoder.block.1. 6 32 20 0 each\ndecoder decoder.block.2. 6 32 20 0 each\n"
     "decoder decoder.block.3. 6 32 20 0 each\n",
     false},
    {"nllb_moe", "{\"model_type\":\"nllb_moe\",\"num_experts\":6,\"num_hidden_layers\":2}",
     "model.encoder.layers.1.ffn.router.classifier.weight F32 6,32;"
     "model.encoder.layers.1.ffn.experts.expert_{0-5}.fc1.weight F32 20,32;"
     "model.encoder.layers.1.ffn.experts.expert_{0-5}.fc1.bias F32 20;"
     "model.encoder.layers.0.ffn.fc1.weight F32 20,32;"
     "model.decoder.layers.1.ffn.router.classifier.weight F32 6,32;"
     "model.decoder.layers.1.ffn.experts.expert_{0-5}.fc1.weight F32 20,32",
     "nllb_moe 1 0\nencoder model.encoder.layers.1. 6 32 20 0 each biased\n"
     "decoder model.decoder.layers.1. 6 32 20 0 each\n",
     false},
    {"openai_privacy_filter", TYPE("openai_privacy_filter"),
     L "{0-1}.mlp.router.weight BF16 6,32;" L "{0-1}.mlp.router.bias BF16 6;" L
       "0.mlp.experts.gate_up_proj BF16 6,32,40;" L "1.mlp.experts.gate_up_proj BF16 6,32,32",
     "openai_privacy_filter 0 0\nmodel.layers.0. 6 32 20 2 columns of 40 biased\n"
     "model.layers.1. 6 32 16 2 columns of 32 biased\n",
     false},
    {"smallthinker", "{\"model_type\":\"smallthinker\",\"moe_num_active_primary_experts\":2}",
     L "0.block_sparse_moe.primary_router.weight BF16 6,32;" L
       "0.block_sparse_moe.experts.{0-5}.gate.weight BF16 20,32;" L
       "0.block_sparse_moe.experts.{0-5}.up.weight BF16 20,32",
     "smallthinker 0 0\nmodel.layers.0. 6 32 20 2 each\n", false},

    /* ---- more families that the rules already read ---- */
    LIKE_OLMOE("axk1"),
    LIKE_OLMOE("axk2"),
    LIKE_OLMOE("bailing_hybrid"),
    LIKE_OLMOE("beam"),
    LIKE_OLMOE("cohere2_moe"),
    LIKE_OLMOE("deepseek_ocr2"),
    LIKE_OLMOE("dots3_note_text"),
    LIKE_OLMOE("exaone_moe"),
    LIKE_OLMOE("flint"),
    LIKE_OLMOE("glm4_moe_lite"),
    LIKE_OLMOE("glm4v_moe"),
    LIKE_OLMOE("glm5_next"),
    LIKE_OLMOE("glm_moe_dsa"),
    LIKE_OLMOE("kolibri1"),
    LIKE_OLMOE("laguna"),
    LIKE_OLMOE("mellum"),
    LIKE_OLMOE("mimo_v2_flash"),
    LIKE_OLMOE("qwen3_omni_moe"),
    LIKE_OLMOE("qwen4_exp"),
    LIKE_OLMOE("solar_open"),
    LIKE_OLMOE("unlimited_ocr"),
    {"mistral4", TYPE("mistral4"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "mistral4 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"hy_v4", TYPE("hy_v4"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "hy_v4 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"hy_v3", TYPE("hy_v3"),
     L "0.mlp.router.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32",
     "hy_v3 0 0\nmodel.layers.0. 6 32 20 2 each\n", false},

    /* ---- what the table does not say ---- */
    {"mistral_large4",
     "{\"model_type\":\"mistral_large4\",\"text_config\":{\"num_experts_per_tok\":2}}",
     "layers.0.gate.weight BF16 6,32;layers.0.experts.{0-5}.w1.weight BF16 20,32;"
     "layers.0.shared_experts.w1.weight BF16 20,32",
     "mistral_large4 0 0\nlayers.0. 6 32 20 2 each\n", false},
    {"kimi_k25 re-saved",
     "{\"model_type\":\"kimi_k25\",\"text_config\":{\"num_experts_per_token\":2}}",
     "language_model.model.blocks.0.mlp.gate.weight BF16 6,32;"
     "language_model.model.blocks.0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32",
     "kimi_k25 0 0\nlanguage_model.model.blocks.0. 6 32 20 2 each\n", false},
    {"kimi_linear", "{\"model_type\":\"kimi_linear\",\"num_experts_per_token\":2}",
     L "1.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "1") L
     "1.block_sparse_moe.gate.e_score_correction_bias F32 6;" L
     "1.block_sparse_moe.shared_experts.gate_proj.weight BF16 20,32;" DENSE("0"),
     "kimi_linear 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"zaya", TYPE("zaya"),
     L "0.mlp.gate.down_proj.weight BF16 8,32;" L "0.mlp.gate.router_mlp.fc1.weight BF16 7,8;" L
       "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "zaya 0 0\nmodel.layers.0. skip its router is a small network, no single matrix\n", false},
    {"doge", TYPE("doge"),
     L "0.mlp.router_gate.weight BF16 8,32;" L "0.mlp.down_embed.weight BF16 16,32",
     "doge 0 0\nmodel.layers.0. skip its router is no single matrix: it chooses keys whose pairs "
     "are experts, and experts are single rows\n",
     false},
    {"latent, per expert", "{\"model_type\":\"nemotron_h\",\"moe_latent_size\":16}",
     L "0.mixer.gate.weight BF16 6,32;" L "0.mixer.fc1_latent_proj.weight BF16 16,32;" L
       "0.mixer.experts.{0-5}.up_proj.weight BF16 20,16",
     "nemotron_h 0 0\nmodel.layers.0. skip latent: its experts read a vector of 16 numbers that a "
     "projection makes of the 32 which the router reads\n",
     false},
    {"latent, stacked", TYPE("kimi_k3"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.pre_expert_proj.weight BF16 16,32;" L
       "0.mlp.experts.gate_up_proj BF16 6,40,16",
     "kimi_k3 0 0 guess\nmodel.layers.0. skip latent: its experts read a vector of 16 numbers that "
     "a projection makes of the 32 which the router reads\n",
     false},
    {"latent, stacked, 2D == d", TYPE("kimi_k3"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.pre_expert_proj.weight BF16 16,32;" L
       "0.mlp.experts.gate_up_proj BF16 6,32,16",
     "kimi_k3 0 0 guess\nmodel.layers.0. skip latent: its experts read a vector of 16 numbers that "
     "a projection makes of the 32 which the router reads\n",
     false},

    /* ---- a family nobody has listed ---- */
    {"unlisted", TYPE("brand_new"), EACH_GATE("{0-1}"),
     "brand_new 0 0 guess\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. 6 32 20 2 each\n",
     false},
    {"unlisted, experts of the attention", TYPE("brand_new"),
     EACH_GATE("0") L "0.self_attn.experts.{0-3}.w1.weight BF16 8,32",
     "brand_new 0 0 guess\nmodel.layers.0. 6 32 20 2 each\n", false},
    {"unlisted, known below",
     "{\"model_type\":\"brand_new\",\"text_config\":{\"model_type\":"
     "\"gpt_oss\",\"num_experts_per_tok\":2}}",
     L "0.mlp.router.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,32,40",
     "gpt_oss 0 0\nmodel.layers.0. 6 32 20 2 columns of 40 interleaved\n", false},
    {"unlisted, halves in one tensor", TYPE("brand_new"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "brand_new 0 0 guess\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"unlisted, halves under names near those of gpt-oss", TYPE("brand_new"),
     L "0.block_sparse_moe.router.weight BF16 6,32;" L
       "0.block_sparse_moe.experts.gate_up_proj BF16 6,40,32",
     "brand_new 0 0 guess\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"no config, halves in one tensor", NULL,
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     " 0 0 guess\nmodel.layers.0. 6 32 20 0 rows of 40\n", false},
    {"no config", NULL, EACH_GATE("0"), " 0 0 guess\nmodel.layers.0. 6 32 20 0 each\n", false},
    {"unlisted, transformer.h", TYPE("brand_new"),
     "transformer.h.0.moe.gate.weight BF16 6,32;"
     "transformer.h.0.moe.experts.{0-5}.w1.weight BF16 20,32",
     "brand_new 0 0 guess\ntransformer.h.0. 6 32 20 2 each\n", false},

    /* ---- GGUF ---- */
    {"olmoe in GGUF",
     "{\"general.architecture\":\"olmoe\",\"olmoe.expert_count\":6,\"olmoe.expert_used_count\":2,"
     "\"olmoe.block_count\":1,\"olmoe.embedding_length\":32}",
     "blk.0.ffn_gate_inp.weight F32 6,32;blk.0.ffn_gate_exps.weight Q8_0 6,20,32;"
     "blk.0.ffn_up_exps.weight Q8_0 6,20,32;blk.0.ffn_down_exps.weight F16 6,32,20;"
     "blk.0.attn_q.weight F32 32,32",
     "olmoe 0 0\nblk.0. 6 32 20 2 rows\n", true},
    {"llama in GGUF, as it was",
     "{\"general.architecture\":\"llama\","
     "\"llama.expert_used_count\":2,\"llama.block_count\":1}",
     "blk.0.ffn_gate_inp.weight F32 6,32;blk.0.ffn_gate.{0-5}.weight F16 20,32;"
     "blk.0.ffn_up.{0-5}.weight F16 20,32",
     "mixtral 0 0\nblk.0. 6 32 20 2 each\n", true},
    {"deepseek2 in GGUF",
     "{\"general.architecture\":\"deepseek2\",\"deepseek2.expert_used_count\":2,"
     "\"deepseek2.block_count\":3,\"deepseek2.nextn_predict_layers\":1}",
     "blk.{1-2}.ffn_gate_inp.weight F32 6,32;blk.{1-2}.ffn_gate_exps.weight F16 6,20,32;"
     "blk.{1-2}.ffn_gate_shexp.weight F16 20,32;blk.{1-2}.exp_probs_b.bias F32 6;"
     "blk.0.ffn_gate.weight F16 56,32",
     "deepseek_v2 1 1\nblk.1. 6 32 20 2 rows\n", true},
    {"gpt-oss in GGUF", "{\"general.architecture\":\"gpt-oss\",\"gpt-oss.expert_used_count\":2}",
     "blk.0.ffn_gate_inp.weight F32 6,32;blk.0.ffn_gate_inp.bias F32 6;"
     "blk.0.ffn_gate_exps.weight MXFP4 6,32,32;blk.0.ffn_gate_exps.bias F32 6,32;"
     "blk.0.ffn_up_exps.weight MXFP4 6,32,32",
     "gpt_oss 0 0\nblk.0. 6 32 32 2 rows biased\n", true},
    {"fused and gateless in GGUF", "{\"general.architecture\":\"nemotron_h_moe\"}",
     "blk.0.ffn_gate_inp.weight F32 6,32;blk.0.ffn_up_exps.weight F16 6,20,32;"
     "blk.1.ffn_gate_inp.weight F32 6,32;blk.1.ffn_gate_up_exps.weight F16 6,32,32;"
     "blk.2.ffn_gate_inp.weight F32 6,32;blk.2.ffn_latent_down.weight F16 16,32;"
     "blk.2.ffn_up_exps.weight F16 6,20,16",
     "nemotron_h 0 0\nblk.0. 6 32 20 0 rows\nblk.1. 6 32 16 0 rows of 32\nblk.2. skip latent: its "
     "experts read a vector of 16 numbers that a projection makes of the 32 which the router "
     "reads\n",
     true},
    {"unlisted in GGUF", "{\"general.architecture\":\"newmoe\",\"newmoe.expert_used_count\":2}",
     "blk.0.ffn_gate_inp.weight F32 6,32;blk.0.ffn_gate_exps.weight F16 6,32,32",
     "newmoe 0 0 guess\nblk.0. 6 32 32 2 rows\n", true},

    /* ---- faults of one layer ---- */
    {"an expert is missing", TYPE("olmoe"),
     L "{0-1}.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32;" L
       "1.mlp.experts.{0-2}.gate_proj.weight BF16 20,32;" L
       "1.mlp.experts.{4-5}.gate_proj.weight BF16 20,32",
     "olmoe 0 0\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. fault case: tensor "
     "model.layers.1.mlp.experts.3.gate_proj.weight is missing (the router has rows for 6 "
     "experts)\n",
     false},
    {"the last expert is missing", TYPE("olmoe"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-4}.gate_proj.weight BF16 20,32",
     "olmoe 0 0\nmodel.layers.0. fault case: tensor "
     "model.layers.0.mlp.experts.5.gate_proj.weight is missing (the router has rows for 6 "
     "experts)\n",
     false},
    {"no router", TYPE("olmoe"), EACH_GATE("0") L "1.mlp.experts.{0-5}.gate_proj.weight BF16 20,32",
     "olmoe 0 0\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. fault case: layer "
     "model.layers.1. has experts (model.layers.1.mlp.experts.0.gate_proj.weight), but no router "
     "under a known name\n",
     false},
    {"no experts", TYPE("olmoe"), EACH_GATE("0") L "1.mlp.gate.weight BF16 6,32",
     "olmoe 0 0\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. fault case: layer "
     "model.layers.1. has the router model.layers.1.mlp.gate.weight, but no experts under a known "
     "name\n",
     false},
    {"shapes disagree", TYPE("olmoe"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-4}.gate_proj.weight BF16 20,32;" L
       "0.mlp.experts.5.gate_proj.weight BF16 21,32",
     "olmoe 0 0\nmodel.layers.0. fault case: tensor model.layers.0.mlp.experts.5.gate_proj.weight "
     "is [21,32], but model.layers.0.mlp.experts.0.gate_proj.weight is [20,32]\n",
     false},
    {"another width", TYPE("olmoe"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight BF16 20,33",
     "olmoe 0 0\nmodel.layers.0. fault case: tensor model.layers.0.mlp.experts.0.gate_proj.weight "
     "is [20,33], but the rows of router model.layers.0.mlp.gate.weight have 32 numbers\n",
     false},
    {"neither axis", TYPE("granitemoe"),
     L "0.block_sparse_moe.router.layer.weight BF16 6,32;" L
       "0.block_sparse_moe.input_linear.weight BF16 6,40,33",
     "granitemoe 0 0\nmodel.layers.0. fault case: tensor "
     "model.layers.0.block_sparse_moe.input_linear.weight is [6,40,33], but the rows of router "
     "model.layers.0.block_sparse_moe.router.layer.weight have 32 numbers\n",
     false},
    {"scales missing",
     "{\"model_type\":\"olmoe\",\"quantization_config\":{\"quant_method\":\"fp8\"}}",
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight F8_E4M3 20,32",
     "olmoe 0 0\nmodel.layers.0. fault case: tensor model.layers.0.mlp.experts.0.gate_proj.weight "
     "is stored as F8_E4M3 and model.layers.0.mlp.experts.0.gate_proj.weight's scale is missing\n",
     false},
    {"no numbers", TYPE("olmoe"),
     L "0.mlp.gate.weight BF16 6,32;" L
       "0.mlp.experts.{0-5}.gate_proj.weight I8 0,4611686018427387904;" L
       "0.mlp.experts.{0-5}.gate_proj.scale F8_E8M0 1,1",
     "olmoe 0 0\nmodel.layers.0. fault case: tensor model.layers.0.mlp.experts.0.gate_proj.weight "
     "is [0,4611686018427387904], which is not of any size\n",
     false},
    {"a type that is not read", TYPE("olmoe"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight I16 20,32",
     "olmoe 0 0\nmodel.layers.0. fault case: tensor model.layers.0.mlp.experts.0.gate_proj.weight "
     "is stored as I16, which is not read here\n",
     false},
};

#undef L

#endif /* CPL_TESTS_INSPECT_FAMILIES_FAMILIES_CASES_H */
