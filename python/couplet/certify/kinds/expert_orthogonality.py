"""Turns the outputs of a token's experts apart: their projections onto each other."""

from __future__ import annotations

from typing import Dict

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, Kind, generator
from ._balance import NAMES

EPSILON = 1e-6


def pairs(x: Case, has: Has) -> Tensor:
    """[T,K,K]: the squared length of output j's projection onto output k."""
    y: Tensor = x.outputs
    if has("axes_mixed"):
        y = y.transpose(0, 1).reshape(y.shape)
    G = y @ (y.detach() if has("others_detached") else y).transpose(-1, -2)
    square = (y**2).sum(-1)
    size = square + (has("epsilon") or EPSILON)
    if has("not_divided"):
        return G**2
    if has("cosines"):
        return G**2 / (size[..., :, None] * size[..., None, :])
    length = G.abs() * (square.sqrt() / size)[..., None, :]
    return length if has("not_squared") else length**2


def reference(x: Case, has: Has) -> Tensor:
    P = pairs(x, has)
    T, K = P.shape[:2]
    each = P.sum((-1, -2)) if has("self_counted") else P.sum((-1, -2)) - P.diagonal(dim1=-2, dim2=-1).sum(-1)
    total = each.sum() if has("summed") else each.mean()
    return x.times * (total / (K * (K - 1)) if has("over_pairs") else total / K if has("over_k") else total)


def cases(seed: int) -> Dict[str, Case]:
    g = generator(seed)
    return {
        "three": Case(outputs=torch.randn(14, 3, 10, generator=g) + 0.5, coefficient=0.3),
        "two": Case(outputs=torch.randn(9, 2, 6, generator=g) * 2, coefficient=1.4),
    }


COMMON = (
    Fault("self_counted", "an output is projected onto itself too", "leave j = k out"),
    Fault("others_detached", "the gradient flows through one of the two outputs alone", "no detach()"),
    Fault("not_squared", "lengths in place of squared lengths", "square the projections"),
    Fault("summed", "tokens are summed, not averaged", "take the mean over tokens"),
    Fault(
        "axes_mixed",
        "outputs that are sorted by expert are taken for outputs that are sorted by token",
        "put them back into the order of tokens before view(tokens, K, -1)",
        "the authors' code of arXiv 2505.22323: cat of the experts' outputs, then view",
    ),
)
PLACE = (
    {"outputs": ("outputs", "expert_outputs", "y"), "coefficient": NAMES["coefficient"]},
    cases,
    frozenset({"outputs"}),
    ("outputs",),
)
KIND = Kind(
    "expert-orthogonality",
    "mean over tokens of sum_{j != k} |<y_j, y_k> / (<y_k, y_k> + 1e-6) y_k|^2",
    "arXiv 2505.22323, equation 6: projections of pairs, here as squared lengths",
    reference,
    [
        *COMMON,
        Fault("not_divided", "the products are not divided by a length", "divide by <y_k, y_k>"),
        Fault(
            "epsilon",
            "an epsilon in the divisor is as large as the outputs",
            "one far below all squared lengths",
            values=(1e-4, 1e-3, 1e-2, 0.1, 1.0),
        ),
        Fault("cosines", "both outputs are normalised", "divide by <y_k, y_k> alone"),
        Fault("over_pairs", "the sum is divided by K (K - 1)", "sum over the pairs"),
        Fault("over_k", "the sum is divided by K", "sum over the pairs"),
    ],
    *PLACE,
    balance="0 of orthogonal outputs",
    collapse="K (K - 1) |y|^2 of equal outputs",
    range="0 and more",
    scale="grows with K^2 and |y|^2",
)
