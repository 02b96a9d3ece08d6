"""Counts the work of an accelerator in fake tensors, which have no numbers and need no device: kernels, bytes,
operations, peak memory. An operation that would wait for the device (to read a number, or for a shape by numbers)
raises an error. Copies between host and device are counted.

A kernel is an operation of torch that writes memory of the device. Views, allocations and operations with results on
the CPU are not kernels. Launches inside an operation are not counted (docs/pytorch/gpu.md names operations with
several)."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from couplet import bench
from couplet.ops import _noise, _operator, _plain
from couplet.ops._job import Job, Result, run_alone
from couplet.ops._response import without_autocast
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALLOCATIONS = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "set_", "resize_"}
OVERWRITES = {"fill_", "zero_", "copy_"}  # operations that do not read the old numbers
PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_"}


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str
    bytes: int  # read and written, each operand once
    operations: int = 0  # 2 x multiplications of a product
    in_f64: int = 0  # operations in f64


@dataclasses.dataclass
class Counts:
    each: List[Kernel] = dataclasses.field(default_factory=list)
    host_copies: int = 0
    peak: int = 0  # most bytes of tensors that exist at once

    @property
    def kernels(self) -> int:
        return len(self.each)

    @property
    def bytes(self) -> int:
        return sum(kernel.bytes for kernel in self.each)

    @property
    def operations(self) -> int:
        return sum(kernel.operations for kernel in self.each)


def _bytes_touched(t: Tensor) -> int:
    """Returns the bytes of a view's elements. An expanded dimension counts once."""
    count = 1
    for size, stride in zip(t.shape, t.stride()):
        count *= size if stride or size == 0 else 1
    return count * t.dtype.itemsize


