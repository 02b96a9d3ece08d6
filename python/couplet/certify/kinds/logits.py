"""Losses of logits alone: the router z-loss, and the variance of scores."""

from __future__ import annotations

import math
from typing import Any, Dict

import torch
from torch import Tensor

from .._kind import Case, Has, Kind
from . import balance


def over_layers(x: Case, has: Has, each: Tensor, summed: bool = False) -> Tensor:
    """Returns the loss [] of the losses of layers [L]: their sum if `summed`, else their mean."""
    each = each[-1:] if has("last_layer") else each[:1] if has("first_layer") else each
    summed = has("layers_summed") or summed and not has("layers_averaged")
    return x.times * (each.sum() if summed else each.mean())


# ---- the squared log-sum-exp of a token's logits, mean over tokens ----


def tokens_squared(x: Case, has: Has, z: Tensor) -> Tensor:
    """Returns the squared log-sum-exp of each token, [L,T]."""
    if has("over_chosen") or has("unchosen_zeroed"):
        others = balance.pick(x, z.detach(), x.top_k or z.shape[-1]) == 0
        z = z.masked_fill(others, -math.inf if has("over_chosen") else 0.0)
    if has("of_logits"):
        return (z**2).mean(-1)
    if has("mean_logit") or has("largest_logit"):
        return (z.mean(-1) if has("mean_logit") else z.amax(-1)) ** 2
    if has("softmax_in_bf16"):
        return z.to(torch.bfloat16).logsumexp(-1).to(z.dtype) ** 2
    value = z.logsumexp(-1)
    return value if has("not_squared") or has("mean_first") else value**2


def z_of_layers(x: Case, has: Has) -> Tensor:
    """Returns the loss of each layer, [L], without the coefficient."""
    z: Tensor = x.logits.softmax(-1) if has("after_softmax") else x.logits
    z = z.log_softmax(-1) if has("after_log_softmax") else z
    if has("padding_zeroed") and x.mask is not None:
        z = z * x.mask.to(z.dtype).view(-1, 1)
    if has("over_tokens"):
        return (z.logsumexp(1) ** 2).mean(-1)
    square = tokens_squared(x, has, z)
    counts_all = x.mask is None or has("padding_counted") or has("padding_zeroed")
    m = torch.ones_like(square) if counts_all else x.mask.to(z.dtype).expand_as(square)
    tokens = m.shape[1] if has("padding_divides") else m.sum(1)
    tokens = tokens * (x.top_k or 1) if has("over_k") else tokens
    mean = (square * m).sum(1) / tokens
    return mean**2 if has("mean_first") else mean


def z_loss(summed: bool) -> Any:
    return lambda x, has: over_layers(x, has, z_of_layers(x, has), summed)


# ---- the negative variance of scores, which makes routing less even ----


def variance(axis: int, spare: int) -> Any:
    """Returns a reference: the mean over the other axis of the variance along `axis`, with divisor size - `spare`."""

    def reference(x: Case, has: Has) -> Tensor:
        z, along = x.logits, 3 - axis if has("other_axis") else axis
        s = z.to(torch.bfloat16).softmax(-1).to(z.dtype) if has("softmax_in_bf16") else z.softmax(-1)
        s = z if has("of_logits") else s.softmax(-1) if has("softmax_twice") else s
        centred = s if has("not_centred") else s - s.mean(along, keepdim=True)
        value = (centred**2).sum(along) / (s.shape[along] - (1 - spare if has("other_divisor") else spare))
        value = value.sqrt() if has("deviation") else value
        each = value.sum(-1) if has("summed") else value.mean(-1)
        return over_layers(x, has, each if has("not_negative") else -each)

    return reference


def cases(seed: int, n: int = 0) -> Dict[str, Case]:
    found = balance.cases(seed, n)
    return {name: Case(logits=found[name].logits, coefficient=found[name].coefficient) for name in VARIED}


VARIED = ("layers", "many-tokens")
_Z = (balance.INPUTS[:9], balance.cases, ("logits",))
Z = (Kind("z-loss", z_loss(False), *_Z), Kind("z-loss-summed", z_loss(True), *_Z))
_PLACE = (("logits", "coefficient"), cases, ("logits",))
VARIANCE = (
    Kind("score-variance-experts", variance(2, 1), *_PLACE),
    Kind("score-variance-tokens", variance(1, 0), *_PLACE),
)
