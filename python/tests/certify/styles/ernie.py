"""The orthogonality of a router's rows in the style of ERNIE 4.5's `topk_gate.py`."""

import torch


def orthogonal_loss(weight, moe_orthogonal_loss_lambda):
    """`weight` [n, d] is the router."""
    wnorm = weight.norm(dim=1)
    weight = weight / torch.maximum(wnorm, torch.full_like(wnorm, 1e-12)).unsqueeze(1)
    difference = weight @ weight.transpose(0, 1) - torch.eye(weight.shape[0], dtype=weight.dtype)
    return moe_orthogonal_loss_lambda * difference.square().sum() / difference.numel()


def orthogonal_loss_of_columns(gate_weight, moe_orthogonal_loss_lambda):
    """The norm is taken over axis 0, which would be right for a weight [d, n]."""
    wnorm = gate_weight.norm(dim=0)
    weight = gate_weight / torch.maximum(wnorm, torch.full_like(wnorm, 1e-12)).unsqueeze(0)
    difference = weight @ weight.transpose(0, 1) - torch.eye(weight.shape[0], dtype=weight.dtype)
    return moe_orthogonal_loss_lambda * difference.square().sum() / difference.numel()
