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

from typing import Any, Callable, Dict, Optional, Sequence

from torch import Tensor

from .._call import in_words, is_plain, loss_in
from .._import import CannotJudge, called, called_by_name, named, raised, signature_of

NAMES = {
    "router": ("router", "R", "r"),
    "w_gate": ("w_gate", "W_g", "Wg", "gate"),
    "delta": ("delta",),
    "alpha": ("alpha",),
    "weight": ("weight",),
    "w_up": ("w_up", "W_p", "Wp", "up"),
    "w_gate_up": ("w_gate_up", "gate_up", "gate_up_proj"),
}
POSITIONAL = ("router", "w_gate", "delta", "alpha", "weight")


class Loss:
    """A callable, and `keywords`: our name of an argument -> its own. None: POSITIONAL, by position."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.keywords = self._keywords()
        self.takes = set(POSITIONAL if self.keywords is None else self.keywords)

    def _keywords(self) -> Optional[Dict[str, str]]:
        try:
            signature = signature_of(self.function)
        except (TypeError, ValueError):  # a built-in function
            return None
        self.parameters = has = named(signature)
        needed = {name for name, p in has.items() if p.default is p.empty}
        found = {ours: theirs for ours, names in NAMES.items() for theirs in names if theirs in has}
        if found and needed <= set(found.values()):
            return found
        try:
            signature.bind(*POSITIONAL)
        except TypeError:
            raise CannotJudge(
                f"its arguments are {signature}, must be some of {', '.join(NAMES)}, or the first five of these "
                "in this order"
            ) from None
        return None

    def __call__(self, values: Dict[str, Any]) -> Dict[str, Any]:
        """The callable's result, as a dict with `loss`."""
        if self.keywords is None:
            given = called(self.function, *(values[name] for name in POSITIONAL))
        else:
            arguments = {theirs: values[ours] for ours, theirs in self.keywords.items()}
            given = called_by_name(self.function, self.parameters, arguments)
        given = {**(given if isinstance(given, dict) else {}), "loss": loss_in(given)}
        self._check(given, values["router"].shape)
        return given

    def _check(self, given: Dict[str, Any], shape: Sequence[int]) -> None:
        n, d = shape
        for name, wanted in (("M", (n, n)), ("delta", (n, d))):
            value = given.get(name)
            if value is not None and not (is_plain(value) and tuple(value.shape) == wanted):
                raise CannotJudge(f"it returns as {name} {in_words(value)}, must be a tensor {list(wanted)}")

    def backward(self, loss: Tensor) -> None:
        try:
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]  # not annotated in torch
        except Exception as error:
            raise raised("its backward pass raises", error) from error
