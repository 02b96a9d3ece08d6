#!/usr/bin/env python3
"""Writes reference.safetensors: router rows by Manifold Power Iteration (docs/method.md 2.6), and the gradients of
rows and gates, by PyTorch's autograd in float64.

    make_power.py OUT.safetensors       needs torch and safetensors

Cases: plain; scale, with C' 3; wide, with D above d; zero, in which one row and the gate of another expert are 0. Each
case has

    CASE.scale                  [1] F64: C'
    CASE.R, CASE.Wg             [n,d], [n,D,d] F32
    CASE.drows                  [n,d] F32: the gradient of the rows
    CASE.rows, CASE.dR          [n,d] F64
    CASE.dWg                    [n,D,d] F64
"""

import sys

import torch
from safetensors.torch import save_file

CASES = {"plain": (1, 5, 7, 3), "scale": (3, 5, 7, 3), "wide": (1, 3, 4, 9), "zero": (2, 5, 7, 3)}  # C', n, d, D


def power_rows(R, gate, scale):
    """Returns R' [n,d]. A row G_i of zeros has no direction, and no gradient."""
    G = torch.stack([row @ W.T @ W for row, W in zip(R, gate)])
    length = G.norm(dim=1, keepdim=True)
    zero = length == 0
    return scale / len(R) ** 0.5 * torch.where(zero, 0, G / torch.where(zero, 1, length))


def make(name, scale, n, d, D, seed):
    random = torch.Generator().manual_seed(seed)
    out = {"R": torch.randn(n, d, generator=random), "Wg": torch.randn(n, D, d, generator=random)}
    out["drows"] = torch.randn(n, d, generator=random)
    if name == "zero":
        out["R"][1] = 0
        out["Wg"][3] = 0
    R, gate = (out[key].double().requires_grad_() for key in ("R", "Wg"))
    rows = power_rows(R, gate, scale)
    rows.backward(out["drows"].double())
    # norm() has no gradient at 0: there torch.where hands over NaN times 0
    out |= {"rows": rows.detach(), "dR": R.grad.nan_to_num(), "dWg": gate.grad.nan_to_num()}
    out["scale"] = torch.tensor([scale], dtype=torch.float64)
    return {f"{name}.{key}": value.contiguous() for key, value in out.items()}


def main():
    tensors = {}
    for seed, (name, shape) in enumerate(CASES.items()):
        tensors |= make(name, *shape, seed)
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
