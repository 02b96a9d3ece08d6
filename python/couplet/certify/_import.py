"""Finds and calls the callable that a user names. Each failure has a one-sentence message."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pathlib
import sys
import traceback
from typing import Any, Callable, Dict, Mapping

from ..report._files import first_line


class CannotJudge(Exception):
    """The reason why there is no verdict, as a sentence. If the callable itself raised, its traceback follows."""


def raised(what: str, error: BaseException) -> CannotJudge:
    """Returns a reason as "it raises KeyError: 'x'", with the traceback from the first frame outside this package."""
    at = error.__traceback__
    while at and str(at.tb_frame.f_globals.get("__package__")).partition(".")[0] in ("couplet", "importlib"):
        at = at.tb_next
    trace = "\n\n" + "".join(traceback.format_exception(type(error), error, at)).rstrip() if at else ""
    return CannotJudge(f"{what} {type(error).__name__}: {first_line(error)}{trace}")


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of the callable, or of a module's forward. Raises TypeError or ValueError without one."""
    inner = getattr(function, "_orig_mod", function)  # torch.compile(module)
    return inspect.signature(getattr(inner, "forward", inner))


def named(signature: inspect.Signature) -> Dict[str, inspect.Parameter]:
    """Returns the parameters without *args and **kwargs."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in signature.parameters.items() if p.kind not in several}


def called(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any]
) -> Any:
    """Calls the function by keyword, and returns its value. Positional-only parameters that are missing get their
    defaults if a later one is given. Raises CannotJudge if the function raises or is a coroutine."""
    by_place = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_ONLY]
    while by_place and by_place[-1] not in arguments:
        by_place.pop()
    values = [arguments.get(name, parameters[name].default) for name in by_place]
    try:
        given = function(*values, **{name: value for name, value in arguments.items() if name not in by_place})
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise raised("it raises", error) from error
    if inspect.iscoroutine(given):
        given.close()
        raise CannotJudge("it is a coroutine (async def), must be a function")
    return given


def _imported(module: str) -> Any:
    try:
        if not module.endswith(".py"):
            return importlib.import_module(module)
        spec = importlib.util.spec_from_file_location(pathlib.Path(module).stem, module)
        assert spec and spec.loader  # A name that ends in .py has both.
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise raised(f"{module} cannot be imported:", error) from error


def load(what: str) -> Callable[..., Any]:
    """Returns the callable of "my_module:my_loss" or "path/to/file.py:my_loss". Raises CannotJudge without one."""
    module, _, name = what.rpartition(":")
    if not module or not name:
        raise CannotJudge(f"{what} names no callable; write my_module:my_loss")
    sys.path.insert(0, "")
    found: object = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise CannotJudge(f"{module} has no {name}")
        found = getattr(found, part)
    if isinstance(found, type):
        raise CannotJudge(f"{name} is a class; name a function, or an instance of it that can be called")
    if not callable(found):
        raise CannotJudge(f"{name} is {found!r:.40}, which cannot be called")
    return found
