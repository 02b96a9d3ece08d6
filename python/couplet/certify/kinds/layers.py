"""The losses of several layers: their mean or their sum."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Has


def over_layers(x: Case, has: Has, each: Tensor, summed: bool = False) -> Tensor:
    """The loss [] of each layer's [L]. `summed`: the kind adds layers, else it takes their mean."""
    each = each[-1:] if has("last_layer") else each[:1] if has("first_layer") else each
    summed = has("layers_summed") or summed and not has("layers_averaged")
    return x.times * (each.sum() if summed else each.mean())
