#!/usr/bin/env python3
"""Writes reference.safetensors: the coupling loss with erc.proxy centred, and its gradients, by PyTorch's
autograd in float64. eps and delta are constants, as docs/method.md 3.1 has it.

Needs torch and safetensors. Usage: make_reference.py OUT.safetensors

Of each case, named ACTIVATION or ACTIVATION-clean (without noise):

    CASE.R                          [n,d] F32, rows with a large common part
    CASE.delta                      [n,d] F32, drawn within eps; absent without noise
    CASE.Wg, CASE.Wp, CASE.Wo       [n,D,d], [n,D,d], [n,d,D] F32, those that the activation reads
    CASE.alpha                      [1] F32
    CASE.loss, CASE.eps, CASE.M     [1], [n], [n,n] F32
    CASE.dR, CASE.dWg, ...          F32, gradients of the loss: of R through the centred rows
"""

import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

n, d, D = 7, 12, 5
LEAST_GAP = 1e-3  # distance from a hinge, relative to its bound: F32 must not flip a hinge
CASES = {"gate": 1.0, "gate-clean": 0.7, "up": 0.9, "silu": 0.8, "swiglu": 1.0, "output": 0.8}
READS = {"gate": "Wg", "up": "Wp", "silu": "Wg", "swiglu": "Wg Wp", "output": "Wg Wp Wo"}


def response(activation, x, w):
    """Returns [n,n]: the norm of the response of expert j to row i."""
    gate = torch.einsum("ik,jck->ijc", x, w["Wg"]) if "Wg" in w else None
    up = torch.einsum("ik,jck->ijc", x, w["Wp"]) if "Wp" in w else None
    hidden = {
        "gate": lambda: gate,
        "up": lambda: up,
        "silu": lambda: F.silu(gate),
        "swiglu": lambda: F.silu(gate) * up,
        "output": lambda: F.silu(gate) * up,
    }[activation]()
    if activation == "output":
        hidden = torch.einsum("ijc,jkc->ijk", hidden, w["Wo"])
    return hidden.norm(dim=-1)


def bound(rows):
    """Returns eps of docs/method.md 3.1."""
    apart = (rows[:, None] - rows[None]).norm(dim=-1) + torch.eye(n) * 1e30
    return apart.min(dim=1).values / (2 * rows.norm(dim=-1))


def hinges(M, alpha):
    own = M.diagonal()
    off = 1 - torch.eye(n)
    return (M - alpha * own[:, None]) * off, (M - alpha * own[None, :]) * off


def make(name, seed):
    random, activation = torch.Generator().manual_seed(seed), name.split("-")[0]
    alpha = CASES[name]
    out = {"R": torch.randn(n, d, generator=random, dtype=torch.float64) + 2 * torch.randn(d, generator=random)}
    for key, shape in (("Wg", (n, D, d)), ("Wp", (n, D, d)), ("Wo", (n, d, D))):
        if key in READS[activation].split():
            out[key] = 0.5 * torch.randn(shape, generator=random, dtype=torch.float64)
    out = {key: value.float() for key, value in out.items()}
    leaves = {key: value.double().requires_grad_() for key, value in out.items()}
    rows = leaves["R"] - leaves["R"].mean(dim=0, keepdim=True)
    eps = bound(rows.detach())
    delta = torch.ones(n, d, dtype=torch.float64)
    if not name.endswith("clean"):
        out["delta"] = (1 + eps[:, None] * (2 * torch.rand(n, d, generator=random) - 1)).float()
        delta = out["delta"].double()
    M = response(activation, rows * delta, leaves)
    by_row, by_column = hinges(M, alpha)
    gap = torch.cat([by_row[by_row != 0], by_column[by_column != 0]]).abs().min() / M.mean()
    loss = (by_row.clamp(min=0) + by_column.clamp(min=0)).sum() / n**2
    loss.backward()
    out |= {
        "alpha": torch.tensor([alpha]),
        "loss": loss.detach().float().view(1),
        "eps": eps.float(),
        "M": M.detach().float(),
    }
    out |= {"d" + key: leaf.grad.float() for key, leaf in leaves.items()}
    return gap, {f"{name}.{key}": value.contiguous() for key, value in out.items()}


def main():
    tensors = {}
    for number, name in enumerate(CASES):
        seed = 100 * number
        gap, made = make(name, seed)
        while gap < LEAST_GAP:
            seed += 1
            gap, made = make(name, seed)
        tensors |= made
        print(name, "seed", seed, "loss", float(made[f"{name}.loss"]))
    save_file(tensors, sys.argv[1])


main()
