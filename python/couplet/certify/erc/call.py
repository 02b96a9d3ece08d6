"""A user's coupling loss: calls it with the arguments that it has, and checks what it returns.

It is called with keywords, those of the following that it has. One that needs any other is called with the first five by
position, in this order:

    router, w_gate, delta, alpha, weight         also R; W_g, Wg, gate
    w_up                                         also W_p, Wp, up: the up projections [n, D, d]
    w_gate_up                                    also gate_up, gate_up_proj: [n, 2D, d], gate first

router [n, d], w_gate [n, D, d], delta [n, d] noise, alpha and weight numbers. It returns the loss, or a dict with `loss`
and, where it has them, `M` [n, n] and `delta` [n, d], its own noise. A callable that neither takes nor returns delta must
not use noise."""
from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Optional, Sequence

import torch
from torch import Tensor, nn

from ..._import import CannotJudge, raised

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
            raise CannotJudge(f"its arguments are {signature}, must be some of {', '.join(NAMES)}, or the first five of these "
                              "in this order") from None
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
