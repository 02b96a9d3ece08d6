"""The first result of a gate in the style of DeepSpeed's `sharded_moe.py`."""

import torch


def topkgating_l_aux(logits, k, moe_loss_coeff):
    gates = torch.nn.functional.softmax(logits, dim=1)
    num_experts = gates.shape[1]
    mask = torch.zeros_like(gates, dtype=torch.bool).scatter_(1, torch.topk(gates, k=k, dim=1)[1], True)
    me, ce = torch.mean(gates, dim=0), torch.mean(mask.to(gates.dtype), dim=0)
    return moe_loss_coeff * torch.mean(me * ce) * num_experts * num_experts / k


def topkgating_with_jitter(logits, k, moe_loss_coeff):
    """Multiplies the logits by random numbers from 0.99 to 1.01 in each call."""
    return topkgating_l_aux(logits * torch.empty_like(logits).uniform_(0.99, 1.01), k, moe_loss_coeff)
