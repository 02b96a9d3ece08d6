"""What a step's forward passes show: batches, their padding, and the tokens of each router."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ..models._weights import Weight, plain_name
from ._evaluate import UNIT
from ._import import CannotJudge


def in_backward() -> bool:
    """Whether a forward pass is computed again for a backward pass."""
    return torch._C._current_graph_task_id() != -1


# ---- batches ----


@dataclass
class Batch:
    """Of one forward pass. `sequences`: 0 if that is not known; `tokens`: of a layer, likewise."""

    sequences: int = 0
    tokens: int = 0
    mask: Optional[Tensor] = None  # [tokens], False where padding lies; None: there is none


def _arguments(module: nn.Module, inputs: Sequence[Any], named: Dict[str, Any]) -> Dict[str, Any]:
    """By the names of `forward`; those of a dict come first."""
    dicts = {name: value for one in inputs if isinstance(one, dict) for name, value in one.items()}
    try:
        bound = inspect.signature(module.forward).bind_partial(*inputs, **named).arguments
    except (TypeError, ValueError):
        bound = {str(k): value for k, value in enumerate(inputs)}
    return {**bound, **named, **dicts}


def batch_of(module: nn.Module, inputs: Sequence[Any], named: Dict[str, Any]) -> Batch:
    """Ids are [B,S], embeddings [B,S,d], tokens of no known sequence [T,d]."""
    given = _arguments(module, inputs, named)
    x = next(
        (
            one
            for one in (given.get("input_ids"), given.get("inputs_embeds"), *given.values())
            if isinstance(one, Tensor) and one.dim() > 1
        ),
        None,
    )
    if x is None:
        return Batch()
    if x.is_floating_point() and x.dim() == 2:
        return Batch(tokens=len(x))
    mask: Any = given.get("attention_mask")
    is_padding = isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.bool().all())
    return Batch(len(x), x.shape[0] * x.shape[1], mask.detach().bool().reshape(-1).cpu() if is_padding else None)


class Passes:
    """Hooks on the modules that have all routers: a call of the outermost is one pass. One under torch.no_grad(), as of
    validation, is none of the step's."""

    def __init__(self, model: nn.Module, routers: Sequence["Router"]):
        all_ = {id(router.module) for router in routers}
        own = {id(part) for router in routers for part in router.module.modules()}
        self.holders = [
            one for one in model.modules() if id(one) not in own and all_ <= {id(part) for part in one.modules()}
        ]
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
            found.append(one.register_forward_pre_hook(self._enter, with_kwargs=True))
            found.append(one.register_forward_hook(self._leave, always_call=True))
        for router in self.routers:
            router.passes = self
            found.append(router.module.register_forward_pre_hook(router, with_kwargs=True))
        return found

    def _enter(self, module: nn.Module, inputs: Any, named: Any) -> None:
        if in_backward() or self.inside is not None:
            return
        self.inside, self.is_counted = module, torch.is_grad_enabled()
        self.has_skipped |= not self.is_counted
        if self.is_counted:
            self.batches.append(batch_of(module, inputs, named))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module is self.inside:
            self.inside, self.is_counted = None, True

    def now(self) -> Optional[int]:
        """The pass that a call of a router belongs to: its number, or -1 outside of any; None: it does not count."""
        if in_backward() or not self.is_counted:
            return None
        return len(self.batches) - 1 if self.inside is not None else -1

    def used(self) -> List[Batch]:
        """Those in which routers were called."""
        called = {k for router in self.routers for k, _ in router.calls}
        return [batch for k, batch in enumerate(self.batches) if k in called]


# ---- routers ----


class Router:
    """A pre-hook on the module that routes: keeps its tokens, and hands them on detached."""

    def __init__(self, name: str, weight: Weight, module: nn.Module):
        self.name, self.module = name, module
        self.d = weight.shape[1]
        self.key = next(key for key, _ in module.named_parameters() if f".{name}".endswith(f".{plain_name(key)}"))
        self.passes: Optional[Passes] = None
        self.calls: List[Tuple[int, Tensor]] = []  # the pass, and tokens [t, d]
        self.unit = 0.0  # the largest rounding error of the formats that it computes in

    def __call__(self, module: nn.Module, inputs: Any, named: Any) -> Any:
        at = next((k for k, one in (*enumerate(inputs), *named.items()) if self.is_tokens(one)), None)
        if at is None:
            raise CannotJudge(
                f"{self.name}: its module, a {type(module).__name__}, is called with no tokens [..., {self.d}]"
            )
        x = (named if isinstance(at, str) else inputs)[at]
        number = self.passes.now() if self.passes else None
        if number is not None:
            self.calls.append((number, x.detach().reshape(-1, self.d).cpu()))
            self.unit = max(
                self.unit,
                UNIT[self.module.get_parameter(self.key).dtype],
                UNIT[torch.bfloat16] if torch.is_autocast_enabled(x.device.type) else 0.0,
            )
        if isinstance(at, str):
            return inputs, {**named, at: x.detach()}
        return (*inputs[:at], x.detach(), *inputs[at + 1 :]), named

    def is_tokens(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1 and value.shape[-1] == self.d

    def layers(self, batches: Sequence[Batch]) -> List[List[Tensor]]:
        """Of each layer that calls it, the tokens of each micro-batch: a layer may call it with pieces of a batch, and
        several may share it."""
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
