"""Loss-free balancing whose steps have mean 0, so that the biases do not drift."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Fault, Has, Kind, Outputs
from ._bias import FAULTS, NAMES, NEEDS, cases, error, updated


def reference(x: Case, has: Has) -> Outputs:
    def step(x: Case) -> Tensor:
        s = error(x, has).sign().to(x.bias.dtype)
        return s if has("not_centred") else s - s.mean()

    return updated(x, has, step)


KIND = Kind(
    "bias-update-centred",
    "b += u (s - mean s), s_i = sign(mean_j c_j - c_i)",
    "torchtitan, moe.py",
    reference,
    [*FAULTS, Fault("not_centred", "the step's mean is not taken off", "step -= step.mean()")],
    NAMES,
    cases,
    NEEDS,
    (),
    "unchanged",
    "u (s - mean s)",
    "u; the mean of b stays",
    outputs=("bias_after",),
    range="steps between -2 u and 2 u",
)
