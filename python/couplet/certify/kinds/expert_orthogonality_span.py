"""Turns the outputs of a token's experts apart: their projections onto the span of the others."""

from __future__ import annotations

from typing import List

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, Kind
from .expert_orthogonality import COMMON, EPSILON, PLACE


def reference(x: Case, has: Has) -> Tensor:
    """Gram-Schmidt over the other outputs, in their order; the projection's squared length is a sum over that basis."""
    y = x.outputs
    if has("axes_mixed"):
        y = y.transpose(0, 1).reshape(y.shape)
    T, K = y.shape[:2]
    total = torch.zeros((), dtype=y.dtype)
    for j in range(K):
        basis: List[Tensor] = []
        for k in range(K):
            if k == j and not has("self_counted"):
                continue
            v = y[:, k].detach() if has("others_detached") else y[:, k]
            for u in () if has("no_gram_schmidt") else basis:
                v = v - (u * v).sum(-1, keepdim=True) * u
            basis.append(v / (v.norm(dim=-1, keepdim=True) + EPSILON))
        dots = torch.stack([(u * y[:, j]).sum(-1) for u in basis])
        total = total + (dots.abs() if has("not_squared") else dots**2).sum()
    return x.times * (total if has("summed") else total / T if has("k_left_out") else total / (T * K))


KIND = Kind(
    "expert-orthogonality-span",
    "mean over tokens and their K outputs of |projection of y_j onto the span of the others|^2",
    "the authors' code of arXiv 2505.22323; its issue 3 says that it is not equation 6",
    reference,
    [
        *COMMON,
        Fault(
            "no_gram_schmidt",
            "the others are normalised, but not made orthogonal to each other",
            "subtract their projections onto the basis so far",
        ),
        Fault("k_left_out", "the sum is divided by the tokens alone", "divide by K too"),
    ],
    *PLACE,
    balance="0 of orthogonal outputs",
    collapse="|y|^2 of equal outputs",
    range="0 and more",
    scale="grows with |y|^2",
)
