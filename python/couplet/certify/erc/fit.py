"""Hinges at their bound: which share of their gradient the implementation let pass.

The distance of the gradients from the dump's is a quadratic in the shares. It is made small within [0,1] by a Newton
step in those that are free to move, cut to the bounds, again and again. Both gradients count, each over its own norm."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import Tensor

from .hypothesis import Hypothesis

STEPS, STILL = 50, 1e-7  # of a share, in a step
RIDGE = 1e-12  # of the largest curve: shares that cannot be told apart move alike


def _weights(h: Hypothesis) -> Tuple[float, float]:
    """One over the squares of the dump's gradients, dW and dR; 0: that one is not looked at. The dR of a gradient
    through eps mixes rows: it is left out."""
    square = float(h.dump.given_dR.square().sum())
    by_w = 1 / h.t.got_square if "experts_detached" not in h.faults and h.t.got_square > 0 else 0.0
    by_r = 1 / square if square > 0 and not h.faults & {"router_detached", "eps_gradient"} else 0.0
    return by_w, by_r


def _quadratic(h: Hypothesis) -> Tuple[Tensor, Tensor]:
    """Half the second derivatives [h,h] of the distance by the shares, and half the first [h]."""
    n, hinges, (by_w, by_r) = h.dump.n, h.hinges, _weights(h)
    at, diagonal = hinges.j * n + hinges.i, hinges.k * (n + 1)
    points, where = torch.unique(torch.cat((at, diagonal)), return_inverse=True)  # of the n^2 numbers c
    j, i = points // n, points % n
    per_share = torch.zeros(len(at), len(points), dtype=torch.float64)
    rows = torch.arange(len(at))
    slope = h.terms.slope.flatten()
    per_share[rows, where[: len(at)]] += hinges.size * slope[at]
    per_share[rows, where[len(at) :]] += hinges.diagonal * slope[diagonal]
    V = h.t.V.view(n * n, -1)[points]
    if h.delta is not None:
        V = V * h.delta[i]
    rest = h.dR() - h.dump.given_dR
    first = by_w * ((h.t.gram @ h.c[:, :, None])[:, :, 0] - h.t.got).flatten()[points] + by_r * (V * rest[i]).sum(1)
    second = torch.where(j[:, None] == j, by_w * h.t.gram.view(n * n, n)[points][:, i], 0.0)
    if by_r:
        second += torch.where(i[:, None] == i, by_r * (V @ V.T), 0.0)
    return per_share @ (second @ per_share.T), per_share @ first


def fit(h: Hypothesis) -> Tensor:
    """Moves the shares to where the gradients of c come nearest to the dump's. Returns the curve of each [h]; 0: it does
    not show."""
    hinges = h.hinges
    if not len(hinges.i):
        return torch.zeros(0, dtype=torch.float64)
    second, first = _quadratic(h)
    curve, share, gradient = second.diagonal(), hinges.share.clone(), first
    for _ in range(STEPS):
        free = (curve > 0) & ~((share <= 0) & (gradient >= 0) | (share >= 1) & (gradient <= 0))
        if not free.any():
            break
        step = torch.zeros_like(share)
        part = second[free][:, free] + torch.eye(int(free.sum()), dtype=torch.float64) * (RIDGE * float(curve.max()))
        step[free] = -torch.linalg.solve(part, gradient[free])
        moved = _cut(share, step, gradient, second)
        gradient = gradient + second @ (moved - share)
        most, share = float((moved - share).abs().max()), moved
        if most < STILL:
            break
    by = share - hinges.share
    slope, c = h.terms.slope, h.c.clone()
    c.index_put_((hinges.j, hinges.i), by * hinges.size * slope[hinges.j, hinges.i], accumulate=True)
    c.index_put_((hinges.k, hinges.k), by * hinges.diagonal * slope[hinges.k, hinges.k], accumulate=True)
    h.c, hinges.share = c, share
    return curve


def _cut(share: Tensor, step: Tensor, gradient: Tensor, second: Tensor) -> Tensor:
    """The longest of steps, each half as long as the one before and cut to the bounds, that comes nearer."""
    length = 1.0
    while length > 1e-6:
        moved = (share + length * step).clamp(0, 1)
        by = moved - share
        if float(gradient @ by + by @ second @ by / 2) < 0:
            return moved
        length /= 2
    return share
