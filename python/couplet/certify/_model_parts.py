"""What `record` needs of a model: its coefficient, its routers, and what a step may change and must leave as it was."""

from __future__ import annotations

import math
import random
import sys
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from .. import hf
from ..figures._token_figures import module_that_reads
from ..models._weights import follow, plain_name, shards_of
from ._import import CannotJudge
from ._passes import Router

NAMES = ("router_aux_loss_coef", "aux_loss_coef", "aux_loss_coeff", "moe_aux_loss_coeff", "aux_loss_alpha")
ADDED = ("bias", "e_score_correction_bias")  # parameters that a router may have beside its weight

Coefficient = Union[None, str, Callable[[float], Any]]
Named = Sequence[Union[str, nn.Module]]


# ---- the coefficient ----


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
        return [(owner, name)] if _is_number(getattr(owner, name, None)) else []
    names = [coefficient] if coefficient else NAMES
    holders = {
        id(one): one
        for module in model.modules()
        for one in (module, getattr(module, "config", None))
        if one is not None
    }
    for name in names:
        found = [(one, name) for one in holders.values() if _is_number(getattr(one, name, None))]
        if found:
            return found
    return []


class Setting:
    """Sets the coefficient; `value` is the one it has, or the one that is asked for."""

    def __init__(self, model: nn.Module, coefficient: Coefficient, value: Optional[float]):
        if not (coefficient is None or isinstance(coefficient, str) or callable(coefficient)):
            raise CannotJudge(f"coefficient is {coefficient!r:.40}, must be a name or a function that sets it")
        self.places = [] if callable(coefficient) else _places(model, coefficient)
        self.before = [getattr(owner, name) for owner, name in self.places]
        self.function = coefficient if callable(coefficient) else None
        if not self.function and not self.places:
            raise CannotJudge(
                f"cannot be told: the model has no number {coefficient or 'that is known as a coefficient'}; "
                "give coefficient= its name, or a function that sets it"
            )
        given = value if value is not None else self.before[0] if self.before else math.nan
        if not _is_number(given):
            raise CannotJudge(f"value is {given!r:.40}, must be a number")
        if not given > 0 or not math.isfinite(given):
            raise CannotJudge(f"cannot be told: the coefficient is {given:g}; give value= one above 0")
        self.value = float(given)

    def set(self, value: float) -> None:
        self._set_all([value] * len(self.places), value)

    def restore(self) -> None:
        self._set_all(self.before, self.value)

    def _set_all(self, values: Sequence[float], value: float) -> None:
        try:
            if self.function:
                self.function(value)
            for (owner, name), one in zip(self.places, values):
                setattr(owner, name, one)
        except Exception as error:
            raise CannotJudge(
                "cannot be told: the coefficient cannot be set; give coefficient= a function that sets it: "
                f"{type(error).__name__}: {error}"
            ) from error


# ---- routers ----


def named_routers(model: nn.Module, routers: Optional[Named]) -> List[Tuple[str, Optional[nn.Module]]]:
    """Names of the routers' weights, those of the table of families or those that are given, and the modules where these are
    given."""
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
        return [(layer.names[0], None) for layer in layers]
    modules = {id(module): name for name, module in model.named_modules()}
    for one in routers:
        if not isinstance(one, str) and id(one) not in modules:
            raise CannotJudge("routers: one of them is no module of the model")
    return [(one, None) if isinstance(one, str) else (f"{modules[id(one)]}.weight".lstrip("."), one) for one in routers]


def routers_of(model: nn.Module, routers: Optional[Named]) -> List[Router]:
    found: Dict[int, Router] = {}  # one that layers share is called by each
    for given, module in named_routers(model, routers):
        name = plain_name(given)
        weight = follow(model, name, shards_of(model))
        if weight is None or weight.is_computed or len(weight.shape) != 2:
            raise CannotJudge(
                f"{name} is no parameter [n, d] of the model"
                + (": an adapter computes it" if weight and weight.is_computed else "")
            )
        try:
            module = module or module_that_reads(model, name)
        except ValueError as error:
            raise CannotJudge(str(error).replace("record_tokens(routers=...)", "routers=")) from None
        other = next(
            (
                key
                for key, _ in module.named_parameters()
                if key.rpartition(".")[2] not in ADDED and not f".{name}".endswith(f".{plain_name(key)}")
            ),
            None,
        )
        if other:
            raise CannotJudge(f"{name}: its router has {other} too, so that its logits are not W x")
        found.setdefault(id(module), Router(name, weight, module))
    if not found:
        raise CannotJudge("routers= names none")
    return list(found.values())


# ---- what a step depends on ----


class State:
    """Random numbers, buffers, gradients and parameters; a step changes the first three, and may not change the last."""

    def __init__(self, model: nn.Module):
        self.modules = list(model.modules())
        self.parameters = list(model.parameters())
        self.gradients = [p.grad for p in self.parameters]
        self.buffers = [dict(module._buffers) for module in self.modules]
        self.values = {id(one): one.detach().clone() for one in model.buffers()}
        self.sums = self._sums()
        self.random = random_state()

    def begin(self) -> None:
        for p in self.parameters:
            p.grad = None

    def end(self) -> None:
        """After a step: everything but gradients."""
        self.random()
        with torch.no_grad():
            for module, before in zip(self.modules, self.buffers):
                for name in set(module._buffers) - set(before):
                    del module._buffers[name]
                for name, buffer in before.items():
                    module._buffers[name] = buffer
                    if buffer is not None:
                        buffer.resize_(self.values[id(buffer)].shape).copy_(self.values[id(buffer)])
        if self._sums() != self.sums:
            raise CannotJudge("the step has changed parameters: leave the optimizer's step out")

    def restore(self) -> None:
        for p, grad in zip(self.parameters, self.gradients):
            p.grad = grad

    def _sums(self) -> List[Tuple[int, float]]:
        """Of each parameter, how often it was written, and its sum, which sees what is written past autograd."""
        return [(p._version, _sum(p)) for p in self.parameters]

    def gradient_size(self) -> float:
        """Of all parameters of this process."""
        return math.sqrt(
            sum(float(_local(p.grad).double().square().sum()) for p in self.parameters if p.grad is not None)
        )


def _local(value: Tensor) -> Tensor:
    return value.to_local() if hasattr(value, "to_local") else value.detach()


def _sum(value: Tensor) -> float:
    found = float(_local(value).sum(dtype=torch.float64)) if value.is_floating_point() else 0.0
    return 0.0 if math.isnan(found) else found


def no_optimizer(*_: Any) -> None:
    """A hook before any optimizer's step."""
    raise CannotJudge("the step changes parameters: leave the optimizer's step out")


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
