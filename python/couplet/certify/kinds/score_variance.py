"""The negative variance of scores, which makes routing less even: over experts, or over tokens."""

from __future__ import annotations

from typing import Dict

from torch import Tensor

from .._kind import Case, Fault, Has, Kind
from . import _balance
from ._layers import ONE, SUMMED, over_layers


def over(x: Case, has: Has, axis: int, spare: int) -> Tensor:
    """The mean over the other axis of the variance [L,T,n] along `axis`, divided by its size less `spare`."""
    s: Tensor = x.logits if has("of_logits") else x.logits.softmax(-1)
    s = s.softmax(-1) if has("softmax_twice") else s
    if has("other_axis"):
        axis = 3 - axis
    size = s.shape[axis]
    centred = s if has("not_centred") else s - s.mean(axis, keepdim=True)
    spare = 1 - spare if has("other_divisor") else spare
    variance = (centred**2).sum(axis) / (size - spare)
    value = variance.sqrt() if has("deviation") else variance
    each = value.sum(-1) if has("summed") else value.mean(-1)
    return over_layers(x, has, each if has("not_negative") else -each)


def over_experts(x: Case, has: Has) -> Tensor:
    return over(x, has, axis=2, spare=1)


def over_tokens(x: Case, has: Has) -> Tensor:
    return over(x, has, axis=1, spare=0)


FAULTS = (
    Fault("of_logits", "the variance is of the logits", "take the softmax first"),
    Fault(
        "softmax_twice",
        "the softmax is taken twice: what comes in as logits are already probabilities",
        "hand over the router's logits, or leave one softmax out",
        "Transformers #45120",
    ),
    Fault("other_axis", "the variance runs along the other axis", "see the kind's formula"),
    Fault("not_centred", "the mean is not taken off", "s - s.mean()"),
    Fault("other_divisor", "the divisor is n in place of n - 1, or the reverse", "torch.var(correction=0 or 1)"),
    Fault(
        "deviation",
        "the standard deviation in place of the variance",
        "torch.var: the root has no gradient at 0",
        "vmoe #218, of another loss",
    ),
    Fault("not_negative", "variance is made smaller, not larger", "subtract it from the loss"),
    Fault("summed", "the variances of a layer are summed, not averaged", "take their mean"),
    SUMMED,
    *ONE,
)


def cases(seed: int) -> Dict[str, Case]:
    return {
        name: Case(logits=x.logits, coefficient=x.coefficient)
        for name, x in _balance.cases(seed).items()
        if name in ("layers", "many-tokens")
    }


_PLACE = (FAULTS, {name: _balance.NAMES[name] for name in ("logits", "coefficient")}, cases, frozenset({"logits"}))
KINDS = (
    Kind(
        "score-variance-experts",
        "- mean over layers and tokens of the variance over experts of softmax(z), divisor n - 1",
        "the authors' code of arXiv 2505.22323",
        over_experts,
        *_PLACE,
        balance="0 of equal scores",
        collapse="-1 / n of one-hot scores",
        range="-1 / n to 0",
        scale="shrinks with n",
    ),
    Kind(
        "score-variance-tokens",
        "- mean over layers and experts of the variance over tokens of softmax(z), divisor T",
        "arXiv 2505.22323, its variance loss, divided by the tokens",
        over_tokens,
        *_PLACE,
        balance="0 of equal tokens",
        collapse="0: all tokens alike",
        range="-(n - 1) / n^2 to 0",
        scale="shrinks with n",
    ),
)
