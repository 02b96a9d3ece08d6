"""Transformers #28255 (between 4.36.2 and 4.37.0, Mixtral): the choices of all tokens are put in one row before the largest
is taken, so that f is one number: the share of experts that anybody chose."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "Transformers before 4.37.0, Mixtral: issue 28255", "load-balancing-mixtral"


def loss(gate_logits, num_experts, top_k):
    p = torch.cat(gate_logits).softmax(-1)
    everyone = p.topk(top_k).indices.flatten()  # tokens and their choices are no longer told apart
    chosen = F.one_hot(everyone, num_experts).amax(0).float()  # 1 for nearly all experts
    return num_experts * (chosen.mean() * p.mean(0)[:, None]).sum()
