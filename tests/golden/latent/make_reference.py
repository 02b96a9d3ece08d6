#!/usr/bin/env python3
"""Writes reference.safetensors: the coupling loss of latent experts and its gradients, by PyTorch's autograd in
float64. eps and delta are constants, as docs/method.md 3.1 has it.

    make_reference.py OUT.safetensors       needs torch and safetensors

The experts read V = W_l R~ of width l, for the proxies R~ of width d. The cases are named ACTIVATION[-norm][-centred].
With norm, V = g v / sqrt(mean(v^2) + eps), v = W_l R~. With centred, R~ are the rows less their mean, times delta. The
activation gate_up is the output of gate and up projection together. n 5, d 7, l 4, D 3; the weight is 1. Each case has

    CASE.R, CASE.delta, CASE.latent         [n,d], [n,d], [l,d] F32; latent is W_l, delta is drawn within eps
    CASE.latent_norm, CASE.latent_eps       [l], [1] F32: g and its eps; absent without norm
    CASE.Wg, CASE.Wp, CASE.Wo               [n,D,l], [n,D,l], [n,l,D] F32, those that the activation reads
    CASE.alpha                              [1] F32
    CASE.loss, CASE.eps, CASE.M             [1], [n], [n,n] F64
    CASE.dR, CASE.dlatent, CASE.dWg, ...    F64, gradients of the loss: of R through the centred rows
"""

import itertools
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

n, d, l, D = 5, 7, 4, 3
LATENT_EPS = 0.05
LEAST_GAP = 3e-3  # distance from a hinge, relative to the mean of M: F32 must not flip a hinge
READS = {"gate": "Wg", "up": "Wp", "silu": "Wg", "swiglu": "Wg Wp", "output": "Wg Wp Wo", "gate_up": "Wg Wp"}
SHAPES = {"R": (n, d), "latent": (l, d), "latent_norm": (l,), "Wg": (n, D, l), "Wp": (n, D, l), "Wo": (n, l, D)}


def response(activation, x, w):
    """Returns [n,n]: the norm of the response of expert j to row i."""
    gate, up = (torch.einsum("ik,jck->ijc", x, w[key]) if key in w else None for key in ("Wg", "Wp"))
    out = {
        "gate": lambda: gate,
        "up": lambda: up,
        "silu": lambda: F.silu(gate),
        "swiglu": lambda: F.silu(gate) * up,
        "output": lambda: torch.einsum("ijc,jkc->ijk", F.silu(gate) * up, w["Wo"]),
        "gate_up": lambda: torch.cat((gate, up), dim=-1),
    }[activation]()
    return out.norm(dim=-1)


def bound(rows):
    """Returns eps of docs/method.md 3.1."""
    apart = (rows[:, None] - rows[None]).norm(dim=-1).fill_diagonal_(torch.inf)
    return apart.min(dim=1).values / (2 * rows.norm(dim=-1))


def make(name, alpha, seed):
    random, (activation, *kinds) = torch.Generator().manual_seed(seed), name.split("-")
    used = ["R", "latent", *(["latent_norm"] if "norm" in kinds else []), *READS[activation].split()]
    out = {key: torch.randn(SHAPES[key], generator=random) for key in used}
    leaves = {key: value.double().requires_grad_() for key, value in out.items()}
    rows = leaves["R"] - leaves["R"].mean(dim=0) if "centred" in kinds else leaves["R"]
    eps = bound(rows.detach())
    out["delta"] = (1 + 0.999 * eps[:, None] * (2 * torch.rand(n, d, generator=random) - 1)).float()
    V = (rows * out["delta"].double()) @ leaves["latent"].T
    if "norm" in kinds:
        out["latent_eps"] = torch.tensor([LATENT_EPS])
        mean = V.square().mean(dim=1, keepdim=True)
        V = leaves["latent_norm"] * V / (mean + out["latent_eps"].double()).sqrt()
    M = response(activation, V, leaves)
    out["alpha"] = torch.tensor([alpha])
    own, other = M.diagonal() * out["alpha"].double(), ~torch.eye(n, dtype=torch.bool)
    above = torch.stack((M - own[:, None], M - own))[:, other]
    gap = above.abs().min() / M.mean()
    loss = above.clamp(min=0).sum() / n**2
    loss.backward()
    out |= {"loss": loss.detach().view(1), "eps": eps, "M": M.detach()}
    out |= {"d" + key: leaf.grad for key, leaf in leaves.items()}
    return gap, {f"{name}.{key}": value.contiguous() for key, value in out.items()}


def main():
    tensors = {}
    for number, parts in enumerate(itertools.product(READS, ("", "-norm"), ("", "-centred"))):
        name, alpha = "".join(parts), (1.0, 0.6)[(number + number // 2 + number // 4) % 2]
        seed = 100 * number
        gap, made = make(name, alpha, seed)
        while gap < LEAST_GAP:
            seed += 1
            gap, made = make(name, alpha, seed)
        tensors |= made
        print(name, "alpha", alpha, "seed", seed, "loss", float(made[f"{name}.loss"]))
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
