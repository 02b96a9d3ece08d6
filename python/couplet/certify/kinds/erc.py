"""The expert-router coupling loss ("Coupling Experts and Routers", equation 3).

Names: r = R * delta are the proxies, W the gates [n,D,d], M [n,n] the norms |r_i W_j|."""

from __future__ import annotations

from typing import Dict, Optional

import torch
from torch import Tensor

from ... import reference as paper
from .._kind import Case, Has, Kind, Outputs, generator, right


def proxies(x: Case, has: Has) -> Tensor:
    R: Tensor = x.router.detach() if has("router_detached") else x.router
    delta: Optional[Tensor] = x.delta
    if delta is None or has("noise_left_out"):
        return R * 1
    if has("delta_left_out"):  # The fault is in the gradient.
        return R + (R * delta - R).detach()
    if has("eps_gradient"):
        eps = paper.eps_of(R)[:, None]
        return R * (1 + eps * torch.where(eps > 0, (delta - 1) / eps, 0.0).detach())
    return R * delta


OF_M = ("merged", "up_for_gate", "noise_left_out", "squared")  # faults that change M


def norms(x: Case, has: Has) -> Tensor:
    """Returns M of the gates, or of the matrices that a fault uses in their place."""
    if torch.is_grad_enabled():
        return new_norms(x, has)
    M: Tensor = x.once(("M", *map(has, OF_M)), lambda: new_norms(x, has))
    return M


def new_norms(x: Case, has: Has) -> Tensor:
    W = x.w_gate.detach() if has("experts_detached") else x.w_gate
    if x.w_up is not None and (has("merged") or has("up_for_gate")):
        W = torch.cat((W, x.w_up), 1) if has("merged") else x.w_up
    r = proxies(x, has)
    M = torch.stack([(r @ one.transpose(0, 1)).norm(dim=-1) for one in W], 1)
    return M**2 if has("squared") else M


def hinge(x: Case, over: Tensor, scale: Tensor) -> Tensor:
    """Returns max(over, 0). The gradient passes at 0. Within x.tolerance of 0, a share of `scale`, the gradient passes
    if x.turned is 1, and does not pass if x.turned is -1."""
    near = (x.tolerance or 0.0) * scale
    return over * (over > near if x.turned == -1 else over >= -near * (x.turned or 0))


def reference(x: Case, has: Has) -> Outputs:
    n = len(x.router)
    M = norms(x, has)
    own = (1.0 if has("alpha_ignored") or x.alpha is None else x.alpha) * M.diagonal()
    own = own.detach() if has("diagonal_detached") else own
    sign = -1 if has("hinge_sign") else 1
    scale = M.detach().abs().max()
    rows, columns = (hinge(x, sign * (M - bound), scale) for bound in (own[:, None], own[None, :]))
    columns = rows if has("row_twice") else torch.zeros_like(rows) if has("column_missing") else columns
    both = columns if has("row_missing") else rows + columns
    if not has("diagonal_kept"):
        both = both * (1 - torch.eye(n, dtype=M.dtype))
    return {"loss": x.times / (x.layers or 1) * both.sum() / n**2, "M": M.T if has("transposed") else M}


# name: n, d, D, alpha, weight, and the factor of R[j] in the term that is added to random W_g[j]
INPUTS = {
    "some-active": (5, 24, 20, 0.9, 0.6, 0.0),
    "all-active": (6, 17, 10, 0.3, 0.25, 0.0),
    "few-active": (5, 20, 16, 0.8, 2.5, 0.8),
    "alpha-1": (5, 24, 20, 1.0, 1.0, 0.0),
}


def draw(g: torch.Generator, n: int, d: int, D: int, alpha: float, weight: float, coupling: float) -> Case:
    R = torch.randn(n, d, generator=g)
    W = torch.randn(2, n, D, d, generator=g) / d**0.5
    u = torch.nn.functional.normalize(torch.randn(n, D, generator=g), dim=1)
    W[0] += coupling * u[:, :, None] * torch.nn.functional.normalize(R, dim=1)[:, None, :]
    delta = 1 + paper.eps_of(R)[:, None] * (2 * torch.rand(n, d, generator=g) - 1)
    return Case(router=R, w_gate=W[0], w_up=W[1], delta=delta, alpha=alpha, coefficient=weight)


def margin(x: Case) -> float:
    """Returns the distance of the hinge that is nearest to its bound, or 0 if fewer than four are active."""
    M = norms(x, right)
    over = torch.stack((M - x.alpha * M.diagonal()[:, None], M - x.alpha * M.diagonal()))
    over = over[:, ~torch.eye(len(M), dtype=torch.bool)]
    return float(over.abs().min()) if int((over > 0).sum()) >= 4 else 0.0


def cases(seed: int, n: int = 0) -> Dict[str, Case]:
    """Returns an input of each size, the one of 100 draws with the largest margin."""
    g = generator(seed)
    return {name: max((draw(g, *sizes) for _ in range(100)), key=margin) for name, sizes in INPUTS.items()}


KIND = Kind(
    "erc",
    reference,
    ("router", "w_gate", "w_up", "w_gate_up", "delta", "alpha", "coefficient", "layers"),
    cases,
    ("router", "w_gate"),
    ("router", "w_gate", "w_up"),
    asks=("alpha",),
    order=("router", "w_gate", "delta", "alpha", "coefficient"),
)
