"""The losses of several layers: their mean or sum, and what goes wrong with it."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Fault, Has


def one_layer(x: Case) -> bool:
    return len(x.router if x.logits is None else x.logits) == 1


def over_layers(x: Case, has: Has, each: Tensor, summed: bool = False) -> Tensor:
    """Times the coefficient, of each [L]. `summed`: the kind adds layers, else it takes their mean."""
    each = each[-1:] if has("last_layer") else each[:1] if has("first_layer") else each
    summed = not summed if has("layers_averaged") or has("layers_summed") else summed
    return x.times * (each.sum() if summed else each.mean())


SUMMED = Fault("layers_summed", "the layers' losses are summed", "see the kind's formula", same=one_layer)
AVERAGED = Fault("layers_averaged", "the layers' losses are averaged", "see the kind's formula", same=one_layer)
ONE = (
    Fault("last_layer", "only the last layer has a loss", "compute that of every layer", same=one_layer),
    Fault("first_layer", "only the first layer has a loss", "compute that of every layer", same=one_layer),
)
