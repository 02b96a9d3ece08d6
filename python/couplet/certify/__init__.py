"""Judges whether a loss of MoE training is right, and if not, which fault it has.

    python -m couplet.certify my_module:my_loss --loss load-balancing-mixtral
    couplet.certify.assert_right(my_loss, kind="z-loss")       # in a test
    couplet.certify.certify(my_loss, kind="z-loss")            # a Verdict
    couplet.certify.record(model, coefficient=...)             # judges a whole training step
    couplet.certify.REFERENCES["z-loss"](Case(logits=...))     # the loss as the literature writes it

docs/losses.md lists the kinds. The callable is called by keyword with the inputs of the kind that it takes, under any
of their usual names. Its loss and gradients are compared in float64 with the reference, and with the reference under
each known fault."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

from .. import _need_torch

_need_torch()

import torch

from . import _names
from ._call import Callee, check_settings
from ._dump import of_kind, read
from ._import import CannotJudge
from ._judge import Dump, Verdict, judge, right_kinds
from ._kind import Case, Fault, Kind, right
from ._record import Recorded, record
from ._report import as_json, details, sentence
from .kinds import KINDS, kind_of

__all__ = ["CannotJudge", "Case", "Dump", "Fault", "KINDS", "Kind", "REFERENCES", "Recorded", "Verdict", "as_json"]
__all__ += ["assert_right", "certify", "details", "fitting", "judge", "of_kind", "read", "record", "sentence"]


def _reference(kind: Kind) -> Callable[[Case], Any]:
    def reference(x: Case) -> Any:
        missing = [name for name in sorted(kind.needs) if getattr(x, name) is None]
        if missing:
            raise ValueError(f"{kind.name} needs {', '.join(missing)}")
        if kind.is_layered and x.logits is not None and x.logits.dim() != 3:
            shape = list(x.logits.shape)
            raise ValueError(f"{kind.name}: logits are {shape}, must be [L,T,n]; of one layer, logits[None]")
        out = kind.reference(x, right)
        return out["loss"] if kind.is_coupling else out

    return reference


REFERENCES: Dict[str, Callable[[Case], Any]] = {name: _reference(kind) for name, kind in KINDS.items()}


def certify(
    function: Callable[..., Any],
    kind: str,
    dtype: Optional[torch.dtype] = None,
    device: str = "cpu",
    seed: int = 0,
    fixed: Optional[Mapping[str, Any]] = None,
    logits: Optional[str] = None,
) -> Verdict:
    """Runs the callable on inputs of this kind, and returns the verdict. `dtype` is the format of the inputs. With None
    they are float64, or float32 where the callable does not take float64. `fixed` has the inputs that the callable has
    inside and does not take, as {"top_k": 2}. `logits` is the form in which the callable takes the logits of several
    layers, "tuple", "stack" or "one". With None all forms are tried. Raises CannotJudge if there is no verdict."""
    check_settings(dtype, device, seed, logits)
    callee = Callee(function, kind_of(kind), fixed, logits)
    by_name = _names.is_padding(callee.mask)
    verdicts: List[Verdict] = []
    reasons: List[CannotJudge] = []
    for padding in (by_name, not by_name) if callee.mask else (False,):
        try:
            verdict = judge(callee.kind, callee.dumps(dtype, device, seed, padding))
        except CannotJudge as error:
            reasons.append(error)
            continue
        if callee.mask:
            verdict.mask = f"{callee.mask} is True at {'padding' if padding else 'tokens that count'}"
        verdicts.append(verdict)
        if verdict.state == "right":
            break
    if not verdicts:
        raise reasons[0]
    return min(verdicts, key=lambda one: ("right", "other", "fault", "unknown").index(one.state))


def fitting(function: Callable[..., Any], **settings: Any) -> List[str]:
    """Returns the kinds as which the callable is right. `settings`: see certify. Raises CannotJudge if no kind fits."""
    return [verdict.kind.name for verdict in right_kinds(lambda kind: certify(function, kind, **settings))]


def assert_right(function: Callable[..., Any], kind: str, **settings: Any) -> None:
    """Raises AssertionError with verdict and remedy if the callable is not right. `settings` are those of certify."""
    verdict = certify(function, kind, **settings)
    if verdict.exit_code:
        raise AssertionError("\n".join([sentence(verdict), *details(verdict)]))
