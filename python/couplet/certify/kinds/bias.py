"""Loss-free balancing: updates of an expert's bias by its load, and gate weights of experts chosen by score + bias."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict

import torch
from torch import Tensor

from .._kind import Case, Has, Kind, Outputs, generator
from . import balance

# ---- updates ----


def counts_of(x: Case, has: Has) -> Tensor:
    """Returns the counts [n] of all micro-batches or ranks, from x.counts [A,n], whole numbers."""
    parts = x.counts[-1:] if has("last_micro_batch") else x.counts[:1] if has("first_micro_batch") else x.counts
    total: Tensor = parts.sum(0)
    return total.clamp(max=256) if has("counts_in_bf16") else total


def error(x: Case, has: Has) -> Tensor:
    """Returns n times the distance of each load below the mean, in whole numbers."""
    c = counts_of(x, has)
    goal = c.median() * len(c) if has("median") else c.sum() * 0 if has("no_mean") else c.sum()
    goal = goal // len(c) * len(c) if has("mean_floored") else goal
    return c * len(c) - goal if has("wrong_sign") else goal - c * len(c)


def sign(x: Case, has: Has) -> Tensor:
    e = error(x, has)
    return (e >= 0) * 2 - 1 if has("zero_is_positive") else e.sign()


def centred_step(x: Case, has: Has) -> Tensor:
    s = error(x, has).sign().to(x.bias.dtype)
    return s if has("not_centred") else s - s.mean()


def share(x: Case, has: Has) -> Tensor:
    c = counts_of(x, has)
    divisor = len(c) * (1 if has("of_counts") else c.double().mean() if has("over_mean") else c.sum())
    return error(x, has).to(x.bias.dtype) / divisor


def update(step: Callable[[Case, Has], Tensor]) -> Any:
    """Returns a reference: the old bias and a step [n]."""

    def reference(x: Case, has: Has) -> Outputs:
        parts = [x.but(counts=one[None]) for one in x.counts] if has("each_micro_batch") else [x]
        steps = sum((step(part, has).to(x.bias.dtype) for part in parts), start=torch.zeros_like(x.bias))
        rate = 0.0 if has("unchanged") else 1.0 if has("rate_unused") else x.rate**2 if has("rate_twice") else x.rate
        rate = rate * len(x.counts) if has("step_of_each") else rate
        return {"bias_after": x.bias * (not has("forgets")) + rate * steps}

    return reference


def cases(seed: int, n: int = 0) -> Dict[str, Case]:
    g = generator(seed)

    def case(A: int, n: int, most: int, rate: float) -> Case:
        load = torch.randint(0, most, (A, n), generator=g)
        return Case(counts=load, rate=rate, bias=torch.randn(n, generator=g) * 0.1)

    five = case(1, 5, 9, 0.05)
    return {
        "uneven": case(3, 8, 50, 0.001),
        "many": case(2, 6, 600, 0.02),
        "one-at-mean": five.but(counts=torch.tensor([[4, 6, 5, 9, 1]])),
        "one-below-mean": five.but(counts=torch.tensor([[4, 7, 5, 9, 2]])),
    }


# ---- gate weights: experts are chosen by score + bias and weighted by the score ----


def gate(x: Case, has: Has) -> Outputs:
    """Returns weights [T,n], 0 where an expert is not chosen. The gradients are those of sum(weights * x.d_weights)."""
    in_logits = has("bias_in_logits") or has("bias_in_logits_learns")
    b = x.bias if has("bias_has_gradient") or has("bias_in_logits_learns") else x.bias.detach()
    z = x.logits + b if in_logits else x.logits
    s = z.softmax(-1) if has("softmax_for_sigmoid") else z.sigmoid()
    by = s if has("bias_left_out") or in_logits else s - b if has("bias_subtracted") else s + b
    chosen = balance.pick(Case(), by.detach(), x.top_k)
    s = s + b if has("bias_in_weight") or has("bias_has_gradient") else s
    s = s + x.bias - b if has("bias_learns") else s
    s = z.masked_fill(chosen == 0, -math.inf).softmax(-1) if has("softmax_over_chosen") else s
    weights = s * chosen
    total = (s if has("normalised_over_all") else weights).sum(-1, keepdim=True) + (has("epsilon") or 0.0)
    if not has("not_normalised"):
        weights = weights / (total.detach() if has("detached_divisor") else total)
    weights = weights.detach() if has("detached") else weights
    power = 0 if has("scale_left_out") or x.scale is None else 2 if has("scale_twice") else 1
    return {"weights": weights * (x.scale or 1.0) ** power}


def gate_cases(seed: int, n: int = 0) -> Dict[str, Case]:
    g = generator(seed)

    def case(T: int, n: int, K: int, scale: float, lower: float = 0.0) -> Case:
        """Returns tokens whose chosen experts do not change when scores of any kind are rounded to bf16."""
        z, b = torch.randn(40 * T, n, generator=g) - lower, (torch.randperm(n, generator=g) - n / 2) * 0.64 / n
        by = torch.stack(
            [one for s in (z.sigmoid(), z.softmax(-1)) for one in (s / s.sum(-1, keepdim=True), s + b, s - b)]
            + [(z + b).sigmoid() / (z + b).sigmoid().sum(-1, keepdim=True)]
        )
        last = by.topk(K + 1).values[..., -2:]
        z = z[((last[..., 0] - last[..., 1]) > 0.16 / n).all(0)][:T]
        return Case(logits=z, bias=b, top_k=K, scale=scale, d_weights=torch.randn(len(z), n, generator=g))

    return {
        "some": case(24, max(n, 8), 3, 2.5),
        "two": case(16, max(n, 6), 2, 0.7),
        "low-scores": case(12, max(n, 7), 3, 1.3, lower=12.0),
    }


# ---- kinds ----

_BIAS, _GATE = ("counts", "bias", "rate"), ("logits", "top_k", "bias")
_PLACE = (_BIAS, cases, _BIAS, (), ("bias_after",))
KINDS = (
    Kind("bias-update-sign", update(sign), *_PLACE),
    Kind("bias-update-centred", update(centred_step), *_PLACE),
    Kind("bias-update-proportional", update(share), *_PLACE),
    Kind("gate-weights", gate, (*_GATE, "scale"), gate_cases, _GATE, ("logits", "bias"), ("weights",)),
)
