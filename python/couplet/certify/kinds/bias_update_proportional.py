"""Loss-free balancing by the size of the difference: the bias moves by the share that is missing."""
from __future__ import annotations

from .._kind import Case, Fault, Has, Kind, Outputs
from .bias_update import FAULTS, NAMES, NEEDS, SOURCE, cases, counts, error, updated


def reference(x: Case, has: Has) -> Outputs:
    e = error(x, has).to(x.bias.dtype) / len(x.bias)
    return updated(x, has, e / (1 if has("of_counts") else counts(x, has).sum()))


KIND = Kind(
    "bias-update-proportional", "b_i += u (mean_j c_j - c_i) / sum_j c_j", SOURCE + ", its variant", reference,
    [*FAULTS, Fault("of_counts", "the difference is of counts, not of shares", "divide by counts.sum()")],
    NAMES, cases, NEEDS, (), "unchanged", "u (1 / n - 1 / K) for the busy", "T divided out",
    outputs=("bias_after",), range="steps from u (1 / n - 1 / K) to u / n")
