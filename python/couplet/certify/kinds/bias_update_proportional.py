"""Loss-free balancing by the size of the difference: the bias moves by the share that is missing."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Fault, Has, Kind, Outputs
from ._bias import FAULTS, NAMES, NEEDS, SOURCE, cases, counts, error, updated


def reference(x: Case, has: Has) -> Outputs:
    def step(x: Case) -> Tensor:
        c = counts(x, has)
        divisor = len(c) * (1 if has("of_counts") else c.double().mean() if has("over_mean") else c.sum())
        return error(x, has).to(x.bias.dtype) / divisor

    return updated(x, has, step)


KIND = Kind(
    "bias-update-proportional",
    "b_i += u (mean_j c_j - c_i) / sum_j c_j",
    SOURCE + ", its variant",
    reference,
    [
        *FAULTS,
        Fault("of_counts", "the difference is of counts, not of shares", "divide by counts.sum()"),
        Fault("over_mean", "the difference is divided by the mean count, not by the sum", "divide by counts.sum()"),
    ],
    NAMES,
    cases,
    NEEDS,
    (),
    "unchanged",
    "u (1 / n - 1 / K) for the busy",
    "T divided out",
    outputs=("bias_after",),
    range="steps from u (1 / n - 1 / K) to u / n",
)
