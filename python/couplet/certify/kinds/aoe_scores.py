"""The scores of Autonomy-of-Experts: an expert's own response to a token is its logit."""

from __future__ import annotations

from typing import Dict

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, Kind, Outputs, generator


def reference(x: Case, has: Has) -> Outputs:
    """scores [T,n]; the gradients are those of sum(scores * x.d_scores)."""
    A: Tensor = torch.einsum("td,nrd->tnr", x.tokens.detach() if has("tokens_detached") else x.tokens, x.W_down)
    if has("silu"):
        A = torch.nn.functional.silu(A)
    size = A.abs().sum(-1) if has("sum_of_sizes") else A.amax(-1) if has("largest") else A.norm(dim=-1)
    size = size**2 if has("squared") else size
    size = size / A.shape[-1] ** 0.5 if has("over_width") else size
    size = size.detach() if has("norm_detached") else size
    if has("no_softmax"):
        return {"scores": size}
    if has("over_sum"):
        return {"scores": size / size.sum(-1, keepdim=True)}
    return {"scores": size.softmax(0 if has("softmax_over_tokens") else -1)}


def cases(seed: int) -> Dict[str, Case]:
    g = generator(seed)

    def case(T: int, n: int, d: int, r: int) -> Case:
        return Case(
            tokens=torch.randn(T, d, generator=g),
            W_down=torch.randn(n, r, d, generator=g) / d**0.5,
            d_scores=torch.randn(T, n, generator=g),
        )

    return {"some": case(12, 6, 16, 5), "wide": case(9, 3, 10, 12)}


FAULTS = (
    Fault("squared", "the norm is squared", "torch.linalg.vector_norm(x @ W_down.mT, dim=-1)"),
    Fault("sum_of_sizes", "a sum of absolute values in place of the norm", "torch.linalg.vector_norm, ord 2"),
    Fault("largest", "the largest response in place of the norm", "torch.linalg.vector_norm, ord 2"),
    Fault("over_width", "the norm is divided by the root of the width r", "leave the norm as it is"),
    Fault("silu", "the norm is taken after the activation", "take it of x W_down, before anything else"),
    Fault("no_softmax", "scores are the norms: the softmax over experts is missing", "norms.softmax(-1)"),
    Fault("over_sum", "norms are divided by their sum: the softmax is missing", "norms.softmax(-1)"),
    Fault("softmax_over_tokens", "the softmax runs over tokens", "softmax(dim=-1), over experts"),
    Fault("tokens_detached", "the tokens get no gradient", "no detach() on them"),
    Fault("norm_detached", "no gradient flows through the norms", "no detach(): there is no router that could learn"),
)
KIND = Kind(
    "aoe-scores",
    "softmax over experts of |x W_down^i|",
    "Autonomy-of-Experts (arXiv 2501.13074)",
    reference,
    FAULTS,
    {"tokens": ("tokens", "x", "hidden_states"), "W_down": ("W_down", "w_down", "down", "W_g_down")},
    cases,
    frozenset({"tokens", "W_down"}),
    ("tokens", "W_down"),
    "1 / n",
    "1",
    "norms are not divided by r or d",
    "src/model/moe.c, model.router=aoe",
    ("scores",),
    range="0 to 1; they sum to 1",
)
