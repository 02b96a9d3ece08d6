"""Counts what an accelerator would do, in fake tensors that have no numbers and need no device: kernels, bytes,
operations, peak memory. What would wait for the device (reading a number, a shape that depends on numbers) raises
there; copies from the host are counted.

A kernel is an operation of torch that is neither a view nor an allocation; what one of them launches inside is not
seen."""
from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import _noise, _operator

NO_KERNEL = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh",
             "set_", "_unsafe_view", "_reshape_alias", "device", "promote_types"}
PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_"}


@dataclasses.dataclass
class Counts:
    kernels: int = 0
    host_copies: int = 0
    bytes: int = 0        # read and written, each operand of each kernel once
    operations: int = 0   # 2 x multiplications of products
    peak: int = 0         # bytes of tensors made, at most at once


def _bytes_touched(t: Tensor) -> int:
    """Of a view: what it shows; expanded dimensions once."""
    count = 1
    for size, stride in zip(t.shape, t.stride()):
        count *= size if stride or size == 0 else 1
    return count * t.dtype.itemsize


def _tensors(tree: Any) -> List[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


class Counter(TorchDispatchMode):
    """Counts what runs under it. `counts.peak` is of the tensors that are made under it and still there."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.names: Dict[str, int] = {}
        self._live: Dict[int, List[int]] = {}  # storage -> [its tensors, its bytes]
        self._bytes = 0

    def _made(self, t: Tensor) -> None:
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in self._live:
            self._live[key] = [0, storage.nbytes()]
            self._bytes += storage.nbytes()
            self.counts.peak = max(self.counts.peak, self._bytes)
        self._live[key][0] += 1
        weakref.finalize(t, self._gone, key)

    def _gone(self, key: int) -> None:
        self._live[key][0] -= 1
        if self._live[key][0] == 0:
            self._bytes -= self._live.pop(key)[1]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        result = function(*args, **kwargs)
        name = function.__name__.split(".")[0]
        made = _tensors(result)
        is_in_place = name.endswith("_") or "out" in kwargs
        for t in made:
            if not is_in_place and (t.untyped_storage()._cdata not in known or t.untyped_storage()._cdata in self._live):
                self._made(t)
        if function.is_view or name in NO_KERNEL or any(t.untyped_storage()._cdata in known for t in made) \
                and not is_in_place:
            return result
        self._count(name, args, kwargs, made)
        return result

    def _count(self, name: str, args: Any, kwargs: Dict[str, Any], made: List[Tensor]) -> None:
        counts, inputs = self.counts, _tensors(args)
        counts.kernels += 1
        self.names[name] = self.names.get(name, 0) + 1
        counts.host_copies += any(t.device.type == "cpu" and t.dim() for t in inputs) and \
            any(t.device.type != "cpu" for t in made)
        overwrites = kwargs.get("beta") == 0 or name in ("fill_", "zero_", "copy_")
        counts.bytes += sum(map(_bytes_touched, inputs[1:] if overwrites else inputs)) + sum(map(_bytes_touched, made))
        if name in PRODUCTS:
            a, b = inputs[-2:]
            counts.operations += 2 * a.numel() * b.shape[-1]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a model's MoE layers and of how they lie."""
    name: str
    layers: int
    n: int
    d: int
    D: int
    ep: int = 1            # processes that share the experts of a layer
    fused: bool = False    # gates are the first half of [n, 2D, d]
    dtype: torch.dtype = torch.bfloat16

    @property
    def gate_bytes(self) -> int:
        """Of a layer and process: the gates alone."""
        return self.n // self.ep * self.d * self.D * self.dtype.itemsize

    @property
    def ideal_bytes(self) -> int:
        """Of a layer and process: gates read twice, the gradient written once (fused: with its zeros)."""
        return self.gate_bytes * (2 + (2 if self.fused else 1))

    @property
    def ideal_operations(self) -> int:
        """Three products of [n, d] by [n D, d]."""
        return 3 * 2 * self.n * (self.n // self.ep) * self.d * self.D


OLMOE = Shape("OLMoE-1B-7B", 16, 64, 2048, 1024)
QWEN3 = Shape("Qwen3-30B-A3B", 48, 128, 2048, 768)
DEEPSEEK_V3 = Shape("DeepSeek-V3", 58, 256, 7168, 2048)


def _layer(shape: Shape, router: Tensor, gate: Tensor, delta: Tensor, d_gate: Optional[Tensor]) -> Any:
    job = _operator.make_job(router, [gate], [], [], delta, "first" if shape.fused else "", 1.0, 1.0, "gate", "drawn",
                             0, 0, 0, 0, "", 0)
    if d_gate is None:
        return _operator.evaluate(job, [gate], [], [], "first" if shape.fused else "", [True, True, False, False])
    job.wants_router = True
    _operator.into(job, [d_gate], [], [], "first" if shape.fused else "")
    return _operator.run(job)


def _under_fake(run: Callable[[FakeTensorMode], Counts]) -> Counts:
    _noise._numbers.cache_clear()
    try:
        with FakeTensorMode() as fake:
            return run(fake)
    finally:
        _noise._numbers.cache_clear()


def of_layer(shape: Shape, accumulates: bool = False, device: str = "cuda") -> Counts:
    """Loss and gradients of one layer whose noise is drawn; `accumulates`: into gradients that hold something."""
    def run(fake: FakeTensorMode) -> Counts:
        router = torch.empty(shape.n, shape.d, dtype=shape.dtype, device=device)
        gate = torch.empty(shape.n // shape.ep, shape.D * (2 if shape.fused else 1), shape.d, dtype=shape.dtype,
                           device=device)
        delta = torch.empty(shape.n, shape.d, dtype=torch.float32, device=device)
        d_gate = torch.empty_like(gate) if accumulates else None
        with Counter() as counter:
            kept = _layer(shape, router, gate, delta, d_gate)
            del kept
        return counter.counts
    return _under_fake(run)


def of_noise(shape: Shape, device: str = "cuda") -> Counts:
    """The noise of all layers, in the second step."""
    def run(fake: FakeTensorMode) -> Counts:
        routers = [torch.empty(shape.n, shape.d, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        consume: Callable[[], Iterator[Tensor]] = lambda: _noise.of_layers(routers, range(shape.layers), 0, 0)
        for _ in consume():
            pass
        with Counter() as counter:
            for _ in consume():
                pass
        return counter.counts
    return _under_fake(run)
