"""A user's coupling loss, for `python -m couplet.certify`: calls it with the arguments that it has, and
checks what it returns."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Optional, Sequence

import torch
from torch import Tensor, nn

from ._import import CannotJudge, raised

NAMES = {"router": ("router", "R", "r"), "w_gate": ("w_gate", "W_g", "Wg", "gate"),
         "delta": ("delta",), "alpha": ("alpha",), "weight": ("weight",),
         "w_up": ("w_up", "W_p", "Wp", "up"),
         "w_gate_up": ("w_gate_up", "gate_up", "gate_up_proj")}
POSITIONAL = ("router", "w_gate", "delta", "alpha", "weight")


def _is_shaped(value: Any, shape: Sequence[int]) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == tuple(shape)


def _in_words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    return "None" if value is None else f"a {type(value).__name__}"


class Loss:
    """A callable, and `keywords`: our name of an argument -> its own. None: POSITIONAL, by position."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.keywords = self._keywords()
        self.takes = set(POSITIONAL if self.keywords is None else self.keywords)

    def _keywords(self) -> Optional[Dict[str, str]]:
        function = self.function.forward if isinstance(self.function, nn.Module) else self.function
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # a built-in function
            return None
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        has = {name: p for name, p in signature.parameters.items() if p.kind not in several}
        needed = {name for name, p in has.items() if p.default is p.empty}
        found = {ours: theirs for ours, names in NAMES.items() for theirs in names
                 if theirs in has and has[theirs].kind is not inspect.Parameter.POSITIONAL_ONLY}
        if found and needed <= set(found.values()):
            return found
        try:
            signature.bind(*POSITIONAL)
        except TypeError:
            raise CannotJudge(f"its arguments are {signature}, must be some of {', '.join(NAMES)}, or the first "
                            "five of these in this order") from None
        return None

    def __call__(self, values: Dict[str, Any]) -> Dict[str, Any]:
        """The callable's result, as a dict with `loss`."""
        try:
            if self.keywords is None:
                given = self.function(*(values[name] for name in POSITIONAL))
            else:
                given = self.function(**{theirs: values[ours] for ours, theirs in self.keywords.items()})
        except (Exception, SystemExit) as error:
            raise raised("it raises", error) from error
        given = dict(given) if isinstance(given, dict) else {"loss": given}
        self._check(given, values["router"].shape)
        return given

    def _check(self, given: Dict[str, Any], shape: Sequence[int]) -> None:
        n, d = shape
        if "loss" not in given:
            raise CannotJudge(f"it returns a dict with {', '.join(map(str, given)) or 'nothing'}, must have loss")
        loss = given["loss"]
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            raise CannotJudge(f"it returns {_in_words(loss)}, must return the loss, a tensor of one number, or a "
                            "dict with loss")
        for name, wanted in (("M", (n, n)), ("delta", (n, d))):
            if given.get(name) is not None and not _is_shaped(given[name], wanted):
                raise CannotJudge(f"it returns as {name} {_in_words(given[name])}, must be a tensor "
                                f"{list(wanted)}")

    def backward(self, loss: Tensor) -> None:
        try:
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]  # not annotated in torch
        except Exception as error:
            raise raised("its backward pass raises", error) from error
