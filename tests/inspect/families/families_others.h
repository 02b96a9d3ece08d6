/* families_others.h - what the table of families does not say: exceptions, families nobody has
 * listed, GGUF, faults of one layer. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_FAMILIES_OTHERS_H
#define CPL_TESTS_INSPECT_FAMILIES_FAMILIES_OTHERS_H

#include "inspect/families/families_case.h"

static const families_case cases_others[] = {
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
    {"no config, halves under a name that any block may have", NULL,
     L "0.mlp.gate.weight BF16 6,32;" L "0.moe.experts.gate_up_proj BF16 6,40,32",
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
     "under a known name; it has no other matrix that could be one\n",
     false},
    {"no experts under a known name", TYPE("olmoe"),
     EACH_GATE("0") L "1.mlp.gate.weight BF16 6,32;" L "1.mlp.norm.weight BF16 32;" L
                      "1.mlp.pool.{0-5}.in.weight BF16 20,32;" L
                      "1.mlp.shared_expert.w1.weight BF16 20,32;" L
                      "1.self_attn.q.weight BF16 32,32",
     "olmoe 0 0\nmodel.layers.0. 6 32 20 2 each\nmodel.layers.1. fault case: layer "
     "model.layers.1. has the router model.layers.1.mlp.gate.weight, but no experts under a known "
     "name; it has mlp.pool.0.in.weight, mlp.pool.1.in.weight, mlp.pool.2.in.weight and 3 more\n",
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
    {"scales of another shape", TYPE("olmoe"),
     L "0.mlp.gate.weight BF16 6,32;" L "0.mlp.experts.{0-5}.gate_proj.weight F8_E4M3 20,32;" L
       "0.mlp.experts.{0-5}.gate_proj.weight_scale F32 3,1",
     "olmoe 0 0\nmodel.layers.0. fault case: tensor "
     "model.layers.0.mlp.experts.0.gate_proj.weight_scale is [3,1], but the scales of 20 rows of "
     "32 numbers are [1,1] for blocks of [128,128], [20,1] for rows, [1,32] for columns\n",
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

#endif /* CPL_TESTS_INSPECT_FAMILIES_FAMILIES_OTHERS_H */
