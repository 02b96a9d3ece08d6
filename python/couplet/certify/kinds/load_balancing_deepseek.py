"""Load balancing as DeepSeek-V3: sigmoid scores that sum to 1 for a token, each sequence by itself."""

from __future__ import annotations

from typing import Dict

from torch import Tensor

from .._kind import Case, Fault, Has, Kind
from . import _balance


def score(x: Case, has: Has, logits: Tensor) -> Tensor:
    if has("softmax_for_sigmoid"):
        return logits.softmax(-1)
    s = logits.sigmoid().sigmoid() if has("sigmoid_twice") else logits.sigmoid()
    if has("not_normalised"):
        return s
    if has("normalised_over_tokens") and x.sums is not None:
        x.sums.whole = True
    total = s.sum(1 if has("normalised_over_tokens") else -1, keepdim=True) + (has("epsilon") or 0.0)
    return s / (total.detach() if has("divisor_detached") else total)


def reference(x: Case, has: Has) -> Tensor:
    r = _balance.route(x, has, score, "micro_batches" if has("groups_are_micro_batches") else "sequences")
    return x.times * _balance.balance(r, has, layers="sum")


FAULTS = (
    Fault(
        "softmax_for_sigmoid",
        "scores are a softmax in place of normalised sigmoids",
        "s = logits.sigmoid(); s / s.sum(-1, keepdim=True)",
        "Megatron-LM #1438",
    ),
    Fault(
        "not_normalised",
        "sigmoids are not divided by their sum over experts: all of them can shrink to lower the loss",
        "s / s.sum(-1, keepdim=True)",
    ),
    Fault(
        "epsilon",
        "an epsilon in the divisor is as large as the scores: all of them can shrink to lower the loss",
        "leave it out: a sum of sigmoids is not 0",
        "Megatron-LM #1545, OLMo-core #255",
        values=(1e-20, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0),
    ),
    Fault(
        "sigmoid_twice",
        "the sigmoid is taken twice: what comes in as logits are already scores",
        "hand over the router's logits, or leave one sigmoid out",
    ),
    Fault(
        "normalised_over_chosen",
        "scores are divided by the sum over the K chosen experts, and P counts these alone",
        "divide by the sum over all experts; the K largest give the weights, not the loss",
        picks=True,
    ),
    Fault("normalised_over_tokens", "scores are divided by their sum over tokens", "s / s.sum(-1, keepdim=True)"),
    Fault("divisor_detached", "the divisor has no gradient", "no detach() on the sum"),
)


def cases(seed: int) -> Dict[str, Case]:
    """Also logits so low that an epsilon shows."""
    all_ = _balance.cases(seed)
    x = all_["layers"]
    return {**all_, "low-scores": x.but(logits=x.logits - 18.0), "lowest-scores": x.but(logits=x.logits - 50.0)}


KIND = Kind(
    "load-balancing-deepseek",
    "sum over layers, mean over sequences of n sum_i f_i P_i, f_i = assignments of i / (T K), "
    "P_i = mean of s_i / sum_j s_j, s = sigmoid(logits)",
    "DeepSeek-V3 (arXiv 2412.19437), equations 17 to 20",
    reference,
    [
        *FAULTS,
        *(
            one
            for one in _balance.faults_but("layers_summed")
            if "softmax" not in one.key and one.key != "logits_for_scores"
        ),
    ],
    _balance.NAMES,
    cases,
    frozenset({"logits", "top_k"}),
    balance="L",
    collapse="at most L n / K",
    range="0 to L n / K; below L too",
    scale="grows with L",
)
