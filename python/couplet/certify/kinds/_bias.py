"""What the rules of loss-free balancing share, by which the bias of an expert follows its load."""

from __future__ import annotations

from typing import Callable, Dict

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, Outputs, generator


def counts(x: Case, has: Has) -> Tensor:
    """[n], of all micro-batches or ranks: x.counts [A,n], whole numbers."""
    each: Tensor = x.counts
    if has("last_micro_batch") or has("first_micro_batch"):
        return each[-1 if has("last_micro_batch") else 0]
    total = each.sum(0)
    return total.clamp(max=256) if has("counts_in_bf16") else total


def error(x: Case, has: Has) -> Tensor:
    """n times how far an expert's load lies below the mean, in whole numbers."""
    c = counts(x, has)
    goal = c.median() * len(c) if has("median") else c.sum() * 0 if has("no_mean") else c.sum()
    goal = goal // len(c) * len(c) if has("mean_floored") else goal
    return c * len(c) - goal if has("wrong_sign") else goal - c * len(c)


def updated(x: Case, has: Has, step: Callable[[Case], Tensor]) -> Outputs:
    """The old bias and a step [n]; after each micro-batch by itself if the bias moves so often."""
    parts = [x.but(counts=one[None]) for one in x.counts] if has("each_micro_batch") else [x]
    steps = sum((step(part).to(x.bias.dtype) for part in parts), start=torch.zeros_like(x.bias))
    rate = 0.0 if has("unchanged") else 1.0 if has("rate_unused") else x.rate**2 if has("rate_twice") else x.rate
    rate = rate * len(x.counts) if has("step_of_each") else rate
    return {"bias_after": x.bias * (not has("forgets")) + rate * steps}


def cases(seed: int) -> Dict[str, Case]:
    g = generator(seed)

    def case(A: int, n: int, most: int, rate: float) -> Case:
        return Case(
            counts=torch.randint(0, most, (A, n), generator=g), rate=rate, bias=torch.randn(n, generator=g) * 0.1
        )

    five = case(1, 5, 9, 0.05)
    return {
        "uneven": case(3, 8, 50, 0.001),
        "many": case(2, 6, 600, 0.02),
        "one-at-mean": five.but(counts=torch.tensor([[4, 6, 5, 9, 1]])),
        "one-below-mean": five.but(counts=torch.tensor([[4, 7, 5, 9, 2]])),
    }


def one_group(x: Case) -> bool:
    return len(x.counts) == 1


FAULTS = (
    Fault("unchanged", "the bias is never updated", "update it after each optimizer step, in training mode"),
    Fault("wrong_sign", "the bias of busy experts is raised", "bias += rate * sign(mean - counts)"),
    Fault(
        "last_micro_batch",
        "the counts are those of the last micro-batch or rank",
        "sum them over all before the update",
        same=one_group,
    ),
    Fault(
        "first_micro_batch",
        "the counts are those of the first micro-batch or rank",
        "sum them over all before the update",
        same=one_group,
    ),
    Fault(
        "each_micro_batch",
        "the bias moves after each micro-batch",
        "once, after the optimizer step",
        "torchtitan #1304",
        same=one_group,
    ),
    Fault(
        "step_of_each", "the step is multiplied by the number of micro-batches or ranks", "add it once", same=one_group
    ),
    Fault("no_mean", "counts are not compared with their mean", "mean - counts"),
    Fault("median", "counts are compared with their median", "mean - counts"),
    Fault("mean_floored", "the mean of the counts is rounded to a whole number", "counts.double().mean()"),
    Fault("forgets", "the old bias is lost", "bias.add_(step), not bias.copy_(step)"),
    Fault("rate_unused", "the update rate is not used", "multiply the step by it"),
    Fault("rate_twice", "the update rate is applied twice", "multiply the step by it once"),
    Fault("counts_in_bf16", "assignments are counted in bf16, which stops at 256", "count in integers or float32"),
)
NAMES = {
    "counts": ("counts", "tokens_per_expert", "load"),
    "bias": ("bias", "expert_bias", "e_score_correction_bias"),
    "rate": ("rate", "update_rate", "u", "gamma", "coeff", "load_balance_coeff"),
}
SOURCE = "Loss-free balancing (arXiv 2408.15664), algorithm 1"
NEEDS = frozenset({"counts", "bias", "rate"})
