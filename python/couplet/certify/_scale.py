"""Faults that multiply a loss, its gradient, or both: they are the same for every kind."""

from __future__ import annotations

from typing import Tuple

from ._kind import Case, Fault, Kind


def _both(factor: float) -> Tuple[float, float]:
    return factor, factor


def _tokens(x: Case) -> int:
    return int(x.mask.sum()) if x.mask is not None else int(x.logits.shape[1])


ANY = (
    Fault(
        "coefficient_unused",
        "the coefficient is not used",
        "multiply the loss by it, once",
        "NeMo Automodel #1408",
        scale=lambda x: _both(1 / x.coefficient),
        needs="coefficient",
    ),
    Fault(
        "coefficient_twice",
        "the coefficient is applied twice",
        "multiply by it in one place only: in the module or in the trainer",
        scale=lambda x: _both(x.coefficient),
        needs="coefficient",
    ),
    Fault(
        "detached",
        "the loss has no gradient",
        "no detach(), no torch.no_grad(), no .item() on the way",
        "NeMo Automodel #1408",
        scale=lambda x: (1.0, 0.0),
    ),
    Fault(
        "gradient_twice",
        "the gradient is counted twice, as where a forward pass is computed again in the backward pass",
        "add the loss outside of the part that is computed again",
        scale=lambda x: (1.0, 2.0),
    ),
    Fault(
        "added_twice",
        "the loss is added twice",
        "in one place only: the model or the trainer adds it",
        "TRL #4070",
        scale=lambda x: _both(2.0),
    ),
    Fault("wrong_sign", "the loss is subtracted", "add it", scale=lambda x: _both(-1.0)),
    Fault(
        "zero",
        "the loss is zero",
        "nothing was collected: look at what the loss is computed from",
        scale=lambda x: _both(0.0),
    ),
)
ACCUMULATED = (
    Fault(
        "not_divided_by_steps",
        "the losses of the micro-batches or ranks are summed, not averaged",
        "divide by their number",
        scale=lambda x: _both(x.steps),
        needs="steps",
    ),
    Fault(
        "divided_by_steps_twice",
        "the loss is divided by the number of micro-batches or ranks twice",
        "divide by it in one place only",
        "NeMo Automodel #1412",
        scale=lambda x: _both(1 / x.steps),
        needs="steps",
    ),
    Fault(
        "gradient_not_divided_by_steps",
        "the gradients of the micro-batches or ranks are summed, not averaged; the loss that is returned is averaged",
        "divide the loss before backward()",
        scale=lambda x: (1.0, x.steps),
        needs="steps",
        apart=True,
    ),
    Fault(
        "gradient_divided_by_steps_twice",
        "the gradients are divided by the number of micro-batches or ranks twice, the loss that is returned once",
        "divide in one place only: the trainer or the loop",
        scale=lambda x: (1.0, 1 / x.steps),
        needs="steps",
        apart=True,
    ),
    Fault(
        "times_ranks",
        "the loss is multiplied by the number of ranks",
        "data parallelism takes the mean of gradients",
        scale=lambda x: _both(x.ranks),
        needs="ranks",
    ),
    Fault(
        "divided_by_ranks",
        "the loss is divided by the number of ranks once more",
        "data parallelism takes the mean of gradients",
        scale=lambda x: _both(1 / x.ranks),
        needs="ranks",
    ),
)
SEQUENCES = Fault(
    "not_divided_by_sequences",
    "the losses of the sequences are summed, not averaged",
    "divide by their number",
    scale=lambda x: _both(x.sequences),
    needs="sequences",
)
LOG_SOFTMAX = Fault(
    "after_log_softmax",
    "the log-sum-exp is of log-probabilities, which makes it zero",
    "hand over the router's logits",
    scale=lambda x: _both(0.0),
)
ROUTED = (
    Fault(
        "times_k",
        "it is multiplied by K, or f is not divided by K",
        "f is a share of T K assignments",
        "Transformers #43688, OLMoE #45",
        scale=lambda x: _both(x.top_k),
        needs="top_k",
    ),
    Fault(
        "divided_by_k",
        "it is divided by K once more",
        "divide f by K once",
        scale=lambda x: _both(1 / x.top_k),
        needs="top_k",
    ),
    Fault(
        "times_tokens",
        "it is multiplied by the number of tokens",
        "take means over tokens, not sums",
        "NeMo Automodel #1408",
        scale=lambda x: _both(_tokens(x)),
    ),
    Fault(
        "times_n", "it is multiplied by n once more", "multiply by n once", scale=lambda x: _both(x.logits.shape[-1])
    ),
    Fault(
        "n_left_out",
        "it is not multiplied by n, or a mean over experts is taken in place of the sum",
        "n * (f * P).sum()",
        scale=lambda x: _both(1 / x.logits.shape[-1]),
    ),
    Fault(
        "n_and_k_exchanged",
        "n and K are exchanged in the factor",
        "n * counts / (T * K)",
        scale=lambda x: _both((x.top_k / x.logits.shape[-1]) ** 2),
        needs="top_k",
    ),
)


def scale_faults(kind: Kind) -> Tuple[Fault, ...]:
    """Those that a loss of this kind can have."""
    if "loss" not in kind.outputs:
        return ()
    if "deepseek" in kind.name:
        return (*ANY, *ACCUMULATED, *ROUTED, SEQUENCES)
    if "balancing" in kind.name:
        return (*ANY, *ACCUMULATED, *ROUTED)
    if "logits" in kind.needs:
        own = (LOG_SOFTMAX,) if "z-loss" in kind.name else ()
        return (*ANY, *ACCUMULATED, next(one for one in ROUTED if one.key == "times_tokens"), *own)
    return ANY
