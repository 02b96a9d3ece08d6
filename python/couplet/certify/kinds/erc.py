"""The expert-router coupling loss ("Coupling Experts and Routers", equation 3), and that of latent experts
(docs/method.md 3.14).

Names: r = R * delta are the proxies, W the gates [n,D,d], M [n,n] the norms |r_i W_j|. Latent experts read P r, with
the projection P [l,d], the input `down`, and gates [n,D,l]."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor

from ... import reference as paper
from .._kind import Case, Has, Kind, Outputs, generator, right

Sizes = Tuple[int, int, int, float, float, float]
WIDER = 1.2  # least ratio of a row's bounds after and before P in inputs for latent experts


def noise_of(x: Case, has: Has) -> Optional[Tensor]:
    """Returns the factors of the proxies, or None. The factors that a callable drew for latent experts are held within
    the bound of R, and under a fault within the bound of P R."""
    if x.delta is None or x.delta.shape != x.router.shape or has("noise_left_out") or is_after(x, has):
        return None
    if not x.is_drawn or x.down is None:
        return x.delta  # type: ignore[no-any-return]
    rows = latent(x, right, x.router) if has("bound_of_latent") else x.router
    eps = paper.eps_of(rows.detach())[:, None]
    return torch.maximum(torch.minimum(x.delta, 1 + eps), 1 - eps)


def is_after(x: Case, has: Has) -> bool:
    """Returns whether the factors can be, and under the fault are, those of P R."""
    return bool(has("noise_after_down")) and x.delta is not None and x.delta.shape == (len(x.router), len(x.down))


def latent(x: Case, has: Has, r: Tensor) -> Tensor:
    """Returns the input of latent experts [n,l] for the proxies [n,d]."""
    is_square = x.down.shape[0] == x.down.shape[1]
    P: Tensor = x.down.detach() if has("down_detached") else x.down
    times = has("down_gradient_summed") or 1
    v = r if has("down_left_out") and is_square else r @ (P * times - (times - 1) * P.detach()).mT
    v = v * x.delta if is_after(x, has) else v
    if x.latent_norm is not None and not has("latent_norm_left_out"):
        v = x.latent_norm * v / (v.square().mean(-1, keepdim=True) + (x.latent_eps or 0.0)).sqrt()
    return v.detach() if has("proxies_detached") else v


def proxies(x: Case, has: Has) -> Tensor:
    """Returns what the experts read, [n,d] or [n,l]."""
    r = noisy_rows(x, has)
    return r if x.down is None else latent(x, has, r)


def noisy_rows(x: Case, has: Has) -> Tensor:
    R: Tensor = x.router.detach() if has("router_detached") else x.router
    delta = noise_of(x, has)
    if delta is None:
        return R * 1
    if has("delta_left_out"):  # The fault is in the gradient.
        return R + (R * delta - R).detach()
    if has("eps_gradient"):
        eps = paper.eps_of(R)[:, None]
        return R * (1 + eps * torch.where(eps > 0, (delta - 1) / eps, 0.0).detach())
    return R * delta


OF_LATENT = ("noise_after_down", "bound_of_latent", "down_left_out", "latent_norm_left_out")
OF_M = ("merged", "up_for_gate", "noise_left_out", "squared", *OF_LATENT)  # faults that change M


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


# name: n, d, D, alpha, weight, and the factor of the row that expert j reads in the term that is added to random W_g[j]
INPUTS: Dict[str, Sizes] = {
    "some-active": (5, 24, 20, 0.9, 0.6, 0.0),
    "all-active": (6, 17, 10, 0.3, 0.25, 0.0),
    "few-active": (5, 20, 16, 0.8, 2.5, 0.8),
    "alpha-1": (5, 24, 20, 1.0, 1.0, 0.0),
}
LATENT = {"some-active": 16, "all-active": 17, "few-active": 12, "alpha-1": 6}  # widths l of latent experts
LATENT_EPS = 0.05


def draw(g: torch.Generator, l: int, n: int, d: int, D: int, alpha: float, weight: float, coupling: float) -> Case:
    """Returns random inputs. Those of latent experts have a width l above 0."""
    R = torch.randn(n, d, generator=g)
    W = torch.randn(2, n, D, l or d, generator=g) / (l or d) ** 0.5
    P = torch.randn(l, d, generator=g) / d**0.5
    u = torch.nn.functional.normalize(torch.randn(n, D, generator=g), dim=1)
    W[0] += coupling * u[:, :, None] * torch.nn.functional.normalize(R @ P.mT if l else R, dim=1)[:, None, :]
    delta = 1 + paper.eps_of(R)[:, None] * (2 * torch.rand(n, d, generator=g) - 1)
    x = Case(router=R, w_gate=W[0], w_up=W[1], delta=delta, alpha=alpha, coefficient=weight)
    gain = 1 + 0.3 * torch.randn(l, generator=g)
    return x.but(down=P, latent_norm=gain, latent_eps=LATENT_EPS) if l else x


def margin(x: Case) -> float:
    """Returns the distance of the hinge that is nearest to its bound, or 0 if fewer than four are active."""
    M = norms(x, right)
    over = torch.stack((M - x.alpha * M.diagonal()[:, None], M - x.alpha * M.diagonal()))
    over = over[:, ~torch.eye(len(M), dtype=torch.bool)]
    return float(over.abs().min()) if int((over > 0).sum()) >= 4 else 0.0


def latent_margin(x: Case) -> float:
    """Returns the smaller margin with and without a norm, or 0 if no row has a larger bound after P than in R."""
    wider = [(paper.eps_of(latent(one, right, x.router)) / paper.eps_of(x.router)).max() for one in with_norm(x)]
    return min(margin(one) for one in with_norm(x)) if min(wider) > WIDER else 0.0


def with_norm(x: Case) -> Tuple[Case, Case]:
    return x, x.but(latent_norm=None)


def cases(seed: int, n: int = 0) -> Dict[str, Case]:
    """Returns an input of each size, the one of 100 draws with the largest margin."""
    g = generator(seed)
    return {name: max((draw(g, 0, *sizes) for _ in range(100)), key=margin) for name, sizes in INPUTS.items()}


def latent_cases(seed: int, n: int = 0) -> Dict[str, Case]:
    """Returns an input of each size as `cases` does. The inputs all-active have l = d."""
    g = generator(seed)
    return {name: max((draw(g, l, *INPUTS[name]) for _ in range(100)), key=latent_margin) for name, l in LATENT.items()}


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
LATENT_KIND = replace(
    KIND,
    name="erc-latent",
    inputs=(*KIND.inputs, "down", "latent_norm", "latent_eps"),
    cases=latent_cases,
    needs=("router", "w_gate", "down"),
    gradients=("router", "w_gate", "w_up", "down", "latent_norm"),
    order=("router", "w_gate", "down", "delta", "alpha", "coefficient"),
)
