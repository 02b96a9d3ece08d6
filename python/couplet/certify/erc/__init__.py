"""The expert-router coupling loss: whether an implementation of it is right, or which fault it has.

It has more faults than other losses, and pairs of them at full size would take minutes by autograd. So gradients of
hypotheses come from sums over experts that all of them share (tables.py), and a certificate is of one dump."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
from torch import Tensor

from ... import reference
from .._import import CannotJudge
from .._kind import Case
from . import report
from .dump import of_tensors
from .faults import FAULTS
from .inputs import INPUTS, dump, make_inputs
from .judge import Certificate, certify


def loss(x: Case) -> Tensor:
    """The loss [] as the paper writes it, of router [n,d], w_gate [n,D,d], delta [n,d], alpha and weight."""
    missing = [name for name in ("router", "w_gate") if getattr(x, name) is None]
    if missing:
        raise ValueError(f"erc needs {', '.join(missing)}")
    return reference.erc_loss(
        x.router,
        x.w_gate,
        alpha=1.0 if x.alpha is None else x.alpha,
        delta=x.delta,
        weight=1.0 if x.weight is None else x.weight,
    )


@dataclass
class Certificates:
    """Those of one implementation, by the names of its inputs."""

    found: Dict[str, Certificate]

    @property
    def wrong(self) -> List[str]:
        return [name for name, one in self.found.items() if one.exit_code]

    @property
    def exit_code(self) -> int:
        return 1 if self.wrong else 0

    @property
    def state(self) -> str:
        states = [one.verdict for one in self.found.values()]
        return next((state for state in ("unknown", "fault") if state in states), "right")

    def sentence(self) -> str:
        """The verdict in one line."""
        if not self.wrong:
            return "right as erc" + (", within what rounding to bf16 does" if self.is_rounded() else "")
        by: Dict[str, List[str]] = {}
        for name in self.wrong:
            by.setdefault(report.sentence(self.found[name]), []).append(name)
        return "wrong as erc: " + "; ".join(
            one[len("not right: ") :] + (f" (on {', '.join(names)})" if len(names) < len(self.found) else "")
            for one, names in by.items()
        )

    def is_rounded(self) -> bool:
        return any(one.rounded for one in self.found.values())

    def details(self) -> List[str]:
        """How it is mended, then all that was measured."""
        keys = {key for name in self.wrong for key in self.found[name].faults if self.found[name].verdict == "fault"}
        lines = [f"{key}: {FAULTS[key][1]}" for key in report.ordered(frozenset(keys))]
        return [*lines, *(f"{name}: {line}" for name, one in self.found.items() for line in report.details(one))]

    def as_json(self) -> Dict[str, Any]:
        return {
            "version": 1,
            "kind": "erc",
            "verdict": self.state,
            "sentence": self.sentence(),
            "dumps": {name: report.as_json(one, name) for name, one in self.found.items()},
        }


def dumps(
    function: Callable[..., Any],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    fixed: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Dict[str, Tensor]]:
    """The tensors of a dump for each of INPUTS."""
    return {name: dump(function, make_inputs(name), dtype, device, fixed or {}) for name in INPUTS}


def judge(made: Mapping[str, Dict[str, Tensor]], rounded: Optional[bool] = None) -> Certificates:
    if not made:
        raise CannotJudge("there is no dump to judge")
    return Certificates({name: certify(of_tensors(tensors), rounded) for name, tensors in made.items()})
