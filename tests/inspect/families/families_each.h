/* families_each.h - families of src/inspect/families/families.def with a tensor for each expert. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_FAMILIES_EACH_H
#define CPL_TESTS_INSPECT_FAMILIES_FAMILIES_EACH_H

#include "inspect/families/families_case.h"

#define LIKE_MINIMAX_M2(type)                                                                      \
    {                                                                                              \
        type, TYPE(type),                                                                          \
            L "{0-1}.block_sparse_moe.gate.weight F32 6,32;" L                                     \
              "{0-1}.block_sparse_moe.e_score_correction_bias F32 6;" W123("block_sparse_moe",     \
                                                                           "{0-1}"),               \
            EACH(type), false                                                                      \
    }

static const families_case cases_each[] = {
    {"mixtral",
     "{\"model_type\":\"mixtral\",\"num_local_experts\":6,\"num_experts_per_tok\":2,"
     "\"hidden_size\":32,\"intermediate_size\":20,\"num_hidden_layers\":2}",
     L "{0-1}.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "{0-1}")
         ATTENTION("{0-1}") "model.embed_tokens.weight BF16 64,32;lm_head.weight BF16 64,32",
     EACH("mixtral"), false},
    LIKE_OLMOE("olmoe"),
    LIKE_OLMOE("couplet"),
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
    {"qwen3_omni_moe",
     "{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"text_config\":{"
     "\"num_hidden_layers\":1,\"num_experts_per_tok\":2,\"num_experts\":6}},"
     "\"talker_config\":{\"text_config\":{\"num_experts_per_tok\":3}}}",
     "thinker." L "0.mlp.gate.weight BF16 6,32;thinker." L
     "0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32;talker." L
     "0.mlp.gate.weight BF16 8,16;talker." L "0.mlp.experts.{0-7}.gate_proj.weight BF16 12,16;"
     "thinker.audio_tower.layers.0.fc1.weight BF16 4,4",
     "qwen3_omni_moe 0 0\nthinker.model.layers.0. 6 32 20 2 each\n", false},
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
    {"phimoe", TYPE("phimoe"),
     L "0.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "0") L
     "1.block_sparse_moe.gate.weight BF16 6,32;" W123("mlp", "1"),
     EACH("phimoe"), false},
    {"jamba", TYPE("jamba"),
     L "1.feed_forward.router.weight BF16 6,32;" L
       "1.feed_forward.experts.{0-5}.gate_proj.weight BF16 20,32;" L
       "0.feed_forward.gate_proj.weight BF16 56,32",
     "jamba 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"mini-jamba", TYPE("jamba"),
     L "1.moe.router.weight BF16 6,32;" L "1.moe.experts.{0-5}.gate_proj.weight BF16 20,32",
     "jamba 0 0\nmodel.layers.1. 6 32 20 2 each\n", false},
    {"minimax_text_01", TYPE("minimax_text_01"),
     L "{0-1}.block_sparse_moe.gate.weight BF16 6,32;" W123("block_sparse_moe", "{0-1}"),
     EACH("minimax_text_01"), false},
    LIKE_MINIMAX_M2("minimax_m2"),
    LIKE_MINIMAX_M2("minimax_m3"),
    {"minimax_m3_vl",
     "{\"model_type\":\"minimax_m3_vl\",\"text_config\":{\"model_type\":\"minimax_m3_vl_text\","
     "\"num_experts_per_tok\":2,\"num_hidden_layers\":2}}",
     "language_model." L "0.mlp.gate_proj.weight BF16 56,32;language_model." L
     "1.block_sparse_moe.gate.weight F32 6,32;language_model." L
     "1.block_sparse_moe.e_score_correction_bias F32 6;language_model." L
     "1.block_sparse_moe.experts.{0-5}.w1.weight BF16 20,32;"
     "vision_tower.layers.0.mlp.fc1.weight BF16 4,4",
     "minimax_m3_vl 1 0\nlanguage_model.model.layers.1. 6 32 20 2 each\n", false},
    {"ernie4_5_moe",
     "{\"model_type\":\"ernie4_5_moe\",\"moe_k\":2,\"moe_num_experts\":6,"
     "\"moe_intermediate_size\":20,\"hidden_size\":32}",
     EACH_GATE("1") DENSE("0") L "1.mlp.moe_statics.e_score_correction_bias F32 1,6",
     "ernie4_5_moe 1 0\nmodel.layers.1. 6 32 20 2 each\n", false},
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
    {"smallthinker", "{\"model_type\":\"smallthinker\",\"moe_num_active_primary_experts\":2}",
     L "0.block_sparse_moe.primary_router.weight BF16 6,32;" L
       "0.block_sparse_moe.experts.{0-5}.gate.weight BF16 20,32;" L
       "0.block_sparse_moe.experts.{0-5}.up.weight BF16 20,32",
     "smallthinker 0 0\nmodel.layers.0. 6 32 20 2 each\n", false},
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
    {"hy_v3", TYPE("hy_v3"),
     L "0.mlp.router.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight BF16 20,32",
     "hy_v3 0 0\nmodel.layers.0. 6 32 20 2 each\n", false},
};

#endif /* CPL_TESTS_INSPECT_FAMILIES_FAMILIES_EACH_H */
