"""What `record` needs of a model: its coefficient, its routers and their tokens, and what a step's randomness depends on."""
from __future__ import annotations

import math
import random
import sys
import warnings
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from .. import hf
from .._import import CannotJudge
from .._token_figures import module_that_reads
from .._weights import Weight, follow, plain_name, shards_of

NAMES = ("router_aux_loss_coef", "aux_loss_coef", "aux_loss_coeff", "moe_aux_loss_coeff", "aux_loss_alpha")
ADDED = ("bias", "e_score_correction_bias")  # parameters that a router may have beside its weight

Coefficient = Union[None, str, Callable[[float], Any]]
Named = Sequence[Union[str, nn.Module]]


def in_backward() -> bool:
    """Whether a forward pass is computed again for a backward pass."""
    return torch._C._current_graph_task_id() != -1


# ---- the coefficient ----

def _owner(model: nn.Module, path: str) -> Tuple[Any, str]:
    """The object that has the attribute "a.b.name", and the name."""
    owner: Any = model
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part, None)
    return owner, name


def _places(model: nn.Module, coefficient: Optional[str]) -> List[Tuple[Any, str]]:
    """Where the coefficient stands: at a path with points, or wherever a module or its config has this name."""
    if coefficient and "." in coefficient:
        owner, name = _owner(model, coefficient)
        return [(owner, name)] if hasattr(owner, name) else []
    names = [coefficient] if coefficient else NAMES
    holders = {id(one): one for module in model.modules() for one in (module, getattr(module, "config", None))
               if one is not None}
    for name in names:
        found = [(one, name) for one in holders.values() if isinstance(getattr(one, name, None), (int, float))]
        if found:
            return found
    return []


class Setting:
    """Sets the coefficient; `value` is the one it has, or the one that is asked for."""

    def __init__(self, model: nn.Module, coefficient: Coefficient, value: Optional[float]):
        self.places = [] if callable(coefficient) else _places(model, coefficient)
        self.before = [getattr(owner, name) for owner, name in self.places]
        self.function = coefficient if callable(coefficient) else None
        if not self.function and not self.places:
            raise CannotJudge(f"cannot be told: the model has no number {coefficient or 'that is known as a coefficient'}; "
                              "give coefficient= its name, or a function that sets it")
        given = value if value is not None else self.before[0] if self.before else math.nan
        if not given > 0 or not math.isfinite(given):
            raise CannotJudge(f"cannot be told: the coefficient is {given:g}; give value= one above 0")
        self.value = float(given)

    def set(self, value: float) -> None:
        if self.function:
            self.function(value)
        for owner, name in self.places:
            setattr(owner, name, value)

    def restore(self) -> None:
        if self.function:
            self.function(self.value)
        for (owner, name), value in zip(self.places, self.before):
            setattr(owner, name, value)


# ---- routers ----

class Router:
    """A pre-hook on the module that routes: keeps its tokens, and hands them on detached."""

    def __init__(self, name: str, weight: Weight, module: nn.Module):
        self.name, self.module = name, module
        self.d = weight.shape[1]
        self.tokens: List[Tensor] = []  # [t, d] of each forward pass
        self.is_autocast = False

    def __call__(self, module: nn.Module, inputs: Any, named: Any) -> Any:
        at = next((k for k, one in (*enumerate(inputs), *named.items()) if self.is_tokens(one)), None)
        if at is None:
            raise CannotJudge(f"{self.name}: its module, a {type(module).__name__}, is called with no tokens "
                              f"[..., {self.d}]")
        x = (named if isinstance(at, str) else inputs)[at]
        self.is_autocast |= torch.is_autocast_enabled(x.device.type)
        if not in_backward():
            self.tokens.append(x.detach().reshape(-1, self.d).cpu())
        if isinstance(at, str):
            return inputs, {**named, at: x.detach()}
        return (*inputs[:at], x.detach(), *inputs[at + 1:]), named

    def is_tokens(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1 and value.shape[-1] == self.d


def names_of(model: nn.Module, routers: Optional[Named]) -> List[str]:
    """Of the routers' weights: those of the table of families, or of the names and modules that are given."""
    if routers is None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*left out")
                layers = hf.find(model)
        except (ValueError, UserWarning) as error:
            raise CannotJudge(f"{error}; give routers= the modules that route, or the names of their weights") from None
        turned = next((layer.names[0] for layer in layers if layer.router_transposed), None)
        if turned:
            raise CannotJudge(f"{turned} is stored as [d, n], which is not supported")
        return [layer.names[0] for layer in layers]
    modules = {id(module): name for name, module in model.named_modules()}
    for one in routers:
        if not isinstance(one, str) and id(one) not in modules:
            raise CannotJudge("routers: one of them is no module of the model")
    return [one if isinstance(one, str) else f"{modules[id(one)]}.weight".lstrip(".") for one in routers]


def routers_of(model: nn.Module, names: Sequence[str]) -> List[Router]:
    found = []
    for name in map(plain_name, names):
        weight = follow(model, name, shards_of(model))
        if weight is None or weight.is_computed or len(weight.shape) != 2:
            raise CannotJudge(f"{name} is no parameter [n, d] of the model" +
                              (": an adapter computes it" if weight and weight.is_computed else ""))
        try:
            module = module_that_reads(model, name)
        except ValueError as error:
            raise CannotJudge(str(error).replace("record_tokens(routers=...)", "routers=")) from None
        other = next((key for key, _ in module.named_parameters() if key.rpartition(".")[2] not in ADDED and
                      not f".{name}".endswith(f".{plain_name(key)}")), None)
        if other:
            raise CannotJudge(f"{name}: its router has {other} too, so that its logits are not W x")
        found.append(Router(name, weight, module))
    return found


# ---- what a step depends on ----

def random_state() -> Callable[[], None]:
    """A function that brings the generators back to where they are."""
    python, cpu = random.getstate(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy = sys.modules.get("numpy")
    other = numpy.random.get_state() if numpy else None

    def back() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        if numpy:
            numpy.random.set_state(other)
    return back
