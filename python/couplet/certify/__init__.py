"""Is a loss of MoE training right, and if not, which fault does it have?

    python -m couplet.certify my_module:my_loss --loss load-balancing-mixtral
    couplet.certify.assert_right(my_loss, kind="z-loss")       # in a test
    couplet.certify.certify(my_loss, kind="z-loss")            # a Verdict
    couplet.certify.record(model, coefficient=...)             # of a whole training step
    couplet.certify.REFERENCES["z-loss"](Case(logits=...))     # the loss as the literature writes it

docs/losses.md lists the kinds. The callable is called with keywords, those of the kind's inputs that it has, under
any of their usual names. Its loss and gradients are held against the reference in float64, and against the reference
with each known fault, and each pair of them."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from .. import _need_torch

_need_torch()

import torch  # noqa: E402

from . import erc  # noqa: E402
from ._call import check_settings, dumps  # noqa: E402
from ._dump import of_kind, read, write  # noqa: E402
from ._fits import Dump  # noqa: E402
from ._import import CannotJudge  # noqa: E402
from ._judge import Verdict, is_right, judge  # noqa: E402
from ._kind import NONE, Case, Fault, Kind  # noqa: E402
from ._record import Recorded, record  # noqa: E402
from ._report import as_json, details, sentence  # noqa: E402
from .kinds import KINDS  # noqa: E402

__all__ = [
    "CannotJudge",
    "Case",
    "Dump",
    "Fault",
    "KINDS",
    "Kind",
    "REFERENCES",
    "Recorded",
    "Verdict",
    "as_json",
    "assert_right",
    "certify",
    "details",
    "erc",
    "fitting",
    "judge",
    "of_kind",
    "read",
    "record",
    "sentence",
    "write",
]


def _reference(kind: Kind) -> Callable[[Case], Any]:
    def reference(x: Case) -> Any:
        missing = [name for name in sorted(kind.needs) if getattr(x, name) is None]
        if missing:
            raise ValueError(f"{kind.name} needs {', '.join(missing)}")
        if kind.outputs == ("loss",) and x.logits is not None and x.logits.dim() != 3:
            raise ValueError(
                f"{kind.name}: logits are {list(x.logits.shape)}, must be [L,T,n]; of one layer, logits[None]"
            )
        return kind.reference(x, NONE)

    return reference


REFERENCES: Dict[str, Callable[[Case], Any]] = {
    "erc": erc.loss,
    **{name: _reference(kind) for name, kind in KINDS.items()},
}


def kind_of(name: str) -> Kind:
    if name not in KINDS:
        raise CannotJudge(f"there is no kind of loss {name}: erc, {', '.join(KINDS)}")
    return KINDS[name]


def certify(
    function: Callable[..., Any],
    kind: str,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    fixed: Optional[Mapping[str, Any]] = None,
    logits: Optional[str] = None,
    rounding: Optional[str] = None,
) -> Union[Verdict, erc.Certificates]:
    """Runs the callable on inputs of this kind. `fixed`: inputs that it has inside and does not take, as {"top_k": 2};
    `logits`: "tuple", "stack" or "one", how it takes those of several layers (found out by trying). `rounding`: what is
    let pass, "f32", with TF32, or "bf16"; None: the latter where a number has 16 bits; no TF32 on a CPU. CannotJudge:
    why there is no verdict. Of the coupling loss, kind "erc": certificates; it has one seed."""
    check_settings(dtype, device, seed, logits, rounding)
    if kind == "erc":
        return erc.judge(erc.dumps(function, dtype, device, fixed), None if rounding is None else rounding == "bf16")
    return judge(
        kind_of(kind),
        dumps(function, kind_of(kind), dtype, device, seed, fixed, logits),
        rounding or rounding_on(device, dtype),
    )


def rounding_on(device: str, dtype: torch.dtype) -> Optional[str]:
    """A CPU has no TF32."""
    return "exact" if torch.device(device).type == "cpu" and dtype in (torch.float32, torch.float64) else None


def fitting(function: Callable[..., Any], rounding: Optional[str] = None, **settings: Any) -> List[str]:
    """The kinds as which it is right; settings: of certify. CannotJudge: it can be judged as none."""
    check_settings(rounding=rounding, **settings)
    found: List[str] = []
    reasons: List[str] = []
    on = rounding_on(settings.get("device", "cpu"), settings.get("dtype", torch.float32))
    for name in ("erc", *KINDS):
        try:
            if (
                name == "erc"
                and certify(function, name, rounding=rounding, **settings).exit_code == 0
                or (name != "erc" and is_right(KINDS[name], dumps(function, KINDS[name], **settings), rounding or on))
            ):
                found.append(name)
        except CannotJudge as error:
            reasons.append(str(error))
    if len(reasons) == 1 + len(KINDS):
        raise CannotJudge(max(reasons, key=reasons.count))
    return found


def assert_right(function: Callable[..., Any], kind: str, **settings: Any) -> None:
    """For a test: AssertionError with the verdict and how to mend it unless the callable is right; settings: of
    certify."""
    verdict = certify(function, kind, **settings)
    if verdict.exit_code:
        raise AssertionError("\n".join([sentence(verdict), *details(verdict)]))
