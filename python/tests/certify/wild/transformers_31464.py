"""Transformers #31464: the function of Mixtral joins the tokens of all layers; the issue asks for each layer by itself."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "Transformers, load_balancing_loss_func: issue 31464", "load-balancing-olmoe"


def loss(gate_logits, num_experts, top_k):
    p = torch.cat(gate_logits).softmax(-1)
    f = F.one_hot(p.topk(top_k).indices, num_experts).float().mean(0)
    return (f * p.mean(0)).sum() * num_experts
