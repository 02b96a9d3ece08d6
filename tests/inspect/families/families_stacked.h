/* families_stacked.h - families of src/inspect/families/families.def with one tensor for all
 * experts. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_FAMILIES_STACKED_H
#define CPL_TESTS_INSPECT_FAMILIES_FAMILIES_STACKED_H

#include "inspect/families/families_case.h"

static const families_case cases_stacked[] = {
    {"mixtral re-saved", TYPE("mixtral"),
     L "{0-1}.mlp.gate.weight BF16 6,32;" L "{0-1}.mlp.experts.gate_up_proj BF16 6,40,32;" L
       "{0-1}.mlp.experts.down_proj BF16 6,32,20",
     "mixtral 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\nmodel.layers.1. 6 32 20 2 rows of 40\n",
     false},
    {"qwen3_vl_moe",
     "{\"model_type\":\"qwen3_vl_moe\",\"text_config\":{\"model_type\":\"qwen3_vl_moe_text\","
     "\"num_experts_per_tok\":2,\"num_hidden_layers\":1,\"num_experts\":6}}",
     "model.language_model.layers.0.mlp.gate.weight BF16 6,32;"
     "model.language_model.layers.0.mlp.experts.gate_up_proj BF16 6,32,40;"
     "model.language_model.layers.0.mlp.experts.down_proj BF16 6,20,32;"
     "model.visual.blocks.0.mlp.gate.weight BF16 6,32",
     "qwen3_vl_moe 0 0\nmodel.language_model.layers.0. 6 32 20 2 columns of 40\n", false},
    {"square, by the down projection, not by the version",
     "{\"model_type\":\"qwen3_vl_moe\",\"transformers_version\":\"4.57.0\"}",
     L "{0-1}.mlp.gate.weight BF16 6,32;" L "{0-1}.mlp.experts.gate_up_proj BF16 6,32,32;" L
       "0.mlp.experts.down_proj BF16 6,32,16;" L "1.mlp.experts.down_proj BF16 6,16,32",
     "qwen3_vl_moe 0 0\nmodel.layers.0. 6 32 16 0 rows of 32\n"
     "model.layers.1. 6 32 16 0 columns of 32\n",
     false},
    {"square, by the down projection, not by the family", TYPE("llama4"),
     L "{0-1}.feed_forward.router.weight BF16 6,32;" L
       "{0-1}.feed_forward.experts.gate_up_proj BF16 6,32,32;" L
       "0.feed_forward.experts.down_proj F8_E4M3 6,32,16;" L
       "1.feed_forward.experts.down_proj F8_E4M3 6,16,32",
     "llama4 0 0\nmodel.layers.0. 6 32 16 2 rows of 32\n"
     "model.layers.1. 6 32 16 2 columns of 32\n",
     false},
    {"square, of an unknown family", TYPE("odd"),
     L "{0-1}.mlp.gate.weight BF16 6,32;" L "{0-1}.mlp.experts.gate_up_proj BF16 6,32,32;" L
       "0.mlp.experts.down_proj BF16 6,32,16;" L "1.mlp.experts.down_proj BF16 6,16,32",
     "odd 0 0 guess\nmodel.layers.0. 6 32 16 2 rows of 32\n"
     "model.layers.1. 6 32 16 2 columns of 32\n",
     false},
    {"square, by the scales", "{\"model_type\":\"odd\",\"num_experts_per_tok\":2}",
     L "{0-2}.mlp.gate.weight BF16 6,32;" L "{0-2}.mlp.experts.gate_up_proj F8_E4M3 6,32,32;" L
       "0.mlp.experts.gate_up_proj_scale F32 6,32,1;" L
       "1.mlp.experts.gate_up_proj_scale F32 6,1,32;" L
       "2.mlp.experts.gate_up_proj_scale F32 6,1,1;" L "2.mlp.experts.down_proj BF16 6,16,32;" L
       "3.mlp.gate.weight BF16 6,32;" L "3.mlp.experts.w1.weight F8_E4M3 6,32,32;" L
       "3.mlp.experts.w1.weight_scale F32 6,32,1",
     "odd 0 0 guess\nmodel.layers.0. 6 32 16 2 rows of 32 F8_E4M3 by F32 1,32\n"
     "model.layers.1. 6 32 16 2 columns of 32 F8_E4M3 by F32 32,1\n"
     "model.layers.2. 6 32 16 2 columns of 32 F8_E4M3 by F32 32,32\n"
     "model.layers.3. 6 32 32 2 rows F8_E4M3 by F32 1,32\n",
     false},
    {"MLX", TYPE("qwen3_moe"),
     L "{0-1}.mlp.gate.weight BF16 6,32;" L "{0-1}.mlp.switch_mlp.gate_proj.weight BF16 6,20,32;" L
       "{0-1}.mlp.switch_mlp.down_proj.weight BF16 6,32,20",
     "qwen3_moe 0 0\nmodel.layers.0. 6 32 20 2 rows\nmodel.layers.1. 6 32 20 2 rows\n", false},
    {"MLX without a gate", TYPE("nemotron_h"),
     "backbone.layers.0.mixer.gate.weight BF16 6,32;"
     "backbone.layers.0.mixer.switch_mlp.fc1.weight BF16 6,20,32;"
     "backbone.layers.0.mixer.switch_mlp.fc2.weight BF16 6,32,20",
     "nemotron_h 0 0\nbackbone.layers.0. 6 32 20 2 rows\n", false},
    {"torchtitan, in wrappers", NULL,
     "layers.0._orig_mod._checkpoint_wrapped_module.moe.router.gate.weight BF16 6,32;"
     "layers.0._orig_mod._checkpoint_wrapped_module.moe.experts.w1 BF16 6,20,32;"
     "layers.0._orig_mod._checkpoint_wrapped_module.moe.experts.w2 BF16 6,32,20;"
     "layers.1._fsdp_wrapped_module.moe.router.gate.weight BF16 6,32;"
     "layers.1._fsdp_wrapped_module.moe.experts.w1 BF16 6,20,32",
     " 0 0 guess\nlayers.0. 6 32 20 0 rows\nlayers.1. 6 32 20 0 rows\n", false},
    {"qwen3_vl_moe in rows", TYPE("qwen3_vl_moe"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "qwen3_vl_moe 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"qwen3_5_moe", "{\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"num_experts_per_tok\":2}}",
     "model.language_model.layers.0.mlp.gate.weight BF16 6,32;"
     "model.language_model.layers.0.mlp.experts.gate_up_proj BF16 6,40,32;"
     "model.language_model.layers.1.mlp.gate.weight BF16 6,32;"
     "model.language_model.layers.1.mlp.experts.gate_up_proj BF16 6,32,32;"
     "model.language_model.layers.1.mlp.experts.down_proj BF16 6,32,16",
     "qwen3_5_moe 0 0\nmodel.language_model.layers.0. 6 32 20 2 rows of 40\n"
     "model.language_model.layers.1. 6 32 16 2 rows of 32\n",
     false},
    {"gpt_oss", "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":1,\"experts_per_token\":2}",
     L "0.mlp.router.weight BF16 6,32;" L "0.mlp.router.bias BF16 6;" L
       "0.mlp.experts.gate_up_proj BF16 6,32,40;" L "0.mlp.experts.gate_up_proj_bias BF16 6,40;" L
       "0.mlp.experts.down_proj BF16 6,20,32",
     "gpt_oss 0 0\nmodel.layers.0. 6 32 20 2 columns of 40 interleaved biased\n", false},
    {"gpt_oss square", TYPE("gpt_oss"),
     L "0.mlp.router.linear.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,32,32;" L
       "0.mlp.experts.down_proj BF16 6,16,32",
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
    {"llama4",
     "{\"model_type\":\"llama4\",\"text_config\":{\"num_experts_per_tok\":1,"
     "\"num_local_experts\":6,\"intermediate_size\":20,\"num_hidden_layers\":3}}",
     "language_model." L "{1-2}.feed_forward.router.weight BF16 6,32;language_model." L
     "1.feed_forward.experts.gate_up_proj BF16 6,32,40;language_model." L
     "2.feed_forward.experts.gate_up_proj BF16 6,32,32;language_model." L
     "2.feed_forward.experts.down_proj BF16 6,16,32;language_model." L
     "0.feed_forward.gate_proj.weight BF16 56,32;language_model." L
     "1.feed_forward.shared_expert.gate_proj.weight BF16 20,32;"
     "vision_model.model.layers.0.mlp.fc1.weight BF16 4,4",
     "llama4 1 0\nlanguage_model.model.layers.1. 6 32 20 1 columns of 40\n"
     "language_model.model.layers.2. 6 32 16 1 columns of 32\n",
     false},
    {"ernie4_5_moe of Paddle", "{\"model_type\":\"ernie4_5_moe\",\"moe_k\":2}",
     "ernie.layers.{0-1}.mlp.gate.weight F32 32,6;"
     "ernie.layers.0.mlp.experts.{0-5}.up_gate_proj.weight BF16 32,40;"
     "ernie.layers.0.mlp.experts.{0-5}.down_proj.weight BF16 20,32;"
     "ernie.layers.1.mlp.experts.{0-5}.up_gate_proj.weight BF16 32,32;"
     "ernie.layers.1.mlp.experts.{0-5}.down_proj.weight BF16 16,32",
     "ernie4_5_moe 0 0\nernie.layers.0. 6 32 20 2 columns of 40 in 6 turned\n"
     "ernie.layers.1. 6 32 16 2 columns of 32 in 6 turned\n",
     false},
    {"ernie4_5_moe transposed, not fused", "{\"model_type\":\"ernie4_5_moe\",\"moe_k\":2}",
     L "{0-1}.mlp.gate.weight F32 32,6;" L "0.mlp.experts.{0-5}.gate_proj.weight BF16 32,20;" L
       "1.mlp.experts.{0-5}.gate_proj.weight BF16 32,32",
     "ernie4_5_moe 0 0\nmodel.layers.0. 6 32 20 2 columns in 6 turned\n"
     "model.layers.1. 6 32 32 2 columns in 6 turned\n",
     false},
    {"longcat_flash, stacked",
     "{\"model_type\":\"longcat_flash\",\"n_routed_experts\":6,\"moe_topk\":2}",
     L "0.mlp.router.classifier.weight F32 9,32;" L "0.mlp.experts.gate_up_proj BF16 9,40,32;" L
       "0.mlp.experts.down_proj BF16 6,32,20",
     "longcat_flash 0 0\nmodel.layers.0. 6 32 20 2 rows of 40 extra 3\n", false},
    {"gemma4",
     "{\"model_type\":\"gemma4\",\"text_config\":{\"top_k_experts\":2,\"num_hidden_layers\":2}}",
     "model.language_model.layers.{0-1}.router.proj.weight BF16 6,32;"
     "model.language_model.layers.{0-1}.router.scale BF16 32;"
     "model.language_model.layers.{0-1}.router.per_expert_scale BF16 6;"
     "model.language_model.layers.0.experts.gate_up_proj BF16 6,40,32;"
     "model.language_model.layers.1.experts.gate_up_proj BF16 6,32,32;"
     "model.language_model.layers.1.experts.down_proj BF16 6,32,16;"
     "model.language_model.layers.{0-1}.mlp.gate_proj.weight BF16 56,32",
     "gemma4 0 0\nmodel.language_model.layers.0. 6 32 20 2 rows of 40 incomparable\n"
     "model.language_model.layers.1. 6 32 16 2 rows of 32 incomparable\n",
     false},
    {"diffusion_gemma", TYPE("diffusion_gemma"),
     L "0.router.proj.weight BF16 6,32;" L "0.experts.gate_up_proj BF16 6,40,32",
     "diffusion_gemma 0 0\nmodel.layers.0. 6 32 20 2 rows of 40 incomparable\n", false},
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
     "model.llm.layers.0.mlp.experts.w2_weight BF16 6,32,20;"
     "model.llm.layers.1.mlp.experts.w2_weight BF16 6,32,16",
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
     "0.mlp.experts.fc2.weight BF16 6,20,32;language_model." L
     "1.mlp.experts.fc2.weight BF16 6,16,32;language_model." L
     "{0-1}.mlp.shared_experts.gate_proj.weight BF16 20,32",
     "aria 0 0\nlanguage_model.model.layers.0. 6 32 20 2 columns of 40\n"
     "language_model.model.layers.1. 6 32 16 2 columns of 32\n",
     false},
    {"openai_privacy_filter", TYPE("openai_privacy_filter"),
     L "{0-1}.mlp.router.weight BF16 6,32;" L "{0-1}.mlp.router.bias BF16 6;" L
       "0.mlp.experts.gate_up_proj BF16 6,32,40;" L "1.mlp.experts.gate_up_proj BF16 6,32,32;" L
       "1.mlp.experts.down_proj BF16 6,16,32",
     "openai_privacy_filter 0 0\nmodel.layers.0. 6 32 20 2 columns of 40 biased\n"
     "model.layers.1. 6 32 16 2 columns of 32 biased\n",
     false},
    {"mistral4", TYPE("mistral4"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "mistral4 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"hy_v4", TYPE("hy_v4"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "hy_v4 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"muse_spark", TYPE("muse_spark"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.gate_up_proj BF16 6,40,32",
     "muse_spark 0 0\nmodel.layers.0. 6 32 20 2 rows of 40\n", false},
    {"muse_spark, latent",
     "{\"model_type\":\"muse_spark\",\"text_config\":{\"model_type\":\"muse_spark_text\","
     "\"hidden_size\":32,\"moe_hidden_size\":16,\"num_experts_per_tok\":2}}",
     "model.language_model.layers.0.mlp.gate.weight BF16 6,32;"
     "model.language_model.layers.0.mlp.experts.gate_up_proj BF16 6,40,16",
     "muse_spark 0 0\nmodel.language_model.layers.0. skip latent: its experts read a vector of 16 "
     "numbers that a projection makes of the 32 which the router reads\n",
     false},
};

#endif /* CPL_TESTS_INSPECT_FAMILIES_FAMILIES_STACKED_H */
