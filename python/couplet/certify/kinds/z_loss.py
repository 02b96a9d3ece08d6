"""The router z-loss: the squared log-sum-exp of a token's logits, mean over tokens; layers averaged or summed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, Kind
from . import _balance
from ._layers import AVERAGED, ONE, SUMMED, over_layers


def each_layer(x: Case, has: Has) -> Tensor:
    """[L]"""
    z: Tensor = x.logits
    if has("after_softmax"):
        z = z.softmax(-1)
    if has("padding_zeroed") and x.mask is not None:
        z = z * x.mask.view(-1, 1)
    if has("over_tokens"):
        return (z.logsumexp(1) ** 2).mean(-1)
    if has("over_chosen") or has("unchosen_zeroed"):
        others = _balance.pick(z.detach(), x.top_k, x.tolerance or 0.0) == 0
        z = z.masked_fill(others, -math.inf if has("over_chosen") else 0.0)
    value = z.mean(-1) if has("mean_logit") else z.max(-1).values if has("largest_logit") else z.logsumexp(-1)
    counts_all = x.mask is None or has("padding_counted") or has("padding_zeroed")
    m = torch.ones_like(value) if counts_all else x.mask.to(z.dtype).expand_as(value)
    tokens = torch.full_like(m.sum(1), m.shape[1]) if has("padding_divides") else m.sum(1)
    if has("mean_first"):
        return ((value * m).sum(1) / tokens) ** 2
    square = (z**2).mean(-1) if has("of_logits") else value if has("not_squared") else value**2
    if has("over_k"):
        tokens = tokens * x.top_k
    return (square * m).sum(1) / tokens


def mean(x: Case, has: Has) -> Tensor:
    return over_layers(x, has, each_layer(x, has))


def total(x: Case, has: Has) -> Tensor:
    return over_layers(x, has, each_layer(x, has), summed=True)


FAULTS = (
    Fault("of_logits", "the logits themselves are squared in place of their log-sum-exp", "logits.logsumexp(-1) ** 2"),
    Fault("not_squared", "the log-sum-exp is not squared", "logits.logsumexp(-1) ** 2"),
    Fault("mean_first", "the mean over tokens is taken before the square", "(logits.logsumexp(-1) ** 2).mean()"),
    Fault(
        "after_softmax", "the log-sum-exp is of probabilities", "hand over the router's logits", "Transformers #45120"
    ),
    Fault(
        "over_chosen",
        "the log-sum-exp is over the K chosen experts, after the others are masked",
        "take the logits before the mask of the top K",
        needs="top_k",
        picks=True,
    ),
    Fault(
        "unchosen_zeroed",
        "the logits of the experts that are not chosen are set to 0 before the log-sum-exp",
        "take the logits before the mask of the top K",
        needs="top_k",
        picks=True,
    ),
    Fault("mean_logit", "the mean logit is squared", "logits.logsumexp(-1) ** 2"),
    Fault("largest_logit", "the largest logit is squared", "logits.logsumexp(-1) ** 2"),
    Fault(
        "over_tokens", "the log-sum-exp runs over tokens, the mean over experts", "logits.logsumexp(-1), over experts"
    ),
    Fault("over_k", "it is divided by K too", "divide by the number of tokens alone", needs="top_k"),
    Fault("padding_counted", "padded tokens are counted", "leave them out of sum and number", needs="mask"),
    Fault(
        "padding_zeroed",
        "the logits of padded tokens are set to 0, and the tokens counted",
        "mask the squares instead",
        needs="mask",
    ),
    Fault(
        "padding_divides",
        "padded tokens are left out of the sum, but not of the number of tokens",
        "divide by mask.sum()",
        needs="mask",
    ),
    *ONE,
)
_NAMES = {
    **_balance.NAMES,
    "coefficient": (*_balance.NAMES["coefficient"], "router_z_loss_coef", "z_loss_coef", "z_coef", "z_loss_coeff"),
}
_SOURCE = "ST-MoE (arXiv 2202.08906), equation 5"
KINDS = (
    Kind(
        "z-loss",
        "mean over layers of mean over tokens of logsumexp(z)^2",
        _SOURCE + "; layers as OLMoE",
        mean,
        [*FAULTS, SUMMED],
        _NAMES,
        _balance.cases,
        frozenset({"logits"}),
        balance="(log n)^2 of zero logits",
        collapse="z_max^2",
        range="0 and more",
        scale="grows with n; logits that are shifted change it",
        code="src/model/aux_losses.c",
    ),
    Kind(
        "z-loss-summed",
        "sum over layers of mean over tokens of logsumexp(z)^2",
        _SOURCE,
        total,
        [*FAULTS, AVERAGED],
        _NAMES,
        _balance.cases,
        frozenset({"logits"}),
        balance="L (log n)^2 of zero logits",
        collapse="L z_max^2",
        range="0 and more",
        scale="grows with L and n",
    ),
)