def _tensors(tree: Any) -> List[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _storage(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _operands(function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[List[Tensor], List[Tensor]]:
    """Returns the tensors that an operation reads, and the existing tensors that it writes, by its schema."""
    name = function.__name__.split(".")[0]
    skips_old = name in OVERWRITES or kwargs.get("beta") == 0
    read: List[Tensor] = []
    written: List[Tensor] = []
    for k, argument in enumerate(function._schema.arguments):
        tensors = _tensors(args[k] if k < len(args) else kwargs.get(argument.name))
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written:
            written += tensors
        if not (is_written and (skips_old or argument.is_out) or name == "addmm" and k == 0 and skips_old):
            read += tensors
    return read, written


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations inside a `with` block. `counts.peak` counts tensors made in it that still exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counts()
        self._live: Dict[int, List[int]] = {}  # storage -> [its tensors, its bytes]
        self._bytes = 0

    def _made(self, t: Tensor) -> None:
        key = _storage(t)
        if key not in self._live:
            self._live[key] = [0, t.untyped_storage().nbytes()]
            self._bytes += self._live[key][1]
            self.counts.peak = max(self.counts.peak, self._bytes)
        self._live[key][0] += 1
        weakref.finalize(t, self._gone, key)

    def _gone(self, key: int) -> None:
        self._live[key][0] -= 1
        if self._live[key][0] == 0:
            self._bytes -= self._live.pop(key)[1]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {id(t) for t in _tensors((args, kwargs))}
        known = {_storage(t) for t in _tensors((args, kwargs))}
        result = function(*args, **kwargs)
        made = [t for t in _tensors(result) if id(t) not in given]
        for t in made:
            if t.device.type not in ("cpu", "meta") and (_storage(t) not in known or _storage(t) in self._live):
                self._made(t)
        fresh = [t for t in made if _storage(t) not in known]
        if function.__name__.split(".")[0] not in ALLOCATIONS:
            self._count(function, args, kwargs, fresh)
        return result

    def _count(self, function: Any, args: Any, kwargs: Dict[str, Any], fresh: List[Tensor]) -> None:
        name = function.__name__.split(".")[0]
        read, written = _operands(function, args, kwargs)
        written = written + fresh
        devices = {t.device.type for t in written}
        is_copy = name in ("copy_", "_to_copy")  # other operations get a host number without dimensions with the launch
        if any(t.device.type not in devices and (t.dim() or is_copy) for t in read) and written:
            self.counts.host_copies += 1
        if devices <= {"cpu"}:
            return
        if name == "noise":
            return self._count_noise(read[0], fresh[0])
        operations = 0
        if name in PRODUCTS:
            a, b = read[-2:]
            operations = 2 * a.numel() * b.shape[-1]
        moved = sum(map(_bytes_touched, read)) + sum(map(_bytes_touched, written))
        self.counts.each.append(Kernel(name, moved, operations))

    def _count_noise(self, router: Tensor, delta: Tensor) -> None:
        """Adds the kernels of couplet::noise (_noise_kernels.py), and its memory: routers in f64, their products."""
        l, n, d = router.shape
        size, gram = router.dtype.itemsize, 8 * l * n * n
        self.counts.each += [
            Kernel("_to_copy", l * n * d * (size + 8)),
            Kernel("bmm", l * n * d * 2 * 8 + gram, in_f64=2 * l * n * n * d),
            Kernel("_nearest", l * n * d * 2 * size + gram),
            Kernel("_draw", l * n * d * delta.dtype.itemsize),
        ]
        self.counts.peak = max(self.counts.peak, self._bytes + l * n * d * 8 + gram)


# ---- the shapes of models ----

LAYOUTS = ("fused", "stacked", "list", "interleaved")  # [n, 2D, d], [n, D, d], n of [D, d], the .mT of [n, d, 2D]
HALVES = {"fused": "first", "interleaved": "interleaved"}  # the place of the gates in each layout


@dataclasses.dataclass(frozen=True)
class Shape(bench.Shape):
    """MoE layers and the layout of their gates in one of `ep` processes that share the experts."""

    ep: int = 1
    layout: str = "stacked"
    dtype: torch.dtype = torch.bfloat16

    @property
    def here(self) -> int:
        """Returns the experts of a layer in one process."""
        return self.n // self.ep

    @property
    def half(self) -> str:
        return HALVES.get(self.layout, "")

    @property
    def gate_bytes(self) -> int:
        """Returns the bytes of a layer's gates in one process."""
        return self.here * self.d * self.D * self.dtype.itemsize

    @property
    def gradient_bytes(self) -> int:
        """Returns the bytes of the gates' gradient. A fused gradient includes the half that is zero."""
        return self.gate_bytes * (2 if self.half else 1)

    def ideal_bytes(self, accumulates: bool = False) -> int:
        """Returns the bytes moved in one process. Gates are read twice and the gradient is written once. With
        `accumulates` the gradient is read too, and only the gates' half of it is read and written."""
        return 4 * self.gate_bytes if accumulates else 2 * self.gate_bytes + self.gradient_bytes

    @property
    def ideal_operations(self) -> int:
        """Returns the operations of three products [n, d] by [n D, d]."""
        return 3 * 2 * self.n * self.here * self.d * self.D

    def router(self, device: str) -> Tensor:
        return torch.empty(self.n, self.d, dtype=self.dtype, device=device)

    def gates(self, device: str) -> List[Tensor]:
        rows = self.D * (2 if self.half else 1)
        if self.layout == "list":
            return [torch.empty(rows, self.d, dtype=self.dtype, device=device) for _ in range(self.here)]
        if self.layout == "interleaved":
            return [torch.empty(self.here, self.d, rows, dtype=self.dtype, device=device).mT]
        return [torch.empty(self.here, rows, self.d, dtype=self.dtype, device=device)]


OLMOE, QWEN3, DEEPSEEK_V3 = (
    Shape(*dataclasses.astuple(shape)) for shape in (bench.OLMOE, bench.QWEN3, bench.DEEPSEEK_V3)
)


# ---- counted evaluations ----


def run_share(job: Job) -> Result:
    """Runs one process's share of an evaluation under expert parallelism, without its exchanges. The diagonal of other
    processes' experts is uninitialised memory."""

    def whole_of(part: Any) -> Any:
        is_diagonal = isinstance(part, Tensor) and part.dim() == 1 and len(part) < job.n
        return part.new_empty(job.n).as_strided((job.n,), (1,)) if is_diagonal else part

    return run_alone(_operator.start(job), whole_of)


def _job(shape: Shape, router: Tensor, gates: List[Tensor], delta: Tensor) -> Job:
    return _operator.make_job(router, gates, [], [], delta, shape.half, 1.0, 1.0, "gate", "drawn", 0, 0, 0, 0, "", 0)


def evaluate(
    shape: Shape, router: Tensor, gates: List[Tensor], delta: Tensor, gradients: Optional[List[Tensor]] = None
) -> Tuple[Result, List[Tensor]]:
    """Returns loss and gradients of one layer as `erc.backward` makes them. They are added to `gradients` if given."""
    job = _job(shape, router, gates, delta)
    job.wants_router, job.fresh = True, gradients is None
    make = torch.zeros_like if _plain.is_for(router.device) else torch.empty_like
    into = [make(gate) for gate in gates] if gradients is None else gradients
    _operator.into(job, into, [], [], shape.half)
    with without_autocast(router.device):
        result = run_share(job)
        for gradient in into if job.fresh else ():
            _operator.zero_what_stays(job, gradient, shape.half)
    return result, into


def under_fake(run: Callable[[], Any]) -> Any:
    """Returns the result of `run` in fake tensors."""
    with FakeTensorMode():
        return run()


def counted(run: Callable[[], Any]) -> Counts:
    """Returns the counts of `run`, whose result is dropped."""
    counter = Counter()
    with counter:
        run()
    return counter.counts


def of_layer(shape: Shape, accumulates: bool = False, device: str = "cuda") -> Counts:
    """Returns the counts of loss and gradients of one layer with drawn noise. `accumulates`: gradients exist."""

    def run() -> Counts:
        router, gates = shape.router(device), shape.gates(device)
        delta = torch.empty(shape.n, shape.d, dtype=torch.float32, device=device)
        gradients = [torch.empty_like(gate) for gate in gates] if accumulates else None
        return counted(lambda: evaluate(shape, router, gates, delta, gradients))

    counts: Counts = under_fake(run)
    return counts


def of_loss(shape: Shape, device: str = "cuda") -> Tuple[Counts, Counts, int]:
    """Returns the counts of the operator's two calls for a layer with drawn noise, and the bytes kept between."""

    def run() -> Tuple[Counts, Counts, int]:
        router, gates = shape.router(device), shape.gates(device)
        delta, by = (torch.empty(size, dtype=torch.float32, device=device) for size in ((shape.n, shape.d), ()))
        want = [True, True, False, False]
        kept: List[Tensor] = []

        def forward() -> None:
            job = _job(shape, router, gates, delta)
            kept.extend(_operator.evaluate(job, gates, [], [], shape.half, want, run_share)[2:])

        layout = _operator.layout(router, (gates, [], []), want, shape.half, 1.0)
        forward_counts = counted(forward)
        return (
            forward_counts,
            counted(lambda: _operator.multiply(by, kept[0], kept[1:], *layout)),
            sum(t.nbytes for t in kept),
        )

    found: Tuple[Counts, Counts, int] = under_fake(run)
    return found


def of_noise(shape: Shape, device: str = "cuda") -> Counts:
    """Returns the counts of all layers' noise in the second step. Each is dropped before the next is drawn."""
    at_once = max(1, _noise.NUMBERS_AT_ONCE // (shape.n * shape.d))
    whole, rest = divmod(shape.layers, at_once)
    counts = Counts()
    for layers, times in ((at_once, whole), (rest, 1)):
        if layers and times:
            one = _of_draw(shape, layers, device)
            counts.each += one.each * times
            counts.host_copies += one.host_copies * times
            counts.peak = max(counts.peak, one.peak)
    return counts


def _of_draw(shape: Shape, layers: int, device: str) -> Counts:
    def run() -> Counts:
        routers = [shape.router(device) for _ in range(layers)]

        def draw() -> None:
            for _ in _noise.of_layers(routers, range(layers), 0, 0):
                pass

        return counted(draw)

    counts: Counts = under_fake(run)
    return counts
