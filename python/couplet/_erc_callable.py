"""A user's coupling loss, for `python -m couplet.certify`: imports it, calls it with the arguments that it
has, and checks what it returns. CannotRun says in a sentence what failed."""
from __future__ import annotations

import importlib
import importlib.util
import inspect
import pathlib
import sys
import traceback
from typing import Any, Callable, Dict, Optional, Sequence

import torch
from torch import Tensor, nn

NAMES = {"router": ("router", "R", "r"), "w_gate": ("w_gate", "W_g", "Wg", "gate"),
         "delta": ("delta",), "alpha": ("alpha",), "weight": ("weight",),
         "w_up": ("w_up", "W_p", "Wp", "up"),
         "w_gate_up": ("w_gate_up", "gate_up", "gate_up_proj")}
POSITIONAL = ("router", "w_gate", "delta", "alpha", "weight")


class CannotRun(Exception):
    """Why, in a sentence. Where the callable itself raised, its traceback follows."""


def _raised(what: str, error: BaseException) -> CannotRun:
    """"it raises KeyError: 'x'", and the traceback from the first frame outside this package."""
    ours = ("couplet", "importlib")
    at = error.__traceback__
    while at and str(at.tb_frame.f_globals.get("__package__")).partition(".")[0] in ours:
        at = at.tb_next
    trace = "".join(traceback.format_exception(type(error), error, at)) if at else ""
    first = (str(error).splitlines() or [""])[0]
    return CannotRun(f"{what} {type(error).__name__}: {first}" + (f"\n\n{trace.rstrip()}" if trace else ""))


def _imported(module: str) -> Any:
    try:
        if not module.endswith(".py"):
            return importlib.import_module(module)
        spec = importlib.util.spec_from_file_location(pathlib.Path(module).stem, module)
        assert spec and spec.loader  # a name that ends in .py has both
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
    except (Exception, SystemExit) as error:
        raise _raised(f"{module} cannot be imported:", error) from error


def load(what: str) -> Callable[..., Any]:
    """The callable of "my_module:my_loss" or "path/to/file.py:my_loss"."""
    module, _, name = what.rpartition(":")
    if not module or not name:
        raise CannotRun(f"{what} names no callable; write my_module:my_loss")
    sys.path.insert(0, "")
    found: object = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise CannotRun(f"{module} has no {name}")
        found = getattr(found, part)
    if isinstance(found, type):
        raise CannotRun(f"{name} is a class; name a function, or an instance of it that can be called")
    if not callable(found):
        raise CannotRun(f"{name} is {found!r:.40}, which cannot be called")
    return found


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
            raise CannotRun(f"its arguments are {signature}, must be some of {', '.join(NAMES)}, or the first "
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
            raise _raised("it raises", error) from error
        given = dict(given) if isinstance(given, dict) else {"loss": given}
        self._check(given, values["router"].shape)
        return given

    def _check(self, given: Dict[str, Any], shape: Sequence[int]) -> None:
        n, d = shape
        if "loss" not in given:
            raise CannotRun(f"it returns a dict with {', '.join(map(str, given)) or 'nothing'}, must have loss")
        loss = given["loss"]
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            raise CannotRun(f"it returns {_in_words(loss)}, must return the loss, a tensor of one number, or a "
                            "dict with loss")
        for name, wanted in (("M", (n, n)), ("delta", (n, d))):
            if given.get(name) is not None and not _is_shaped(given[name], wanted):
                raise CannotRun(f"it returns as {name} {_in_words(given[name])}, must be a tensor "
                                f"{list(wanted)}")

    def backward(self, loss: Tensor) -> None:
        try:
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]  # not annotated in torch
        except Exception as error:
            raise _raised("its backward pass raises", error) from error
