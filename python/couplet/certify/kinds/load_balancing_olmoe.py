"""Load balancing as OLMoE and MegaBlocks: each layer by itself, f a share of T K assignments, mean over layers."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Has, Kind
from . import _balance


def reference(x: Case, has: Has) -> Tensor:
    r = _balance.route(x, has, _balance.softmax, "micro_batches")
    return x.times * _balance.balance(r, has, layers="mean")


KIND = Kind(
    "load-balancing-olmoe",
    "mean over layers of n sum_i f_i P_i, f_i = assignments of i / (T K), P_i = mean of p_i",
    "OLMoE (arXiv 2409.02060), section 4.1.6; MegaBlocks, batched_load_balancing_loss",
    reference,
    _balance.faults_but("layers_averaged"),
    _balance.NAMES,
    _balance.cases,
    frozenset({"logits", "top_k"}),
    balance="1",
    collapse="n / K",
    range="0 to n / K; below 1 too",
    scale="none: T, K, n and L are divided out",
    code="src/model/balance.c",
)
