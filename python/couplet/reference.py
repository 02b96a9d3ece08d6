"""The paper's pseudo-code, with the choices of docs/decisions.md: a reference to read and to test against. It keeps
more than [n, n, D] numbers for the backward pass. It has only the activation `gate`; `gate_up` is `gate` on
torch.cat((Wg, Wp), 1)."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def hinge(M: Tensor, bound: Tensor) -> Tensor:
    """Returns clamp(M - bound, min=0) with gradient 1 at a tie, as torch.clamp had when the paper was written."""
    rounding = min(32 * torch.finfo(M.dtype).eps, 2**-14)
    return torch.where(M >= bound * (1 - rounding), M - bound, torch.zeros_like(M))


def eps_of(R: Tensor) -> Tensor:
    """Returns min over j != i of |R_i - R_j| / (2 |R_i|), [n]; 0 for a zero row and for n = 1."""
    distances = torch.norm(R[:, None] - R[None, :], dim=-1)  # cdist by products: > 0 for equal rows
    distances = distances.masked_fill(torch.eye(len(R), dtype=torch.bool, device=R.device), float("inf"))
    norm_R = torch.norm(R, dim=1)
    eps = distances.min(dim=1).values / 2 / norm_R
    return torch.where((norm_R == 0) | (len(R) == 1), torch.zeros_like(eps), eps)


def rows_of_tokens(R: Tensor, mean: Tensor, scale: float) -> Tensor:
    """Returns P_i = mean + scale q_i, [n, d]: q_i is the direction of R_i less the mean row, 0 where it has none."""
    Q = R - R.mean(dim=0)
    length = torch.norm(Q, dim=1, keepdim=True)
    zero = length == 0
    return mean + scale * torch.where(zero, 0, Q / torch.where(zero, 1, length))


def erc_loss(
    R: Tensor,
    Wg: Tensor,
    *,
    down: Optional[Tensor] = None,
    latent_norm: Optional[Tensor] = None,
    latent_eps: float = 0.0,
    proxy: str = "row",
    mean: Optional[Tensor] = None,
    scale: float = 1.0,
    alpha: float = 1.0,
    weight: float = 1.0,
    delta: Optional[Tensor] = None,
) -> Tensor:
    """Returns weight * L [] at alpha for router R [n, d] and gates Wg [n, D, d]. delta [n, d] is the noise, drawn if
    None. down [l, d] is the projection of latent experts with Wg [n, D, l], latent_norm [l] and
    latent_eps are of a norm on its output. proxy "tokens": the proxies are `rows_of_tokens` of mean [d] and scale."""
    if proxy == "tokens":
        assert mean is not None, 'proxy="tokens" needs mean'
        R = rows_of_tokens(R, mean, scale)
    if delta is None:
        with torch.no_grad():
            eps = eps_of(R).unsqueeze(1)
            low, high = 1 - eps, 1 + eps
            delta = low + torch.rand_like(R) * (high - low)
    proxies = delta * R
    if down is not None:
        proxies = proxies @ down.mT
    if latent_norm is not None:
        proxies = latent_norm * proxies / (proxies.square().mean(dim=1, keepdim=True) + latent_eps).sqrt()
    M = torch.norm(torch.einsum("jDd,id->ijD", Wg, proxies), dim=-1)  # no gradient where it is 0
    rows = hinge(M, alpha * torch.diag(M).unsqueeze(1))
    columns = hinge(M, alpha * torch.diag(M).unsqueeze(0))
    mask = torch.ones_like(M) - torch.eye(M.size(0), dtype=M.dtype, device=M.device)
    return weight * ((rows + columns) * mask).mean()
