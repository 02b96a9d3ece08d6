"""Loss-free balancing whose steps have mean 0, so that the biases do not drift."""
from __future__ import annotations

from .._kind import Case, Fault, Has, Kind, Outputs
from .bias_update import EACH, FAULTS, NAMES, NEEDS, cases, signs, updated


def reference(x: Case, has: Has) -> Outputs:
    step = signs(x, has).to(x.bias.dtype)
    return updated(x, has, step if has("not_centred") else step - step.mean())


KIND = Kind(
    "bias-update-centred", "b += u (s - mean s), s_i = sign(mean_j c_j - c_i)", "torchtitan, moe.py", reference,
    [*FAULTS, EACH, Fault("not_centred", "the step's mean is not taken off", "step -= step.mean()")],
    NAMES, cases, NEEDS, (), "unchanged", "u (s - mean s)", "u; the mean of b stays", outputs=("bias_after",),
    range="steps between -2 u and 2 u")
