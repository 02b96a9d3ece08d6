"""Load balancing as Mixtral in Transformers: the tokens of all layers together, f not divided by K."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Has, Kind
from . import _balance


def reference(x: Case, has: Has) -> Tensor:
    r = _balance.route(x, has, _balance.softmax, "micro_batches")
    return x.times * r.K * _balance.balance(r, has, layers="joined")  # K: f counts, it is no share of T K


KIND = Kind(
    "load-balancing-mixtral",
    "n sum_i f_i P_i over the tokens of all layers, f_i = assignments of i / (L T)",
    "Transformers, load_balancing_loss_func of Mixtral; Mixtral (arXiv 2401.04088) has no formula",
    reference,
    _balance.faults_but("layers_joined"),
    _balance.NAMES,
    _balance.cases,
    frozenset({"logits", "top_k"}),
    balance="K",
    collapse="n",
    range="0 to n; below K too",
    scale="grows with K",
)
