"""Load balancing as Switch Transformer: one expert a token, the losses of the layers are summed."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Has, Kind
from . import _balance


def reference(x: Case, has: Has) -> Tensor:
    r = _balance.route(x, has, _balance.softmax, "micro_batches")
    return x.times * _balance.balance(r, has, layers="sum")


KIND = Kind(
    "load-balancing-switch",
    "sum over layers of n sum_i f_i P_i, f_i = assignments of i / (T K), P_i = mean of p_i",
    "Switch Transformer (arXiv 2101.03961), equations 4 to 6, K = 1",
    reference,
    _balance.faults_but("layers_summed"),
    _balance.NAMES,
    _balance.cases,
    frozenset({"logits", "top_k"}),
    balance="L",
    collapse="L n / K",
    range="0 to L n / K; below L too",
    scale="grows with L",
)
