"""The weights of the chosen experts under loss-free balancing: the bias chooses, the scores weigh."""

from __future__ import annotations

import math
from typing import Dict

import torch

from .._kind import Case, Fault, Has, Kind, Outputs, generator
from ._balance import NAMES, pick


def reference(x: Case, has: Has) -> Outputs:
    """weights [T,n], 0 where an expert is not chosen; the gradients are those of sum(weights * x.d_weights)."""
    in_logits = has("bias_in_logits") or has("bias_in_logits_learns")
    b = x.bias if has("bias_has_gradient") or has("bias_in_logits_learns") else x.bias.detach()
    z = x.logits + b if in_logits else x.logits
    s = z.softmax(-1) if has("softmax_for_sigmoid") else z.sigmoid()
    by = s if has("bias_left_out") or in_logits else s - b if has("bias_subtracted") else s + b
    chosen = pick(by.detach(), x.top_k, 0.0)
    if has("bias_in_weight") or has("bias_has_gradient"):
        s = s + b
    if has("bias_learns"):
        s = s + x.bias - b
    if has("softmax_over_chosen"):
        s = z.masked_fill(chosen == 0, -math.inf).softmax(-1)
    weights = s * chosen
    if not has("not_normalised"):
        over = s if has("normalised_over_all") else weights
        weights = weights / (over.sum(-1, keepdim=True) + (has("epsilon") or 0.0))
    if has("detached_divisor"):
        weights = s * chosen / (s * chosen).detach().sum(-1, keepdim=True)
    weights = weights.detach() if has("detached") else weights
    power = 0 if has("scale_left_out") or x.scale is None else 2 if has("scale_twice") else 1
    return {"weights": weights * (x.scale or 1.0) ** power}


def cases(seed: int) -> Dict[str, Case]:
    g = generator(seed)

    def case(T: int, n: int, K: int, scale: float, lower: float = 0.0) -> Case:
        """Tokens whose choice rounding to bf16 does not change, whichever of the scores choose."""
        z, b = torch.randn(40 * T, n, generator=g) - lower, (torch.randperm(n, generator=g) - n / 2) * 0.08
        by = torch.stack(
            [one for s in (z.sigmoid(), z.softmax(-1)) for one in (s / s.sum(-1, keepdim=True), s + b, s - b)]
            + [(z + b).sigmoid() / (z + b).sigmoid().sum(-1, keepdim=True)]
        )
        last = by.topk(K + 1).values[..., -2:]
        z = z[((last[..., 0] - last[..., 1]) > 0.02).all(0)][:T]
        return Case(logits=z, bias=b, top_k=K, scale=scale, d_weights=torch.randn(len(z), n, generator=g))

    return {"some": case(24, 8, 3, 2.5), "two": case(16, 6, 2, 0.7), "low-scores": case(12, 7, 3, 1.3, lower=12.0)}


FAULTS = (
    Fault("bias_in_weight", "the bias is inside the weights", "weigh by the scores: scores.gather(-1, indices)"),
    Fault("bias_has_gradient", "the bias is inside the weights and gets a gradient", "keep it in a buffer"),
    Fault(
        "bias_learns",
        "the bias gets a gradient, though the weights do not have it",
        "keep it in a buffer, or detach it",
    ),
    Fault("bias_subtracted", "the bias is subtracted where experts are chosen", "topk(scores + bias)"),
    Fault("bias_left_out", "the bias does not choose", "topk(scores + bias)"),
    Fault("bias_in_logits", "the bias is added before the sigmoid", "topk(logits.sigmoid() + bias)"),
    Fault("bias_in_logits_learns", "the bias is added before the sigmoid and gets a gradient", "keep it in a buffer"),
    Fault("softmax_for_sigmoid", "scores are a softmax", "logits.sigmoid()"),
    Fault("softmax_over_chosen", "the weights are a softmax of the chosen logits", "divide the sigmoids by their sum"),
    Fault("not_normalised", "the weights do not sum to 1", "divide by their sum over the chosen"),
    Fault("normalised_over_all", "the divisor is the sum over all experts", "divide by the sum over the chosen"),
    Fault("detached_divisor", "the divisor has no gradient", "no detach() on the sum"),
    Fault("detached", "the weights have no gradient: the router cannot learn", "no detach(), no torch.no_grad()"),
    Fault(
        "epsilon",
        "an epsilon in the divisor is as large as the scores",
        "leave it out, or take one far below all scores",
        values=(1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0),
    ),
    Fault("scale_left_out", "the scale of the routed experts is left out", "multiply by routed_scaling_factor"),
    Fault("scale_twice", "the scale of the routed experts is applied twice", "multiply by routed_scaling_factor once"),
)
KIND = Kind(
    "gate-weights",
    "scale s_i / sum of the chosen s_j where i is chosen by s + b, s = sigmoid(logits); b has no gradient",
    "DeepSeek-V3 (arXiv 2412.19437), equations 12 to 16",
    reference,
    FAULTS,
    {
        **{name: NAMES[name] for name in ("logits", "top_k")},
        "bias": ("bias", "expert_bias", "e_score_correction_bias"),
        "scale": ("scale", "routed_scaling_factor", "route_scale"),
    },
    cases,
    frozenset({"logits", "top_k", "bias"}),
    ("logits", "bias"),
    balance="scale / K",
    collapse="scale / K",
    range="0 to scale; they sum to scale",
    outputs=("weights",),
)
