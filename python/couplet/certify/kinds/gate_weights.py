"""The weights of the chosen experts under loss-free balancing: the bias chooses, the scores weigh."""
from __future__ import annotations

from typing import Dict

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, Kind, Outputs, generator
from ._balance import NAMES, pick


def reference(x: Case, has: Has) -> Outputs:
    """weights [T,n], 0 where an expert is not chosen; the gradients are those of sum(weights * x.d_weights)."""
    b = x.bias if has("bias_has_gradient") else x.bias.detach()
    z = x.logits + b if has("bias_in_logits") else x.logits
    s = z.softmax(-1) if has("softmax_for_sigmoid") else z.sigmoid()
    by = s if has("bias_left_out") or has("bias_in_logits") else s + b
    chosen = pick(by.detach(), x.top_k, x.tolerance or 0.0)
    if has("bias_in_weight") or has("bias_has_gradient"):
        s = s + b
    weights = s * chosen
    if not has("not_normalised"):
        over = s if has("normalised_over_all") else weights
        weights = weights / over.sum(-1, keepdim=True)
    if has("detached_divisor"):
        weights = s * chosen / (s * chosen).detach().sum(-1, keepdim=True)
    return {"weights": weights * (1.0 if has("scale_left_out") or x.scale is None else x.scale)}


def cases(seed: int) -> Dict[str, Case]:
    g = generator(seed)

    def case(T: int, n: int, K: int, scale: float) -> Case:
        return Case(logits=torch.randn(T, n, generator=g), bias=torch.randn(n, generator=g) * 0.2, top_k=K, scale=scale,
                    d_weights=torch.randn(T, n, generator=g))

    return {"some": case(24, 8, 3, 2.5), "two": case(16, 6, 2, 0.7)}


FAULTS = (
    Fault("bias_in_weight", "the bias is inside the weights", "weigh by the scores: scores.gather(-1, indices)"),
    Fault("bias_has_gradient", "the bias is inside the weights and gets a gradient", "keep it in a buffer"),
    Fault("bias_left_out", "the bias does not choose", "topk(scores + bias)"),
    Fault("bias_in_logits", "the bias is added before the sigmoid", "topk(logits.sigmoid() + bias)"),
    Fault("softmax_for_sigmoid", "scores are a softmax", "logits.sigmoid()"),
    Fault("not_normalised", "the weights do not sum to 1", "divide by their sum over the chosen"),
    Fault("normalised_over_all", "the divisor is the sum over all experts", "divide by the sum over the chosen"),
    Fault("detached_divisor", "the divisor has no gradient", "no detach() on the sum"),
    Fault("scale_left_out", "the scale of the routed experts is left out", "multiply by routed_scaling_factor"),
)
KIND = Kind(
    "gate-weights", "scale s_i / sum of the chosen s_j where i is chosen by s + b, s = sigmoid(logits); b has no gradient",
    "DeepSeek-V3 (arXiv 2412.19437), equations 12 to 16", reference, FAULTS,
    {**{name: NAMES[name] for name in ("logits", "top_k")}, "bias": ("bias", "expert_bias", "e_score_correction_bias"),
     "scale": ("scale", "routed_scaling_factor", "route_scale")},
    cases, frozenset({"logits", "top_k", "bias"}), ("logits", "bias"),
    balance="scale / K", collapse="scale / K", range="0 to scale; they sum to scale", outputs=("weights",))
