"""The parts of a model that `record` needs: coefficient, routers and their tokens, and state that a step must keep."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import random
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from .. import hf
from ..figures._token_figures import module_that_reads
from ..models._weights import Weight, follow, is_sharded, plain_name, shards_of
from ._import import CannotJudge
from ._judge import UNIT

NAMES = ("router_aux_loss_coef", "aux_loss_coef", "aux_loss_coeff", "moe_aux_loss_coeff", "aux_loss_alpha")
ADDED = ("bias", "e_score_correction_bias")  # parameters that a router may have beside its weight

Coefficient = Union[None, str, Callable[[float], Any]]
Named = Sequence[Union[str, nn.Module]]


# ---- the coefficient ----


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def places_of(model: nn.Module, coefficient: Optional[str]) -> List[Tuple[Any, str]]:
    """Returns owners and names of the coefficient, from a path with points or from all modules and configs."""
    if coefficient and "." in coefficient:
        owner: Any = model
        *parts, name = coefficient.split(".")
        for part in parts:
            owner = getattr(owner, part, None)
        return [(owner, name)] if is_number(getattr(owner, name, None)) else []
    modules = [one for module in model.modules() for one in (module, getattr(module, "config", None))]
    holders = {id(one): one for one in modules if one is not None}
    for name in [coefficient] if coefficient else NAMES:
        found = [(one, name) for one in holders.values() if is_number(getattr(one, name, None))]
        if found:
            return found
    return []


class Setting:
    """Sets the coefficient. `value` is the coefficient of the model, or the requested one."""

    def __init__(self, model: nn.Module, coefficient: Coefficient, value: Optional[float]):
        if not (coefficient is None or isinstance(coefficient, str) or callable(coefficient)):
            raise CannotJudge(f"coefficient is {coefficient!r:.40}, must be a name or a function that sets it")
        self.function = coefficient if callable(coefficient) else None
        self.places = [] if callable(coefficient) else places_of(model, coefficient)
        self.before = [getattr(owner, name) for owner, name in self.places]
        if not self.function and not self.places:
            name = coefficient or "that is known as a coefficient"
            how = "give coefficient= its name, or a function that sets it"
            raise CannotJudge(f"cannot be told: the model has no number {name}; {how}")
        given = value if value is not None else self.before[0] if self.before else math.nan
        if not is_number(given):
            raise CannotJudge(f"value is {given!r:.40}, must be a number")
        if not given > 0 or not math.isfinite(given):
            raise CannotJudge(f"cannot be told: the coefficient is {given:g}; give value= one above 0")
        self.value = float(given)

    def set(self, value: Optional[float] = None) -> None:
        """Sets the coefficient. None restores the model's value."""
        try:
            if self.function:
                self.function(self.value if value is None else value)
            for (owner, name), before in zip(self.places, self.before):
                setattr(owner, name, before if value is None else value)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            how = "give coefficient= a function that sets it"
            raise CannotJudge(f"cannot be told: the coefficient cannot be set; {how}: {why}") from error


# ---- batches ----


@dataclass
class Batch:
    """One forward pass. `sequences`, and `tokens` of a layer, are 0 if they are not known."""

    sequences: int = 0
    tokens: int = 0
    mask: Optional[Tensor] = None  # [tokens], False at padding; None without padding


def batch_of(module: nn.Module, inputs: Sequence[Any], named: Dict[str, Any]) -> Batch:
    """Returns the batch of a call. Ids are [B,S], embeddings [B,S,d], tokens of unknown sequences [T,d]. Arguments have
    the names of `forward`. Entries of a dict come first."""
    dicts = {name: value for one in inputs if isinstance(one, dict) for name, value in one.items()}
    try:
        bound = inspect.signature(module.forward).bind_partial(*inputs, **named).arguments
    except (TypeError, ValueError):
        bound = {str(k): value for k, value in enumerate(inputs)}
    given = {**bound, **named, **dicts}
    tensors = (given.get("input_ids"), given.get("inputs_embeds"), *given.values())
    x = next((one for one in tensors if isinstance(one, Tensor) and one.dim() > 1), None)
    if x is None:
        return Batch()
    if x.is_floating_point() and x.dim() == 2:
        return Batch(tokens=len(x))
    mask: Any = given.get("attention_mask")
    is_padding = isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.bool().all())
    return Batch(len(x), x.shape[0] * x.shape[1], mask.detach().bool().reshape(-1).cpu() if is_padding else None)


