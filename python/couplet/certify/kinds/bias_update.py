"""Loss-free balancing: how the bias of an expert follows its load. No loss: the output is the new bias."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Fault, Has, Kind, Outputs
from ._bias import FAULTS, NAMES, NEEDS, SOURCE, cases, error, updated


def reference(x: Case, has: Has) -> Outputs:
    def step(x: Case) -> Tensor:
        e = error(x, has)
        return (e >= 0) * 2 - 1 if has("zero_is_positive") else e.sign()

    return updated(x, has, step)


KIND = Kind(
    "bias-update-sign",
    "b_i += u sign(mean_j c_j - c_i)",
    SOURCE,
    reference,
    [*FAULTS, Fault("zero_is_positive", "an expert exactly at the mean is raised", "torch.sign: it gives 0 there")],
    NAMES,
    cases,
    NEEDS,
    (),
    "unchanged",
    "-u for the busy, +u for the others",
    "u alone",
    "src/train/step.c",
    outputs=("bias_after",),
    range="steps of -u, 0 and u",
)
