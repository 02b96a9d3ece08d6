"""Losses of the outputs of a token's experts, and the scores of Autonomy-of-Experts."""

from __future__ import annotations

from typing import Dict, List

import torch
from torch import Tensor

from .._kind import Case, Has, Kind, Outputs, generator

EPSILON = 1e-6


# ---- orthogonal outputs ----


def outputs_of(x: Case, has: Has) -> Tensor:
    y: Tensor = x.outputs
    return y.transpose(0, 1).reshape(y.shape) if has("axes_mixed") else y


def projections(x: Case, has: Has) -> Tensor:
    """Returns the squared length of output j's projection onto output k, [T,K,K]."""
    y = outputs_of(x, has)
    G = y @ (y.detach() if has("others_detached") else y).transpose(-1, -2)
    square = (y**2).sum(-1)
    size = square + (has("epsilon") or EPSILON)
    if has("not_divided"):
        return G**2
    if has("cosines"):
        return G**2 / (size[..., :, None] * size[..., None, :])
    length = G.abs() * (square.sqrt() / size)[..., None, :]
    return length if has("not_squared") else length**2


def of_pairs(x: Case, has: Has) -> Tensor:
    P = projections(x, has)
    K = P.shape[1]
    each = P.sum((-1, -2)) if has("self_counted") else P.sum((-1, -2)) - P.diagonal(dim1=-2, dim2=-1).sum(-1)
    total = each.sum() if has("summed") else each.mean()
    return x.times * (total / (K * (K - 1)) if has("over_pairs") else total / K if has("over_k") else total)


def of_spans(x: Case, has: Has) -> Tensor:
    """Returns the loss. Gram-Schmidt makes a basis of other outputs, in their order, for squared projections."""
    y = outputs_of(x, has)
    T, K = y.shape[:2]
    total = torch.zeros((), dtype=y.dtype)
    for j in range(K):
        basis: List[Tensor] = []
        for k in (k for k in range(K) if k != j or has("self_counted")):
            v = y[:, k].detach() if has("others_detached") else y[:, k]
            for u in () if has("no_gram_schmidt") else basis:
                v = v - (u * v).sum(-1, keepdim=True) * u
            basis.append(v / (v.norm(dim=-1, keepdim=True) + EPSILON))
        dots = torch.stack([(u * y[:, j]).sum(-1) for u in basis])
        total = total + (dots.abs() if has("not_squared") else dots**2).sum()
    return x.times * (total if has("summed") else total / T if has("k_left_out") else total / (T * K))


def cases(seed: int, n: int = 0) -> Dict[str, Case]:
    g = generator(seed)
    return {
        "three": Case(outputs=torch.randn(14, 3, 10, generator=g) + 0.5, coefficient=0.3),
        "two": Case(outputs=torch.randn(9, 2, 6, generator=g) * 2, coefficient=1.4),
    }


# ---- an expert's own response to a token as its logit ----


def aoe(x: Case, has: Has) -> Outputs:
    """Returns scores [T,n]. The gradients are those of sum(scores * x.d_scores)."""
    A: Tensor = torch.einsum("td,nrd->tnr", x.tokens.detach() if has("tokens_detached") else x.tokens, x.W_down)
    A = torch.nn.functional.silu(A) if has("silu") else A
    size = A.abs().sum(-1) if has("sum_of_sizes") else A.amax(-1) if has("largest") else A.norm(dim=-1)
    size = size**2 if has("squared") else size / A.shape[-1] ** 0.5 if has("over_width") else size
    size = size.detach() if has("norm_detached") else size
    if has("no_softmax") or has("over_sum"):
        return {"scores": size / (size.sum(-1, keepdim=True) if has("over_sum") else 1)}
    return {"scores": size.softmax(0 if has("softmax_over_tokens") else -1)}


def aoe_cases(seed: int, n: int = 0) -> Dict[str, Case]:
    g = generator(seed)

    def case(T: int, n: int, d: int, r: int) -> Case:
        W = torch.randn(n, r, d, generator=g) / d**0.5
        return Case(tokens=torch.randn(T, d, generator=g), W_down=W, d_scores=torch.randn(T, n, generator=g))

    return {"some": case(12, 6, 16, 5), "wide": case(9, 3, 10, 12)}


_PLACE = (("outputs", "coefficient"), cases, ("outputs",), ("outputs",))
KINDS = (Kind("expert-orthogonality", of_pairs, *_PLACE), Kind("expert-orthogonality-span", of_spans, *_PLACE))
_AOE = ("tokens", "W_down")
AOE = Kind("aoe-scores", aoe, _AOE, aoe_cases, _AOE, _AOE, ("scores",))
