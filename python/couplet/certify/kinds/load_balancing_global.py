"""Load balancing over the global batch: f over all micro-batches and ranks, not of each."""
from __future__ import annotations

from typing import Dict

from torch import Tensor

from .._kind import Case, Fault, Has, Kind, one_group
from . import _balance


def reference(x: Case, has: Has) -> Tensor:
    r = _balance.route(x, has, _balance.softmax, "micro_batches")
    return x.times * _balance.balance(r, has, layers="mean", groups="mean" if has("groups_apart") else "joined")


def cases(seed: int) -> Dict[str, Case]:
    """Each in several micro-batches."""
    return {name: x.but(micro_batches=x.micro_batches or 2) for name, x in _balance.cases(seed).items()}


APART = Fault("groups_apart", "f and P are those of each micro-batch or rank by itself",
              "sum the counts over the data-parallel group (all_reduce) and over accumulation steps before they are used",
              same=one_group)
KIND = Kind(
    "load-balancing-global", "mean over layers of n sum_i f_i P_i, f and P over all micro-batches and ranks",
    "Qiu et al. (arXiv 2501.11873), section 3; Qwen3 (arXiv 2505.09388), section 2", reference,
    [APART, *_balance.faults_but("layers_averaged", "groups_joined")], _balance.NAMES, cases,
    frozenset({"logits", "top_k", "micro_batches"}), balance="1", collapse="n / K",
    range="0 to n / K; below 1 too",
    scale="at most that of each micro-batch by itself",
    code="src/model/balance.c, balance.scope=global")
