/* families_case.h - a case of the map of MoE layers: names and shapes as a family stores them, and
 * the map that must come out. Unless a case says otherwise n = 6, d = 32, D = 20, K = 2; the dense
 * width is 56. */
#ifndef CPL_TESTS_INSPECT_FAMILIES_FAMILIES_CASE_H
#define CPL_TESTS_INSPECT_FAMILIES_FAMILIES_CASE_H

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

#endif /* CPL_TESTS_INSPECT_FAMILIES_FAMILIES_CASE_H */
