"""Coupling losses as other people write them: right ones, and some with a fault."""
import torch

import couplet


def ours(router, w_gate, delta, alpha, weight):
    return couplet.erc_loss(router, w_gate, delta=delta, alpha=alpha, weight=weight)


def papers(r, gate, noise, a, w):  # no name that is known: by position
    return couplet.reference.erc_loss(r, gate, a, w, noise)


def fused(R, gate_up_proj, delta, alpha, weight):
    return couplet.erc_loss(R, gate_up_proj, gate_half="first", delta=delta, alpha=alpha, weight=weight)


def draws_itself(router, w_gate, alpha, weight):
    eps = couplet.reference.eps_of(router.detach())[:, None]
    delta = 1 + eps * (2 * torch.rand_like(router) - 1)
    return {"loss": couplet.reference.erc_loss(router, w_gate, alpha, weight, delta), "delta": delta}


def merged(router, w_gate_up, delta, alpha, weight):
    return couplet.reference.erc_loss(router, w_gate_up, alpha, weight, delta)


def detached(router, w_gate, delta, alpha, weight):
    return couplet.reference.erc_loss(router.detach(), w_gate, alpha, weight, delta)


def pairs_mean(router, w_gate, delta, alpha, weight):
    n = len(router)
    return couplet.reference.erc_loss(router, w_gate, alpha, weight, delta) * n / (n - 1)


def through_eps(router, w_gate, alpha, weight):
    eps = couplet.reference.eps_of(router)[:, None]
    delta = 1 + eps * (2 * torch.rand_like(router) - 1)
    return {"loss": couplet.reference.erc_loss(router, w_gate, alpha, weight, delta), "delta": delta}


def under_no_grad(router, w_gate, delta, alpha, weight):
    with torch.no_grad():
        return couplet.reference.erc_loss(router, w_gate, alpha, weight, delta)
