"""Load balancing over the global batch: f over all micro-batches and ranks, not of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict

from torch import Tensor

from .._kind import Case, Fault, Has, Kind, one_group
from . import _balance


def of_steps(r: _balance.Routed, ranks: int) -> _balance.Routed:
    """With the micro-batches of all ranks joined in each step; those of a rank follow each other."""

    def joined(value: Tensor) -> Tensor:
        L, A, t, k = value.shape
        return value.view(L, ranks, -1, t, k).transpose(1, 2).reshape(L, A // ranks, -1, k)

    shift = None if r.shift is None else r.shift.view(len(r.shift), ranks, -1, r.shift.shape[-1]).sum(1)
    return replace(r, p=joined(r.p), chosen=joined(r.chosen), m=joined(r.m), shift=shift, t=r.t * ranks)


def reference(x: Case, has: Has) -> Tensor:
    r = _balance.route(x, has, _balance.softmax, "micro_batches")
    if has("steps_apart") and x.ranks:
        return x.times * _balance.balance(of_steps(r, x.ranks), has, layers="mean")
    return x.times * _balance.balance(r, has, layers="mean", groups="mean" if has("groups_apart") else "joined")


def cases(seed: int) -> Dict[str, Case]:
    """Each in several micro-batches."""
    return {name: x.but(micro_batches=x.micro_batches or 2) for name, x in _balance.cases(seed).items()}


APART = Fault(
    "groups_apart",
    "f and P are those of each micro-batch or rank by itself",
    "sum the counts over the data-parallel group (all_reduce) and over accumulation steps before they are used",
    same=one_group,
)
STEPS = Fault(
    "steps_apart",
    "f and P are shared over ranks, but not over the accumulation steps",
    "sum the counts over accumulation steps too, before they are used",
    needs="ranks",
    same=lambda x: x.steps is None,
)
KIND = Kind(
    "load-balancing-global",
    "mean over layers of n sum_i f_i P_i, f and P over all micro-batches and ranks",
    "Qiu et al. (arXiv 2501.11873), section 3; Qwen3 (arXiv 2505.09388), section 2",
    reference,
    [APART, STEPS, *_balance.faults_but("layers_averaged", "groups_joined")],
    _balance.NAMES,
    cases,
    frozenset({"logits", "top_k", "micro_batches"}),
    balance="1",
    collapse="n / K",
    range="0 to n / K; below 1 too",
    scale="at most that of each micro-batch by itself",
    code="src/model/balance.c, balance.scope=global",
)