def in_backward() -> bool:
    """Returns whether a forward pass is computed again for a backward pass."""
    return torch._C._current_graph_task_id() != -1


class Passes:
    """Hooks on the modules that have all routers, and on the routers. A call of the outermost module is one pass. A
    call under torch.no_grad(), for example in validation, is not a pass of the step."""

    def __init__(self, model: nn.Module, routers: Sequence["Router"]):
        all_ = {id(router.module) for router in routers}
        own = {id(part) for router in routers for part in router.module.modules()}
        others = [one for one in model.modules() if id(one) not in own]
        self.holders = [one for one in others if all_ <= {id(part) for part in one.modules()}]
        self.routers = routers
        self.clear()

    def clear(self) -> None:
        self.batches: List[Batch] = []
        self.inside: Optional[nn.Module] = None
        self.is_counted = True
        self.has_skipped = False
        for router in self.routers:
            router.calls = []

    def hooks(self) -> List[Any]:
        found: List[Any] = []
        for one in self.holders:
            found.append(one.register_forward_pre_hook(self.enter, with_kwargs=True))
            found.append(one.register_forward_hook(self.leave, always_call=True))
        for router in self.routers:
            hook = functools.partial(self.detach_tokens, router)
            found.append(router.module.register_forward_pre_hook(hook, with_kwargs=True))
        return found

    def enter(self, module: nn.Module, inputs: Any, named: Any) -> None:
        if in_backward() or self.inside is not None:
            return
        self.inside, self.is_counted = module, torch.is_grad_enabled()
        self.has_skipped |= not self.is_counted
        if self.is_counted:
            self.batches.append(batch_of(module, inputs, named))

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module is self.inside:
            self.inside, self.is_counted = None, True

    def detach_tokens(self, router: "Router", module: nn.Module, inputs: Any, named: Any) -> Any:
        """Keeps the router's tokens with the number of the pass, or -1. Returns the arguments with detached tokens."""
        at = next((k for k, one in (*enumerate(inputs), *named.items()) if router.is_tokens(one)), None)
        if at is None:
            what = f"its module, a {type(module).__name__}, is called with no tokens [..., {router.d}]"
            raise CannotJudge(f"{router.name}: {what}")
        x = (named if isinstance(at, str) else inputs)[at].detach()
        if self.is_counted and not in_backward():
            number = len(self.batches) - 1 if self.inside is not None else -1
            router.calls.append((number, x.reshape(-1, router.d).cpu()))
            kinds = [router.dtype, router.module.get_parameter(router.key).dtype]
            kinds += [torch.bfloat16] if torch.is_autocast_enabled(x.device.type) else []
            router.dtype = max(kinds, key=lambda one: UNIT[one])
        if isinstance(at, str):
            return inputs, {**named, at: x}
        return (*inputs[:at], x, *inputs[at + 1 :]), named

    def used(self) -> List[Batch]:
        """Returns the passes in which routers were called."""
        called = {k for router in self.routers for k, _ in router.calls}
        return [batch for k, batch in enumerate(self.batches) if k in called]


# ---- routers ----


