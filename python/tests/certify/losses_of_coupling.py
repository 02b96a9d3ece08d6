"""Coupling losses as users write them: right ones, and one with each fault of docs/certify.md under its key."""

import couplet
import torch
from couplet.reference import eps_of, erc_loss


def norms(r, W):
    """Returns the norms [n, n] of gates [n, D, d] times proxies [n, d]."""
    return torch.linalg.vector_norm(torch.einsum("id,jDd->ijD", r, W), dim=-1)


def mean_hinge(M, alpha, weight, row=True, column=True, sign=1, diagonal=False, detach=False):
    own = alpha * (torch.diagonal(M).detach() if detach else torch.diagonal(M))
    hinges = torch.zeros_like(M)
    if row:
        hinges = hinges + (sign * (M - own[:, None])).clamp(min=0)
    if column:
        hinges = hinges + (sign * (M - own[None, :])).clamp(min=0)
    if not diagonal:
        hinges = hinges.masked_fill(torch.eye(len(M), dtype=torch.bool), 0)
    return weight * hinges.sum() / len(M) ** 2


# ---- right losses ----


def right(router, w_gate, delta, alpha, weight, **fault):
    return mean_hinge(norms(router * delta, w_gate), alpha, weight, **fault)


def right_with_M(router, w_gate, delta, alpha, weight):
    M = norms(router * delta, w_gate)
    return {"loss": mean_hinge(M, alpha, weight), "M": M}


def right_expert_by_expert(router, w_gate, delta, alpha, weight):
    M = torch.stack([torch.nn.functional.linear(router * delta, w).norm(dim=-1) for w in w_gate], 1)
    own, others = alpha * M.diagonal(), 1 - torch.eye(len(M), dtype=M.dtype)
    return weight * ((torch.relu(M - own[:, None]) + torch.relu(M - own)) * others).mean()


def right_with_its_own_noise(router, w_gate, alpha, weight):
    with torch.no_grad():
        delta = _noise_of(router)
    return {"loss": right(router, w_gate, delta, alpha, weight), "delta": delta}


def ours(router, w_gate, delta, alpha, weight):
    return couplet.erc_loss(router, w_gate, delta=delta, alpha=alpha, weight=weight)


def fused(R, gate_up_proj, delta, alpha, weight):
    return couplet.erc_loss(R, gate_up_proj, gate_half="first", delta=delta, alpha=alpha, weight=weight)


def papers(r, gate, noise, a, w):  # all names are unknown, so arguments are passed by position
    return erc_loss(r, gate, alpha=a, weight=w, delta=noise)


def by_position(router, w_gate, delta=None, eps=1e-3, alpha=1.0, weight=1.0, /):
    return erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)


RIGHT = (right, right_with_M, right_expert_by_expert, right_with_its_own_noise, ours, fused, papers, by_position)


# ---- right losses that leave an input to the caller ----


def without_weight(router, w_gate, delta, alpha):
    return erc_loss(router, w_gate, alpha=alpha, weight=1.0, delta=delta)


def without_both(router, w_gate, delta):
    return erc_loss(router, w_gate, alpha=0.6, weight=1.0, delta=delta)


class Module(torch.nn.Module):
    def forward(self, w_gate, router, delta, alpha, weight):
        return erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)


module = Module()


def draws_and_keeps(router, w_gate, alpha, weight):
    """Draws new noise in each call, and does not return it."""
    delta = 1 + eps_of(router.detach())[:, None] * (2 * torch.rand_like(router) - 1)
    return erc_loss(router, w_gate, alpha=alpha, weight=weight, delta=delta)


# ---- faults ----


class DeltaLeftOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, router, delta):
        return router * delta

    @staticmethod
    def backward(ctx, d_proxy):
        return d_proxy, None


def _noise_of(router):
    R = router.float()
    apart = torch.cdist(R, R, compute_mode="donot_use_mm_for_euclid_dist")
    eps = (apart + torch.diag(torch.full((len(R),), 1e9))).min(1).values / (2 * R.norm(dim=1))
    u = torch.rand(R.shape, generator=torch.Generator().manual_seed(0))
    return (1 + eps[:, None] * (2 * u - 1)).to(router.dtype)


def eps_gradient(router, w_gate, alpha, weight):
    delta = _noise_of(router)
    return {"loss": right(router, w_gate, delta, alpha, weight), "delta": delta}


def experts_under_no_grad(router, w_gate, delta, alpha, weight):
    with torch.no_grad():
        M = norms(router * delta, w_gate)
    return mean_hinge(M, alpha, weight)


def merged(router, w_gate_up, delta, alpha, weight):
    return right(router, w_gate_up, delta, alpha, weight)


def up_for_gate(router, w_gate_up, delta, alpha, weight):
    return right(router, w_gate_up.chunk(2, 1)[1], delta, alpha, weight)


def transposed(router, w_gate, delta, alpha, weight):
    M = norms(router * delta, w_gate)
    return {"loss": mean_hinge(M, alpha, weight), "M": M.T}


def _of(change):
    return lambda router, w_gate, delta, alpha, weight: change(router, w_gate, delta, alpha, weight)


