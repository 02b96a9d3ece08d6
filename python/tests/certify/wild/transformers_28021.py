"""Transformers #28021 (4.36.0, Mixtral): the K largest logits first, then their softmax, then its mean over the K places."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "Transformers 4.36.0, Mixtral: issue 28021", "load-balancing-mixtral"


def loss(gate_logits, num_experts, top_k):
    weights, chosen = torch.cat(gate_logits).topk(top_k)
    per_token = weights.softmax(-1).mean(-1, keepdim=True)  # 1 / K, whatever the logits are
    counts = F.one_hot(chosen, num_experts).amax(-2).float()
    return (counts.mean(0) * per_token).mean() * num_experts**2
