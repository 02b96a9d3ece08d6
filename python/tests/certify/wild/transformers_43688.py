"""Transformers #43688, OLMoE #45: f is not divided by K, in a model whose paper divides it. One layer."""
import torch.nn.functional as F

SOURCE, KIND = "Transformers, OLMoE: issues 43688 and allenai/OLMoE 45", "load-balancing-olmoe"


def loss(logits, num_experts, top_k):
    p = logits.softmax(-1)
    f = F.one_hot(p.topk(top_k).indices, num_experts).float().mean(0)
    return (f * p.mean(0)).sum() * num_experts
