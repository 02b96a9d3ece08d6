"""One evaluation of the coupling loss, the input of every path: the matrices, the options, and the tensors to which
gradients are added.

Names: n experts in all, c of them here (all, but for expert parallelism), d model width, D expert
width, A rows of an expert's tensor: D, or 2D where gate and up projection share the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Generator, Optional, Sequence

import torch
from torch import Tensor

ACTIVATIONS = ("gate", "up", "silu", "swiglu", "output", "gate_up")  # cpl_erc_activation
HALVES = ("", "first", "second", "interleaved")  # position of the gate in a fused tensor; "": not fused
USES_GATE = ("gate", "silu", "swiglu", "output", "gate_up")
USES_UP = ("up", "swiglu", "output", "gate_up")
LINEAR = ("gate", "up", "gate_up")  # M is of degree 1 in the proxies


def part(tensor: Tensor, half: str, is_gate: bool) -> Tensor:
    """Returns the gate's or the up projection's rows of [..., A, d], as a view."""
    if half == "":
        return tensor
    if half == "interleaved":
        return tensor[..., slice(0 if is_gate else 1, None, 2), :]
    D = tensor.shape[-2] // 2
    return tensor[..., :D, :] if (half == "first") == is_gate else tensor[..., D:, :]


def has_whole_rows(tensor: Tensor) -> bool:
    """Returns whether the numbers of a row of [..., r, k] are contiguous and no two rows overlap."""
    r, k = tensor.shape[-2:]
    return tensor.numel() == 0 or ((tensor.stride(-2) >= k or r <= 1) and (tensor.stride(-1) == 1 or k <= 1))


class Experts:
    """A matrix [r, k] for each of c experts: one tensor [c, r, k], or c tensors [r, k]."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.stacked: Optional[Tensor] = tensors[0] if tensors[0].dim() == 3 else None
        self.single = list(tensors) if self.stacked is None else []
        self.dtype = tensors[0].dtype
        stacked = self.stacked
        self.shape = (len(tensors), *tensors[0].shape) if stacked is None else tuple(stacked.shape)

    def one(self, j: int) -> Tensor:
        """Returns the matrix [r, k] of local expert j."""
        return self.single[j] if self.stacked is None else self.stacked[j]

    def chunk(self, at: slice) -> Tensor:
        """Returns the matrices [c, r, k] of a slice of experts; a view where all experts are one tensor."""
        if self.stacked is None:
            return torch.stack(self.single[at])
        return self.stacked[at]

    def pointers(self) -> list[int]:
        """Returns the address of each matrix."""
        if self.stacked is None:
            return [t.data_ptr() for t in self.single]
        step = self.stacked.stride(0) * self.stacked.element_size()
        return [self.stacked.data_ptr() + j * step for j in range(self.stacked.shape[0])]

    def has_even_rows(self) -> bool:
        """Returns whether rows are contiguous, with one stride for the rows of all experts."""
        many = [self.stacked] if self.stacked is not None else self.single
        return all(has_whole_rows(t) and t.stride(-2) == many[0].stride(-2) for t in many)

    def stride(self) -> int:
        """Returns the stride of rows, in numbers. torch keeps any stride for a single row."""
        one = self.single[0] if self.stacked is None else self.stacked
        return one.stride(-2) if one.shape[-2] > 1 else one.shape[-1]


@dataclass
class Job:
    router: Tensor  # [n, d]
    gate: Optional[Experts]  # [D, d] of each expert; None: not used by the activation
    up: Optional[Experts]  # [D, d]
    down: Optional[Experts]  # [d, D]
    n: int
    d: int
    D: int
    first: int  # the experts of this process: [first, end)
    end: int
    delta: Optional[Tensor]  # [n, d], noise that exists already
    noise: str  # "bounded" or "none"; "drawn": delta is bounded noise of this package
    alpha: Any  # a float; in a compiled graph on an accelerator a tensor []
    weight: float
    activation: str
    seed: int
    step: int
    layer: int
    draw: int
    compute: str  # dtype to which operands of products are rounded: "f32", "bf16", or "" (see products_dtype)
    scale: Optional[Tensor] = None  # [], factor of the gradients, beside `weight`
    split: bool = False  # D is this process's part of the experts' width: M^2 is a sum over processes
    # Gradients to be added to. None: not wanted.
    wants_router: bool = False
    d_gate: Optional[Experts] = None
    d_up: Optional[Experts] = None
    d_down: Optional[Experts] = None
    factors: Optional[list[tuple[Experts, Tensor, Tensor]]] = None  # on an accelerator, where gradients are made later:
    # (experts, d [c, r, n], x [n, k] or [c, n, k]) of their products d x, chunk by chunk
    fresh: bool = False  # d_gate, d_up and d_down are not yet written: zeros on the CPU, else undefined

    @property
    def backward(self) -> bool:
        return self.wants_router or any(x is not None for x in (self.d_gate, self.d_up, self.d_down))

    @property
    def matrices(self) -> list[Experts]:
        """Returns the matrices that the activation uses."""
        return [x for x in (self.gate, self.up, self.down) if x is not None]


@dataclass
class Result:
    """Results of one evaluation. The gradients of the matrices are in the job."""

    total: Tensor  # n^2 L [], f32 or wider: the sum over pairs
    M: Tensor  # [n, c], f32 or wider: the columns of this process's experts
    d_router: Optional[Tensor]  # [n, d], f32 or wider; None: not wanted


# One evaluation with its exchanges. It yields this process's part and is sent the result for all processes:
Phases = Generator[Any, Any, Result]


def run_alone(phases: Phases, whole_of: Callable[[Any], Any] = lambda part: part) -> Result:
    """Runs the phases without other processes: each part is the whole, or whole_of computes the whole from a part."""
    whole = None
    while True:
        try:
            whole = whole_of(phases.send(whole))
        except StopIteration as end:
            result: Result = end.value
            return result
