"""Transformers #43775, a change that was proposed and not taken: f is divided by K. The layers' tokens are still joined."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "Transformers, OLMoE: pull request 43775", "load-balancing-olmoe"


def loss(gate_logits, num_experts, top_k):
    p = torch.cat(gate_logits).softmax(-1)
    f = F.one_hot(p.topk(top_k).indices, num_experts).float().mean(0).sum(0) / top_k
    return num_experts * (f * p.mean(0)).sum()