FAULTS = {
    "merged": merged,
    "up_for_gate": up_for_gate,
    "transposed": transposed,
    "eps_gradient": eps_gradient,
    "detached": experts_under_no_grad,
    "noise_left_out": _of(lambda r, w, e, a, c: right(r, w, torch.ones_like(e), a, c)),
    "squared": _of(lambda r, w, e, a, c: mean_hinge(norms(r * e, w) ** 2, a, c)),
    "row_missing": _of(lambda *t: right(*t, row=False)),
    "column_missing": _of(lambda *t: right(*t, column=False)),
    "hinge_sign": _of(lambda *t: right(*t, sign=-1)),
    "alpha_ignored": _of(lambda r, w, e, a, c: right(r, w, e, 1, c)),
    "diagonal_kept": _of(lambda *t: right(*t, diagonal=True)),
    "diagonal_detached": _of(lambda *t: right(*t, detach=True)),
    "loss_sign": _of(lambda *t: -right(*t)),
    "pairs_mean": _of(lambda r, *t: right(r, *t) * len(r) / (len(r) - 1)),
    "rows_mean": _of(lambda r, *t: right(r, *t) * len(r)),
    "no_mean": _of(lambda r, *t: right(r, *t) * len(r) ** 2),
    "weight_left_out": _of(lambda r, w, e, a, c: right(r, w, e, a, 1)),
    "weight_twice": _of(lambda r, w, e, a, c: right(r, w, e, a, c * c)),
    "router_detached": _of(lambda r, *t: right(r.detach(), *t)),
    "experts_detached": _of(lambda r, w, *t: right(r, w.detach(), *t)),
    "delta_left_out": _of(lambda r, w, e, a, c: mean_hinge(norms(DeltaLeftOut.apply(r, e), w), a, c)),
    "factor": _of(lambda *t: right(*t) * 3),
}


# ---- latent experts ----


def project(r, down, latent_norm=None, latent_eps=0.0):
    """Returns the input of latent experts [n, l] for rows r [n, d]."""
    v = r @ down.mT
    return v if latent_norm is None else latent_norm * v * torch.rsqrt(v.square().mean(-1, keepdim=True) + latent_eps)


def of_latent(router, w_gate, down, delta, alpha, weight, **norm):
    return mean_hinge(norms(project(router * delta, down, **norm), w_gate), alpha, weight)


def latent(router, w_gate, down, delta, alpha, weight):
    return of_latent(router, w_gate, down, delta, alpha, weight)


def latent_with_norm(router, w_gate, down, delta, alpha, weight, latent_norm, latent_eps):
    return of_latent(router, w_gate, down, delta, alpha, weight, latent_norm=latent_norm, latent_eps=latent_eps)


def latent_with_its_own_noise(router, w_gate, fc1_latent_proj, alpha, weight):
    delta = _noise_of(router.detach())
    return {"loss": latent(router, w_gate, fc1_latent_proj, delta, alpha, weight), "delta": delta}


def our_latent(router, gate_up_proj, P, delta, alpha, weight, norm, eps):
    given = {"delta": delta, "alpha": alpha, "weight": weight, "down": P, "latent_norm": norm, "latent_eps": eps}
    return couplet.erc_loss(router, gate_up_proj, gate_half="first", **given)


LATENT_RIGHT = (latent, latent_with_norm, latent_with_its_own_noise, our_latent)


def _latent_of(change):
    return lambda router, w_gate, down, delta, alpha, weight: change(router, w_gate, down, delta, alpha, weight)


class Summed(torch.autograd.Function):
    """Adds the gradient up over four ranks that each have the whole of it."""

    @staticmethod
    def forward(ctx, down):
        return down.clone()

    @staticmethod
    def backward(ctx, d_down):
        return 4 * d_down


def bound_of_latent(router, w_gate, down, alpha, weight):
    apart = eps_of(router.detach() @ down.detach().mT)[:, None]
    delta = 1 + apart * (2 * torch.rand(router.shape, generator=torch.Generator().manual_seed(0)).to(router) - 1)
    return {"loss": latent(router, w_gate, down, delta, alpha, weight), "delta": delta}


def noise_after_down(router, w_gate, down, alpha, weight):
    delta = _noise_of((router @ down.mT).detach())
    return {"loss": mean_hinge(norms((router @ down.mT) * delta, w_gate), alpha, weight), "delta": delta}


def proxies_under_no_grad(router, w_gate, down, delta, alpha, weight):
    with torch.no_grad():
        v = project(router * delta, down)
    return mean_hinge(norms(v, w_gate), alpha, weight)


def latent_norm_left_out(router, w_gate, down, delta, alpha, weight, latent_norm, latent_eps):
    return latent(router, w_gate, down, delta, alpha, weight)


LATENT_FAULTS = {
    "down_detached": _latent_of(lambda r, w, p, *t: latent(r, w, p.detach(), *t)),
    "down_gradient_summed": _latent_of(lambda r, w, p, *t: latent(r, w, Summed.apply(p), *t)),
    "bound_of_latent": bound_of_latent,
    "noise_after_down": noise_after_down,
    "proxies_detached": proxies_under_no_grad,
    "latent_norm_left_out": latent_norm_left_out,
    "router_detached": _latent_of(lambda r, *t: latent(r.detach(), *t)),
    "noise_left_out": _latent_of(lambda r, w, p, e, a, c: latent(r, w, p, torch.ones_like(e), a, c)),
    "experts_detached": _latent_of(lambda r, w, *t: latent(r, w.detach(), *t)),
    "loss_sign": _latent_of(lambda *t: -latent(*t)),
    "factor": _latent_of(lambda *t: 3 * latent(*t)),
}
