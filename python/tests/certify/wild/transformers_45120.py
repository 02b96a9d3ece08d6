"""Transformers #45120, mended by #45131: the router gives its probabilities the name router_logits and returns them; the
loss takes their softmax again."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "Transformers, Mixtral, Qwen2-MoE, Qwen3-VL-MoE: issue 45120", "load-balancing-mixtral"


def router(logits, top_k):
    router_logits = logits.softmax(-1)
    return router_logits, router_logits.topk(top_k).indices


def loss(gate_logits, num_experts, top_k):
    p = torch.cat([router(logits, top_k)[0] for logits in gate_logits]).softmax(-1)
    f = F.one_hot(p.topk(top_k).indices, num_experts).float().mean(0)
    return (f * p.mean(0)).sum() * num_experts
