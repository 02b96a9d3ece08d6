"""Rounding errors, made at random where a computation in a narrower format would make them."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ._kind import generator

MANY = 1 << 16  # numbers of a tensor whose errors are not all drawn anew
ADDED = 2.0**-22  # four rounding errors of float32, in which narrower numbers are added up
SUMS = ("sum", "mean", "mm", "bmm", "addmm", "logsumexp", "linalg_vector_norm")
OF_MASKED = ("_softmax", "_log_softmax", "logsumexp", "sigmoid")  # their operand may be -inf where it is masked
# No arithmetic.
MOVES = (
    "view",
    "_unsafe_view",
    "expand",
    "t",
    "transpose",
    "select",
    "slice",
    "clone",
    "detach",
    "permute",
    "alias",
    "unsqueeze",
    "squeeze",
    "_to_copy",
    "zeros_like",
    "ones_like",
    "where",
    "masked_fill",
    "scatter",
    "topk",
    "max",
    "amax",
    "sort",
    "eye",
    "ones",
    "zeros",
    "full",
    "clamp",
    "sign",
    "gt",
    "ge",
    "lt",
    "le",
    "eq",
    "neg",
    "abs",
    "copy_",
    "_reshape_alias",
    "select_backward",
    "slice_backward",
    "value_selecting_reduction_backward",
    "lift_fresh",
)


class Moved(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]  # not annotated in torch
    """Operands and results of every floating-point operation are moved by at most `unit`, relatively, each number by
    itself; results of sums by as many more as a running sum in float32, or in a wider format, makes on average. Sums that
    run in a narrower one lose tokens: that is a fault, and has a name."""

    paused = False

    def __init__(self, unit: float, seed: int):
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.unit, self.random, self.pool = unit, generator(seed), torch.empty(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if Moved.paused or name in MOVES:
            return func(*args, **(kwargs or {}))
        move = self.moved_by_factor if name in OF_MASKED else self.moved
        out = func(*tree_map(lambda one: move(one, self.unit), args), **(kwargs or {}))
        unit = self.unit
        if name in SUMS:
            summed = max((one.numel() for one in args if isinstance(one, Tensor)), default=1)
            unit += min(unit, ADDED) * (summed / max(1, out.numel())) ** 0.5
        if name == "_softmax":
            out = out * (1 + self.of_a_sum(out, args[1]))
        elif name == "_softmax_backward_data":
            grad, p, axis = args[:3]
            out = out + p * (grad * p).sum(axis, keepdim=True) * self.of_a_sum(p, axis)
        return tree_map(lambda one: self.moved(one, unit), out)

    def of_a_sum(self, value: Tensor, axis: int) -> Tensor:
        """Relative errors of sums along an axis inside an operation."""
        shape = list(value.shape)
        count, shape[axis] = shape[axis], 1
        return self.noise(torch.Size(shape), value.dtype) * (min(self.unit, ADDED) * math.sqrt(count))

    def moved(self, value: Any, unit: float) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return torch.addcmul(value, value, self.noise(value.shape, value.dtype), value=unit)

    def moved_by_factor(self, value: Any, unit: float) -> Any:
        """The same of numbers some of which may be infinite, and stay so."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value * (1 + unit * self.noise(value.shape, value.dtype))

    def noise(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Numbers between -1 and 1; for many of them, a piece of a pool that was drawn once."""
        count = shape.numel()
        if count < MANY:
            return torch.empty(shape, dtype=dtype).uniform_(-1, 1, generator=self.random)
        if self.pool.dtype != dtype or len(self.pool) < 2 * count:
            self.pool = torch.empty(2 * count, dtype=dtype).uniform_(-1, 1, generator=self.random)
        first = int(torch.randint(len(self.pool) - count, (1,), generator=self.random))
        return self.pool[first : first + count].view(shape)


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """For what is not computed but decided, as which experts are chosen."""
    before, Moved.paused = Moved.paused, True
    try:
        yield
    finally:
        Moved.paused = before
