#!/usr/bin/env python3
"""Writes reference.safetensors: the coupling loss with erc.proxy tokens (docs/method.md 3.15), and its gradients, by
PyTorch's autograd in float64. The moments of the tokens, eps and delta are constants.

    make_tokens.py OUT.safetensors       needs torch and safetensors, and tests/golden/latent beside it

The cases are named ACTIVATION[-KIND]: clean has no noise, latent reads W_l R~, zero has a row of R that is the mean of
all rows. n 5, d 7, l 7, D 3; the weight is 1. Each case has

    CASE.R, CASE.delta                      [n,d] F32; delta is drawn within eps, absent without noise
    CASE.mean, CASE.scale                   [d] F32, [1] F64: m and sigma
    CASE.latent                             [l,d] F32: W_l; absent without latent experts
    CASE.Wg, CASE.Wp, CASE.Wo               [n,D,l], [n,D,l], [n,l,D] F32, those that the activation reads
    CASE.alpha                              [1] F32
    CASE.P                                  [n,d] F64
    CASE.loss, CASE.eps, CASE.M             [1], [n], [n,n] F64
    CASE.dR, CASE.dlatent, CASE.dWg, ...    F64, gradients of the loss
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "latent"))
from make_reference import LEAST_GAP, READS, bound, response

n, d, D = 5, 7, 3
CASES = ("gate", "up", "silu", "swiglu", "output", "gate_up", "gate-clean", "gate-latent", "gate-zero")
SHAPES = {"R": (n, d), "latent": (d, d), "Wg": (n, D, d), "Wp": (n, D, d), "Wo": (n, d, D)}


def proxies(R, mean, scale):
    """Returns P. A row of zeros has no direction, and no gradient."""
    Q = R - R.mean(dim=0)
    length = Q.norm(dim=1, keepdim=True)
    zero = length == 0
    return mean + scale * torch.where(zero, 0, Q / torch.where(zero, 1, length))


def make(name, alpha, seed):
    random, (activation, *kind) = torch.Generator().manual_seed(seed), name.split("-")
    used = ["R", *(["latent"] if kind == ["latent"] else []), *READS[activation].split()]
    out = {key: torch.randn(SHAPES[key], generator=random) for key in used}
    if kind == ["zero"]:  # sixteenths, so that the mean is exact
        out["R"] = (out["R"] * 16).round() / 16
        out["R"][0] = out["R"][1:].sum(dim=0) / 4
    leaves = {key: value.double().requires_grad_() for key, value in out.items()}
    out |= {"mean": torch.randn(d, generator=random), "scale": torch.rand(1, generator=random).double() + 1}
    P = proxies(leaves["R"], out["mean"].double(), out["scale"])
    eps = bound(P.detach())
    x = P
    if kind != ["clean"]:
        out["delta"] = (1 + 0.999 * eps[:, None] * (2 * torch.rand(n, d, generator=random) - 1)).float()
        x = P * out["delta"].double()
    M = response(activation, x @ leaves["latent"].T if "latent" in leaves else x, leaves)
    out["alpha"] = torch.tensor([alpha])
    own, other = M.diagonal() * out["alpha"].double(), ~torch.eye(n, dtype=torch.bool)
    above = torch.stack((M - own[:, None], M - own))[:, other]
    gap = above.abs().min() / M.mean()
    loss = above.clamp(min=0).sum() / n**2
    loss.backward()
    out |= {"P": P.detach(), "loss": loss.detach().view(1), "eps": eps, "M": M.detach()}
    out |= {"d" + key: leaf.grad for key, leaf in leaves.items()}
    return gap, {f"{name}.{key}": value.contiguous() for key, value in out.items()}


def main():
    tensors = {}
    for number, name in enumerate(CASES):
        alpha, seed = (1.0, 0.6)[number % 2], 100 * number
        gap, made = make(name, alpha, seed)
        while gap < LEAST_GAP:
            seed += 1
            gap, made = make(name, alpha, seed)
        tensors |= made
        print(name, "alpha", alpha, "seed", seed, "loss", float(made[f"{name}.loss"]))
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
