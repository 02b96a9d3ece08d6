"""The coupling loss in the style of the pseudo-code of its paper, and of a trainer that took it up."""

import torch


def _M(R, Wg):
    return torch.norm(torch.einsum("jDd,id->ijD", Wg, R), dim=-1)


def erc_loss(R, Wg, delta, alpha):
    M = _M(R * delta, Wg)
    row_diff = torch.clamp(M - alpha * torch.diag(M).unsqueeze(1), min=0.0)
    col_diff = torch.clamp(M - alpha * torch.diag(M).unsqueeze(0), min=0.0)
    mask = torch.ones_like(M) - torch.eye(M.size(0), dtype=M.dtype)
    return ((row_diff + col_diff) * mask).mean()


def erc_loss_of_rows(R, Wg, delta, alpha, erc_loss_weight):
    """The row's hinge stands in both places."""
    M = _M(R * delta, Wg)
    row_diff = torch.clamp(M - alpha * torch.diag(M).unsqueeze(1), min=0.0)
    col_diff = torch.clamp(M - alpha * torch.diag(M).unsqueeze(1), min=0.0)
    mask = torch.ones_like(M) - torch.eye(M.size(0), dtype=M.dtype)
    return erc_loss_weight * ((row_diff + col_diff) * mask).mean()


def erc_loss_of_pairs(router_weight, gate_up_proj, delta, alpha, erc_loss_coef):
    """The sum is divided by the n (n - 1) pairs that are not masked."""
    n, width = router_weight.shape[0], gate_up_proj.shape[1] // 2
    M = _M(router_weight * delta, gate_up_proj[:, :width])
    own = torch.diag(M)
    hinges = (M - alpha * own[:, None]).clamp(min=0) + (M - alpha * own[None, :]).clamp(min=0)
    hinges = hinges.masked_fill(torch.eye(n, dtype=torch.bool), 0)
    return erc_loss_coef * hinges.sum() / (n * (n - 1))
