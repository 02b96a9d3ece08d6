"""Singular values: the largest of many gates, on their device without a synchronisation, and all of a router, on the
host."""

from __future__ import annotations

import math
from typing import Tuple

import torch
from torch import Tensor

from ..ops import _noise

# Lanczos steps. For spectra that are dense up to their end, as of a random matrix of any size, the relative error of
# the largest eigenvalue is then at most 1.5e-4 (2.5 / STEPS^2), and of its root 7.5e-5. For spectra with a gap it is
# far smaller.
STEPS = 128
ENDED = 1e-5  # a new direction this much shorter than the largest eigenvalue so far is rounding: the iteration ends
SQUARINGS = 18  # squarings of the tridiagonal matrix: relative error log(STEPS) / 2^SQUARINGS = 2e-5


def _times(A: Tensor, v: Tensor) -> Tensor:
    """Returns A [c, r, m] times v [c, m]: [c, r]. On the CPU torch.bmm by one column took 20 times as long as
    torch.mv."""
    if v.device.type == "cpu":
        return torch.stack([one @ x for one, x in zip(A, v)])
    return (A @ v[..., None])[..., 0]


def _lanczos(G: Tensor) -> Tensor:
    """Returns T [c, k, k] in f64, whose largest eigenvalue approximates the largest eigenvalue of G [c, m, m],
    symmetric without negative eigenvalues. Each new vector is made orthogonal twice to all earlier vectors, so that no
    vector is found twice."""
    c, m = G.shape[:2]
    k = min(m, STEPS)
    start = _noise.uniform(0, m, 0, 0, 0, G.device).to(G.dtype) - 0.5
    basis = G.new_zeros(c, k, m)
    basis[:, 0] = start / torch.linalg.vector_norm(start)
    T = torch.zeros(c, k, k, dtype=torch.float64, device=G.device)
    for j in range(k):
        v, before = basis[:, j], basis[:, : j + 1]
        moved = _times(G, v)
        T[:, j, j] = (moved * v).sum(1)
        if j + 1 == k:
            break
        for _ in range(2):
            moved = moved - _times(before.mT, _times(before, moved))
        length = torch.linalg.vector_norm(moved, dim=1)
        goes_on = length > ENDED * T.diagonal(dim1=1, dim2=2).amax(1)
        T[:, j, j + 1] = T[:, j + 1, j] = torch.where(goes_on, length, 0.0)
        basis[:, j + 1] = torch.where(goes_on[:, None], moved / length[:, None], 0.0)
    return T


def _trace(X: Tensor) -> Tensor:
    return X.diagonal(dim1=1, dim2=2).sum(1)


def _largest(T: Tensor) -> Tensor:
    """Returns the largest eigenvalue [c] of T [c, k, k], symmetric without negative eigenvalues: the mean of T over the
    eigenvectors, weighted by their eigenvalue to the 2^SQUARINGS."""
    power, least = T, torch.finfo(T.dtype).tiny  # 0 for a matrix of zeros
    for _ in range(SQUARINGS):
        power = power / _trace(power).clamp(min=least)[:, None, None]
        power = power @ power
    return _trace(power @ T) / _trace(power).clamp(min=least)


def norms(W: Tensor) -> Tensor:
    """Returns |W_j|_2 [c] of W [c, D, d] in f32 or wider, with a relative error of at most 1e-4.

    Uses Lanczos iteration on W W^T or W^T W, whichever is smaller: torch.linalg.svdvals computes all singular values,
    and waits for the device on a GPU."""
    G = W @ W.mT if W.shape[1] <= W.shape[2] else W.mT @ W
    return _largest(_lanczos(G)).clamp(min=0).sqrt().to(W.dtype)


def condition_and_rank(gram: Tensor) -> Tuple[float, float]:
    """Returns two figures of a matrix R, from its gram R R^T or R^T R [m, m], f64 on the CPU. Condition: the largest of
    its m singular values over the smallest, infinite if rounding hides the smallest. Effective rank: exp of the entropy
    of the singular values over their sum (Roy and Vetterli, 2007), 0 if R is 0."""
    if not gram.isfinite().all():
        return math.nan, math.nan
    values = torch.linalg.eigvalsh(gram)
    most, least = values[-1].item(), values[0].item()
    hidden = least <= len(gram) * torch.finfo(gram.dtype).eps * most
    sizes = values.clamp(min=0).sqrt()
    if not sizes.any():
        return math.inf, 0.0
    shares = sizes / sizes.sum()
    entropy: Tensor = -torch.special.xlogy(shares, shares).sum()
    return math.inf if hidden else math.sqrt(most / least), math.exp(entropy.item())