class Router:
    """A module that routes, and the tokens of its calls."""

    def __init__(self, name: str, weight: Weight, module: nn.Module):
        self.name, self.module = name, module
        self.d = weight.shape[1]
        self.key = next(key for key, _ in module.named_parameters() if f".{name}".endswith(f".{plain_name(key)}"))
        self.calls: List[Tuple[int, Tensor]] = []  # the number of the pass, and tokens [t, d]
        self.dtype = torch.float32  # the coarsest format in which the module computes

    def is_tokens(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1 and value.shape[-1] == self.d

    def layers(self, batches: Sequence[Batch]) -> List[List[Tensor]]:
        """Returns the tokens of each micro-batch, for each layer that calls the module. A layer may call it with pieces
        of a batch, and several layers may share it."""
        each = [[x] for k, x in self.calls if k < 0]
        for k, batch in enumerate(batches):
            calls = [x for number, x in self.calls if number == k]
            if len(calls) > 1 and sum(map(len, calls)) == batch.tokens:
                calls = [torch.cat(calls)]
            if len(calls) > 1 and {len(x) for x in calls} != {batch.tokens}:
                raise CannotJudge(
                    f"{self.name}: its module is called {len(calls)} times in a forward pass, each time with a "
                    "part of the tokens, or in layers that share it: which is not known; give its loss to certify()"
                )
            each += [calls] if calls else []
        if len({len(one) for one in each}) > 1:
            raise CannotJudge(f"{self.name}: its module is called differently often in different forward passes")
        return [list(one) for one in zip(*each)]


def named_routers(model: nn.Module, routers: Optional[Named]) -> List[Tuple[str, Optional[nn.Module]]]:
    """Returns the names of the routers' weights, from the table of families or as given, and the given modules."""
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
    if any(not isinstance(one, str) and id(one) not in modules for one in routers):
        raise CannotJudge("routers: one of them is no module of the model")
    return [(one, None) if isinstance(one, str) else (f"{modules[id(one)]}.weight".lstrip("."), one) for one in routers]


def routers_of(model: nn.Module, routers: Optional[Named]) -> List[Router]:
    found: Dict[int, Router] = {}  # A module that layers share is called by each.
    for given, module in named_routers(model, routers):
        name = plain_name(given)
        weight = follow(model, name, shards_of(model))
        if weight is None or weight.is_computed or len(weight.shape) != 2:
            why = ": an adapter computes it" if weight and weight.is_computed else ""
            raise CannotJudge(f"{name} is no parameter [n, d] of the model{why}")
        try:
            module = module or module_that_reads(model, name)
        except ValueError as error:
            raise CannotJudge(str(error).replace("record_tokens(routers=...)", "routers=")) from None
        keys = [key for key, _ in module.named_parameters() if not f".{name}".endswith(f".{plain_name(key)}")]
        other = next((key for key in keys if key.rpartition(".")[2] not in ADDED), None)
        if other:
            raise CannotJudge(f"{name}: its router has {other} too, so that its logits are not W x")
        found.setdefault(id(module), Router(name, weight, module))
    if not found:
        raise CannotJudge("routers= names none")
    return list(found.values())


# ---- state of a step ----


class State:
    """Random numbers, buffers and gradients, which a step may change, and parameters, which it may not change."""

    def __init__(self, model: nn.Module):
        self.parameters = list(model.parameters())
        self.gradients = [p.grad for p in self.parameters]
        self.buffers = [(module._buffers, dict(module._buffers)) for module in model.modules()]
        self.values = [(one, one.detach().clone()) for one in model.buffers()]
        self.written = self.writes()

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Sets gradients to None, and restores the state at the end. Raises CannotJudge if parameters were changed."""
        for p in self.parameters:
            p.grad = None
        try:
            with same_random_numbers():
                yield
        finally:
            for p, grad in zip(self.parameters, self.gradients):
                p.grad = grad
            for buffers, before in self.buffers:
                buffers.clear()
                buffers.update(before)
            with torch.no_grad():
                for buffer, value in self.values:
                    buffer.resize_(value.shape).copy_(value)
        if self.writes() != self.written:
            raise CannotJudge("the step has changed parameters: leave the optimizer's step out")

    def writes(self) -> List[Tuple[int, float]]:
        """Returns the number of writes and the sum of each parameter. The sum shows writes unseen by autograd."""
        floats = [p.nansum(dtype=torch.float64) if p.is_floating_point() else 0.0 for p in map(local, self.parameters)]
        return [(p._version, float(one)) for p, one in zip(self.parameters, floats)]

    def gradient_size(self) -> float:
        """Returns the norm of all gradients of this process."""
        grads = [local(p.grad).double() for p in self.parameters if p.grad is not None]
        return math.sqrt(sum(float(one.square().sum()) for one in grads))


def local(value: Any) -> Any:
    """Returns the part of the tensor in this process, without its graph."""
    return value.to_local() if is_sharded(value) else value.detach()


def no_optimizer(*_: Any) -> None:
    """Refuses the step of an optimizer. It is a hook before the step."""
    raise CannotJudge("the step changes parameters: leave the optimizer's step out")


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restores the state of the random number generators at the end."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(of_numpy)
